"""Fits the law of fused MoE layers (``MoeLaw``), and infers how their tokens were routed."""

from __future__ import annotations

import numpy as np
import pandas as pd

from calibration.fit.gemm import PRIOR, ROBUST
from calibration.fit.robust import least_squares, significant
from calibration.laws.fused_moe import POINT, time_of_load
from calibration.laws.rank_load import BY_CHANCE, LAUNCHED_ONE_BY_ONE, candidates, rank_loads
from calibration.laws.tables import MoeLaw

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
FLOOR_AT, FLOOR_WITHIN = (
    0.05,
    np.log(2.0),
)  # the floor starts at this quantile of the times, and stays within a factor of two
LOOSENESS = np.log([1e3, 1e4, 1e4, 1e4, 30, 30, 10, 3])


def axes(logs: pd.Series) -> tuple[np.ndarray, ...]:
    """ep, tp and tokens of the points, float64[point] each."""
    return tuple(logs.index.get_level_values(name).to_numpy(float) for name in POINT)


def fit_law(logs: pd.Series, named: dict) -> tuple[MoeLaw, str]:
    """The law and the routing that fit ln ns of the layers (index ep, tp, tokens_total) best, with a robust loss.

    Routings are compared after a few iterations; only the best is fitted to convergence. The law has a floor if the
    host launched the kernels one by one.
    """
    routings = candidates(named["model"], named["distribution"], named["kernel"], named["eplb_slots"])
    start, routing = START, routings[0]
    if len(routings) > 1:
        tried = {name: _search(logs, named, name, START, STEPS_TO_COMPARE) for name in routings}
        routing = min(routings, key=lambda name: tried[name].cost)
        start = tried[routing].x
    found = _search(logs, named, routing, start, MOST_STEPS)
    if named["kernel"] in LAUNCHED_ONE_BY_ONE:
        found = _search(logs, named, routing, np.append(found.x, logs.quantile(FLOOR_AT)), MOST_STEPS)
    fitted = dict(_law(found.x, routing))
    return MoeLaw(**{key: significant(value) for key, value in fitted.items()}), routing


def _search(logs: pd.Series, named: dict, routing: str, start: np.ndarray, steps: int):
    """scipy's result: ``x`` are logs as in START (and of the floor, if ``start`` has one), ``cost``
    is the remaining loss.
    """
    ep, tp, tokens = axes(logs)
    wanted, weight = logs.to_numpy(), PRIOR * np.sqrt(len(logs))
    floor = start[len(START) :]
    typical = np.concatenate([START, floor])
    loads = None if routing == BY_CHANCE else rank_loads(named, routing, _law(START, routing), ep, tokens)

    def residuals(values: np.ndarray) -> np.ndarray:
        law = _law(values, routing)
        pairs, active = loads or rank_loads(named, routing, law, ep, tokens)
        fit = np.log(time_of_load(law, named, pairs, active, ep, tp, tokens)) - wanted
        return np.concatenate([fit, weight * (values - typical)])

    loose = np.concatenate([LOOSENESS, np.full(len(floor), FLOOR_WITHIN)])
    high = typical + loose
    high[NAMES.index("spread")] = 0.0
    bounds = (typical - loose, high)
    return least_squares(residuals, start, bounds, ROBUST, steps)


def _law(values: np.ndarray, routing: str) -> MoeLaw:
    fields = {"floor_ns": 0.0} | dict(zip(NAMES, np.exp(values), strict=False))
    spread = fields["spread"] if routing == BY_CHANCE else 1.0
    return MoeLaw.model_construct(**fields | {"order": 1 + fields["order"], "spread": spread})
