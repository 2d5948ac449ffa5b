"""Of archsim.serving.physical_laws."""

from support.random_experiments import random_deployment

from archsim.api import serve
from archsim.serving.physical_laws import broken_laws as of_served


def test_what_cannot_be_served_is_said():
    outcome = serve(random_deployment(3))
    assert not list(of_served(outcome.served, outcome.measures, outcome.deployment.devices))
    falsified = [("first_ns", -1e9), ("last_ns", -1e12), ("made", 1), ("hit", 10**6), ("arrival_ns", 1e12)]
    for name, more in falsified:
        requests = outcome.served.requests.copy()
        requests[name] = requests[name] + more
        assert list(of_served(outcome.served._replace(requests=requests), outcome.measures, 8)), name
    for name, value in (("kv_peak", 1.1), ("within_slo", 1.2), ("goodput_per_s", 1e9), ("prefix_hits", -0.1)):
        assert list(of_served(outcome.served, outcome.measures._replace(**{name: value}), 8)), name
