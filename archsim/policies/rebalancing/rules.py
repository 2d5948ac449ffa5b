"""Rebalancing: a new placement every few steps, from the loads under the previous one.

A rule is a pure function ``(history: History, placement: Placement, **parameters) -> Placement``; ``none``, or a
user's own ``package.module:function``. The loop that drives an engine calls it (``archsim.engine.loop``) and hands
the difference between both placements to the engine as weight moves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from archsim.policies.placement.placement import Placement


class History(NamedTuple):
    """Loads since the last call of the rule; steps are iterations, layers those that the run simulates."""

    rows: np.ndarray  # int64[layer]: index of each layer in the placement
    tokens: np.ndarray  # int32[step, layer, expert]
    load: np.ndarray  # int64[step, layer, die]: tokens assigned to each die
    step_ns: np.ndarray  # float64[step, layer], decisions included


class Rebalancing(NamedTuple):
    """A rule, and the number of steps between its calls."""

    every_steps: int
    rule: Callable[[History, Placement], Placement]
