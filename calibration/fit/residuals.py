"""How far laws are off at measured points that no fit saw: ln(measured / predicted), by table, in three ways."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from archsim.base.units import NS_PER_S, NS_PER_US, WEIGHT_BYTES
from archsim.iteration.attention_blocks import BLOCK
from archsim.laws.attention import AttentionSizes, work_of
from archsim.laws.calibration_files import find_calibration, read_calibration
from archsim.laws.gemm import OUTPUT_BYTES
from archsim.laws.laws import Laws
from archsim.laws.moe import MoeSizes
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
from archsim.specs.uncertainty import WIDE_EP
from calibration.fit import moe, segments, transfers
from calibration.measurements.datasheets import DATASHEETS, peak_of
from calibration.measurements.reading import Measurements

GENERATIONS: Mapping[str, str] = {
    "a100": "ampere", "h100": "hopper", "h200": "hopper", "h800": "hopper", "h20": "hopper",
    "b200": "blackwell", "b300": "blackwell", "gb200": "blackwell", "gb300": "blackwell",
    "rtx-pro-6000-server": "blackwell, workstation",
}  # fmt: skip
THIRDS = 3  # of the shapes, of which one is left out at a time
LEAST_ROOFLINE_NS = 10_000.0  # of attention: kernels that take less are launches, which a roofline does not have
MOST_POINTS = 60  # of a table, drawn evenly: more say little, and take long
LEAST_OF_BLOCK = 10  # points of a table of sparse or linear attention
EXPERTS_ALONE = ("sglang-deepep", "trtllm-wideep")  # layers without routing: other kernels than fused ones


class TableResiduals(NamedTuple):
    """Residuals of one table, predicted in one way."""

    section: str  # of a calibration, or a kind of kernel, as widths have it
    how: str  # the way, see `calibration.fit.coverage`
    table: str  # GPU and configuration, in words
    of: np.ndarray  # float64[point], ln(measured / predicted)


class _CoveredSection(NamedTuple):
    """How a section of a calibration is asked for measured points, and what is left out of it."""

    kind: str  # of measurements
    table: list[str]  # columns that tell tables apart
    shape: list[str]  # columns of a shape
    axis: str  # column of the sizes of a shape
    ask: Callable[[Laws, pd.DataFrame], np.ndarray]  # laws, points → ns, float64[point]
    thin: Callable[[Any], Any]  # a table without every other size of its shapes
    axis_of: Callable[[Any], tuple[float, ...]]  # the sizes of a table
    without: Callable[[Any, set[str]], Any]  # a table without these shapes; None if nothing is left
    roofline_ns: Callable[[pd.DataFrame, str], np.ndarray]  # points, GPU → ns, float64[point]


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
        kind="gemm", table=["library", "dtype", "quant_included"], shape=["n", "k"], axis="m", ask=_gemm,
        thin=_thin_gemm, axis_of=lambda table: table.m, without=_gemm_without, roofline_ns=_gemm_roofline,
    ),  # fmt: skip
    "moe": _CoveredSection(
        kind="moe", table=["library", "dtype", "distribution", "eplb_slots", "model"], shape=["hidden", "ffn"],
        axis="tokens_total", ask=_moe, thin=_thin_moe, axis_of=lambda table: table.tokens, without=_moe_without,
        roofline_ns=_moe_roofline,
    ),  # fmt: skip
    "attention": _CoveredSection(
        kind="attention", table=["library", "phase", "kind", "dtype", "kv_dtype", "products", "head_dim", "window"],
        shape=_SHAPE, axis="tokens", ask=_attention, thin=_thin_attention, axis_of=lambda table: table.tokens,
        without=_attention_without, roofline_ns=_attention_roofline,
    ),  # fmt: skip
}  # fmt: skip


KINDS = (*(given.kind for given in SECTIONS.values()), "collective", "p2p")


def residuals(measurements: Measurements, said: Callable[[str], None] = lambda text: None) -> Iterator[TableResiduals]:
    """The residuals of every table of measurements, for every way in which it could be predicted."""
    for section, given in SECTIONS.items():
        if given.kind not in measurements.tables:
            continue
        rows = _prepare(section, measurements.tables[given.kind])
        there = [gpu for gpu in GENERATIONS if (rows["gpu"] == gpu).any() and find_calibration(gpu).is_file()]
        calibrations = {gpu: read_calibration(find_calibration(gpu)) for gpu in there}
        for gpu in there:
            said(f"{section} of {gpu}")
            own = calibrations[gpu]
            tables = _newest_rows(rows[rows["gpu"] == gpu], given)
            for name, points in tables:
                label = f"{gpu} {name}"
                yield from _all(section, "fit", label, _left_out_points(own, section, points))
                wide = points["ep"] >= WIDE_EP if section == "moe" else np.zeros(len(points), bool)
                for kind, part in ((section, points[~wide]), ("wide_ep", points[wide])):
                    found = _left_out_shapes(own, section, part) if len(part) else np.zeros(0)
                    yield from _all(kind, "nearest_shape", label, found)
                apart = [each for _, each in points.groupby(given.shape, sort=True)]  # of a shape each
                of_shapes = [_residuals_at(partial(given.roofline_ns, each, gpu), each) for each in apart]
                yield from _all(section, "roofline", label, np.concatenate(of_shapes))
                for other in there:
                    if other != gpu:
                        how = "sibling_gpu" if GENERATIONS[other] == GENERATIONS[gpu] else "scaled"
                        found = _from_another(own, calibrations[other], section, points)
                        yield from _all(section, how, f"{label} from {other}", found)
    for section, kind in (("collectives", "collective"), ("copies", "p2p")):
        if kind in measurements.tables:
            said(section)
            for item in transfers.series_of(measurements.tables[kind], kind):
                if len(np.unique(item.size_bytes)) >= 2 * THIRDS:
                    ratio = segments.held_out_ratios(item.size_bytes, item.time_ns, THIRDS)
                    of = section if section == "copies" else kind_of_collective(item.library, item.of["op"])
                    yield from _all(of, "fit", item.name, -np.log(ratio[np.isfinite(ratio)]))
    if "collective" in measurements.tables:
        yield from _collectives_of_others(measurements.tables["collective"])
    yield from _of_blocks()


def kind_of_collective(library: str, op: str) -> str:
    """NCCL's, all-reduces of engines, and what moves hidden vectors."""
    return "nccl" if library == "nccl" else "all_reduce" if op == "all_reduce" else "dispatch"


def _of_blocks() -> Iterator[TableResiduals]:
    """Of sparse and linear attention: quantiles of models and heads left out, normal between them."""
    at = np.array([NormalDist().inv_cdf((point + 0.5) / MOST_POINTS) for point in range(MOST_POINTS)])
    for gpu in GENERATIONS:
        for table in read_calibration(find_calibration(gpu)).blocks if find_calibration(gpu).is_file() else ():
            low, middle, high = np.log1p([table.unseen.p05, table.unseen.p50, table.unseen.p95])
            if low < high and table.unseen.points >= LEAST_OF_BLOCK:
                name = " ".join(
                    (gpu, table.library, table.kind, table.phase, table.kernel, table.kv_dtype, table.reach)
                )
                own = middle + np.where(at < 0, middle - low, high - middle) * at / NormalDist().inv_cdf(0.95)
                yield from _all("sparse" if table.part == BLOCK else "linear", "nearest_shape", name, own)


def _prepare(section: str, rows: pd.DataFrame) -> pd.DataFrame:
    if section == "moe":
        rows = moe.with_defaults(rows)
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


def _residuals_at(ask: Callable[[], Any], points: pd.DataFrame) -> np.ndarray:
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
    found = [_residuals_at(partial(given.ask, laws, own), own) for _, own in points.groupby(given.shape, sort=True)]
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
                found = _residuals_at(ask, points)
                way = "sibling_gpu" if GENERATIONS[other] == GENERATIONS[gpu] else "scaled"
                yield from _all("collectives", way, f"{gpu} {' '.join(map(str, name))} from {other}", found)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
