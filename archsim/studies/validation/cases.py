"""One layer of a made-up model on the event engine, alone: what is compared with laws and measurements."""

from collections.abc import Iterator, Mapping
from math import ceil, gcd, sqrt
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from archsim.base.errors import SpecError
from archsim.base.sums import sum
from archsim.base.units import NS_PER_US, VECTOR_BYTES, WEIGHT_BYTES
from archsim.engine import engine, loop, moves
from archsim.engine.cluster import between_nodes, laws
from archsim.engine.demand import RunDemand
from archsim.laws import attention, die, gemm, tables, transfers
from archsim.laws.laws import MoeSizes
from archsim.laws.moe import BALANCED, EPLB, TILED, candidates, rank_loads
from archsim.laws.moe import SIZES as LAYER_SIZES
from archsim.specs import calibration_files, config_files, policies
from archsim.specs.library import load_assumptions
from archsim.specs.measured import link_measured
from archsim.specs.model import ModelSpec
from archsim.specs.scenario import Scenario
from archsim.specs.system import SystemSpec
from archsim.specs.workload import WorkloadSpec
from archsim.studies.validation.errors import EXPERTS
from calibration.fit.fit import products
from calibration.fit.moe import with_defaults
from calibration.measurements import reading, schema, sweeps
from microarch.blocks.hbm import SLICES
from microarch.silicon.die_area import GH100_MM2
from microarch.silicon.energy import BOOST, CLOCK_MHZ, TILE_ROWS, Activity, EnergyEstimates, run_energy

# ---- alone

_NAMED = {"name": "validation", "source": "validation of a calibration"}


def steps_ns(
    machine: Mapping[str, Any], sizes: Mapping[str, int], policy: str, tokens: np.ndarray, **assumptions: str
) -> np.ndarray:
    """float64[step] ns of steps with ``tokens: int64[step, expert]``.

    ``machine``: fields of a SystemSpec; ``sizes``: of a ModelSpec; ``assumptions``: changes of ``physical``.
    """
    steps, experts = tokens.shape
    system = SystemSpec(**_NAMED, **machine)
    model = ModelSpec(**_NAMED, layers=1, moe_layers={"first": 0, "last": 0}, experts=experts, **sizes)
    batch = int(tokens.max())
    workload = WorkloadSpec(trace={"synthetic": {}}, batch=batch)
    chosen = policies.PolicySpec(name=policy, **policies.PRESETS[policy])
    scenario = Scenario(system, model, load_assumptions("physical", **assumptions), chosen, workload, batch)
    demand = RunDemand(
        tokens=tokens.astype(np.int32)[:, None, :],
        first_seen=np.zeros((steps, 1, experts), np.int16),
        has_prefill=False,
        layer_ids=np.zeros(1, np.int32),
        top_k=model.top_k,
        batch=batch,
        digest="",
    )
    return loop.Replay(engine.EventEngine(scenario), demand).run().step_ns[:, 0]


# ---- attention_cases
# Attention of a calibration file against every measured row of the same library.

WAY = ["library", "library_version", "phase", "kind", "dtype", "kv_dtype"]
SIZES = ["heads", "kv_heads", "head_dim", "window"]
US = 1e-3  # per ns


def attention_groups(measurements: reading.Measurements, gpu: str) -> Iterator[tuple[tuple, pd.DataFrame]]:
    """((*WAY), rows) judged by tables of one library."""
    return iter(measurements.table("attention", gpu).groupby(WAY, sort=True))


def attention_errors(calibration: tables.CalibrationSpec, way: tuple, rows: pd.DataFrame) -> np.ndarray | None:
    """Predicted / measured - 1, float64[row]; None where the library has no table of this phase and kind."""
    library, version, phase, kind, dtype, kv_dtype = way
    errors = []
    for shape, mine in rows.groupby(SIZES, sort=True):
        heads, kv_heads, head_dim, window = (int(size) for size in shape)
        sizes = attention.AttentionSizes(heads, kv_heads, head_dim, window, kind)
        table = _table(calibration, phase, sizes, dtype, kv_dtype, library, version)
        if table is None:
            return None
        batch, context = (mine[name].to_numpy(float) for name in ("batch", "tokens"))
        new = np.ones_like(context) if phase == attention.DECODE else context
        found = attention.grid_ns(attention.attention_grid(table, sizes), batch, new, context) * US
        errors.append(found / mine["latency_us_median"].to_numpy(float) - 1)
    return np.concatenate(errors)


def _table(calibration, phase, sizes, dtype, kv_dtype, library, version) -> tables.AttentionTable | None:
    """Of the same version or its release, else the newest of the library."""
    for wanted in (version, sweeps.release(version), None):
        try:
            return attention.choose_attention(calibration, phase, sizes, dtype, kv_dtype or None, library, wanted)
        except tables.LawMissing:
            continue
    return None


# ---- cluster_cases
# Dispatch and combine as the engine takes them, by the bytes of a port, against every measured number of ranks and
# nodes: those without a table of their own are judged by what stands in for it.

GROUP = ["op", "variant", "library", "library_version", "num_gpus", "nodes", "hidden", "top_k", "experts"]


class TransferCase(NamedTuple):
    """One kernel on some ranks and nodes. ``tokens``, ``us``: float64[size], a notify included; ``error``: predicted /
    measured - 1, None where no law covers it.
    """

    of: dict[str, str | int]
    tokens: np.ndarray
    us: np.ndarray
    error: np.ndarray | None


def moved(name: str, measurements: reading.Measurements, gpu: str) -> Iterator[TransferCase]:
    """Every kernel measured on a GPU, with its default payload and most SMs; ``name``: of the calibration."""
    rows = measurements.table("collective", gpu)
    rows = rows[
        rows["op"].isin([transfers.DISPATCH, transfers.COMBINE])
        & (rows["dtype"] == rows["op"].map(transfers.PAYLOAD_OF))
    ]
    whole = measurements.table("collective", gpu)
    rows = rows.assign(nodes=rows["nodes"].astype(float).fillna(1.0))
    for key, mine in rows.groupby(GROUP, sort=True):
        of = dict(zip(GROUP, key, strict=True)) | {
            each: int(value) for each, value in zip(GROUP[4:], key[4:], strict=True)
        }
        most = mine["sms"].astype(float).max()
        mine = mine if np.isnan(most) else mine[mine["sms"].astype(float) == most]
        times = mine.groupby(mine["tokens_per_rank"].astype(float))["latency_us_median"].median()
        tokens, us = times.index.to_numpy(float), times.to_numpy(float) + _notify_us(whole, of, most)
        law = _law(name, of)
        predicted = None if law is None else (law.fixed_ns + law.busy(tokens * _token_bytes(of))) / NS_PER_US
        yield TransferCase(of, tokens, us, None if predicted is None else predicted / us - 1)


def _notify_us(rows: pd.DataFrame, of: dict, sms: float) -> float:
    """The median notify of the same number of nodes; 0 where none was measured."""
    told = rows[(rows["op"] == transfers.NOTIFY_OF[of["op"]]) & (rows["variant"] == of["variant"])]
    told = told[(told["nodes"].astype(float) == of["nodes"]) & (told["sms"].astype(float) == sms)]
    return float(told["latency_us_median"].astype(float).median()) if len(told) else 0.0


def _way(of: dict) -> tuple[str, str] | None:
    """(dispatch, library) that takes a kernel."""
    found = (
        (dispatch, library)
        for dispatch, kernel in laws.KERNELS.items()
        for library, variant in kernel.names.items()
        if variant == of["variant"]
    )
    return next(found, None)


def _law(name: str, of: dict) -> laws.PortLaw | None:
    way = _way(of)
    if way is None:
        return None
    shape, digest = (of["hidden"], of["top_k"], of["experts"]), calibration_files.calibration_digest(name)
    try:
        if of["nodes"] == 1:
            return laws.node_law(name, digest, of["op"], *way, shape, of["num_gpus"])
        return between_nodes.between_law(name, digest, of["op"], *way, shape, of["nodes"])
    except tables.LawMissing:
        return None


def _token_bytes(of: dict) -> float:
    """Bytes that pass a port (between nodes: a NIC) for every token of a rank, all experts equally popular."""
    nodes, ranks = of["nodes"], of["num_gpus"]
    way = _way(of)
    once = way is not None and laws.KERNELS[way[0]].once
    vector_bytes = of["hidden"] * VECTOR_BYTES[transfers.PAYLOAD_OF[of["op"]]]
    if nodes > 1:
        away = transfers.nodes_away(nodes, of["top_k"], of["experts"]) if once else of["top_k"] * (nodes - 1) / nodes
        return vector_bytes * away
    vectors = moves.expected_ranks(moves.Sizes(of["experts"], of["top_k"]), ranks) if once else of["top_k"]
    return vector_bytes * vectors * (ranks - 1) / ranks


# ---- engine_cases
# Experts on the event engine, against the fitted law and measurements (figure 12 of Yu et al.,
# ISCA 2026, arXiv 2510.05497v4).
#
# One die with the peak and HBM of the GPU runs one expert: gate, up and down product, each fetched when the previous
# one is done. Its times must equal the law, whatever the engine overlaps elsewhere, and are compared with the sum of
# the measured times.

HIDDEN_AND_FFN = dict(zip(EXPERTS, ((7168, 2048), (4096, 1536), (2048, 768)), strict=True))
DTYPES = ("bf16", "fp8")
EXPERT_COLUMNS = [
    "model", "dtype", "library", "version", "m", "engine_us", "law_us", "measured_us", "law_error", "error",
]  # fmt: skip


def engine_cases(calibration: tables.CalibrationSpec, named: str, measurements: reading.Measurements) -> pd.DataFrame:
    """One row per expert, dtype and number of tokens for which all products were measured; columns COLUMNS.

    ``named``: the calibration's name or path, as in a system. Measured: medians over sweeps of the table's release.
    """
    rows = products(measurements, calibration.gpu)
    found = []
    for dtype in DTYPES:
        try:
            table = gemm.choose_table(calibration, dtype)
        except SpecError:
            continue
        medians = _medians(rows, table)
        for model, (hidden, ffn) in HIDDEN_AND_FFN.items():
            measured = _expert(medians, hidden, ffn)
            if len(measured):
                found.append(_cases(calibration, named, table, model, hidden, ffn, measured))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=EXPERT_COLUMNS)


def expert_ns(
    calibration: tables.CalibrationSpec, named: str, dtype: str, hidden: int, ffn: int, tokens: np.ndarray
) -> np.ndarray:
    """Times of one expert on one die by the event engine, float64[n] ns, for tokens int64[n]."""
    reference = calibration.reference
    machine = {
        "mesh": {"x": 1, "y": 1},
        "hbm": {"bandwidth_bytes_per_s": reference.hbm_bytes_per_s, "capacity_bytes": 10**12},
        "d2d": {"bandwidth_bytes_per_s": 1e12},
        "llc": {"capacity_bytes": 2**20},  # less than a slice: one in flight, none kept
        "compute": {"peak_flop_per_s": reference.peak_flop_per_s[dtype], "dtype": dtype, "calibration": named},
    }
    as_measured = {"activations": "replicated", "decision_cost": "free", "gemm": "calibrated", "reads": "together"}
    sizes = {"hidden": hidden, "expert_ffn": ffn, "top_k": 1}
    return steps_ns(machine, sizes, "ep", tokens.reshape(-1, 1), **as_measured, memory="experts")


def _medians(rows: pd.DataFrame, table: tables.GemmTable) -> pd.Series:
    """(n, k, m) → measured us."""
    included = {"included": "1", "apart": "0"}[table.quantisation]
    alike = rows[
        (rows["library"] == table.library) & (rows["dtype"] == table.dtype) & (rows["groups"].astype(int) == 1)
    ]
    alike = alike[alike["quant_included"].astype(str) == included]
    alike = alike[alike["library_version"].map(sweeps.release) == sweeps.release(table.version)]
    return alike.groupby(["n", "k", "m"])["latency_us_median"].median()


def _expert(medians: pd.Series, hidden: int, ffn: int) -> pd.Series:
    """m → us of gate, up and down product."""
    shapes = set(zip(medians.index.get_level_values("n"), medians.index.get_level_values("k"), strict=True))
    if not {(ffn, hidden), (hidden, ffn)} <= shapes:
        return pd.Series(dtype=float)
    return (2 * medians.loc[ffn, hidden] + medians.loc[hidden, ffn]).dropna()


def _cases(calibration, named, table, model, hidden, ffn, measured) -> pd.DataFrame:
    tokens = measured.index.to_numpy(np.int64)
    engine_us = expert_ns(calibration, named, table.dtype, hidden, ffn, tokens) / NS_PER_US
    products = [(ffn, hidden), (ffn, hidden), (hidden, ffn)]
    law_us = (
        sum(
            gemm.table_times(table, np.full_like(tokens, n), np.full_like(tokens, k), tokens, calibration.reference.sms)
            for n, k in products
        )
        / NS_PER_US
    )
    frame = pd.DataFrame(
        {"m": tokens, "engine_us": engine_us, "law_us": law_us, "measured_us": measured.to_numpy(float)}
    )
    frame = frame.assign(law_error=engine_us / law_us - 1, error=engine_us / frame["measured_us"] - 1)
    who = {"model": model, "dtype": table.dtype, "library": table.library, "version": table.version}
    return frame.assign(**who)[EXPERT_COLUMNS]


def engine_table(cases: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """(column names, rows of text): errors of the engine against the law and measurements, by expert and dtype."""
    names = [
        "expert",
        "dtype",
        "library",
        "M",
        "engine from law, max %",
        "from measured: <5 %",
        "mean %",
        "p95 %",
        "max %",
    ]
    rows = []
    for (model, dtype), group in cases.groupby(["model", "dtype"], sort=True):
        errors = group["error"].abs().to_numpy(float)
        figures = (group["law_error"].abs().max(), errors.mean(), np.quantile(errors, 0.95), errors.max())
        law, mean, p95, most = (f"{100 * value:.2f}" for value in figures)
        library = f"{group['library'].iloc[0]} {group['version'].iloc[0]}"
        rows.append([model, dtype, library, str(len(group)), law, str(int((errors < 0.05).sum())), mean, p95, most])
    return names, rows


# ---- engine_copies
# Copies between two dies on the event engine, against the fitted law and measurements.
#
# Two dies with calibrated links: the only expert of a model has its home on the first die and executes on the second,
# which reads its three slices one after the other. HBM and LLC add no time, as the measured time of a copy includes
# them, and compute time is negligible. A third of the step is one copy, and must equal the law at its size.

COPY_SIZES = tuple(2**octave for octave in range(12, 33))  # 4 KiB to 4 GiB, as figure 12 of Yu et al., ISCA 2026
COPY_COLUMNS = [
    "library",
    "version",
    "method",
    "bytes",
    "engine_us",
    "law_us",
    "measured_us",
    "law_error",
    "error",
    "extrapolated",
]
SMALL_BYTES = 2**10  # LLC capacity: less than a slice, so that one is in flight
WIDEST = 1_000_000  # of a model


def copy_cases(calibration: tables.CalibrationSpec, measurements: reading.Measurements) -> pd.DataFrame:
    """One row for each of SIZES and each measured size; columns COLUMNS. None if the calibration provides no links.

    Measured: the median of the measurements of that size in the law's series; nan if there are none.
    """
    law = transfers.link_table(calibration)
    if law is None:
        return pd.DataFrame(columns=COPY_COLUMNS)
    measured = _copy_medians(measurements.table("p2p", calibration.gpu), law)
    sizes = np.unique(np.concatenate([np.array(COPY_SIZES), measured.index.to_numpy(np.int64)]))
    sizes = np.array([size for size in sizes if size >= SMALL_BYTES and size // _width(size) <= WIDEST])
    engine_us = np.array([copy_ns(calibration, int(size)) for size in sizes]) / NS_PER_US
    law_us = transfers.law_of(law).time_ns(sizes) / NS_PER_US
    measured_us = measured.reindex(sizes).to_numpy(float)
    return pd.DataFrame(
        {
            "library": law.library,
            "version": law.version,
            "method": law.of.get("method", ""),
            "bytes": sizes,
            "engine_us": engine_us,
            "law_us": law_us,
            "measured_us": measured_us,
            "law_error": engine_us / law_us - 1,
            "error": engine_us / measured_us - 1,
            "extrapolated": transfers.law_of(law).extrapolates(sizes),
        }
    )[COPY_COLUMNS]


def copy_ns(calibration: tables.CalibrationSpec, size_bytes: int) -> float:
    """Time of one copy of ``size_bytes`` from die to die on the event engine."""
    fitted = link_measured(calibration).values
    hbm = {"bandwidth_bytes_per_s": calibration.reference.hbm_bytes_per_s, "capacity_bytes": 10**12, "latency_ns": 0.0}
    machine = {
        "mesh": {"x": 2, "y": 1},
        "hbm": hbm,
        "d2d": {"bandwidth_bytes_per_s": fitted["copies"]["bandwidth"], **fitted},
        "llc": dict.fromkeys(("capacity_bytes", "segment_bytes"), SMALL_BYTES)
        | dict.fromkeys(("hit_ns", "miss_ns", "write_ns"), 0.0),
        "compute": {"peak_flop_per_s": 1e18, "dtype": "fp8"},
    }
    width = _width(size_bytes)
    sizes = {"hidden": width, "expert_ffn": size_bytes // width, "top_k": 1}
    free = {"activations": "replicated", "decision_cost": "free", "gemm": "roofline", "reads": "together"}
    free["carriers"] = "one"  # the dies are stand-ins of GPUs, without an area
    one = np.ones((1, 1), np.int64)
    return float(steps_ns(machine, sizes, "base", one, **free, memory="experts")[0]) / SLICES


def _text(value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _width(size_bytes: int) -> int:
    return gcd(int(size_bytes), 2**16)


def _copy_medians(rows: pd.DataFrame, law: tables.TransferTable) -> pd.Series:
    """bytes → measured us of the points in the law's fit."""
    alike = rows[(rows["library"] == law.library) & (rows["library_version"] == law.version)]
    for key, value in law.of.items():
        alike = alike[alike[key].map(_text) == value]
    return alike.groupby(alike["bytes"].astype(np.int64))["latency_us_median"].median().astype(float)


def copies_table(cases: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """(column names, rows of text): errors of the engine against the law and measurements, by size."""
    names = [
        "copies",
        "by",
        "sizes",
        "engine from law, max %",
        "measured sizes",
        "from measured: <5 %",
        "mean %",
        "p95 %",
        "max %",
    ]
    rows = []
    edges = (0, 2**20, 2**26 + 1, 2**63)
    for name, low, high in zip(("below 1 MiB", "1 to 64 MiB", "above 64 MiB"), edges, edges[1:], strict=False):
        group = cases[(cases["bytes"] >= low) & (cases["bytes"] < high)]
        if not len(group):
            continue
        errors = group["error"].abs().dropna().to_numpy(float)
        figures = (errors.mean(), np.quantile(errors, 0.95), errors.max()) if len(errors) else (np.nan,) * 3
        errors_shown = ["–" if np.isnan(figure) else f"{100 * figure:.2f}" for figure in figures]
        law = f"{100 * group['law_error'].abs().max():.2f}"
        rows.append(
            [
                name,
                f"{group['library'].iloc[0]} {group['version'].iloc[0]}",
                str(len(group)),
                law,
                str(len(errors)),
                str(int((errors < 0.05).sum())),
                *errors_shown,
            ]
        )
    return names, rows


# ---- engine_layers
# One rank of an expert-parallel group on the event engine, against measured fused MoE layers.
#
# A switch joins as many dies as the group has ranks, each with the peak and HBM of the GPU; the experts of the first
# die get the tokens of one rank, all weights are local, and nothing travels. Its time under ``gemm: grouped`` is
# compared with that of the library measured at these pairs and experts: by name, and with the fastest of all. Layers of
# another GPU judge a calibration that is scaled to it.

FAR = 0.25
FASTEST = "fastest"  # instead of a library
LAYER_COLUMNS = [
    "gpu", "model", "dtype", "library", "ep",
    "experts_a_rank", "tokens_an_expert", "engine_us", "law_us", "measured_us",
    "law_error", "error", "extrapolated", "within",
]  # fmt: skip
LIMIT_GROUPS = ("vllm",)  # libraries that route a token to some groups of experts only, where the model says so
CELL = ["model", "dtype", "ep", "pairs", "active"]


def layer_cases(
    calibration: tables.CalibrationSpec, named: str, measurements: reading.Measurements, gpu: str | None = None
) -> pd.DataFrame:
    """One row per cell and library, and per cell and FASTEST; columns COLUMNS.

    ``named``: the calibration's name or path, as in a system; ``gpu``: whose measurements judge it, by default those of
    the calibration. ``within``: whether the measured time is within the result's own residuals.
    """
    gpu = gpu or calibration.gpu
    cells = measured_cells(measurements, gpu)
    found = [
        each
        for (model, dtype, library, ep), rows in cells.groupby(["model", "dtype", "library", "ep"], sort=True)
        if (each := _layer_cases(calibration, named, gpu, model, dtype, library, float(ep), rows)) is not None
    ]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=LAYER_COLUMNS)


def scaled_cases(calibration: tables.CalibrationSpec, named: str, measurements: reading.Measurements) -> pd.DataFrame:
    """Like `layer_cases`, but for the layers of other GPUs with a shipped calibration, whose rates the die has."""
    others = [gpu for gpu in measurements.gpus() if gpu != calibration.gpu and gpu in calibrations_shipped()]
    found = [layer_cases(calibration, named, measurements, gpu) for gpu in others]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=LAYER_COLUMNS)


def calibrations_shipped() -> set[str]:
    """Names of the shipped calibrations."""
    return {file.stem for file in (config_files.shipped_configs() / "calibrations").glob("*.yaml")}


def measured_cells(measurements: reading.Measurements, gpu: str) -> pd.DataFrame:
    """Balanced layers of a GPU, TP 1, newest version of each library and kernel: CELL, sizes, library, measured us.

    The rows of FASTEST are the least of all whole layers of a cell. Cells of less than a pair are left out.
    """
    rows = with_defaults(measurements.table("moe", gpu))
    rows = rows[(rows["distribution"] == BALANCED) & (rows["tp"].astype(int) == 1) & (rows[EPLB].astype(int) == 0)]
    parts = [
        _loads(mine, key)
        for key, mine in rows.groupby(["library", "kernel", "model", "dtype"], sort=True)
        if TILED not in candidates(key[2], BALANCED, key[1])
    ]
    if not parts:
        return pd.DataFrame(columns=[*CELL, *LAYER_SIZES, "library", "measured_us"])
    cells = pd.concat(parts, ignore_index=True)
    cells = cells[cells["pairs"] >= 1]
    by = [*CELL, *LAYER_SIZES]
    named = cells.groupby([*by, "library"], as_index=False)["measured_us"].min()
    whole = cells[~cells["library"].isin(tables.PARTS_OF_LAYERS)]
    fastest = whole.groupby(by, as_index=False)["measured_us"].min().assign(library=FASTEST)
    return pd.concat([named, fastest], ignore_index=True)


def _loads(rows: pd.DataFrame, key: tuple[str, str, str, str]) -> pd.DataFrame:
    """Cells of one library, kernel, model and dtype: medians over the sweeps of the newest version."""
    library, kernel, model, dtype = key
    version = max(rows["library_version"].unique(), key=tables.newest_first)
    point = ["ep", "tokens_total", *LAYER_SIZES]
    cells = rows[rows["library_version"] == version].groupby(point, as_index=False)["latency_us_median"].median()
    named = {"model": model, **{name: int(cells[name].iloc[0]) for name in LAYER_SIZES}}
    ep, tokens = cells["ep"].to_numpy(float), cells["tokens_total"].to_numpy(float)
    routing = candidates(model, BALANCED, kernel)[-1 if library in LIMIT_GROUPS else 0]
    pairs, active = rank_loads(named, routing, None, ep, tokens)
    cells = cells.assign(pairs=pairs, active=active, model=model, dtype=dtype, library=library)
    return cells.rename(columns={"latency_us_median": "measured_us"}).drop(columns="tokens_total")


def _layer_cases(calibration, named, gpu, model, dtype, library, ep, rows) -> pd.DataFrame | None:
    sizes = MoeSizes(*(int(rows[name].iloc[0]) for name in LAYER_SIZES))
    chosen = None if library == FASTEST else library
    reference = (calibration if gpu == calibration.gpu else calibration_files.load_calibration(gpu)).reference
    if dtype not in reference.peak_flop_per_s:
        return None
    rates = gemm.Rates(reference.peak_flop_per_s[dtype], reference.hbm_bytes_per_s)
    try:
        law = die.GroupedLaw(calibration, sizes, sizes.experts / ep, dtype, rates, chosen)
    except SpecError:
        return None
    tokens = [_tokens(pairs, active, sizes, ep) for pairs, active in rows[["pairs", "active"]].to_numpy(float)]
    engine_us = rank_ns(named, sizes, int(ep), dtype, rates, chosen, np.array(tokens)) / NS_PER_US
    pairs = np.array([each.sum() for each in tokens], float)
    active = np.array([(each > 0).sum() for each in tokens], float)
    times = law.times(pairs, active)
    measured_us = rows["measured_us"].to_numpy(float)
    frame = pd.DataFrame({"engine_us": engine_us, "law_us": times.ns / NS_PER_US, "measured_us": measured_us})
    within = (measured_us >= engine_us * (1 - times.low)) & (measured_us <= engine_us * (1 + times.high))
    frame = frame.assign(
        gpu=gpu, model=model, dtype=dtype, library=library, ep=int(ep), experts_a_rank=sizes.experts / ep,
        tokens_an_expert=pairs / (sizes.experts / ep), law_error=engine_us / frame["law_us"] - 1,
        error=engine_us / measured_us - 1, extrapolated=times.extrapolated, within=within,
    )  # fmt: skip
    return frame[LAYER_COLUMNS]


def layer_table(cases: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """(column names, rows of text): errors of the engine against measured layers, by library and dtype."""
    names = ["GPU", "library", "dtype", "cells", "mean %", "median %", "within 25 %", "in its residuals"]
    names += ["engine from law, mean %"]
    rows = []
    for (gpu, library, dtype), group in cases.groupby(["gpu", "library", "dtype"], sort=True):
        off, law = group["error"].abs(), group["law_error"].abs()
        figures = (off.mean(), off.median(), (off <= FAR).mean(), group["within"].mean(), law.mean())
        rows.append([gpu, library, dtype, str(len(group)), *(f"{100 * value:.1f}" for value in figures)])
    return names, rows


def _tokens(pairs: float, active: float, sizes: MoeSizes, ep: float) -> np.ndarray:
    """Tokens of every expert of the model, int64[expert]: the pairs, shared equally by the first active experts."""
    total, runs = max(round(pairs), 1), max(round(min(active, pairs)), 1)
    tokens = np.zeros(sizes.experts, np.int64)
    tokens[:runs] = total // runs
    tokens[: total % runs] += 1
    return tokens


def rank_ns(
    named: str,
    sizes: MoeSizes,
    ep: int,
    dtype: str,
    rates: gemm.Rates,
    library: str | None,
    tokens: np.ndarray,
    **changed: Any,
) -> np.ndarray:
    """Times of steps on one rank of ``ep``, float64[step] ns; tokens: int64[step, expert]; changed: assumptions."""
    machine = {
        **({"mesh": {"x": 1, "y": 1}} if ep == 1 else {"fabric": {"levels": [{"switch": ep}]}}),
        "hbm": {"bandwidth_bytes_per_s": rates.hbm_bytes_per_s, "capacity_bytes": 10**13},
        "d2d": {"bandwidth_bytes_per_s": 1e12},
        "compute": {
            "peak_flop_per_s": rates.peak_flop_per_s, "dtype": dtype, "calibration": named, "library": library,
        },
    }  # fmt: skip
    of_model = {"hidden": sizes.hidden, "expert_ffn": sizes.ffn, "top_k": sizes.top_k}
    assumed = {"gemm": "grouped", "activations": "replicated", "decision_cost": "free", "tables": "unbounded"}
    return steps_ns(machine, of_model, "ep", tokens, **assumed | changed)


# ---- power
# Power that the energy coefficients give for a whole GPU, beside what it draws at steady work.

POWER_COLUMNS = [
    "work",
    "dtype",
    "m",
    "tflop_per_s",
    "hbm_tbytes_per_s",
    "measured_w",
    "computed_w",
    "low_w",
    "high_w",
    "error",
    "clock_mhz",
]
# Of one die, in mm2; NVIDIA's white papers on Hopper (H100, 2022), whose die the H200, H800 and H20 have, and Ampere
DIE_MM2 = {"h100": GH100_MM2, "h200": GH100_MM2, "h800": GH100_MM2, "h20": GH100_MM2, "a100": 826.0}
# What a GPU may draw, as these were measured; their highest clock is BOOST times CLOCK_MHZ, that of the coefficients
LIMIT_W = {"h100": 700.0, "h200": 700.0}
US_PER_S, TERA = 1e6, 1e12


def power_cases(gpu: str, measurements: reading.Measurements) -> pd.DataFrame:
    """One row for each work of the table ``power``, medians over runs; columns COLUMNS, ``error`` of the computed
    power. No rows without measurements, or for a GPU whose die area is not in DIE_MM2.
    """
    rows = measurements.table(schema.POWER.kind, gpu)
    rows = rows[rows["power_w"].notna()]
    if gpu not in DIE_MM2 or not len(rows):
        return pd.DataFrame(columns=POWER_COLUMNS)
    of = rows.groupby(["work", "dtype", "m"], sort=False)[["flop", "hbm_bytes", "latency_us_median", "power_w"]]
    found = of.median().reset_index()
    seconds = found["latency_us_median"] / US_PER_S
    found["tflop_per_s"] = found["flop"] / seconds / TERA
    found["hbm_tbytes_per_s"] = found["hbm_bytes"] / seconds / TERA
    found["measured_w"] = found["power_w"]
    for name, bound in (("computed_w", "value"), ("low_w", "low"), ("high_w", "high")):
        estimates = EnergyEstimates().at(bound)
        powers = [
            gpu_power_w(
                row.hbm_tbytes_per_s * TERA, row.tflop_per_s * TERA, WEIGHT_BYTES[row.dtype], DIE_MM2[gpu], estimates,
                row.m, LIMIT_W.get(gpu, np.inf), BOOST,
            )
            for row in found.itertuples()
        ]  # fmt: skip
        found[name] = [power_w for power_w, _ in powers]
        if bound == "value":
            found["clock_mhz"] = [clock * CLOCK_MHZ for _, clock in powers]
    found["error"] = found["computed_w"] / found["measured_w"] - 1
    return found[POWER_COLUMNS]


def gpu_power_w(
    hbm_bytes_per_s: float,
    flop_per_s: float,
    dtype_bytes: float,
    die_mm2: float,
    estimates: EnergyEstimates,
    rows: int = TILE_ROWS,
    limit_w: float = np.inf,
    boost: float = 1.0,
) -> tuple[float, float]:
    """Power of one chip at steady work, W, and its clock over that at which the energy of a FLOP was measured.

    What it reads from HBM passes its cache once. ``rows``: of the products, multiplied in whole tiles. The clock is
    ``boost``, or the one with which the chip draws ``limit_w``: V ~ f, so that a FLOP takes f².
    """
    padded = flop_per_s * (ceil(rows / TILE_ROWS) * TILE_ROWS / rows - 1)
    second = Activity(1.0, hbm_bytes_per_s, 0.0, 2 * hbm_bytes_per_s, flop_per_s, 0.0, 1.0, padded)
    joule = run_energy(second, dtype_bytes=dtype_bytes, die_mm2=die_mm2, dies=1, decision_w=0.0, estimates=estimates)
    others = sum(each for block, each in joule.items() if block != "compute")
    clock = min(boost, sqrt(max(limit_w - others, 0.0) / joule["compute"])) if joule["compute"] else boost
    return others + joule["compute"] * clock**2, clock


def power_table(cases: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    names = ["work", "dtype", "m", "TFLOP/s", "HBM TB/s", "measured W", "computed W", "range W", "error %", "clock MHz"]
    rows = [
        [
            row.work.replace("_", " "),
            row.dtype,
            str(row.m),
            f"{row.tflop_per_s:.1f}",
            f"{row.hbm_tbytes_per_s:.2f}",
            f"{row.measured_w:.0f}",
            f"{row.computed_w:.0f}",
            f"{row.low_w:.0f} to {row.high_w:.0f}",
            f"{100 * row.error:+.0f}",
            f"{row.clock_mhz:,.0f}",
        ]
        for row in cases.itertuples()
    ]
    return names, rows
