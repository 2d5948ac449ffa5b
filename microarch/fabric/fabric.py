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
``route_links``  uint16[sum of lengths]       links in travelling order; uint32 of a fabric with more than 65,536
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

from archsim.base import compiled, units


@compiled.kernel
def count_links(toward, link_dst, routers, length, entered):
    """Walk all routes: ``length`` counts their links, ``entered`` the first ``routers`` nodes on them, int32[die, die].

    ``toward``, ``link_dst``: see ``Routes``; targets come first, as the links toward one lie together. Returns source ·
    dies + target of the first route that uses a missing link or never arrives; -1 if none does.
    """
    dies, nodes = toward.shape
    lost = dies * dies
    for target in range(dies):
        for source in range(dies):
            here, links, stops = np.int64(source), 0, 0
            while here != target:
                link = toward[target, here]
                if link < 0 or links >= nodes:
                    lost = min(lost, source * dies + target)
                    break
                here = np.int64(link_dst[link])
                links += 1
                stops += here < routers
            length[source, target], entered[source, target] = links, stops
    return lost if lost < dies * dies else -1


@compiled.kernel
def list_links(toward, link_dst, route_ptr, route_links):
    """Fill in the links of all routes, see ``count_links``; those of pair p from ``route_ptr[p]`` on."""
    dies = len(toward)
    for target in range(dies):
        for source in range(dies):
            here, at = np.int64(source), route_ptr[source * dies + target]
            while here != target:
                link = toward[target, here]
                route_links[at] = link
                here, at = np.int64(link_dst[link]), at + 1


@compiled.kernel
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


@compiled.kernel
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


@compiled.kernel
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

    Raises ValueError where routes wait for each other in a cycle, as around a ring of five dies or more.
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


class LinkClass(NamedTuple):
    """A class of equal links."""

    name: str  # in tables and figures
    bandwidth_bytes_per_s: float  # one way, nominal
    latency_ns: float  # of one link
    law: str | None = None  # calibration and kind (``h100/intra_node``) of a law that engines may use instead
    efficiency: float = 1.0  # share of the bandwidth that transfers reach

    @property
    def bytes_per_ns(self) -> float:
        """Effective bandwidth."""
        return self.bandwidth_bytes_per_s / units.NS_PER_S * self.efficiency


class Routes:
    """The routes of a graph, which are found when they are asked for: they are the largest of its arrays.

    toward: int32[die, node], the link that leaves a node on its way to a die, or -1 - the node to which none leads;
    link_dst: int32[link], the node that it enters. routers: how many nodes count as hops; None: the dies. ``others``:
    routes that are as long as these, and bool[die], the sources of which messages take them.
    """

    def __init__(
        self, toward: np.ndarray, link_dst: np.ndarray, routers: int | None = None,
        others: tuple[Routes, np.ndarray] | None = None,
    ) -> None:  # fmt: skip
        self._given: tuple[np.ndarray, np.ndarray] | None = (toward, link_dst)
        self._routers = len(toward) if routers is None else routers
        self._others = others

    @cached_property
    def found(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(hops, route_ptr, route_links). ValueError: a route uses a missing link or never arrives."""
        assert self._given is not None, "given once"
        toward, link_dst = self._given
        dies = len(toward)
        length, entered = np.zeros((2, dies, dies), np.int32)
        lost = count_links(toward, link_dst, self._routers, length, entered)
        if lost >= 0:
            _refuse_route(lost // dies, lost % dies, toward, link_dst)
        route_ptr = np.concatenate([[0], np.cumsum(length.ravel(), dtype=np.int64)])
        route_links = np.empty(route_ptr[-1], number_type(len(link_dst)))
        list_links(toward, link_dst, route_ptr, route_links)
        if self._others is not None:
            others, of = self._others
            theirs = np.repeat(np.repeat(of, dies), np.diff(route_ptr))
            route_links[theirs] = others.found[2][theirs]
        self._given = self._others = None
        return entered, route_ptr, route_links

    @classmethod
    def given(cls, hops: np.ndarray, route_ptr: np.ndarray, route_links: np.ndarray) -> Routes:
        """Routes that are known already."""
        made = cls.__new__(cls)
        made.found = hops, route_ptr, route_links
        return made

    def refuse_lost(self) -> None:
        """Find them now. Raises as ``found`` does."""
        _ = self.found


@dataclass(frozen=True, eq=False)
class Graph:
    """Dies, links and routes, see the module's table."""

    kind: str  # name of the topology, or ``levels``, or ``own``
    dies: int  # the first of the nodes
    nodes: int  # dies, switches and shared ports
    link_src: np.ndarray  # int32[link]
    link_dst: np.ndarray  # int32[link]
    link_edge: np.ndarray  # int32[link]
    link_class: np.ndarray  # int32[link]
    routes: Routes  # found when they are asked for
    node_x: np.ndarray | None  # int32[node]
    node_y: np.ndarray | None  # int32[node]

    @property
    def hops(self) -> np.ndarray:
        return self.routes.found[0]

    @property
    def route_ptr(self) -> np.ndarray:
        return self.routes.found[1]

    @property
    def route_links(self) -> np.ndarray:
        return self.routes.found[2]

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
        """Link ids in travelling order."""
        pair = src * self.dies + dst
        return self.route_links[self.route_ptr[pair] : self.route_ptr[pair + 1]]

    def route_edges(self) -> np.ndarray:
        """The undirected edges of all routes, in the places of ``route_links``."""
        found = np.empty_like(self.route_links)
        name_anew(self.route_links, self.link_edge, found)
        return found

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
    """A graph with bandwidths and latencies. ``ports``: how many of its last links are ports of dies (`with_ports`)."""

    name: str
    classes: tuple[LinkClass, ...]
    ports: int = 0

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


@dataclass(frozen=True, eq=False)
class Wiring:
    """The result of a topology builder. edges: int64[edge, 2] nodes, each pair once; classes: int64[edge].

    following: int64[node, die]: the next node from a node towards a die; dies come first among the nodes. ``others``:
    the same of messages from some dies, bool[die], on routes that are as long; None: of none.
    """

    edges: np.ndarray
    classes: np.ndarray
    following: np.ndarray
    others: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def nodes(self) -> int:
        return len(self.following)


def assemble(
    kind: str,
    dies: int,
    wiring: Wiring,
    places: tuple[np.ndarray, np.ndarray] | None = None,
    routers: int | None = None,
) -> Graph:
    """Build the graph of a wiring. Links are numbered by (source, target), edges by their nodes.

    places: column and row of every node. routers: the first nodes that count as hops; None: the dies.
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
    link_dst = np.ascontiguousarray(link_dst)

    def routes(following: np.ndarray, others: tuple[Routes, np.ndarray] | None = None) -> Routes:
        link = np.take_along_axis(link_of, following, axis=1)
        toward = np.ascontiguousarray(np.where(link < 0, -1 - following, link).T, np.int32)
        return Routes(toward, link_dst, routers, others)

    others = None if wiring.others is None else (routes(wiring.others[0]), wiring.others[1])
    x, y = (None, None) if places is None else (place.astype(np.int32) for place in places)
    return Graph(
        kind=kind, dies=dies, nodes=nodes, link_src=np.ascontiguousarray(link_src), link_dst=link_dst, link_edge=edge,
        link_class=classes[edge].astype(np.int32), routes=routes(wiring.following, others), node_x=x, node_y=y,
    )  # fmt: skip


def with_ports(fabric: Fabric, bytes_per_s: float) -> Fabric:
    """The fabric with a port out of and one into every die, through which all routes pass; they add no latency.

    Ports are the last links: of die d, from d to d, first all that lead out, then all that lead in. Hops do not count
    them. ``bytes_per_s``: what a port passes each way.
    """
    dies, links, edges = fabric.dies, fabric.links, fabric.edges
    own = np.arange(dies, dtype=np.int32)
    longer = np.diff(fabric.route_ptr) > 0  # routes of a die to itself have no link
    before: np.ndarray = np.cumsum(longer) - longer
    pair = np.repeat(np.arange(dies * dies), np.diff(fabric.route_ptr))
    route_ptr = np.concatenate([[0], np.cumsum(np.diff(fabric.route_ptr) + 2 * longer)]).astype(np.int64)
    route_links = np.empty(route_ptr[-1], number_type(links + 2 * dies))
    route_links[np.arange(len(pair)) + 2 * before[pair] + 1] = fabric.route_links
    source, target = np.divmod(np.flatnonzero(longer), dies)
    route_links[route_ptr[:-1][longer]] = links + source
    route_links[route_ptr[1:][longer] - 1] = links + dies + target
    port = LinkClass("port", bytes_per_s, 0.0)
    return Fabric(
        kind=fabric.kind, dies=dies, nodes=fabric.nodes, link_src=np.concatenate([fabric.link_src, own, own]),
        link_dst=np.concatenate([fabric.link_dst, own, own]),
        link_edge=np.concatenate([fabric.link_edge, edges + own, edges + own]),
        link_class=np.concatenate([fabric.link_class, np.full(2 * dies, len(fabric.classes), np.int32)]),
        routes=Routes.given(fabric.hops, route_ptr, route_links), node_x=fabric.node_x, node_y=fabric.node_y,
        name=fabric.name, classes=(*fabric.classes, port), ports=2 * dies,
    )  # fmt: skip


def number_type(links: int) -> type[np.unsignedinteger]:
    """The narrowest of two types that number so many links."""
    return np.uint16 if links <= 1 << 16 else np.uint32


def _refuse_route(source: int, target: int, toward: np.ndarray, link_dst: np.ndarray) -> NoReturn:
    here = source
    for _ in range(toward.shape[1]):
        link = toward[target, here]
        if link < 0:
            raise ValueError(
                f"the route from die {source} to die {target} leads from node {here} to node {-1 - link}, "
                "which no link connects"
            )
        here = link_dst[link]
    raise ValueError(f"no route from die {source} to die {target}")
