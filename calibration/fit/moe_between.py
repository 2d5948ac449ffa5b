"""Chooses how corrections of fused MoE layers are interpolated between EP and TP sizes, for each table.

Correlation lengths, noise and outlier weighting (``archsim.laws.between_ranks``) are chosen among CHOICES by
leaving out each EP size in turn; the law without corrections is one of them.
"""

import numpy as np

from archsim.laws.between_ranks import LEAST_RANKS_TO_LEAVE_OUT, off_the_others, ranks_of
from archsim.laws.tables import Kriging

# Correlation length in octaves of ep and tp, and of tokens; relative noise; outlier threshold.
CHOICES = (
    Kriging(reach=(4, 4, 2), noise=0.02),
    Kriging(reach=(16, 16, 2), noise=0.02),
    Kriging(reach=(4, 4, 2), noise=0.05, outlier=0.1),
    Kriging(reach=(16, 16, 2), noise=0.05, outlier=0.1),
    Kriging(reach=(4, 4, 2), noise=0.5, outlier=0.1),
    Kriging(reach=(16, 16, 2), noise=0.5, outlier=0.1),
    None,
)


def choose(points: tuple, corrections: np.ndarray) -> tuple[Kriging | None, np.ndarray]:
    """(the choice that predicts left-out EP sizes best, its errors there: predicted - measured
    corrections, float64[point of tp = 1]).

    With too few EP sizes to leave any out: the first choice, and no errors.
    """
    if sum(tp == 1 for _, tp in ranks_of(points)) < LEAST_RANKS_TO_LEAVE_OUT:
        return CHOICES[0], np.zeros(0)
    some = _every_second_size(points[2])
    thinned = tuple(axis[some] for axis in points)
    means = [np.abs(np.expm1(_errors(kriging, thinned, corrections[some]))).mean() for kriging in CHOICES]
    kriging = CHOICES[int(np.argmin(means))]
    return kriging, _errors(kriging, points, corrections)


def _every_second_size(tokens: np.ndarray) -> np.ndarray:
    """bool[point]: half of the token counts lead to the same choice in an eighth of the time."""
    return np.isin(tokens, np.unique(tokens)[::2])


def _errors(kriging: Kriging | None, points: tuple, corrections: np.ndarray) -> np.ndarray:
    """Predicted - measured corrections of every EP size (tp = 1), left out in turn."""
    off = off_the_others(kriging, points, corrections)
    return -np.concatenate([distance for (_, tp), distance in off.items() if tp == 1])
