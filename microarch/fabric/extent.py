"""Links on all routes of a fabric by formula: what building it takes, before it is built."""

from collections.abc import Callable
from types import MappingProxyType

from microarch.fabric.levels import Level


def _row(x: int) -> float:
    """Mean distance of two places in a row, over all ordered pairs with those of a place and itself."""
    return (x * x - 1) / (3 * x)


def _circle(x: int) -> float:
    return x * x // 4 / x


# Mean links of a route over all ordered pairs of dies, those of a die and itself with none; routes are shortest.
MEAN_LINKS: MappingProxyType[str, Callable[[int, int], float]] = MappingProxyType({
    "mesh": lambda x, y: _row(x) + _row(y),
    "torus": lambda x, y: _circle(x) + _circle(y),
    "ring": lambda x, y: _circle(x * y),
    "fully_connected": lambda x, y: 1 - 1 / (x * y),
    "switch": lambda x, y: 2 * (1 - 1 / (x * y)),
})


def route_links(kind: str, x: int, y: int) -> float:
    """Links on the routes of all pairs of X × Y dies; of a topology without a formula (``edges``, a user's function)
    the least that it can have, one a pair.
    """
    return (x * y) ** 2 * MEAN_LINKS.get(kind, MEAN_LINKS["fully_connected"])(x, y)


def route_links_of_levels(levels: tuple[Level, ...]) -> float:
    """As `route_links`, of levels, innermost first; see ``microarch.fabric.levels`` for the routes."""
    sides, dies, mean = levels[0].sides, levels[0].count, MEAN_LINKS[levels[0].kind](*levels[0].sides)
    for level in levels[1:]:
        own = MEAN_LINKS[level.kind](*level.sides)
        if level.per == "edge":
            sides = sides[0] * level.sides[0], sides[1] * level.sides[1]
            mean = MEAN_LINKS[level.kind](*sides)
        elif level.per == "gpu":
            mean += own
        else:  # up to the group's port and down from the other's
            mean = mean / level.count + 2 * (1 - 1 / level.count) + own
        dies *= level.count
    return dies**2 * mean
