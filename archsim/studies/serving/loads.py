"""The same deployment under more and less traffic: goodput over rate, throughput over interactivity, and mean TTFT by
length of prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from archsim.serving.measures import Measures
from archsim.serving.requests import Requests, scaled
from archsim.serving.serving import Outcome, requests_of, serve_requests
from archsim.specs.serving import LengthSpec

SHARES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)


class Load(NamedTuple):
    """``offered``: requests a second, or clients of a closed loop."""

    offered: float
    measures: Measures


class ByInput(NamedTuple):
    """Mean TTFT in ms, float64[input, load], of prompts of ``inputs`` tokens at ``offered`` loads."""

    inputs: tuple[int, ...]
    offered: tuple[float, ...]
    ttft_ms: np.ndarray


def loads(outcome: Outcome, shares: Sequence[float] = SHARES) -> list[Load]:
    """Measures at the file's rates or clients, or else at shares of its traffic; the run itself is not repeated."""
    given, own = outcome.serving.spec.loads, offered(outcome)
    asked = given.rates or given.clients or tuple(own * share for share in shares)
    return [Load(*_at(outcome, outcome.requests, own, load)) for load in asked]


def by_input(outcome: Outcome) -> ByInput | None:
    """For every one of ``inputs`` of the file and every load; None where it asks for none."""
    given, own = outcome.serving.spec.loads, offered(outcome)
    if not given.inputs:
        return None
    asked = given.rates or given.clients or (own,)
    found = np.zeros((len(given.inputs), len(asked)))
    for row, tokens in enumerate(given.inputs):
        requests = _with_input(outcome, tokens)
        for column, load in enumerate(asked):
            found[row, column] = _at(outcome, requests, own, load)[1].ttft.mean
    return ByInput(given.inputs, tuple(asked), found)


def offered(outcome: Outcome) -> float:
    """Clients of a closed loop, or requests a second: those that the file says, or those of its trace."""
    arrivals, requests = outcome.serving.spec.requests.arrivals, outcome.requests
    return arrivals.rate if arrivals else float(requests.concurrency or requests.offered_per_s)


def _with_input(outcome: Outcome, tokens: int) -> Requests:
    spec = outcome.serving.spec
    fixed = spec.requests.model_copy(update={"input": LengthSpec(fixed=tokens)})
    return requests_of(outcome.serving._replace(spec=spec.model_copy(update={"requests": fixed})))


def _at(outcome: Outcome, requests: Requests, own: float, load: float) -> tuple[float, Measures]:
    """(load as it was served, measures)."""
    if load == own and requests is outcome.requests:
        return own, outcome.measures
    if requests.concurrency:
        load = max(1, round(load))
        requests = requests._replace(concurrency=load)
    elif own:
        requests = scaled(requests, load / own)
    return load, serve_requests(outcome.serving, outcome.deployment, requests).measures


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of points that no other beats in both coordinates, by the first."""
    order = sorted(range(len(points)), key=lambda at: (-points[at][0], -points[at][1]))
    best, found = float("-inf"), []
    for at in order:
        if points[at][1] > best:
            best = points[at][1]
            found.append(at)
    return found[::-1]
