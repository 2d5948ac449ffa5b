"""The same deployment under more and less traffic: goodput over rate, and throughput over interactivity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from archsim.serving.measures import Measures
from archsim.serving.requests import Requests, scaled
from archsim.serving.serving import Outcome, serve_requests

SHARES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)


class Load(NamedTuple):
    """``offered``: requests a second, or clients of a closed loop."""

    offered: float
    measures: Measures


def loads(outcome: Outcome, shares: Sequence[float] = SHARES) -> list[Load]:
    """Measures at shares of the traffic of a run; the run itself is not repeated."""
    found = []
    for share in shares:
        requests = _at(outcome.requests, share)
        same = share == 1.0
        measures = outcome.measures if same else serve_requests(outcome.serving, outcome.deployment, requests).measures
        found.append(Load(requests.concurrency or requests.offered_per_s, measures))
    return found


def _at(requests: Requests, share: float) -> Requests:
    if requests.concurrency:
        return requests._replace(concurrency=max(1, round(requests.concurrency * share)))
    return scaled(requests, share)


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of points that no other beats in both coordinates, by the first."""
    order = sorted(range(len(points)), key=lambda at: (-points[at][0], -points[at][1]))
    best, found = float("-inf"), []
    for at in order:
        if points[at][1] > best:
            best = points[at][1]
            found.append(at)
    return found[::-1]
