"""``engine: interpreted``: the event engine with the interpreter in the place of compiled kernels.

Exact and slow (about a thousand times): for users' blocks with states of their own, for packet-level networks, for
blocks in RTL, and to check the kernels. Plans, work, decisions and results are those of the event engine.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.base.units import NS_PER_S
from archsim.engine.decision import ChargedDecision, FreeDecision
from archsim.engine.engine import EventEngine
from archsim.engine.event.explained import step_log
from archsim.engine.interpreted.interpreter import Network, shipped_blocks
from archsim.engine.interpreted.memory import DieMemory
from archsim.engine.interpreted.reserved import Reserved
from archsim.engine.interpreted.shared import Shared, SharedInTurns
from archsim.engine.machine import INTERPRETED, objects_of, share_every_ns
from archsim.engine.state import Machine, Memory, Tally, Work
from archsim.policies.allocation import Plan, StepView
from archsim.policies.prediction import TopFraction
from archsim.specs.experiment import Scenario
from archsim.specs.system import NETWORK, REPLACES
from microarch.blocks import global_cp
from microarch.blocks.global_cp import State, sorting_cycles
from microarch.rtl import allocator, heatmap, lockstep, select, sorter, tables

# ---- engine

LOGGED = np.dtype(
    [(name, "i8") for name in ("kind", "item", "parent", "cause", "event")] + [("time", "f8"), ("end", "f8")]
)


class InterpretedKernel:
    """Runs steps one stage after the other; users' blocks live as long as the run."""

    def __init__(self, machine: Machine, scenario: Scenario):
        self._machine, self._assumptions = machine, scenario.assumptions
        self._own = objects_of(scenario.system.blocks)
        self._memory: DieMemory | None = None
        self._parts: dict[str, Any] = {}

    def step(self, work: Work, memory: Memory, tally: Tally, begin_ns: float) -> float:
        """Run one step; returns its end in ns."""
        self._take_over(memory)
        interpreter = self.interpreter = self._strategy(work)
        end_ns = interpreter.run(begin_ns)
        assert self._memory is not None
        self._memory.leave(memory)
        interpreter.tally(tally)
        self._note(work, interpreter, begin_ns)
        self._work = work
        return end_ns

    def _take_over(self, memory: Memory) -> None:
        if self._memory is not None:
            self._memory.load(memory)
            return
        self._memory = DieMemory(memory, int(self._machine.slice_bytes))
        served_by = shipped_blocks(self._machine, self._memory)
        before_array, network = [], None
        for own in self._own:
            if own.kind == NETWORK:
                network = own.build(self._machine)
            elif own.kind == REPLACES:
                served_by |= {state: own.build(served_by[state]) for state in own.serves}
            else:
                before_array.append(own.build())
        self._parts = {"served_by": served_by, "before_array": before_array}
        self._network: Network | None = network

    def _strategy(self, work: Work) -> Reserved | Shared:
        assumptions = self._assumptions
        if assumptions.contention == "reserved":
            return Reserved(self._machine, work, self._memory, assumptions.ties == "sequence", **self._parts)
        strategy = SharedInTurns if assumptions.arbitration == "round_robin" else Shared
        queued, in_order = assumptions.source == "queued", assumptions.reads == "in_order"
        every_ns = share_every_ns(self._machine, assumptions)
        return strategy(
            self._machine, work, self._memory, queued, in_order, every_ns, network=self._network, **self._parts
        )

    def _note(self, work: Work, interpreter: Reserved | Shared, begin_ns: float) -> None:
        """Rows of the transition log, if one is kept."""
        if not len(work.notes):
            return
        since_ns = begin_ns if self._assumptions.contention == "reserved" else 0.0
        told = [each for each in interpreter.transitions if each.table == "local_cp"]
        for row, each in zip(work.notes, told, strict=False):
            row["time_ns"], row["die"] = each.time - since_ns, each.item
            row["state"], row["event"], row["next"] = each.state, each.event, each.next
        work.notes[-1]["next"] = len(told)

    def log(self, begin_ns: float) -> dict[str, np.ndarray]:
        """Log of the last step (``archsim.engine.event.explained``)."""
        stages = np.zeros(len(self.interpreter.log), LOGGED)
        for row, stage in zip(stages, self.interpreter.log, strict=True):
            row["kind"], row["item"] = stage.state, stage.item
            row["event"] = -1 if stage.event is None else stage.event
            row["parent"], row["cause"] = (-1 if of is None else of.number for of in (stage.parent, stage.cause))
            row["time"], row["end"] = stage.start, stage.end
        since_ns = begin_ns if self._assumptions.contention == "reserved" else 0.0
        return step_log(stages, self._work, since_ns, not self._machine.copies_in_background)


class InterpretedEngine(EventEngine):
    """Runs steps of a scenario in the interpreter. Raises ArchsimError for an execution without chains."""

    name = INTERPRETED

    def __init__(self, scenario: Scenario, *given, **options):
        super().__init__(scenario, *given, **options)
        if self._is_rtl() and self.policy.predictor and scenario.assumptions.heatmap_update == "limited":
            fsm, experts = scenario.system.decision.fsm, scenario.model.experts
            marked = RtlPredictor(self.policy.predictor, experts, fsm.comparators, self.decision)
            self.count_pairs = RtlHeatmap(experts, fsm.heatmap_port_bits)
            self.policy = replace(self.policy, predictor=marked)

    def _is_rtl(self) -> bool:
        decision = self.scenario.system.decision
        return decision.executor == "fsm" and decision.fsm.implementation == "rtl"

    def _build_decision(self) -> FreeDecision:
        if not self._is_rtl():
            return super()._build_decision()

        dies = self.machine, self.fabric
        return RtlDecision(self.scenario, *dies, self.scenario.model.experts, self.tally)

    def _kernels(self) -> Callable[[], InterpretedKernel]:
        return partial(InterpretedKernel, self.machine, self.scenario)


# ---- rtl_decision
# ``decision: {fsm: {implementation: rtl}}``: the state machine's components in RTL in the place of its tables.
#
# Sorter and allocator make the plan of the rule ``paper``, and their cycles are those of ORDER, GENERATE, EVALUATE and
# MERGE. The selector marks the rows of a heatmap behind its port (``heatmap_update: limited``); its cycles are those of
# SELECT. There the store counts pairs, a word at a time; for how many the port has time is the table's mean. Other
# states keep their tables. Needs the extra ``rtl``.

class RtlDecision(ChargedDecision):
    """Decides with the components; what they took is charged."""

    def __init__(self, scenario: Scenario, *given):
        fsm, model, rule = scenario.system.decision.fsm, scenario.model, scenario.policy.allocation
        super().__init__(scenario.system.decision, *given)
        self._rule, self._cost_bits = rule, fsm.cost_bits
        self._cycles: dict[State, int] = {}  # of the last decision
        self.row_cycles = 0  # of a row in SELECT
        if rule.name == "paper":
            parameters = allocator.Parameters(
                self._dies, fsm.lanes, fsm.cost_bits, pipeline=fsm.pipeline,
                speeds=scenario.policy.needs_speeds("allocation"),
            )  # fmt: skip
            self._table = tables.AllocatorTable(parameters)
            self._allocator = lockstep.Driven(allocator.Allocator(parameters))
            experts = 1 << max(1, (model.experts - 1).bit_length())
            comparators = 1 << (min(fsm.comparators, experts // 2).bit_length() - 1)
            self._sorter = lockstep.Driven(sorter.Sorter(sorter.Parameters(experts, comparators)))

    def decide(self, allocate, view):
        plan = super().decide(allocate, view)
        self._cycles = {}
        if not plan.effort.sorted_experts:
            return plan
        order = self._ordered(view)
        given = self._given(view, order)
        most = 100 * sum(len(each.die) + each.tokens for each in given.experts) + 50
        entries, cycles = self._allocator.ask(lambda ctx, dut: lockstep.place(ctx, dut, given, most))
        self._cycles |= dict(zip((State.GENERATE, State.EVALUATE, State.MERGE), cycles, strict=True))
        rows = sorted(zip(order, entries, strict=True))
        made = [(expert, *of[at : at + 2]) for expert, of in rows for at in range(0, len(of), 2)]
        return Plan(*np.array(made, np.int32).T.copy(), plan.effort)

    def _ordered(self, view: StepView) -> list[int]:
        """Experts with tokens, as the sorter has them."""
        active = np.flatnonzero(view.tokens)
        last = sorting_cycles(len(active), "bitonic", self._sorter.component.parameters.comparators)
        ask = self._sorter.ask
        ranks, self._cycles[State.ORDER] = ask(lambda ctx, dut: lockstep.sort(ctx, dut, view.tokens[active], last))
        return active[ranks].tolist()

    def _given(self, view: StepView, order: list[int]) -> tables.PlacingStep:
        """What the allocator gets. Raises ArchsimError for tokens or loads that may exceed its bits."""
        block_tokens, distance = self._rule.params["block_tokens"], self._rule.params["distance"]
        try:
            given = self._table.given(view, block_tokens, order, distance)
        except OverflowError as error:
            raise ArchsimError(f"decision.fsm.implementation: rtl: {error}") from None
        most: Counter[int] = Counter()
        for each in given.experts:
            for rank, (die, read) in enumerate(zip(each.die, each.read, strict=True)):
                work = each.on(rank, each.work)
                most[die] += max(read, work) + work * (each.tokens // block_tokens)
        if max([each.work for each in given.experts] + [*most.values()], default=0) >= 2**self._cost_bits:
            raise ArchsimError(
                f"decision.fsm.implementation: rtl: loads of a die may exceed cost_bits: {self._cost_bits}; take more, "
                "or a larger cost_quantum"
            )
        return given

    def _fsm_ns(self, counts):
        cycles = global_cp.fsm_cycles(counts, self._spec.fsm)
        for state, took in self._cycles.items():
            cycles[state] = took
        if counts.rows and self.row_cycles:
            cycles[State.SELECT] = counts.rows * self.row_cycles
        return cycles * (NS_PER_S / self._spec.fsm.clock_hz)


class RtlPredictor:
    """The predictor of a policy, whose rows the selector marks."""

    def __init__(self, predictor, experts: int, comparators: int, decision: RtlDecision):
        larger_wins = isinstance(predictor, TopFraction)
        keep = min(experts, predictor.keep(experts))
        parameters = select.Parameters(experts, comparators, keep=keep, larger_wins=larger_wins)
        self._driven, self._decision = lockstep.Driven(select.Selector(parameters)), decision

    def __call__(self, heat, changed, out):
        for at in map(tuple, np.argwhere(changed).tolist()):
            row = heat[at]
            cycles, _, chosen = self._driven.ask(lambda ctx, dut, row=row: lockstep.choose(ctx, dut, row))
            marks = np.zeros(8 * out.shape[2], np.uint8)
            marks[chosen] = 1
            out[at] = np.packbits(marks, bitorder="little")
            self._decision.row_cycles = cycles


class RtlHeatmap:
    """The heatmap's store, which adds the pairs of a step to the counters of a layer: arguments of `PortedHeatmap`'s
    ``count``. Raises ArchsimError for a token that has an expert twice, as a mask of a word has no bit for that.
    """

    def __init__(self, experts: int, port_bits: int):
        self._driven = lockstep.Driven(heatmap.HeatmapStore(heatmap.Parameters(experts, port_bits)))

    def __call__(self, pairs, same, request, experts, last, heat, bound, changed, per_word) -> int:
        halved = 0
        for at in pairs.tolist():
            masks = self._masks(experts[at].tolist(), int(per_word))
            for row in (experts[at - 1] if same[at] else last[request[at]]).tolist():
                changed[row] = True
                for word, mask in masks.items():
                    given = row, word, mask
                    halved += self._driven.ask(lambda ctx, dut, given=given: lockstep.count(ctx, dut, heat, *given))
        return halved

    def _masks(self, now: list[int], per_word: int) -> dict[int, int]:
        """Word → a bit for each of its counters to add to."""
        masks: dict[int, int] = {}
        for expert in now:
            word, bit = expert // per_word, 1 << expert % per_word
            if masks.get(word, 0) & bit:
                raise ArchsimError(f"decision.fsm.implementation: rtl: a token has expert {expert} twice")
            masks[word] = masks.get(word, 0) | bit
        return masks
