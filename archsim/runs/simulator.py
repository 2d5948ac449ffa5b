"""One run after the other, in one process: the demand is built once for runs that share it."""

from __future__ import annotations

import platform
import time
from datetime import UTC, datetime
from typing import Any

from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.loop import EventEngine
from archsim.policies.registry import build_policy
from archsim.runs.columns import measured
from archsim.runs.measure import Finished
from archsim.runs.results import Record
from archsim.runs.run import DemandSpec, Run, generated_digest
from archsim.workload import TokenSource, Trace, draw_requests, open_trace
from archsim.workload.demand import Demand, Predictor, build_demand
from archsim.workload.demand_cache import cached_demand
from archsim.workload.generated.traffic_presets import generated_traffic
from archsim.workload.layers import some_layers
from archsim.workload.store import column_cache

ENGINES = {"event": EventEngine, "analytical": AnalyticalEngine}


class Simulator:
    """Keeps demand and generated traffic of the latest run, and open traces. traces: (path, model name) → trace, opened already."""

    def __init__(self, traces: dict[tuple[str, str], Trace] | None = None) -> None:
        self._traces = dict(traces or {})
        self._demand: tuple[Any, Demand] | None = None
        self._traffic: tuple[Any, TokenSource] | None = None

    def record(self, run: Run) -> Record:
        """Simulate; see ``archsim.runs.results.Record``."""
        started = datetime.now(UTC)
        engine = self.engine(run)
        begin = time.perf_counter()
        outcome = engine.run()
        wall_s = time.perf_counter() - begin
        finished = Finished(run, engine.demand, self._source(run.demand), outcome)
        return {
            "run": run.key,
            "row": measured(finished),
            "dies": finished.dies,
            "links": finished.links,
            "host": {
                "wall_s": round(wall_s, 6),
                "host": platform.node(),
                "started": started.isoformat(timespec="seconds"),
            },
        }

    def warm_up(self, run: Run) -> None:
        """Compile what the run needs, by running its first request for one decode step."""
        source, spec = self._source(run.demand), run.demand
        demand = build_demand(source, 1, 1, 0, origin_dies=spec.origin_dies, predictor=_predictor(spec))
        routing = source.steps(draw_requests(source.requests, 1, 0), 1) if run.limits_heatmap else None
        ENGINES[run.engine](run.system, run.model, run.policy, run.assumptions, demand, routing).run()

    def engine(self, run: Run) -> EventEngine:
        """The engine of a run, at its beginning."""
        demand, routing = self._demand_of(run.demand), None
        if run.limits_heatmap:
            source = self._source(run.demand)
            requests = draw_requests(source.requests, run.batch, run.workload.seed)
            routing = source.steps(requests, run.workload.decode_steps)
        return ENGINES[run.engine](run.system, run.model, run.policy, run.assumptions, demand, routing)

    def _demand_of(self, spec: DemandSpec) -> Demand:
        if self._demand is None or self._demand[0] != spec.key:
            self._demand = None  # two at a time may not fit in memory
            self._demand = spec.key, self._new_demand(spec)
        return self._demand[1]

    def _new_demand(self, spec: DemandSpec) -> Demand:
        source, workload = self._source(spec), spec.workload

        def build() -> Demand:
            predictor, dies = _predictor(spec), spec.origin_dies
            return build_demand(
                source, spec.batch, workload.decode_steps, workload.seed, origin_dies=dies, predictor=predictor
            )

        if spec.predicting and spec.predicting.prediction.is_function:
            return build()  # its code is not ours to know
        traffic = source.digest if isinstance(workload.trace, str) else f"{source.digest} {generated_digest(workload)}"
        return cached_demand(f"{traffic} {workload.decode_steps} {workload.seed} {spec.key}", build)

    def _source(self, spec: DemandSpec) -> TokenSource:
        layers = spec.workload.layers
        if not isinstance(spec.workload.trace, str):
            if self._traffic is None or self._traffic[0] != spec.key:
                self._traffic = spec.key, generated_traffic(spec.model, spec.workload.trace.synthetic, spec.batch, layers)
            return self._traffic[1]
        key = spec.workload.trace, spec.model.name
        if key not in self._traces:
            self._traces[key] = column_cache.load(spec.stored_trace) or open_trace(spec.workload.trace, spec.model)
        return some_layers(self._traces[key], layers)


def _predictor(spec: DemandSpec) -> Predictor | None:
    return build_policy(spec.predicting).predictor if spec.predicting else None
