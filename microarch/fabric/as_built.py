"""Fabrics as they are built: routes around dead dies and links, and what is lost.

A route of the perfect fabric that survives stays as it is (XY in a mesh). Where it does not, messages take a shortest
way through what is left, joining surviving routes as soon as they meet one of as few links; ties go to the lowest
number. As everywhere, the next link depends on node and target alone.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from archsim.machine.built import in_parts, named_dies
from microarch.fabric.channels import layers
from microarch.fabric.fabric import Graph, Wiring, assemble, per_route


class CutOff(ValueError):
    """Some dies have no route to the others."""


class Holes(NamedTuple):
    """What of a graph works. Nodes are numbered as in the graph, dies first."""

    living: tuple[int, ...]  # dies of the machine, in order
    gone: tuple[int, ...] = ()  # nodes that pass nothing on; other dies pass messages
    dead: tuple[tuple[int, int], ...] = ()  # edges, lower node first
    slow: tuple[tuple[tuple[int, int], float], ...] = ()  # edge, share of its bandwidth
    length: tuple[tuple[tuple[int, int], int], ...] = ()  # edge, times its latency


class LinkKind(NamedTuple):
    """A kind of links: class in the perfect graph, share of its bandwidth, and how many times as long they are."""

    of: int
    share: float = 1.0
    length: int = 1


class Punched(NamedTuple):
    """The graph of what works. ``kinds``: of its link classes; ``channels``: virtual channels that its routes need;
    ``layer``: int[die · dies + die], that of every route.
    """

    graph: Graph
    kinds: tuple[LinkKind, ...]
    channels: int
    layer: np.ndarray


@lru_cache(maxsize=512)
def punch(graph: Graph, holes: Holes) -> Punched:
    """The graph with these holes. Raises CutOff."""
    gone = np.zeros(graph.nodes, bool)
    gone[list(holes.gone)] = True
    lower, upper = np.minimum(graph.link_src, graph.link_dst), np.maximum(graph.link_src, graph.link_dst)
    dead, pairs = set(holes.dead), list(zip(lower.tolist(), upper.tolist(), strict=True))
    works = ~(gone[graph.link_src] | gone[graph.link_dst]) & np.array([pair not in dead for pair in pairs], bool)
    living = np.array(holes.living, np.int64)
    whole = len(living) == graph.dies and works.all() and (living == np.arange(graph.dies)).all()
    if whole and not holes.slow and not holes.length:
        layer = layers(graph, np.ones((graph.dies, graph.dies), bool))
        every = tuple(LinkKind(of) for of in range(int(graph.link_class.max(initial=0)) + 1))
        return Punched(graph, every, int(layer.max(initial=0)) + 1, layer)
    following, kept = _routes(graph, living, works)
    passing = np.array([node for node in range(graph.nodes) if not gone[node]], np.int64)
    routers = [node for node in passing.tolist() if node < graph.dies and node not in set(holes.living)]
    order = np.array([*holes.living, *routers, *passing[passing >= graph.dies].tolist()], np.int64)
    number = np.full(graph.nodes, -1)
    number[order] = np.arange(len(order))
    slow, length = dict(holes.slow), dict(holes.length)
    kinds: dict[LinkKind, int] = {LinkKind(of): of for of in range(int(graph.link_class.max(initial=0)) + 1)}
    edges, classes = [], []
    for link in np.flatnonzero(works & (graph.link_src < graph.link_dst)).tolist():
        pair = pairs[link]
        kind = LinkKind(int(graph.link_class[link]), slow.get(pair, 1.0), length.get(pair, 1))
        edges.append((number[pair[0]], number[pair[1]]))
        classes.append(kinds.setdefault(kind, len(kinds)))
    places = None
    if graph.node_x is not None and graph.node_y is not None:
        places = graph.node_x[order], graph.node_y[order]
    ends, of_edge = np.array(edges, np.int64).reshape(-1, 2), np.array(classes, np.int64)
    after = following[order]
    after = np.where(after < 0, np.arange(len(order))[:, None], number[after])
    made = assemble(graph.kind, len(living), Wiring(ends, of_edge, after), places, len(living) + len(routers))
    made.routes.refuse_lost()
    layer = layers(made, kept)
    return Punched(made, tuple(kinds), int(layer.max(initial=0)) + 1, layer)


def _routes(graph: Graph, living: np.ndarray, works: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(int64[node, living]: next node, -1: none; bool[living, living]: unchanged routes). Raises CutOff."""
    toward = np.full((graph.dies, graph.nodes), -1, np.int64)
    pair = np.repeat(np.arange(graph.dies**2), np.diff(graph.route_ptr))
    toward[pair % graph.dies, graph.link_src[graph.route_links]] = graph.route_links
    around: dict[int, list[int]] = defaultdict(list)
    for src, dst in zip(graph.link_src[works].tolist(), graph.link_dst[works].tolist(), strict=True):
        around[dst].append(src)
    following = np.full((graph.nodes, len(living)), -1, np.int64)
    kept = np.zeros((len(living), len(living)), bool)
    for column, target in enumerate(living.tolist()):
        link = toward[target]
        usable = (link >= 0) & works[link]
        after = np.where(usable, graph.link_dst[link], -1)
        left = np.full(graph.nodes, -1, np.int64)  # links to the target
        left[target] = 0
        while True:
            reached = usable & (left < 0) & (left[after] >= 0)
            if not reached.any():
                break
            left[reached] = left[after[reached]] + 1
        following[:, column] = np.where(left > 0, after, -1)
        following[target, column] = target
        kept[:, column] = left[living] >= 0
        if not kept[:, column].all():
            _detour(target, left, around, following[:, column])
    lost = following[living] < 0
    if lost.any():
        edges = zip(graph.link_src[works].tolist(), graph.link_dst[works].tolist(), strict=True)
        raise CutOff(in_parts(living.tolist(), edges) or f"no route to {named_dies(living[lost.any(axis=0)].tolist())}")
    return following, kept


def _detour(target: int, left: np.ndarray, around: dict[int, list[int]], following: np.ndarray) -> None:
    """Fill in next nodes where no surviving route leads on. ``left``: int64[node] links to the target, -1."""
    waiting = [(int(links), node, node) for node, links in enumerate(left.tolist()) if links >= 0]
    heapq.heapify(waiting)
    settled: set[int] = set()
    while waiting:
        links, via, node = heapq.heappop(waiting)
        if node in settled or (left[node] >= 0 and via != node):
            continue
        settled.add(node)
        if left[node] < 0:
            following[node] = via
        for source in around.get(node, ()):
            if source not in settled and left[source] < 0:
                heapq.heappush(waiting, (links + 1, node, source))


class Left(NamedTuple):
    """What is left of a machine as it is built."""

    dies: int  # that work
    sites: int  # dies of the perfect machine
    # links of all routes, long ones counted as often as they are long, over the perfect ones between the same dies
    mean_detour: float
    most_detour: float  # the same of the worst route
    bisection: float | None  # share of bandwidth left, of the worse cut through the middle; None: only switches join it
    channels: int  # virtual channels that its routes need
    perfect_channels: int  # those of the perfect machine


def left_of(perfect: Graph, sites: np.ndarray, found: Punched) -> Left:
    """``sites``: int64[die], the dies of the ``perfect`` graph that are those of the machine."""
    dies = len(sites)
    before = np.diff(perfect.route_ptr).reshape(perfect.dies, perfect.dies)[np.ix_(sites, sites)]
    longer = np.array([kind.length for kind in found.kinds], float)[found.graph.link_class]
    now = per_route(found.graph, longer)
    away = before > 0
    mean = float(now[away].sum() / before[away].sum()) if away.any() else 1.0
    most = float((now[away] / before[away]).max()) if away.any() else 1.0
    channels = int(layers(perfect, np.ones((perfect.dies, perfect.dies), bool)).max(initial=0)) + 1
    return Left(dies, perfect.dies, mean, most, _bisection(perfect, sites, found), channels=found.channels,
                perfect_channels=channels)  # fmt: skip


def _bisection(perfect: Graph, sites: np.ndarray, found: Punched) -> float | None:
    """The least share over the cuts of the perfect graph's links that are left between its halves."""
    share = np.array([kind.share for kind in found.kinds])[found.graph.link_class]
    ways = []
    for halves in _halves(perfect):
        node = np.full(found.graph.nodes, -1)
        node[: len(sites)] = halves[sites]
        others = found.graph.nodes - len(sites)
        if others and found.graph.node_x is not None and perfect.node_x is not None:
            at = {place: half for place, half in zip(_places(perfect), halves, strict=False)}
            node[len(sites) :] = [at.get(place, -1) for place in list(_places(found.graph))[len(sites) :]]
        src, dst = halves[perfect.link_src], halves[perfect.link_dst]
        crosses = int(np.count_nonzero((src >= 0) & (dst >= 0) & (src != dst)))
        across = (node[found.graph.link_src] * node[found.graph.link_dst] == 0) & (
            node[found.graph.link_src] + node[found.graph.link_dst] == 1
        )
        if crosses:
            ways.append(float(share[across].sum()) / crosses)
    return min(ways, default=None)


def _places(graph: Graph) -> Iterator[tuple[int, int]]:
    assert graph.node_x is not None and graph.node_y is not None
    return zip(graph.node_x.tolist(), graph.node_y.tolist(), strict=True)


def _halves(graph: Graph) -> Iterator[np.ndarray]:
    """int64[node]: 0 or 1 of every die, by columns, rows, or numbers; -1 of other nodes."""
    if graph.x_of is not None and graph.y_of is not None:
        for place in (graph.x_of, graph.y_of):
            if place.max() > 0:
                found = np.full(graph.nodes, -1)
                found[: graph.dies] = place > place.max() / 2
                yield found
        return
    found = np.full(graph.nodes, -1)
    found[: graph.dies] = np.arange(graph.dies) >= graph.dies / 2
    yield found
