"""The event engine: every step of a run, in order, with a barrier after each.

    demand of the step -> policy -> plan, cp_en bits -> work -> kernel of the contention strategy -> end of the step

Contention is a strategy with a name: ``reserved`` (``archsim.engine.event.reserved``) or ``shared``
(``archsim.engine.event.shared``); both run the same ``Work`` through the table of ``microarch.blocks.request``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.engine.decision import DecisionTotals, build_decision, global_die
from archsim.engine.event.reserved import ReservedKernel
from archsim.engine.event.shared import SharedKernel
from archsim.engine.machine import NS_PER_S, Fit, build_machine, build_memory, policy_costs, refuse_misfit
from archsim.engine.state import Machine, Memory, Tally, Work, new_tally
from archsim.engine.transitions import NoLog, TransitionLog
from archsim.engine.work import WorkBuilder
from archsim.policies.allocation.rules import Plan, StepView
from archsim.policies.prediction.heatmap import copy_bits
from archsim.policies.prediction.ported_heatmap import PortedHeatmap, cycles_per_transition
from archsim.policies.registry import build_policy
from microarch.blocks.request import State
from microarch.fabric.fabric import Fabric

KERNELS = {"reserved": ReservedKernel, "shared": SharedKernel}


@dataclass(frozen=True)
class Outcome:
    """What a run did.

    ``step_ns``: float64[step, layer], decisions included; ``load``: int64[step, layer, die] tokens given to each die;
    ``decision``: time of decisions by state; ``heatmap_dropped``: token transitions that the heatmap did not take in;
    ``decode_residual_ns``: how much less and more the GEMMs on the critical path of decode would take at the 5 % and 95 %
    residuals of their calibration; ``gemm_extrapolated``: share of GEMM time at sizes outside it. None without one.
    """

    machine: Machine
    fabric: Fabric
    fit: Fit
    memory: Memory
    tally: Tally
    step_ns: np.ndarray
    load: np.ndarray
    prefill_ns: float
    decode_ns: float
    decision: DecisionTotals
    heatmap_dropped: int
    decode_residual_ns: tuple[float, float] | None
    gemm_extrapolated: float | None


class StepResult(NamedTuple):
    """``begin_ns``, ``end_ns``: on the clock of the machine without decisions; ``exposed_ns``: what the decision adds."""

    step: int
    layer: int
    begin_ns: float
    end_ns: float
    exposed_ns: float
    plan: Plan


class PrecomputedHeatmap:
    """``heatmap_update: free``: what each expert predicts was found when the demand was built."""

    dropped = 0

    def __init__(self, demand):
        self._demand, self._step = demand, 0

    def begin(self, step: int) -> None:
        self._step = step

    def hot(self, layer: int) -> np.ndarray:
        return self._demand.hot[self._step, layer]

    def update(self, layer: int, step_ns: float) -> None:
        pass


class LimitedHeatmap:
    """``heatmap_update: limited``: the heatmap behind its port, which has the time of a step for the step's pairs."""

    def __init__(self, demand, routing, predictor, fsm):
        self._map = PortedHeatmap(routing, demand.batch, demand.layers, demand.experts, demand.top_k, predictor)
        cycles = cycles_per_transition(demand.experts, demand.top_k, fsm.heatmap_port_bits)
        self._ns_per_transition = cycles * NS_PER_S / fsm.clock_hz
        self.dropped = 0

    def begin(self, step: int) -> None:
        self._map.begin(step)

    def hot(self, layer: int) -> np.ndarray:
        return self._map.hot(layer)

    def update(self, layer: int, step_ns: float) -> None:
        self.dropped += self._map.take_in(layer, int(step_ns / self._ns_per_transition))


class EventEngine:
    """One run: a system serving a batch of a model under a policy and a set of assumptions.

    ``routing``: the batch's ``StepTokens`` in order of iteration; needed where a policy predicts and the heatmap's updates
    are limited (ValueError if it is missing). ``keep_transitions``: keep what the command processors do
    (``archsim.engine.transitions``), for ``transitions``.
    """

    def __init__(self, system, model, policy_spec, assumptions, demand, routing=None, keep_transitions=False):
        self.policy = build_policy(policy_spec)
        self.demand = demand
        self.home = np.asarray(self.policy.place(model.experts, system.dies), np.int32)
        self.fit = refuse_misfit(system, model, assumptions, self.home)
        self.machine, self.fabric = build_machine(system, model, assumptions)
        self.memory = build_memory(system, model, assumptions, demand.layers, self.fit)
        self.tally = new_tally(self.machine, len(State))
        self.decision = build_decision(system, model, assumptions, self.machine, self.fabric)
        self._costs = policy_costs(system, model)
        self._ids = model.experts + model.shared_experts
        self._until_own_id = assumptions.prediction_rows == "until_own_id"
        self._heatmap = self._build_heatmap(system, assumptions, routing)
        copies = self._heatmap is not None
        self._builder = WorkBuilder(system, model, assumptions, self.machine, self.fabric, self.home, copies)
        self._log = TransitionLog(system.dies, global_die(self.fabric)) if keep_transitions else NoLog()
        self._kernel = self._build_kernel(assumptions)

    def _build_kernel(self, assumptions):
        return KERNELS[assumptions.contention](self.machine, self.fabric, assumptions)

    def _build_heatmap(self, system, assumptions, routing):
        if self.policy.predictor is None:
            return None
        if assumptions.heatmap_update == "free":
            return PrecomputedHeatmap(self.demand)
        if routing is None:
            raise ValueError("heatmap_update: limited needs the routing of the batch")
        return LimitedHeatmap(self.demand, routing, self.policy.predictor, system.decision.fsm)

    def run(self) -> Outcome:
        """Run all steps; raises ArchsimError if the user's policy returns a plan that does not fit the demand."""
        demand = self.demand
        step_ns = np.zeros((demand.steps, demand.layers))
        load = np.zeros((demand.steps, demand.layers, self.machine.dies), np.int64)
        end_ns = prefill_ns = exposed_ns = prefill_exposed_ns = 0.0
        prefill_residual_ns = np.zeros(2)
        for result in self.steps():
            at = result.step, result.layer
            step_ns[at] = result.end_ns - result.begin_ns + result.exposed_ns
            load[at] = np.bincount(result.plan.die, result.plan.tokens, self.machine.dies)
            end_ns, exposed_ns = result.end_ns, exposed_ns + result.exposed_ns
            if result.step == 0 and demand.has_prefill:
                prefill_ns, prefill_exposed_ns = end_ns, exposed_ns
                prefill_residual_ns = self.tally.residual_ns.copy()
        gemm = self._builder.gemm
        residual_ns = self.tally.residual_ns - prefill_residual_ns
        return Outcome(
            self.machine, self.fabric, self.fit, self.memory, self.tally, step_ns, load,
            prefill_ns=prefill_ns + prefill_exposed_ns,
            decode_ns=end_ns - prefill_ns + (exposed_ns - prefill_exposed_ns),
            decision=self.decision.totals,
            heatmap_dropped=self._heatmap.dropped if self._heatmap else 0,
            decode_residual_ns=(float(residual_ns[0]), float(residual_ns[1])) if gemm.calibrated_ns else None,
            gemm_extrapolated=gemm.extrapolated_ns / gemm.calibrated_ns if gemm.calibrated_ns else None,
        )

    def steps(self) -> Iterator[StepResult]:
        """Every step that has demand, in order."""
        now, before_ns = 0.0, 0.0
        for step in range(self.demand.steps):
            if self._heatmap:
                self._heatmap.begin(step)
            for layer in range(self.demand.layers):
                if not self.demand.tokens[step, layer].any():
                    continue
                result = self._step(step, layer, now, before_ns)
                now, before_ns = result.end_ns, result.end_ns - result.begin_ns
                yield result

    def _step(self, step: int, layer: int, now: float, before_ns: float) -> StepResult:
        """Decide, run, report: one step that begins at ``now``, behind one that took ``before_ns``."""
        plan = self.plan(step, layer)
        bits = self.decision.predict(self._copy_bits, layer, plan)
        rows = 0 if bits is None else int(np.count_nonzero(np.diff(plan.expert))) + 1  # entries are in order of expert
        written = self.tally.dies["write_bytes"].sum()
        self._log.begin()
        ready_ns = self.decision.before_step(plan, rows)
        work = self._work(step, layer, plan, bits)._replace(cp_ready_ns=ready_ns, notes=self._log.notes)
        end = self._kernel.step(work, self.memory, self.tally, now)
        copies = int(self.tally.dies["write_bytes"].sum() - written) // self.machine.slice_bytes
        if self._heatmap:
            self._heatmap.update(layer, end - now)
        exposed_ns = self.decision.after_step(plan, rows, copies, before_ns, end - now)
        self._log.add(step, layer, self.decision, before_ns, end - now)
        return StepResult(step, layer, now, end, exposed_ns, plan)

    def transitions(self) -> dict[str, np.ndarray]:
        """What the command processors did in the steps that were run: the table of ``archsim.engine.transitions``.

        Raises ValueError if the engine was not asked to keep it.
        """
        if not isinstance(self._log, TransitionLog):
            raise ValueError("the engine was not built with keep_transitions")
        return self._log.columns()

    def trace_step(self, step: int, layer: int) -> dict[str, np.ndarray]:
        """Run up to a step and return its log (``archsim.engine.event.steplog``). ``layer`` counts the demand's MoE layers.

        Raises ArchsimError if the step has no demand.
        """
        for result in self.steps():
            if (result.step, result.layer) == (step, layer):
                return self._kernel.log(result.begin_ns)
        raise ArchsimError(f"step {step}, MoE layer {layer} of the trace: nothing is routed there")

    def plan(self, step: int, layer: int) -> Plan:
        """The policy's plan of a step, checked if it is a user's own."""
        demand, experts = self.demand, self.demand.experts
        begin = layer * self._ids
        view = StepView(
            tokens=demand.tokens[step, layer],
            first_seen=demand.first_seen[step, layer],
            home=self.home,
            copied_slices=self.memory.copies.slices[begin : begin + experts],
            hops=self.fabric.hops,
            costs=self._costs,
        )
        plan = self.decision.decide(self.policy.allocate, view)
        _check(plan, view)
        return plan

    def _copy_bits(self, layer: int, plan: Plan) -> np.ndarray | None:
        """The cp_en bits of a step, uint8[die, expert]; None where nothing is predicted."""
        if self._heatmap is None:
            return None
        hot = self._heatmap.hot(layer)
        if not hot.any():
            return None
        bits = copy_bits(plan.expert, plan.die, hot, self.machine.dies, self._ids, self._until_own_id)
        bits[self.memory.copies.room["limit_bytes"] < self.machine.slice_bytes] = 0  # no copy would ever fit there
        return bits

    def _work(self, step: int, layer: int, plan: Plan, bits: np.ndarray | None) -> Work:
        """The chains and moves of a step."""
        origins = self.demand.origins[step, layer] if self._builder.needs_origins else None
        return self._builder.build(layer, plan, origins, self.demand.top_k, bits, self.memory)


def _check(plan: Plan, view: StepView) -> None:
    """Every token of every expert is given to a die of the system, once; entries are in order of expert."""
    given = np.bincount(plan.expert, plan.tokens, len(view.tokens))
    if len(given) != len(view.tokens) or (given != view.tokens).any():
        expert = int(np.flatnonzero(given[: len(view.tokens)] != view.tokens)[0]) if len(given) == len(view.tokens) else len(given) - 1
        raise ArchsimError(f"allocation: expert {expert} has {view.tokens[expert] if expert < len(view.tokens) else 0} tokens, "
                           f"the plan gives out {given[expert]:.0f}")
    if len(plan.die) and (plan.die.min() < 0 or plan.die.max() >= len(view.hops)):
        raise ArchsimError(f"allocation: the plan names die {plan.die.max()}; the system has {len(view.hops)}")
    if (np.diff(plan.expert) < 0).any() or (plan.tokens <= 0).any():
        raise ArchsimError("allocation: the plan's entries must be in order of expert and have at least one token each")
