"""Ceilings of balance: how little the most loaded die could have, whatever the allocation.

Loads are pairs of token and expert. ``perfect``: the mean. ``slots``: no placement with as many slots does better: an
expert with c instances has at least 1/c of its load on some die, and the fewest loads per instance that the slots
allow are those of the greedy rule that gives each slot to the largest. ``placement``: the linear programme of LPLB
over the holders of the step, solved exactly as a flow (``archsim.policies.lplb``); no allocation to holders does
better, allocations to other dies may. perfect <= slots <= placement.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from archsim.base.compiled import kernel, unsigned


class Ceilings(NamedTuple):
    """Least possible load of the most loaded die, in pairs."""

    perfect: float
    slots: float
    placement: float


def ceilings(tokens: np.ndarray, holders: np.ndarray, slots: int) -> Ceilings:
    """``tokens: int[expert]``; ``holders: bool[expert, die]``; ``slots``: of all dies in the layer."""
    pairs, largest, held, fullest = _sums(tokens, holders, np.zeros(holders.shape[1], np.int64))
    mean = pairs / holders.shape[1]
    if not pairs:
        return Ceilings(0.0, 0.0, 0.0)
    slots = max(slots, held)
    placed = float(fullest) if held == len(tokens) else _shared_out(tokens.astype(np.float64), holders)
    instance = float(largest) if slots <= len(tokens) else _largest_instance(tokens.astype(np.float64), slots)
    return Ceilings(mean, min(max(mean, instance), placed), placed)


@kernel
def _sums(tokens, holders, loads):
    """Sum and largest of ``tokens``, how many ``holders``, and the most that a die would have if all of its experts ran
    there alone. ``loads``: int64[die], zeros.
    """
    pairs, largest, held, fullest = 0, 0, 0, 0
    for expert in range(unsigned(len(tokens))):
        pairs += tokens[expert]
        largest = max(largest, tokens[expert])
        for die in range(unsigned(len(loads))):
            if holders[expert, die]:
                held += 1
                loads[die] += tokens[expert]
    for die in range(len(loads)):
        fullest = max(fullest, loads[die])
    return pairs, largest, held, fullest


def _largest_instance(load: np.ndarray, slots: int) -> float:
    """The least that the largest load per instance can be with that many instances, more than experts."""
    from archsim.base.replication import replicate

    return float(replicate(load[None], slots).load.max())


def _shared_out(load: np.ndarray, holders: np.ndarray) -> float:
    from archsim.policies.max_flow import share_out

    active = np.flatnonzero(load)
    expert, gpu = np.nonzero(holders[active])
    begin = np.searchsorted(expert, np.arange(len(active) + 1))
    share = share_out(load[active], begin.astype(np.int64), gpu.astype(np.int64), holders.shape[1])
    return float(np.bincount(gpu, share, holders.shape[1]).max())
