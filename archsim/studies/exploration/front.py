"""Pareto fronts and the volume that they dominate. All objectives are minimised; see :func:`as_costs`."""

from collections.abc import Sequence

import numpy as np

LARGEST_BLOCK = 512  # points compared with all others at once, to bound memory


def as_costs(values: np.ndarray, senses: Sequence[str]) -> np.ndarray:
    """``values: float64[point, objective]`` with objectives to maximise negated.

    NaN becomes infinite: never on a front.
    """
    sign = np.array([1.0 if sense == "min" else -1.0 for sense in senses])
    costs = np.asarray(values, np.float64) * sign
    return np.where(np.isnan(costs), np.inf, costs)


def pareto(costs: np.ndarray) -> np.ndarray:
    """bool[point]: whether a point is Pareto-optimal; of equal points, all or none are.

    ``costs: float64[point, objective]``. A point with an infinite cost is never on the front.
    """
    candidates = np.flatnonzero(np.isfinite(costs).all(axis=1))
    candidates = candidates[np.lexsort(costs[candidates].T[::-1])]  # only earlier points can dominate a point
    kept = np.zeros((0, costs.shape[1]))
    front = np.zeros(len(costs), bool)
    for first in range(0, len(candidates), LARGEST_BLOCK):
        block = candidates[first : first + LARGEST_BLOCK]
        block = block[~_dominated(costs[block], kept)]
        block = block[~_dominated(costs[block], costs[block])]
        front[block] = True
        kept = np.concatenate([kept, costs[block]])
    return front


def fronts(costs: np.ndarray, groups: Sequence[str]) -> np.ndarray:
    """bool[point]: whether a point is Pareto-optimal among those of its group, such as its model."""
    front, own = np.zeros(len(costs), bool), np.array(groups)
    for group in dict.fromkeys(groups):
        members = np.flatnonzero(own == group)
        front[members] = pareto(costs[members])
    return front


def _dominated(costs: np.ndarray, by: np.ndarray) -> np.ndarray:
    """bool[point]: whether any of ``by`` is nowhere worse and somewhere better."""
    no_worse = (by[None, :, :] <= costs[:, None, :]).all(axis=2)
    better = (by[None, :, :] < costs[:, None, :]).any(axis=2)
    return (no_worse & better).any(axis=1)


def hypervolume(costs: np.ndarray, reference: np.ndarray) -> float:
    """Volume between a front and ``reference: float64[objective]``, which only counted points dominate.

    Slices along the last objective, recursively: exact, for fronts of up to some hundred points and four objectives.
    While, Hingston, Barone, Huband: A Faster Algorithm for Calculating Hypervolume, IEEE TEVC 10(1), 2006.
    """
    inside = costs[(costs < reference).all(axis=1)]
    return _volume(inside[pareto(inside)], reference) if len(inside) else 0.0


def _volume(costs: np.ndarray, reference: np.ndarray) -> float:
    if costs.shape[1] == 1:
        return float(reference[0] - costs[:, 0].min())
    order = np.argsort(costs[:, -1], kind="stable")
    costs, total = costs[order], 0.0
    ends = np.append(costs[1:, -1], reference[-1])
    for count, depth in enumerate(ends - costs[:, -1], 1):
        if depth > 0:
            slab = costs[:count, :-1]
            total += depth * _volume(slab[pareto(slab)], reference[:-1])
    return total
