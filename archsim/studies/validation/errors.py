"""Errors of a calibration file, and of fits on unseen sweeps, shapes and EP sizes, next to repeatability.

A case is one measured point. ``error`` = predicted / measured - 1. ``floor``: |measured / median of the other sweeps of
the same library and release at the same point - 1|: no model can be expected to do better.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import pandas as pd

from archsim.base.errors import SpecError
from archsim.base.units import NS_PER_US
from archsim.laws import gemm, transfers
from archsim.laws.moe import EPLB, SIZES, moe_ns, outside_ranks
from archsim.laws.moe import POINT as RANK_POINT
from archsim.laws.tables import CalibrationSpec, GemmTable, MoeTable, TableOrigin, TransferTable, newest_first
from archsim.specs.calibration_files import load_calibration
from calibration.fit import fit, moe, segments
from calibration.fit.gemm import POINT, fit_table
from calibration.fit.memory import curves_of
from calibration.fit.transfers import SERIES, Series, series_of
from calibration.measurements.consensus import consensus, off_the_others, repeatability
from calibration.measurements.fingerprints import in_fit
from calibration.measurements.reading import Measurements, read_measurements
from calibration.measurements.sweeps import SAME, pools, release, table_of_sweeps

# ---- choosing
# Selects the table or law of a calibration that judges each measurement, and reports substitutes and gaps.

GEMM, MOE = "GEMM", "fused MoE"
GEMM_KEYS = ["library", "dtype", "quant_included", "groups"]
MOE_NAMES = ["model", "library", "kernel", "dtype", "distribution", EPLB, "version"]
MOE_KEYS = [*MOE_NAMES, *SIZES]
MOST_NAMED = 6  # in one sentence


def name_of(table: TableOrigin) -> str:
    """Library and version of a table."""
    return f"{table.library} {table.version}"


def gemm_groups(measurements: Measurements, gpu: str) -> Iterator[tuple[tuple, pd.DataFrame]]:
    """((*GEMM_KEYS, version), rows) judged by one table."""
    return iter(measurements.table("gemm", gpu).groupby([*GEMM_KEYS, "library_version"], sort=True))


def moe_groups(measurements: Measurements, gpu: str) -> Iterator[tuple[tuple, pd.DataFrame]]:
    """(MOE_KEYS, rows) judged by one table."""
    rows = measurements.table("moe", gpu)
    rows = moe.with_defaults(rows).assign(version=rows["library_version"])
    return iter(rows.groupby(MOE_KEYS, sort=True))


def gemm_table_for(
    calibration: CalibrationSpec, library: str, dtype: str, included: str, groups: int, version: str
) -> GemmTable | None:
    """The table of the same version, else the newest of the library, else the default of the dtype."""
    quantisation = "included" if included == "1" else "apart"
    same = [
        table
        for table in calibration.gemm
        if (table.library, table.dtype, table.quantisation, table.groups) == (library, dtype, quantisation, groups)
    ]
    for wanted in (version, release(version)):
        exact = [table for table in same if table.version == wanted]
        if exact:
            return exact[0]
    if same:
        return max(same, key=lambda table: newest_first(table.version))
    try:
        return gemm.choose_table(calibration, dtype) if groups == 1 else None
    except SpecError:
        return None


def moe_table_for(
    calibration: CalibrationSpec,
    model: str,
    library: str,
    kernel: str,
    dtype: str,
    distribution: str,
    eplb_slots: int,
    version: str,
    *numbers: int,
) -> MoeTable | None:
    """The table of the same model and sizes; preferably the same kernel, then the same version or
    release, then the newest.
    """
    tables = [
        t
        for t in calibration.moe
        if (t.model, t.library, t.dtype, t.distribution, t.eplb_slots)
        == (model, library, dtype, distribution, eplb_slots)
        and tuple(getattr(t, name) for name in SIZES) == numbers
    ]

    def nearness(table: MoeTable) -> tuple:
        of_release = table.version == release(version)
        return table.kernel == kernel, table.version == version, of_release, newest_first(table.version)

    return max(tables, key=nearness, default=None)


def all_series(measurements: Measurements, gpu: str) -> list[Series]:
    """Every P2P, collective and host path series and memory curve of a GPU."""
    series = [item for kind in SERIES for item in series_of(measurements.table(kind, gpu), kind)]
    memory = measurements.table("memory", gpu).astype({"working_set_bytes": float, "value": float})
    return [*series, *curves_of(memory)]


def law_for(calibration: CalibrationSpec, series: Series) -> TransferTable | None:
    """The law of the same library and curve: of the same version, else the newest."""
    tables = (*calibration.p2p, *calibration.collectives, *calibration.pcie, *calibration.hbm)
    same = [
        table
        for table in tables
        if isinstance(table, TransferTable) and (table.library, table.of) == (series.library, series.of)
    ]
    return max(same, key=lambda table: (table.version == series.version, newest_first(table.version)), default=None)


def choice_notes(calibration: CalibrationSpec, measurements: Measurements) -> list[str]:
    """A sentence for each library and version judged by another version's table, for each without a table, for tables
    whose sweeps disagree somewhere, and for tables that do not say what they were fitted to.
    """
    others: dict[tuple[str, str, str], list[str]] = {}
    for what, library, version, detail, table in _choices(calibration, measurements):
        own = table is not None and table.library == library and table.version in (version, release(version))
        if not own:
            others.setdefault((what, f"{library} {version}", name_of(table) if table else ""), []).append(detail)
    chosen = [_sentence(*key, list(dict.fromkeys(details))) for key, details in others.items()]
    return [*chosen, *_notes_of_tables(calibration)]


def _notes_of_tables(calibration: CalibrationSpec) -> Iterator[str]:
    """What tables note on their sweeps, and how many have no fingerprints of theirs."""
    for what, tables in ((GEMM, calibration.gemm), (MOE, calibration.moe), ("attention", calibration.attention)):
        for table in tables:
            if table.note and not table.scaled_from:
                names = [getattr(table, name, "") for name in ("model", "phase", "kind", "dtype", "distribution")]
                yield f"{what} of {name_of(table)} ({' '.join(name for name in names if name)}): {table.note}"
    of_products: tuple[GemmTable | MoeTable, ...] = (*calibration.gemm, *calibration.moe)
    judged = [table for table in of_products if not table.scaled_from]
    unknown = sum(not table.prints for table in judged)
    if unknown:
        yield (
            f"{unknown} of {len(judged)} tables do not say which measurements they were fitted to (no prints); their "
            "cases count as not in the fit: fit them again with archsim calibrate"
        )


def _sentence(what: str, version: str, judge: str, details: list[str]) -> str:
    named = ", ".join(details[:MOST_NAMED]) + (
        f" and {len(details) - MOST_NAMED} more" if len(details) > MOST_NAMED else ""
    )
    if judge:
        return (
            f"{what} of {version} ({named}): the calibration has no table of it; judged by that of {judge}, so errors "
            f"include the difference between the two"
        )
    return f"{what} of {version} ({named}): the calibration has no table for it; not judged"


def _choices(
    calibration: CalibrationSpec, measurements: Measurements
) -> Iterator[tuple[str, str, str, str, TableOrigin | None]]:
    """(what, library, version, configuration, the table that judges it)"""
    gpu = calibration.gpu
    for (library, dtype, included, groups, version), _ in gemm_groups(measurements, gpu):
        table = gemm_table_for(calibration, library, dtype, included, groups, version)
        detail = dtype + (f", groups of {groups:g}" if groups > 1 else "")
        yield GEMM, library, version, detail, table
    for key, _ in moe_groups(measurements, gpu):
        named = dict(zip(MOE_KEYS, key, strict=True))
        detail = f"{named['model']} {named['dtype']} {named['distribution']}" + (
            f" EPLB {named[EPLB]:g}" if named[EPLB] else ""
        )
        yield MOE, named["library"], named["version"], detail, moe_table_for(calibration, *key)
    for series in all_series(measurements, gpu):
        yield series.kind, series.library, series.version, " ".join(series.of.values()), law_for(calibration, series)


# ---- errors

UNDER = 0.05
# Kinds of cases: judged by the calibration file, on sweeps and sizes in and not in its fit; and judged by fits with
# something left out.
FITTED, NEW = "file: in its fit", "file: not in its fit"
SWEEP_OUT, SHAPE_OUT, RANK_OUT = "sweep left out", "shape left out", "EP size left out"
# Expert shapes of the paper's validation and of the models in its DGX measurements.
EXPERTS = ("DeepSeek-V3", "Qwen3-235B-A22B", "Qwen3-30B-A3B")
SHAPES_OF_EXPERTS = {
    **dict.fromkeys(((4096, 7168), (2048, 7168), (7168, 2048)), EXPERTS[0]),
    **dict.fromkeys(((3072, 4096), (1536, 4096), (4096, 1536)), EXPERTS[1]),
    **dict.fromkeys(((1536, 2048), (768, 2048), (2048, 768)), EXPERTS[2]),
}
POWERS_OF_TWO = tuple(2**exponent for exponent in range(13))  # M = 1 ... 4096
SHAPE_FOLDS = 16  # every sixteenth shape of a grid is left out at a time,
FEW_SHAPES, FOLDS_OF_FEW = 32, 8  # every eighth if there are fewer shapes
LEAST_SHAPES = 4


@dataclass(frozen=True)
class ErrorSummary:
    """Mean, p95 and max of |error| over some cases, number under 5 %, mean floor (nan: unknown), and the number at
    sizes outside the measured range of the table that judged them.
    """

    cases: int
    mean: float
    p95: float
    max: float
    under: int
    floor: float
    extrapolated: int


def summary(cases: pd.DataFrame) -> ErrorSummary:
    """Raises ValueError without cases."""
    errors = cases["error"].abs().to_numpy(float)
    if not len(errors):
        raise ValueError("no cases")
    floor = float(cases["floor"].mean())
    return ErrorSummary(
        len(errors),
        errors.mean(),
        float(np.quantile(errors, 0.95)),
        errors.max(),
        int((errors < UNDER).sum()),
        floor,
        int(cases["extrapolated"].sum()),
    )


def summaries(cases: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """One row per group: the columns of Summary."""
    rows = [dict(zip(by, key, strict=True)) | vars(summary(group)) for key, group in cases.groupby(by, sort=True)]
    return pd.DataFrame(rows)


def gemm_cases(calibration: CalibrationSpec, measurements: Measurements) -> pd.DataFrame:
    """Every GEMM row of the calibration's GPU by the calibration file, with the table used."""
    rows = measurements.table("gemm", calibration.gpu)
    found = []
    for key, mine in gemm_groups(measurements, calibration.gpu):
        table = gemm_table_for(calibration, *key)
        if table is not None:
            n, k, m = (mine[name].to_numpy(np.int64) for name in POINT)
            predicted = gemm.table_times(table, n, k, m, fit.sms_of(calibration.gpu)) / NS_PER_US
            cases = _cases(mine, predicted).assign(table=name_of(table), extrapolated=gemm.outside(table, n, k, m))
            alike = _of_release(rows, GEMM_KEYS, key, table)
            kinds = _kinds(mine, table.prints, _named(n, k), table.shapes, m, table.m)
            found.append(cases.assign(floor=_floors(mine, alike, POINT), kind=kinds))
    return _joined(found)


def _named(first: np.ndarray, second: np.ndarray) -> pd.Series:
    """'4096x7168': the name of two sizes in tables."""
    return pd.Series(first.astype(np.int64).astype(str)) + "x" + pd.Series(second.astype(np.int64).astype(str))


def _kinds(rows: pd.DataFrame, prints, name: pd.Series, names, at: np.ndarray, axis) -> np.ndarray:
    """Whether each row is in the fit: its time is in its cell of the table (``name`` of ``names`` and ``at`` of
    ``axis``), whatever file or run it came in through.
    """
    row, column = (pd.Index(cells).get_indexer(wanted) for cells, wanted in ((list(names), name), (axis, at)))
    return np.where(in_fit(prints, row, column, np.log(rows["latency_us_median"].to_numpy(float))), FITTED, NEW)


def _of_release(rows: pd.DataFrame, names: list[str], key: tuple, table: GemmTable | MoeTable) -> pd.DataFrame:
    """Rows of all sweeps of a release; of other versions only those that the fit pooled, if it includes this one.

    ``key``: columns of ``names``, then the version.
    """
    same = rows["library_version"].map(release) == release(key[-1])
    for name, value in zip(names, key, strict=False):
        same &= rows[name] == value
    own, fitted = rows["library_version"] == key[-1], _sweeps(rows).isin(_fitted(table))
    return rows[same & (own | fitted) if (same & own & fitted).any() else same]


def _sweeps(rows: pd.DataFrame) -> pd.Series:
    return rows["library_version"] + "/" + rows["run_id"]


def _fitted(table: GemmTable | MoeTable) -> set[str]:
    return {name for sweep in table.sweeps for name in sweep.split(SAME)}


def _floors(mine: pd.DataFrame, alike: pd.DataFrame, point: list[str]) -> np.ndarray:
    """Distance of each row from the median of the other sweeps of its release; nan if there is none."""
    sweeps = table_of_sweeps(alike, point, "latency_us_median")
    logs = np.log(mine["latency_us_median"].to_numpy(float))
    at = sweeps.reindex(pd.MultiIndex.from_frame(mine[point])).to_numpy(copy=True)
    at[np.isclose(at, logs[:, None], rtol=0, atol=1e-12)] = np.nan
    known = ~np.isnan(at).all(axis=1)
    floors = np.full(len(mine), np.nan)
    floors[known] = np.abs(np.expm1(logs[known] - np.nanmedian(at[known], axis=1)))
    return floors


def _gemm_pools(measurements: Measurements, gpu: str) -> Iterator[tuple[dict, pd.DataFrame]]:
    for key, mine in measurements.table("gemm", gpu).groupby(GEMM_KEYS, sort=True):
        library, dtype, included, groups = key
        for version, sweeps in pools(mine, POINT, "latency_us_median"):
            quantisation = "included" if included == "1" else "apart"
            yield (
                {
                    "dtype": dtype,
                    "quantisation": quantisation,
                    "groups": int(groups),
                    "sms": fit.sms_of(gpu),
                    "who": {"library": library, "version": version, "source": "cross-validation"},
                },
                sweeps,
            )


def sweep_out_cases(measurements: Measurements, gpu: str) -> pd.DataFrame:
    """Each sweep of a release, judged by a table fitted to the other sweeps only, at shapes that those have."""
    found = []
    for how, sweeps in _gemm_pools(measurements, gpu):
        for name in sweeps.columns if sweeps.shape[1] > 1 else ():
            rest = sweeps.drop(columns=name).dropna(how="all")
            shapes = set(zip(*_sizes(rest)[:2], strict=True))
            judged = sweeps[name].dropna()
            judged = judged[[(n, k) in shapes for n, k, _ in judged.index]]
            if len(judged):
                floor = off_the_others(sweeps)[name].abs().reindex(judged.index)
                found.append(_predicted(SWEEP_OUT, fit_table(rest, **how), judged, how, name, floor))
    return _joined(found)


def shape_out_cases(measurements: Measurements, gpu: str, folds: int = SHAPE_FOLDS) -> pd.DataFrame:
    """Shapes, judged by a table fitted without them; ``folds``-fold (with few shapes, at most FOLDS_OF_FEW).

    Tables of fewer than LEAST_SHAPES shapes are skipped.
    """
    found = []
    for how, sweeps in _gemm_pools(measurements, gpu):
        shapes = sorted(set(zip(*_sizes(sweeps)[:2], strict=True)))
        parts = folds if len(shapes) >= FEW_SHAPES else min(len(shapes), FOLDS_OF_FEW)
        fold_of = {shape: at % parts for at, shape in enumerate(shapes)}
        part = np.array([fold_of[n, k] for n, k, _ in sweeps.index])
        for fold in range(parts) if len(shapes) >= LEAST_SHAPES else ():
            table = fit_table(sweeps[part != fold], **how)
            judged = consensus(sweeps[part == fold])
            spread = repeatability(sweeps[part == fold]).reindex(judged.index)
            found.append(_predicted(SHAPE_OUT, table, judged, how, "all", spread))
    return _joined(found)


def _predicted(kind, table: GemmTable, judged: pd.Series, how: dict, sweep: str, floor) -> pd.DataFrame:
    n, k, m = _sizes(judged)
    measured = np.exp(judged.to_numpy())
    predicted = gemm.table_times(table, n, k, m, how["sms"]) / NS_PER_US
    return pd.DataFrame(
        {
            "kind": kind,
            "what": GEMM,
            "library": table.library,
            "version": table.version,
            "dtype": table.dtype,
            "sweep": sweep,
            "groups": table.groups,
            "n": n,
            "k": k,
            "m": m,
            "measured_us": measured,
            "predicted_us": predicted,
            "error": predicted / measured - 1,
            "floor": np.asarray(floor, float),
            "table": name_of(table),
            "extrapolated": gemm.outside(table, n, k, m),
        }
    )


def _cases(rows: pd.DataFrame, predicted: np.ndarray) -> pd.DataFrame:
    measured = rows["latency_us_median"].to_numpy(float)
    names = {"library": "library", "library_version": "version", "dtype": "dtype", "run_id": "sweep"}
    cases = rows[list(names)].rename(columns=names).assign(what=GEMM)
    cases = cases.assign(**{name: rows[name].astype(np.int64) for name in ("groups", *POINT)})
    return cases.assign(measured_us=measured, predicted_us=predicted, error=predicted / measured - 1)


def moe_cases(calibration: CalibrationSpec, measurements: Measurements) -> pd.DataFrame:
    """Every MoE row, judged by the calibration file's table of the same model, library, release,
    dtype and distribution.
    """
    found = []
    rows = measurements.table("moe", calibration.gpu)
    rows = moe.with_defaults(rows)
    for key, mine in moe_groups(measurements, calibration.gpu):
        table = moe_table_for(calibration, *key)
        if table is not None:
            floor = _floors(mine, _of_release(rows, MOE_NAMES[:-1], key[: len(MOE_NAMES)], table), RANK_POINT)
            found.append(_moe_predicted(table, mine).assign(floor=floor))
    return _joined(found)


def _moe_predicted(table: MoeTable, rows: pd.DataFrame) -> pd.DataFrame:
    points = ep, tp, tokens = [rows[name].to_numpy(float) for name in RANK_POINT]
    predicted = moe_ns(table, *points) / NS_PER_US
    measured = rows["latency_us_median"].to_numpy(float)
    names = {"library": "library", "library_version": "version", "run_id": "sweep"}
    cases = rows[[*names, "model", "dtype", "distribution", EPLB, *RANK_POINT]].rename(columns=names)
    return cases.assign(
        kind=_kinds(rows, table.prints, _named(ep, tp), table.ranks, tokens, table.tokens),
        what=MOE,
        measured_us=measured,
        predicted_us=predicted,
        error=predicted / measured - 1,
        table=name_of(table),
        extrapolated=outside_ranks(table, *points),
    )


def rank_out_cases(measurements: Measurements, gpu: str) -> pd.DataFrame:
    """Fused MoE layers of each EP size, judged by a table fitted without that size."""
    found = []
    for named, sweeps in moe.moe_pools(measurements.table("moe", gpu)):
        errors = moe.left_out_errors(sweeps, named)
        if len(errors):
            measured = np.exp(consensus(sweeps).reindex(errors.index))
            cases = errors.assign(measured_us=measured).reset_index()
            who = {name: named[name] for name in MOE_NAMES} | {"table": f"{named['library']} {named['version']}"}
            found.append(cases.assign(kind=RANK_OUT, what=MOE, sweep="all", **who))
    cases = _joined(found)
    return cases.assign(predicted_us=(1 + cases["error"]) * cases["measured_us"]) if len(cases) else cases


def _sizes(indexed) -> tuple[np.ndarray, ...]:
    return tuple(indexed.index.get_level_values(name).to_numpy(np.int64) for name in POINT)


def _joined(frames: list[pd.DataFrame]) -> pd.DataFrame:
    if not frames:
        return pd.DataFrame(
            columns=[
                "kind",
                "what",
                "library",
                "version",
                "dtype",
                "table",
                "error",
                "floor",
                "measured_us",
                "predicted_us",
                "extrapolated",
            ]
        )
    return pd.concat(frames, ignore_index=True)


def expert_cases(cases: pd.DataFrame) -> pd.DataFrame:
    """Cases of the nine expert shapes at M = 1, 2 ... 4096, with a column ``model``."""
    model = [SHAPES_OF_EXPERTS.get(shape) for shape in zip(cases["n"], cases["k"], strict=True)] if len(cases) else []
    cases = cases.assign(model=pd.Series(model, index=cases.index, dtype=object))
    return cases[cases["model"].notna() & cases["m"].isin(POWERS_OF_TWO)] if len(cases) else cases


# ---- comm_errors
# Errors of transfer laws on sizes left out of their fit, per set, next to the repeatability of the measurements.
#
# ``python -m archsim.studies.validation.errors measurements/ h100 [h100.yaml]`` prints the table: errors of the
# given calibration on these measurements, or without one, of laws fitted to them with sizes left out in turn.

FOLDS_OF_SPARSE, FOLDS_OF_DENSE = 2, 5  # every second size is left out at a time; for dense sizes, every fifth
DENSE_SIZES = 64
ROUNDING_NS = 500.0  # largest rounding error of times in whole microseconds
POOLED = ("hidden", "top_k", "experts", "sms", "concurrent_pairs")  # series that differ only in these form one set

COUNTED = MappingProxyType({"num_gpus": "GPUs", "nodes": "nodes"})
ONE_NODE = ("nodes", "1")  # omitted from names of sets


@dataclass(frozen=True)
class SetErrors:
    """Relative errors of one set. ``binned``: of medians per half octave of sizes, over the series; ``unrounded``: for
    times in whole microseconds, errors against the nearest time that rounds to the measured one.

    ``floor``: mean deviation of points of one size from the median of the others, or, for times in whole microseconds,
    the rounding error; None if neither is known. ``table``: the table of a calibration that judges, if any;
    ``extrapolated``: number of points at sizes outside its measured range.
    """

    name: str
    series: int
    points: int
    mean: float
    p95: float
    max: float
    under_5_percent: int
    binned_mean: float
    binned_max: float
    binned_max_unrounded: float
    floor: float | None
    table: str = ""
    extrapolated: int = 0


def transfer_errors(measurements: Measurements, gpu: str) -> list[SetErrors]:
    """Errors of every set of P2P, collective and host path sweeps and memory curves of a GPU, with
    sizes left out in turn.
    """
    series = [item for item in all_series(measurements, gpu) if len(np.unique(item.size_bytes)) > 2]
    return [set_errors(name, items, map(_held_out, items)) for name, items in _sets(series).items()]


def errors_with(calibration: CalibrationSpec, measurements: Measurements) -> list[SetErrors]:
    """Errors of the laws of a calibration, on the series of its GPU for which it has a law (of the same library)."""
    judged = [(item, law_for(calibration, item)) for item in all_series(measurements, calibration.gpu)]
    laws = {item.name: transfers.law_of(table) for item, table in judged if table is not None}
    judges = {item.name: name_of(table) for item, table in judged if table is not None}
    series = [item for item, table in judged if table is not None]
    return [
        replace(
            set_errors(name, items, (laws[item.name].time_ns(item.size_bytes) / item.time_ns for item in items)),
            table=", ".join(sorted({judges[item.name] for item in items})),
            extrapolated=sum(int(laws[item.name].extrapolates(item.size_bytes).sum()) for item in items),
        )
        for name, items in _sets(series).items()
    ]


def _sets(series: Iterable[Series]) -> dict[str, list[Series]]:
    sets: dict[str, list[Series]] = {}
    for item in series:
        sets.setdefault(_set_name(item), []).append(item)
    return sets


def _held_out(item: Series) -> np.ndarray:
    folds = FOLDS_OF_DENSE if len(np.unique(item.size_bytes)) > DENSE_SIZES else FOLDS_OF_SPARSE
    return segments.held_out_ratios(item.size_bytes, item.time_ns, folds)


def set_errors(name: str, items: Iterable[Series], ratios: Iterable[np.ndarray]) -> SetErrors:
    """Errors of some series, from law / measured of each (float64[point]; nan is ignored)."""
    items, ratios = list(items), list(ratios)
    binned = [segments.binned_errors(item.size_bytes, ratio) for item, ratio in zip(items, ratios, strict=True)]
    errors = np.abs(np.concatenate(ratios) - 1)
    errors, binned_error = errors[~np.isnan(errors)], np.concatenate(binned)
    unrounded = [
        segments.binned_errors(item.size_bytes, _unrounded(item, ratio))
        for item, ratio in zip(items, ratios, strict=True)
    ]
    floors = [floor for floor in map(_floor, items) if floor is not None]
    return SetErrors(
        name,
        len(items),
        len(errors),
        float(errors.mean()),
        float(np.quantile(errors, 0.95)),
        float(errors.max()),
        int(np.sum(errors < 0.05)),
        float(binned_error.mean()),
        float(binned_error.max()),
        float(np.concatenate(unrounded).max()),
        float(np.mean(floors)) if floors else None,
    )


def table_of(errors: Iterable[SetErrors]) -> str:
    """The errors as a Markdown table, in percent."""
    head = "set | series | points | mean | p95 | max | < 5 % | half octaves mean / max / beyond rounding | floor"
    lines = [f"| {head} |", f"|{' --- |' * 9}"]
    for row in errors:
        floor = "-" if row.floor is None else f"{row.floor * 100:.2f}"
        figures = f"{row.mean * 100:.2f} | {row.p95 * 100:.1f} | {row.max * 100:.1f} | {row.under_5_percent}"
        binned = f"{row.binned_mean * 100:.2f} / {row.binned_max * 100:.1f} / {row.binned_max_unrounded * 100:.1f}"
        lines.append(f"| {row.name} | {row.series} | {row.points} | {figures} | {binned} | {floor} |")
    return "\n".join(lines)


def _set_name(item: Series) -> str:
    of = {key: value for key, value in item.of.items() if key not in POOLED and (key, value) != ONE_NODE}
    words = [f"{value} {COUNTED[key]}" if key in COUNTED else value for key, value in of.items()]
    return " ".join([item.kind, item.library, item.version, *words])


def _floor(item: Series) -> float | None:
    """From points of one size; else from rounding, which is a quarter of a microsecond on average."""
    sizes, which, count = np.unique(item.size_bytes, return_inverse=True, return_counts=True)
    if (count > 1).any():
        medians = np.array([np.median(item.time_ns[which == i]) for i in range(len(sizes))])
        return float(np.mean(np.abs(item.time_ns / medians[which] - 1)[count[which] > 1]))
    if _is_rounded(item):
        return float(np.mean(ROUNDING_NS / 2 / item.time_ns))
    return None


def _is_rounded(item: Series) -> bool:
    return bool(np.all(item.time_ns % 1000 == 0))


def _unrounded(item: Series, ratio: np.ndarray) -> np.ndarray:
    """law / measured, with the measured time shifted towards the law by up to half a microsecond."""
    if not _is_rounded(item):
        return ratio
    law = ratio * item.time_ns
    return law / np.clip(law, item.time_ns - ROUNDING_NS, item.time_ns + ROUNDING_NS)


def main(arguments: list[str]) -> None:
    """Print the table for a folder, a GPU, and optionally a calibration."""
    folder, gpu, *calibrations = arguments
    found = read_measurements(folder)
    print(
        table_of(errors_with(load_calibration(calibrations[0]), found) if calibrations else transfer_errors(found, gpu))
    )


# ---- groups
# Fused MoE layers with an EP size left out, by group: error targets, and whether they are met.

# Target mean errors: for the model most decisions rely on, and for any model. Names are compared in lower case.
AIM_OF = {"DeepSeek-V3": 0.04}
AIM = 0.06
GROUP = ["library", "dtype", "distribution", "model", "version", "kernel", "eplb_slots"]


def layer_groups(cases: pd.DataFrame) -> pd.DataFrame:
    """One row per group of GROUP: the columns of a summary, ``aim`` and ``met`` ('yes', 'no', 'floor').

    'floor': missed, but within the spread of repetitions or routing draws.
    """
    if not len(cases) or not set(MOE_NAMES) <= set(cases):
        return pd.DataFrame()
    cases = cases[cases["kind"] == RANK_OUT]
    found = summaries(cases.assign(model=_one_name_each(cases["model"])), GROUP)
    if not len(found):
        return found
    found["aim"] = found["model"].map(AIM_OF).fillna(AIM)
    found["met"] = [_met(row) for row in found.to_dict("records")]
    return found


def _one_name_each(models: pd.Series) -> pd.Series:
    """One name for models whose names differ only in case: that of AIM_OF, else the first in alphabetical order."""
    shown = {name.lower(): name for name in [*sorted(models.unique(), reverse=True), *AIM_OF]}
    return models.map(lambda name: shown[name.lower()])


def _met(row: dict) -> str:
    if row["mean"] <= row["aim"]:
        return "yes"
    return "floor" if row["mean"] <= row["floor"] else "no"


if __name__ == "__main__":
    main(sys.argv[1:])
