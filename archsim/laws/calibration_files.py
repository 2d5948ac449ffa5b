"""Calibrations by name or path: found, read once until the file changes, identified by a digest of their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from math import log2
from pathlib import Path

from archsim.base import errors, validation, yaml
from archsim.base.config_files import display, named_files, search_folders, shipped_configs
from archsim.laws.calibration_sections import files_of, with_sections
from archsim.laws.tables import CalibrationSpec, ReferenceRates

KIND = "calibrations"
# For a die that names none: the GPU whose measured GEMMs cover most shapes and dtypes, and on which Yu et al., ISCA
# 2026 (arXiv 2510.05497v4) validate.
DEFAULT_CALIBRATION = "h100"


def siblings_of(calibration: CalibrationSpec) -> Iterator[CalibrationSpec]:
    """Shipped calibrations that may stand in, nearest first: ``scaled``, then by octaves of BF16 peak and bandwidth."""
    away = {}
    for path in sorted((shipped_configs() / KIND).glob("*.yaml")):
        gpu, reference = _rates_once(path, path.stat().st_mtime_ns)
        if gpu != calibration.gpu:
            away[path] = _octaves(reference, calibration.reference) if gpu != _named_sibling(calibration) else -1.0
    for path in sorted(away, key=away.__getitem__):
        yield _own_once(*_version(str(path)))


def _named_sibling(calibration: CalibrationSpec) -> str | None:
    return calibration.scaled.gpu if calibration.scaled else None


def _octaves(one: ReferenceRates, other: ReferenceRates) -> float:
    peaks = one.peak_flop_per_s["bf16"] / other.peak_flop_per_s["bf16"]
    return abs(log2(peaks)) + abs(log2(one.hbm_bytes_per_s / other.hbm_bytes_per_s))


@lru_cache(maxsize=32)
def _rates_once(path: Path, changed_ns: int) -> tuple[str, ReferenceRates]:
    """GPU and reference of a file, without its sections."""
    data = yaml.read_yaml(path, display(path)).data
    return data["gpu"], ReferenceRates.model_validate(data["reference"])


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
    raise errors.SpecError(f"unknown calibration {str(name)!r}{errors.did_you_mean(str(name), known)}{listed}")


def calibration_named(name: str | None) -> CalibrationSpec:
    """Like ``load_calibration``, but read once until the file changes; the default if ``name`` is None."""
    return _read_once(*_version(name))


def reference_of(name: str | None) -> ReferenceRates:
    """Peak rates of the measured GPU, without reading its tables; of the default if ``name`` is None."""
    path = find_calibration(name or DEFAULT_CALIBRATION).absolute()
    try:
        return _rates_once(path, path.stat().st_mtime_ns)[1]
    except OSError as error:
        raise errors.SpecError(f"{display(Path(error.filename))}: no such file") from None


def calibration_digest(name: str | None) -> str:
    """sha256 of the file and its sections; of the default if ``name`` is None. Raises SpecError for an unknown one."""
    return _digest_once(*_version(name))


def _version(name: str | None) -> tuple[Path, tuple[int, ...]]:
    """(file, modification times of it and of the files of its sections)"""
    path = find_calibration(name or DEFAULT_CALIBRATION).absolute()
    try:
        changed_ns = path.stat().st_mtime_ns
        return path, (changed_ns, *(file.stat().st_mtime_ns for file in _sections_once(path, changed_ns)))
    except OSError as error:
        raise errors.SpecError(f"{display(Path(error.filename))}: no such file") from None


@lru_cache(maxsize=32)
def _sections_once(path: Path, changed_ns: int) -> tuple[Path, ...]:
    return tuple(files_of(yaml.read_yaml(path, display(path)).data, path.parent))


@lru_cache(maxsize=8)
def _read_once(path: Path, changed_ns: tuple[int, ...]) -> CalibrationSpec:
    return load_calibration(path)


@lru_cache(maxsize=16)  # all that ship, which a search for siblings reads in turn
def _own_once(path: Path, changed_ns: tuple[int, ...]) -> CalibrationSpec:
    """For siblings that take tables of each other."""
    return read_calibration(path)


@lru_cache(maxsize=8)
def _digest_once(path: Path, changed_ns: tuple[int, ...]) -> str:
    scaled = calibration_named(str(path)).scaled
    content = _content(path) + (_content(find_calibration(scaled.gpu)) if scaled else b"")
    return hashlib.sha256(content).hexdigest()


def _content(path: Path) -> bytes:
    """Of the file and of its sections, which have the digests of the numbers beside them."""
    files = [path, *files_of(yaml.read_yaml(path, display(path)).data, path.parent)]
    return b"".join(file.read_bytes() for file in files)


def read_calibration(path: Path) -> CalibrationSpec:
    """What a file has itself, without tables of other calibrations. Raises SpecError."""
    return validation.validate(CalibrationSpec, with_sections(yaml.read_yaml(path, display(path)), path.parent))


def load_calibration(name: str | Path) -> CalibrationSpec:
    """A calibration by name ('h100') or path, with tables scaled from another one. Raises SpecError."""
    found = read_calibration(find_calibration(name))
    from archsim.laws.scaling import with_scaled  # here, as they import numpy
    from archsim.laws.whole_pairs import with_own_pairs

    base = _own_once(*_version(found.scaled.gpu)) if found.scaled else None
    return with_own_pairs(found if base is None else with_scaled(found, base), base)
