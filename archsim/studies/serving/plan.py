"""The runs of a file of ``archsim serve``: every point of its ``sweep:``, under every policy; a plain file has one
point, and besides the loads that its page shows.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from archsim.serving.measures import Measures
from archsim.serving.requests import Requests
from archsim.serving.serving import requests_of
from archsim.specs.loading.library import Source
from archsim.specs.loading.serving import Serving, load_serving
from archsim.specs.serving import ArrivalSpec, LengthSpec
from archsim.studies.serving.runs import ServeRun


class Load(NamedTuple):
    """``offered``: requests a second, or clients of a closed loop."""

    offered: float
    measures: Measures


class ByInput(NamedTuple):
    """Mean TTFT in ms, float64[input, load], of prompts of ``inputs`` tokens at ``offered`` loads."""

    inputs: tuple[int, ...]
    offered: tuple[float, ...]
    ttft_ms: np.ndarray


SHARES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # of the traffic, where a file has no loads


class ServePlan(NamedTuple):
    """``points``: the served files, one for each combination of the axes; ``cells``: the values of their axes."""

    points: tuple[Serving, ...]
    cells: tuple[dict[str, Any], ...]

    @property
    def first(self) -> Serving:
        """The file, or its first point."""
        return self.points[0]

    @property
    def has_axes(self) -> bool:
        """Whether the file has a ``sweep:``."""
        return bool(self.first.axes)

    def __repr__(self) -> str:
        serving = self.first
        axes = "".join(f"\n  {path}: {len(values)} values" for path, values in serving.axes.items())
        return (
            f"ServePlan({serving.model.name} on {serving.system.name}, {len(self.points)} points, "
            f"{len(serving.policies)} policies){axes}"
        )

    def runs(self) -> tuple[ServeRun, ...]:
        """Of all points under all policies, in order. Raises TraceError."""
        return tuple(
            ServeRun(serving._replace(policy=policy), cells, at, offered(serving), not self.has_axes)
            for at, (serving, cells) in enumerate(zip(self.points, self.cells, strict=True))
            for policy in serving.policies
        )


def serve_plan(source: Source, overrides: Sequence[str] = (), *, first: bool = False) -> ServePlan:
    """``first``: the first point and policy alone. Raises SpecError, with the point, for values of axes that are not
    valid.
    """
    begin = load_serving(source, overrides)
    if first:
        return ServePlan((begin._replace(policies=begin.policies[:1], axes={}),), ({},))
    if begin.spec.sweep is None:
        return ServePlan((begin,), ({},))
    points, cells = [], []
    for cell in begin.spec.sweep.cells:
        points.append(load_serving(source, overrides, cell))
        cells.append({path: shown(value) for path, value in cell.items()})
    return ServePlan(tuple(points), tuple(cells))


def shown(value: Any) -> Any:
    """A value of an axis, as a cell: a number, or text on one line."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return str(value).replace("'", "")


def offered(serving: Serving, requests: Requests | None = None) -> float:
    """Clients of a closed loop, or requests a second: those that the file says, or those of its trace."""
    given = serving.spec.requests
    if given.concurrency:
        return float(given.concurrency)
    return given.arrivals.rate if given.arrivals else (requests or requests_of(serving)).offered_per_s


def load_runs(run: ServeRun) -> Iterator[ServeRun]:
    """The same deployment at the file's rates or clients, or else at shares of its traffic, but for its own."""
    for load in asked_loads(run):
        if load != run.offered:
            yield at_load(run, load)


def input_runs(run: ServeRun) -> Iterator[tuple[int, ServeRun]]:
    """(prompt tokens, run) for every one of ``inputs`` of the file and every load."""
    for tokens in run.serving.spec.loads.inputs:
        spec = run.serving.spec
        fixed = spec.requests.model_copy(update={"input": LengthSpec(fixed=tokens)})
        longer = run.serving._replace(spec=spec.model_copy(update={"requests": fixed}))
        for load in input_loads(run):
            yield tokens, at_load(ServeRun(longer, {"input": tokens}, run.point, run.offered), load)


def asked_loads(run: ServeRun) -> tuple[float, ...]:
    """Of the page."""
    given = run.serving.spec.loads
    shares = tuple(run.offered * share for share in SHARES)
    if run.serving.spec.requests.concurrency:
        shares = tuple(dict.fromkeys(float(max(1, round(each))) for each in shares))
    return tuple(given.rates or tuple(map(float, given.clients)) or shares) if run.offered else ()


def input_loads(run: ServeRun) -> tuple[float, ...]:
    """Of the table by length of prompts."""
    given = run.serving.spec.loads
    return tuple(given.rates or tuple(map(float, given.clients)) or (run.offered,))


def at_load(run: ServeRun, load: float) -> ServeRun:
    """As many requests as the run has, at ``load``."""
    spec = run.serving.spec
    given = spec.requests
    if given.concurrency:
        change: dict[str, Any] = {"concurrency": int(load), "total": given.total or len(requests_of(run.serving).input)}
    elif given.arrivals:
        change = {"arrivals": ArrivalSpec(rate=f"{load}/s", burstiness=given.arrivals.burstiness)}
    else:
        change = {"speed": given.speed * load / run.offered}
    changed = spec.model_copy(update={"requests": given.model_copy(update=change)})
    return ServeRun(run.serving._replace(spec=changed), run.cells, run.point, load)
