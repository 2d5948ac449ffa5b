"""Placement by task: every subject's own load is even over dies (Yu et al., ISCA 2026, insight 6).

Tasks and languages have experts of their own. A placement by the sum of all loads may put those of one subject on one
die, which then waits when a batch is of that subject alone. Experts in order of falling share of any subject each go to
the die with a free slot where the largest share of any subject stays least; ties to the lowest index.
"""

import numpy as np

from archsim.policies.placement import Placement
from archsim.policies.rebalancing import History, Rebalanced, effort_of, with_layers


def by_task(history: History, placement: Placement) -> Rebalanced:
    """Needs subjects (``History.seen``). Operations: every expert looks at all subjects of every die."""
    assert history.seen is not None, "needs: routing"
    loads = history.seen.subject_loads
    held = [place(loads[:, at], placement.layer_slots[row]) for at, row in enumerate(history.rows.tolist())]
    subjects, layers, experts = loads.shape
    operations = layers * experts * subjects * placement.dies
    return Rebalanced(with_layers(placement, history.rows, held), effort_of(operations, layers * subjects, experts))


def place(loads: np.ndarray, slots: np.ndarray) -> list[np.ndarray]:
    """[die] experts of one layer. loads: int64[subject, expert]; slots: int64[die]."""
    share = loads / np.maximum(loads.sum(axis=1, keepdims=True), 1)
    of_die, free = np.zeros((len(slots), len(loads))), slots.copy()
    held: list[list[int]] = [[] for _ in slots]
    for expert in np.argsort(-share.max(axis=0), kind="stable").tolist():
        cost = np.where(free > 0, (of_die + share[:, expert]).max(axis=1), np.inf)
        die = int(np.argmin(np.round(cost, 12)))  # equal shares, added in another order, are ties
        held[die].append(expert)
        of_die[die] += share[:, expert]
        free[die] -= 1
    return [np.array(experts, np.int64) for experts in held]
