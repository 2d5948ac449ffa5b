"""Properties of all routes of a fabric: sums and minima over links, an order of links, shortest paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from archsim.base.kernels import kernel

if TYPE_CHECKING:
    from microarch.fabric.fabric import Graph


@kernel
def count_links(toward, link_dst, length, entered):
    """Walk all routes: ``length`` counts their links, ``entered`` the dies on them, int32[die, die].

    ``toward``, ``link_dst``: see ``Routes``; targets come first, as the links toward one lie together. Returns source ·
    dies + target of the first route that uses a missing link or never arrives; -1 if none does.
    """
    dies, nodes = toward.shape
    lost = dies * dies
    for target in range(dies):
        for source in range(dies):
            here, links, stops = source, 0, 0
            while here != target:
                link = toward[target, here]
                if link < 0 or links >= nodes:
                    lost = min(lost, source * dies + target)
                    break
                here = np.int64(link_dst[link])
                links += 1
                stops += here < dies
            length[source, target], entered[source, target] = links, stops
    return lost if lost < dies * dies else -1


@kernel
def list_links(toward, link_dst, route_ptr, route_links):
    """Fill in the links of all routes, see ``count_links``; those of pair p from ``route_ptr[p]`` on."""
    dies = len(toward)
    for target in range(dies):
        for source in range(dies):
            here, at = source, route_ptr[source * dies + target]
            while here != target:
                link = toward[target, here]
                route_links[at] = link
                here, at = np.int64(link_dst[link]), at + 1


@kernel
def name_anew(route_links, name_of, found):
    """Replace each link of all routes by ``name_of: int32[link]``."""
    for at in range(len(route_links)):
        found[at] = name_of[route_links[at]]


def per_route(graph: Graph, of_link: np.ndarray) -> np.ndarray:
    """Sum of ``of_link: float64[link]`` along every route, float64[die, die].

    Equal values are counted and multiplied, so that a mesh of equal links has exactly hops · value.
    """
    values, kind = np.unique(of_link, return_inverse=True)
    total = np.zeros(graph.dies * graph.dies)
    _add_up(graph.route_ptr, graph.route_links, values, kind, np.zeros(len(values), np.int64), total)
    return total.reshape(graph.dies, graph.dies)


@kernel
def _add_up(route_ptr, route_links, values, kind, count, total):
    """``per_route``. ``kind``: int64[link], place among the ``values``; ``count``: int64[value], scratch."""
    for pair in range(len(total)):
        count[:] = 0
        for at in range(route_ptr[pair], route_ptr[pair + 1]):
            count[kind[route_links[at]]] += 1
        for each in range(len(values)):
            total[pair] += count[each] * values[each]


def narrowest(graph: Graph, of_link: np.ndarray, here: float) -> np.ndarray:
    """Least of ``of_link: float64[link]`` along every route, float64[die, die]; ``here`` from a die to itself."""
    least = np.full(graph.dies * graph.dies, here)
    _find_least(graph.route_ptr, graph.route_links, of_link, least)
    return least.reshape(graph.dies, graph.dies)


@kernel
def _find_least(route_ptr, route_links, of_link, least):
    """``narrowest``, of the pairs that have a link."""
    for pair in range(len(least)):
        for at in range(route_ptr[pair], route_ptr[pair + 1]):
            narrow = of_link[route_links[at]]
            if at == route_ptr[pair] or narrow < least[pair]:
                least[pair] = narrow


def link_rank(graph: Graph) -> np.ndarray:
    """int32[link]: an order of the links along which every route rises: the length of the longest path to a link, from
    0.

    Raises ValueError where routes wait for each other in a cycle, as around a ring of four dies or more.
    """
    first = graph.route_links[:-1]
    same = np.ones(len(first), bool)
    same[graph.route_ptr[(graph.route_ptr > 0) & (graph.route_ptr < len(graph.route_links))] - 1] = False
    before = np.unique(np.stack([first[same], graph.route_links[1:][same]], axis=1), axis=0)
    rank = np.zeros(graph.links, np.int32)
    for _ in range(graph.links + 1):
        higher = rank.copy()
        np.maximum.at(higher, before[:, 1], rank[before[:, 0]] + 1)
        if (higher == rank).all():
            return rank
        rank = higher
    raise ValueError("the routes form a cycle")


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
