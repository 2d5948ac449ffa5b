"""Virtual channels of a fabric as it is built: on no layer of them do routes wait for each other in a cycle.

Routes must not wait for each other in a cycle (Dally and Seitz, 1987). XY routes do not; routes around holes may. So
routes are put on layers of virtual channels, as LASH does (Skeie, Lysne and Theiss, 2002): all surviving routes of a
fabric without cycles on the first; every other route on the first layer whose channel dependency graph stays without a
cycle. A message stays on its layer, so that no cycle is left. The engine shares the bandwidth of a link among its
channels as among messages; it counts the channels, which cost buffers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from microarch.fabric.fabric import Graph


def _cyclic(graph: Graph, of: np.ndarray) -> bool:
    """Whether the routes of some pairs, bool[pair], wait for each other in a cycle."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    before, after = _following_links(graph, of)
    if not len(before):
        return False
    shape = graph.links, graph.links
    waits = coo_matrix((np.ones(len(before), np.int8), (before, after)), shape)
    count, _ = connected_components(waits, connection="strong")
    return count < graph.links


def _following_links(graph: Graph, of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Links that follow each other on the routes of some pairs, bool[pair], each pair of links once."""
    pair = np.repeat(np.arange(graph.dies**2), np.diff(graph.route_ptr))
    both = (pair[1:] == pair[:-1]) & of[pair[1:]]
    first, second = graph.route_links[:-1][both].astype(np.int64), graph.route_links[1:][both].astype(np.int64)
    number = np.unique(first * graph.links + second)
    return number // graph.links, number % graph.links


def layers(graph: Graph, kept: np.ndarray) -> np.ndarray:
    """int64[pair]: the layer of every route, such that no layer's routes wait for each other in a cycle. ``kept``:
    bool[die, die], routes that are on the first layer if they have no cycle among themselves.
    """
    found, on_first = np.zeros(graph.dies**2, np.int64), kept.ravel() & True
    if not _cyclic(graph, np.ones(graph.dies**2, bool)):
        return found
    if _cyclic(graph, on_first):
        on_first[:] = False
    waits: list[dict[int, set[int]]] = [defaultdict(set)]
    for before, after in zip(*(each.tolist() for each in _following_links(graph, on_first)), strict=True):
        waits[0][before].add(after)
    for pair in np.flatnonzero(~on_first).tolist():
        route = graph.route_links[graph.route_ptr[pair] : graph.route_ptr[pair + 1]].tolist()
        needed = list(zip(route, route[1:], strict=False))
        layer = 0
        while not _joins(waits[layer], needed):
            layer += 1
            if layer == len(waits):
                waits.append(defaultdict(set))
        found[pair] = layer
    return found


def _joins(waits: dict[int, set[int]], needed: Iterable[tuple[int, int]]) -> bool:
    """Add dependencies to those of a layer, unless they close a cycle; whether they were added."""
    added: list[tuple[int, int]] = []
    for before, after in needed:
        if after in waits[before]:
            continue
        if _leads(waits, after, before):
            for first, second in added:
                waits[first].discard(second)
            return False
        waits[before].add(after)
        added.append((before, after))
    return True


def _leads(waits: dict[int, set[int]], begin: int, end: int) -> bool:
    """Whether one link waits, through others, for another."""
    seen, waiting = {begin}, [begin]
    while waiting:
        link = waiting.pop()
        if link == end:
            return True
        for each in waits.get(link, ()):
            if each not in seen:
                seen.add(each)
                waiting.append(each)
    return False
