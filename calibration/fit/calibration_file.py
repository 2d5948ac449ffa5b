"""Writes calibration files; equal parameters give equal bytes. Schema: ``archsim.laws.tables``."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from archsim.base import files, yaml
from archsim.laws.calibration_sections import NUMBERS, TABLES
from archsim.laws.stored import STORED, digest, pack, save
from archsim.laws.tables import SECTIONS, CalibrationSpec, TableOrigin
from calibration.measurements.reading import CalibrationError

YAML = (".yaml", ".yml")
EXACT = ("first_bytes", "last_bytes")  # sizes; those in rows of numbers are kept as whole numbers
DIGITS = 6  # significant, of fitted numbers
HEAD = "# Fitted by `archsim calibrate`; see archsim/laws/tables.py for what the keys mean.\n"


def round_calibration(calibration: CalibrationSpec) -> CalibrationSpec:
    """With six significant digits: those after differ between CPUs. Measured sizes stay exact."""
    return CalibrationSpec.model_validate(_round(calibration.model_dump()))


def _round(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _round(each, name) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [each if isinstance(each, float) and each.is_integer() else _round(each, key) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) and key not in EXACT else value


def write_calibration(calibration: CalibrationSpec, path: str | Path, only: Collection[str] = SECTIONS) -> Path:
    """Write the file and (``only``) its sections into the folder beside it, each atomically."""
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
    written, arrays = pack(tables)
    data: dict[str, Any] = {TABLES: written}
    if any(STORED in table for table in written):
        data = {NUMBERS: {"file": beside.name, "sha256": digest(arrays)}} | data
        with files.write_draft(beside) as draft:
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
