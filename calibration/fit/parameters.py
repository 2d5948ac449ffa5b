"""Writes calibration files; equal parameters give equal bytes. Schema: ``calibration.laws.tables``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from archsim.base.files import write_text
from archsim.specs.text.yaml import dump_yaml
from calibration.laws.tables import CalibrationSpec
from calibration.measurements.reading import CalibrationError

YAML = (".yaml", ".yml")
EXACT = ("first_bytes", "last_bytes")  # sizes; those in rows of numbers are kept as whole numbers
DIGITS = 6  # significant, of fitted numbers
HEAD = "# Fitted by `archsim calibrate`; see calibration/laws/tables.py for what the keys mean.\n"


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


def text_of(calibration: CalibrationSpec) -> str:
    """YAML text that reads back to an equal calibration."""
    return HEAD + dump_yaml(calibration.model_dump(mode="json", exclude_defaults=True))


def write_calibration(calibration: CalibrationSpec, path: str | Path) -> Path:
    """Write the file atomically."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text_of(calibration))
    return path


def is_calibration_file(out: str) -> bool:
    """Whether an output is a YAML file, not a folder. Raises CalibrationError for any other file type."""
    path = Path(out)
    if path.suffix in YAML or path.is_dir() or out.endswith("/") or not path.suffix[1:2].isalpha():
        return path.suffix in YAML
    raise CalibrationError(
        f"--out {out}: a calibration is a .yaml file, not {path.suffix}; end the path of a new folder with /"
    )
