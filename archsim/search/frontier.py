"""Frontiers: the most that a machine serves within a limit of the time per token, and where two cross. A way to use it
(`Curve`) has points by batch, interpolated in logarithms; a frontier is the best of curves, for every sample (axis 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from archsim.uncertainty.estimate import Interval, interval

GRID = 160  # limits at which frontiers are compared
_APART = 1e-9  # relative: batches whose times are the same still differ


class Curve(NamedTuple):
    """One way to use a machine."""

    tpot_ns: np.ndarray  # float64[world, batch]: ns a token, batches in ascending order
    tokens_per_s: np.ndarray  # float64[world, batch]: of all engines
    ttft_ns: np.ndarray  # float64[world, batch]: ns to the first token, without a queue; 0 where prompts do not count

    @property
    def worlds(self) -> int:
        return len(self.tpot_ns)

    def scaled(self, ratio: float) -> Curve:
        """With all times ``ratio`` times as long."""
        return Curve(self.tpot_ns * ratio, self.tokens_per_s / ratio, self.ttft_ns * ratio)

    def at(self, tpot_ns: np.ndarray, ttft_ns: float = np.inf) -> np.ndarray:
        """float64[world, limit]: tokens/s within limits ``tpot_ns: float64[limit]``; 0 where no batch is within."""
        found = np.zeros((self.worlds, len(tpot_ns)))
        for world in range(self.worlds):
            within = np.cumprod(self.ttft_ns[world] <= ttft_ns).astype(bool)  # up to the largest batch that keeps it
            if not within.any():
                continue
            token = np.maximum.accumulate(self.tpot_ns[world][within]) * (1 + _APART * np.arange(within.sum()))
            rate = np.maximum.accumulate(self.tokens_per_s[world][within])
            most = np.exp(np.interp(np.log(tpot_ns), np.log(token), np.log(rate)))
            found[world] = np.where(tpot_ns >= token[0], most, 0.0)
        return found


class Frontier(NamedTuple):
    """The best of some curves."""

    curves: Sequence[Curve]

    def at(self, tpot_ns: np.ndarray, ttft_ns: float = np.inf) -> np.ndarray:
        return np.max([curve.at(tpot_ns, ttft_ns) for curve in self.curves], axis=0)

    def ends(self) -> tuple[float, float]:
        """ns a token of the fastest batch and of the largest one, in the first world."""
        token = np.concatenate([curve.tpot_ns[0] for curve in self.curves])
        return float(token.min()), float(token.max())


def grid_of(frontiers: Sequence[Frontier]) -> np.ndarray:
    """float64[GRID]: limits from where every side serves something to the largest batch of any."""
    ends = [each.ends() for each in frontiers]
    low, high = max(low for low, _ in ends), max(high for _, high in ends)
    return np.geomspace(low, max(high, low * 1.01), GRID)


class Crossing(NamedTuple):
    """Where the order of two sides turns."""

    at: float  # the limit, ns a token, or the value of a key: the median of worlds in which it turns, if in any
    range: Interval  # the same in these worlds
    share: float  # of the worlds in which it turns
    first_below: bool  # whether the first side is ahead below it


def crossing_of(at: np.ndarray, nominal: np.ndarray, worlds: np.ndarray) -> Crossing | None:
    """Where a ratio of two sides last passes 1 over ascending positive ``at: float64[n]``; None if never. ``nominal:
    float64[n]``, ``worlds: float64[sample, n]``.
    """
    found = _turn(at, nominal)
    if found is None:
        return None
    place, first_below = found
    each = [turn[0] for row in worlds if (turn := _turn(at, row)) is not None]
    spread = interval(np.array(each)) if each else Interval(place, place, place)
    return Crossing(spread.p50, spread, len(each) / max(len(worlds), 1), first_below)


def _turn(at: np.ndarray, ratio: np.ndarray) -> tuple[float, bool] | None:
    good = np.isfinite(ratio) & (ratio > 0)
    where, logs = np.log(at[good]), np.log(np.maximum(ratio[good], 1e-300))
    turns = np.flatnonzero(np.sign(logs[:-1]) * np.sign(logs[1:]) < 0)
    if not len(turns):
        return None
    one = int(turns[-1])
    share = logs[one] / (logs[one] - logs[one + 1])
    return float(np.exp(where[one] + share * (where[one + 1] - where[one]))), bool(logs[one] > 0)
