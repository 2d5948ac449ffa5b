"""The highest rate that a deployment sustains within its limits, and its range in samples. In a sample a measured
engine takes f times as long at all it does, so its rate is read off the times without a draw
(`archsim.serving.answers.chances`); the rate of others is found anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from archsim.base.uncertain import Quantity
from archsim.runs.executor import do_all
from archsim.serving.answers import sure
from archsim.serving.answers.highest_rate import curve_at, draw_requests, fits, highest, limits_of
from archsim.serving.answers.load_answer import SustainedRate, offered_requests
from archsim.serving.answers.runs import ServeRun
from archsim.serving.file_engines import FIRST
from archsim.serving.outcome import Deployment
from archsim.serving.requests import Requests, first
from archsim.serving.serving import ENOUGH, deploy, requests_on, simulate_requests
from archsim.specs import uncertainty
from archsim.specs.serving_files import Serving
from archsim.uncertainty.estimate import Interval, interval
from archsim.uncertainty.worlds import draws_of, value_of

MOST_TOKENS, MOST_OF_SAMPLE = 1e7, 5e5  # of a run by which the rate is found, and by which it is in a sample
CLOSE, CLOSE_IN_SAMPLE = 1.03, 1.1  # to which it is found
GRID = (0.15, 0.3, 0.45, 0.6, 0.8, 0.9, 1.0, 1.1, 1.3, 1.7, 2.5)  # of the rate, of which times are kept


def sustained_rate(
    run: ServeRun, samples: int, jobs: int, say: Callable[[str], None] = lambda text: None, known: float | None = None
) -> SustainedRate:
    """The highest rate of a run's deployment within its limits, 0 where none is. ``known``: the rate without a draw,
    where it was found. Raises as `deploy`.
    """
    serving = run.serving
    say("finding the rate that is sustained")
    deployment = deploy(serving)
    requests = _requests(serving, deployment, MOST_TOKENS)
    rate = known
    if rate is None:
        rate = highest(fits(serving, deployment, requests), offered_requests(run), close=CLOSE)
    if not rate or not samples:
        return SustainedRate(rate, None)
    off = {side: sure.off_of(serving.on(side), uncertainty.load_widths()) for side in serving.spec.sides}
    draws = draws_of(sorted({each.draws_as for each in sure.quantities_of_sides([off]).values()}), samples)
    factors = next((dict(each.factors) for each in off.values() if FIRST in dict(each.factors)), None)
    if factors is not None and any(dict(each.factors).get("decodes") != factors["decodes"] for each in off.values()):
        factors = None  # pools of several kinds: the rate is found anew in each sample
    if factors is not None:
        return SustainedRate(rate, _by_factors(serving, deployment, requests, rate, factors, draws, samples))
    few = _requests(serving, deployment, MOST_OF_SAMPLE)
    plain = highest(fits(serving, deployment, few), rate, close=CLOSE_IN_SAMPLE)
    if not plain:
        return SustainedRate(rate, None)
    say(f"finding the rate that is sustained in {samples} samples")

    def in_sample(at: int) -> float:
        other = sure.world_of(run, off, draws, at).serving
        drawn = deploy(other)
        return highest(fits(other, drawn, _requests(other, drawn, MOST_OF_SAMPLE)), rate, close=CLOSE_IN_SAMPLE)

    rates = np.array([each for _, each in do_all(in_sample, range(samples), jobs)])
    return SustainedRate(rate, interval(rates * rate / plain))  # few requests wait less, in a sample and without


def _requests(serving: Serving, deployment: Deployment, most_tokens: float) -> Requests:
    """As many as show a queue that grows, and no more than so many tokens."""
    requests = draw_requests(serving, requests_on(serving, deployment), ENOUGH)
    count = int(np.searchsorted(np.cumsum(requests.input + requests.output), most_tokens))
    return first(requests, max(sure.FEWEST_REQUESTS, count))


def _by_factors(
    serving: Serving, deployment: Deployment, requests: Requests, rate: float, factors: Mapping[str, Quantity],
    draws: Mapping[str, np.ndarray], samples: int,
) -> Interval | None:  # fmt: skip
    """Of the rate in samples, in which all times are those of the plain run times a factor."""
    if any(each.ttft_ns or each.tpot_ns or each.e2e_ns for each in serving.spec.requests.classes):
        return None  # the curve has one limit for all requests
    factors_of_rate = [share * rate / requests.offered_per_s for share in GRID]
    curve = curve_at(
        rate * np.array(GRID), factors_of_rate, lambda each: simulate_requests(serving, deployment, each), requests
    )
    limits = limits_of(serving)
    plain = curve.highest(limits)
    if not curve.rates[0] <= plain < curve.rates[-1]:  # so few requests say nothing of this rate
        return None
    rates = []
    for at in range(samples):
        tpot, ttft = (value_of(factors[name], draws, at) for name in ("decodes", FIRST))
        rates.append(curve.highest_slower(limits, ttft, tpot))
    return interval(np.array(rates) * rate / plain)
