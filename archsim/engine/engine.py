"""The event engine, whose steps the other engines inherit: one MoE layer in one iteration, from its start time on.

    StepDemand -> policy -> plan, cp_en bits -> execution -> StepTimes

How a plan becomes work is a named strategy (``archsim.engine.execution``); how resources are shared is
another (``contention``), implemented by the engine's kernel. The caller decides which step runs next and when:
``archsim.engine.loop`` goes through the demand of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base.causes import Cause
from archsim.base.compiled import kernel
from archsim.base.errors import ArchsimError
from archsim.engine import balancing, execution, gemm_times, local_cp, machine, own_objects, state
from archsim.engine.decision import REPEATS, ChargedDecision, Charges, DecisionTotals, FreeDecision, global_die, secants
from archsim.engine.event import reserved, shared
from archsim.engine.transitions import TransitionLog
from archsim.iteration import misfit, overlap
from archsim.policies.allocation import NO_EFFORT, NO_ORIGINS, NO_PLAN, NO_SPEEDS, Effort, Plan, StepView
from archsim.policies.heatmap import copy_bits
from archsim.policies.placement import Placement
from archsim.policies.prediction import CopiesView
from archsim.policies.registry import NOMINAL, build_policy
from archsim.policies.replication import BOTH, acts_in
from archsim.policies.waterfill import sent_pairs
from archsim.specs.policies import PHASE
from archsim.specs.scenario import Scenario
from archsim.traffic.step_demand import StepDemand
from microarch.blocks.global_cp import COUNT_BYTES
from microarch.blocks.hbm import SLICES, count_anew, evict_beyond_room


def shares_plans(scenario: Scenario) -> bool:
    """Whether plans depend neither on rates of dies nor on how long steps take."""
    policy, decision = scenario.policy, scenario.system.decision
    others = (policy.prediction, policy.rebalancing, policy.replication)
    return (
        policy.allocation.name in NOMINAL
        and not policy.needs_speeds("allocation")
        and all(rule.name == "none" for rule in others)
        and (scenario.assumptions.decision_cost == "free" or decision.executor != "host")
        and not scenario.own_functions
    )


KERNELS: Mapping[str, Callable[..., execution.Kernel]] = MappingProxyType(
    {"reserved": reserved.ReservedKernel, "shared": shared.SharedKernel}
)


class StepTimes(NamedTuple):
    """What a step took, on the clock of the machine without decisions, and its plan."""

    begin_ns: float  # when it began
    end_ns: float  # when it ended
    exposed_ns: float  # time that the decision adds to the step
    plan: Plan  # which die ran how many tokens of which expert
    holders: np.ndarray  # bool[expert, die]: by placement, and replicas of this step
    slots: int  # of all dies in the layer, those of replicas included

    @property
    def step_ns(self) -> float:
        return self.end_ns - self.begin_ns + self.exposed_ns


class EventEngine:
    """Runs steps of a scenario, event by event.

    ``layer_ids``: the model's numbers of the MoE layers that run, ascending; None: all of them. ``keep_transitions``:
    record what the command processors do (``archsim.engine.decision``), for ``transitions``. Raises CapacityError
    where the placement does not fit, and ArchsimError for layers that are not MoE layers of the model. ``rest``: what
    ranks compute beside experts (``Setup.rest``); None: by the laws of the scenario, where its overlap needs it.

    ``machine``, ``fabric``, ``memory``, ``tally``, ``fit``, ``placement``, ``policy`` and ``decision`` may be read
    between steps.
    """

    name = "event"
    analytical = False
    # (layer, step) → plan, shared with runs that have the same (`shares_plans`); None: every step is planned
    plans: dict[tuple[int, int], Plan] | None = None
    count_pairs: Callable[..., int] | None = None  # what adds to a heatmap behind its port; None: its table

    def __init__(
        self,
        scenario: Scenario,
        layer_ids: Sequence[int] | None = None,
        keep_transitions: bool = False,
        rest: Callable[[float, bool], overlap.Rest] | None = None,
    ):
        system, model, assumptions = scenario.system, scenario.model, scenario.assumptions
        own_objects.refuse_engine(self.name, system, assumptions, scenario.policy)
        self.scenario = scenario
        self.rows = _rows_of(layer_ids, model)
        self.layers = len(self.rows)
        self.policy = build_policy(scenario.policy, model)
        self.placement = self.policy.place(len(model.moe_layer_ids), model.experts, system.dies)
        self.fit = misfit.refuse_misfit(scenario, self.placement)
        self.machine, self.fabric = machine.build_machine(scenario)
        self.expert_bytes = SLICES * self.machine.slice_bytes
        self.memory = machine.build_memory(scenario, self.layers, self.fit)
        self.tally = state.new_tally(self.machine)
        self.decision = self._build_decision()
        self.execution = execution.build_execution(
            assumptions.execution,
            execution.Setup(
                scenario=scenario,
                machine=self.machine,
                fabric=self.fabric,
                memory=self.memory,
                tally=self.tally,
                copies=self.policy.predictor is not None,
                build_kernel=self._kernels(),
                analytical=self.analytical,
                placement=self.placement,
                rest=rest,
            ),  # fmt: skip
        )
        self.costs = machine.policy_costs(system, model, assumptions)
        self.clocks: tuple[float | np.ndarray, float | np.ndarray] = execution.FULL_CLOCKS  # as the execution has them
        self._sees_routing = scenario.policy.needs_routing("allocation")
        sees_speeds = scenario.policy.needs_speeds("allocation")
        self._speeds = np.stack(gemm_times.factors_of(self.machine)) if sees_speeds else NO_SPEEDS
        self._charges = partial(
            Charges, self.execution, self.machine, self.decision,
            lru_cache(maxsize=1024)(partial(secants, self.execution)),
        )  # fmt: skip
        self.balancing = balancing.Balancing(
            assumptions.migration, self.machine, self.fabric, self.tally, self.decision.aside_ns
        )
        self._shares = assumptions.weights == "all" and model.shared_experts > 0 and self.policy.share is not None
        self._ids = model.experts + model.shared_experts
        admission = self.policy.admission
        self._admission = None if admission is None else admission(self.layers, system.dies, self._ids)
        self._until_own_id = assumptions.prediction_rows == "until_own_id"
        self._log = TransitionLog(system.dies, global_die(self.fabric)) if keep_transitions else None
        self._previous_ns, self._written_bytes, self._writes = 0.0, 0, self.tally.dies["write_bytes"]

    def _build_decision(self) -> FreeDecision:
        scenario = self.scenario
        if scenario.assumptions.decision_cost == "free":
            return FreeDecision()
        return ChargedDecision(
            scenario.system.decision, self.machine, self.fabric, scenario.model.experts, self.tally,
            1 if scenario.policy.allocation.is_function else REPEATS,
        )  # fmt: skip

    def _kernels(self) -> Callable[[], execution.Kernel]:
        """What makes kernels; without a reference to the engine, which would then outlive its run."""
        assumptions = self.scenario.assumptions
        return partial(KERNELS[assumptions.contention], self.machine, self.fabric, assumptions)

    def step(self, layer: int, demand: StepDemand, now_ns: float, rest_ns: float = 0.0) -> StepTimes:
        """Run a step from ``now_ns`` on; ``layer`` counts those that run. ``rest_ns``: after it, during which weights
        may move. ArchsimError: a user's plan does not fit.
        """
        self.balancing.begin_step()
        placement, row, waits_ns = self.placement, int(self.rows[layer]), 0.0
        if self.policy.replication is not None:  # with the replicas that the policy has fetched for the step
            rule = self.policy.replication
            placement, row, waits_ns = self.balancing.fetch(rule, placement, layer, row, demand)
        plan = self.plan(layer, demand, placement, row)
        bits = self.decision.predict(self._copy_bits, layer, plan, demand.predicted)
        rows = (
            0 if bits is None else int(np.count_nonzero(plan.expert[1:] != plan.expert[:-1])) + 1
        )  # entries are in order of expert
        if self._log is not None:
            self._log.begin()
        notes = local_cp.NO_NOTES if self._log is None else self._log.notes
        ready_ns = self.decision.before_step(plan, rows)
        order = execution.Order(
            layer=layer, row=row, demand=demand, plan=plan, cp_en=bits, cp_ready_ns=ready_ns, notes=notes,
            placement=placement,
        )  # fmt: skip
        end_ns = self.execution.step(order, now_ns + waits_ns)
        self.tally.bound_ns[Cause.LINK] += waits_ns
        written, self._written_bytes = self._written_bytes, int(self._writes.sum())
        copies = (self._written_bytes - written) // self.machine.slice_bytes
        previous_ns, took_ns = self._previous_ns, end_ns - now_ns
        exposed_ns = self.decision.after_step(plan, rows, copies, previous_ns, took_ns)
        if self._log is not None:
            self._log.add(demand.step, layer, self.decision, previous_ns, took_ns)
        self._previous_ns = took_ns
        self.balancing.end_step(took_ns + rest_ns)
        held, slots = placement.holds[row], self.placement.slots_in_layers[self.rows[layer]]
        if placement is not self.placement:
            slots += int(np.count_nonzero(held & ~self.placement.holds[self.rows[layer]]))
        return StepTimes(now_ns, end_ns, exposed_ns, plan, held, slots)

    def migrate(self, placement: Placement, moves: np.ndarray, now_ns: float, effort: Effort = NO_EFFORT) -> float:
        """Move to another placement, found with that effort; returns when steps may run again, on the clock of
        ``now_ns``. ``moves``: WEIGHT_MOVE[n], charged as ``migration`` says. Raises CapacityError.
        """
        misfit.refuse_misfit(self.scenario, placement)
        waits_ns = self.balancing.migrate(placement, moves, effort)
        self.tally.bound_ns[Cause.LINK] += waits_ns
        if self.balancing.pending is None:
            self.use(placement)
        return now_ns + waits_ns

    def settle(self) -> bool:
        """An iteration begins: switch to a placement that has arrived. Returns whether none is on its way."""
        if (placement := self.balancing.take_arrived()) is not None:
            self.use(placement)
        return self.balancing.pending is None

    def use(self, placement: Placement) -> None:
        """Hold another placement from the next step on, without moving anything. Raises CapacityError."""
        self.fit = misfit.refuse_misfit(self.scenario, placement)
        self.placement = placement
        if self.scenario.assumptions.capacity == "finite":
            self.memory.copies.room["limit_bytes"] = self.fit.room_bytes
            evict_beyond_room(self.memory.copies, self.machine.slice_bytes)

    def count_anew(self) -> None:
        """Forget what was counted so far (tally, decisions, evictions, misses); caches and copies stay as they are."""
        for counted in self.tally:
            counted[...] = 0
        count_anew(self.memory.copies)
        self.memory.atu.misses[:] = 0
        self.decision.totals = DecisionTotals()
        self.balancing.count_anew()
        self._written_bytes = 0

    def plan(self, layer: int, demand: StepDemand, placement: Placement, row: int) -> Plan:
        """The policy's plan of a step, checked if it is a user's own."""
        begin, speeds = layer * self._ids, self._speeds
        if speeds.shape[1] and any(map(np.ndim, self.clocks)):
            speeds = np.stack([self.array_speeds(0 if demand.prefill_tokens.any() else 1), speeds[1]])
        view = StepView(
            tokens=np.ascontiguousarray(demand.tokens),
            first_seen=demand.first_seen,
            home=np.ascontiguousarray(placement.home[row]),
            copied_slices=self.memory.copies.slices[begin : begin + len(demand.tokens)],
            hops=self.fabric.hops,
            costs=self.costs,
            layer=layer,
            step=demand.step,
            holders=placement.holds[row],
            pair_ns=self.machine.route_ns,
            pair_bytes_per_ns=self.machine.route_bytes_per_ns,
            origins=NO_ORIGINS if demand.origins is None else np.ascontiguousarray(demand.origins, np.int32),
            speeds=speeds,
            prompt=bool(demand.prefill_tokens.any()),
            charged=self._charges(
                execution.Order(
                    layer=layer,
                    row=row,
                    demand=demand._replace(routing=None),
                    plan=NO_PLAN,
                    cp_en=None,
                    cp_ready_ns=0.0,
                    notes=local_cp.NO_NOTES,
                    placement=placement,
                )  # fmt: skip
            ),
            seen=demand.seen.layer(layer) if demand.seen is not None and self._sees_routing else None,
        )
        known = None if self.plans is None else self.plans.get((layer, demand.step))
        plan = self.decision.decide(self.policy.allocate if known is None else lambda view: known, view)
        if known is None:
            _check(plan, view)
            if self.plans is not None:
                self.plans[layer, demand.step] = plan
        share = self.policy.share if self._shares else None
        return plan if share is None else self._with_shared(plan, demand, share)

    def array_speeds(self, phase: int) -> np.ndarray:
        """What a rule sees of arrays, float64[die]: factors, and in a phase the clocks that dies have of their own."""
        clock = self.clocks[phase]
        return self.machine.array_speeds * clock if np.ndim(clock) else self.machine.array_speeds

    def _with_shared(self, plan: Plan, demand: StepDemand, share: Callable[..., np.ndarray]) -> Plan:
        """The plan, with where shared experts run. Charged the counts of all dies and an operation for every pair."""
        dies = self.machine.dies
        params = self.scenario.policy.shared.params
        if not acts_in(params.get(PHASE, BOTH), bool(demand.prefill_tokens.any())):
            return plan
        own_rule = ":" in self.scenario.policy.shared.name  # of a user, which gets sums
        if own_rule:
            load = np.bincount(plan.die, plan.tokens, dies).astype(np.int64)
        else:
            assert demand.origins is not None, "of every run with shared experts"
            load = sent_pairs(plan, demand.origins)
        if params.get("loads") == "own":  # of its own tokens, a die asks no other
            effort = plan.effort.plus(dies * dies)
        else:
            effort = plan.effort._replace(global_demand=True).plus(dies * dies, COUNT_BYTES)
        return plan._replace(shared=share(demand.living, load), effort=effort)

    def _copy_bits(self, layer: int, plan: Plan, predicted) -> np.ndarray | None:
        """The cp_en bits of a step, uint8[die, expert]; None where nothing is predicted."""
        bits = None
        if predicted is not None and predicted.rows.any():
            bits = copy_bits(plan.expert, plan.die, predicted.rows, self.machine.dies, self._ids, self._until_own_id)
            # these dies have no room for a copy
            bits[self.memory.copies.room["limit_bytes"] < self.machine.slice_bytes] = 0
        if self._admission is not None:
            copies = self.memory.copies
            room = copies.room["limit_bytes"] // self.machine.slice_bytes
            free = np.maximum(0, room - copies.room["used_bytes"] // self.machine.slice_bytes)
            seen = CopiesView(copies.slices, copies.ring, room, free)
            self._admission.admit(layer, plan, self.placement.holds[self.rows[layer]], bits, seen)
        return bits

    def transitions(self) -> dict[str, np.ndarray]:
        """The table of ``archsim.engine.decision`` so far. Raises ValueError without ``keep_transitions``."""
        if self._log is None:
            raise ValueError("the engine was not built with keep_transitions")
        return self._log.columns()


def _rows_of(layer_ids: Sequence[int] | None, model) -> np.ndarray:
    """int64[layer]: index of each layer of a run among the model's MoE layers."""
    every = np.array(model.moe_layer_ids, np.int64)
    if layer_ids is None:
        return np.arange(len(every))
    wanted = np.asarray(layer_ids, np.int64)
    rows = np.searchsorted(every, wanted)
    unknown = wanted[every[np.minimum(rows, len(every) - 1)] != wanted]
    if len(unknown):
        raise ArchsimError(
            f"layer {unknown[0]} is not an MoE layer of {model.name}, which has {every[0]} to {every[-1]}"
        )
    return rows


def _check(plan: Plan, view: StepView) -> None:
    """Every token of every expert is given to a die of the system, once; entries are in order of expert."""
    columns: tuple[Any, ...] = plan.expert, plan.die, plan.tokens
    are_columns = all(
        isinstance(each, np.ndarray) and each.dtype == np.int32 and each.ndim == 1 and each.flags.c_contiguous
        for each in columns
    )
    if are_columns and len(plan.expert) == len(plan.die) == len(plan.tokens):
        if _fits(*columns, view.tokens, len(view.hops)):
            return
    _refuse(plan, view)


@kernel
def _fits(expert, die, tokens, wanted, dies):
    """Whether a plan gives out the tokens ``wanted: int32[expert]``, as `_check` says."""
    at = 0
    for each in range(len(wanted)):
        given = 0
        while at < len(expert) and expert[at] == each:
            if tokens[at] <= 0 or die[at] < 0 or die[at] >= dies:
                return False
            given += tokens[at]
            at += 1
        if given != wanted[each]:
            return False
    return at == len(expert)


def _refuse(plan: Plan, view: StepView) -> None:
    """Raise ArchsimError for what is wrong with a plan, if anything is."""
    given = np.bincount(plan.expert, plan.tokens, len(view.tokens))
    if len(given) != len(view.tokens) or (given != view.tokens).any():
        expert = (
            int(np.flatnonzero(given[: len(view.tokens)] != view.tokens)[0])
            if len(given) == len(view.tokens)
            else len(given) - 1
        )
        raise ArchsimError(
            f"allocation: expert {expert} has {view.tokens[expert] if expert < len(view.tokens) else 0} tokens, "
            f"the plan assigns {given[expert]:.0f}"
        )
    if len(plan.die) and (plan.die.min() < 0 or plan.die.max() >= len(view.hops)):
        raise ArchsimError(f"allocation: the plan names die {plan.die.max()}; the system has {len(view.hops)}")
    if (plan.expert[1:] < plan.expert[:-1]).any() or (plan.tokens <= 0).any():
        raise ArchsimError("allocation: the plan's entries must be in order of expert and have at least one token each")
