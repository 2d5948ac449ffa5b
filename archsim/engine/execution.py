"""The interface of an execution: it runs the plan of a step on the machine."""

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple, Protocol

import numpy as np

from archsim.base.own_code import import_function
from archsim.engine.state import Machine, Memory, StepWork, Tally
from archsim.iteration.overlap import Rest
from archsim.policies.allocation import Plan
from archsim.policies.placement import Placement
from archsim.specs.scenario import Scenario
from archsim.traffic.step_demand import StepDemand
from microarch.fabric.fabric import Fabric


class Kernel(Protocol):
    """Runs ``StepWork`` on the machine: event by event under one contention strategy, or by the analytical walk."""

    def step(self, work: StepWork, memory: Memory, tally: Tally, begin_ns: float) -> float:
        """Run one step; returns its end in ns."""

    def log(self, begin_ns: float) -> dict[str, np.ndarray]:
        """Log of the last step (``archsim.engine.event.explained``)."""


class Setup(NamedTuple):
    """What an execution uses during a run. Its steps modify ``memory`` and ``tally``."""

    scenario: Scenario  # of the run
    machine: Machine  # constants of the run
    fabric: Fabric  # of the machine
    memory: Memory  # LLCs, copies, translations
    tally: Tally  # counts of the run
    copies: bool  # whether dies keep cached copies, and so search for them
    build_kernel: Callable[[], Kernel]  # the engine's, for executions whose work is chains and moves
    analytical: bool = False  # whether the engine is; for executions that simulate by themselves
    placement: Placement | None = None  # at the start
    rest: Callable[[float, bool], Rest] | None = None  # of half of a rank's tokens, which are prompts or not


class Order(NamedTuple):
    """One step to run."""

    layer: int  # of the layers that run
    row: int  # of the placement
    demand: StepDemand  # tokens by expert
    plan: Plan  # which die runs how many tokens of which expert
    cp_en: np.ndarray | None  # uint8[die, expert], or None where nothing is predicted
    cp_ready_ns: float  # when the bits are ready, from the start of the step
    notes: np.ndarray  # NOTE[n]: transitions of the Local CPs
    placement: Placement  # which dies hold which expert, replicas of this step included


FULL_CLOCKS = (1.0, 1.0)  # of arrays in prefill and decode, shares of the full one; ``clocks`` of an execution


def phase_of(order: Order) -> int:
    """0: a step of the prefill, 1: of decode."""
    return 0 if order.demand.prefill_tokens.any() else 1


class GemmTime(NamedTuple):
    """Total time of calibrated GEMMs and of those at extrapolated sizes, ns; ``law``: of grouped kernels, else ''."""

    calibrated_ns: float
    extrapolated_ns: float
    law: str = ""


class Execution(Protocol):
    """A named strategy, built once per run from a `Setup`. Its state is private.

    Every run calls ``step`` and ``gemm_time``. A user's own may lack the others: ``log``, for timelines, and
    ``time_of`` and ``kernel_ns``, for allocations that weigh plans.
    """

    def step(self, order: Order, now_ns: float) -> float:
        """Run a step that begins at ``now_ns``; returns its end in ns, and updates memory and tally."""

    def gemm_time(self) -> GemmTime:
        """Totals over all steps."""

    def log(self, begin_ns: float) -> dict[str, np.ndarray]:
        """Log of the last step (``archsim.engine.event.explained``); ArchsimError if there is none."""

    def time_of(self, order: Order) -> float:
        """ns of the step by the law of the analytical engine, changing nothing; for allocations that weigh plans."""

    def kernel_ns(self, tokens: int, experts: int) -> float:
        """How long a die would compute that runs ``experts`` routed experts with ``tokens`` each; as ``time_of``."""


# Executions by name: the module of that name in this package, or a user's own ``package.module:class``.


def build_execution(name: str, setup: Setup) -> Execution:
    """The execution of that name: ``build(setup)`` of its module or a user's (ValueError if it cannot be imported)."""
    build = import_function(name) if ":" in name else import_module(f"archsim.engine.{name}").build
    return build(setup)
