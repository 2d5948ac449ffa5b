"""The page of docs on the shipped calibrations: every law that an iteration uses, against all that was measured.

``python -m archsim.studies.validation.shipped MEASUREMENTS docs/validation.md [GPU ...]`` writes it.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from archsim.base.files import write_text
from archsim.specs.loading.calibrations import calibration_named
from archsim.specs.loading.config_files import named_files
from archsim.studies.validation.errors import gemm_cases, moe_cases
from archsim.studies.validation.sections import judged, section_table, sections, unread
from calibration.measurements.reading import Measurements, read_measurements

HEAD = """# Shipped calibrations against measurements

Every law that an iteration uses, by the calibration file as it is, on all that was measured of its GPU: most of it is
what the file was fitted to. Errors of sizes, shapes and
sweeps left out of the fit are on the page of `archsim validate MEASUREMENTS --with GPU`. *Own table*:
the kernel's table; else as the engine takes it, by the bytes of a port. Made by
`python -m archsim.studies.validation.shipped MEASUREMENTS docs/validation.md`.
"""
MOST_UNREAD = 8  # listed


def main(arguments: list[str]) -> None:
    """Write the page for all shipped calibrations, or those named, whose GPU was measured."""
    folder, out, *names = arguments
    measurements = read_measurements(folder)
    wanted = names or sorted(named_files("calibrations"))
    parts = [part for name in wanted for part in _of(name, measurements)]
    write_text(Path(out), "\n".join([HEAD, *parts]))


def _of(name: str, measurements: Measurements) -> Iterator[str]:
    calibration = calibration_named(name)
    if calibration.gpu not in measurements.gpus():
        return
    found = [gemm_cases(calibration, measurements), moe_cases(calibration, measurements)]
    cases = pd.concat([each for each in found if len(each)] or found[:1], ignore_index=True)
    read = judged(calibration, name, measurements, cases)
    names, rows = section_table(sections([each._replace(what="", library="") for each in read]))
    kept = [column for column in range(len(names)) if names[column] not in ("what", "library")]
    yield f"## {name}\n"
    yield "| " + " | ".join(names[column] for column in kept) + " |\n|" + "---|" * len(kept)
    for row in rows:
        yield "| " + " | ".join(row[column] for column in kept) + " |"
    lines = [line for line in unread(read, measurements) if ": " not in line]
    more = f" and {len(lines) - MOST_UNREAD} more" if len(lines) > MOST_UNREAD else ""
    yield f"\nMeasured, and read by no law: {'; '.join(lines[:MOST_UNREAD]) + more if lines else 'none'}.\n"


if __name__ == "__main__":
    main(sys.argv[1:])
