"""``engine: interpreted``: the event engine with the interpreter in the place of compiled kernels.

Exact and slow (about a thousand times): for users' blocks with states of their own, for packet-level networks, for
blocks in RTL, and to check the kernels. Plans, work, decisions and results are those of the event engine.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from archsim.engine import engine, own_objects
from archsim.engine.decision import FreeDecision
from archsim.engine.event.step_log import step_log
from archsim.engine.interpreted import blocks, in_turns, reserved, shared
from archsim.engine.interpreted.memory import DieMemory
from archsim.engine.machine import share_every_ns
from archsim.engine.state import Machine, Memory, StepWork, Tally
from archsim.machine.blocks import NETWORK, REPLACES
from archsim.policies.heatmap import TopFraction, TopPositive
from archsim.specs.scenario import Scenario

LOGGED = np.dtype(
    [(name, "i8") for name in ("kind", "item", "parent", "cause", "event")] + [("time", "f8"), ("end", "f8")]
)


class InterpretedKernel:
    """Runs steps one stage after the other; users' blocks live as long as the run."""

    def __init__(self, machine: Machine, scenario: Scenario):
        self._machine, self._assumptions = machine, scenario.assumptions
        self._own = own_objects.objects_of(scenario.system.blocks)
        self._memory: DieMemory | None = None
        self._parts: dict[str, Any] = {}

    def step(self, work: StepWork, memory: Memory, tally: Tally, begin_ns: float) -> float:
        """Run one step; returns its end in ns."""
        remembered = self._take_over(memory)
        interpreter = self.interpreter = self._strategy(work, remembered)
        end_ns = interpreter.run(begin_ns)
        remembered.leave(memory)
        interpreter.tally(tally)
        self._note(work, interpreter, begin_ns)
        self._work = work
        return end_ns

    def _take_over(self, memory: Memory) -> DieMemory:
        """What the dies remember; the first step also makes the blocks."""
        if self._memory is not None:
            self._memory.load(memory)
            return self._memory
        self._memory = DieMemory(memory, int(self._machine.slice_bytes))
        served_by = blocks.shipped_blocks(self._machine, self._memory)
        before_array, network = [], None
        for own in self._own:
            if own.kind == NETWORK:
                network = own.build(self._machine)
            elif own.kind == REPLACES:
                served_by |= {state: own.build(served_by[state]) for state in own.serves}
            else:
                before_array.append(own.build())
        self._parts = {"served_by": served_by, "before_array": before_array}
        self._network: blocks.Network | None = network
        return self._memory

    def _strategy(self, work: StepWork, memory: DieMemory) -> reserved.Reserved | shared.Shared:
        assumptions = self._assumptions
        if assumptions.contention == "reserved":
            return reserved.Reserved(self._machine, work, memory, assumptions.ties == "sequence", **self._parts)
        strategy = in_turns.SharedInTurns if assumptions.arbitration == "round_robin" else shared.Shared
        queued, in_order = assumptions.source == "queued", assumptions.reads == "in_order"
        every_ns = share_every_ns(self._machine, assumptions)
        return strategy(self._machine, work, memory, queued, in_order, every_ns, network=self._network, **self._parts)

    def _note(self, work: StepWork, interpreter: reserved.Reserved | shared.Shared, begin_ns: float) -> None:
        """Rows of the transition log, if one is kept."""
        if not len(work.notes):
            return
        since_ns = begin_ns if self._assumptions.contention == "reserved" else 0.0
        noted = [each for each in interpreter.transitions if each.table == "local_cp"]
        for row, each in zip(work.notes, noted, strict=False):
            row["time_ns"], row["die"] = each.time - since_ns, each.item
            row["state"], row["event"], row["next"] = each.state, each.event, each.next
        work.notes[-1]["next"] = len(noted)

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


class InterpretedEngine(engine.EventEngine):
    """Runs steps of a scenario in the interpreter. Raises ArchsimError for an execution without chains."""

    name = own_objects.INTERPRETED

    def __init__(self, scenario: Scenario, *given: Any, **options: Any):
        super().__init__(scenario, *given, **options)
        if self._is_rtl() and self.policy.predictor and scenario.assumptions.heatmap_update == "limited":
            from archsim.engine.interpreted.rtl_decision import RtlDecision, RtlPredictor
            from archsim.engine.interpreted.rtl_heatmap import RtlHeatmap

            fsm, experts = scenario.system.decision.fsm, scenario.model.experts
            predictor = self.policy.predictor
            assert isinstance(self.decision, RtlDecision)  # see `_build_decision`
            assert isinstance(predictor, TopFraction | TopPositive)  # see `archsim.engine.own_objects.refuse_engine`
            marked = RtlPredictor(predictor, experts, fsm.comparators, self.decision)
            self.count_pairs = RtlHeatmap(experts, fsm.heatmap_port_bits)
            self.policy = self.policy._replace(predictor=marked)

    def _is_rtl(self) -> bool:
        decision = self.scenario.system.decision
        return decision.executor == "fsm" and decision.fsm.implementation == "rtl"

    def _build_decision(self) -> FreeDecision:
        if not self._is_rtl():
            return super()._build_decision()
        from archsim.engine.interpreted.rtl_decision import RtlDecision

        dies = self.machine, self.fabric
        return RtlDecision(self.scenario, *dies, self.scenario.model.experts, self.tally)

    def _kernels(self) -> Callable[[], InterpretedKernel]:
        return partial(InterpretedKernel, self.machine, self.scenario)
