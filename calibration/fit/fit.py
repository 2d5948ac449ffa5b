"""Fits the parameters of one GPU to measurements."""

from collections.abc import Callable, Collection
from typing import Any

import pandas as pd

from archsim.laws import tables
from archsim.laws.gemm import choose_table
from calibration.fit.attention import fit_attention
from calibration.fit.calibration_file import round_calibration
from calibration.fit.gemm import fit_gemm
from calibration.fit.launch import fit_launch
from calibration.fit.memory import fit_memory, hbm_read_bytes_per_s
from calibration.fit.moe import fit_moe
from calibration.fit.quantisation import without_quantisation
from calibration.fit.transfers import fit_transfers
from calibration.measurements import datasheets
from calibration.measurements.peaks import Peaks
from calibration.measurements.reading import CalibrationError, Measurements
from calibration.measurements.schema import TABLES

UNKNOWN_BANDWIDTH = 1e12  # for a GPU without a datasheet, HBM reads or a GEMM table


def sms_of(gpu: str) -> int:
    """SMs of a GPU; only wave quantisation depends on it."""
    return datasheets.DATASHEETS[gpu].sms if gpu in datasheets.DATASHEETS else datasheets.UNKNOWN_SMS


def fit_measurements(
    measurements: Measurements,
    gpu: str,
    named: datasheets.Nominal | None = None,
    kept: tables.CalibrationSpec | None = None,
    only: Collection[str] = tables.SECTIONS,
) -> tables.CalibrationSpec:
    """All sections that the measurements of a GPU support. Raises CalibrationError if it has no measurements.

    ``named``: nominal rates of the GPU, which override those of a datasheet. ``only``: the sections that are fitted;
    the others are those of ``kept``, and its reference stays if GEMMs are among them.
    """
    if gpu not in measurements.gpus():
        known = ", ".join(measurements.gpus()) or "none"
        raise CalibrationError(f"no measurements of {gpu!r} (measured: {known})")
    found = {section: fit() for section, fit in _fits(measurements, gpu, named).items() if section in only}
    if kept is None or "gemm" in only:
        reference = _reference(measurements, gpu, found.get("gemm", ()), named)
    else:
        reference = kept.reference
    if "hbm" in only:
        found["hbm"] = fit_memory(measurements.table("memory", gpu), reference.hbm_bytes_per_s)
    before = {} if kept is None else {section: getattr(kept, section) for section in tables.SECTIONS}
    return round_calibration(
        tables.CalibrationSpec(gpu=gpu, reference=reference, scaled=datasheets.SCALED.get(gpu), **(before | found))
    )


def _fits(measurements: Measurements, gpu: str, named: datasheets.Nominal | None) -> dict[str, Callable[[], tuple]]:
    """Section → its fit; HBM's follows the reference."""
    return {
        "gemm": lambda: fit_gemm(products(measurements, gpu), sms_of(gpu)),
        "moe": lambda: _fit_moe(measurements, gpu, named),
        "attention": lambda: fit_attention(measurements.table("attention", gpu)),
        "p2p": lambda: fit_transfers(measurements.table("p2p", gpu), "p2p"),
        "collectives": lambda: fit_transfers(measurements.table("collective", gpu), "collective"),
        "pcie": lambda: fit_transfers(measurements.table("hostpath", gpu), "hostpath"),
        "launch": lambda: fit_launch(measurements, gpu),
    }


def _fit_moe(measurements: Measurements, gpu: str, named: datasheets.Nominal | None) -> tuple[tables.MoeTable, ...]:
    peaks = Peaks(named or datasheets.Nominal(), gpu)
    hbm = peaks.hbm_bytes_per_s(gpu)
    if hbm is None:
        return fit_moe(measurements.table("moe", gpu))
    like = {
        other_hbm: measurements.table("moe", other)
        for other in datasheets.SAME_BUT_HBM.get(gpu, ())
        if other in measurements.gpus(("moe",)) and (other_hbm := peaks.hbm_bytes_per_s(other)) is not None
    }
    return fit_moe(measurements.table("moe", gpu), hbm, lambda dtype: peaks.flop_per_s(gpu, dtype), like)


def _reference(
    measurements: Measurements, gpu: str, gemm: tuple[tables.GemmTable, ...], named: datasheets.Nominal | None
) -> tables.ReferenceRates:
    laws = _laws_in_use(gpu, gemm)
    rates = {dtype: law.flop_per_s for dtype, law in laws.items()}
    bandwidth = hbm_read_bytes_per_s(measurements.table("memory", gpu)) or max(
        (law.bytes_per_s for law in laws.values()), default=None
    )
    datasheets.refuse_implausible(named or datasheets.Nominal(), rates, bandwidth)
    return datasheets.reference_of(gpu, rates, bandwidth or UNKNOWN_BANDWIDTH, named)


def _laws_in_use(gpu: str, gemm: tuple[tables.GemmTable, ...]) -> dict[str, tables.GemmLaw]:
    """dtype → law of the table that systems use."""
    given: dict[str, Any] = {"gpu": gpu, "gemm": gemm}  # no reference, which follows from these laws
    there = tables.CalibrationSpec.model_construct(**given)
    return {
        dtype: choose_table(there, dtype).law for dtype in sorted({table.dtype for table in gemm if table.groups == 1})
    }


def products(measurements: Measurements, gpu: str) -> pd.DataFrame:
    """Measured rows, and rows derived from them where the quantisation of activations was measured too."""
    rows, overhead = measurements.table("gemm", gpu), measurements.table("quantisation", gpu)
    return pd.concat([rows, without_quantisation(rows, overhead)], ignore_index=True) if len(overhead) else rows


def choose_gpu(measurements: Measurements, wanted: str | None, name: str) -> str:
    """The GPU as requested, or as the output is named, or the only one. CalibrationError: ambiguous, or none."""
    known = measurements.gpus(tuple(TABLES))
    if not known:
        raise CalibrationError("no usable measurements: every row was refused or quarantined")
    if wanted is not None:
        return wanted
    if name in known or len(known) == 1:
        return name if name in known else known[0]
    raise CalibrationError(f"measurements of several GPUs ({', '.join(known)}). Choose one with --gpu")
