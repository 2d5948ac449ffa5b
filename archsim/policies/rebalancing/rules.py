"""Rebalancing: a new placement every few steps, from the loads under the previous one.

A rule is a pure function ``(history: History, placement: Placement, **parameters)`` that returns a `Placement`, or a
`Rebalanced`, which also says what it cost; ``archsim.policies.rebalancing.published`` has those of papers, others are a
user's own ``package.module:function``. The loop that drives an engine calls it (``archsim.engine.loop``) and hands
the difference between both placements to the engine as weight moves.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from archsim.policies.allocation.rules import NO_EFFORT, Costs, Effort
from archsim.policies.placement.placement import Placement


class History(NamedTuple):
    """Loads since the last call of the rule; steps are iterations, layers those that the run simulates."""

    rows: np.ndarray  # int64[layer]: index of each layer in the placement
    tokens: np.ndarray  # int32[step, layer, expert]
    load: np.ndarray  # int64[step, layer, die]: tokens assigned to each die
    step_ns: np.ndarray  # float64[step, layer], decisions included
    costs: Costs | None = None  # what a rule may assume about the machine


class Rebalanced(NamedTuple):
    """A placement, and the work of finding it."""

    placement: Placement
    effort: Effort = NO_EFFORT


class Rebalancing(NamedTuple):
    """A rule, and the iterations after which it is called: ``first_steps`` (None: ``every_steps``) after the start,
    then every ``every_steps`` (0: never again); it sees the latest ``window_steps`` (None: all since the last call).
    """

    every_steps: int
    rule: Callable[[History, Placement], Placement | Rebalanced]
    first_steps: int | None = None
    window_steps: int | None = None

    def due(self, calls: int) -> float:
        """Iterations until the next call, after ``calls`` calls."""
        if not calls and self.first_steps is not None:
            return self.first_steps
        return self.every_steps or float("inf")
