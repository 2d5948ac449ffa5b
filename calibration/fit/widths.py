"""Widths of intervals that hold their share of residuals: common to tables, and each table's own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from archsim.base.uncertain import KNOTS, Quantiles
from calibration.fit.residuals import TableResiduals

DRAWS = 401  # quantiles of either level with which both are put together
STEPS = 30  # of the search for the width of the second level
LESS, CLOSE = (1.0, 0.75, 0.5, 0.3, 0.15), 0.1  # of the common share, until the interquartile range is no wider than so
BARE = 0.05  # of the width: with less at a quantile, the second level has none left there


def levels_of(tables: list[TableResiduals]) -> tuple[np.ndarray, np.ndarray]:
    """(common, shape): factors at the quantiles `KNOTS` of both levels; see the module."""
    points, weights = pool_residuals(tables)
    wanted = _quantiles(points, weights)
    medians = np.array([np.median(each.of) for each in tables])
    spread = _spread(points, weights)
    among = _spread(medians, np.ones(len(medians))) if len(medians) > 1 else 0.0
    share = float(np.clip(among / spread if spread else 0.0, 0.1, 0.95))
    found = [_levels(wanted, share * less) for less in LESS]
    common, own, _ = min(found, key=lambda each: max(each.wider, CLOSE))  # the first that is close
    return common, own


class _Levels(NamedTuple):
    """As of `levels_of`; ``wider``: than the interquartile range are both together, as a share of it."""

    common: np.ndarray
    own: np.ndarray
    wider: float


def _levels(wanted: np.ndarray, share: float) -> _Levels:
    """Levels that together have the quantiles ``wanted``, as logarithms; ``share``: of the spread that is common."""
    centre = len(KNOTS) // 2
    away = wanted - wanted[centre]
    shift, common, own = wanted[centre], share * away, np.sqrt(1 - share**2) * away
    for _ in range(STEPS):
        both = _together(common + shift, own)
        with np.errstate(divide="ignore", invalid="ignore"):
            longer = np.nan_to_num(away / (both - both[centre]), nan=1.0, posinf=1.0, neginf=1.0)
        own = own * np.clip(longer, 0.5, 2.0) ** 0.7
        own = np.where(np.abs(own) > np.abs(away), away, own)
        # Where the shape has no width left, tails of it alone widen the middle: the table gives way, too.
        bare = (longer < 1) & (np.abs(own) < BARE * np.abs(away))
        common = common * np.where(bare, np.clip(longer, 0.5, 1.0) ** 0.3, 1.0)
        own, common = (_ascending(each, centre) for each in (own, common))
        shift += wanted[centre] - both[centre]
    both, middle = _together(common + shift, own), slice(centre - 1, centre + 2)
    wider = float(np.ptp(both[middle])) / max(float(np.ptp(wanted[middle])), 1e-12) - 1
    return _Levels(np.exp(common + shift), np.exp(own), wider)


def _ascending(level: np.ndarray, centre: int) -> np.ndarray:
    """A level whose quantiles fall nowhere, away from its centre."""
    level[centre:] = np.maximum.accumulate(level[centre:])
    level[: centre + 1] = -np.maximum.accumulate(-level[centre::-1])[::-1]
    return level


def pool_residuals(tables: list[TableResiduals]) -> tuple[np.ndarray, np.ndarray]:
    """(residuals of all tables, weights by which tables count equally)."""
    return (
        np.concatenate([each.of for each in tables]),
        np.concatenate([np.full(len(each.of), 1 / len(each.of)) for each in tables]),
    )


def _quantiles(points: np.ndarray, weights: np.ndarray, at: tuple[float, ...] = KNOTS) -> np.ndarray:
    order = np.argsort(points, kind="stable")
    below = np.cumsum(weights[order]) - weights[order] / 2
    return np.interp(np.array(at) * weights.sum(), below, points[order])


def _spread(points: np.ndarray, weights: np.ndarray) -> float:
    """Half the range of the central two thirds: of a normal variable, its standard deviation."""
    low, high = _quantiles(points, weights, (1 / 6, 5 / 6))
    return float(high - low) / 2


def _together(common: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Quantiles `KNOTS` of the sum of two levels, given as logarithms at them."""
    shares = (np.arange(DRAWS) + 0.5) / DRAWS
    one, other = (Quantiles.of(np.exp(each)).at(shares) for each in (common, own))
    every = np.log(one)[:, None] + np.log(other)[None]
    return np.quantile(every, KNOTS)


def bounds(common: np.ndarray, own: np.ndarray, level: float) -> tuple[float, float]:
    """The central interval of both levels together, as ln(measured / predicted)."""
    shares = (np.arange(DRAWS) + 0.5) / DRAWS
    one, other = (Quantiles.of(each).at(shares) for each in (common, own))
    low, high = np.quantile(np.log(one)[:, None] + np.log(other)[None], ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)
