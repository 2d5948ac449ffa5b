"""What a decision (of the policy's functions) costs a step: work, time of the executor, how much of it is exposed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

import numpy as np

from archsim.base import errors, sums
from archsim.engine import pair_traffic, state
from archsim.engine.execution import Execution, Order
from archsim.policies.allocation import NO_EFFORT, ChargedRates, Effort, Plan, StepView, estimating
from microarch.blocks import global_cp
from microarch.blocks.global_cp import DecisionWork, Reach, State
from microarch.blocks.hbm import SLICES
from microarch.fabric.fabric import Fabric

Answer = TypeVar("Answer")
ALLOCATION, ASIDE = "allocation", "aside"  # in DecisionTotals.uncharged
REPEATS = 3  # calls of a shipped policy function that is timed on this host; a user's own may keep a state: one call


@dataclass
class DecisionTotals:
    """Totals of a run."""

    # float64[State]: time in each state of the Global CP
    states_ns: np.ndarray = field(default_factory=lambda: np.zeros(len(State)))
    # float64[State]: of it, what no step hid
    exposed_ns: np.ndarray = field(default_factory=lambda: np.zeros(len(State)))
    by_step: list[float] = field(default_factory=list)  # exposed ns of every step, in order
    # every timed call of a policy function on this machine, as many in every step
    called_ns: list[int] = field(default_factory=list)
    # parts of the policy that returned no Effort, so that nothing was charged: ALLOCATION, or ASIDE
    uncharged: set[str] = field(default_factory=set)


def global_die(fabric: Fabric) -> int:
    """The Global CP's die: the one with the fewest hops to its farthest die (ties to the lowest number)."""
    return int(fabric.hops.max(axis=1).argmin())


def reach_of(machine: state.Machine, fabric: Fabric) -> Reach:
    """Cost of messages to and from the Global CP's die."""
    die = global_die(fabric)
    links = fabric.links - fabric.ports
    own = machine.link_rates[:links][fabric.link_src[:links] == die]
    # Equal rates are multiplied, not summed, to avoid rounding.
    bytes_per_ns = sums.sum(rate * count for rate, count in zip(*np.unique(own, return_counts=True), strict=True))
    if fabric.ports:
        bytes_per_ns = min(bytes_per_ns, machine.link_rates[links + die])
    return Reach(float(machine.route_ns[die].max()), float(bytes_per_ns) or machine.link_bytes_per_ns)


ASKED = "time_of", "kernel_ns"  # methods that an execution needs for charges


class Charges:
    """What the engine charges for plans of one step, for policies that weigh plans; see
    ``archsim.policies.allocation.Charged``.

    A policy knows how many tokens of every die choose which expert, not which single tokens they are, and its decision
    precedes predictions: vectors sent once a die are expected numbers, and no copies are made. Otherwise a plan takes
    what the analytical engine gives for it (``Execution.time_of``), so that there is one law for both.

    ``order``: the step; its plan is the one that is asked about. ``near``: `secants` of the execution, kept for the
    run. ``apart_ns``: what the simulator took for answers, which is not the policy's time, less what their operations
    count for, HOST_OPERATION_NS each (`time_call`).
    """

    def __init__(
        self, execution: Execution, machine: state.Machine, decision: FreeDecision,
        near: Callable[[int, int], tuple[float, float]], order: Order,
    ) -> None:  # fmt: skip
        self._execution, self._machine, self._decision = execution, machine, decision
        self._near, self._order = near, order
        self.apart_ns = 0

    @property
    def rates(self) -> ChargedRates:
        """At the mean die of the step."""
        return self._answer(self._mean_rates)

    def decision_ns(self, plan: Plan) -> float:
        return self._answer(lambda: self._decision.takes_ns(plan))

    def plan_ns(self, plan: Plan) -> float:
        order = self._order._replace(plan=plan)
        operations = estimating(plan, order.placement.home[order.row], self._machine.hops)
        self.apart_ns -= round(operations * global_cp.HOST_OPERATION_NS)
        return self._answer(lambda: self._answering().time_of(order))

    def _answer(self, ask: Callable[[], Answer]) -> Answer:
        begin = time.perf_counter_ns()
        answer = ask()
        self.apart_ns += time.perf_counter_ns() - begin
        return answer

    def _mean_rates(self) -> ChargedRates:
        self._answering()
        machine, tokens = self._machine, self._order.demand.tokens
        experts = -(-max(1, int(np.count_nonzero(tokens))) // machine.dies)
        row_ns, expert_ns = self._near(max(1, int(tokens.sum()) // (experts * machine.dies)), experts)
        first = float(machine.array_speeds[0])  # by whose kernels executions answer
        return ChargedRates(row_ns * first, expert_ns * first, SLICES * machine.slice_bytes / machine.hbm_bytes_per_ns)

    def _answering(self) -> Execution:
        missing = [name for name in ASKED if not hasattr(self._execution, name)]
        if missing:
            raise errors.ArchsimError(
                f"execution {type(self._execution).__name__} has no method {missing[0]!r}, by which a policy weighs "
                "plans (archsim.engine.execution.Execution). Add it, or take an allocation that needs none"
            )
        return self._execution


def secants(execution: Execution, tokens: int, experts: int) -> tuple[float, float]:
    """Of the time of a die that runs ``experts`` with ``tokens`` each, up to twice as many: ns a row, and an expert."""
    kernel_ns = execution.kernel_ns
    mean_ns, more_rows_ns = kernel_ns(tokens, experts), kernel_ns(2 * tokens, experts)
    more_experts_ns = kernel_ns(tokens, 2 * experts)
    row_ns = max((more_rows_ns - mean_ns) / (tokens * experts), 0.0)
    return row_ns, max((more_experts_ns - more_rows_ns) / experts, 0.0)


def time_call(allocate: Callable[[StepView], Plan], view: StepView) -> tuple[Plan, int]:
    """The plan, and the ns that the policy took for it on this machine, without those of `Charges.apart_ns`."""
    charged = view.charged if isinstance(view.charged, Charges) else None
    apart_ns, begin = charged.apart_ns if charged else 0, time.perf_counter_ns()
    plan = allocate(view)
    took_ns = time.perf_counter_ns() - begin
    return plan, took_ns - (charged.apart_ns - apart_ns if charged else 0)


class FreeDecision:
    """``decision_cost: free``: nothing takes time."""

    def __init__(self):
        self.totals = DecisionTotals()

    def decide(self, allocate, view):
        return allocate(view)

    def predict(self, copy_bits, layer, plan, predicted):
        """The cp_en bits of a step whose plan is decided. ``predicted``: step_demand.Predicted, or None."""
        return copy_bits(layer, plan, predicted)

    def before_step(self, plan: Plan, rows: int) -> float:
        """When the cp_en bits are ready, in ns from the start of the step."""
        return 0.0

    def after_step(self, plan: Plan, rows: int, copies: int, previous_ns: float, step_ns: float) -> float:
        """What the decision adds to the step, in ns; ``step_ns`` and ``previous_ns`` leave decisions out."""
        self.totals.by_step.append(0.0)
        return 0.0

    def takes_ns(self, plan: Plan) -> float:
        """ns on the critical path by the plan's effort, not by a clock (a timed host: HOST_OPERATION_NS each)."""
        return 0.0

    def aside_ns(self, effort: Effort) -> float:
        """Time of a decision that is taken beside the steps, from statistics of all dies."""
        return 0.0

    def lasts_ns(self, previous_ns: float, step_ns: float) -> np.ndarray:
        """float64[State] ns: each state of the last decision, given what it overlaps with (COLLECT: the step)."""
        lasts_ns = np.zeros(len(State))
        lasts_ns[State.COLLECT] = step_ns
        return lasts_ns


class ChargedDecision(FreeDecision):
    """``decision_cost: charged``, by the system's executor. ``repeats``: calls, where it is timed on this host."""

    def __init__(
        self, spec, machine: state.Machine, fabric: Fabric, experts: int, tally: state.Tally, repeats: int = REPEATS
    ) -> None:
        super().__init__()
        self._repeats = repeats
        self._spec, self._experts, self._dies = spec, experts, machine.dies
        self._reach, self._die = reach_of(machine, fabric), global_die(fabric)
        self._sent = tally.pair_bytes[state.STATISTICS]
        self._hbm = machine.hbm_latency_ns, float(machine.hbm_rates[self._die])
        self._decided_ns = 0.0
        self._last_ns = np.zeros(len(State))

    def decide(self, allocate, view):
        """The plan. A host's decision without a given time is timed (median of repeats). A plan without Effort takes
        none; a given time is charged where its Effort counts any work.
        """
        taken = []
        if self._spec.executor == "host" and self._spec.host.time_ns is None:
            for _ in range(self._repeats):
                plan, took_ns = time_call(allocate, view)
                taken.append(took_ns)
        else:
            plan = allocate(view)
        self.totals.called_ns += taken
        self._decided_ns = float(median(taken)) if taken else self._given_ns(plan)
        if plan.effort is NO_EFFORT:
            self.totals.uncharged.add(ALLOCATION)
            self._decided_ns = 0.0
        return plan

    def _given_ns(self, plan: Plan) -> float:
        return (self._spec.host.time_ns or 0.0) if self._counts(plan, 0, 0).allocates else 0.0

    def predict(self, copy_bits, layer, plan, predicted):
        """If the host is timed, add the time of prediction, called once as it advances the heatmap, to every call."""
        begin = time.perf_counter_ns()
        bits = copy_bits(layer, plan, predicted)
        took_ns = time.perf_counter_ns() - begin + (predicted.took_ns if predicted else 0)
        if bits is not None and self.totals.called_ns:
            self._decided_ns += took_ns
            begin = len(self.totals.called_ns) - self._repeats
            self.totals.called_ns[begin:] = [each + took_ns for each in self.totals.called_ns[begin:]]
        return bits

    def _counts(self, plan: Plan, rows: int, copies: int) -> DecisionWork:
        effort = plan.effort
        placed = len(effort.candidates)
        return DecisionWork(
            dies=self._dies, experts=self._experts, demand_received=effort.global_demand, table_entries=placed,
            sorted_experts=effort.sorted_experts, candidates=effort.candidates, blocks=effort.blocks,
            plan_entries=len(plan.expert), rows=rows, copies=copies, operations=effort.operations,
            statistics_bytes=effort.statistics_bytes, speeds=effort.speeds,
        )  # fmt: skip

    def _states_ns(self, counts: DecisionWork, decided_ns: float) -> np.ndarray:
        """``decided_ns``: what a host takes to decide."""
        if self._spec.executor == "gpu":
            return global_cp.gpu_ns(counts, self._spec.gpu, self._reach)
        messages = global_cp.message_ns(counts, self._reach)
        if self._spec.executor == "fsm":
            return messages + np.maximum(self._fsm_ns(counts), self._dram_ns(counts))
        if self._spec.executor == "firmware":
            return messages + global_cp.firmware_ns(counts, self._spec.firmware)
        return messages + global_cp.host_ns(counts, self._spec.host, decided_ns)

    def _fsm_ns(self, counts):
        return global_cp.fsm_ns(counts, self._spec.fsm)

    def _dram_ns(self, counts):
        """Time the Global CP waits for tables in HBM, float64[State]: the slower of port and HBM counts."""
        if self._spec.fsm.tables == "on_chip":
            return 0.0
        return global_cp.dram_ns(counts, *self._hbm)

    def before_step(self, plan, rows):
        if not rows or self._spec.executor in ("host", "gpu"):  # a host sends bits and plan together; a GPU has both
            return 0.0
        states_ns = self._states_ns(self._counts(plan, rows, 0), self._decided_ns)
        return max(
            0.0,
            float(states_ns[State.ROWS] + states_ns[State.SELECT] + states_ns[State.WRITE] - states_ns[State.DISPATCH]),
        )

    def after_step(self, plan, rows, copies, previous_ns, step_ns):
        counts = self._counts(plan, rows, copies)
        states_ns = self._states_ns(counts, self._decided_ns)
        if counts.demand_received:
            own = counts.experts * global_cp.COUNT_BYTES + counts.statistics_bytes
            pair_traffic.send_statistics(self._sent, own, self._die, self._spec.executor)
        exposed_ns = global_cp.exposed_ns(states_ns, previous_ns, step_ns)
        self._last_ns = states_ns
        self.totals.states_ns += states_ns
        self.totals.exposed_ns += exposed_ns
        self.totals.by_step.append(float(exposed_ns.sum()))
        return self.totals.by_step[-1]

    def takes_ns(self, plan):
        counts = self._counts(plan, 0, 0)
        is_given = self._spec.host.time_ns is not None
        decided_ns = self._given_ns(plan) if is_given else global_cp.operations(counts) * global_cp.HOST_OPERATION_NS
        return float(self._states_ns(counts, decided_ns)[global_cp.ON_THE_PATH].sum())

    def aside_ns(self, effort):
        pair_traffic.send_statistics(self._sent, effort.statistics_bytes, self._die, self._spec.executor)
        if effort is NO_EFFORT:
            self.totals.uncharged.add(ASIDE)
        return global_cp.aside_ns(effort.operations, effort.statistics_bytes, self._dies, self._spec, self._reach)

    def lasts_ns(self, previous_ns, step_ns):
        lasts_ns = self._last_ns.copy()
        lasts_ns[State.READ] = max(0.0, lasts_ns[State.READ] - previous_ns)
        lasts_ns[State.UPDATE] = max(0.0, lasts_ns[State.UPDATE] - step_ns)
        lasts_ns[State.COLLECT] += step_ns
        if self._spec.executor == "host":  # its bits leave with the plan
            lasts_ns[State.WRITE] = lasts_ns[State.DISPATCH]
        return lasts_ns
