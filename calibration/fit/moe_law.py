"""Fits the law of fused MoE layers (``MoeLaw``), and infers how their tokens were routed."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from archsim.base.units import NS_PER_S
from archsim.laws import moe, rank_load, scaling, tables
from calibration.fit import gemm, robust

NAMES = (
    "launch_ns",
    "ns_per_token",
    "ns_per_pair",
    "ns_per_expert",
    "flop_per_s",
    "bytes_per_s",
    "order",
    "spread",
    "floor_ns",
)
# Logs of typical values, and the width of their bounds; for the order, the log of order - 1.
START = np.log([3e4, 10.0, 0.1, 10.0, 5e14, 2.5e12, 1.5, 0.9])
STEPS_TO_COMPARE, MOST_STEPS = 10, 100
FAMILIAR = 0.85  # of the peak, which large products reach (docs/calibration.md)
INSIDE = 1e-3  # of the bounds, in logs, where a search starts
FLOOR_AT, FLOOR_WITHIN = (
    0.05,
    np.log(2.0),
)  # the floor starts at this quantile of the times, and stays within a factor of two
LOOSENESS = np.log([1e3, 1e4, 1e4, 1e4, 30, 30, 10, 3])


def axes(logs: pd.Series) -> tuple[np.ndarray, ...]:
    """ep, tp and tokens of the points, float64[point] each."""
    return tuple(logs.index.get_level_values(name).to_numpy(float) for name in moe.POINT)


class Ceiling(NamedTuple):
    """What no law exceeds: the peak of a GPU in the table's dtype (None: not known), and its HBM bandwidth."""

    peak_flop_per_s: float | None
    hbm_bytes_per_s: float


NO_CEILING = Ceiling(None, np.inf)


class Set(NamedTuple):
    """ln ns of layers on one GPU (index ep, tp, tokens_total), and the bandwidth of its HBM."""

    logs: pd.Series
    hbm_bytes_per_s: float = np.inf


def fit_law(sets: Sequence[Set], named: dict, ceiling: Ceiling = NO_CEILING) -> tuple[tables.MoeLaw, str]:
    """The law, on the first GPU, and the routing that fit the layers of all sets best, with a robust loss.

    The law is fitted on the GPU with the slowest HBM, and scaled to the others; they differ in nothing else. Its FLOP
    rate is at most FAMILIAR of the peak, or the highest measured one: what is faster in a fit is compute that hides in
    the costs of pairs and tokens. Routings are compared after a few iterations; only the best is fitted to convergence.
    The law has a floor if the host launched the kernels one by one.
    """
    routings = rank_load.candidates(named["model"], named["distribution"], named["kernel"], named["eplb_slots"])
    start, routing = START, routings[0]
    if len(routings) > 1:
        tried = {name: _search(sets, named, name, START, STEPS_TO_COMPARE, ceiling) for name in routings}
        routing = min(routings, key=lambda name: tried[name].cost)
        start = tried[routing].x
    found = _search(sets, named, routing, start, MOST_STEPS, ceiling)
    if named["kernel"] in rank_load.LAUNCHED_ONE_BY_ONE:
        floor = sets[0].logs.quantile(FLOOR_AT)
        found = _search(sets, named, routing, np.append(found.x, floor), MOST_STEPS, ceiling)
    law = _on(_law(found.x, routing), named, _slowest(sets), sets[0].hbm_bytes_per_s)
    fitted = dict(law)
    return tables.MoeLaw(**{key: robust.significant(value) for key, value in fitted.items()}), routing


def _search(sets: Sequence[Set], named: dict, routing: str, start: np.ndarray, steps: int, ceiling: Ceiling):
    """scipy's result: ``x``: logs as in START (and of the floor), ``cost``: the remaining loss."""
    points = [axes(each.logs) for each in sets]
    weight = gemm.PRIOR * np.sqrt(sum(len(each.logs) for each in sets))
    floor = start[len(START) :]
    typical = np.concatenate([START, floor])
    drawn = [
        None
        if routing == rank_load.BY_CHANCE
        else rank_load.rank_loads(named, routing, _law(START, routing), ep, tokens)
        for ep, _, tokens in points
    ]
    slowest = _slowest(sets)

    def residuals(values: np.ndarray) -> np.ndarray:
        law, found = _law(values, routing), []
        for each, (ep, tp, tokens), load in zip(sets, points, drawn, strict=True):
            pairs, active = load or rank_load.rank_loads(named, routing, law, ep, tokens)
            there = _on(law, named, slowest, each.hbm_bytes_per_s)
            seen = moe.seen_tokens(named, pairs, tokens)
            found.append(np.log(moe.time_of_load(there, named, pairs, active, ep, tp, seen)) - each.logs.to_numpy())
        return np.concatenate([*found, weight * (values - typical)])

    loose = np.concatenate([LOOSENESS, np.full(len(floor), FLOOR_WITHIN)])
    high = typical + loose
    high[NAMES.index("spread")] = 0.0
    high[NAMES.index("flop_per_s")] = min(high[NAMES.index("flop_per_s")], np.log(_most_flop(sets, named, ceiling)))
    high[NAMES.index("bytes_per_s")] = min(high[NAMES.index("bytes_per_s")], np.log(slowest))
    bounds = (typical - loose, high)
    return robust.least_squares(residuals, np.minimum(start, high - INSIDE), bounds, gemm.ROBUST, steps)


def _slowest(sets: Sequence[Set]) -> float:
    return min(each.hbm_bytes_per_s for each in sets)


def _on(law: tables.MoeLaw, named: dict, measured: float, wanted: float) -> tables.MoeLaw:
    """A law of a GPU whose HBM has the bandwidth ``measured``, on one with ``wanted``."""
    if wanted == measured:
        return law
    layer = scaling.MeasuredLayer(named["hidden"], named["ffn"], named["dtype"], measured)
    return scaling.scaled_law(law, layer, scaling.Scale(1.0, wanted / measured))


def _most_flop(sets: Sequence[Set], named: dict, ceiling: Ceiling) -> float:
    """The highest rate that a law may have."""
    if ceiling.peak_flop_per_s is None:
        return np.inf
    flop = 2 * moe.SLICES * named["hidden"] * named["ffn"] * named["top_k"]
    rates = [
        flop * tokens / ep / tp / np.exp(each.logs.to_numpy()) * NS_PER_S
        for each in sets
        for ep, tp, tokens in [axes(each.logs)]
    ]
    highest = max(float(each.max()) for each in rates)
    return min(max(highest, FAMILIAR * ceiling.peak_flop_per_s), ceiling.peak_flop_per_s)


def _law(values: np.ndarray, routing: str) -> tables.MoeLaw:
    fields = {"floor_ns": 0.0} | dict(zip(NAMES, np.exp(values), strict=False))
    spread = fields["spread"] if routing == rank_load.BY_CHANCE else 1.0
    return tables.MoeLaw.model_construct(**fields | {"order": 1 + fields["order"], "spread": spread})
