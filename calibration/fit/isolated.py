"""Points that stand apart from those beside them.

A point is off by its distance from the span of its two neighbours (at an end: of the two next to it), so that a step
between two kernels is none. The spread of a table is the 95 % quantile of how far its points differ from the mean of
their neighbours. A point stands apart that is off by more than APART spreads, and by more than LEAST.
"""

from collections.abc import Sequence

import numpy as np

APART = 3.0  # spreads
LEAST = 0.05  # ln of a ratio of times; two sweeps of a GPU differ by as much
SPREAD = 0.95  # quantile
LEAST_OF_ROW = 3  # points


def spread_of(rows: Sequence[np.ndarray]) -> float:
    """Spread of rows of float64[point] ln(measured / law) of at least LEAST_OF_ROW points each; 0 without."""
    differ = [np.abs(row - sum(_beside(row)) / 2) for row in rows]
    return float(np.quantile(np.concatenate(differ), SPREAD)) if differ else 0.0


def off_span(row: np.ndarray) -> np.ndarray:
    """Distance of every point from the span of its neighbours, float64[point]; 0 within it."""
    before, after = _beside(row)
    low, high = np.minimum(before, after), np.maximum(before, after)
    return np.maximum(row - high, 0.0) + np.minimum(row - low, 0.0)


def apart(row: np.ndarray, spread: float) -> np.ndarray:
    """bool[point]: whether it stands apart."""
    return np.abs(off_span(row)) > max(APART * spread, LEAST)


def _beside(row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([[row[2]], row[:-1]]), np.concatenate([row[1:], [row[-3]]])
