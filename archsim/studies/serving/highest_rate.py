"""The highest rate that a deployment serves within its limits, by bisection."""

from archsim.base.errors import TraceError
from archsim.serving.requests import Requests, scaled
from archsim.serving.serving import ENOUGH, Deployment, requests_of, serve_requests
from archsim.specs.loading.serving import Serving

WITHIN = 0.9  # share of requests within all limits (DistServe, section 2: SLO attainment)
CLOSE = 0.03  # to which the rate is found
MOST_DOUBLINGS = 12
SUSTAINED = 20_000  # requests that a promised rate is held to: a queue that grows by 1 % shows


def highest_rate(serving: Serving, deployment: Deployment, requests: Requests) -> float:
    """Requests a second at which WITHIN of them are within the limits, and the run is not saturated; 0 where no rate
    is. The same requests come faster or slower. Requests that are drawn are as many as show a growing queue: ENOUGH to
    find the rate, then SUSTAINED, of which it is lowered until it holds.
    """
    own = requests.offered_per_s

    def fits(asked: Requests, rate: float) -> bool:
        found = serve_requests(serving, deployment, scaled(asked, rate / asked.offered_per_s)).measures
        return found.within_slo >= WITHIN and not found.saturated

    rate = _found(lambda rate: fits(_drawn(serving, requests, ENOUGH), rate), own)
    many = _drawn(serving, requests, SUSTAINED)
    if not rate or len(many.input) < SUSTAINED or fits(many, rate):
        return rate
    return _found(lambda rate: fits(many, rate), rate / (1 + CLOSE))


def _found(fits, first: float) -> float:
    low, high = (first, 0.0) if fits(first) else (0.0, first)
    for _ in range(MOST_DOUBLINGS):
        rate = 2 * low if not high else high / 2
        if low and high:
            break
        if fits(rate):
            low = rate
        else:
            high = rate
    if not low or not high:
        return low
    while high / low > 1 + CLOSE:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _drawn(serving: Serving, requests: Requests, count: int) -> Requests:
    """``count`` requests of the file; those given, where it has no more, or one among them that cannot be served."""
    if len(requests.input) >= count or serving.spec.requests.trace is not None:
        return requests
    more = serving.spec.requests.model_copy(update={"total": count})
    try:
        return requests_of(serving._replace(spec=serving.spec.model_copy(update={"requests": more})))
    except TraceError:
        return requests
