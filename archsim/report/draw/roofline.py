"""A roofline: FLOP/s over FLOP per byte of HBM, both logarithmic, under the roof of bandwidth and peak."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from archsim.report.draw.charts import apart
from archsim.report.draw.svg import Axis, element, number, picture, text, title
from archsim.report.units import plain

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 305.0, 250.0, 52.0, 12.0, 18.0, 40.0
MANY = 1e3  # from the least to the largest value, ×
ROOM = 1.5  # beside the outermost marks, ×
SIZE = 3.4  # of a mark, px


class Mark(NamedTuple):
    """A die in a phase. ``kind``: CSS class; ``square``: of the prefill."""

    flop_per_byte: float
    flop_per_s: float
    kind: str
    square: bool
    tip: str


def roofline(marks: Sequence[Mark], peak_flop_per_s: float, bytes_per_s: float, spoken: str) -> str:
    """An SVG; marks without FLOP or bytes are left out."""
    marks = [mark for mark in marks if mark.flop_per_byte > 0 and mark.flop_per_s > 0]
    ridge = peak_flop_per_s / bytes_per_s
    xs = _axis([ridge, *(mark.flop_per_byte for mark in marks)], 1.0)
    ys = _axis([peak_flop_per_s, *(mark.flop_per_s for mark in marks)], 1e12)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + (right - LEFT) * xs.share(x), TOP + (bottom - TOP) * (1 - ys.share(y))

    parts = []
    for tick in apart(xs, lambda tick: at(tick, ys.low)[0]):
        x = at(tick, ys.low)[0]
        parts.append(element("path", class_="grid", d=f"M{number(x)} {number(TOP)}V{number(bottom)}"))
        parts.append(text(x, bottom + 14, xs.label(tick), "m", "middle"))
    for tick in ys.ticks:
        y = at(xs.low, tick)[1]
        parts.append(element("path", class_="grid", d=f"M{number(LEFT)} {number(y)}H{number(right)}"))
        parts.append(text(LEFT - 5, y + 4, ys.label(tick), "m", "end"))
    low = max(xs.low, ys.low / bytes_per_s)
    roof = [at(low, low * bytes_per_s), at(ridge, peak_flop_per_s), at(xs.high, peak_flop_per_s)]
    parts.append(element("path", class_="mark", d="M" + "L".join(f"{number(x)} {number(y)}" for x, y in roof)))
    for mark in marks:
        x, y = at(mark.flop_per_byte, mark.flop_per_s)
        if mark.square:
            place = {"x": x - SIZE, "y": y - SIZE, "width": 2 * SIZE, "height": 2 * SIZE}
            parts.append(element("rect", title(mark.tip), class_=f"{mark.kind} die", **place))
        else:
            parts.append(element("circle", title(mark.tip), class_=mark.kind, cx=x, cy=y, r=SIZE))
    parts.append(text((LEFT + right) / 2, bottom + 31, "FLOP per byte of HBM", "m", "middle"))
    parts.append(text(0, TOP - 6, "TFLOP/s of a die", "m"))
    return picture(WIDTH, HEIGHT, spoken, parts)


def _axis(values: Sequence[float], worth: float) -> Axis:
    """Logarithmic, with ticks at 1, 2 and 5 a decade, at 1 over many; ``worth``: of the unit of its labels."""
    low, high = min(values) / ROOM, max(values) * ROOM
    steps = (1, 2, 5) if high / low < MANY else (1,)
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    ticks = tuple(tick for power in powers for step in steps if low <= (tick := step * 10.0**power) <= high)
    return Axis(low, high, ticks, lambda tick: plain(tick / worth), log=True)
