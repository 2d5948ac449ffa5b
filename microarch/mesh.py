"""The mesh of dies: numbering, Manhattan distances, XY routes and the links that they use.

A link is one direction of one mesh edge (full duplex, [W] §II). Routes are XY: along x first, then along y.

=============  ==========================  =====================================================================
array          dtype[shape]                meaning
=============  ==========================  =====================================================================
``x_of``       int32[die]                  column of a die
``y_of``       int32[die]                  row of a die
``hops``       int32[die, die]             Manhattan distance
``link_src``   int32[link]                 die a link leaves
``link_dst``   int32[link]                 die a link enters
``link_edge``  int32[link]                 undirected mesh edge that a link belongs to
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


@dataclass(frozen=True, eq=False)
class Mesh:
    """Geometry of an X × Y mesh; see the module's table for the arrays."""

    x: int
    y: int
    numbering: str
    x_of: np.ndarray
    y_of: np.ndarray
    hops: np.ndarray
    link_src: np.ndarray
    link_dst: np.ndarray
    link_edge: np.ndarray
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
        """Link ids, int32[hops], in travelling order."""
        pair = src * self.dies + dst
        return self.route_links[self.route_ptr[pair] : self.route_ptr[pair + 1]]

    def neighbours(self, die: int) -> np.ndarray:
        """Dies one hop away, int64[<= 4], ascending."""
        return np.flatnonzero(self.hops[die] == 1)


@lru_cache(maxsize=64)
def build_mesh(x: int, y: int, numbering: str = ROW_MAJOR) -> Mesh:
    """The X × Y mesh with dies numbered x + X·y (``row_major``) or y + Y·x (``column_major``, published simulator).

    Raises ValueError for a side below 1 or an unknown numbering.
    """
    if x < 1 or y < 1:
        raise ValueError(f"mesh {x} x {y}: both sides must be at least 1")
    if numbering not in (ROW_MAJOR, COLUMN_MAJOR):
        raise ValueError(f"numbering {numbering!r}: expected {ROW_MAJOR!r} or {COLUMN_MAJOR!r}")
    die = np.arange(x * y, dtype=np.int32)
    x_of, y_of = (die % x, die // x) if numbering == ROW_MAJOR else (die // y, die % y)
    hops = np.abs(x_of[:, None] - x_of) + np.abs(y_of[:, None] - y_of)
    link_src, link_dst = (ends.astype(np.int32) for ends in np.nonzero(hops == 1))
    link_of = {(s, d): i for i, (s, d) in enumerate(zip(link_src.tolist(), link_dst.tolist(), strict=True))}
    edge_of = {pair: i for i, pair in enumerate(sorted(pair for pair in link_of if pair[0] < pair[1]))}
    link_edge = np.array([edge_of[min(p), max(p)] for p in link_of], dtype=np.int32)
    die_at = {(int(cx), int(cy)): int(d) for d, (cx, cy) in enumerate(zip(x_of, y_of, strict=True))}
    routes = [_xy_route(s, t, x_of, y_of, die_at, link_of) for s in die.tolist() for t in die.tolist()]
    route_ptr = np.concatenate([[0], np.cumsum([len(route) for route in routes])]).astype(np.int64)
    route_links = np.array([link for route in routes for link in route], dtype=np.int32)
    return Mesh(x, y, numbering, x_of.astype(np.int32), y_of.astype(np.int32), hops.astype(np.int32),
                link_src, link_dst, link_edge, route_ptr, route_links)


def _xy_route(src, dst, x_of, y_of, die_at, link_of) -> list[int]:
    """Links from ``src`` to ``dst``: first along x, then along y."""
    cx, cy = int(x_of[src]), int(y_of[src])
    tx, ty = int(x_of[dst]), int(y_of[dst])
    route = []
    while (cx, cy) != (tx, ty):
        step_x = (tx > cx) - (tx < cx)
        step_y = (ty > cy) - (ty < cy) if step_x == 0 else 0
        here, there = die_at[cx, cy], die_at[cx + step_x, cy + step_y]
        route.append(link_of[here, there])
        cx, cy = cx + step_x, cy + step_y
    return route
