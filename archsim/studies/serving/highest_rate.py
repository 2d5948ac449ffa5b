"""The highest rate that a deployment serves within its limits, by bisection."""

from __future__ import annotations

from collections.abc import Callable

from archsim.base.errors import TraceError
from archsim.serving.file_requests import requests_of
from archsim.serving.measures import saturation, within_limits
from archsim.serving.outcome import Deployment, slo_of
from archsim.serving.requests import Requests, scale_rate
from archsim.serving.serving import ENOUGH, simulate_requests
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
    own = requests.offered_per_s

    def fits(asked: Requests, rate: float) -> bool:
        return share_within(serving, deployment, scale_rate(asked, rate / asked.offered_per_s)) >= WITHIN

    few, many = (draw_requests(serving, requests, count) for count in (ENOUGH, SUSTAINED))
    rate = highest(lambda rate: fits(few, rate), own)
    if not rate or len(many.input) < SUSTAINED or fits(many, rate):
        return rate
    return lower_until_fits(lambda rate: fits(many, rate), rate)


def share_within(serving: Serving, deployment: Deployment, requests: Requests) -> float:
    """The share of requests that are within all limits. It is 0 where they come faster than they end."""
    served = simulate_requests(serving, deployment, requests)
    return 0.0 if saturation(served) else float(within_limits(served, slo_of(serving)).mean())


def highest(
    fits: Callable[[float], bool], first: float, *, step: float = 2.0, wider: float = 1.0, fails: float = 0.0,
    least: float = 0.0, close: float = CLOSE_ENOUGH,
) -> float:  # fmt: skip
    """The highest rate that fits, to within a ratio ``close``; 0 where none does.

    ``first``: a guess, raised or lowered by the factor ``step`` until the rate is bracketed, ``wider`` times as far
    each time; ``least``, ``fails``: rates that are known to fit and not to.
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
