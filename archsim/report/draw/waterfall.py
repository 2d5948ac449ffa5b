"""Waterfall charts: from a first value to a last one, one floating bar for every change between them."""

from collections.abc import Sequence
from dataclasses import dataclass

from archsim.report.draw.svg import Axis, element, linear_axis, number, picture, text, text_width, title
from archsim.report.units import factor, plain_factor

WIDTH, ROW, BAR, AXIS = 372.0, 17.0, 12.0, 30.0
END_LABEL = 46.0  # room for the number at the end of a bar
SMALL = 0.005  # smaller relative changes get no colour


@dataclass(frozen=True)
class Change:
    """A bar from ``before`` to ``after``."""

    name: str
    before: float
    after: float
    tip: str


def waterfall(first: tuple[str, float], changes: Sequence[Change], last: tuple[str, float], spoken: str) -> str:
    """An SVG of ratios: ``first`` and ``last`` (name, value) as bars from 0, ``changes`` floating between them."""
    names = [first[0], *(change.name for change in changes), last[0]]
    values = [first[1], *(change.after for change in changes), last[1]]
    left = 8 + max(map(text_width, names))
    axis = linear_axis(max(*values, 1.0), plain_factor)
    bottom = ROW * len(names)

    def x(value: float) -> float:
        return left + (WIDTH - left - END_LABEL) * axis.share(value)

    parts = _grid(axis, x, bottom)
    parts += _bar(0, left, first[0], x(0.0), x(first[1]), factor(first[1]), "k-dec", f"{first[0]}: {factor(first[1])}")
    for row, change in enumerate(changes, 1):
        parts += _bar(
            row, left, change.name, x(change.before), x(change.after), _signed(change), _kind(change), change.tip
        )
    parts += _bar(
        len(names) - 1, left, last[0], x(0.0), x(last[1]), factor(last[1]), "k-dec", f"{last[0]}: {factor(last[1])}"
    )
    return picture(WIDTH, bottom + AXIS, spoken, parts)


def _grid(axis: Axis, x, bottom: float) -> list[str]:
    parts = []
    for tick in axis.ticks:
        kind = "ref" if tick == 1.0 else "grid"
        parts.append(element("path", class_=kind, d=f"M{number(x(tick))} 0V{number(bottom)}"))
        parts.append(text(x(tick), bottom + 12, axis.label(tick), "m", "middle"))
    if 1.0 not in axis.ticks:
        parts.append(element("path", class_="ref", d=f"M{number(x(1.0))} 0V{number(bottom)}"))
    parts.append(
        text(
            (x(0.0) + x(axis.high)) / 2,
            bottom + 25,
            "decode throughput relative to base under the same assumptions",
            "m",
            "middle",
        )
    )
    return parts


def _bar(row: int, left: float, name: str, begin: float, end: float, label: str, kind: str, tip: str) -> list[str]:
    top = row * ROW + 2
    begin, end = sorted((begin, end))
    shape = {"x": begin, "y": top, "width": max(end - begin, 1.0), "height": BAR}
    return [
        text(left - 6, top + BAR / 2 + 3.5, name, "t", "end"),
        element("rect", title(tip), class_=kind, **shape),
        text(end + 4, top + BAR / 2 + 3.5, label, "v"),
    ]


def _kind(change: Change) -> str:
    if abs(change.after / change.before - 1) < SMALL:
        return "k-llc"
    return "k-compute" if change.after > change.before else "k-link"


def _signed(change: Change) -> str:
    return f"{change.after - change.before:+.2f}".replace("-", "−")
