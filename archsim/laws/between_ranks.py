"""Corrections of fused MoE layers at EP and TP sizes that were not measured, interpolated from those that were.

Kriging over log2 ep, log2 tp and log2 tokens, with an exponential covariance (kernels are chosen by size, so
corrections are rough) and an unknown mean. At some sizes libraries choose other kernels, which are not representative
of their neighbours: an EP size that is far from its prediction by the others may lose weight.
"""

import numpy as np

from archsim.laws.tables import Kriging

LEAST_RANKS_TO_LEAVE_OUT = 3
ROUNDS = 2  # of reweighting outliers


def carried(kriging: Kriging | None, points: tuple, corrections: np.ndarray, wanted: tuple) -> np.ndarray:
    """Corrections at wanted points, float64[point]; points and wanted: ep, tp, tokens, float64[point] each."""
    if kriging is None:
        return np.zeros(len(wanted[0]))
    known = _scaled(kriging, points)
    covariance = _covariance(known, known)
    noise = _noise(kriging, covariance, corrections, list(ranks_of(points).values()))
    weights = np.linalg.solve(covariance + np.diag(noise), corrections)
    return _covariance(_scaled(kriging, wanted), known) @ weights


def off_the_others(
    kriging: Kriging | None, points: tuple, corrections: np.ndarray
) -> dict[tuple[float, float], np.ndarray]:
    """(ep, tp) → measured corrections minus those interpolated from all other (ep, tp), float64[point]."""
    ranks = ranks_of(points)
    if kriging is None:
        return {rank: corrections[mine] for rank, mine in ranks.items()}
    known = _scaled(kriging, points)
    covariance = _covariance(known, known)
    masks = list(ranks.values())
    noise = _noise(kriging, covariance, corrections, masks)
    return dict(zip(ranks, _without_each(covariance, noise, corrections, masks), strict=True))


def ranks_of(points: tuple) -> dict[tuple[float, float], np.ndarray]:
    """(ep, tp) → mask of its points, sorted."""
    ep, tp, _ = points
    return {(e, t): (ep == e) & (tp == t) for e, t in sorted(set(zip(ep, tp, strict=True)))}


def _noise(kriging: Kriging, covariance: np.ndarray, corrections: np.ndarray, masks: list[np.ndarray]) -> np.ndarray:
    """float64[point]: relative variances; larger for outliers, proportional to the square of their deviation."""
    noise = np.full(len(corrections), kriging.noise)
    if kriging.outlier is not None and len(masks) >= LEAST_RANKS_TO_LEAVE_OUT:
        for _ in range(ROUNDS):
            off = np.zeros(len(corrections))
            for mine, distance in zip(masks, _without_each(covariance, noise, corrections, masks), strict=True):
                off[mine] = distance
            noise = kriging.noise * (1 + (off / kriging.outlier) ** 2)
    return noise


def _without_each(covariance, noise, corrections, masks) -> list[np.ndarray]:
    """Deviation of each group of points from its prediction by the others, in closed form (Dubrule, 1983)."""
    inverse = np.linalg.inv(covariance + np.diag(noise))
    weights = inverse @ corrections
    return [np.linalg.solve(inverse[np.ix_(mine, mine)], weights[mine]) for mine in masks]


def _scaled(kriging: Kriging, points: tuple) -> np.ndarray:
    return np.log2(np.stack(points, axis=1)) / np.array(kriging.reach)


def _covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Exponential in the distance, plus one for an unknown mean of the same variance."""
    return np.exp(-np.sqrt(((a[:, None] - b[None]) ** 2).sum(axis=2))) + 1.0
