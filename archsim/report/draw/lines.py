"""Line panels: a few named lines over one linear axis each way."""

from collections.abc import Sequence
from typing import NamedTuple

from archsim.report.draw.svg import element, linear_axis, number, picture, text, title
from archsim.report.units import plain

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 370.0, 240.0, 52.0, 12.0, 14.0, 36.0
KINDS = 3  # colours: CSS classes l0, d0, ...
MARK = 3.5  # radius of the first line's marks; those of the next lie on them, and are smaller


class Line(NamedTuple):
    """``points``: (x, y), both 0 or more."""

    name: str
    points: tuple[tuple[float, float], ...]


def line_panel(lines: Sequence[Line], x_title: str, spoken: str, dots: bool = False) -> str:
    """An SVG; with ``dots``, a mark at every point."""
    points = [point for line in lines for point in line.points]
    x_axis = linear_axis(max((x for x, _ in points), default=1.0), plain)
    y_axis = linear_axis(max((y for _, y in points), default=1.0) * 1.05, plain)
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + width * x_axis.share(x), TOP + height * (1 - y_axis.share(y))

    parts = []
    for tick in y_axis.ticks:
        y = at(0, tick)[1]
        parts.append(element("path", class_="grid", d=f"M{number(LEFT)} {number(y)}H{number(LEFT + width)}"))
        parts.append(text(LEFT - 5, y + 3.5, y_axis.label(tick), "m", "end"))
    for tick in x_axis.ticks:
        parts.append(text(at(tick, 0)[0], TOP + height + 14, x_axis.label(tick), "m", "middle"))
    parts.append(text(LEFT + width / 2, HEIGHT - 6, x_title, "m", "middle"))
    for index, line in enumerate(lines):
        kind = index % KINDS
        places = [at(x, y) for x, y in line.points]
        path = "L".join(f"{number(x)} {number(y)}" for x, y in places)
        if path:
            parts.append(element("path", title(line.name), class_=f"l{kind}", d=f"M{path}"))
        if dots:
            parts += [element("circle", class_=f"d{kind}", cx=float(x), cy=float(y), r=MARK - kind) for x, y in places]
        if len(lines) > 1:
            parts.append(text(LEFT + 8, TOP + 10 + 13 * index, line.name, f"d{kind}"))
    return picture(WIDTH, HEIGHT, spoken, parts)
