"""Search with two fidelities: an estimate of every point, and few event runs that establish the Pareto front.

1. Run the points on the front of the estimates, and a few of every *family* (points with similar errors, such as those
   of one policy and model). They give the correction of each family: the median ratio of event run to estimate.
2. Run the points on the front of known values and corrected estimates, until every point on it is known.
3. Run the points that would be on the front if they beat their estimate by a quantile of the observed errors, those
   with the largest gain first.

The front is *stable* if no such point is left at the end; else the budget ended the search. Objectives that both
fidelities know exactly (area, price) have no error, and a correction of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from archsim.questions.exploration.pareto import pareto

SAMPLED = 2  # points of every family to run, to learn its error
BATCH = 8  # runs between two updates of the errors
QUANTILE = 0.9  # of the observed errors: how much better than estimated a point may be
LEAST_ERROR = 0.01  # engines that have agreed so far may still differ by this, for objectives that are not exact


@dataclass(frozen=True)
class ObjectiveValues:
    """``known``, ``front``: bool[point], run or optimal; ``values``: float64[point, objective], known or corrected."""

    known: np.ndarray
    values: np.ndarray
    front: np.ndarray
    stable: bool


def search(
    cheap: np.ndarray, families: np.ndarray, run: Callable[[Sequence[int]], np.ndarray], budget: int, seed: int = 0
) -> ObjectiveValues:
    """Establish the front. ``cheap``: float64[point, objective], estimates to minimise, of one sign per objective;
    ``families``: int64[point]; ``run``: indices → event values, float64[index, objective], NaN for a failed run;
    ``budget``: most event runs, at least 1.
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
    return ObjectiveValues(state.known, values, pareto(known), stable=not len(todo))


def search_each(
    cheap: np.ndarray,
    families: np.ndarray,
    groups: Sequence[str],
    run: Callable[[Sequence[int]], np.ndarray],
    budget: int,
    seed: int = 0,
) -> ObjectiveValues:
    """The front of every group, as `search`: the budget is divided by numbers of points, and what is left passed on."""
    points, own = len(cheap), np.array(groups)
    every = ObjectiveValues(np.zeros(points, bool), np.array(cheap, np.float64), np.zeros(points, bool), True)
    stable, left, waiting = True, budget, points
    for group in dict.fromkeys(groups):
        members = np.flatnonzero(own == group)
        if budget == 0:  # the front of the estimates
            every.front[members], stable = pareto(every.values[members]), False
            continue
        share, waiting = round(left * len(members) / waiting), waiting - len(members)
        if left == 0:
            stable = False
            continue

        def run_members(asked: Sequence[int], members: np.ndarray = members) -> np.ndarray:
            return run(members[list(asked)].tolist())

        found = search(cheap[members], families[members], run_members, max(1, share), seed)
        every.known[members], every.values[members], every.front[members] = found.known, found.values, found.front
        stable, left = stable and found.stable, left - int(found.known.sum())
    return replace(every, stable=stable)


def gain_over(costs: np.ndarray, front: np.ndarray) -> np.ndarray:
    """float64[point]: by what ratio a point must get worse before a member of ``front`` is nowhere worse; above 0 if
    none dominates it (additive epsilon of Zitzler et al., IEEE TEVC 7(2), 2003, of relative costs).
    """
    size = np.abs(front)[None] + np.abs(costs)[:, None]
    return ((front[None] - costs[:, None]) / np.where(size > 0, size, 1.0)).max(axis=2).min(axis=1)


def _spread(costs: np.ndarray, points: np.ndarray, count: int) -> list[int]:
    """At most ``count`` of ``points``, each the one that the earlier ones cover least; the first has the least cost."""
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
    """The front of the estimates, up to half of the budget, and a sample of every family."""
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
        self._event = np.full_like(cheap, np.nan)

    def establish(self, points: np.ndarray) -> None:
        """Run points within the budget. A failed run has infinite costs."""
        points = points[~self.known[points]][: self.left]
        if len(points):
            found = np.asarray(self._run(points.tolist()), np.float64)
            self._event[points] = np.where(np.isnan(found), np.inf, found)
            self.known[points] = True
            self.left -= len(points)

    def values(self) -> np.ndarray:
        corrected = self.cheap * np.exp(self._corrections())
        return np.where(self.known[:, None], self._event, corrected)

    def unknown_on_front(self) -> np.ndarray:
        """Points on the front of known values and estimates, those that the known ones cover least first."""
        values = self.values()
        unknown = np.flatnonzero(pareto(values) & ~self.known)
        covered = values[self.known & np.isfinite(values).all(axis=1)]
        if not len(covered):
            return unknown
        return unknown[np.argsort(-gain_over(values[unknown], covered), kind="stable")]

    def hopeful(self) -> np.ndarray:
        """Points that could be on the front given the observed errors, the most promising first."""
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
        """ln(event / estimate), float64[point, objective]; NaN if unknown, failed or without a ratio."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.log(self._event / self.cheap)
        return np.where(np.isfinite(ratios), ratios, np.nan)

    def _by_family(self, ratios: np.ndarray, of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """A value for every point and objective: of its family if that has known points, else of all points."""
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
        """How much better than its corrected estimate a point may be, as a logarithm; 0 for exact objectives."""
        ratios = self._log_ratios()
        misses = np.abs(ratios - self._corrections())
        every = misses[np.isfinite(misses).all(axis=1)]
        if not len(every):
            return np.zeros_like(self.cheap)
        exact = (np.abs(ratios[np.isfinite(ratios).all(axis=1)]) < 1e-12).all(axis=0)
        overall = np.quantile(every, QUANTILE, axis=0)
        own = self._by_family(misses, lambda each: np.quantile(each, QUANTILE, axis=0))
        return np.where(exact, 0.0, np.maximum(np.maximum(own, overall / 2), LEAST_ERROR))
