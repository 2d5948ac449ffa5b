"""Fits the parameters of one GPU to measurements."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from archsim.base.errors import SpecError
from archsim.laws import tables
from archsim.laws.gemm import choose_table
from archsim.laws.tables import (
    SECTIONS,
    CalibrationSpec,
    GemmLaw,
    GemmTable,
    MoeTable,
    ReferenceRates,
    ScalarTable,
    TransferTable,
)
from archsim.laws.transfers import preferred_number
from archsim.specs.calibration_files import read_calibration
from calibration.fit.attention import fit_attention
from calibration.fit.gemm import fit_gemm, without_quantisation
from calibration.fit.moe import fit_moe
from calibration.fit.parameters import is_calibration_file, rounded, write_calibration
from calibration.fit.transfers import Series, fit_launch, fit_transfers, scalar_table, transfer_table
from calibration.measurements.checks import Peaks
from calibration.measurements.reading import CalibrationError, Measurements, release
from calibration.measurements.schema import (
    DATASHEETS,
    SAME_BUT_HBM,
    SCALED,
    TABLES,
    UNKNOWN_SMS,
    Nominal,
    fitted_note,
    reference_of,
)

# ---- memory
# The memory of a GPU: bandwidth and latency of L2 and HBM, how they change with the working set, and the share of the
# HBM bandwidth of the reference (the datasheet's, if there is one) that is reached.
#
# A curve over the working set S is also a law of ``archsim.laws.transfers``: for bandwidth, of the time of one pass
# over S; for latency, of the time of one dependent load, the line being over S.

# Working sets that are within one level on every known GPU: beyond any L1 and within the near half of any L2; beyond
# any L2.
L2_BYTES = (2 * 2**20, 8 * 2**20)
HBM_FROM_BYTES = 2**28
UNITS = {"bytes_per_s": "bytes_per_s", "latency_ns": "ns"}
LEAST_SIZES_OF_CURVE = 8


def fit_memory(rows: pd.DataFrame, peak_bytes_per_s: float | None) -> tuple[TransferTable | ScalarTable, ...]:
    """Numbers per level, operation and library, then curves. ``peak_bytes_per_s``: HBM peak, the
    reference of efficiencies.
    """
    rows = rows.astype({"working_set_bytes": float, "value": float})
    scalars = [*_scalars(rows)]
    if peak_bytes_per_s:
        scalars += [
            scalar.model_copy(
                update={"unit": "ratio", "of": scalar.of | {"quantity": "efficiency"}}
                | {name: getattr(scalar, name) / peak_bytes_per_s for name in ("value", "low", "high")}
            )
            for scalar in scalars
            if scalar.of["level"] == "hbm" and scalar.unit == "bytes_per_s"
        ]
    return (*scalars, *(transfer_table(series) for series in curves_of(rows)))


def hbm_read_bytes_per_s(rows: pd.DataFrame) -> float | None:
    """Bandwidth of streaming reads, the number that systems use; None if not measured."""
    of = {"level": "hbm", "op": "read", "quantity": "bytes_per_s"}
    scalars = _scalars(rows.astype({"working_set_bytes": float, "value": float}))
    reads = [scalar for scalar in scalars if scalar.of == of]
    return preferred_number(reads).value if reads else None


def _scalars(rows: pd.DataFrame) -> Iterator[ScalarTable]:
    level = np.where(rows["working_set_bytes"].between(*L2_BYTES), "l2", "")
    level = np.where(rows["working_set_bytes"] >= HBM_FROM_BYTES, "hbm", level)
    level = np.where(rows["level"] == "any", level, rows["level"])
    rows = rows.assign(level=level)[level != ""]
    names = ["level", "op", "quantity"]
    for key, points in rows.groupby([*names, "library", "library_version"], sort=True):
        yield scalar_table(points, points["value"], UNITS[key[2]], dict(zip(names, key[:3], strict=True)))


def curves_of(rows: pd.DataFrame) -> Iterator[Series]:
    """Series over the working set, if there are enough points."""
    rows = rows[rows["level"] == "any"]
    for key, points in rows.groupby(["gpu", "library", "library_version", "op", "quantity"], sort=True):
        gpu, library, version, op, quantity = key
        size, value = points["working_set_bytes"].to_numpy(np.float64), points["value"].to_numpy(np.float64)
        if len(np.unique(size)) < LEAST_SIZES_OF_CURVE:
            continue
        time_ns = size / value * 1e9 if quantity == "bytes_per_s" else value
        of = {"op": op, "quantity": "pass_ns" if quantity == "bytes_per_s" else "load_ns"}
        source, sweeps = " ".join(sorted(set(points["file"]))), tuple(sorted(set(points["run_id"])))
        yield Series("memory", gpu, library, version, of, source, sweeps, size, time_ns)


# ---- fit

UNKNOWN_BANDWIDTH = 1e12  # for a GPU without a datasheet, HBM reads or a GEMM table


def sms_of(gpu: str) -> int:
    """SMs of a GPU; only wave quantisation depends on it."""
    return DATASHEETS[gpu].sms if gpu in DATASHEETS else UNKNOWN_SMS


def fit_measurements(
    measurements: Measurements,
    gpu: str,
    named: Nominal | None = None,
    kept: CalibrationSpec | None = None,
    only: Collection[str] = SECTIONS,
) -> CalibrationSpec:
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
    before = {} if kept is None else {section: getattr(kept, section) for section in SECTIONS}
    return rounded(CalibrationSpec(gpu=gpu, reference=reference, scaled=SCALED.get(gpu), **(before | found)))


def _fits(measurements: Measurements, gpu: str, named: Nominal | None) -> dict[str, Callable[[], tuple]]:
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


def _fit_moe(measurements: Measurements, gpu: str, named: Nominal | None) -> tuple[MoeTable, ...]:
    peaks = Peaks(named or Nominal(), gpu)
    hbm = peaks.hbm_bytes_per_s(gpu)
    if hbm is None:
        return fit_moe(measurements.table("moe", gpu))
    like = {
        other_hbm: measurements.table("moe", other)
        for other in SAME_BUT_HBM.get(gpu, ())
        if other in measurements.gpus(("moe",)) and (other_hbm := peaks.hbm_bytes_per_s(other)) is not None
    }
    return fit_moe(measurements.table("moe", gpu), hbm, lambda dtype: peaks.flop_per_s(gpu, dtype), like)


def _reference(
    measurements: Measurements, gpu: str, gemm: tuple[GemmTable, ...], named: Nominal | None
) -> ReferenceRates:
    laws = _laws_in_use(gpu, gemm)
    rates = {dtype: law.flop_per_s for dtype, law in laws.items()}
    bandwidth = hbm_read_bytes_per_s(measurements.table("memory", gpu)) or max(
        (law.bytes_per_s for law in laws.values()), default=UNKNOWN_BANDWIDTH
    )
    return reference_of(gpu, rates, bandwidth, named)


def _laws_in_use(gpu: str, gemm: tuple[GemmTable, ...]) -> dict[str, GemmLaw]:
    """dtype → law of the table that systems use."""
    given: dict[str, Any] = {"gpu": gpu, "gemm": gemm}  # no reference, which follows from these laws
    there = CalibrationSpec.model_construct(**given)
    return {
        dtype: choose_table(there, dtype).law for dtype in sorted({table.dtype for table in gemm if table.groups == 1})
    }


def products(measurements: Measurements, gpu: str) -> pd.DataFrame:
    """Measured rows, and rows derived from them where the quantisation of activations was measured too."""
    rows, overhead = measurements.table("gemm", gpu), measurements.table("quantisation", gpu)
    return pd.concat([rows, without_quantisation(rows, overhead)], ignore_index=True) if len(overhead) else rows


def choose_gpu(measurements: Measurements, wanted: str | None, name: str) -> str:
    """The GPU to fit: as requested, or the one that the output is named after, or the only one measured.

    Raises CalibrationError if the choice is ambiguous or there are no measurements.
    """
    known = measurements.gpus(tuple(TABLES))
    if not known:
        raise CalibrationError("no usable measurements: every row was refused or quarantined")
    if wanted is not None:
        return wanted
    if name in known or len(known) == 1:
        return name if name in known else known[0]
    raise CalibrationError(f"measurements of several GPUs ({', '.join(known)}). Choose one with --gpu")


# ---- coverage
# What a calibration covers: its tables by name, their versions, and the sizes of each; and what another one lacks.

# Fields that tell tables of a section apart, besides the version and ``of``; those at their defaults are not named.
_NAMES = (
    *("model", "library", "kernel", "phase", "kind", "dtype", "kv_dtype", "products", "quantisation", "groups"),
    *("distribution", "eplb_slots", "head_dim", "window", "unit"),
)
_MOST_NAMED = 3  # of what is missing


@dataclass
class _Covered:
    """Of all versions of a table: ``rows``: names of shapes, or of EP and TP sizes; ``sizes``: axis → its values."""

    versions: set[str] = field(default_factory=set)
    rows: set[str] = field(default_factory=set)
    sizes: dict[str, set[float]] = field(default_factory=dict)


def name_of(section: str, table: tables.TableOrigin) -> str:
    """Section and configuration of a table, without its version: 'gemm torch bf16 apart'."""
    fields = type(table).model_fields
    words = [
        str(getattr(table, name)) for name in _NAMES if name in fields and getattr(table, name) != fields[name].default
    ]
    return " ".join([section, *words, *(f"{key} {value}" for key, value in getattr(table, "of", {}).items())])


def notes_of(calibration: tables.CalibrationSpec) -> Iterator[str]:
    """The notes of the tables: what was decided where sweeps disagree."""
    for section in tables.SECTIONS:
        for table in getattr(calibration, section):
            if table.note:
                yield f"{name_of(section, table)}, version {table.version}: {table.note}"


def lost(before: tables.CalibrationSpec, now: tables.CalibrationSpec) -> Iterator[str]:
    """A line for each table of ``before`` of which ``now`` covers less: versions, shapes or sizes. Two tables of one
    name and version count once.
    """
    there = _covered(now)
    for name, had in _covered(before).items():
        has = there.get(name)
        less = ["no table"] if has is None else [*_less(had, has)]
        if less:
            yield f"{name}: {', '.join(less)}"


def _less(had: _Covered, has: _Covered) -> Iterator[str]:
    if len(has.versions) < len(had.versions):
        yield f"without version {_listed(had.versions - has.versions)}"
    if had.rows - has.rows:
        yield f"without {_listed(had.rows - has.rows)}"
    for axis, sizes in had.sizes.items():
        mine = has.sizes.get(axis, set())
        if not mine or min(mine) > min(sizes) or max(mine) < max(sizes):
            ends = f"{min(mine):g} to {max(mine):g}" if mine else "none"
            yield f"{axis} {ends} instead of {min(sizes):g} to {max(sizes):g}"
        elif len(mine) < len(sizes):
            yield f"{len(mine)} sizes of {axis} instead of {len(sizes)}"


def _listed(names: set[str]) -> str:
    more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    return ", ".join([*sorted(names)[:_MOST_NAMED], *more])


def _covered(calibration: tables.CalibrationSpec) -> dict[str, _Covered]:
    found: dict[str, _Covered] = {}
    for section in tables.SECTIONS:
        for table in getattr(calibration, section):
            mine = found.setdefault(name_of(section, table), _Covered())
            mine.versions.add(release(table.version))
            rows, sizes = _points(table)
            mine.rows |= rows
            for axis, values in sizes.items():
                mine.sizes.setdefault(axis, set()).update(values)
    return found


def _points(table: tables.TableOrigin) -> tuple[set[str], dict[str, set[float]]]:
    if isinstance(table, tables.GemmTable):
        return set(table.shapes), {"m": set(table.m)}
    if isinstance(table, tables.MoeTable):
        return set(table.ranks), {"tokens": set(table.tokens)}
    if isinstance(table, tables.AttentionTable):
        return set(table.shapes), {"batch": set(table.batch), "tokens": set(table.tokens)}
    if isinstance(table, tables.TransferTable):
        return set(), {"bytes": {table.first_bytes, table.last_bytes}}
    return set(), {}


# ---- calibrate
# Measurements to calibration files: which GPUs are fitted, where each is written, what is told of it.

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
        return f"Fitted({self.gpu!r}, tables: {counts})"

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
    told: Callable[[FittedCalibration], None],
    only: Collection[str] = SECTIONS,
) -> tuple[FittedCalibration, ...]:
    """Fit every GPU of the measurements, or one: as named by ``gpu``, or by ``out`` where that is a file.

    out: YAML file, or folder for one file a GPU; None: nothing is written. A calibration without tables is not written.
    named: nominal rates of an own GPU. told: called for every GPU, once its file is whole. only: the sections that are
    fitted; the others of a file are left as they are.

    Raises CalibrationError where there is nothing to fit, where one GPU must be chosen, and instead of replacing a
    file by one that covers less.
    """
    is_file = out is not None and is_calibration_file(out)
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
        told(found[-1])
    return tuple(found)


def _fit_one(
    measurements: Measurements, gpu: str, named: Nominal, path: Path | None, only: Collection[str]
) -> FittedCalibration:
    before = None if path is None else _before(path)
    calibration = fit_measurements(measurements, gpu, named, before if set(only) != set(SECTIONS) else None, only)
    if not any(getattr(calibration, kind) for kind in SECTIONS):
        return FittedCalibration(gpu, calibration, None, "")
    if before is not None and not calibration.blocks:
        calibration = calibration.model_copy(update={"blocks": before.blocks})  # calibration.fit.attention fits them
    if path is not None and before is not None:
        _refuse_less(before, calibration, path)
    written = None if path is None else write_calibration(calibration, path, only)
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
    less = [*lost(before, calibration)]
    if less:
        more = [f"and {len(less) - MOST_LOST} more"] if len(less) > MOST_LOST else []
        raise CalibrationError(
            f"{path}: is kept, as these measurements cover less ({'; '.join([*less[:MOST_LOST], *more])}): add what is "
            "missing, or choose another file with --out"
        )
