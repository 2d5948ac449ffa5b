"""Asynchronous EPLB: the layers in turn, a few at a time, while steps go on.

EPLB of all layers at once moves most experts between two steps. Engines that rebalance asynchronously, such as vLLM and
SGLang, take one layer after the other, whose weights arrive beside the steps (`migration` ``overlapped``) before the
next layer's leave. Each call rebalances the next ``layers`` of those that run.
"""

import numpy as np

from archsim.policies.placement import Placement
from archsim.policies.rebalancing import History, Rebalanced, eplb


def async_eplb(history: History, placement: Placement, layers: int = 1, groups: int = 1, nodes: int = 1) -> Rebalanced:
    """EPLB of the layers whose turn it is after ``History.call`` calls; see `archsim.policies.rebalancing.eplb`."""
    count = len(history.rows)
    chosen = np.unique((history.call * layers + np.arange(min(layers, count))) % count)
    some = history._replace(
        rows=history.rows[chosen], tokens=history.tokens[:, chosen], load=history.load[:, chosen],
        step_ns=history.step_ns[:, chosen],
    )  # fmt: skip
    return eplb(some, placement, groups, nodes)
