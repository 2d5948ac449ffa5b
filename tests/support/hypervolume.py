"""The volume that a front dominates, by which searches are compared."""

import numpy as np

from archsim.questions.exploration.pareto import pareto


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
