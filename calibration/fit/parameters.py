"""Writes calibration files; equal parameters give equal bytes. Schema: ``archsim.laws.tables``."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base import files, yaml
from archsim.laws.stored import STORED, digest, packed, save
from archsim.laws.tables import SECTIONS, CalibrationSpec, TableOrigin
from archsim.specs.calibration_sections import NUMBERS, TABLES
from calibration.measurements.reading import CalibrationError

# ---- parameters

YAML = (".yaml", ".yml")
EXACT = ("first_bytes", "last_bytes")  # sizes; those in rows of numbers are kept as whole numbers
DIGITS = 6  # significant, of fitted numbers
HEAD = "# Fitted by `archsim calibrate`; see archsim/laws/tables.py for what the keys mean.\n"


def rounded(calibration: CalibrationSpec) -> CalibrationSpec:
    """The same with six significant digits: those after them differ between CPUs, as their numeric libraries add up in
    different orders. Measured sizes stay exact.
    """
    return CalibrationSpec.model_validate(_rounded(calibration.model_dump()))


def _rounded(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each, name) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [each if isinstance(each, float) and each.is_integer() else _rounded(each, key) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) and key not in EXACT else value


def write_calibration(calibration: CalibrationSpec, path: str | Path, only: Collection[str] = SECTIONS) -> Path:
    """Write the file, and its sections into the folder of its name beside it; each is replaced atomically.

    only: the sections that are written; the others stay as they are.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    head = calibration.model_dump(mode="json", exclude_defaults=True, exclude=set(SECTIONS))
    for section in SECTIONS:
        file = path.parent / path.stem / f"{section}.yaml"
        if section in only:
            _write_section(getattr(calibration, section), file)
        if getattr(calibration, section):
            head[section] = f"{path.stem}/{file.name}"
    files.write_text(path, HEAD + yaml.dump_yaml(head, flow=None))
    return path


def _write_section(tables: Sequence[TableOrigin], file: Path) -> None:
    beside = file.with_suffix(".npz")
    if not tables:
        file.unlink(missing_ok=True)
        beside.unlink(missing_ok=True)
        return
    file.parent.mkdir(exist_ok=True)
    written, arrays = packed(tables)
    data: dict[str, Any] = {TABLES: written}
    if any(STORED in table for table in written):
        data = {NUMBERS: {"file": beside.name, "sha256": digest(arrays)}} | data
        with files.drafted(beside) as draft:
            save(draft, arrays)
    else:
        beside.unlink(missing_ok=True)
    files.write_text(file, HEAD + yaml.dump_yaml(data, flow=None))


def is_calibration_file(out: str) -> bool:
    """Whether an output is a YAML file, not a folder. Raises CalibrationError for any other file type."""
    path = Path(out)
    if path.suffix in YAML or path.is_dir() or out.endswith("/") or not path.suffix[1:2].isalpha():
        return path.suffix in YAML
    raise CalibrationError(
        f"--out {out}: a calibration is a .yaml file, not {path.suffix}. End the path of a new folder with /"
    )


# ---- robust
# Least squares with a robust loss, for the parameters of laws.
#
# A fit goes on far beyond the digits that are written: the default tolerances of scipy leave weakly determined
# parameters 1e-4 apart between CPUs, whose numeric libraries round differently; these leave 1e-7.

TOLERANCE = 1e-15
LAW_DIGITS = 4  # significant, of the parameters of laws; corrections at measured points make up for what is cut


def least_squares(residuals: Callable[[np.ndarray], np.ndarray], start: np.ndarray, bounds, scale: float, steps: int):
    """scipy's result: ``x``, float64[parameter], and ``cost``. scale: residuals beyond count linearly."""
    from scipy.optimize import least_squares as scipys

    to_the_end = dict.fromkeys(("ftol", "xtol", "gtol"), TOLERANCE)
    return scipys(
        residuals, start, jac="3-point", bounds=bounds, loss="soft_l1", f_scale=scale, max_nfev=steps, **to_the_end
    )


def significant(value: float, digits: int = LAW_DIGITS) -> float:
    """Rounded to a few significant digits, so that files are small and equal on all machines."""
    return float(f"{value:.{digits}g}")
