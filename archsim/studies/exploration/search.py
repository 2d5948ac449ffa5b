"""Two fidelities: a cheap estimate of every point, and few dear runs that establish which points no other beats.

1. Points on the front of the estimates are run first, and a few of every *family* (points whose error is alike, as those
   of one policy and model), so that the estimate of each family can be corrected by the median of dear over cheap.
2. Points on the front of what is known and, for the rest, of the corrected estimates, are run, until all on it are known.
3. Points that would be on it if they were better than estimated by what was seen of errors (a quantile) are run,
   those with the largest gain first.

It is *stable* if no such point is left when it ends, else the budget has ended it. Objectives that both fidelities know
exactly (area, price) have no error, and correct themselves by 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from archsim.studies.exploration.front import pareto

SAMPLED = 2  # points of every family that are run to learn its error
BATCH = 8  # runs between two looks at the errors
QUANTILE = 0.9  # of errors that a point's luck is taken to be within
LEAST_ERROR = 0.01  # an engine that has agreed so far may still differ by so much, where it differs at all


@dataclass(frozen=True)
class Found:
    """``known: bool[point]`` that were run; ``values``: float64[point, objective], known or corrected; ``front``: bool[point], all known."""

    known: np.ndarray
    values: np.ndarray
    front: np.ndarray
    stable: bool


def search(
    cheap: np.ndarray,
    families: np.ndarray,
    run: Callable[[Sequence[int]], np.ndarray],
    budget: int,
    seed: int = 0,
) -> Found:
    """Establish the front.

    ``cheap``: float64[point, objective], to be small, of one sign in every objective (a negative one is minus what is to be
    large); ``families``: int64[point]; ``run``: indices to dear values, float64[index, objective], NaN where a run failed;
    ``budget``: most runs, at least 1.
    """
    state = _State(np.asarray(cheap, np.float64), np.asarray(families), run, budget)
    state.establish(_first(state, np.random.default_rng(seed)))
    while True:
        todo = state.unknown_on_front()
        if not len(todo):
            todo = state.hopeful()
        if not len(todo) or state.left == 0:
            break
        state.establish(todo[:BATCH])
    values = state.values()
    known = np.where(state.known[:, None], values, np.inf)
    return Found(state.known, values, pareto(known), stable=not len(todo))


def gain_over(costs: np.ndarray, front: np.ndarray) -> np.ndarray:
    """How far, relatively, a point must become worse before a member of ``front`` is nowhere worse: float64[point].

    Above 0: nothing on the front beats it (the additive epsilon of Zitzler et al., IEEE TEVC 7(2), 2003, of relative costs).
    """
    size = np.abs(front)[None] + np.abs(costs)[:, None]
    return ((front[None] - costs[:, None]) / np.where(size > 0, size, 1.0)).max(axis=2).min(axis=1)


def _spread(costs: np.ndarray, points: np.ndarray, count: int) -> list[int]:
    """At most ``count`` of ``points``, each the one that those before it cover least; the first has the least cost."""
    taken: list[int] = []
    left = points
    gain = -costs[left, 0]
    while len(left) and len(taken) < count:
        best = gain.argmax()
        taken.append(int(left[best]))
        fresh = gain_over(costs[left], costs[left[best]][None])
        gain = fresh if len(taken) == 1 else np.minimum(gain, fresh)
        left, gain = np.delete(left, best), np.delete(gain, best)
    return taken


def _first(state: _State, rng: np.random.Generator) -> np.ndarray:
    """The front of the estimates, as far as half of the budget goes, and a sample of every family."""
    front = np.flatnonzero(pareto(state.cheap))
    half = max(1, state.left // 2)
    taken = _spread(state.cheap, front, half)
    for family in np.unique(state.families):
        members = np.flatnonzero((state.families == family) & np.isfinite(state.cheap).all(axis=1))
        missing = SAMPLED - np.isin(members, taken).sum()
        others = np.setdiff1d(members, taken)
        if missing > 0 and len(others):
            taken += list(rng.choice(others, min(missing, len(others)), replace=False))
    return np.array(taken[: max(1, state.left * 3 // 4)], np.int64)


class _State:
    def __init__(self, cheap: np.ndarray, families: np.ndarray, run: Callable, budget: int) -> None:
        self.cheap, self.families, self._run, self.left = cheap, families, run, budget
        self.known = np.zeros(len(cheap), bool)
        self._dear = np.full_like(cheap, np.nan)

    def establish(self, points: np.ndarray) -> None:
        """Run points, as far as the budget goes. A run that failed has infinite costs."""
        points = points[~self.known[points]][: self.left]
        if len(points):
            found = np.asarray(self._run(points.tolist()), np.float64)
            self._dear[points] = np.where(np.isnan(found), np.inf, found)
            self.known[points] = True
            self.left -= len(points)

    def values(self) -> np.ndarray:
        """Known values, and corrected estimates of the others."""
        corrected = self.cheap * np.exp(self._corrections())
        return np.where(self.known[:, None], self._dear, corrected)

    def unknown_on_front(self) -> np.ndarray:
        """Points on the front of known values and estimates, those first that what is known covers least."""
        values = self.values()
        unknown = np.flatnonzero(pareto(values) & ~self.known)
        covered = values[self.known & np.isfinite(values).all(axis=1)]
        if not len(covered):
            return unknown
        return unknown[np.argsort(-gain_over(values[unknown], covered), kind="stable")]

    def hopeful(self) -> np.ndarray:
        """Points that could be on the front if they were as lucky as was seen, the most promising first."""
        values, luck = self.values(), self._errors()
        front = values[pareto(np.where(self.known[:, None], values, np.inf))]
        if not len(front):
            return np.flatnonzero(~self.known)
        lucky = np.where(values > 0, values * np.exp(-luck), values * np.exp(luck))
        waiting = np.flatnonzero(~self.known & np.isfinite(values).all(axis=1))
        gain = gain_over(lucky[waiting], front)
        order = np.argsort(-gain, kind="stable")
        return waiting[order][gain[order] > 0]

    def _log_ratios(self) -> np.ndarray:
        """ln(dear / cheap), float64[point, objective]; NaN where unknown, failed or without a ratio."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.log(self._dear / self.cheap)
        return np.where(np.isfinite(ratios), ratios, np.nan)

    def _by_family(self, ratios: np.ndarray, of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """A number for every point and objective: of its family where that has known points, else of all."""
        nothing = np.zeros(self.cheap.shape[1])
        seen = np.isfinite(ratios).all(axis=1)
        result = np.tile(of(ratios[seen]) if seen.any() else nothing, (len(self.cheap), 1))
        for family in np.unique(self.families[seen]):
            own = self.families == family
            result[own] = of(ratios[own & seen])
        return result

    def _corrections(self) -> np.ndarray:
        return self._by_family(self._log_ratios(), lambda ratios: np.median(ratios, axis=0))

    def _errors(self) -> np.ndarray:
        """How much better than its corrected estimate a point may be, as a logarithm: 0 for objectives without error."""
        ratios = self._log_ratios()
        misses = np.abs(ratios - self._corrections())
        every = misses[np.isfinite(misses).all(axis=1)]
        if not len(every):
            return np.zeros_like(self.cheap)
        exact = (np.abs(ratios[np.isfinite(ratios).all(axis=1)]) < 1e-12).all(axis=0)
        overall = np.quantile(every, QUANTILE, axis=0)
        own = self._by_family(misses, lambda each: np.quantile(each, QUANTILE, axis=0))
        return np.where(exact, 0.0, np.maximum(np.maximum(own, overall / 2), LEAST_ERROR))
