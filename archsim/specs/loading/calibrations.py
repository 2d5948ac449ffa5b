"""Calibrations by name or path: found, read once until the file changes, and identified by a digest of their content.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from archsim.base.errors import SpecError
from archsim.base.nearest import did_you_mean
from archsim.specs.loading.config_files import display, named_files, search_folders
from archsim.specs.text.validation import validate
from archsim.specs.text.yaml import read_yaml
from calibration.laws.tables import CalibrationSpec

KIND = "calibrations"
# For a die that names none: the GPU whose measured GEMMs cover most shapes and dtypes, and on which Yu et al., ISCA
# 2026 (arXiv 2510.05497v4) validate.
DEFAULT_CALIBRATION = "h100"


def find_calibration(name: str | Path) -> Path:
    """The file of a calibration by name ('h100') or path. Raises SpecError for an unknown name."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return path
    for folder in search_folders(KIND, None) if path.name == str(name) else ():
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    known = named_files(KIND)
    listed = f" (known: {', '.join(known)}; or the path of a YAML file)"
    raise SpecError(f"unknown calibration {str(name)!r}{did_you_mean(str(name), known)}{listed}")


def calibration_named(name: str | None) -> CalibrationSpec:
    """Like ``load_calibration``, but read once until the file changes; the default if ``name`` is None."""
    return _read_once(*_version(name))


def calibration_digest(name: str | None) -> str:
    """sha256 of the file, or of the default if ``name`` is None. Raises SpecError for an unknown calibration."""
    return _digest_once(*_version(name))


def _version(name: str | None) -> tuple[Path, int]:
    """(file, modification time)"""
    path = find_calibration(name or DEFAULT_CALIBRATION).absolute()
    try:
        return path, path.stat().st_mtime_ns
    except OSError:
        raise SpecError(f"{display(path)}: no such file") from None


@lru_cache(maxsize=8)
def _read_once(path: Path, changed_ns: int) -> CalibrationSpec:
    return load_calibration(path)


@lru_cache(maxsize=8)
def _digest_once(path: Path, changed_ns: int) -> str:
    content = path.read_bytes()
    scaled = calibration_named(str(path)).scaled
    if scaled:
        content += find_calibration(scaled.gpu).read_bytes()
    return hashlib.sha256(content).hexdigest()


def load_calibration(name: str | Path) -> CalibrationSpec:
    """A calibration by name ('h100') or path, with the tables that it takes scaled from another one. Raises
    SpecError.
    """
    path = find_calibration(name)
    found = validate(CalibrationSpec, read_yaml(path, display(path)))
    if not found.scaled:
        return found
    from calibration.laws.scaled import with_scaled  # here, as it imports numpy

    return with_scaled(found, calibration_named(found.scaled.gpu))
