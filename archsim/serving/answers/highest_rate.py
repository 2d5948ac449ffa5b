"""The highest rate that a deployment serves within its limits: by bisection, or from its times at a grid of rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from archsim.base.errors import TraceError
from archsim.runs.clocks import has_limits
from archsim.serving.file_requests import requests_of
from archsim.serving.measures import saturation, times_ns, within_limits
from archsim.serving.outcome import Deployment, slo_of
from archsim.serving.requests import Requests, scale_rate
from archsim.serving.serving import ENOUGH, at_its_clock, identical_engine
from archsim.serving.simulate import Served
from archsim.specs.serving_files import Serving

WITHIN = 0.9  # share of requests within all limits (DistServe, section 2: SLO attainment)
CLOSE = 0.03  # to which the rate is found
CLOSE_ENOUGH = (1 + CLOSE) * (1 + 1e-9)
MOST_STEPS = 13  # until a rate is bracketed
SUSTAINED = 20_000  # requests that a promised rate is held to: a queue that grows by 1 % shows


def highest_rate(serving: Serving, deployment: Deployment, requests: Requests) -> float:
    """Requests a second at which WITHIN of them are within the limits, and the run is not saturated; 0 where no rate
    is. The same requests come faster or slower. Requests that are drawn are as many as show a growing queue: ENOUGH to
    find the rate, then SUSTAINED, of which it is lowered until it holds.
    """
    few, many = (draw_requests(serving, requests, count) for count in (ENOUGH, SUSTAINED))
    rate, fits_many = highest(fits(serving, deployment, few), requests.offered_per_s), fits(serving, deployment, many)
    if not rate or len(many.input) < SUSTAINED or fits_many(rate):
        return rate
    return lower_until_fits(fits_many, rate)


def fits(serving: Serving, deployment: Deployment, requests: Requests) -> Callable[[float], bool]:
    """Whether WITHIN of the requests are within the limits where they come at a rate."""
    own, engine = requests.offered_per_s, identical_engine(serving) if has_limits(serving.system) else None
    serve = at_its_clock(serving, deployment, engine)

    def at(rate: float) -> bool:
        return share_of(serving, serve(scale_rate(requests, rate / own))) >= WITHIN

    return at


def share_of(serving: Serving, served: Served | None) -> float:
    """The share of requests within all limits; 0 where they come faster than they end, or none is served."""
    return 0.0 if served is None or saturation(served) else float(within_limits(served, slo_of(serving)).mean())


def highest(
    fits: Callable[[float], bool], first: float, *, step: float = 2.0, wider: float = 1.0, fails: float = 0.0,
    least: float = 0.0, close: float = CLOSE_ENOUGH,
) -> float:  # fmt: skip
    """The highest rate that fits, to within a ratio ``close``; 0 where none does. ``first``: a guess, raised or lowered
    by the factor ``step``, ``wider`` times as far each time, until the rate is bracketed; ``least``, ``fails``: rates
    known to fit and not to fit.
    """
    low, high, rate = least, fails, first
    for _ in range(MOST_STEPS):
        if fits(rate):
            low = rate
        else:
            high = rate
        if low and high:
            break
        rate, step = rate / step if high else rate * step, 1 + wider * (step - 1)
    while low and high / low > close:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def lower_until_fits(fits: Callable[[float], bool], fails: float) -> float:
    """The highest rate that fits, below one that does not, in few runs where it is near."""
    return highest(fits, fails / (1 + CLOSE), step=1 + 2 * CLOSE, wider=2.0, fails=fails)


def draw_requests(serving: Serving, requests: Requests, count: int) -> Requests:
    """``count`` requests of the file; those given, where it has no more, or one among them that cannot be served."""
    if len(requests.input) >= count or serving.spec.requests.trace is not None:
        return requests
    more = serving.spec.requests.model_copy(update={"total": count})
    try:
        return requests_of(serving._replace(spec=serving.spec.model_copy(update={"requests": more})))
    except TraceError:
        return requests


TIMES = ("ttft", "tpot", "e2e")


def limits_of(serving: Serving) -> np.ndarray:
    """float64[3]: ns of TIMES, infinite where there is none."""
    slo = serving.spec.slo
    return np.array([np.inf if each is None else each for each in (slo.ttft_ns, slo.tpot_ns, slo.e2e_ns)])


class Curve(NamedTuple):
    """The times of the same requests at a grid of rates."""

    rates: np.ndarray  # float64[rate] requests a second
    times_ns: np.ndarray  # float64[rate, TIMES, request], infinite where requests pile up

    def highest(self, limits: np.ndarray) -> float:
        """The highest rate at which WITHIN of the requests are within limits in ns; interpolated."""
        shares = (self.times_ns <= limits[None, :, None]).all(axis=1).mean(axis=1)
        good = np.flatnonzero(shares >= WITHIN)
        if not len(good):
            return float(self.rates[0] * shares[0] / WITHIN)  # below the grid: in proportion
        at = int(good[-1])
        if at == len(self.rates) - 1:
            return float(self.rates[at])
        over, under = shares[at] - WITHIN, WITHIN - shares[at + 1]
        return float(self.rates[at] + (self.rates[at + 1] - self.rates[at]) * over / max(over + under, 1e-9))

    def highest_slower(self, limits: np.ndarray, ttft: float, tpot: float) -> float:
        """That of a system that takes ``tpot`` times as long at all it does, and ``ttft`` times to the first token."""
        return self.highest(limits / np.array([ttft, tpot, tpot])) / tpot

    def shares_at(self, rate: float, limits: np.ndarray) -> np.ndarray:
        """float64[TIMES]: of requests within each limit, at the next rate of the grid above ``rate``."""
        at = min(int(np.searchsorted(self.rates, rate, side="right")), len(self.rates) - 1)
        return (self.times_ns[at] <= limits[:, None]).mean(axis=1)


def curve_at(
    rates: np.ndarray, factors: Sequence[float], serve: Callable[[Requests], Served | None], requests: Requests
) -> Curve:
    """Times at ascending ``rates``, where requests come by ``factors`` faster; above one that is lost, all are.
    ``serve``: None beyond a limit of the machine.
    """
    times, is_lost = [], False
    for factor in factors:
        served = serve(scale_rate(requests, factor))
        is_lost = is_lost or served is None or bool(saturation(served))
        found = {} if served is None else times_ns(served)
        times.append(np.stack([np.full(len(requests.input), np.inf) if is_lost else found[each] for each in TIMES]))
    return Curve(rates, np.stack(times))
