"""What ``archsim calibrate`` and ``archsim validate`` do. Everything heavy is imported inside the commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

MOST_TOLD = 12  # problems per file
SECTIONS = ("gemm", "moe", "p2p", "collectives", "pcie", "hbm", "launch")


def add_calibration_commands(commands: argparse._SubParsersAction) -> None:
    """The parsers of both commands."""
    calibrate = commands.add_parser("calibrate", help="fit measurements of a GPU")
    calibrate.add_argument("measurements", metavar="DIR", help="folder of CSV files, or one file")
    calibrate.add_argument(
        "--out",
        default="configs/calibrations",
        metavar="FILE",
        help="YAML file, named after the GPU; or a folder, for one file per GPU (default: configs/calibrations)",
    )
    calibrate.add_argument("--gpu", metavar="NAME", help="which GPU of the measurements, such as h100")
    calibrate.set_defaults(command=_calibrate)

    validate = commands.add_parser("validate", help="judge a calibration by measurements, and by what it has not seen")
    validate.add_argument("measurements", metavar="DIR", help="folder of CSV files, or one file")
    validate.add_argument("--with", dest="calibration", required=True, metavar="FILE", help="calibration, name or file")
    validate.add_argument("--out", metavar="DIR", help="folder of the page and CSV (default: reports/calibration-GPU)")
    validate.add_argument(
        "--quick", action="store_true", help="only the file itself, nothing left out and fitted again"
    )
    validate.set_defaults(command=_validate)


def _one_thread() -> None:
    """Small matrices are inverted several times faster by one thread, and the same way on every machine.

    Holds where numpy has not been imported yet.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _calibrate(arguments: argparse.Namespace) -> int:
    _one_thread()
    from calibration.fit import choose_gpu, fit_measurements
    from calibration.parameters import write_calibration
    from calibration.reading import read_measurements

    measurements = read_measurements(arguments.measurements)
    _tell(measurements)
    out = Path(arguments.out)
    is_file = out.suffix in (".yaml", ".yml")
    if is_file or arguments.gpu:
        gpus = [choose_gpu(measurements, arguments.gpu, out.stem if is_file else "")]
    else:
        gpus = measurements.gpus()
    written = 0
    for gpu in gpus:
        calibration = fit_measurements(measurements, gpu)
        if not any(getattr(calibration, kind) for kind in SECTIONS):
            print(f"{gpu}: these measurements alone say nothing that a calibration holds", file=sys.stderr)
            continue
        written += 1
        path = write_calibration(calibration, out if is_file else out / f"{gpu}.yaml")
        counts = {kind: len(getattr(calibration, kind)) for kind in SECTIONS}
        print(f"{path}: {gpu}, tables: " + ", ".join(f"{kind} {count}" for kind, count in counts.items() if count))
    if not written:
        print(f"{arguments.measurements}: nothing that can be used", file=sys.stderr)
    return 0 if written else 2


def _validate(arguments: argparse.Namespace) -> int:
    _one_thread()
    import pandas as pd

    from archsim.specs.calibration import load_calibration
    from calibration import validate
    from calibration.comm_errors import errors_with, transfer_errors
    from calibration.engine_cases import engine_cases
    from calibration.engine_copies import copy_cases
    from calibration.page import BY, write_page
    from calibration.reading import CalibrationError, read_measurements

    calibration = load_calibration(arguments.calibration)
    measurements = read_measurements(arguments.measurements)
    _tell(measurements)
    if calibration.gpu not in measurements.gpus():
        known = ", ".join(measurements.gpus()) or "none"
        raise CalibrationError(
            f"no measurements of {calibration.gpu!r}, which was calibrated; there are some of: {known}"
        )
    found = [validate.gemm_cases(calibration, measurements), validate.moe_cases(calibration, measurements)]
    transfers = {"calibration file": errors_with(calibration, measurements)}
    if not arguments.quick:
        print("fitting again without sweeps, shapes and EP sizes …", flush=True)
        found += [
            validate.sweep_out_cases(measurements, calibration.gpu),
            validate.shape_out_cases(measurements, calibration.gpu),
            validate.rank_out_cases(measurements, calibration.gpu),
        ]
        transfers["sizes left out"] = transfer_errors(measurements, calibration.gpu)
    cases = pd.concat([frame for frame in found if len(frame)] or found[:1], ignore_index=True)
    if len(cases):
        _print_errors(cases, BY)
    through_engine = engine_cases(calibration, str(arguments.calibration), measurements)
    copies = copy_cases(calibration, measurements)
    _print_engine(through_engine, copies)
    folder = Path(arguments.out or f"reports/calibration-{calibration.gpu}")
    print(write_page(calibration, cases, transfers, through_engine, copies, folder))
    return 0


def _print_errors(cases, by: list[str]) -> None:
    from calibration.groups import GROUP, layer_groups
    from calibration.validate import GEMM, expert_cases, summaries

    _print_table(summaries(cases, by), by)
    judged = expert_cases(cases[cases["what"] == GEMM])
    if len(judged):
        by = [*by, "sweep"]
        print("\nexperts' GEMMs, M = 1, 2 ... 4096:")
        _print_table(summaries(judged, by), by)
    layers = layer_groups(cases)
    if len(layers):
        met = Counter(layers["met"])
        print(
            f"\nfused MoE layers, each EP size left out: {met['yes']} of {len(layers)} groups within their aim, "
            f"{met['floor']} others within what repetitions or draws of the routing differ; where it is wrong:"
        )
        missed = layers[layers["met"] != "yes"].sort_values("mean", ascending=False, kind="stable")
        _print_table(missed.assign(aim=missed["aim"].map("{:.0%}".format)), [*GROUP, "aim", "met"])


def _print_engine(experts, copies) -> None:
    from calibration.engine_cases import engine_table
    from calibration.engine_copies import copies_table

    for heading, cases, table in (("experts on one die", experts, engine_table), ("copies between two dies", copies, copies_table)):
        if len(cases):
            print(f"\n{heading} by the event engine:")
            names, rows = table(cases)
            for row in [names, *rows]:
                print("  ".join(cell.ljust(max(18, len(name))) for cell, name in zip(row, names, strict=True)).rstrip())


def _print_table(found, by: list[str]) -> None:
    widths = [max(len(str(value)) for value in [name, *found[name]]) for name in by]
    head = "  ".join(name.ljust(width) for name, width in zip(by, widths, strict=True))
    print(f"{head}   cases    <5%  mean %   p95 %   max %  floor %")
    for row in found.to_dict("records"):
        names = "  ".join(str(row[name]).ljust(width) for name, width in zip(by, widths, strict=True))
        figures = "".join(f"{100 * row[name]:8.2f}" for name in ("mean", "p95", "max", "floor"))
        print(f"{names}  {row['cases']:6d} {row['under']:6d}{figures}")


def _tell(measurements) -> None:
    """Problems on stderr: refused files, then quarantined rows and warnings, so many per file."""
    told = Counter()
    for problem in measurements.problems:
        told[problem.file] += 1
        if told[problem.file] <= MOST_TOLD:
            print(problem, file=sys.stderr)
    for file, count in told.items():
        if count > MOST_TOLD:
            print(f"{file}: and {count - MOST_TOLD} more", file=sys.stderr)
    for file in measurements.skipped:
        print(f"{file}:1: skipped: no known layout has these columns", file=sys.stderr)
