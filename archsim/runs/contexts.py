"""Tokens of KV cache that a request holds, where the workload does not say it: taken from the requests of the batch."""

import numpy as np

from archsim.iteration.memory import counts_all
from archsim.specs.sweeps.plan import Point
from archsim.specs.workload import WorkloadSpec
from archsim.workload import Trace, draw_requests, open_trace
from archsim.workload.generated.traffic_presets import generated_traffic

Traces = dict[tuple[str, str], Trace]
"""(path, model name) → trace that is open."""


class Contexts:
    """Workloads with their context; opens each trace once. ``traces``: those that are open, to which it adds."""

    def __init__(self, traces: Traces | None = None) -> None:
        self.traces: Traces = {} if traces is None else traces
        self._known: dict[tuple[int, int, int], WorkloadSpec] = {}

    def workload(self, point: Point) -> WorkloadSpec:
        """The point's workload; with the context of the longest request of its batch, which all are taken to hold,
        where only a recorded trace or a preset says it and the assumption ``memory`` counts it.

        Raises TraceError.
        """
        workload, key = point.workload, (id(point.model), id(point.workload), point.batch)
        if not (_in_requests(workload) and counts_all(point.model, point.assumptions)):
            return workload
        if key not in self._known:
            self._known[key] = workload.model_copy(update={"context": self._longest(point)})
        return self._known[key]

    def opened(self, point: Point) -> Trace:
        """The point's recorded trace. Raises TraceError."""
        workload, at = point.workload, (point.workload.trace, point.model.name)
        if at not in self.traces:
            self.traces[at] = open_trace(workload.trace, point.model, workload.reader)
        return self.traces[at]

    def _longest(self, point: Point) -> int:
        workload = point.workload
        if isinstance(workload.trace, str):
            source = self.opened(point)
            if workload.extend != "redraw":
                return source.longest(np.arange(min(point.batch, source.requests)), workload.decode_steps)
        else:
            source = generated_traffic(point.model, workload.trace.synthetic, point.batch)
        return source.longest(draw_requests(source.requests, point.batch, workload.seed), workload.decode_steps)


def _in_requests(workload: WorkloadSpec) -> bool:
    """Whether the lengths of requests are in a recorded trace, or drawn from a preset with prompts."""
    if workload.context is not None:
        return False
    return isinstance(workload.trace, str) or (workload.trace.synthetic.like is not None and workload.has_prompts)
