"""How sure the rate of a real system is.

Measured times over simulated ones have a log-normal distribution in each cell of engine, GPU and dtype
(``residuals`` of configs/serving/hosts.yaml, by constants of other folds). A system that takes f times as long at all
it does serves at rate r as the simulated one does at rate f r, with all times multiplied by f: its highest rate within
limits L is R(L / f) / f, where R is read off the simulated times on the grid. TTFT has a factor of its own, by which
its limit is divided. Factors are drawn: a share 1/n of the variance of a cell of n groups is common to all sizes of the
cell, the rest is drawn for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, sqrt
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from archsim.iteration.constants import ANY, residual_of
from archsim.serving.answers.configuration import Configuration
from archsim.serving.answers.highest_rate import Curve, limits_of
from archsim.serving.answers.question import SearchedServing
from archsim.serving.answers.race import Tried

DRAWS = 2000
QUANTILE = 1.2816  # standard deviations within which 80 % of a normal distribution lie
# Of pools, no cell has residuals: medians of absolute errors of docs/accuracy.csv (disaggregated all) over 0.6745.
POOL_SPREAD = MappingProxyType({"tpot": 0.080 / 0.6745, "ttft": 0.323 / 0.6745})


class Factors(NamedTuple):
    """Measured times over simulated ones, of (TTFT, TPOT)."""

    mean: tuple[float, float]  # of logarithms
    spread: tuple[float, float]  # standard deviation of logarithms
    groups: int  # of measurements; 0: none of its cell, whose error is common to all sizes


def factors_of(kind: SearchedServing, choice: Configuration) -> Factors:
    """The factors of its cell, or those of pools if it has none."""
    dtypes = kind.serving.precision
    found = residual_of(kind.engine, kind.serving.model, kind.offer.gpu, dtypes.experts, dtypes.products)
    if choice.prefill or found is None:
        return Factors((0.0, 0.0), (POOL_SPREAD["ttft"], POOL_SPREAD["tpot"]), 0)
    ranges = (found.ttft, found.tpot)
    mean = [(log(low) + log(high)) / 2 for low, high in ranges]
    spread = [log(high / low) / 2 / QUANTILE for low, high in ranges]
    return Factors((mean[0], mean[1]), (spread[0], spread[1]), 0 if found.gpu == ANY else found.groups)


def drawn_rates(
    kinds: Sequence[SearchedServing], finalists: Sequence[Tried], curves: Sequence[Curve], seed: int = 0
) -> np.ndarray:
    """float64[finalist, draw]: the highest rate of each, see the module."""
    draw = np.random.default_rng(seed)
    common: dict[tuple, np.ndarray] = {}
    rates = np.empty((len(finalists), DRAWS))
    for at, (tried, curve) in enumerate(zip(finalists, curves, strict=True)):
        kind = kinds[tried.kind]
        found = factors_of(kind, tried.choice)
        key = kind.engine, kind.offer.gpu, kind.precision, bool(tried.choice.prefill)
        if key not in common:
            common[key] = draw.standard_normal((2, DRAWS))
        shared = 1 / max(found.groups, 1)
        own = draw.standard_normal((2, DRAWS))
        z = sqrt(shared) * common[key] + sqrt(1 - shared) * own
        ttft, tpot = (np.exp(found.mean[i] + found.spread[i] * z[i]) for i in (0, 1))
        limits = limits_of(kind.serving)
        for n in range(DRAWS):
            rates[at, n] = curve.highest_slower(limits, ttft[n], tpot[n])
    return rates
