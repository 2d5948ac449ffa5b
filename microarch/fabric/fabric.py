"""A fabric: dies, the links between them, a route for every pair of dies, and what routes cost.

A link is one direction of one edge (full duplex, [W] §II). Nodes are the dies, followed by switches
and shared ports. A :class:`Graph` is nodes, links and routes; designs that differ only in bandwidths and latencies
share one. A :class:`Fabric` is a graph whose classes of links have a bandwidth and a latency. Graphs come from
``microarch.fabric.topology`` (named ones over X × Y dies), ``levels`` (composed) and ``own`` (a user's function).

===============  ===========================  ====================================================================
array            dtype[shape]                 meaning
===============  ===========================  ====================================================================
``hops``         int32[die, die]              dies that a message enters on its route; in a mesh, the Manhattan distance
``link_src``     int32[link]                  node a link leaves
``link_dst``     int32[link]                  node a link enters
``link_edge``    int32[link]                  undirected edge that a link belongs to
``link_class``   int32[link]                  class of a link, an index of ``classes``
``route_ptr``    int64[die·die + 1]           links of route p = s·D + d: ``route_links[route_ptr[p]:route_ptr[p+1]]``
``route_links``  int32[sum of lengths]        links in travelling order
``node_x``       int32[node] or None          column of a node, for maps; dies first. None: no coordinates
``node_y``       int32[node] or None          row of a node
===============  ===========================  ====================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple, NoReturn

import numpy as np

from archsim.base.units import NS_PER_S
from microarch.fabric.routes import count_links, list_links, narrowest, per_route


class LinkClass(NamedTuple):
    """A class of equal links. ``law``: calibration and kind (``h100/intra_node``) of a law that engines may use
    instead.

    ``efficiency``: share of the bandwidth that transfers reach.
    """

    name: str
    bandwidth_bytes_per_s: float
    latency_ns: float
    law: str | None = None
    efficiency: float = 1.0

    @property
    def bytes_per_ns(self) -> float:
        """Effective bandwidth."""
        return self.bandwidth_bytes_per_s / NS_PER_S * self.efficiency


@dataclass(frozen=True, eq=False)
class Graph:
    """Dies, links and routes, see the module's table. ``kind``: name of the topology, or ``levels``, or ``own``."""

    kind: str
    dies: int
    nodes: int
    hops: np.ndarray
    link_src: np.ndarray
    link_dst: np.ndarray
    link_edge: np.ndarray
    link_class: np.ndarray
    route_ptr: np.ndarray
    route_links: np.ndarray
    node_x: np.ndarray | None
    node_y: np.ndarray | None

    @property
    def links(self) -> int:
        return len(self.link_src)

    @property
    def edges(self) -> int:
        return self.links // 2

    @property
    def x_of(self) -> np.ndarray | None:
        """Column of a die, int32[die]."""
        return None if self.node_x is None else self.node_x[: self.dies]

    @property
    def y_of(self) -> np.ndarray | None:
        """Row of a die, int32[die]."""
        return None if self.node_y is None else self.node_y[: self.dies]

    def route(self, src: int, dst: int) -> np.ndarray:
        """Link ids, int32[...], in travelling order."""
        pair = src * self.dies + dst
        return self.route_links[self.route_ptr[pair] : self.route_ptr[pair + 1]]

    def neighbours(self, die: int) -> np.ndarray:
        """Dies one hop away, int64[...], ascending."""
        return np.flatnonzero(self.hops[die] == 1)

    def with_links(self, name: str, classes: Sequence[LinkClass]) -> Fabric:
        """The fabric of this graph, whose arrays it shares. ``classes``: in the order of ``link_class``."""
        return Fabric(
            **{field.name: getattr(self, field.name) for field in fields(Graph)}, name=name, classes=tuple(classes)
        )


@dataclass(frozen=True, eq=False)
class Fabric(Graph):
    """A graph with bandwidths and latencies. ``name``: in words, such as ``5 × 5 mesh``."""

    name: str
    classes: tuple[LinkClass, ...]

    @cached_property
    def link_bytes_per_ns(self) -> np.ndarray:
        """Effective bandwidth of every link, float64[link]."""
        return np.array([each.bytes_per_ns for each in self.classes], np.float64)[self.link_class]

    @cached_property
    def link_ns(self) -> np.ndarray:
        """Latency of every link, float64[link]."""
        return np.array([each.latency_ns for each in self.classes], np.float64)[self.link_class]

    @cached_property
    def pair_ns(self) -> np.ndarray:
        """Latency of every route, float64[die, die]: the sum over its links."""
        return per_route(self, self.link_ns)

    @cached_property
    def pair_bytes_per_ns(self) -> np.ndarray:
        """Bandwidth of every idle route, float64[die, die]: its narrowest link; infinite on the diagonal."""
        return narrowest(self, self.link_bytes_per_ns, here=np.inf)


@dataclass(frozen=True, eq=False)
class Wiring:
    """The result of a topology builder. edges: int64[edge, 2] nodes, each pair once; classes: int64[edge].

    following: int64[node, die]: the next node from a node towards a die; dies come first among the nodes.
    """

    edges: np.ndarray
    classes: np.ndarray
    following: np.ndarray

    @property
    def nodes(self) -> int:
        return len(self.following)


def assemble(kind: str, dies: int, wiring: Wiring, places: tuple[np.ndarray, np.ndarray] | None = None) -> Graph:
    """Build the graph of a wiring. Links are numbered by (source, target), edges by their nodes.

    places: column and row of every node.

    Raises ValueError for a pair of dies whose route uses a missing link or never arrives.
    """
    nodes = wiring.nodes
    ends = np.sort(wiring.edges, axis=1)
    order = np.lexsort(ends.T[::-1])
    ends, classes = ends[order], wiring.classes[order]
    both = np.concatenate([ends, ends[:, ::-1]])
    by_source = np.lexsort(both.T[::-1])
    edge = np.tile(np.arange(len(ends)), 2)[by_source].astype(np.int32)
    link_src, link_dst = both[by_source].astype(np.int32).T
    link_of = np.full((nodes, nodes), -1, np.int32)
    link_of[link_src, link_dst] = np.arange(len(link_src))
    route_ptr, route_links, hops = _routes(np.ascontiguousarray(wiring.following, np.int64), link_of, dies)
    x, y = (None, None) if places is None else (place.astype(np.int32) for place in places)
    return Graph(
        kind, dies, nodes, hops, np.ascontiguousarray(link_src), np.ascontiguousarray(link_dst), edge,
        classes[edge].astype(np.int32), route_ptr, route_links, x, y,
    )


def _routes(following: np.ndarray, link_of: np.ndarray, dies: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """CSR of the links of all routes, and the dies that each enters, int32[die, die]."""
    length, entered = np.zeros((2, dies, dies), np.int32)
    lost = count_links(following, link_of, length, entered)
    if lost >= 0:
        _refuse_route(lost // dies, lost % dies, following, link_of)
    route_ptr = np.concatenate([[0], np.cumsum(length.ravel(), dtype=np.int64)])
    route_links = np.empty(route_ptr[-1], np.int32)
    list_links(following, link_of, route_ptr, route_links)
    return route_ptr, route_links, entered


def _refuse_route(source: int, target: int, following: np.ndarray, link_of: np.ndarray) -> NoReturn:
    here = source
    for _ in range(len(link_of)):
        there = following[here, target]
        if link_of[here, there] < 0:
            raise ValueError(
                f"the route from die {source} to die {target} leads from node {here} to node {there}, "
                "which no link connects"
            )
        here = there
    raise ValueError(f"no route from die {source} to die {target}")
