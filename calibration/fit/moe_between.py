"""Corrections of fused MoE layers at EP and TP sizes that were not measured, carried there from those that were.

Kriging over log2 ep, log2 tp and log2 tokens, with an exponential covariance (kernels are chosen by size, so corrections
are rough) and an unknown mean. Libraries choose other kernels at some sizes, which then say nothing about their neighbours:
a rank that is far from what the other ranks say of it may count less. How far corrections reach, their noise and whether
ranks may lose weight is chosen for each table by leaving out each EP size in turn, among CHOICES; the law alone is one.
"""

from __future__ import annotations

import numpy as np

from archsim.specs.calibration import Kriging

# Octaves of ep and tp that corrections reach, and of tokens; relative noise; what makes an outlier.
CHOICES = (
    Kriging(reach=(4, 4, 2), noise=0.02),
    Kriging(reach=(16, 16, 2), noise=0.02),
    Kriging(reach=(4, 4, 2), noise=0.05, outlier=0.1),
    Kriging(reach=(16, 16, 2), noise=0.05, outlier=0.1),
    Kriging(reach=(4, 4, 2), noise=0.5, outlier=0.1),
    Kriging(reach=(16, 16, 2), noise=0.5, outlier=0.1),
    None,
)
LEAST_RANKS_TO_LEAVE_OUT = 3
ROUNDS = 2  # of weighing ranks by how far they are off


def carried(kriging: Kriging | None, points: tuple, corrections: np.ndarray, wanted: tuple) -> np.ndarray:
    """Corrections at wanted points, float64[point]; points and wanted: ep, tp, tokens, float64[point] each."""
    if kriging is None:
        return np.zeros(len(wanted[0]))
    known = _scaled(kriging, points)
    covariance = _covariance(known, known)
    noise = _noise(kriging, covariance, corrections, list(_ranks(points).values()))
    weights = np.linalg.solve(covariance + np.diag(noise), corrections)
    return _covariance(_scaled(kriging, wanted), known) @ weights


def choose(points: tuple, corrections: np.ndarray) -> tuple[Kriging | None, np.ndarray]:
    """(what tells EP sizes left out best, its corrections - measured ones at them: float64[point of tp = 1]).

    With too few EP sizes to leave any out: the first choice, and no errors.
    """
    ranks = _ranks(points)
    if sum(tp == 1 for _, tp in ranks) < LEAST_RANKS_TO_LEAVE_OUT:
        return CHOICES[0], np.zeros(0)
    some = _every_second_size(points[2])
    thinned = tuple(axis[some] for axis in points)
    means = [np.abs(np.expm1(_errors(kriging, thinned, corrections[some]))).mean() for kriging in CHOICES]
    kriging = CHOICES[int(np.argmin(means))]
    return kriging, _errors(kriging, points, corrections)


def _every_second_size(tokens: np.ndarray) -> np.ndarray:
    """bool[point]: half of the token counts say as well what to choose, in an eighth of the time."""
    return np.isin(tokens, np.unique(tokens)[::2])


def _errors(kriging: Kriging | None, points: tuple, corrections: np.ndarray) -> np.ndarray:
    """Carried - measured corrections of every EP size (tp = 1) that is left out in turn."""
    off = _left_out(kriging, points, corrections, _ranks(points))
    return -np.concatenate([distance for (_, tp), distance in off.items() if tp == 1])


def _left_out(kriging: Kriging | None, points: tuple, corrections: np.ndarray, ranks: dict) -> dict:
    """rank → measured corrections - those carried there from all other ranks."""
    if kriging is None:
        return {rank: corrections[mine] for rank, mine in ranks.items()}
    known = _scaled(kriging, points)
    covariance = _covariance(known, known)
    masks = list(ranks.values())
    noise = _noise(kriging, covariance, corrections, masks)
    return dict(zip(ranks, _without_each(covariance, noise, corrections, masks), strict=True))


def _noise(kriging: Kriging, covariance: np.ndarray, corrections: np.ndarray, masks: list[np.ndarray]) -> np.ndarray:
    """float64[point]: relative variances; of outliers more, in proportion to the square of how far they are off."""
    noise = np.full(len(corrections), kriging.noise)
    if kriging.outlier is not None and len(masks) >= LEAST_RANKS_TO_LEAVE_OUT:
        for _ in range(ROUNDS):
            off = np.zeros(len(corrections))
            for mine, distance in zip(masks, _without_each(covariance, noise, corrections, masks), strict=True):
                off[mine] = distance
            noise = kriging.noise * (1 + (off / kriging.outlier) ** 2)
    return noise


def _without_each(covariance, noise, corrections, masks) -> list[np.ndarray]:
    """Of each group of points: how far it is off what the other points say, in closed form."""
    from scipy.linalg import cho_factor, cho_solve

    factor = cho_factor(covariance + np.diag(noise), check_finite=False)
    inverse = cho_solve(factor, np.eye(len(noise)), check_finite=False)
    weights = inverse @ corrections
    return [np.linalg.solve(inverse[np.ix_(mine, mine)], weights[mine]) for mine in masks]


def _ranks(points: tuple) -> dict[tuple[float, float], np.ndarray]:
    """(ep, tp) → mask of its points, sorted."""
    ep, tp, _ = points
    return {(e, t): (ep == e) & (tp == t) for e, t in sorted(set(zip(ep, tp, strict=True)))}


def _scaled(kriging: Kriging, points: tuple) -> np.ndarray:
    return np.log2(np.stack(points, axis=1)) / np.array(kriging.reach)


def _covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Exponential in the distance, plus one: an unknown mean of the same variance."""
    return np.exp(-np.sqrt(((a[:, None] - b[None]) ** 2).sum(axis=2))) + 1.0
