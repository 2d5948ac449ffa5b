"""The event engine: every step of a run, in order, with a barrier after each.

    demand of the step -> policy -> plan, cp_en bits -> work -> kernel of the contention strategy -> end of the step

Contention is a strategy with a name: ``reserved`` (``archsim.engine.reserved``) or ``shared``
(``archsim.engine.shared``); both run the same ``Work`` through the table of ``microarch.request``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from archsim.engine.reserved import ReservedKernel
from archsim.engine.setup import Fit, build_machine, build_memory, policy_costs, refuse_misfit
from archsim.engine.shared import SharedKernel
from archsim.engine.state import Machine, Memory, Tally, Work, new_tally
from archsim.engine.work import WorkBuilder
from archsim.policies.allocation import Plan, StepView
from archsim.policies.prediction import copy_bits
from archsim.policies.registry import build_policy
from archsim.specs.errors import ArchsimError
from microarch.mesh import Mesh
from microarch.request import State

KERNELS = {"reserved": ReservedKernel, "shared": SharedKernel}


@dataclass(frozen=True)
class Outcome:
    """What a run did. ``step_ns``: float64[step, layer]; ``load``: int64[step, layer, die] tokens given to each die."""

    machine: Machine
    mesh: Mesh
    fit: Fit
    memory: Memory
    tally: Tally
    step_ns: np.ndarray
    load: np.ndarray
    prefill_ns: float
    decode_ns: float


class EventEngine:
    """One run: a system serving a batch of a model under a policy and a set of assumptions."""

    def __init__(self, system, model, policy_spec, assumptions, demand):
        self.policy = build_policy(policy_spec)
        self.demand = demand
        self.home = np.asarray(self.policy.place(model.experts, system.dies), np.int32)
        self.fit = refuse_misfit(system, model, assumptions, self.home)
        self.machine, self.mesh = build_machine(system, model, assumptions)
        self.memory = build_memory(system, model, assumptions, demand.layers, self.fit)
        self.tally = new_tally(self.machine, len(State))
        self._costs = policy_costs(system, model)
        self._ids = model.experts + model.shared_experts
        self._copies = self.policy.predictor is not None
        self._until_own_id = assumptions.prediction_rows == "until_own_id"
        self._builder = WorkBuilder(system, model, assumptions, self.machine, self.mesh, self.home, self._copies)
        self._kernel = KERNELS[assumptions.contention](self.machine, self.mesh, assumptions)

    def run(self) -> Outcome:
        """Run all steps; raises ArchsimError if the user's policy returns a plan that does not fit the demand."""
        demand = self.demand
        step_ns = np.zeros((demand.steps, demand.layers))
        load = np.zeros((demand.steps, demand.layers, self.machine.dies), np.int64)
        now = prefill_ns = 0.0
        for step, layer, end, plan in self.steps(now):
            step_ns[step, layer] = end - now
            load[step, layer] = np.bincount(plan.die, plan.tokens, self.machine.dies)
            now = end
            if step == 0 and demand.has_prefill:
                prefill_ns = now
        return Outcome(self.machine, self.mesh, self.fit, self.memory, self.tally, step_ns, load, prefill_ns, now - prefill_ns)

    def steps(self, now: float) -> Iterator[tuple[int, int, float, Plan]]:
        """(step, layer, end in ns, plan) of every step that has demand, in order."""
        for step in range(self.demand.steps):
            for layer in range(self.demand.layers):
                if not self.demand.tokens[step, layer].any():
                    continue
                plan = self.plan(step, layer)
                work = self.work(step, layer, plan)
                now = self._kernel.step(work, self.memory, self.tally, now)
                yield step, layer, now, plan

    def trace_step(self, step: int, layer: int) -> dict[str, np.ndarray]:
        """Run up to a step and return its log (``archsim.engine.steplog``). ``layer`` counts the demand's MoE layers.

        Raises ArchsimError if the step has no demand.
        """
        begin = 0.0
        for at_step, at_layer, end, _ in self.steps(0.0):
            if (at_step, at_layer) == (step, layer):
                return self._kernel.log(begin)
            begin = end
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
            hops=self.mesh.hops,
            costs=self._costs,
        )
        plan = self.policy.allocate(view)
        _check(plan, view)
        return plan

    def work(self, step: int, layer: int, plan: Plan) -> Work:
        """The chains and moves of a step."""
        demand = self.demand
        bits = None
        if self._copies and demand.hot[step, layer].any():
            bits = copy_bits(plan.expert, plan.die, demand.hot[step, layer], self.machine.dies, self._ids, self._until_own_id)
        origins = demand.origins[step, layer] if self._builder.needs_origins else None
        return self._builder.build(layer, plan, origins, demand.top_k, bits, self.memory)


def _check(plan: Plan, view: StepView) -> None:
    """Every token of every expert is given to a die of the mesh, once; entries are in order of expert."""
    given = np.bincount(plan.expert, plan.tokens, len(view.tokens))
    if len(given) != len(view.tokens) or (given != view.tokens).any():
        expert = int(np.flatnonzero(given[: len(view.tokens)] != view.tokens)[0]) if len(given) == len(view.tokens) else len(given) - 1
        raise ArchsimError(f"allocation: expert {expert} has {view.tokens[expert] if expert < len(view.tokens) else 0} tokens, "
                           f"the plan gives out {given[expert]:.0f}")
    if len(plan.die) and (plan.die.min() < 0 or plan.die.max() >= len(view.hops)):
        raise ArchsimError(f"allocation: the plan names die {plan.die.max()}; the mesh has {len(view.hops)}")
    if (np.diff(plan.expert) < 0).any() or (plan.tokens <= 0).any():
        raise ArchsimError("allocation: the plan's entries must be in order of expert and have at least one token each")
