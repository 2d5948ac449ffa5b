"""``ar.calibrate`` and ``ar.validate``: fit parameters to measurements of a GPU, and check how well they predict."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.base.errors import SpecError
from archsim.base.tables import Shown

if TYPE_CHECKING:
    import pandas

    from archsim.evidence.meshes import MeshValidation
    from archsim.evidence.page import Evidence
    from archsim.machine.fabric_calibrations import FabricCalibration
    from calibration.fit.calibrate import FittedCalibration
    from calibration.measurements.datasheets import Nominal
    from calibration.measurements.reading import Measurements


# pandas and the fits are imported where they are used, so that importing this module is fast.


@dataclass(frozen=True)
class Calibrations(Shown):
    """What `calibrate` fitted, by GPU."""

    fitted: tuple[FittedCalibration, ...]
    measurements: Measurements

    def __repr__(self) -> str:
        return f"Calibrations({', '.join(map(repr, self.fitted))})"

    def __getitem__(self, gpu: str) -> FittedCalibration:
        return {each.gpu: each for each in self.fitted}[gpu]

    def to_pandas(self) -> pandas.DataFrame:
        """One row per GPU: gpu, file (None if none was written), and the number of fitted tables of each section."""
        import pandas

        from archsim.laws.tables import SECTIONS

        rows = [(each.gpu, each.path, *(each.tables.get(kind, 0) for kind in SECTIONS)) for each in self.fitted]
        return pandas.DataFrame(rows, columns=["gpu", "file", *SECTIONS])


def calibrate(
    measurements: str | os.PathLike[str] | Measurements,
    out: str | os.PathLike[str] | None = None,
    *,
    gpu: str | None = None,
    peaks: Mapping[str, float | str] | None = None,
    hbm: float | str | None = None,
    report: Callable[[FittedCalibration], None] | None = None,
    only: Sequence[str] = (),
) -> Calibrations:
    """Fit the laws of GEMMs, fused MoE layers, transfers, HBM and launches to measurements.

    measurements: folder of CSV files, or one file. out: YAML file for one GPU (named after it), or a folder for one
    file per GPU; None: nothing is written. gpu: short name of the only GPU to fit, such as ``h100``.
    peaks: dtype → nominal peak in FLOP/s, or text such as ``"600 TFLOP/s"``; hbm: nominal bandwidth in bytes/s, or text
    such as ``"2.4 TB/s"``: both for a GPU without a datasheet here. report: called for every GPU once it is fitted.
    only: sections to fit, such as ``["moe"]``, in the files that there are; the others stay. Empty: all.

    Raises CalibrationError if no measurement can be used, or if one GPU must be chosen; SpecError for an invalid rate.

    >>> ar.calibrate("measurements", "h100.yaml", gpu="h100")  # needs measurements  # doctest: +SKIP
    """
    from archsim.laws.tables import SECTIONS
    from calibration.fit.calibrate import calibrate_gpus

    named = _nominal(peaks or {}, hbm)
    read, to = _to_fit(measurements, named, gpu), None if out is None else os.fspath(out)
    fitted = calibrate_gpus(read, to, gpu, named, report or (lambda _: None), only or SECTIONS)
    return Calibrations(fitted, read)


def validate(
    measurements: str | os.PathLike[str] | Measurements,
    calibration: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    quick: bool = False,
) -> Evidence:
    """Compare a calibration with measurements, and fits with measurements held out of them.

    measurements: folder of CSV files, or one file. calibration: name or file. out: folder of the page and its tables;
    None: nothing is written. quick: only evaluate the calibration; no held-out fits.

    Raises CalibrationError if there are no measurements of the calibrated GPU; SpecError for an invalid file.

    >>> ar.validate("measurements", "h100", "page")  # needs measurements  # doctest: +SKIP
    """
    from archsim.evidence.calibrations import validate_calibration

    found = validate_calibration(os.fspath(calibration), _read(measurements), quick)
    if out is not None:
        found.write(Path(out))
    return found


def calibrate_meshes(
    *folders: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    report: Callable[[FabricCalibration, Path | None], None] | None = None,
) -> list[FabricCalibration]:
    """Fit the laws of measured meshes of chips: endpoints, links by packet size, latency of a hop.

    folders: of CSV files (docs/meshes.md). out: folder for one file per machine; None: none is written. report: called
    for every machine with its file, or None.

    Raises CalibrationError for a file that is not as expected; its message has the file, the line and the column.

    >>> ar.calibrate_meshes("measurements", out="fabrics")  # needs measurements  # doctest: +SKIP
    """
    from archsim.machine.fabric_calibrations import write_fabric_calibration
    from calibration.fit.mesh import fit_meshes
    from calibration.measurements.mesh import read_meshes

    found = fit_meshes(read_meshes(*(Path(each) for each in folders)))
    for fitted in found:
        path = None if out is None else Path(out) / f"{fitted.machine}.yaml"
        if path is not None:
            write_fabric_calibration(fitted, path)
        if report is not None:
            report(fitted, path)
    return found


def validate_meshes(
    *folders: str | os.PathLike[str], calibration: str | os.PathLike[str] | None = None
) -> MeshValidation:
    """Measured meshes of chips beside what calibrations of fabrics say, and beside null models, case by case.

    folders: of CSV files (docs/meshes.md); several count as one. calibration: of a fabric, by name or file; None: all
    shipped ones.

    Raises CalibrationError for a file that is not as expected, and for a case of a topology on which its law was not
    measured; SpecError for an unknown calibration.

    >>> ar.validate_meshes("measurements", calibration="blackhole")  # needs measurements  # doctest: +SKIP
    """
    from archsim.evidence import meshes
    from archsim.machine.fabric_calibrations import fabric_calibration

    known = None if calibration is None else [fabric_calibration(Path(calibration))]
    return meshes.validate_meshes(*map(Path, folders), fabrics=known)


def _to_fit(measurements: str | os.PathLike[str] | Measurements, named: Nominal, gpu: str | None) -> Measurements:
    from calibration.measurements.fittable import fittable
    from calibration.measurements.peaks import Peaks
    from calibration.measurements.reading import Measurements, read_measurements

    if isinstance(measurements, Measurements):
        return measurements
    return fittable(read_measurements(Path(measurements), Peaks(named, gpu)))


def _read(measurements: str | os.PathLike[str] | Measurements) -> Measurements:
    from calibration.measurements.reading import Measurements, read_measurements

    return measurements if isinstance(measurements, Measurements) else read_measurements(Path(measurements))


def _nominal(peaks: Mapping[str, float | str], hbm: float | str | None) -> Nominal:
    from calibration.measurements.datasheets import Nominal, hbm_named

    try:
        rates = {dtype: _peak(dtype, rate) for dtype, rate in peaks.items()}
        return Nominal(rates, hbm_named(hbm) if isinstance(hbm, str) else hbm)
    except ValueError as error:
        raise SpecError(str(error)) from None


def _peak(dtype: str, rate: float | str) -> float:
    from calibration.measurements.datasheets import peak_named

    return peak_named(f"{dtype}={rate}")[1] if isinstance(rate, str) else float(rate)
