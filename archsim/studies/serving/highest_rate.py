"""The highest rate that a deployment serves within its limits, by bisection."""

from archsim.serving.requests import Requests, scaled
from archsim.serving.serving import Deployment, serve_requests
from archsim.specs.loading.serving import Serving

WITHIN = 0.9  # share of requests within all limits (DistServe, section 2: SLO attainment)
CLOSE = 0.03  # to which the rate is found
MOST_DOUBLINGS = 12


def highest_rate(serving: Serving, deployment: Deployment, requests: Requests) -> float:
    """Requests a second at which WITHIN of them are within the limits, and the run is not saturated; 0 where no rate
    is. The same requests come faster or slower.
    """
    own = requests.offered_per_s

    def fits(rate: float) -> bool:
        found = serve_requests(serving, deployment, scaled(requests, rate / own)).measures
        return found.within_slo >= WITHIN and not found.saturated

    low, high = (own, 0.0) if fits(own) else (0.0, own)
    for _ in range(MOST_DOUBLINGS):
        rate = 2 * low if not high else high / 2
        if fits(rate):
            low = rate
        else:
            high = rate
        if low and high:
            break
    if not low or not high:
        return low
    while high / low > 1 + CLOSE:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
