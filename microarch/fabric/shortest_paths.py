"""Shortest routes over any graph of links."""

from __future__ import annotations

import numpy as np


def shortest_paths(nodes: int, dies: int, edges: np.ndarray, latency_ns: np.ndarray) -> np.ndarray:
    """int64[node, die]: next node on the way to a die: fewest links, then least latency, then the lowest number.

    edges: int64[edge, 2]; latency_ns: float64[edge]. Raises ValueError for a node without a route to some die.
    """
    src, dst = np.concatenate([edges, edges[:, ::-1]]).T if len(edges) else np.zeros((2, 0), np.int64)
    latency_ns = np.concatenate([latency_ns, latency_ns])
    following = np.empty((nodes, dies), np.int64)
    for target in range(dies):
        following[:, target], reached = _towards(target, nodes, src, dst, latency_ns)
        if not reached.all():
            lost = int(reached.argmin())
            raise ValueError(f"no route from {'die' if lost < dies else 'node'} {lost} to die {target}")
    return following


def _towards(
    target: int, nodes: int, src: np.ndarray, dst: np.ndarray, latency_ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(next node on the way to ``target``, int64[node]; whether there is one, bool[node])."""
    following, left_ns = np.full(nodes, target), np.full(nodes, np.inf)
    settled, newest = np.zeros(nodes, bool), np.zeros(nodes, bool)
    settled[target] = newest[target] = True
    left_ns[target] = 0.0
    while newest.any():
        usable = np.flatnonzero(newest[dst] & ~settled[src])
        here, there, ns = src[usable], dst[usable], left_ns[dst[usable]] + latency_ns[usable]
        best = np.lexsort([there, ns, here])
        here, first = np.unique(here[best], return_index=True)
        following[here], left_ns[here] = there[best][first], ns[best][first]
        newest[:] = False
        newest[here] = settled[here] = True
    return following, settled
