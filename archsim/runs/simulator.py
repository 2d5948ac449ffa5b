"""Runs simulated one after the other in one process; runs that share a demand build it once."""

import platform
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from archsim.base import errors, own_code
from archsim.engine.demand import RunDemand, RunSum, build_run_demand
from archsim.engine.engine import EventEngine, shares_plans
from archsim.engine.loop import Replay, RunOutcome
from archsim.engine.state import counted_in
from archsim.policies import allocation, heatmap, registry
from archsim.runs import columns, packed_steps
from archsim.runs.clocks import FULL, Clocks, has_limits, set_clocks, within_limits
from archsim.runs.finished import Finished
from archsim.runs.measures import frames, units
from archsim.runs.measures.iteration import whole_iteration
from archsim.runs.physical_laws import broken_laws, find_broken
from archsim.runs.run import ROW, DemandSpec, Record, Run, Workspace, generated_digest, plain_text
from archsim.specs.engines import ENGINES
from archsim.traffic import column_cache, layer_subset, trace, traffic_presets
from archsim.traffic.demand import sum_together
from archsim.traffic.demand_cache import built_together, cached_demand, missing
from archsim.traffic.larger_batches import extend_trace

_MOST_OUTCOMES = 64
_MOST_SELECTIONS = 50_000_000  # two bytes each
_MOST_PLANS = 16  # runs whose plans are kept for machines that differ in rates alone, a few MB each


class Drawn(NamedTuple):
    """The stream of a batch of generated traffic."""

    source: trace.TokenSource
    requests: np.ndarray
    pieces: list[trace.StepTokens]


@dataclass(frozen=True)
class Remembered(trace.Derived):
    """Generated traffic whose latest stream of at most ``most`` selections stays in ``streams``, by ``name``, as
    several demands read it. A smaller batch reads its beginning, and draws only requests that are routed otherwise.
    """

    name: tuple
    streams: dict[tuple, Drawn]
    most: int = _MOST_SELECTIONS

    @property
    def itself(self) -> trace.TokenSource:
        return self.source

    def __getattr__(self, name: str) -> Any:  # what a kind of traffic has of its own
        if name == "source":
            raise AttributeError(name)
        return getattr(self.source, name)

    def steps(self, requests: np.ndarray, decode_steps: int) -> Iterator[trace.StepTokens]:
        """See `archsim.traffic.trace.TokenSource.steps`. Pieces are not to be written."""
        named = zlib.crc32(np.ascontiguousarray(requests).data)
        key = self.name, self.source.digest, named, len(requests), decode_steps
        if key in self.streams:
            yield from self.streams[key].pieces
            return
        for (name, *_, steps), drawn in self.streams.items():
            is_first = np.array_equal(drawn.requests[: len(requests)], requests)
            if name == self.name and steps == decode_steps and is_first:
                identical = trace.identical_requests(self.source, drawn.source)[requests]
                if identical.any():
                    yield from self._beginning(drawn, requests, decode_steps, identical)
                    return
        self.streams.clear()
        pieces, selections = [], 0
        for piece in self.source.steps(requests, decode_steps):
            selections += piece.experts.size
            if selections <= self.most:
                pieces.append(piece)
            else:
                pieces.clear()
            yield piece
        if selections <= self.most:
            self.streams[key] = Drawn(self.source, requests, pieces)

    def _beginning(
        self, drawn: Drawn, requests: np.ndarray, decode_steps: int, identical: np.ndarray
    ) -> Iterator[trace.StepTokens]:
        """The stream of the first requests of what was drawn; those that are not ``identical`` are drawn now."""
        others = self.source.steps(requests[~identical], decode_steps)  # in the same order
        left = np.empty((0, len(self.layer_ids), self.top_k), np.int16)
        for whole in drawn.pieces:
            piece = whole.first(int(np.searchsorted(whole.request, len(requests))))
            rows = np.flatnonzero(~identical[piece.request])
            if len(rows):
                experts = piece.experts.copy()
                while len(left) < len(rows):
                    left = np.concatenate([left, next(others).experts])
                experts[rows], left = left[: len(rows)], left[len(rows) :]
                piece = replace(piece, experts=experts)
            if len(piece.request):
                yield piece


class Simulator:
    """Keeps demand and traffic of the latest run, outcomes for later ones, traces: (path, model) → open trace."""

    def __init__(self, traces: dict[tuple[str, str], trace.Trace] | None = None) -> None:
        self._traces = dict(traces or {})
        self._demand: tuple[Any, RunDemand] | None = None
        self._traffic: tuple[Any, trace.TokenSource] | None = None
        self._streams: dict[tuple, Drawn] = {}  # of `Remembered`
        self._outcomes: dict[str, tuple[RunOutcome, float]] = {}  # by Run.simulation, with its wall time
        self._clocks: dict[str, Clocks] = {}  # by Run.key, of systems with limits
        self._plans: dict[tuple, dict[tuple[int, int], allocation.Plan]] = {}

    def record(self, run: Run, details: bool = True) -> Record:
        """Simulate (`archsim.runs.run.Record`); without ``details``, no pairs, frames and steps."""
        started = datetime.now(UTC)
        demand = self._demand_of(run.demand)
        outcome, wall_s = self._outcome_of(run)
        host = {
            "wall_s": round(wall_s, 6),
            "host": platform.node(),
            "started": started.isoformat(timespec="seconds"),
        }
        finished = Finished(run, demand, self._source(run.demand), outcome)
        row, dies, links = columns.row_of(finished)
        record = {"run": run.key, "row": row, "host": host, "dies": dies, "links": links}
        if details:
            record["pairs"], record["frames"] = (
                units.measure_pairs(outcome),
                frames.measure_frames(outcome),
            )
            record["steps"] = packed_steps.pack(units.measure_steps(finished))
        row["broken_laws"] = find_broken(broken_laws(finished, record), run.name)
        return record if details else {name: record[name] for name in ROW}

    def _outcome_of(self, run: Run) -> tuple[RunOutcome, float]:
        """The outcome, simulated or of a run that differs only in how results are counted; wall time
        of the simulation.
        """
        if run.cacheable and run.simulation in self._outcomes:
            return self._outcomes[run.simulation]
        begin = time.perf_counter()
        outcome = self._simulated(run)
        found = outcome, time.perf_counter() - begin
        if run.cacheable:
            self._outcomes[run.simulation] = replace(outcome, memory=counted_in(outcome.memory)), found[1]
        if len(self._outcomes) > _MOST_OUTCOMES:
            del self._outcomes[next(iter(self._outcomes))]
        return found

    def times(self, run: Run) -> tuple[float, float]:
        """ns of decode and of prefill; nothing else is measured, and nothing kept."""
        outcome = self._simulated(run)
        return outcome.decode_ns, outcome.prefill_ns

    def iteration(self, run: Run) -> dict[str, Any]:
        """Columns of the whole iteration; nothing else is measured, and nothing kept."""
        return whole_iteration(Finished(run, self._demand_of(run.demand), None, self._simulated(run)))

    def _simulated(self, run: Run) -> RunOutcome:
        return self._within_limits(run) if has_limits(run.system) else self._replay(run, FULL).run()

    def warm_up(self, run: Run) -> None:
        """Compile the run's kernels by running its first request for one decode step."""
        source, spec = self._source(run.demand), run.demand
        demand = build_run_demand(
            source, 1, 1, 0, routing=spec.routing, origin_dies=spec.origin_dies, predictor=_predictor(spec),
            shaped_by=spec.shaped_by, seen=spec.seen,
        )  # fmt: skip
        routing = source.steps(trace.draw_requests(source.requests, 1, 0), 1) if run.limits_heatmap else None
        engine = engine_of(run.engine)(replace(run, batch=1), demand.layer_ids.tolist())
        Replay(engine, demand, routing).run()

    def _within_limits(self, run: Run) -> RunOutcome:
        """The outcome at the clocks of the limits of the system; see ``archsim.runs.clocks``."""
        outcome, clocks, state = within_limits(run, lambda clocks: self._replay(run, clocks).run())
        self._clocks[run.key] = clocks
        return replace(outcome, power=state)

    def replay(self, run: Run) -> Replay:
        """The run, not yet started; its ``demands`` are a ``RunDemand``."""
        if has_limits(run.system) and run.key not in self._clocks:
            self._within_limits(run)
        return self._replay(run, self._clocks.get(run.key, FULL))

    def _replay(self, run: Run, clocks: Clocks) -> Replay:
        demand, routing = self._demand_of(run.demand), None
        if run.limits_heatmap:
            routing = self._routing_of(run)
        engine = engine_of(run.engine)(run, demand.layer_ids.tolist())
        if clocks != FULL:
            set_clocks(engine, clocks)
        elif run.system.drawn is not None:
            engine.plans = self._plans_of(run)
        return Replay(engine, demand, routing)

    def _routing_of(self, run: Run) -> Iterable[trace.StepTokens]:
        source = self._source(run.demand)
        requests = trace.draw_requests(source.requests, run.batch, run.workload.seed)
        return source.steps(requests, run.workload.decode_steps)

    def _plans_of(self, run: Run) -> dict[tuple[int, int], allocation.Plan] | None:
        """The plans of a drawn machine, which machines share that differ in rates alone. None for other runs."""
        system = run.system
        built, drawn = system.built, system.drawn
        if built is None or drawn is None or drawn.link_failure or not shares_plans(run):
            return None
        router = system.dies_as_built.router if system.dies_as_built is not None else ""
        links = "" if system.links_as_built is None else plain_text(system.links_as_built)
        parts = (system.as_made.model_copy(update={"name": "-"}), run.model, run.policy, run.assumptions)
        of_machine = built.living, built.dead, built.sides, router, links
        key = (*of_machine, *map(plain_text, parts), run.batch, run.demand.key)
        if key not in self._plans and len(self._plans) >= _MOST_PLANS:
            del self._plans[next(iter(self._plans))]
        return self._plans.setdefault(key, {})

    def _demand_of(self, spec: DemandSpec) -> RunDemand:
        if self._demand is None or self._demand[0] != spec.key:
            self._forget_demand()
            source = self._source(spec)

            def build(folder: Path | None = None) -> RunDemand:
                one = _sum_of(source, spec, folder)
                sum_together([one])
                return one.demand()

            made = build() if _is_users(spec) else cached_demand(RunDemand, _entry_of(source, spec), build)
            self._demand = spec.key, made
        return self._demand[1]

    def _forget_demand(self) -> None:
        """Before another is built: two at a time may not fit in memory."""
        self._demand = None
        self._outcomes.clear()

    def gather(self, specs: Sequence[DemandSpec]) -> None:
        """Build the demands of batches of the same traffic in one pass over it, for later runs and other processes."""
        whole = max(specs, key=lambda each: each.batch)
        source, seed = self._new_source(whole), whole.workload.seed
        absent: dict[str, tuple[trace.TokenSource, DemandSpec]] = {}
        for spec in specs:
            first = self._new_source(spec)
            if not _is_users(spec) and trace.is_first_of(first, spec.batch, source, whole.batch, seed):
                absent[_entry_of(first, spec)] = first, spec
        wanted = missing(list(absent))
        if len(wanted) < 2:
            return

        def build(folders: Sequence[Path | None]) -> list[RunDemand]:
            if None in folders:  # nothing can be cached: each run builds its own
                return []
            sums = [_sum_of(*absent[name], folder) for name, folder in zip(wanted, folders, strict=True)]
            sum_together(sums)
            return [each.demand() for each in sums]

        self._forget_demand()
        built_together(wanted, build)

    def _source(self, spec: DemandSpec) -> trace.TokenSource:
        if self._traffic is None or self._traffic[0] != spec.key:
            self._traffic = spec.key, self._new_source(spec)
        return self._traffic[1]

    def _new_source(self, spec: DemandSpec) -> trace.TokenSource:
        workload = spec.workload
        if not isinstance(workload.trace, str):
            drawn = traffic_presets.generated_traffic(spec.model, workload.trace.synthetic, spec.batch, workload.layers)
            return Remembered(drawn, spec.key[:2], self._streams)
        key = workload.trace, spec.model.name
        if key not in self._traces:
            from archsim.traffic.formats.readers import open_trace

            stored = column_cache.get(spec.stored_trace)
            self._traces[key] = stored or open_trace(workload.trace, spec.model, workload.reader)
        source = extend_trace(self._traces[key], spec.batch, workload.extend, workload.seed)
        return layer_subset.some_layers(source, workload.layers)


def simulator_of(workspace: Workspace) -> Simulator:
    """What simulates the runs of a process, with the traces that are open there."""
    return Simulator(workspace.traces)


def _is_users(spec: DemandSpec) -> bool:
    """Whether a user's code takes part, whose changes the cache cannot see, or the demand is of no use to others."""
    if spec.seen:  # single tokens fill it
        return True
    own = [policy for policy in (spec.predicting, spec.shaped_by) if policy]
    return any(policy.prediction.is_function or policy.routing.is_function for policy in own)


def _entry_of(source: trace.TokenSource, spec: DemandSpec) -> str:
    traffic, workload = source.digest, spec.workload
    if not isinstance(workload.trace, str):
        traffic += f" {generated_digest(workload, spec.model)}"
    return f"{traffic} {workload.decode_steps} {workload.seed} {spec.key}"


def _sum_of(source: trace.TokenSource, spec: DemandSpec, folder: Path | None) -> RunSum:
    return RunSum(
        source, spec.batch, spec.workload.decode_steps, spec.workload.seed, origin_dies=spec.origin_dies,
        predictor=_predictor(spec), routing=spec.routing, shaped_by=spec.shaped_by, folder=folder,
        seen=spec.seen,
    )  # fmt: skip


# What of a system decides no refusal when an engine is built: rates, times and sizes, which laws scale with.
_RATES: Any = {
    "name": True, "source": True, "hbm": True, "llc": True, "power": True, "cooling": True,
    "d2d": {"bandwidth_bytes_per_s", "hop_latency_ns", "efficiency", "request_bytes", "off_carrier", "measured_factor"},
    "compute": {"peak_flop_per_s", "efficiency", "kernel_factor", "kernels", "lanes", "clock_hz"},
}  # fmt: skip


def refusals(runs: Iterable[Run]) -> Iterator[tuple[Run, str]]:
    """Runs that would fail before their first step, and why. Of runs that differ in rates alone, one is built."""
    known: dict[tuple[str, ...], str] = {}
    for run in runs:
        system, parts = run.system.model_dump_json(exclude=_RATES), (run.policy, run.deployment)
        key = run.engine, run.model.name, run.assumptions.label, system, *(each.model_dump_json() for each in parts)
        if key not in known:
            known[key] = ""
            try:
                engine_of(run.engine)(run, list(run.model.moe_layer_ids))
            except own_code.CodeNotImported:
                raise
            except errors.ArchsimError as error:
                known[key] = str(error)
        if known[key]:
            yield run, known[key]


def engine_of(name: str) -> type[EventEngine]:
    """The engine of a row of `archsim.specs.engines.ENGINES`."""
    module, _, kind = ENGINES[name].target.partition(":")
    engine: type[EventEngine] = getattr(import_module(module), kind)
    return engine


def _predictor(spec: DemandSpec) -> heatmap.Predictor | None:
    return registry.build_policy(spec.predicting).predictor if spec.predicting else None
