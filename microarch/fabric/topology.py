"""Topologies by name over X × Y dies: their links, and the route from every die to every other.

All of them become the same arrays (:class:`microarch.fabric.fabric.Graph`), so that engines, policies and reports do
not depend on the topology. Routes are fixed and shortest, and do not depend on traffic:

================== ======================================= =============================================================
name               links                                   route, and how ties of equal length are broken
================== ======================================= =============================================================
``mesh``           to the neighbours along x and y         along x first, then along y (XY)
``torus``          and from the last of a row or column    the same; the shorter way round; of two equal ones upwards
                   to its first                            from even columns and rows, downwards from odd ones;
                                                           of sides of 6, 10, … so of every other line alone
``torus_x``, ``_y`` as torus, with rings along one axis     the same; a mesh's way along the other axis
``ring``           die i to i + 1, the last to die 0       the same, by the dies' numbers
``fully_connected`` every die to every other               the link itself
``switch``         every die to a node that is not a die   up and down; its ports (the links) block, the switch never
``edges``          as listed                               fewest links; then least latency; then, from die to die, the
                                                           lowest next number
================== ======================================= =============================================================

Classes of links, which may have their own bandwidth and latency: horizontal, vertical and each wrapped around for
mesh and torus; the listed edges, one class each; one class for all other topologies. A ring of two dies has one edge,
and so has a side of two dies of a torus.
"""

from collections.abc import Callable
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from microarch.fabric import fabric, grid, shortest_paths


class Edge(NamedTuple):
    """An edge of a list: two dies and the latency of its links in ns."""

    a: int
    b: int
    latency_ns: float


class Site(NamedTuple):
    """What a topology is built on: X × Y dies with their places (column, row), and the listed edges if any."""

    x: int
    y: int
    places: tuple[np.ndarray, np.ndarray]
    edges: tuple[Edge, ...] = ()

    @property
    def dies(self) -> int:
        return self.x * self.y


def _mesh(site: Site) -> fabric.Wiring:
    return grid.grid_wiring(site.x, site.y, site.places, wrapped=(False, False))


def _torus(site: Site) -> fabric.Wiring:
    return grid.grid_wiring(site.x, site.y, site.places, wrapped=(True, True))


def _torus_x(site: Site) -> fabric.Wiring:
    return grid.grid_wiring(site.x, site.y, site.places, wrapped=(True, False))


def _torus_y(site: Site) -> fabric.Wiring:
    return grid.grid_wiring(site.x, site.y, site.places, wrapped=(False, True))


def _ring(site: Site) -> fabric.Wiring:
    # A ring is a torus of one row, in the order of the dies' numbers.
    row = np.arange(site.dies), np.zeros(site.dies, np.int64)
    wiring = grid.grid_wiring(site.dies, 1, row, wrapped=(True, True))
    return _of_one_class(wiring.edges, wiring.following)


def _fully_connected(site: Site) -> fabric.Wiring:
    edges = np.stack(np.triu_indices(site.dies, 1), axis=1)
    return _of_one_class(edges, np.tile(np.arange(site.dies), (site.dies, 1)))


def _switch(site: Site) -> fabric.Wiring:
    dies = np.arange(site.dies)
    following = np.concatenate([np.full((site.dies, site.dies), site.dies), dies[None, :]])
    edges = np.stack([dies, np.full(site.dies, site.dies)], axis=1)
    return _of_one_class(edges[:0] if site.dies == 1 else edges, following)


def _from_edges(site: Site) -> fabric.Wiring:
    ends = np.array([(edge.a, edge.b) for edge in site.edges], np.int64).reshape(-1, 2)
    latency_ns = np.array([edge.latency_ns for edge in site.edges], np.float64)
    return fabric.Wiring(
        ends, np.arange(len(ends)), shortest_paths.shortest_paths(site.dies, site.dies, ends, latency_ns)
    )


def _of_one_class(edges: np.ndarray, following: np.ndarray) -> fabric.Wiring:
    return fabric.Wiring(edges, np.zeros(len(edges), np.int64), following)


BUILDERS: MappingProxyType[str, Callable[[Site], fabric.Wiring]] = MappingProxyType(
    {
        "mesh": _mesh,
        "torus": _torus,
        "torus_x": _torus_x,
        "torus_y": _torus_y,
        "ring": _ring,
        "fully_connected": _fully_connected,
        "switch": _switch,
        "edges": _from_edges,
    }
)


@lru_cache(maxsize=64)
def build_topology(name: str, x: int, y: int, numbering: str, edges: tuple[Edge, ...] = ()) -> fabric.Graph:
    """Dies, links and routes of a topology over X × Y dies; without bandwidths, so that designs can share it.

    edges: of the topology ``edges``, each pair of dies once. Raises ValueError for an unknown name or numbering, a side
    below 1, or edges that leave a die without a route.
    """
    if name not in BUILDERS:
        raise ValueError(f"topology {name!r}: expected one of {', '.join(BUILDERS)}")
    if name == "mesh":
        return grid.build_mesh(x, y, numbering)
    places = grid.die_places(x, y, numbering)
    wiring = BUILDERS[name](Site(x, y, places, edges))
    if wiring.nodes > x * y:  # a switch is drawn below the dies
        places = np.append(places[0], x // 2), np.append(places[1], y)
    return fabric.assemble(name, x * y, wiring, places)
