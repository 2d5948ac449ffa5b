"""Ceilings of balance: how little the most loaded die could have, whatever the allocation.

Loads are pairs of token and expert. ``perfect``: the mean. ``slots``: no placement with as many slots does better: an
expert with c instances has at least 1/c of its load on some die, and the fewest loads per instance that the slots allow
are those of the greedy rule that gives each slot to the largest. ``placement``: the linear programme of LPLB over the
holders of the step, solved exactly as a flow (``archsim.policies.allocation.max_flow``); no allocation to holders does
better, allocations to other dies may. perfect <= slots <= placement.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Ceilings(NamedTuple):
    """Least possible load of the most loaded die, in pairs."""

    perfect: float
    slots: float
    placement: float


def ceilings(tokens: np.ndarray, holders: np.ndarray, slots: int) -> Ceilings:
    """``tokens: int[expert]``; ``holders: bool[expert, die]``; ``slots``: of all dies in the layer."""
    load, dies = tokens.astype(np.float64), holders.shape[1]
    mean = float(load.sum()) / dies
    if not mean:
        return Ceilings(0.0, 0.0, 0.0)
    held = int(np.count_nonzero(holders))
    slots = max(slots, held)
    if held == len(load):
        placed = float((load @ holders).max())
    else:
        placed = _shared_out(load, holders)
    least = max(mean, _largest_instance(load, slots))
    return Ceilings(mean, min(least, placed), placed)


def _largest_instance(load: np.ndarray, slots: int) -> float:
    """The least that the largest load per instance can be with that many instances."""
    from archsim.base.packing import replicate

    return float(load.max() if slots <= len(load) else replicate(load[None], slots).load.max())


def _shared_out(load: np.ndarray, holders: np.ndarray) -> float:
    from archsim.policies.allocation.max_flow import share_out

    active = np.flatnonzero(load)
    expert, gpu = np.nonzero(holders[active])
    begin = np.searchsorted(expert, np.arange(len(active) + 1))
    share = share_out(load[active], begin.astype(np.int64), gpu.astype(np.int64), holders.shape[1])
    return float(np.bincount(gpu, share, holders.shape[1]).max())
