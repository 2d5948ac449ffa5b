"""The interface of an engine: one MoE layer in one iteration, given its demand and its start time.

    StepDemand -> policy -> plan, cp_en bits -> execution -> StepTimes

How a plan becomes work is a named strategy (``archsim.engine.execution``); how resources are shared is
another (``contention``), implemented by the engine's kernel. The caller decides which step runs next and when:
``archsim.engine.loop`` goes through the demand of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base.causes import Cause
from archsim.base.compiled import kernel
from archsim.base.errors import ArchsimError
from archsim.base.units import NS_PER_S
from archsim.engine.decision import (
    REPEATS,
    ChargedDecision,
    Charges,
    DecisionTotals,
    FreeDecision,
    TransitionLog,
    global_die,
    secants,
)
from archsim.engine.demand import cross_links
from archsim.engine.event.reserved import ReservedKernel
from archsim.engine.event.shared import SharedKernel
from archsim.engine.execution import FULL_CLOCKS, Kernel, Order, Setup, build_execution
from archsim.engine.gemm import factors_of
from archsim.engine.machine import build_machine, build_memory, policy_costs, refuse_engine
from archsim.engine.network import simulate_flows
from archsim.engine.state import DATA_MESSAGES, NO_NOTES, REPLICAS, SLICES, UNITS, Machine, Tally, new_tally
from archsim.iteration.memory import refuse_misfit
from archsim.iteration.overlap import Rest
from archsim.policies.allocation import NO_EFFORT, NO_ORIGINS, NO_PLAN, NO_SPEEDS, Effort, Plan, StepView
from archsim.policies.placement import Placement, nearest_holders
from archsim.policies.prediction import CopiesView, copy_bits
from archsim.policies.rebalancing import LayerView, Replication
from archsim.policies.registry import NOMINAL, build_policy
from archsim.specs.experiment import Scenario
from archsim.workload.demand import StepDemand
from microarch.blocks.global_cp import COUNT_BYTES
from microarch.blocks.hbm import count_anew, evict_beyond_room
from microarch.fabric.fabric import Fabric

# ---- weight_moves
# Weights that move between HBMs outside of steps: migrations of a rebalancing, and replicas for the next layer.
#
# A set of moves takes as long as its flows over the fabric (`simulate_flows`, one flow for each pair of dies, all from
# the start), or as its fullest HBM, which reads at the sources and writes at the targets, if that is longer; one HBM
# latency is added. The engine's kernels do not see these flows. What they do to steps is the assumption ``migration``:
#
# ``free``        they take no time; their bytes are counted beside those that links and HBM move in theirs
# ``blocking``    the next step waits until they are done
# ``overlapped``  they use what the steps leave: in a step of t ns a resource has t · rate − (bytes of the step) to
#                 spare, and the moves advance by the share of their bytes that the scarcest resource can spare. What
#                 has not arrived when the run ends has not moved, and its placement was not used.

NO_PAIRS = np.zeros(0, np.int64)


class WeightTransfer(NamedTuple):
    """A set of moves: its time alone, and the bytes on every resource and between dies."""

    ns: float
    resource_bytes: np.ndarray  # int64[resource]
    total_bytes: int
    pairs: np.ndarray  # int64[n]: first die · dies + second
    pair_bytes: np.ndarray  # int64[n]
    arrival_ns: np.ndarray  # float64[die]: when a die has what it gets


class WeightMover:
    """Times and counts moves on a machine."""

    def __init__(self, machine: Machine, fabric: Fabric, tally: Tally):
        self._machine, self._fabric, self._tally = machine, fabric, tally
        dies = machine.dies
        self._contention = "shared" if machine.link_resources == fabric.links else "reserved"
        self._rates = np.full(machine.resources, np.inf)
        self._rates[dies : 2 * dies] = machine.hbm_rates
        links = fabric.link_bytes_per_ns
        if self._contention == "reserved":
            edges = np.full(fabric.edges, np.inf)
            np.minimum.at(edges, fabric.link_edge, links)
            links = edges
        self._rates[UNITS * dies :] = links

    def transfer(self, src: np.ndarray, dst: np.ndarray, n_bytes: int) -> WeightTransfer:
        """Moves of ``n_bytes`` each from ``src[n]`` to ``dst[n]``."""
        machine, dies = self._machine, self._machine.dies
        if not len(src):
            nothing = np.zeros(machine.resources, np.int64)
            return WeightTransfer(0.0, nothing, 0, NO_PAIRS, NO_PAIRS, np.zeros(dies))
        pairs, count = np.unique(np.asarray(src, np.int64) * dies + dst, return_counts=True)
        pair_bytes = count * n_bytes
        resource_bytes = self._on_resources(pairs, pair_bytes)
        flows = [(*divmod(pair, dies), float(each), 0.0) for pair, each in zip(pairs.tolist(), pair_bytes, strict=True)]
        port = float(machine.hbm_rates.max()) * NS_PER_S  # of a slower HBM, the bound below
        finish = simulate_flows(self._fabric, flows, contention=self._contention, die_port_bytes_per_s=port)
        hbm_ns = resource_bytes[dies : 2 * dies] / machine.hbm_rates
        arrival_ns = np.zeros(dies)
        np.maximum.at(arrival_ns, pairs % dies, finish)
        gets = arrival_ns > 0
        arrival_ns[gets] = np.maximum(arrival_ns, hbm_ns)[gets] + machine.hbm_latency_ns
        ns = max(float(finish.max()), float(hbm_ns.max())) + machine.hbm_latency_ns
        return WeightTransfer(ns, resource_bytes, int(pair_bytes.sum()), pairs, pair_bytes, arrival_ns)

    def _on_resources(self, pairs: np.ndarray, pair_bytes: np.ndarray) -> np.ndarray:
        """What HBMs read and write and links pass for bytes between pairs of dies, int64[resource]."""
        machine, dies = self._machine, self._machine.dies
        found, sent = np.zeros(machine.resources, np.int64), np.zeros((1, dies * dies), np.int64)
        sent[0, pairs] = pair_bytes
        cross_links(sent, machine.route_ptr, machine.route_links, found[None, UNITS * dies :])
        np.add.at(found, dies + pairs // dies, pair_bytes)
        np.add.at(found, dies + pairs % dies, pair_bytes)
        return found

    def book(
        self, transfer: WeightTransfer, kind: int | np.int64 = REPLICAS, begin: float = 0.0, end: float = 1.0,
        idle_ns: float | np.ndarray = np.inf, timed: bool = True,
    ) -> int:  # fmt: skip
        """Count the moves from the share ``begin`` of their bytes to the share ``end``: bytes and busy time of links
        and HBM (if ``timed``), hops of data, bytes of pairs in class ``kind``. Returns the bytes.
        ``idle_ns``: float64[resource], how long resources do nothing else meanwhile; the rest of a move passes beside
        transfers that leave bandwidth.
        """
        resources, size = self._tally.resources, self._machine.slice_bytes
        sent = [np.floor(transfer.pair_bytes * share).astype(np.int64) for share in (begin, end)]
        before, after = (int((self._machine.hops.ravel()[transfer.pairs] * each).sum()) for each in sent)
        part = sent[1] - sent[0]
        if timed:
            resource_bytes = self._on_resources(transfer.pairs, part)
            resources["bytes"] += resource_bytes
            resources["busy_ns"] += np.minimum(resource_bytes / self._rates, idle_ns)
        self._tally.hops[DATA_MESSAGES] += after // size - before // size, after - before
        self._tally.pair_bytes[kind].reshape(-1)[transfer.pairs] += part
        return int(part.sum())

    def counted(self) -> np.ndarray:
        """What resources have counted so far, RESOURCE[resource]."""
        return self._tally.resources.copy()

    def spare_bytes(self, step_ns: float, moved_bytes: np.ndarray) -> np.ndarray:
        """What a step of ``step_ns`` that moved ``moved_bytes`` leaves of every resource, float64[resource]."""
        if step_ns <= 0:
            return np.zeros(len(moved_bytes))
        return np.maximum(step_ns * self._rates - moved_bytes, 0.0)


def advance(transfer: WeightTransfer, spare_bytes: np.ndarray) -> float:
    """The share of the transfer, 0 to 1, that fits into ``spare_bytes``."""
    used = transfer.resource_bytes > 0
    if not used.any():
        return 1.0
    return float(min(1.0, (spare_bytes[used] / transfer.resource_bytes[used]).min()))


# ---- balancing
# What balancers do between steps: migrations of a rebalancing and replicas for the next layer, and what they cost.


@dataclass
class BalancingTotals:
    """Totals of a run. Exposed time is what steps waited, decisions of the balancers included. ``under_way_bytes``:
    what a migration still has to move; ``untimed_bytes``: int64[resource] of moves that take no time (``free``).
    """

    migrated_bytes: int = 0
    under_way_bytes: int = 0
    untimed_bytes: int | np.ndarray = 0
    migration_exposed_ns: float = 0.0
    replicated_bytes: int = 0
    replication_exposed_ns: float = 0.0


@dataclass
class Pending:
    """A migration under way: the placement that follows, what is left of the decision, and of the transfer (1 to 0)."""

    placement: Placement
    transfer: WeightTransfer
    decision_ns: float
    left: float = 1.0


class Balancing:
    """Moves weights between steps, as the assumption ``migration`` says. ``aside_ns(effort)``: time of a decision of
    that effort beside the steps.
    """

    def __init__(
        self, how: str, machine: Machine, fabric: Fabric, tally: Tally, aside_ns: Callable[[Effort], float]
    ) -> None:  # fmt: skip
        self._how, self._on, self._aside_ns = how, (machine, fabric, tally), aside_ns
        self._hops, self._expert_bytes = machine.hops, SLICES * machine.slice_bytes
        self._spare_bytes: np.ndarray | None = None
        self._idle_ns: float | np.ndarray = np.inf  # of the step before
        self._previous_ns, self._counts_anew = 0.0, False
        self._counted: np.ndarray | None = None
        self.pending: Pending | None = None
        self.totals = BalancingTotals()

    @cached_property
    def _mover(self) -> WeightMover:
        """Made when weights move, which many policies never do."""
        return WeightMover(*self._on)

    def count_anew(self) -> None:
        """Forget what was counted so far; a migration under way goes on, and replicas that have arrived are there."""
        self.totals, self._counts_anew = BalancingTotals(under_way_bytes=self.totals.under_way_bytes), True

    def migrate(self, placement: Placement, moves: np.ndarray, effort: Effort) -> float:
        """Begin a migration; returns how long the next step waits. With ``overlapped`` it is pending for a while."""
        transfer = self._mover.transfer(moves["src"], moves["dst"], self._expert_bytes)
        decision_ns = 0.0 if self._how == "free" else self._aside_ns(effort)
        if self._how == "overlapped":
            self.pending, self.totals.under_way_bytes = Pending(placement, transfer, decision_ns), transfer.total_bytes
            return 0.0
        self.totals.migrated_bytes += self._book(transfer)
        exposed_ns = decision_ns + transfer.ns if self._how == "blocking" else 0.0
        self.totals.migration_exposed_ns += exposed_ns
        return exposed_ns

    def arrived(self) -> Placement | None:
        """The placement of a migration that is complete, once."""
        if self.pending is None or self.pending.left > 0:
            return None
        placement, self.pending = self.pending.placement, None
        return placement

    def fetch(
        self, rule: Replication, placement: Placement, layer: int, row: int, demand: StepDemand
    ) -> tuple[Placement, int, float]:  # fmt: skip
        """Replicas for a layer that is about to run, fetched while the step before ran: the placement that has them,
        the layer's row there, and how long the step waits for them.
        """
        holders = placement.holds[row]
        expected = np.zeros(len(holders), np.float32) if demand.expected is None else demand.expected
        origins = np.zeros((0, 0), np.int32) if demand.origins is None else demand.origins
        view = LayerView(origins, expected, placement.home[row], holders, layer, demand.step)
        replicas = rule.rule(view)
        expert, die = np.nonzero(replicas.holds)
        transfer = self._mover.transfer(nearest_holders(holders[expert], die, self._hops), die, self._expert_bytes)
        exposed_ns, hidden = 0.0, 0.0
        idle_ns: float | np.ndarray = np.inf
        if self._how != "free":
            exposed_ns, hidden = self._exposed_ns(transfer, self._aside_ns(replicas.effort))
            exposed_ns += replicas.in_sight_ns
            idle_ns = self._idle_ns + (1 - hidden) * transfer.ns
        begin, self._counts_anew = hidden if self._counts_anew else 0.0, False
        self.totals.replicated_bytes += self._book(transfer, begin=begin, idle_ns=idle_ns)
        self.totals.replication_exposed_ns += exposed_ns
        return placement.of_layer(row, replicas.holds), 0, exposed_ns

    def _book(self, transfer: WeightTransfer, **part: Any) -> int:
        """See `WeightMover.book`."""
        if self._how == "free":
            self.totals.untimed_bytes = self.totals.untimed_bytes + transfer.resource_bytes
        return self._mover.book(transfer, timed=self._how != "free", **part)

    def _exposed_ns(self, transfer: WeightTransfer, decision_ns: float) -> tuple[float, float]:
        """What a step waits for replicas that were decided on and fetched during the step before, and the share of them
        that has arrived in it.
        """
        hidden_ns = hidden = 0.0
        if self._how == "overlapped" and self._spare_bytes is not None:
            hidden_ns = min(decision_ns, self._previous_ns)
            if decision_ns < self._previous_ns:
                hidden = advance(transfer, self._spare_bytes * (1 - decision_ns / self._previous_ns))
        return decision_ns - hidden_ns + (1 - hidden) * transfer.ns, hidden

    def begin_step(self) -> None:
        if self._how == "overlapped":
            self._counted = self._mover.counted()

    def end_step(self, step_ns: float) -> None:
        """It has ended; what it left of links and HBM advances a pending migration, and hides the next replicas."""
        if self._how != "overlapped" or self._counted is None:
            return
        self._previous_ns = step_ns
        spare_bytes = self._leave(self._counted, step_ns)
        if (pending := self.pending) is not None and step_ns > 0:
            waited_ns = min(pending.decision_ns, step_ns)
            pending.decision_ns -= waited_ns
            begin = 1 - pending.left
            pending.left -= advance(pending.transfer, spare_bytes * (1 - waited_ns / step_ns))
            end = min(1 - pending.left, 1.0)
            n_bytes = self._mover.book(pending.transfer, begin=begin, end=end, idle_ns=self._idle_ns)
            self.totals.migrated_bytes += n_bytes
            self.totals.under_way_bytes -= n_bytes
            self._leave(self._counted, step_ns)

    def _leave(self, before: np.ndarray, step_ns: float) -> np.ndarray:
        """What a step leaves of resources, which had counted ``before`` when it began: bytes (returned), and time."""
        grown = self._mover.counted()
        self._spare_bytes = self._mover.spare_bytes(step_ns, grown["bytes"] - before["bytes"])
        self._idle_ns = np.maximum(step_ns - (grown["busy_ns"] - before["busy_ns"]), 0.0)
        return self._spare_bytes


# ---- engine


def shares_plans(scenario: Scenario) -> bool:
    """Whether plans depend neither on the rates of single dies nor on how long steps take: allocations that assume
    nominal rates, without copies, moves and clocks of a host.
    """
    policy, decision = scenario.policy, scenario.system.decision
    others = (policy.prediction, policy.rebalancing, policy.replication)
    return (
        policy.allocation.name in NOMINAL
        and not policy.needs_speeds("allocation")
        and all(rule.name == "none" for rule in others)
        and (scenario.assumptions.decision_cost == "free" or decision.executor != "host")
        and not scenario.own_functions
    )


KERNELS: Mapping[str, Callable[..., Kernel]] = MappingProxyType({"reserved": ReservedKernel, "shared": SharedKernel})


class StepTimes(NamedTuple):
    """``begin_ns``, ``end_ns``: on the clock of the machine without decisions; ``exposed_ns``: time that the decision
    adds to the step.
    """

    begin_ns: float
    end_ns: float
    exposed_ns: float
    plan: Plan
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
        rest: Callable[[float, bool], Rest] | None = None,
    ):
        system, model, assumptions = scenario.system, scenario.model, scenario.assumptions
        refuse_engine(self.name, system, assumptions, scenario.policy)
        self.scenario = scenario
        self.rows = _rows_of(layer_ids, model)
        self.layers = len(self.rows)
        self.policy = build_policy(scenario.policy, model)
        self.placement = self.policy.place(len(model.moe_layer_ids), model.experts, system.dies)
        self.fit = refuse_misfit(scenario, self.placement)
        self.machine, self.fabric = build_machine(scenario)
        self.expert_bytes = SLICES * self.machine.slice_bytes
        self.memory = build_memory(scenario, self.layers, self.fit)
        self.tally = new_tally(self.machine)
        self.decision = self._build_decision()
        self.execution = build_execution(
            assumptions.execution,
            Setup(
                scenario,
                self.machine,
                self.fabric,
                self.memory,
                self.tally,
                self.policy.predictor is not None,
                self._kernels(),
                self.analytical,
                self.placement,
                rest,
            ),
        )
        self.costs = policy_costs(system, model, assumptions)
        self.clocks: tuple[float | np.ndarray, float | np.ndarray] = FULL_CLOCKS  # as the execution has them
        sees_speeds = scenario.policy.needs_speeds("allocation")
        self._speeds = np.stack(factors_of(self.machine)) if sees_speeds else NO_SPEEDS
        self._charges = partial(
            Charges, self.execution, self.machine, self.decision,
            lru_cache(maxsize=1024)(partial(secants, self.execution)),
        )  # fmt: skip
        self.balancing = Balancing(assumptions.migration, self.machine, self.fabric, self.tally, self.decision.aside_ns)
        self._shares = assumptions.weights == "all" and model.shared_experts > 0 and self.policy.share is not None
        self._ids = model.experts + model.shared_experts
        admission = self.policy.admission
        self._admission = None if admission is None else admission(self.layers, system.dies, self._ids)
        self._until_own_id = assumptions.prediction_rows == "until_own_id"
        self._log = TransitionLog(system.dies, global_die(self.fabric)) if keep_transitions else None
        self._previous_ns, self._written_bytes, self._writes = 0.0, 0, self.tally.dies["write_bytes"]

    def _build_decision(self) -> FreeDecision:
        """The cost model that ``decision_cost`` names."""
        scenario = self.scenario
        if scenario.assumptions.decision_cost == "free":
            return FreeDecision()
        return ChargedDecision(
            scenario.system.decision, self.machine, self.fabric, scenario.model.experts, self.tally,
            1 if scenario.policy.allocation.is_function else REPEATS,
        )  # fmt: skip

    def _kernels(self) -> Callable[[], Kernel]:
        """What makes kernels; without a reference to the engine, which would then outlive its run."""
        assumptions = self.scenario.assumptions
        return partial(KERNELS[assumptions.contention], self.machine, self.fabric, assumptions)

    def step(self, layer: int, demand: StepDemand, now_ns: float) -> StepTimes:
        """Decide, run, report: one step that begins at ``now_ns``. ``layer`` counts the layers that run.

        Raises ArchsimError if a user's policy returns a plan that does not fit the demand.
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
        notes = NO_NOTES if self._log is None else self._log.notes
        ready_ns = self.decision.before_step(plan, rows)
        order = Order(layer, row, demand, plan, bits, ready_ns, notes, placement)
        end_ns = self.execution.step(order, now_ns + waits_ns)
        self.tally.bound_ns[Cause.LINK] += waits_ns
        written, self._written_bytes = self._written_bytes, int(self._writes.sum())
        copies = (self._written_bytes - written) // self.machine.slice_bytes
        previous_ns, took_ns = self._previous_ns, end_ns - now_ns
        exposed_ns = self.decision.after_step(plan, rows, copies, previous_ns, took_ns)
        if self._log is not None:
            self._log.add(demand.step, layer, self.decision, previous_ns, took_ns)
        self._previous_ns = took_ns
        self.balancing.end_step(took_ns)
        held, slots = placement.holds[row], self.placement.slots_in_layers[self.rows[layer]]
        if placement is not self.placement:
            slots += int(np.count_nonzero(held & ~self.placement.holds[self.rows[layer]]))
        return StepTimes(now_ns, end_ns, exposed_ns, plan, held, slots)

    def migrate(self, placement: Placement, moves: np.ndarray, now_ns: float, effort: Effort = NO_EFFORT) -> float:
        """Move to another placement, found with that effort; returns the time from which steps may run, on the clock of
        ``now_ns``.

        The assumption ``migration`` says what the ``moves`` (WEIGHT_MOVE[n]) cost, and when the placement holds. Raises
        CapacityError where the placement does not fit.
        """
        refuse_misfit(self.scenario, placement)
        waits_ns = self.balancing.migrate(placement, moves, effort)
        self.tally.bound_ns[Cause.LINK] += waits_ns
        if self.balancing.pending is None:
            self.use(placement)
        return now_ns + waits_ns

    def settle(self) -> bool:
        """An iteration is about to begin: switch to a placement whose weights have arrived. Whether none is on its
        way.
        """
        if (placement := self.balancing.arrived()) is not None:
            self.use(placement)
        return self.balancing.pending is None

    def use(self, placement: Placement) -> None:
        """Hold another placement from the next step on, without moving anything. Raises CapacityError."""
        self.fit = refuse_misfit(self.scenario, placement)
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
            home=placement.home[row],
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
            charged=self._charges(
                Order(layer, row, demand._replace(routing=None), NO_PLAN, None, 0.0, NO_NOTES, placement)
            ),
        )
        known = None if self.plans is None else self.plans.get((layer, demand.step))
        plan = self.decision.decide(self.policy.allocate if known is None else lambda view: known, view)
        if known is None:
            _check(plan, view)
            if self.plans is not None:
                self.plans[layer, demand.step] = plan
        share = self.policy.share if self._shares else None
        return plan if share is None else self._shared(plan, demand, share)

    def array_speeds(self, phase: int) -> np.ndarray:
        """What a rule that asks for speeds sees of arrays, float64[die]: their factors, and in a phase
        (``archsim.engine.execution.phase_of``) the clocks that dies have of their own.
        """
        clock = self.clocks[phase]
        return self.machine.array_speeds * clock if np.ndim(clock) else self.machine.array_speeds

    def _shared(self, plan: Plan, demand: StepDemand, share: Callable[..., np.ndarray]) -> Plan:
        """The plan, with where shared experts run. Charged the counts of all dies and an operation for every pair."""
        dies = self.machine.dies
        load = np.bincount(plan.die, plan.tokens, dies).astype(np.int64)
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
        """What the command processors did so far: the table of ``archsim.engine.decision``.

        Raises ValueError if the engine was built without ``keep_transitions``.
        """
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
