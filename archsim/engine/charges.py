"""What the engine will charge for a plan: the time of a step before it runs, for policies that weigh plans.

A policy knows how many tokens of every die choose which expert, not which single tokens they are, and its decision
precedes predictions: vectors sent once a die are expected numbers, and no copies are made. Otherwise a plan takes what
the analytical engine gives for it (``Execution.time_of``), so that there is one law for both.
"""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.engine.decision import FreeDecision
from archsim.engine.executions.execution import Execution, Order
from archsim.engine.state import NO_NOTES, SLICES, Machine
from archsim.policies.allocation.rules import Plan, Rates
from archsim.policies.placement.placement import Placement
from archsim.workload.step_demand import StepDemand

ASKED = "time_of", "kernel_ns"  # methods that an execution needs for it


class Charges:
    """Charges of a run's steps."""

    def __init__(self, execution: Execution, machine: Machine, decision: FreeDecision):
        self._execution, self.decision = execution, decision
        self._read_ns = SLICES * machine.slice_bytes / machine.hbm_bytes_per_ns
        self._dies = machine.dies
        self._near = lru_cache(maxsize=1024)(partial(_rates, execution))

    def of(self, layer: int, row: int, demand: StepDemand, placement: Placement) -> StepCharges:
        """Of one step. ``layer``: of the layers that run; ``row``: of the placement."""
        return StepCharges(self, layer, row, demand, placement)

    def plan_ns(self, order: Order) -> float:
        self._refuse_unknown()
        return self._execution.time_of(order)

    def rates(self, tokens: np.ndarray) -> Rates:
        """At the mean die of a step with ``tokens: int32[expert]``."""
        self._refuse_unknown()
        active = max(1, int(np.count_nonzero(tokens)))
        experts = -(-active // self._dies)
        row_ns, expert_ns = self._near(max(1, int(tokens.sum()) // (experts * self._dies)), experts)
        return Rates(row_ns, expert_ns, self._read_ns)

    def _refuse_unknown(self) -> None:
        missing = [name for name in ASKED if not hasattr(self._execution, name)]
        if missing:
            raise ArchsimError(
                f"execution {type(self._execution).__name__} has no method {missing[0]!r}, by which a policy weighs "
                "plans (archsim.engine.executions.execution.Execution); add it, or take an allocation that needs none"
            )


def _rates(execution: Execution, tokens: int, experts: int) -> tuple[float, float]:
    """Secants of the time of a die that runs ``experts`` with ``tokens`` each, up to twice as many: ns a row, and an
    expert.
    """
    kernel_ns = execution.kernel_ns
    mean_ns, more_rows_ns = kernel_ns(tokens, experts), kernel_ns(2 * tokens, experts)
    more_experts_ns = kernel_ns(tokens, 2 * experts)
    row_ns = max((more_rows_ns - mean_ns) / (tokens * experts), 0.0)
    return row_ns, max((more_experts_ns - more_rows_ns) / experts, 0.0)


class StepCharges:
    """Charges of one step; see ``archsim.policies.allocation.rules.Charged``."""

    def __init__(self, charges: Charges, layer: int, row: int, demand: StepDemand, placement: Placement):
        self._charges, self._of = charges, (layer, row, demand, placement)

    @property
    def rates(self) -> Rates:
        return self._charges.rates(self._of[2].tokens)

    def decision_ns(self, plan: Plan) -> float:
        return self._charges.decision.takes_ns(plan)

    def plan_ns(self, plan: Plan) -> float:
        layer, row, demand, placement = self._of
        known = demand._replace(routing=None)
        return self._charges.plan_ns(Order(layer, row, known, plan, None, 0.0, NO_NOTES, placement))
