"""Calibration files, written: the same parameters always give the same bytes. Read by ``archsim.specs.calibration``."""

from __future__ import annotations

from pathlib import Path

from archsim.files import write_text
from archsim.specs.calibration import CalibrationSpec
from archsim.specs.yaml_loader import dump_yaml

HEAD = "# Fitted by `archsim calibrate`; see archsim/specs/calibration.py for what the keys mean.\n"


def text_of(calibration: CalibrationSpec) -> str:
    """YAML text that reads back to an equal calibration."""
    return HEAD + dump_yaml(calibration.model_dump(mode="json", exclude_defaults=True))


def write_calibration(calibration: CalibrationSpec, path: str | Path) -> Path:
    """Write the file as a whole."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text_of(calibration))
    return path
