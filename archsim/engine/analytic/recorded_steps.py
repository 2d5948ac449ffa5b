"""The steps of a run that took no time, kept with their work: what many machines walk."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from archsim.engine import loop, state, weight_streaming
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.decision import ChargedDecision, FreeDecision
from archsim.engine.demand import RunDemand
from archsim.specs.scenario import Scenario
from microarch.blocks.global_cp import DecisionWork, Reach, State
from microarch.fabric.fabric import Fabric

_TABLE_BYTES = 1 << 26  # of what the rates of machines decide, in one walk of them
MOST_MACHINES = 4096  # machines in one call
_LEAST = 16  # of them, however large their tables are


class _Recorder:
    """A kernel that keeps the work of every step, and takes no time."""

    def __init__(self) -> None:
        self.works: list[state.StepWork] = []

    def step(self, work: state.StepWork, memory: state.Memory, tally: state.Tally, begin_ns: float) -> float:
        self.works.append(work)
        return begin_ns


class RecordingDecision(ChargedDecision):
    """Keeps the work of every decision, and what a host takes for it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.decided: list[tuple[DecisionWork, float]] = []

    def after_step(self, plan, rows, copies, previous_ns, step_ns):
        self.decided.append((self._counts(plan, rows, copies), self._decided_ns))
        return super().after_step(plan, rows, copies, previous_ns, step_ns)

    def states_of(self, counts: DecisionWork, decided_ns: float, reach: Reach) -> np.ndarray:
        """float64[machine, State] of machines with this reach."""
        self._reach = reach
        return self._states_ns(counts, decided_ns)


class _RecordingProducts:
    """Products that keep the distinct tokens of every die, which no entry of the work tells."""

    def __init__(self, products: Any) -> None:
        self._products = products
        self.arrived: list[np.ndarray | None] = []

    def of(self, tokens, routed, read_bytes, die, arrived=None):
        self.arrived.append(arrived)
        return self._products.of(tokens, routed, read_bytes, die, arrived)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._products, name)


class _RecordingEngine(AnalyticalEngine):
    def __init__(self, scenario: Scenario, layer_ids: Any) -> None:
        super().__init__(scenario, layer_ids)
        assert isinstance(self.execution, weight_streaming.WeightStreaming)
        self.kernel: Any = self.execution.kernel
        self.products = _RecordingProducts(self.execution.builder.gemm)
        own: Any = self.execution.builder  # products of the run, behind what keeps their arguments
        own.gemm = self.products

    def _kernels(self) -> Any:
        return _Recorder

    def _build_decision(self) -> FreeDecision:
        scenario = self.scenario
        if scenario.assumptions.decision_cost == "free":
            return FreeDecision()
        given = scenario.system.decision, self.machine, self.fabric, scenario.model.experts, self.tally
        return RecordingDecision(*given)


class RecordedSteps(NamedTuple):
    """Steps of a scenario that took no time: their work, and what else they gave."""

    scenario: Scenario  # that was run
    machine: state.Machine  # of the scenario
    fabric: Fabric  # of the machine
    works: tuple[state.StepWork, ...]  # one a step
    # float64[die] of each step: distinct tokens that dies receive; None without a dispatch
    arrived: tuple[np.ndarray | None, ...]
    products: Any  # strategy of the assumption ``gemm``
    decision: FreeDecision  # the cost model of decisions
    prefill: tuple[bool, ...]  # of each step: whether it is of the prefill
    outcome: loop.RunOutcome  # of the run, whose times are 0

    @property
    def most_machines(self) -> int:
        """How many machines `walk_machines` should be given at once: their tables take some tens of megabytes."""
        machine = self.machine
        tables = 2 * machine.dies**2 + len(machine.link_rates) + len(self.works)
        tables += 6 * max((len(work.entries) for work in self.works), default=0)
        return max(_LEAST, min(MOST_MACHINES, _TABLE_BYTES // (8 * tables)))


def record(scenario: Scenario, demand: RunDemand) -> RecordedSteps:
    """Set a run up and go through its steps, without their time."""
    engine = _RecordingEngine(scenario, demand.layer_ids)
    prefill = tuple(bool(each.prefill_tokens.any()) for _, each in demand)
    outcome = loop.Replay(engine, demand).run()
    states_ns = outcome.decision.states_ns
    assert not (states_ns[State.READ] or states_ns[State.UPDATE]), "nothing of a decision overlaps with steps"
    works = tuple(engine.kernel.works)
    assert not any(work.cp_en.any() for work in works), "no copies are kept"
    arrived, products = tuple(engine.products.arrived), engine.products._products
    return RecordedSteps(
        scenario=scenario, machine=engine.machine, fabric=engine.fabric, works=works, arrived=arrived,
        products=products, decision=engine.decision, prefill=prefill, outcome=outcome,
    )  # fmt: skip
