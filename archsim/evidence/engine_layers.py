"""One rank of an expert-parallel group on the event engine, against measured fused MoE layers: a switch joins as many
dies as ranks; the first die's experts get one rank's tokens, all weights are local, nothing travels. Times under
``gemm: grouped`` are compared by library, and with the fastest.
"""

from typing import Any

import numpy as np
import pandas as pd

from archsim.base import config_files, errors, units
from archsim.base.case import Case, frame_of
from archsim.evidence.engine_experts import steps_ns
from archsim.evidence.page import join_frames
from archsim.laws import calibration_files, die, gemm, moe, tables
from archsim.laws.moe import EPLB
from archsim.laws.moe import SIZES as LAYER_SIZES
from archsim.laws.rank_load import BALANCED, TILED, candidates, rank_loads
from calibration.fit.moe import with_defaults
from calibration.measurements import reading

FASTEST = "fastest"  # instead of a library
LIMIT_GROUPS = ("vllm",)  # libraries that route a token to some groups of experts only, where the model says so
CELL = ["model", "dtype", "ep", "pairs", "active"]


def layer_cases(
    calibration: tables.CalibrationSpec, named: str, measurements: reading.Measurements, gpu: str | None = None
) -> pd.DataFrame:
    """A row per cell and library, and per cell and FASTEST. ``named``: the calibration's name or path; ``gpu``: whose
    measurements are taken, by default the calibration's; ``law_error``: of the engine against the fitted curve.
    """
    gpu = gpu or calibration.gpu
    cells = measured_cells(measurements, gpu)
    found = [
        each
        for (model, dtype, library, ep), rows in cells.groupby(["model", "dtype", "library", "ep"], sort=True)
        if (each := _layer_cases(calibration, named, gpu, model, dtype, library, float(ep), rows)) is not None
    ]
    return join_frames(found)


def scaled_cases(calibration: tables.CalibrationSpec, named: str, measurements: reading.Measurements) -> pd.DataFrame:
    """Like `layer_cases`, but for the layers of other GPUs with a shipped calibration, whose rates the die has."""
    others = [gpu for gpu in measurements.gpus() if gpu != calibration.gpu and gpu in calibrations_shipped()]
    found = [layer_cases(calibration, named, measurements, gpu) for gpu in others]
    return join_frames(found)


def calibrations_shipped() -> set[str]:
    return {file.stem for file in (config_files.shipped_configs() / "calibrations").glob("*.yaml")}


def measured_cells(measurements: reading.Measurements, gpu: str) -> pd.DataFrame:
    """Balanced layers of a GPU, TP 1, newest version of each library and kernel: CELL, sizes, library, measured us.
    Rows of FASTEST are the least of a cell; cells of less than a pair are left out.
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
    sizes = moe.MoeSizes(*(int(rows[name].iloc[0]) for name in LAYER_SIZES))
    chosen = None if library == FASTEST else library
    reference = (calibration if gpu == calibration.gpu else calibration_files.load_calibration(gpu)).reference
    if dtype not in reference.peak_flop_per_s:
        return None
    rates = gemm.Rates(reference.peak_flop_per_s[dtype], reference.hbm_bytes_per_s)
    try:
        law = die.GroupedLaw(calibration, sizes, sizes.experts / ep, dtype, rates, chosen)
    except errors.SpecError:
        return None
    tokens = [_tokens(pairs, active, sizes, ep) for pairs, active in rows[["pairs", "active"]].to_numpy(float)]
    engine_us = rank_ns(named, sizes, int(ep), dtype, rates, chosen, np.array(tokens)) / units.NS_PER_US
    pairs = np.array([each.sum() for each in tokens], float)
    active = np.array([(each > 0).sum() for each in tokens], float)
    times = law.times(pairs, active)
    cases = [
        Case(
            "event engine, one rank", f"{gpu}, {library}, {dtype}", f"{model}, EP {ep:g}, {each:g} pairs", "us", us,
            simulated_us, low=simulated_us * (1 - low), high=simulated_us * (1 + high),
        )
        for each, us, simulated_us, low, high in zip(
            pairs, rows["measured_us"].to_numpy(float), engine_us, times.low, times.high, strict=True
        )
    ]  # fmt: skip
    return frame_of(
        cases, tokens_an_expert=pairs / (sizes.experts / ep), law_error=engine_us / (times.ns / units.NS_PER_US) - 1,
        extrapolated=times.extrapolated,
    ).assign(model=model, dtype=dtype, library=library, ep=int(ep), experts_a_rank=sizes.experts / ep)  # fmt: skip


def _tokens(pairs: float, active: float, sizes: moe.MoeSizes, ep: float) -> np.ndarray:
    """Tokens of every expert of the model, int64[expert]: the pairs, shared equally by the first active experts."""
    total, runs = max(round(pairs), 1), max(round(min(active, pairs)), 1)
    tokens = np.zeros(sizes.experts, np.int64)
    tokens[:runs] = total // runs
    tokens[: total % runs] += 1
    return tokens


def rank_ns(
    named: str,
    sizes: moe.MoeSizes,
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
