"""A run: an engine driven through a batch's demands, with a barrier after each step; it keeps heatmap and history."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from archsim.base import compiled, errors, units
from archsim.engine import state, step_counts
from archsim.engine.balancing import BalancingTotals
from archsim.engine.ceilings import Ceilings, ceilings
from archsim.engine.decision import DecisionTotals
from archsim.engine.engine import EventEngine, StepTimes
from archsim.iteration.memory import Fit
from archsim.policies import allocation, heatmap, placement, ported_heatmap
from archsim.policies.rebalancing import History, Rebalanced, Rebalancing
from archsim.policies.seen_routing import SeenRouting, join_seen
from archsim.traffic.step_demand import Predicted, StepDemand
from archsim.traffic.trace import StepTokens
from microarch.blocks.global_cp import COUNTER_BITS
from microarch.fabric.fabric import Fabric


@dataclass(frozen=True)
class RunOutcome:
    """Outcome of the steps after ``workload.warmup_steps``; ``step_ns`` and ``load`` of the steps before are 0."""

    machine: state.Machine  # constants of the run
    fabric: Fabric  # of the machine
    fit: Fit  # how weights and KV fit in HBM
    memory: state.Memory  # as the run left it
    tally: state.Tally  # what was counted
    step_ns: np.ndarray  # float64[step, layer], decisions included
    load: np.ndarray  # int64[step, layer, die]: tokens assigned to each die
    prefill_ns: float  # of the prefill, decisions included
    decode_ns: float  # of all decode iterations, decisions included
    decision: DecisionTotals  # time of decisions by state
    heatmap_dropped: int  # token transitions that the heatmap dropped
    # how much less and more the GEMMs on the critical path of decode would take at their 5 % and 95 % residuals; None
    # without calibrated ones
    decode_residual_ns: tuple[float, float] | None
    gemm_extrapolated: float | None  # share of GEMM time at sizes outside the calibration; None without one
    migrations: tuple[Migration, ...]  # what rebalancing moved
    balancing: BalancingTotals  # what moving weights between steps cost
    ceilings: np.ndarray  # float64[step, layer, 3]: fields of `Ceilings`; 0 where nothing ran
    counts: step_counts.StepCounts  # what every step counted
    gemm_law: str = ""  # measured kernels behind GEMMs
    power: Any = None  # of a system with limits: archsim.runs.clocks.PowerState
    counted: Mapping[str, float] = field(default_factory=dict)  # columns of a user's own execution


class Migration(NamedTuple):
    """A new placement from iteration ``step`` on. ``moves``: archsim.policies.placement.WEIGHT_MOVE[n]."""

    step: int
    moves: np.ndarray


class StepResult(NamedTuple):
    """A step that has run: its position in the run, its demand and its times."""

    layer: int
    demand: StepDemand
    times: StepTimes

    @property
    def step(self) -> int:
        return self.demand.step


class LimitedHeatmap:
    """``heatmap_update: limited``: a heatmap that its port can update only for as long as each step takes."""

    def __init__(self, engine: EventEngine, predictor: heatmap.Predictor, routing: Iterable[StepTokens]):
        model, fsm = engine.scenario.model, engine.scenario.system.decision.fsm
        self._map = ported_heatmap.PortedHeatmap(
            routing=iter(routing), batch=engine.scenario.batch, layers=engine.layers, experts=model.experts,
            top_k=model.top_k, predictor=predictor, per_word=max(1, fsm.heatmap_port_bits // COUNTER_BITS),
            count=engine.count_pairs,
        )  # fmt: skip
        cycles = ported_heatmap.cycles_per_transition(model.experts, model.top_k, fsm.heatmap_port_bits)
        self._ns_per_transition = cycles * units.NS_PER_S / fsm.clock_hz
        halving = ported_heatmap.cycles_per_halving(model.experts, fsm.heatmap_port_bits)
        self._ns_per_halving = halving * units.NS_PER_S / fsm.clock_hz
        self._owed_ns = 0.0  # halvings of the step before take the port first
        self.dropped = 0

    def begin(self, step: int) -> None:
        self._map.begin(step)

    def predictions(self, layer: int) -> Predicted:
        """The prediction for a step."""
        begin = time.perf_counter_ns()
        rows = self._map.hot(layer)
        return Predicted(rows, time.perf_counter_ns() - begin)

    def update(self, layer: int, step_ns: float) -> None:
        """A step has taken ``step_ns``, decisions excluded."""
        free_ns, before = max(0.0, step_ns - self._owed_ns), self._map.halvings
        self._owed_ns = max(0.0, self._owed_ns - step_ns)
        self.dropped += self._map.take_in(layer, int(free_ns / self._ns_per_transition))
        self._owed_ns += (self._map.halvings - before) * self._ns_per_halving


class Balancer:
    """Calls the policy's rebalancing between iterations, and has the engine migrate."""

    def __init__(self, engine: EventEngine, rebalancing: Rebalancing):
        self._engine, self._rebalancing = engine, rebalancing
        self._steps: list[list[StepResult]] = []
        self._since = 0  # iterations since the last call
        self.migrations: list[Migration] = []

    def add(self, result: StepResult) -> None:
        """A step has run."""
        if not self._steps or self._steps[-1][0].step != result.step:
            self._steps.append([])
            self._since += 1
            if self._rebalancing.window_steps is not None:
                del self._steps[: -self._rebalancing.window_steps]
        self._steps[-1].append(result)

    def next_step(self, step: int, now_ns: float) -> float:
        """Iteration ``step`` is about to begin; returns the time from which it may."""
        engine, settled = self._engine, self._engine.settle()
        if not settled or self._since < self._rebalancing.due(len(self.migrations)):
            return now_ns
        old, found = engine.placement, self._rebalancing.rule(self._history(), engine.placement)
        new, effort = found if isinstance(found, Rebalanced) else Rebalanced(found)
        new = replace(new, buffers=old.buffers)
        moves = placement.moves_between(old, new, engine.expert_bytes, engine.fabric.hops)
        self._since = 0
        if self._rebalancing.window_steps is None:
            self._steps.clear()
        self.migrations.append(Migration(step, moves))
        return engine.migrate(new, moves, now_ns, effort)

    def _seen(self) -> SeenRouting | None:
        of_steps = [results[0].demand.seen for results in self._steps]
        return join_seen([each for each in of_steps if each is not None])

    def _history(self) -> History:
        engine, steps = self._engine, len(self._steps)
        shape = steps, engine.layers
        history = History(
            rows=engine.rows.copy(),
            tokens=np.zeros((*shape, engine.scenario.model.experts), np.int32),
            load=np.zeros((*shape, engine.machine.dies), np.int64),
            step_ns=np.zeros(shape),
            costs=engine.costs,
            speed=engine.array_speeds(step_counts.DECODE)
            if engine.scenario.policy.needs_speeds("rebalancing")
            else None,
            seen=self._seen() if engine.scenario.policy.needs_routing("rebalancing") else None,
            call=len(self.migrations),
        )
        for step, results in enumerate(self._steps):
            for result in results:
                at = step, result.layer
                history.tokens[at] = result.demand.tokens
                history.load[at] = load_of(result.times.plan, engine.machine.dies)
                history.step_ns[at] = result.times.step_ns
        return history


@dataclass
class Elapsed:
    """Time of a run so far, in ns: of one machine, or float64[machine] each."""

    _end_ns: Any = 0.0
    _exposed_ns: Any = 0.0
    _prefill_end_ns: Any = 0.0
    _prefill_exposed_ns: Any = 0.0

    def add(self, end_ns: Any, exposed_ns: Any, prefill: bool) -> None:
        """A step of the prefill, or of decode, ended ``end_ns`` after the run began; its decision added to it."""
        self._end_ns, self._exposed_ns = end_ns, self._exposed_ns + exposed_ns
        if prefill:
            self._prefill_end_ns, self._prefill_exposed_ns = self._end_ns, self._exposed_ns

    @property
    def prefill_ns(self) -> Any:
        return self._prefill_end_ns + self._prefill_exposed_ns

    @property
    def decode_ns(self) -> Any:
        return self._end_ns - self._prefill_end_ns + (self._exposed_ns - self._prefill_exposed_ns)


def load_of(plan: allocation.Plan, dies: int) -> np.ndarray:
    """Tokens assigned to each die, int64[die]."""
    load = np.zeros(dies, np.int64)
    _add_up(plan.die, plan.tokens, load)
    return load


@compiled.kernel
def _add_up(die, tokens, load):
    for at in range(len(die)):
        load[die[at]] += tokens[at]


class Replay:
    """A run of an engine through ``demands``: (MoE layer, ``StepDemand``) in the order of time, steps without tokens
    left out.

    With ``workload.warmup_steps``, the prefill and that many decode iterations run without being counted. ``routing``:
    the batch's ``StepTokens`` in order of iteration; required if a policy predicts and heatmap updates are limited
    (ValueError if missing).
    """

    def __init__(
        self,
        engine: EventEngine,
        demands: Iterable[tuple[int, StepDemand]],
        routing: Iterable[StepTokens] | None = None,
    ):
        self.engine, self.demands = engine, demands
        policy = engine.policy
        # a policy that predicts nothing sees no predictions, even if the demand, shared with another one, has them
        self._predicts = policy.predictor is not None
        self._heatmap: LimitedHeatmap | None = None
        if policy.predictor is not None and engine.scenario.assumptions.heatmap_update == "limited":
            if routing is None:
                raise ValueError("heatmap_update: limited needs the routing of the batch")
            self._heatmap = LimitedHeatmap(engine, policy.predictor, routing)
        self._balancer = Balancer(engine, policy.rebalancing) if policy.rebalancing is not None else None
        self._warmup_left = engine.scenario.workload.warmup_steps
        self._counts, self._begin_ns = not self._warmup_left, 0.0
        self._of_steps = step_counts.StepCounts(engine.machine, engine.tally)

    def steps(self) -> Iterator[StepResult]:
        """Run every step, in order."""
        now_ns, iteration = 0.0, None
        for layer, demand in self.demands:
            if demand.step != iteration:
                iteration = demand.step
                if self._balancer is not None:
                    now_ns = self._balancer.next_step(iteration, now_ns)
                if self._heatmap is not None:
                    self._heatmap.begin(iteration)
                if not self._counts and not demand.prefill_tokens.any():
                    self._warm_up(now_ns)
            if self._heatmap is not None:
                demand = demand._replace(predicted=self._heatmap.predictions(layer))
            elif not self._predicts and demand.predicted is not None:
                demand = demand._replace(predicted=None)
            result = StepResult(layer, demand, self.engine.step(layer, demand, now_ns))
            now_ns = result.times.end_ns
            if self._heatmap is not None:
                self._heatmap.update(layer, result.times.end_ns - result.times.begin_ns)
            if self._balancer is not None:
                self._balancer.add(result)
            yield result

    def _warm_up(self, now_ns: float) -> None:
        """A decode iteration begins: it belongs to the warm-up, or counting begins with it."""
        if self._warmup_left:
            self._warmup_left -= 1
            return
        self._count_anew()
        self._counts, self._begin_ns = True, now_ns

    def _count_anew(self) -> None:
        self.engine.count_anew()
        if self._heatmap is not None:
            self._heatmap.dropped = 0
        self._of_steps.forget()

    def run(self) -> RunOutcome:
        """Run all steps; raises ArchsimError if the user's policy returns a plan that does not fit the demand."""
        engine, tally = self.engine, self.engine.tally
        took: list[tuple[int, int, float]] = []
        loads: list[np.ndarray] = []
        least: list[Ceilings] = []
        elapsed = Elapsed()
        prefill_residual_ns = np.zeros(2)
        for result in self.steps():
            if not self._counts:
                continue
            took.append((result.step, result.layer, result.times.step_ns))
            loads.append(load_of(result.times.plan, engine.machine.dies))
            prefill, times = bool(result.demand.prefill_tokens.any()), result.times
            exposed, loaded = times.exposed_ns, (loads[-1], result.demand.tokens, times.plan)
            elapsed.add(times.end_ns - self._begin_ns, exposed, prefill)
            end_ns = elapsed.prefill_ns + elapsed.decode_ns
            self._of_steps.add(result.step, result.layer, prefill, times.step_ns, exposed, end_ns, *loaded)
            least.append(ceilings(result.demand.tokens, result.times.holders, result.times.slots))
            if prefill:
                prefill_residual_ns = tally.residual_ns.copy()
        if not self._counts:  # the run ended before its warm-up did
            self._count_anew()
        steps = max((step for step, *_ in took), default=-1) + 1
        step_ns, load = (
            np.zeros((steps, engine.layers)),
            np.zeros((steps, engine.layers, engine.machine.dies), np.int64),
        )
        bounds = np.zeros((steps, engine.layers, len(Ceilings._fields)))
        for (step, layer, ns), tokens, each in zip(took, loads, least, strict=True):
            step_ns[step, layer], load[step, layer], bounds[step, layer] = ns, tokens, each
        gemm, residual_ns = engine.execution.gemm_time(), tally.residual_ns - prefill_residual_ns
        return RunOutcome(
            machine=engine.machine, fabric=engine.fabric, fit=engine.fit, memory=engine.memory, tally=tally,
            step_ns=step_ns, load=load, prefill_ns=elapsed.prefill_ns, decode_ns=elapsed.decode_ns,
            decision=engine.decision.totals, heatmap_dropped=0 if self._heatmap is None else self._heatmap.dropped,
            decode_residual_ns=(float(residual_ns[0]), float(residual_ns[1])) if gemm.calibrated_ns else None,
            gemm_extrapolated=gemm.extrapolated_ns / gemm.calibrated_ns if gemm.calibrated_ns else None,
            migrations=() if self._balancer is None else tuple(self._balancer.migrations),
            balancing=engine.balancing.totals, ceilings=bounds, counts=self._of_steps, gemm_law=gemm.law,
            counted=getattr(engine.execution, "counted", dict)(),
        )  # fmt: skip

    def trace_step(self, step: int, layer: int) -> dict[str, np.ndarray]:
        """Run up to a step and return its log; ``layer`` counts those that run. ArchsimError: no demand, or no log."""
        execution = self.engine.execution
        if not hasattr(execution, "log"):
            raise errors.ArchsimError(
                f"execution {type(execution).__name__} has no method 'log', which timelines need "
                "(archsim.engine.execution.Execution). Add it, or take execution: weight_streaming"
            )
        for result in self.steps():
            if (result.step, result.layer) == (step, layer):
                return execution.log(result.times.begin_ns)
        raise errors.ArchsimError(f"step {step}, MoE layer {layer} of the trace: nothing is routed there")
