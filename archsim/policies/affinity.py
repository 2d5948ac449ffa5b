"""Affinity: experts lie where their tokens live, and with the experts that their tokens choose as well.

What ExFlow (Yao et al., 2024), MoETuner and GRACE-MoE have in common: fewer vectors cross links where a die gets
several pairs of a token. Tokens live on dies and come back after every layer here, so that the layer before does not
say where they are; their origin does. Experts in order of falling load each go to the die with a free slot where
most of their tokens live or have another expert; ties to the least loaded die, then the lowest.
"""

import numpy as np

from archsim.policies.placement import Placement
from archsim.policies.rebalancing import History, Rebalanced, effort_of, with_layers


def affine(history: History, placement: Placement) -> Rebalanced:
    """Needs pairs and origins (``History.seen``). Operations as those of separation."""
    assert history.seen is not None, "needs: routing"
    load, seen = history.tokens.sum(axis=0, dtype=np.int64), history.seen
    held = [
        gather(load[at], seen.pairs[at], seen.origins[at], placement.layer_slots[row])
        for at, row in enumerate(history.rows.tolist())
    ]
    experts = placement.experts
    operations = len(load) * experts * (experts + placement.dies)
    return Rebalanced(with_layers(placement, history.rows, held), effort_of(operations, len(load) * experts, experts))


def gather(load: np.ndarray, pairs: np.ndarray, origins: np.ndarray, slots: np.ndarray) -> list[np.ndarray]:
    """[die] experts of one layer. load: int64[expert]; pairs: int64[expert, expert]; origins: int64[die, expert];
    slots: int64[die].
    """
    near, free, die_load = origins.astype(np.int64).copy(), slots.copy(), np.zeros(len(slots), np.int64)
    held: list[list[int]] = [[] for _ in slots]
    for expert in np.argsort(-load, kind="stable").tolist():
        gain = np.where(free > 0, near[:, expert], -1)
        best = np.flatnonzero(gain == gain.max())
        die = int(best[die_load[best].argmin()])
        held[die].append(expert)
        near[die] += pairs[expert]
        die_load[die] += load[expert]
        free[die] -= 1
    return [np.array(experts, np.int64) for experts in held]
