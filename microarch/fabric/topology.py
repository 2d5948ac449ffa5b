"""Topologies: which links there are, and the route from every die to every other. Each is a name and a builder.

A topology gives a :class:`microarch.fabric.mesh.Wiring`; all of them become the same arrays (:class:`microarch.fabric.mesh.Mesh`), so
that engines, policies and reports need not know which it was. Routes are fixed, shortest, and do not depend on traffic:

================== ======================================= =============================================================
name               links                                   route, and what decides between equally short ones
================== ======================================= =============================================================
``mesh``           to the neighbours along x and y         along x first, then along y (XY)
``torus``          and from the last of a row or column    the same; the shorter way round, towards higher columns and
                   to its first                            rows where both are equal
``ring``           die i to i + 1, the last to die 0       the shorter way round, towards higher numbers if equal
``fully_connected`` every die to every other               the link itself
``switch``         every die to a middle that is no die    up and down; the middle never blocks, its ports (the links) do
``edges``          as listed                               fewest links; then least latency; then, from die to die, the
                                                           lowest next number
================== ======================================= =============================================================

Classes of links, which may have bandwidth and latency of their own: horizontal, vertical and each wrapped around for mesh
and torus; the listed edges, one class each; one class for all other topologies. Rings of two dies have one edge, as has a
side of two of a torus.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from heapq import heappop, heappush
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from microarch.fabric.mesh import Mesh, Wiring, assemble, build_mesh, die_places, grid_wiring


class Edge(NamedTuple):
    """An edge of a list: two dies and the latency of its links in ns."""

    a: int
    b: int
    latency_ns: float


class Site(NamedTuple):
    """What a topology is built on: X × Y dies with their places (x_of, y_of), and the listed edges if it has a list."""

    x: int
    y: int
    places: tuple[np.ndarray, np.ndarray]
    edges: tuple[Edge, ...]

    @property
    def dies(self) -> int:
        return self.x * self.y


def _mesh(site: Site) -> Wiring:
    return grid_wiring(site.x, site.y, site.places, wrapped=False)


def _torus(site: Site) -> Wiring:
    return grid_wiring(site.x, site.y, site.places, wrapped=True)


def _ring(site: Site) -> Wiring:
    # A ring is a torus of one row, in the order of the dies' numbers.
    row = np.arange(site.dies), np.zeros(site.dies, np.int64)
    wiring = grid_wiring(site.dies, 1, row, wrapped=True)
    return _of_one_class(wiring.edges, wiring.following)


def _fully_connected(site: Site) -> Wiring:
    edges = np.stack(np.triu_indices(site.dies, 1), axis=1)
    return _of_one_class(edges, np.tile(np.arange(site.dies), (site.dies, 1)))


def _switch(site: Site) -> Wiring:
    dies = np.arange(site.dies)
    following = np.concatenate([np.full((site.dies, site.dies), site.dies), dies[None, :]])
    edges = np.stack([dies, np.full(site.dies, site.dies)], axis=1)
    if site.dies == 1:
        edges = edges[:0]
    # Drawn below the dies.
    return _of_one_class(edges, following, middle=((site.x // 2, site.y),))


def _listed(site: Site) -> Wiring:
    around: list[list[tuple[int, float]]] = [[] for _ in range(site.dies)]
    for edge in site.edges:
        around[edge.a].append((edge.b, edge.latency_ns))
        around[edge.b].append((edge.a, edge.latency_ns))
    following = np.stack([_towards(target, around) for target in range(site.dies)], axis=1)
    ends = np.array([sorted((edge.a, edge.b)) for edge in site.edges], np.int64).reshape(-1, 2)
    return Wiring(ends, np.arange(len(ends)), following)


def _towards(target: int, around: list[list[tuple[int, float]]]) -> np.ndarray:
    """int64[die]: the next die on the way to ``target`` (Dijkstra by links, then latency, then number). ValueError if there is none."""
    cost: dict[int, tuple[int, float]] = {}
    following = np.full(len(around), target, np.int64)
    heap = [(0, 0.0, target, target)]
    while heap:
        links, latency, after, die = heappop(heap)
        if die in cost:
            continue
        cost[die] = links, latency
        following[die] = after
        for other, more in around[die]:
            if other not in cost:
                heappush(heap, (links + 1, latency + more, die, other))
    if len(cost) < len(around):
        missing = next(die for die in range(len(around)) if die not in cost)
        raise ValueError(f"no route from die {missing} to die {target}")
    return following


def _of_one_class(edges: np.ndarray, following: np.ndarray, middle: tuple[tuple[int, int], ...] = ()) -> Wiring:
    return Wiring(edges, np.zeros(len(edges), np.int64), following, middle)


BUILDERS: MappingProxyType[str, Callable[[Site], Wiring]] = MappingProxyType(
    {
        "mesh": _mesh,
        "torus": _torus,
        "ring": _ring,
        "fully_connected": _fully_connected,
        "switch": _switch,
        "edges": _listed,
    }
)


@lru_cache(maxsize=64)
def build_topology(name: str, x: int, y: int, numbering: str, edges: tuple[Edge, ...] = ()) -> Mesh:
    """Dies, links and routes of a topology over X × Y dies; bandwidths are no part of it, so that designs can share it.

    edges: of the topology ``edges``, each pair of dies once. Raises ValueError for an unknown name or numbering, a side below 1, or
    edges that leave a die without a route.
    """
    if name not in BUILDERS:
        raise ValueError(f"topology {name!r}: expected one of {', '.join(BUILDERS)}")
    if name == "mesh":
        return build_mesh(x, y, numbering)
    places = die_places(x, y, numbering)
    return assemble(name, x, y, numbering, BUILDERS[name](Site(x, y, places, edges)))


def per_route(mesh: Mesh, of_link: np.ndarray) -> np.ndarray:
    """Sum of ``of_link: float64[link]`` along every route, float64[die, die].

    Equal values are counted and multiplied, so that a mesh of equal links has exactly hops · value.
    """
    total = np.zeros(mesh.dies * mesh.dies)
    pairs = np.repeat(np.arange(mesh.dies * mesh.dies), np.diff(mesh.route_ptr))
    for value in np.unique(of_link):
        counted = pairs[of_link[mesh.route_links] == value]
        total += np.bincount(counted, minlength=len(total)) * value
    return total.reshape(mesh.dies, mesh.dies)


def narrowest(mesh: Mesh, of_link: np.ndarray, here: float) -> np.ndarray:
    """Least of ``of_link: float64[link]`` along every route, float64[die, die]; ``here`` from a die to itself."""
    least = np.full(mesh.dies * mesh.dies, here)
    pairs = np.repeat(np.arange(mesh.dies * mesh.dies), np.diff(mesh.route_ptr))
    for value in np.unique(of_link)[::-1]:
        least[pairs[of_link[mesh.route_links] == value]] = value
    return least.reshape(mesh.dies, mesh.dies)


def link_rank(mesh: Mesh) -> np.ndarray:
    """int32[link]: an order of the links along which every route rises, from 0: the longest way to a link over all routes.

    Raises ValueError where routes wait for each other in a circle, as around a ring of four dies or more.
    """
    first = mesh.route_links[:-1]
    same = np.ones(len(first), bool)
    same[mesh.route_ptr[(mesh.route_ptr > 0) & (mesh.route_ptr < len(mesh.route_links))] - 1] = False
    before = np.unique(np.stack([first[same], mesh.route_links[1:][same]], axis=1), axis=0)
    rank = np.zeros(mesh.links, np.int32)
    for _ in range(mesh.links + 1):
        higher = rank.copy()
        np.maximum.at(higher, before[:, 1], rank[before[:, 0]] + 1)
        if (higher == rank).all():
            return rank
        rank = higher
    raise ValueError("routes go round in a circle")
