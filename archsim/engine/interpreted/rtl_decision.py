"""``decision: {fsm: {implementation: rtl}}``: the state machine's components in RTL in the place of its tables.

Sorter and allocator make the plan of the rule ``paper``, and their cycles are those of ORDER, GENERATE, EVALUATE and
MERGE. The selector marks the rows of a heatmap behind its port (``heatmap_update: limited``); its cycles are those of
SELECT. There the store counts pairs, a word at a time; for how many the port has time is the table's mean. Other
states keep their tables. Needs the extra ``rtl``, so the interpreted engine imports this module only for such a run.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from archsim.base import errors, units
from archsim.engine.decision import ChargedDecision
from archsim.policies.allocation import Plan, StepView
from archsim.policies.heatmap import TopFraction, TopPositive
from archsim.specs.scenario import Scenario
from microarch.blocks import global_cp
from microarch.blocks.global_cp import DecisionWork, State, sorting_cycles
from microarch.rtl import allocator, drive, select, sorter, tables


class RtlDecision(ChargedDecision):
    """Decides with the components; what they took is charged."""

    def __init__(self, scenario: Scenario, *given: Any):
        fsm, model, rule = scenario.system.decision.fsm, scenario.model, scenario.policy.allocation
        super().__init__(scenario.system.decision, *given)
        self._rule, self._cost_bits = rule, fsm.cost_bits
        self._cycles: dict[State, int] = {}  # of the last decision
        self.row_cycles = 0  # of a row in SELECT
        if rule.name == "paper":
            if "max_split_num" in rule.params:
                raise errors.ArchsimError(
                    "decision.fsm.implementation: rtl: the allocator ranks all dies near a holder; leave out "
                    "allocation.max_split_num, or take implementation: table"
                )
            parameters = allocator.Parameters(
                self._dies, fsm.lanes, fsm.cost_bits, pipeline=fsm.pipeline,
                speeds=scenario.policy.needs_speeds("allocation"),
            )  # fmt: skip
            self._table = tables.AllocatorTable(parameters)
            self._allocator = drive.Driven(allocator.Allocator(parameters))
            experts = 1 << max(1, (model.experts - 1).bit_length())
            comparators = 1 << (min(fsm.comparators, experts // 2).bit_length() - 1)
            self._sorter = drive.Driven(sorter.Sorter(sorter.Parameters(experts, comparators)))

    def decide(self, allocate: Callable[[StepView], Plan], view: StepView) -> Plan:
        plan = super().decide(allocate, view)
        self._cycles = {}
        if not plan.effort.sorted_experts:
            return plan
        order = self._order_of(view)
        given = self._given(view, order)
        most = 100 * sum(len(each.die) + each.tokens for each in given.experts) + 50
        entries, cycles = self._allocator.ask(lambda ctx, dut: drive.place(ctx, dut, given, most))
        self._cycles |= dict(zip((State.GENERATE, State.EVALUATE, State.MERGE), cycles, strict=True))
        rows = sorted(zip(order, entries, strict=True))
        made = [(expert, *of[at : at + 2]) for expert, of in rows for at in range(0, len(of), 2)]
        expert, die, tokens = np.array(made, np.int32).T.copy()
        return Plan(expert, die, tokens, plan.effort)

    def _order_of(self, view: StepView) -> list[int]:
        """Experts with tokens, as the sorter has them."""
        active = np.flatnonzero(view.tokens)
        last = sorting_cycles(len(active), "bitonic", self._sorter.component.parameters.comparators)
        ask = self._sorter.ask
        ranks, self._cycles[State.ORDER] = ask(lambda ctx, dut: drive.sort(ctx, dut, view.tokens[active], last))
        return active[ranks].tolist()

    def _given(self, view: StepView, order: list[int]) -> tables.PlacingStep:
        """What the allocator gets. Raises ArchsimError for tokens or loads that may exceed its bits."""
        block_tokens, distance = self._rule.params["block_tokens"], self._rule.params["distance"]
        try:
            given = self._table.given(view, block_tokens, order, distance)
        except OverflowError as error:
            raise errors.ArchsimError(f"decision.fsm.implementation: rtl: {error}") from None
        most: Counter[int] = Counter()
        for each in given.experts:
            for rank, (die, read) in enumerate(zip(each.die, each.read, strict=True)):
                work = each.on(rank, each.work)
                most[die] += max(read, work) + work * (each.tokens // block_tokens)
        if max([each.work for each in given.experts] + [*most.values()], default=0) >= 2**self._cost_bits:
            raise errors.ArchsimError(
                f"decision.fsm.implementation: rtl: loads of a die may exceed cost_bits: {self._cost_bits}. Take more, "
                "or a larger cost_quantum"
            )
        return given

    def _fsm_ns(self, counts: DecisionWork) -> np.ndarray:
        cycles = global_cp.fsm_cycles(counts, self._spec.fsm)
        for state, took in self._cycles.items():
            cycles[state] = took
        if counts.rows and self.row_cycles:
            cycles[State.SELECT] = counts.rows * self.row_cycles
        return cycles * (units.NS_PER_S / self._spec.fsm.clock_hz)


class RtlPredictor:
    """The predictor of a policy, whose rows the selector marks."""

    def __init__(self, predictor: TopFraction | TopPositive, experts: int, comparators: int, decision: RtlDecision):
        larger_wins = isinstance(predictor, TopFraction)
        keep = min(experts, predictor.keep(experts))
        parameters = select.Parameters(experts, comparators, keep=keep, larger_wins=larger_wins)
        self._driven, self._decision = drive.Driven(select.Selector(parameters)), decision

    def __call__(self, heat: np.ndarray, changed: np.ndarray, out: np.ndarray) -> None:
        for at in map(tuple, np.argwhere(changed).tolist()):
            row = heat[at]
            cycles, _, chosen = self._driven.ask(lambda ctx, dut, row=row: drive.choose(ctx, dut, row))
            marks = np.zeros(8 * out.shape[2], np.uint8)
            marks[chosen] = 1
            out[at] = np.packbits(marks, bitorder="little")
            self._decision.row_cycles = cycles
