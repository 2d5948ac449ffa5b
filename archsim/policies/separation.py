"""Separation: experts that tokens choose together lie on different dies (Yu et al., ISCA 2026, insight 5).

A token that finds two of its experts on one die has them run there one after the other. Experts in order of falling
load each go to the die with a free slot where the load, and the tokens that it shares with the experts there, are
least; ties to the lowest index. Slots stay as placed; there are no replicas.
"""

import numpy as np

from archsim.policies.placement import Placement
from archsim.policies.rebalancing import History, Rebalanced, effort_of, with_layers


def separate(history: History, placement: Placement) -> Rebalanced:
    """Needs pairs (``History.seen``). Operations: every expert looks at the experts and at the dies before it."""
    assert history.seen is not None, "needs: routing"
    load, pairs = history.tokens.sum(axis=0, dtype=np.int64), history.seen.pairs
    held = [
        separate_experts(load[at], pairs[at], placement.layer_slots[row])
        for at, row in enumerate(history.rows.tolist())
    ]
    experts = placement.experts
    operations = len(load) * experts * (experts + placement.dies)
    return Rebalanced(with_layers(placement, history.rows, held), effort_of(operations, len(load) * experts, experts))


def separate_experts(load: np.ndarray, pairs: np.ndarray, slots: np.ndarray) -> list[np.ndarray]:
    """[die] experts of one layer. load: int64[expert]; pairs: int64[expert, expert]; slots: int64[die]."""
    together = np.zeros((len(slots), len(load)), np.int64)  # tokens that an expert shares with those on a die
    die_load, free = np.zeros(len(slots), np.int64), slots.copy()
    held: list[list[int]] = [[] for _ in slots]
    for expert in np.argsort(-load, kind="stable").tolist():
        cost = np.where(free > 0, die_load + together[:, expert], np.iinfo(np.int64).max)
        die = int(cost.argmin())
        held[die].append(expert)
        together[die] += pairs[expert]
        die_load[die] += load[expert]
        free[die] -= 1
    return [np.array(experts, np.int64) for experts in held]
