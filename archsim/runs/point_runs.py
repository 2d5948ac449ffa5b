"""From the points of a sweep to runs, and what names the routing of each."""

from __future__ import annotations

from archsim.base.errors import ArchsimError
from archsim.runs.run import DemandSpec, Run, generated_digest, key_of, plain_text, trace_label
from archsim.specs.experiment import layers_problem
from archsim.specs.sweeps.plan import Point
from archsim.specs.text.fields import Spec
from archsim.workload import Trace, open_trace
from archsim.workload.layers import some_layers


class PointRuns:
    """Makes runs of the points of one plan, which keeps their parts; traces are opened, and routing is named, once. ``traces``: (path, model name) → trace."""

    def __init__(self) -> None:
        self.traces: dict[tuple[str, str], Trace] = {}
        self._digests: dict[tuple[int, int], str] = {}
        self._texts: dict[int, str] = {}
        self._demands: dict[tuple, DemandSpec] = {}

    def run(self, point: Point) -> Run:
        """The run of a point. Raises TraceError if its trace is malformed, or of another model."""
        run = Run(
            point.system, point.model, point.workload, point.batch, point.policy, point.assumptions, point.engine,
            self._demand(point), self._digest(point),
        )
        # What Run.key would find, from texts of parts that points share.
        run.__dict__["key"] = key_of(run, self._text)
        return run

    def _text(self, part: Spec) -> str:
        if id(part) not in self._texts:
            self._texts[id(part)] = plain_text(part)
        return self._texts[id(part)]

    def _demand(self, point: Point) -> DemandSpec:
        """What the run needs, and nothing else: another machine's dies are no concern of it."""
        dies = point.system.dies if point.assumptions.needs_origins(point.model) else None
        predicts = point.assumptions.heatmap_update == "free" and point.policy.prediction.name != "none"
        policy = point.policy if predicts else None
        key = (id(point.model), id(point.workload), point.batch, dies, id(policy))
        if key not in self._demands:
            self._demands[key] = DemandSpec(point.model, point.workload, point.batch, dies, policy)
        return self._demands[key]

    def _digest(self, point: Point) -> str:
        workload, key = point.workload, (id(point.model), id(point.workload))
        if key not in self._digests:
            if (problem := layers_problem(point.model, workload)) is not None:
                raise ArchsimError(f"point {point.index}: workload.layers: {problem}")
            if isinstance(workload.trace, str):
                trace = self.traces.setdefault((workload.trace, point.model.name), open_trace(workload.trace, point.model, workload.reader))
                some_layers(trace, workload.layers)  # refuses more than there are
                self._digests[key] = f"{trace_label(workload)} {trace.digest}"
            else:
                self._digests[key] = generated_digest(workload)
        return self._digests[key]
