"""How far laws are off where no fit saw the measurement, and whether stated intervals are true.

    python -m calibration.fit.coverage DIR [--write configs/uncertainty/widths.yaml] [--page docs/measurements.md]

A residual is ln(measured / predicted) of one measured point. Its prediction never saw the point:

============= =========================================================================================================
way           what the law had instead
============= =========================================================================================================
fit           every other number of rows, tokens or bytes of the same shape
nearest_shape other shapes of the table: a third of the shapes is left out at a time (of MoE layers: a model at a time)
sibling_gpu   the tables of another GPU of the same generation, scaled by nominal rates (`archsim.laws.scaling`)
scaled        those of a GPU of another generation
roofline      no kernel: FLOP over the peak or bytes over the bandwidth of the datasheet, whichever takes longer
============= =========================================================================================================

From them come widths of two levels (`archsim.specs.uncertainty.LevelsSpec`): what all points of a table have in common,
and what one shape has of its own. Both levels together have the quantiles of all residuals; the share of the first is
that of the spread of the tables' medians. Tables count equally, however many points they have.

Coverage is judged by cross-validation: the tables are divided into `FOLDS`, and the intervals that a part of them is
judged by were learned from the others.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from archsim.base.host import use_one_blas_thread
from archsim.base.units import NS_PER_S, NS_PER_US, WEIGHT_BYTES
from archsim.laws.attention import AttentionSizes, work_of
from archsim.laws.gemm import OUTPUT_BYTES
from archsim.laws.laws import Laws, MoeSizes
from archsim.laws.scaling import with_scaled
from archsim.laws.tables import (
    AttentionTable,
    CalibrationSpec,
    GemmTable,
    LawMissing,
    MoeTable,
    ScaledSections,
    shape_of,
)
from archsim.specs.calibration_files import find_calibration, read_calibration
from archsim.uncertainty.quantities import KNOTS, Quantiles
from calibration.fit.moe import with_defaults
from calibration.fit.transfers import held_out_ratios, series_of
from calibration.measurements.reading import Measurements, read_measurements
from calibration.measurements.schema import DATASHEETS, peak_of

GENERATIONS: Mapping[str, str] = {
    "a100": "ampere", "h100": "hopper", "h200": "hopper", "h800": "hopper", "h20": "hopper",
    "b200": "blackwell", "b300": "blackwell", "gb200": "blackwell", "gb300": "blackwell",
    "rtx-pro-6000-server": "blackwell, workstation",
}  # fmt: skip
THIRDS = 3  # of the shapes, of which one is left out at a time
LEAST_ROOFLINE_NS = 10_000.0  # of attention: kernels that take less are launches, which a roofline does not have
MOST_POINTS = 60  # of a table, drawn evenly: more say little, and take long
FOLDS = 4  # of the tables, for the judgement
LEAST_TABLES = 4  # with fewer, the points of a table are divided instead
DRAWS = 401  # quantiles of either level with which both are put together
WIDEST = 30.0  # upper over lower end of a width that is written
STEPS = 30  # of the search for the width of the second level
LESS, CLOSE = (1.0, 0.75, 0.5, 0.3, 0.15), 0.1  # of the common share, until the interquartile range is no wider than so
LEVELS = (0.5, 0.9)  # intervals that are judged
BARE = 0.05  # of the width: with less at a quantile, the second level has none left there
BEGIN, END, DIAGRAM = "<!-- coverage -->", "<!-- end of coverage -->", "img/coverage.svg"  # of the page
EXPERTS_ALONE = ("sglang-deepep", "trtllm-wideep")  # layers without routing: other kernels than fused ones


class TableResiduals(NamedTuple):
    """``of``: float64[point], ln(measured / predicted) of one table, had in one way."""

    section: str
    how: str
    table: str
    of: np.ndarray


# ---- residuals


class _CoveredSection(NamedTuple):
    """Of a calibration. ``kind``: of measurements; ``table``: columns that tell tables apart; ``shape``: columns of a
    shape; ``ask(laws, points)``: ns, float64[point]; ``thin``: a table without every other point of its shapes, and the
    sizes left, or None; ``without(table, shapes)``: a table without shapes, None if nothing is left.
    """

    kind: str
    table: list[str]
    shape: list[str]
    axis: str
    ask: Callable[[Laws, pd.DataFrame], np.ndarray]
    thin: Callable[[Any], Any]
    axis_of: Callable[[Any], tuple[float, ...]]
    without: Callable[[Any, set[str]], Any]
    roofline_ns: Callable[[pd.DataFrame, str], np.ndarray]


def _gemm(laws: Laws, points: pd.DataFrame) -> np.ndarray:
    first = points.iloc[0]
    how = {"quantisation": "included" if str(first["quant_included"]) == "1" else "apart", "library": first["library"]}
    asked = points["m"], points["n"], points["k"]
    try:
        return laws.gemm(*asked, dtype=first["dtype"], **how).ns
    except LawMissing:
        return laws.gemm(*asked, dtype=first["dtype"]).ns


def _thin_gemm(table: GemmTable) -> GemmTable:
    shapes = {name: values[::2] for name, values in table.shapes.items()}
    return table.model_copy(update={"m": table.m[::2], "shapes": shapes})


def _gemm_without(table: GemmTable, shapes: set[str]) -> GemmTable | None:
    left = {name: values for name, values in table.shapes.items() if name.replace("x", " ") not in shapes}
    return table.model_copy(update={"shapes": left}) if len(left) >= THIRDS else None


def _gemm_roofline(points: pd.DataFrame, gpu: str) -> np.ndarray:
    m, n, k = (points[name].to_numpy(float) for name in ("m", "n", "k"))
    dtype = points["dtype"].iloc[0]
    n_bytes = WEIGHT_BYTES[dtype] * (n * k + m * k) + OUTPUT_BYTES * m * n
    return _longer(2 * m * n * k, n_bytes, gpu, dtype)


def _moe(laws: Laws, points: pd.DataFrame) -> np.ndarray:
    first = points.iloc[0]
    sizes = MoeSizes(*(int(first[name]) for name in ("hidden", "ffn", "experts", "top_k")))
    how = {"dtype": first["dtype"], "distribution": first["distribution"], "eplb_slots": int(first["eplb_slots"])}
    asked = points["tokens_total"], points["ep"], points["tp"]
    try:
        return laws.fused_moe(*asked, sizes=sizes, library=first["library"], **how).ns
    except LawMissing:
        return laws.fused_moe(*asked, sizes=sizes, **how).ns


def _thin_moe(table: MoeTable) -> MoeTable:
    ranks = {name: values[::2] for name, values in table.ranks.items()}
    return table.model_copy(update={"tokens": table.tokens[::2], "ranks": ranks})


def _moe_without(table: MoeTable, shapes: set[str]) -> MoeTable | None:
    return None if f"{table.hidden} {table.ffn}" in shapes else table


def _moe_roofline(points: pd.DataFrame, gpu: str) -> np.ndarray:
    tokens, ep, tp, top_k, experts = (
        points[name].to_numpy(float) for name in ("tokens_total", "ep", "tp", "top_k", "experts")
    )
    weights = points["hidden"].to_numpy(float) * points["ffn"].to_numpy(float) / tp
    pairs, local, dtype = tokens * top_k / ep, experts / ep, points["dtype"].iloc[0]
    active = np.minimum(local, np.maximum(pairs, 1.0))
    return _longer(6 * pairs * weights, 3 * active * weights * WEIGHT_BYTES[dtype], gpu, dtype)


def _attention(laws: Laws, points: pd.DataFrame) -> np.ndarray:
    first = points.iloc[0]
    new = points["tokens"] if first["phase"] == "prefill" else 1
    ask = partial(
        laws.attention, new, points["tokens"], points["batch"], heads=int(first["heads"]),
        kv_heads=int(first["kv_heads"]), head_dim=int(first["head_dim"]), window=int(first["window"]),
        **{name: first[name] for name in ("dtype", "kv_dtype", "kind", "products", "phase")},
    )  # fmt: skip
    try:
        return ask(library=first["library"]).ns
    except LawMissing:
        return ask().ns


def _thin_attention(table: AttentionTable) -> AttentionTable:
    batch, tokens = len(table.batch), len(table.tokens)
    shapes = {
        name: tuple(np.reshape(values, (batch, tokens))[:, ::2].ravel().tolist())
        for name, values in table.shapes.items()
    }
    return table.model_copy(update={"tokens": table.tokens[::2], "shapes": shapes})


def _attention_without(table: AttentionTable, shapes: set[str]) -> AttentionTable | None:
    left = {
        name: values
        for name, values in table.shapes.items()
        if " ".join(map(str, (*shape_of(name), table.head_dim, table.window))) not in shapes
    }
    return table.model_copy(update={"shapes": left}) if left else None


def _attention_roofline(points: pd.DataFrame, gpu: str) -> np.ndarray:
    first = points.iloc[0]
    heads, kv_heads, head_dim, window = (int(first[name]) for name in ("heads", "kv_heads", "head_dim", "window"))
    sizes = AttentionSizes(heads, kv_heads, head_dim, window, first["kind"])
    tokens = points["tokens"].to_numpy(float)
    new = tokens if first["phase"] == "prefill" else np.ones(len(points))
    if first["kind"].startswith("mla_"):
        raise LawMissing("projections are part of the time")
    flop, n_bytes = work_of(first["phase"], sizes, points["batch"].to_numpy(float), new, tokens, first["kv_dtype"])
    ns = _longer(flop, n_bytes, gpu, first["dtype"])
    return np.where(ns >= LEAST_ROOFLINE_NS, ns, np.nan)


def _longer(flop: Any, n_bytes: Any, gpu: str, dtype: str) -> np.ndarray:
    """Time at the peak of a GPU, or at its bandwidth, ns."""
    sheet = DATASHEETS[gpu]
    peak = peak_of(sheet.peak_flop_per_s, dtype)
    if peak is None:
        raise LawMissing(f"{gpu} has no peak for {dtype}")
    return np.maximum(flop / peak, n_bytes / sheet.hbm_bytes_per_s) * NS_PER_S


_SHAPE = ["heads", "kv_heads", "head_dim", "window"]
SECTIONS: Mapping[str, _CoveredSection] = {
    "gemm": _CoveredSection(
        "gemm", ["library", "dtype", "quant_included"], ["n", "k"], "m", _gemm, _thin_gemm, lambda table: table.m,
        _gemm_without, _gemm_roofline,
    ),
    "moe": _CoveredSection(
        "moe", ["library", "dtype", "distribution", "eplb_slots", "model"], ["hidden", "ffn"], "tokens_total", _moe,
        _thin_moe, lambda table: table.tokens, _moe_without, _moe_roofline,
    ),
    "attention": _CoveredSection(
        "attention", ["library", "phase", "kind", "dtype", "kv_dtype", "products", "head_dim", "window"], _SHAPE,
        "tokens", _attention, _thin_attention, lambda table: table.tokens, _attention_without, _attention_roofline,
    ),
}  # fmt: skip


KINDS = (*(given.kind for given in SECTIONS.values()), "collective", "p2p")


def residuals(measurements: Measurements, said: Callable[[str], None] = lambda text: None) -> Iterator[TableResiduals]:
    """The residuals of every table of measurements, for every way in which it could be predicted."""
    for section, given in SECTIONS.items():
        if given.kind not in measurements.tables:
            continue
        rows = _prepared(section, measurements.tables[given.kind])
        there = [gpu for gpu in GENERATIONS if (rows["gpu"] == gpu).any() and find_calibration(gpu).is_file()]
        calibrations = {gpu: read_calibration(find_calibration(gpu)) for gpu in there}
        for gpu in there:
            said(f"{section} of {gpu}")
            own = calibrations[gpu]
            tables = _newest_rows(rows[rows["gpu"] == gpu], given)
            for name, points in tables:
                label = f"{gpu} {name}"
                yield from _all(section, "fit", label, _left_out_points(own, section, points))
                yield from _all(section, "nearest_shape", label, _left_out_shapes(own, section, points))
                apart = [each for _, each in points.groupby(given.shape, sort=True)]  # of a shape each
                of_shapes = [_asked(partial(given.roofline_ns, each, gpu), each) for each in apart]
                yield from _all(section, "roofline", label, np.concatenate(of_shapes))
                for other in there:
                    if other != gpu:
                        how = "sibling_gpu" if GENERATIONS[other] == GENERATIONS[gpu] else "scaled"
                        found = _from_another(own, calibrations[other], section, points)
                        yield from _all(section, how, f"{label} from {other}", found)
    for section, kind in (("collectives", "collective"), ("copies", "p2p")):
        if kind in measurements.tables:
            said(section)
            for item in series_of(measurements.tables[kind], kind):
                if len(np.unique(item.size_bytes)) >= 2 * THIRDS:
                    ratio = held_out_ratios(item.size_bytes, item.time_ns, THIRDS)
                    yield from _all(section, "fit", item.name, -np.log(ratio[np.isfinite(ratio)]))
    if "collective" in measurements.tables:
        yield from _collectives_of_others(measurements.tables["collective"])


def _prepared(section: str, rows: pd.DataFrame) -> pd.DataFrame:
    if section == "moe":
        rows = with_defaults(rows)
        return rows[~rows["library"].isin(EXPERTS_ALONE)]
    if section == "gemm":
        return rows[rows["groups"].fillna(1).astype(int) == 1] if "groups" in rows else rows
    return rows.assign(products=rows["products"].fillna("")) if section == "attention" else rows


def _newest_rows(rows: pd.DataFrame, given: _CoveredSection) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of every table, in the version with most points: (name, rows), at most `MOST_POINTS` each."""
    for name, mine in rows.groupby(given.table, dropna=False, sort=True):
        version = mine["library_version"].value_counts().index[0]
        mine = mine[mine["library_version"] == version].sort_values([*given.shape, given.axis], kind="stable")
        at = np.unique(np.linspace(0, len(mine) - 1, min(len(mine), MOST_POINTS)).astype(np.int64))
        yield " ".join(map(str, name)), mine.iloc[at]


def _all(section: str, how: str, table: str, found: np.ndarray) -> Iterator[TableResiduals]:
    found = found[np.isfinite(found)]
    if len(found) >= THIRDS:
        yield TableResiduals(section, how, table, found)


def _asked(ask: Callable[[], Any], points: pd.DataFrame) -> np.ndarray:
    """Residuals of points; none where no law is there."""
    try:
        with np.errstate(all="ignore"):
            found = ask()
            ns = getattr(found, "ns", found)
            return np.log(points["latency_us_median"].to_numpy(float) * NS_PER_US / ns)
    except (LawMissing, KeyError, ValueError):
        return np.zeros(0)


def _by_shape(section: str, points: pd.DataFrame, calibration: CalibrationSpec) -> np.ndarray:
    """Residuals of points of several shapes, each asked for alone."""
    given = SECTIONS[section]
    laws = Laws(calibration)
    found = [_asked(partial(given.ask, laws, own), own) for _, own in points.groupby(given.shape, sort=True)]
    return np.concatenate(found) if found else np.zeros(0)


def _left_out_points(own: CalibrationSpec, section: str, points: pd.DataFrame) -> np.ndarray:
    """Of sizes between those that were left in the tables."""
    given = SECTIONS[section]
    thin = [given.thin(table) for table in getattr(own, section) if len(given.axis_of(table)) > THIRDS]
    dropped = {each for table in getattr(own, section) for each in given.axis_of(table)}
    kept = {each for table in thin for each in given.axis_of(table)}
    asked = points[points[given.axis].isin(dropped - kept)]
    return _by_shape(section, asked, own.model_copy(update={section: tuple(thin)})) if len(asked) else np.zeros(0)


def _left_out_shapes(own: CalibrationSpec, section: str, points: pd.DataFrame) -> np.ndarray:
    given = SECTIONS[section]
    names = points[given.shape].astype(int).astype(str).agg(" ".join, axis=1)
    found = []
    for third in range(THIRDS if section != "moe" else 1):
        every = names.unique()
        out = set(every) if section == "moe" else {each for each in every if zlib.crc32(each.encode()) % 3 == third}
        if out:
            left = [given.without(table, out) for table in getattr(own, section)]
            without = own.model_copy(update={section: tuple(table for table in left if table is not None)})
            found.append(_by_shape(section, points[names.isin(out)], without))
    return np.concatenate(found) if found else np.zeros(0)


def _from_another(own: CalibrationSpec, base: CalibrationSpec, section: str, points: pd.DataFrame) -> np.ndarray:
    scaled = ScaledSections(gpu=base.gpu, sections=(section,))
    asked = with_scaled(own.model_copy(update={section: (), "scaled": scaled}), base)
    return _by_shape(section, points, asked) if getattr(asked, section) else np.zeros(0)


def _collectives_of_others(rows: pd.DataFrame) -> Iterator[TableResiduals]:
    there = [gpu for gpu in GENERATIONS if (rows["gpu"] == gpu).any() and find_calibration(gpu).is_file()]
    calibrations = {gpu: read_calibration(find_calibration(gpu)) for gpu in there}
    tables = ["library", "op", "num_gpus", "variant"]
    for gpu in there:
        for name, mine in rows[rows["gpu"] == gpu].groupby(tables, dropna=False, sort=True):
            at = np.unique(np.linspace(0, len(mine) - 1, min(len(mine), MOST_POINTS)).astype(np.int64))
            points = mine.sort_values("bytes", kind="stable").iloc[at]
            first = points.iloc[0]
            for other in there:
                if other == gpu:
                    continue
                scaled = ScaledSections(gpu=other, sections=("collectives",))
                own = calibrations[gpu].model_copy(update={"collectives": (), "scaled": scaled})
                laws = Laws(with_scaled(own, calibrations[other]))
                ask = partial(
                    laws.collective, first["op"], points["bytes"], ranks=int(first["num_gpus"]),
                    variant=_text(first["variant"]) or None, library=first["library"],
                )  # fmt: skip
                found = _asked(ask, points)
                way = "sibling_gpu" if GENERATIONS[other] == GENERATIONS[gpu] else "scaled"
                yield from _all("collectives", way, f"{gpu} {' '.join(map(str, name))} from {other}", found)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


# ---- widths


def levels_of(tables: list[TableResiduals]) -> tuple[np.ndarray, np.ndarray]:
    """(common, shape): factors at the quantiles `KNOTS` of both levels; see the module."""
    points, weights = _pooled(tables)
    wanted = _quantiles(points, weights)
    medians = np.array([np.median(each.of) for each in tables])
    spread = _spread(points, weights)
    among = _spread(medians, np.ones(len(medians))) if len(medians) > 1 else 0.0
    share = float(np.clip(among / spread if spread else 0.0, 0.1, 0.95))
    found = [_levels(wanted, share * less) for less in LESS]
    common, own, _ = min(found, key=lambda each: max(each.wider, CLOSE))  # the first that is close
    return common, own


class _Levels(NamedTuple):
    """As of `levels_of`; ``wider``: than the interquartile range are both together, as a share of it."""

    common: np.ndarray
    own: np.ndarray
    wider: float


def _levels(wanted: np.ndarray, share: float) -> _Levels:
    """Levels that together have the quantiles ``wanted``, as logarithms; ``share``: of the spread that is common."""
    centre = len(KNOTS) // 2
    away = wanted - wanted[centre]
    shift, common, own = wanted[centre], share * away, np.sqrt(1 - share**2) * away
    for _ in range(STEPS):
        both = _together(common + shift, own)
        with np.errstate(divide="ignore", invalid="ignore"):
            longer = np.nan_to_num(away / (both - both[centre]), nan=1.0, posinf=1.0, neginf=1.0)
        own = own * np.clip(longer, 0.5, 2.0) ** 0.7
        own = np.where(np.abs(own) > np.abs(away), away, own)
        # Where the shape has no width left, tails of it alone widen the middle: the table gives way, too.
        bare = (longer < 1) & (np.abs(own) < BARE * np.abs(away))
        common = common * np.where(bare, np.clip(longer, 0.5, 1.0) ** 0.3, 1.0)
        own, common = (_ascending(each, centre) for each in (own, common))
        shift += wanted[centre] - both[centre]
    both, middle = _together(common + shift, own), slice(centre - 1, centre + 2)
    wider = float(np.ptp(both[middle])) / max(float(np.ptp(wanted[middle])), 1e-12) - 1
    return _Levels(np.exp(common + shift), np.exp(own), wider)


def _ascending(level: np.ndarray, centre: int) -> np.ndarray:
    """A level whose quantiles fall nowhere, away from its centre."""
    level[centre:] = np.maximum.accumulate(level[centre:])
    level[: centre + 1] = -np.maximum.accumulate(-level[centre::-1])[::-1]
    return level


def _pooled(tables: list[TableResiduals]) -> tuple[np.ndarray, np.ndarray]:
    """(residuals of all tables, weights by which tables count equally)."""
    return (
        np.concatenate([each.of for each in tables]),
        np.concatenate([np.full(len(each.of), 1 / len(each.of)) for each in tables]),
    )


def _quantiles(points: np.ndarray, weights: np.ndarray, at: tuple[float, ...] = KNOTS) -> np.ndarray:
    order = np.argsort(points, kind="stable")
    below = np.cumsum(weights[order]) - weights[order] / 2
    return np.interp(np.array(at) * weights.sum(), below, points[order])


def _spread(points: np.ndarray, weights: np.ndarray) -> float:
    """Half the range of the central two thirds: of a normal variable, its standard deviation."""
    low, high = _quantiles(points, weights, (1 / 6, 5 / 6))
    return float(high - low) / 2


def _together(common: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Quantiles `KNOTS` of the sum of two levels, given as logarithms at them."""
    shares = (np.arange(DRAWS) + 0.5) / DRAWS
    one, other = (Quantiles.of(np.exp(each)).at(shares) for each in (common, own))
    every = np.log(one)[:, None] + np.log(other)[None]
    return np.quantile(every, KNOTS)


def bounds(common: np.ndarray, own: np.ndarray, level: float) -> tuple[float, float]:
    """The central interval of both levels together, as ln(measured / predicted)."""
    shares = (np.arange(DRAWS) + 0.5) / DRAWS
    one, other = (Quantiles.of(each).at(shares) for each in (common, own))
    low, high = np.quantile(np.log(one)[:, None] + np.log(other)[None], ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


# ---- coverage


class Coverage(NamedTuple):
    """The coverage of one section and one way to predict it. ``within``: share of points inside the interval of each of
    `LEVELS`, tables counting equally; ``width``: median ratio of the 90 % interval's ends; ``pit``: where in its
    distribution each point lies.
    """

    section: str
    how: str
    tables: int
    points: int
    within: tuple[float, ...]
    width: float
    pit: np.ndarray
    weights: np.ndarray


def judged(tables: list[TableResiduals]) -> Coverage:
    """Coverage of intervals by tables that they were not learned from."""
    parts = _divided(tables)
    within, widths, pits, weights = [[] for _ in LEVELS], [], [], []  # type: ignore[var-annotated]
    for fold in range(FOLDS):
        others = [each for at, part in enumerate(parts) if at != fold for each in part]
        if not others or not parts[fold]:
            continue
        common, own = levels_of(others)
        shares = (np.arange(DRAWS) + 0.5) / DRAWS
        one, other = (np.log(Quantiles.of(each).at(shares)) for each in (common, own))
        every = np.sort((one[:, None] + other[None]).ravel())
        for at, level in enumerate(LEVELS):
            low, high = bounds(common, own, level)
            within[at] += [np.mean((each.of >= low) & (each.of <= high)) for each in parts[fold]]
        widths += [np.exp(high - low)] * len(parts[fold])
        points, weight = _pooled(parts[fold])
        pits.append(np.searchsorted(every, points) / len(every))
        weights.append(weight)
    first = tables[0]
    return Coverage(
        first.section,
        first.how,
        len(tables),
        sum(len(each.of) for each in tables),
        tuple(float(np.mean(each)) for each in within),
        float(np.median(widths)),
        np.concatenate(pits),
        np.concatenate(weights),
    )


def _divided(tables: list[TableResiduals]) -> list[list[TableResiduals]]:
    """The tables in `FOLDS` parts; the points of each, where they are few."""
    if len(tables) >= LEAST_TABLES:
        order = sorted(tables, key=lambda each: zlib.crc32(each.table.encode()))
        return [order[fold::FOLDS] for fold in range(FOLDS)]
    large = [each for each in tables if len(each.of) > FOLDS]
    return [[each._replace(of=each.of[fold::FOLDS]) for each in large] for fold in range(FOLDS)]


def by_way(found: list[TableResiduals]) -> dict[tuple[str, str], list[TableResiduals]]:
    groups: dict[tuple[str, str], list[TableResiduals]] = {}
    for each in found:
        groups.setdefault((each.section, each.how), []).append(each)
    return groups


def table_of(found: list[Coverage]) -> str:
    """The judgement as a Markdown table."""
    lines = ["| law of | had from | tables | points | in 90 % | in 50 % | upper over lower end of 90 % |"]
    lines.append("|---|---|--:|--:|--:|--:|--:|")
    lines += [
        f"| {each.section} | {each.how.replace('_', ' ')} | {each.tables} | {each.points:,} | {each.within[1]:.0%} | "
        f"{each.within[0]:.0%} | {each.width:.2f} |"
        for each in found
    ]
    return "\n".join(lines)


def with_table(page: str, found: list[Coverage]) -> str:
    """The page with the judgement between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table_of(found)}\n\n{END}{after}"


def reliability(found: list[Coverage]) -> str:
    """A diagram, SVG: how often a central interval holds what was measured, over how often it should; a line for each
    section and way, and the diagonal.
    """
    side, edge = 360, 40
    levels = np.linspace(0.05, 0.95, 19)
    lines = []
    for each in found:
        inside = [np.average(np.abs(each.pit - 0.5) <= level / 2, weights=each.weights) for level in levels]
        both = zip(levels, inside, strict=True)
        points = " ".join(f"{edge + side * x:.1f},{edge + side * (1 - y):.1f}" for x, y in both)
        said = f"<title>{each.section}, {each.how.replace('_', ' ')}</title>"
        style = 'fill="none" stroke="#2563a8" opacity="0.6"'
        lines.append(f'<polyline points="{points}" {style}>{said}</polyline>')
    marks = [
        f'<text x="{edge + side * at:.0f}" y="{edge + side + 16}" text-anchor="middle">{at:.0%}</text>'
        f'<text x="{edge - 6}" y="{edge + side * (1 - at) + 4:.0f}" text-anchor="end">{at:.0%}</text>'
        for at in (0.0, 0.5, 0.9)
    ]
    whole = side + 2 * edge
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {whole + 10}" font-family="sans-serif" '
            'font-size="11">',
            f'<rect x="{edge}" y="{edge}" width="{side}" height="{side}" fill="none" stroke="#999"/>',
            f'<line x1="{edge}" y1="{edge + side}" x2="{edge + side}" y2="{edge}" stroke="#999" stroke-dasharray="4"/>',
            *lines,
            *marks,
            f'<text x="{edge + side / 2}" y="{whole}" text-anchor="middle">stated interval</text>',
            f'<text x="{edge}" y="{edge - 10}">measured points inside it</text>',
            "</svg>\n",
        ]
    )


def with_widths(text: str, groups: Mapping[tuple[str, str], list[TableResiduals]]) -> str:
    """The text of a file of widths (`archsim.specs.uncertainty`) with those learned from all residuals."""
    section, lines = "", []
    for line in text.splitlines():
        at = len(line) - len(line.lstrip())
        key = line.strip().partition(":")[0]
        if at <= 2:
            section = key if at == 2 else ""
        tables = groups.get((section, key), []) if at == 4 else []
        if len(tables) >= LEAST_TABLES or sum(len(each.of) for each in tables) > 2 * FOLDS * LEAST_TABLES:
            levels = levels_of(tables)
            if max(np.ptp(np.log(level)) for level in levels) > np.log(WIDEST):  # says nothing
                lines.append(line)
                continue
            common, own = (", ".join(f"{each:.4g}" for each in level) for level in levels)
            points = sum(len(each.of) for each in tables)
            said = f"fitted to {len(tables)} tables: python -m calibration.fit.coverage"
            line = f'    {key}: {{common: [{common}], shape: [{own}], points: {points}, source: "{said}"}}'
        lines.append(line)
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements", metavar="DIR", type=Path, help="folder of CSV files")
    parser.add_argument("--kind", choices=KINDS, help="of measurements; all by default")
    parser.add_argument("--write", metavar="FILE", type=Path, help="put the widths into this file, such as widths.yaml")
    parser.add_argument("--page", metavar="FILE", type=Path, help="put the judgement into this page, with its diagram")
    parser.add_argument(
        "--keep", metavar="FILE", type=Path, nargs="+", default=[], help="read residuals from these files, or keep them"
    )
    args = parser.parse_args(arguments)
    use_one_blas_thread()
    kinds = [args.kind] if args.kind else KINDS
    found = [each for file in args.keep for each in _known(file)] or list(
        residuals(read_measurements(args.measurements, kinds=kinds), lambda text: print(text, flush=True))
    )
    if args.keep and not args.keep[0].exists():
        pd.DataFrame(
            [(*each[:3], value) for each in found for value in each.of], columns=["section", "how", "table", "of"]
        ).to_parquet(args.keep[0])
    groups = by_way(found)
    judgement = [judged(tables) for tables in groups.values() if sum(len(each.of) for each in tables) > 2 * FOLDS]
    print(table_of(judgement))
    if args.write:
        args.write.write_text(with_widths(args.write.read_text(encoding="utf-8"), groups), encoding="utf-8")
    if args.page:
        args.page.write_text(with_table(args.page.read_text(encoding="utf-8"), judgement), encoding="utf-8")
        (args.page.parent / DIAGRAM).write_text(reliability(judgement), encoding="utf-8")
    return 0


def _known(file: Path) -> list[TableResiduals]:
    if not file.exists():
        return []
    rows = pd.read_parquet(file)
    tables = rows.groupby(["section", "how", "table"], sort=False)
    return [TableResiduals(section, how, table, own["of"].to_numpy()) for (section, how, table), own in tables]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
