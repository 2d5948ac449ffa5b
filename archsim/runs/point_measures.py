"""What is known of a point of a sweep without a run: the context of its requests, its dies, areas, price and fit."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from archsim.base.sums import sum
from archsim.iteration.memory import counts_all, depends_on_requests, memory_fit
from archsim.policies.registry import place_experts
from archsim.runs.prices import SystemHardware, build_costs
from archsim.specs.plan import Point
from archsim.specs.workload import WorkloadSpec
from archsim.traffic.trace import Trace, draw_requests
from archsim.traffic.traffic_presets import generated_traffic

Traces = dict[tuple[str, str], Trace]


class Contexts:
    """Workloads with their context; opens each trace once. ``traces``: those that are open, to which it adds."""

    def __init__(self, traces: Traces | None = None) -> None:
        self.traces: Traces = {} if traces is None else traces
        self._known: dict[tuple[int, int, int], WorkloadSpec] = {}

    def workload(self, point: Point) -> WorkloadSpec:
        """The point's workload, with the context of the longest request of its batch where only a trace or preset says
        it and the assumption ``memory`` counts it. Raises TraceError.
        """
        workload, key = point.workload, (id(point.model), id(point.workload), point.batch)
        from_requests = isinstance(workload.trace, str) or (
            workload.trace.synthetic.like is not None and workload.has_prompts
        )
        if workload.context is not None or not (from_requests and counts_all(point.model, point.assumptions)):
            return workload
        if key not in self._known:
            self._known[key] = workload.model_copy(update={"context": self._longest(point)})
        return self._known[key]

    def open_trace(self, point: Point) -> Trace:
        """The point's recorded trace. Raises TraceError."""
        workload, trace = point.workload, point.workload.trace
        assert isinstance(trace, str)
        if (at := (trace, point.model.name)) not in self.traces:
            from archsim.traffic.formats.readers import open_trace

            self.traces[at] = open_trace(trace, point.model, workload.reader)
        return self.traces[at]

    def _longest(self, point: Point) -> int:
        workload = point.workload
        source: Any  # a trace, or generated traffic, which has `longest`, too
        if isinstance(workload.trace, str):
            source = self.open_trace(point)
            if workload.extend != "redraw":
                return source.longest(np.arange(min(point.batch, source.requests)), workload.decode_steps)
        else:
            source = generated_traffic(point.model, workload.trace.synthetic, point.batch)
        return source.longest(draw_requests(source.requests, point.batch, workload.seed), workload.decode_steps)


class PartMeasures:
    """Functions for ``archsim.specs.plan.CONSTRAINT_MEASURES``, computed once for the same parts."""

    def __init__(self, contexts: Contexts | None = None) -> None:
        self._contexts = contexts or Contexts()
        self._known: dict[tuple, Any] = {}

    def functions(self) -> Mapping[str, Callable[[Point], Any]]:
        """Name → function of a point: numbers, or for ``hbm_capacity`` whether it fits."""
        return {
            "dies": lambda point: point.system.dies,
            "area_mm2": lambda point: self._machine(point).decision.area_mm2,
            "die_mm2": lambda point: self._machine(point).die_mm2,
            "silicon_mm2": lambda point: self._machine(point).silicon_mm2,
            "cost_usd": lambda point: sum(self._machine(point).usd.values()),
            "hbm_capacity": self.fits,
        }

    def fits(self, point: Point) -> bool:
        """Whether all that the assumption ``memory`` counts leaves no die over its HBM; ``capacity`` is ignored."""
        if depends_on_requests(point.model, point.assumptions):
            requests = self._contexts.workload(point), point.batch, point.deployment
            return self._fits(point.system, point.model, point.policy, point.assumptions, *requests)
        return self._once("fit", self._fits, point.system, point.model, point.policy, point.assumptions)

    def _once(self, what: str, compute: Callable[..., Any], *parts: Any) -> Any:
        # Points share parts, which their plan keeps alive: equal ids are equal parts.
        key = (what, *map(id, parts))
        if key not in self._known:
            self._known[key] = compute(*parts)
        return self._known[key]

    def _fits(self, system, model, policy, assumptions, *requests) -> bool:
        key = (str(policy.placement), len(model.moe_layer_ids), model.experts, system.dies)
        placement = self._once_by(key, lambda: place_experts(policy, model, system.dies))
        return memory_fit(system, model, assumptions, placement, *requests).fits

    def _once_by(self, key: tuple, compute: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]

    def _machine(self, point: Point) -> SystemHardware:
        return self._once("machine", build_costs, point.system)
