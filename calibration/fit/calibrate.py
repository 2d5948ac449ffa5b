"""Measurements to calibration files: which GPUs are fitted, where each is written, what is reported of it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from archsim.base.errors import SpecError
from archsim.laws.calibration_files import read_calibration
from archsim.laws.tables import SECTIONS, CalibrationSpec
from calibration.fit import calibration_file, covered_tables
from calibration.fit.fit import choose_gpu, fit_measurements
from calibration.measurements.datasheets import Nominal, fitted_note
from calibration.measurements.reading import CalibrationError, Measurements

MOST_LOST = 5  # tables that a message names


@dataclass(frozen=True)
class FittedCalibration:
    """The calibration of one GPU. ``path``: its file, None where none was written; ``note``: on its rates, or empty."""

    gpu: str
    calibration: CalibrationSpec
    path: Path | None
    note: str

    def __repr__(self) -> str:
        counts = ", ".join(f"{kind} {count}" for kind, count in self.tables.items()) or "empty"
        return f"{type(self).__name__}({self.gpu!r}, tables: {counts})"

    @property
    def tables(self) -> dict[str, int]:
        """Section → number of its tables; sections without any are left out."""
        counts = {kind: len(getattr(self.calibration, kind)) for kind in SECTIONS}
        return {kind: count for kind, count in counts.items() if count}


def calibrate_gpus(
    measurements: Measurements,
    out: str | None,
    gpu: str | None,
    named: Nominal,
    report: Callable[[FittedCalibration], None],
    only: Collection[str] = SECTIONS,
) -> tuple[FittedCalibration, ...]:
    """Fit every GPU of the measurements, or one: as named by ``gpu``, or by ``out`` where that is a file.

    out: YAML file, or folder for one file a GPU; None: nothing is written. A calibration without tables is not written.
    named: nominal rates of an own GPU. report: called for every GPU, once its file is whole. only: the sections that
    are fitted; the others of a file are left as they are.

    Raises CalibrationError where there is nothing to fit, where one GPU must be chosen, and instead of replacing a
    file by one that covers less.
    """
    is_file = out is not None and calibration_file.is_calibration_file(out)
    if is_file or gpu:
        gpus = [choose_gpu(measurements, gpu, Path(out).stem if out is not None and is_file else "")]
    else:
        gpus = measurements.gpus()
    if named and len(gpus) > 1:
        known = ", ".join(gpus)
        raise CalibrationError(f"--peak and --hbm are of one GPU, and there are {known}. Choose one with --gpu")
    found = []
    for each in gpus:
        path = None if out is None else Path(out) if is_file else Path(out) / f"{each}.yaml"
        found.append(_fit_one(measurements, each, named, path, only))
        report(found[-1])
    return tuple(found)


def _fit_one(
    measurements: Measurements, gpu: str, named: Nominal, path: Path | None, only: Collection[str]
) -> FittedCalibration:
    before = None if path is None else _before(path)
    calibration = fit_measurements(measurements, gpu, named, before if set(only) != set(SECTIONS) else None, only)
    if not any(getattr(calibration, kind) for kind in SECTIONS):
        return FittedCalibration(gpu, calibration, None, "")
    if before is not None and not calibration.blocks:
        calibration = calibration.model_copy(
            update={"blocks": before.blocks}
        )  # calibration.fit.attention_blocks fits them
    if path is not None and before is not None:
        _refuse_less(before, calibration, path)
    written = None if path is None else calibration_file.write_calibration(calibration, path, only)
    fits_rates = calibration.gemm or calibration.hbm
    return FittedCalibration(gpu, calibration, written, fitted_note(gpu, calibration.reference) if fits_rates else "")


def _before(path: Path) -> CalibrationSpec | None:
    """The calibration in a file, without what it takes scaled from others; None for any other file."""
    try:
        return read_calibration(path)
    except SpecError:
        return None


def _refuse_less(before: CalibrationSpec, calibration: CalibrationSpec, path: Path) -> None:
    """Raise CalibrationError if the file ``path`` covers more."""
    less = [*covered_tables.losses(before, calibration)]
    if less:
        more = [f"and {len(less) - MOST_LOST} more"] if len(less) > MOST_LOST else []
        raise CalibrationError(
            f"{path}: is kept, as these measurements cover less ({'; '.join([*less[:MOST_LOST], *more])}): add what is "
            "missing, or choose another file with --out"
        )
