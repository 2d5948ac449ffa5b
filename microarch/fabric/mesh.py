"""The dies and the links between them: numbering, distances, routes. The plain mesh with XY routes is built here.

A link is one direction of one edge (full duplex, [W] §II). Which edges there are and which way a message takes is the
topology's: see ``microarch.fabric.topology``, which builds the same arrays for every one of them. Nodes are the dies and,
behind them, what is no die (the middle of a ``switch``).

=============  ==========================  =====================================================================
array          dtype[shape]                meaning
=============  ==========================  =====================================================================
``x_of``       int32[die]                  column of a die
``y_of``       int32[die]                  row of a die
``node_x``     int32[node]                 column of a node, for drawings; dies first
``node_y``     int32[node]                 row of a node
``hops``       int32[die, die]             dies that a message enters on its route: the Manhattan distance in a mesh
``link_src``   int32[link]                 node a link leaves
``link_dst``   int32[link]                 node a link enters
``link_edge``  int32[link]                 undirected edge that a link belongs to
``link_class`` int32[link]                 which of the topology's classes of links it is, see ``microarch.fabric.topology``
``route_ptr``  int64[die·die + 1]          links of route (s, d): ``route_links[route_ptr[s·D+d]:route_ptr[s·D+d+1]]``
``route_links`` int32[sum of distances]    links in travelling order
=============  ==========================  =====================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

ROW_MAJOR = "row_major"
COLUMN_MAJOR = "column_major"
HORIZONTAL, VERTICAL, HORIZONTAL_WRAP, VERTICAL_WRAP = range(4)  # classes of links of a mesh or torus


@dataclass(frozen=True, eq=False)
class Mesh:
    """X × Y dies and their links; see the module's table for the arrays."""

    x: int
    y: int
    numbering: str
    topology: str
    x_of: np.ndarray
    y_of: np.ndarray
    node_x: np.ndarray
    node_y: np.ndarray
    hops: np.ndarray
    link_src: np.ndarray
    link_dst: np.ndarray
    link_edge: np.ndarray
    link_class: np.ndarray
    route_ptr: np.ndarray
    route_links: np.ndarray

    @property
    def dies(self) -> int:
        return self.x * self.y

    @property
    def links(self) -> int:
        return len(self.link_src)

    @property
    def edges(self) -> int:
        return self.links // 2

    def route(self, src: int, dst: int) -> np.ndarray:
        """Link ids, int32[...], in travelling order."""
        pair = src * self.dies + dst
        return self.route_links[self.route_ptr[pair] : self.route_ptr[pair + 1]]

    def neighbours(self, die: int) -> np.ndarray:
        """Dies one hop away, int64[...], ascending."""
        return np.flatnonzero(self.hops[die] == 1)


@dataclass(frozen=True, eq=False)
class Wiring:
    """What a topology decides. edges: int64[edge, 2] nodes, the lower first; classes: int64[edge].

    following: int64[node, die]: the node behind a node on the way to a die. middle: places (x, y) of nodes that are no dies.
    """

    edges: np.ndarray
    classes: np.ndarray
    following: np.ndarray
    middle: tuple[tuple[int, int], ...] = ()


@lru_cache(maxsize=64)
def build_mesh(x: int, y: int, numbering: str = ROW_MAJOR) -> Mesh:
    """The X × Y mesh with dies numbered x + X·y (``row_major``) or y + Y·x (``column_major``, published simulator).

    Routes are XY: along x first, then along y. Raises ValueError for a side below 1 or an unknown numbering.
    """
    places = die_places(x, y, numbering)
    return assemble("mesh", x, y, numbering, grid_wiring(x, y, places, wrapped=False))


def die_places(x: int, y: int, numbering: str) -> tuple[np.ndarray, np.ndarray]:
    """(x_of, y_of), int32[die] each. Raises ValueError for a side below 1 or an unknown numbering."""
    if x < 1 or y < 1:
        raise ValueError(f"mesh {x} x {y}: both sides must be at least 1")
    if numbering not in (ROW_MAJOR, COLUMN_MAJOR):
        raise ValueError(f"numbering {numbering!r}: expected {ROW_MAJOR!r} or {COLUMN_MAJOR!r}")
    die = np.arange(x * y, dtype=np.int32)
    return (die % x, die // x) if numbering == ROW_MAJOR else (die // y, die % y)


def grid_wiring(x: int, y: int, places: tuple[np.ndarray, np.ndarray], *, wrapped: bool) -> Wiring:
    """Neighbours along x and y, first and last of a row or column too if ``wrapped``; routes along x first, then along y.

    A wrapped route goes the shorter way round; where both are equal, towards the higher column or row.
    """
    x_of, y_of = (place.astype(np.int64) for place in places)
    die_at = np.zeros((x, y), np.int64)
    die_at[x_of, y_of] = np.arange(x * y)
    step_x = _step(x_of, x, wrapped)
    step_y = np.where(step_x == 0, _step(y_of, y, wrapped), 0)
    following = die_at[(x_of[:, None] + step_x) % x, (y_of[:, None] + step_y) % y]
    edges = np.unique(np.sort(np.stack([np.arange(x * y).repeat(x * y), following.ravel()], axis=1), axis=1), axis=0)
    edges = edges[edges[:, 0] != edges[:, 1]]
    apart_x, apart_y = (np.abs(of[edges[:, 0]] - of[edges[:, 1]]) for of in (x_of, y_of))
    along_x = np.where(apart_x > 1, HORIZONTAL_WRAP, HORIZONTAL)
    return Wiring(edges, np.where(apart_x > 0, along_x, np.where(apart_y > 1, VERTICAL_WRAP, VERTICAL)), following)


def _step(place: np.ndarray, side: int, wrapped: bool) -> np.ndarray:
    """-1, 0 or 1, int64[node, die]: which way along one axis."""
    apart = place[None, :] - place[:, None]
    if not wrapped:
        return np.sign(apart)
    around = apart % side
    return np.where(around == 0, 0, np.where(2 * around <= side, 1, -1))


def assemble(topology: str, x: int, y: int, numbering: str, wiring: Wiring) -> Mesh:
    """The arrays of a wiring. Links are numbered by (source, target), edges by their nodes."""
    x_of, y_of = die_places(x, y, numbering)
    dies, nodes = x * y, x * y + len(wiring.middle)
    middle = np.array(wiring.middle, np.int32).reshape(-1, 2)
    order = np.lexsort(wiring.edges.T[::-1])
    ends, classes = wiring.edges[order], wiring.classes[order]
    both = np.concatenate([ends, ends[:, ::-1]])
    by_source = np.lexsort(both.T[::-1])
    edge = np.tile(np.arange(len(ends)), 2)[by_source].astype(np.int32)
    link_src, link_dst = both[by_source].astype(np.int32).T
    link_of = np.full((nodes, nodes), -1, np.int32)
    link_of[link_src, link_dst] = np.arange(len(link_src))
    route_ptr, route_links = _routes(wiring.following, link_of, dies)
    entered = np.concatenate([[0], np.cumsum(link_dst[route_links] < dies)])
    return Mesh(
        x, y, numbering, topology, x_of.astype(np.int32), y_of.astype(np.int32),
        np.concatenate([x_of, middle[:, 0]]).astype(np.int32), np.concatenate([y_of, middle[:, 1]]).astype(np.int32),
        np.diff(entered[route_ptr]).reshape(dies, dies).astype(np.int32),
        np.ascontiguousarray(link_src), np.ascontiguousarray(link_dst), edge, classes[edge].astype(np.int32), route_ptr, route_links,
    )


def _routes(following: np.ndarray, link_of: np.ndarray, dies: int) -> tuple[np.ndarray, np.ndarray]:
    """CSR of the links of all routes, every pair going on by one link at a time."""
    pair = np.arange(dies * dies)
    here, target = pair // dies, pair % dies
    travelling = pair[here != target]
    pairs, links = [], []
    for _ in range(len(link_of)):
        if not len(travelling):
            break
        there = following[here[travelling], target[travelling]]
        pairs.append(travelling)
        links.append(link_of[here[travelling], there])
        here[travelling] = there
        travelling = travelling[there != target[travelling]]
    if len(travelling):
        raise ValueError(f"no route from die {travelling[0] // dies} to die {travelling[0] % dies}")
    of_pair = np.concatenate([*pairs, np.zeros(0, np.int64)])
    route_links = np.concatenate([*links, np.zeros(0, np.int32)])[np.argsort(of_pair, kind="stable")]
    lengths = np.bincount(of_pair, minlength=dies * dies)
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), route_links.astype(np.int32)
