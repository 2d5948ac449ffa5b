"""Samples of a fast engine, corrected by a few of another."""

from __future__ import annotations

import numpy as np


def correct(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Samples of the better engine, float64[sample], of which the first are known: ``high``, float64[few]; ``low``: of
    the fast engine, all. Others are the control variate's line with residuals in turn (multifidelity estimator:
    Peherstorfer, Willcox and Gunzburger, 2016), so that nothing of the spread is lost.
    """
    few = len(high)
    if not few:
        return low
    slope = _slope(low[:few], high)
    line = high.mean() + slope * (low - low[:few].mean())
    residual = high - line[:few]
    found: np.ndarray = line + residual[_shuffle(len(low), few)]
    found[:few] = high
    return found


def _slope(low: np.ndarray, high: np.ndarray) -> float:
    spread = low - low.mean()
    variance = float(spread @ spread)
    return float(spread @ (high - high.mean())) / variance if variance > 0 else 0.0


def _shuffle(count: int, few: int) -> np.ndarray:
    """Which of the few residuals each world has, int64[count]; each is used equally often, as far as it goes."""
    rng = np.random.default_rng(few)
    rounds = [rng.permutation(few) for _ in range(-(-count // few))]
    return np.concatenate([np.arange(few), *rounds])[:count]


def agreement(low: np.ndarray, high: np.ndarray) -> float:
    """Share of the variance of the better engine that the fast one tells, in the worlds of both; 1 without spread."""
    spread = high - high.mean()
    if not float(spread @ spread) > 0 or len(high) < 3:
        return 1.0
    left = spread - _slope(low[: len(high)], high) * (low[: len(high)] - low[: len(high)].mean())
    return max(0.0, 1.0 - float(left @ left) / float(spread @ spread))
