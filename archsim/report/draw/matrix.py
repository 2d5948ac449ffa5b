"""A matrix of bytes between pairs of dies: rows send, columns receive."""

from collections.abc import Mapping
from math import log10

from archsim.report.draw.fabric_map import LEVELS
from archsim.report.draw.svg import element, number, picture, text

SIDE = 8.0  # of a cell, px
EDGE = 20.0  # for the numbers of dies
DECADES = 3  # below the largest value, drawn as the faintest level


def traffic_matrix(sent: Mapping[tuple[int, int], float], dies: int, largest: float, spoken: str) -> str:
    """An SVG. ``sent``: (from, to) → bytes; colours are logarithmic over DECADES below ``largest``."""
    shapes: dict[int, list[str]] = {}
    for (src, dst), n_bytes in sorted(sent.items()):
        shape = (
            f"M{number(EDGE + dst * SIDE)} {number(EDGE + src * SIDE)}h{number(SIDE)}v{number(SIDE)}h{number(-SIDE)}z"
        )
        shapes.setdefault(shade(n_bytes, largest), []).append(shape)
    size = EDGE + dies * SIDE
    parts = [element("rect", class_="u0", x=EDGE, y=EDGE, width=dies * SIDE, height=dies * SIDE)]
    parts += [element("path", class_=f"u{step}", d="".join(shapes[step])) for step in sorted(shapes) if step]
    for die in range(0, dies, 5):
        middle = EDGE + (die + 0.5) * SIDE
        parts += [text(middle, EDGE - 4, str(die), "id", "middle"), text(EDGE - 3, middle + 3, str(die), "id", "end")]
    return picture(size, size, spoken, parts)


def shade(n_bytes: float, largest: float) -> int:
    """0 to LEVELS; 0 only for nothing."""
    if n_bytes <= 0 or largest <= 0:
        return 0
    return max(1, min(LEVELS, round(LEVELS * (1 + log10(n_bytes / largest) / DECADES))))
