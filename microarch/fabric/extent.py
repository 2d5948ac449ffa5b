"""Links of a fabric and on all its routes by formula: what building it takes, before it is built."""

from collections.abc import Callable
from types import MappingProxyType
from typing import NamedTuple

from microarch.fabric.levels import Level


def _row(x: int) -> float:
    """Mean distance of two places in a row, over all ordered pairs with those of a place and itself."""
    return (x * x - 1) / (3 * x)


def _circle(x: int) -> float:
    return x * x // 4 / x


def _around(x: int) -> int:
    """Edges around a row whose ends are joined; two places have one edge."""
    return x if x > 2 else x - 1


# Mean links of a route over all ordered pairs of dies, those of a die and itself with none; routes are shortest.
MEAN_LINKS: MappingProxyType[str, Callable[[int, int], float]] = MappingProxyType(
    {
        "mesh": lambda x, y: _row(x) + _row(y),
        "torus": lambda x, y: _circle(x) + _circle(y),
        "torus_x": lambda x, y: _circle(x) + _row(y),
        "torus_y": lambda x, y: _row(x) + _circle(y),
        "ring": lambda x, y: _circle(x * y),
        "fully_connected": lambda x, y: 1 - 1 / (x * y),
        "switch": lambda x, y: 2 * (1 - 1 / (x * y)),
    }
)


# Edges between X × Y dies, each of them a link in both directions.
EDGES: MappingProxyType[str, Callable[[int, int], int]] = MappingProxyType(
    {
        "mesh": lambda x, y: (x - 1) * y + x * (y - 1),
        "torus": lambda x, y: _around(x) * y + x * _around(y),
        "torus_x": lambda x, y: _around(x) * y + x * (y - 1),
        "torus_y": lambda x, y: (x - 1) * y + x * _around(y),
        "ring": lambda x, y: _around(x * y),
        "fully_connected": lambda x, y: x * y * (x * y - 1) // 2,
        "switch": lambda x, y: x * y if x * y > 1 else 0,
    }
)


class Extent(NamedTuple):
    """The number of a fabric's links (an edge has two), and of those on the routes of all pairs."""

    links: int
    route_links: float


def extent(kind: str, x: int, y: int) -> Extent:
    """The extent of a topology of X × Y dies; without a formula the least: edges that reach all, a link a pair."""
    dies = x * y
    edges = EDGES[kind](x, y) if kind in EDGES else dies - 1
    return Extent(2 * edges, dies**2 * MEAN_LINKS.get(kind, MEAN_LINKS["fully_connected"])(x, y))


def extent_of_levels(levels: tuple[Level, ...]) -> Extent:
    """The extent of levels, given innermost first. Their edges and routes are described above."""
    sides, dies, mean = levels[0].sides, levels[0].members, MEAN_LINKS[levels[0].kind](*levels[0].sides)
    edges = EDGES[levels[0].kind](*sides)
    for level in levels[1:]:
        own, own_edges = MEAN_LINKS[level.kind](*level.sides), EDGES[level.kind](*level.sides)
        if level.per == "edge":
            sides = sides[0] * level.sides[0], sides[1] * level.sides[1]
            mean, edges = MEAN_LINKS[level.kind](*sides), EDGES[level.kind](*sides)
        elif level.per == "gpu":
            mean, edges = mean + own, edges * level.members + own_edges * dies
        else:  # up to the group's port and down from the other's
            mean = mean / level.members + 2 * (1 - 1 / level.members) + own
            edges = (edges + dies) * level.members + own_edges
        dies *= level.members
    return Extent(2 * edges, dies**2 * mean)
