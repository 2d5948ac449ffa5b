"""The race of a recommendation: the rate of an engine's sizes, batch limits and pools, as each process finds it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import log
from typing import NamedTuple

import numpy as np

from archsim.base import errors, units
from archsim.iteration.constants import DECODE
from archsim.serving.deployment import Built
from archsim.serving.engine import ServingEngine
from archsim.serving.file_engines import decodes_alone
from archsim.serving.measures import saturation, times_ns
from archsim.serving.outcome import Deployment
from archsim.serving.power import BOARD_W, Upkeep, upkeep
from archsim.serving.requests import Requests, first, scale_rate
from archsim.serving.serving import simulate_requests
from archsim.specs.deployment import ParallelSpec
from archsim.specs.serving_files import Serving
from archsim.studies.serving import configuration, engines, highest_rate, question

RESIDENCES = 3.0  # of the requests that are in an engine at a time, a run has so many
FEWEST = 320  # requests of a run
QUICK_CLOSE = 0.06  # to which a rate is found among sizes
LEFT_BELOW = 0.7  # of the best rate a GPU: sizes that serve no more are left after a run
BETTER = 1.02  # batch limits are better by so much
ROOM = 1.3  # of the requests that an engine has: a batch limit beyond that changes nothing
GRID = (0.6, 0.8, 0.9, 1.0, 1.12, 1.3)  # of the rate found


class Tried(NamedTuple):
    """One engine's sizes with the best batch limits so far."""

    kind: int  # place of its kind in those of the race
    choice: configuration.Configuration
    rate: float  # requests a second of one instance, or of all where `choice` has pools; 0: none, or far below others
    residence_ns: float  # about the time of a request in it
    simulated: int  # runs
    configurations: int  # sizes and limits that were looked at
    refused: str = ""  # why none runs, or ''

    def per_gpu(self) -> float:
        """Requests a second."""
        return self.rate / (self.choice.devices if self.choice.prefill else self.choice.parallel.devices)


class Race:
    """What all processes know: kinds, their requests, the engines that they have built."""

    def __init__(self, asked: question.Asked, kinds: Sequence[question.SearchedServing], requests: Requests) -> None:
        self.asked, self.kinds, self.requests = asked, kinds, requests
        self.built: dict[tuple[int, ParallelSpec, str], tuple[ServingEngine, Built]] = {}

    def side(self, kind: int, parallel: ParallelSpec, alone: str = "") -> tuple[ServingEngine, Built]:
        """An engine; ``alone``: as of `engines.Known`. Raises ArchsimError."""
        key = kind, parallel, alone
        if key not in self.built:
            serving = self.kinds[kind].serving
            one = decodes_alone(serving, parallel) if alone == DECODE else serving
            self.built[key] = engines.largest(one, parallel, alone)
        return self.built[key]

    def deployment(self, kind: int, choice: configuration.Configuration) -> Deployment:
        """Raises ArchsimError."""
        alone = engines.prefilling(self.kinds[kind].serving) if choice.prefill else ""
        sides = [self.side(kind, choice.parallel, alone)]
        if choice.prefill:
            sides.append(self.side(kind, choice.decode or choice.parallel, DECODE))
        return engines.deployment_of(self.kinds[kind].serving, sides, choice)

    def asked_at(self, rate: float, residence_ns: float) -> Requests:
        """As many requests at a rate as are needed to see a queue grow."""
        count = RESIDENCES * rate * residence_ns / units.NS_PER_S
        some = first(self.requests, int(min(max(count, FEWEST), question.MOST_REQUESTS)))
        return scale_rate(some, rate / some.offered_per_s)

    def share(self, kind: int, deployment: Deployment, rate: float, residence_ns: float) -> float:
        """The share of requests that are within the limits at a rate. It is 0 where requests come
        faster than they end.
        """
        serving = self.kinds[kind].serving
        return highest_rate.share_within(serving, deployment, self.asked_at(rate, residence_ns))

    def warm_up(self, every: Sequence[tuple[int, ParallelSpec]]) -> None:
        """Serve a few requests with the first sizes that can, so that processes begin with compiled functions."""
        for kind, parallel in every:
            try:
                deployment = self.deployment(
                    kind, configuration.Configuration(parallel, 1, question.USUAL_SEQS, question.USUAL_TOKENS)
                )
                engines.estimate_rate(self.kinds[kind].serving, *self.side(kind, parallel), self.requests)
                simulate_requests(self.kinds[kind].serving, deployment, first(self.requests, 8))
                return
            except errors.ArchsimError:
                continue

    # Each of the following is the work of one task.

    def estimate(self, task: tuple[int, ParallelSpec]) -> engines.RateEstimate:
        """The estimate for some sizes, from their laws."""
        kind, parallel = task
        try:
            return engines.estimate_rate(self.kinds[kind].serving, *self.side(kind, parallel), self.requests)
        except errors.ArchsimError as error:
            return engines.RateEstimate(0.0, 0.0, str(error))

    def sizes(self, task: tuple[int, ParallelSpec, engines.RateEstimate, float]) -> Tried:
        """The rate of sizes with the usual batch limits, and the fewest requests that do not bound it. The last of the
        task: requests a second a GPU that are known to be served.
        """
        kind, parallel, guess, best = task
        given = self.asked
        running = ROOM * guess.rate * guess.residence_ns / units.NS_PER_S / parallel.attention.dp
        enough = [each for each in sorted(given.max_num_seqs) if each >= running]
        choice = configuration.Configuration(parallel, 1, enough[0] if enough else max(given.max_num_seqs),
                        _nearest(given.max_num_batched_tokens, question.USUAL_TOKENS),
                        precision=self.kinds[kind].dtypes, draft_tokens=self.kinds[kind].drafts)  # fmt: skip
        try:
            return self._rate(kind, choice, LEFT_BELOW * best * parallel.devices, guess)
        except errors.ArchsimError as error:
            return Tried(kind, choice, 0.0, guess.residence_ns, 0, 1, str(error))

    def _rate(self, kind: int, choice: configuration.Configuration, least: float, guess: engines.RateEstimate) -> Tried:
        """By bisection, unless not even ``least`` is within the limits. Raises ArchsimError."""
        deployment, runs = self.deployment(kind, choice), 0

        def fits(rate: float) -> bool:
            nonlocal runs
            runs += 1
            return self.share(kind, deployment, rate, guess.residence_ns) >= highest_rate.WITHIN

        if least and not fits(least):
            return Tried(kind, choice, 0.0, guess.residence_ns, runs, 1)
        first = max(guess.rate, least * BETTER)
        low = highest_rate.highest(fits, first, step=STEP, least=least, close=1 + QUICK_CLOSE)
        return Tried(kind, choice, low, guess.residence_ns, runs, 1)

    def limits(self, task: Tried) -> Tried:
        """The best batch limits of sizes whose rate with the usual ones is known. A limit of requests that is beyond
        what the engine has changes nothing, and is not served.
        """
        best, runs, seen = task, 0, 0
        for seqs, tokens in product(self.asked.max_num_seqs, self.asked.max_num_batched_tokens):
            choice = task.choice._replace(max_num_seqs=seqs, max_num_batched_tokens=tokens)
            if choice == task.choice:
                continue
            seen += 1
            if seqs > task.choice.max_num_seqs or 2 * seqs < task.choice.max_num_seqs:
                continue
            try:
                guess = engines.RateEstimate(best.rate * (1 + 2 * QUICK_CLOSE), task.residence_ns)
                found = self._rate(task.kind, choice, best.rate * BETTER, guess)
            except errors.ArchsimError:
                continue
            runs += found.simulated
            if found.rate > best.rate * BETTER:
                best = found
        return best._replace(simulated=runs, configurations=seen)

    def pool(self, task: tuple[int, configuration.Configuration, engines.RateEstimate, float]) -> Tried:
        """The rate of engines that prefill with others that decode, all together. The last of the task: requests a
        second that other pools of these GPUs serve.
        """
        kind, choice, guess, best = task
        try:
            return self._rate(kind, choice, max(0.5 * guess.rate, POOLS_LEFT_BELOW * best), guess)
        except errors.ArchsimError as error:
            return Tried(kind, choice, 0.0, guess.residence_ns, 0, 1, str(error))

    def curve_and_energy(self, task: Tried) -> tuple[Curve, Upkeep]:
        """What is shown of one of the best: its times at rates around that found, and its energy at its rate."""
        curve = self._grid(task)
        return curve, self._energy(task, curve.highest(limits_of(self.kinds[task.kind].serving)))

    def _grid(self, task: Tried) -> Curve:
        """Times at rates around that found, with the same requests."""
        serving, rates, times = self.kinds[task.kind].serving, [], []
        deployment = self.deployment(task.kind, task.choice)
        asked = self.asked_at(task.rate, task.residence_ns)
        for share in GRID:
            served = simulate_requests(serving, deployment, scale_rate(asked, share))
            found, lost = times_ns(served), bool(saturation(served))
            rates.append(share * task.rate)
            times.append(np.stack([np.full_like(found[each], np.inf) if lost else found[each] for each in TIMES]))
        return Curve(np.array(rates), np.stack(times))

    def _energy(self, tried: Tried, rate: float) -> Upkeep:
        """Under load, at a rate."""
        kind, asked = self.kinds[tried.kind], self.asked_at(max(rate, 1e-3), tried.residence_ns)
        served = simulate_requests(kind.serving, self.deployment(tried.kind, tried.choice), asked, logged=MOST_LOGGED)
        engine = self.side(tried.kind, tried.choice.parallel)[0]
        return upkeep(served, engine, kind.offer.system, tried.choice.devices, BOARD_W.get(kind.offer.gpu, np.inf))


STEP = 1.3  # by which a rate is raised or lowered until it is bracketed
TIMES = ("ttft", "tpot", "e2e")
MOST_LOGGED = 500_000


def limits_of(serving: Serving) -> np.ndarray:
    """float64[3]: ns of TIMES, infinite where there is none."""
    slo = serving.spec.slo
    return np.array([np.inf if each is None else each for each in (slo.ttft_ns, slo.tpot_ns, slo.e2e_ns)])


def _nearest(values: Sequence[int], usual: int) -> int:
    return min(values, key=lambda each: abs(log(each / usual)))


class Curve(NamedTuple):
    """The times of the same requests at a grid of rates."""

    rates: np.ndarray  # float64[rate] requests a second
    times_ns: np.ndarray  # float64[rate, TIMES, request], infinite where requests pile up

    def highest(self, limits: np.ndarray) -> float:
        """The highest rate at which WITHIN of the requests are within limits in ns; interpolated."""
        shares = (self.times_ns <= limits[None, :, None]).all(axis=1).mean(axis=1)
        good = np.flatnonzero(shares >= highest_rate.WITHIN)
        if not len(good):
            return float(self.rates[0] * shares[0] / highest_rate.WITHIN)  # below the grid: in proportion
        at = int(good[-1])
        if at == len(self.rates) - 1:
            return float(self.rates[at])
        over, under = shares[at] - highest_rate.WITHIN, highest_rate.WITHIN - shares[at + 1]
        return float(self.rates[at] + (self.rates[at + 1] - self.rates[at]) * over / max(over + under, 1e-9))

    def shares_at(self, rate: float, limits: np.ndarray) -> np.ndarray:
        """float64[TIMES]: of requests within each limit, at the next rate of the grid above ``rate``."""
        at = min(int(np.searchsorted(self.rates, rate, side="right")), len(self.rates) - 1)
        return (self.times_ns[at] <= limits[:, None]).mean(axis=1)


POOLS_LEFT_BELOW = 0.9  # of the best pools of the same GPUs: those that serve no more are left after a run
