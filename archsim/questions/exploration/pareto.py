"""Pareto fronts. All objectives are minimised; see :func:`as_costs`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any

import numpy as np

from archsim.base import sums

LARGEST_BLOCK = 128  # points compared with all others at once, to bound memory
PIVOTS = 32  # of many points: good ones that are held against all others first


def as_costs(values: np.ndarray, senses: Sequence[str]) -> np.ndarray:
    """float64[point, objective] with objectives to maximise negated; NaN becomes infinite: never on a front."""
    sign = np.array([1.0 if sense == "min" else -1.0 for sense in senses])
    costs = np.asarray(values, np.float64) * sign
    return np.where(np.isnan(costs), np.inf, costs)


def pareto(costs: np.ndarray) -> np.ndarray:
    """bool[point]: whether a point is Pareto-optimal; of equal points, all or none are.

    ``costs: float64[point, objective]``. A point with an infinite cost is never on the front. Takes n log n for up to
    three objectives that differ (Kung, Luccio, Preparata: On Finding the Maxima of a Set of Vectors, JACM 22(4), 1975).
    """
    front = np.zeros(len(costs), bool)
    finite = np.flatnonzero(every_is_finite(costs))
    if not len(finite):
        return front
    own = costs.T[:, finite]
    order = np.lexsort(own[::-1])  # only earlier points can dominate a point
    ranked = own[:, order]
    ranked = ranked[[(each != each[0]).any() for each in ranked]]  # a cost that is equal for all tells none apart
    fresh = np.ones(len(order), bool)
    fresh[1:] = _any(each[1:] != each[:-1] for each in ranked)
    front[finite[order]] = _front_of(ranked[:, fresh])[np.cumsum(fresh) - 1]
    return front


def every_is_finite(costs: np.ndarray) -> np.ndarray:
    """bool[point]: whether all costs of a point are finite. ``costs: float64[point, objective]``."""
    return ~_any(~np.isfinite(each) for each in costs.T)


def _any(conditions: Iterable[np.ndarray]) -> Any:
    """bool[point]: whether any condition holds; numpy takes several times as long along a short axis."""
    return reduce(or_, conditions, False)


def _front_of(costs: np.ndarray) -> np.ndarray:
    """bool[point]: `pareto` of different points, sorted by costs. ``costs: float64[objective, point]``."""
    objectives, count = costs.shape
    if objectives < 2:
        return np.arange(count) == 0
    front = _sure(costs)
    if objectives == 2 or front.all():
        return front
    left = np.arange(count)
    if count > LARGEST_BLOCK:
        rank = sums.sum(np.argsort(np.argsort(own)) for own in costs)
        for pivot in np.argpartition(rank, PIVOTS)[:PIVOTS]:
            left = left[_any(own[left] < own[pivot] for own in costs) | (left == pivot)]
    front[left[_recursive(costs[:, left])]] = True
    return front


def _sure(costs: np.ndarray) -> np.ndarray:
    """bool[point]: whether a cost but the first is below that of all earlier points, which nothing then beats."""
    sure = np.ones(costs.shape[1], bool)
    sure[1:] = _any(own[1:] < np.minimum.accumulate(own)[:-1] for own in costs[1:])
    return sure


def _recursive(costs: np.ndarray) -> np.ndarray:
    """Indices of the front: that of the first half, and of what it leaves of the second half."""
    count = costs.shape[1]
    if count <= LARGEST_BLOCK:
        beaten = np.tri(count, k=-1, dtype=bool)  # by earlier points, if the other costs are not higher
        for own in costs[1:]:
            beaten &= own <= own[:, None]
        return np.flatnonzero(~beaten.any(axis=1))
    half = count // 2
    first = _recursive(costs[:, :half])
    rest = half + np.flatnonzero(~_is_covered(costs[:, half:], costs[:, first]))
    return np.concatenate([first, rest[_recursive(costs[:, rest])]])


def _is_covered(costs: np.ndarray, by: np.ndarray) -> np.ndarray:
    """bool[point]: whether any of ``by``, which all precede these points in their order, is nowhere worse."""
    if len(costs) == 3:
        order = np.argsort(by[1], kind="stable")
        least = np.concatenate([[np.inf], np.minimum.accumulate(by[2, order])])
        return least[np.searchsorted(by[1, order], costs[1], side="right")] <= costs[2]
    count, others = costs.shape[1], by.shape[1]
    found = np.zeros(count, bool)
    for begin in range(0, others, LARGEST_BLOCK):
        left = np.flatnonzero(~found)
        theirs = by[1:, begin : begin + LARGEST_BLOCK]
        for at in range(0, len(left), LARGEST_BLOCK):
            own = left[at : at + LARGEST_BLOCK]
            beaten = np.ones((len(own), theirs.shape[1]), bool)
            for mine, other in zip(costs[1:, own], theirs, strict=True):
                beaten &= other <= mine[:, None]
            found[own] = beaten.any(axis=1)
    return found


def fronts(costs: np.ndarray, groups: Sequence[str]) -> np.ndarray:
    """bool[point]: whether a point is Pareto-optimal among those of its group, such as its model."""
    front, own = np.zeros(len(costs), bool), np.array(groups)
    for group in dict.fromkeys(groups):
        members = np.flatnonzero(own == group)
        front[members] = pareto(costs[members])
    return front
