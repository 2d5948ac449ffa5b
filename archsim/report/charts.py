"""Bar panels: one row per bar, its name on the left, its value at the end, groups stacked vertically."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from archsim.report.units import factor, plain, plain_factor

# ---- svg
# Pieces of hand-written SVG: elements, axes, text. Colours are CSS classes, so that a page can be light or dark.

SMALL_CHARACTER = 6.7  # mean width of a character of 11 px text, in px; labels are laid out with it


def number(value: float) -> str:
    """A coordinate with at most one decimal place."""
    written = f"{value:.1f}".removesuffix(".0")
    return "0" if written == "-0" else written


def element(name: str, content: str = "", **attributes: object) -> str:
    """``<name a="1">content</name>``; a trailing underscore of an attribute name is dropped, others become hyphens."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{number(value) if isinstance(value, float) else escape(str(value))}"'
        for key, value in attributes.items()
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def text(x: float, y: float, content: str, kind: str = "t", anchor: str = "start") -> str:
    return element("text", escape(content), class_=kind, x=float(x), y=float(y), text_anchor=anchor)


def title(content: str) -> str:
    """The tooltip of the enclosing element."""
    return element("title", escape(content))


def picture(width: float, height: float, label: str, parts: list[str]) -> str:
    """A drawing of a fixed size, so that its text stays legible; ``label`` is read by screen readers."""
    return element(
        "svg", "".join(parts), viewBox=f"0 0 {number(width)} {number(height)}", style=f"width:{number(width)}px",
        role="img", aria_label=label,
    )


def text_width(content: str) -> float:
    """Estimated width of 11 px text."""
    return SMALL_CHARACTER * len(content)


def shortened(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


@dataclass(frozen=True)
class Axis:
    """Values from ``low`` to ``high``, linear or logarithmic, with labelled ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]
    label: Callable[[float], str]
    log: bool = False

    def share(self, value: float) -> float:
        """Position of ``value`` between the ends, 0 to 1 (clipped)."""
        if self.log:
            at = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            at = (value - self.low) / (self.high - self.low)
        return min(max(at, 0.0), 1.0)


def linear_axis(largest: float, label: Callable[[float], str], ticks: int = 5) -> Axis:
    """From 0 to ``largest``, with about ``ticks`` round steps."""
    largest = largest if largest > 0 else 1.0
    step = _round_step(largest / ticks)
    count = math.floor(largest / step * (1 + 1e-9))
    return Axis(0.0, largest, tuple(step * i for i in range(count + 1)), label)


def log_axis(smallest: float, largest: float, label: Callable[[float], str]) -> Axis:
    """Whole decades that include 1, ``smallest`` and ``largest``; about six labelled ticks at most."""
    low = math.floor(math.log10(min(smallest, 1.0)) + 1e-9)
    high = max(math.ceil(math.log10(max(largest, 1.0)) - 1e-9), low + 1)
    every = math.ceil((high - low) / 6)
    ticks = tuple(10.0**power for power in range(low, high + 1, every))
    return Axis(10.0**low, 10.0**high, ticks, label, log=True)


def _round_step(rough: float) -> float:
    magnitude = 10.0 ** math.floor(math.log10(rough))
    return next(step * magnitude for step in (1, 2, 2.5, 5, 10) if step * magnitude >= rough * (1 - 1e-9))


# ---- charts

WIDTH = 305.0
ROW, BAR, GROUP, AXIS = 17.0, 13.0, 19.0, 32.0
LONGEST_NAME = 16
LABEL_GAP = 4.0  # between tick labels
END_LABEL = 62.0  # room for the text at the end of a bar


@dataclass(frozen=True)
class Segment:
    """A stretch of a bar; ``kind`` is the CSS class of its colour."""

    kind: str
    value: float
    tip: str
    inside: str = ""  # written into it, where it fits


@dataclass(frozen=True)
class Bar:
    """One row. Without segments only ``label`` is written (``no run``, ``none``)."""

    name: str
    segments: tuple[Segment, ...]
    label: str


@dataclass(frozen=True)
class Group:
    """Bars with a common heading."""

    heading: str
    bars: tuple[Bar, ...]


def bar_panel(groups: list[Group], axis: Axis, unit: str, spoken: str, reference: float | None = None) -> str:
    """An SVG of all groups over one axis; ``reference`` is a value marked by a line (1× for ratios)."""
    names = [shortened(bar.name, LONGEST_NAME) for group in groups for bar in group.bars]
    left = 8 + max((text_width(name) for name in names), default=0.0)
    frame = _Frame(axis, left, WIDTH - left - END_LABEL)
    bottom = sum(GROUP + ROW * len(group.bars) for group in groups)
    parts = _grid(frame, bottom, unit, reference)
    top = 0.0
    for group in groups:
        parts.append(text(0, top + 13, group.heading, "h"))
        top += GROUP
        for bar in group.bars:
            parts += _row(frame, bar, top)
            top += ROW
    return picture(WIDTH, bottom + AXIS, spoken, parts)


@dataclass(frozen=True)
class _Frame:
    axis: Axis
    left: float
    width: float

    def x(self, value: float) -> float:
        return self.left + self.width * self.axis.share(value)

    @property
    def origin(self) -> float:
        """Where bars begin: at 0, or at 1 on a logarithmic axis."""
        return self.x(1.0) if self.axis.log else self.x(0.0)


def _grid(frame: _Frame, bottom: float, unit: str, reference: float | None) -> list[str]:
    parts = []
    for tick in frame.axis.ticks:
        parts.append(_upright(frame.x(tick), 4, bottom, "ref" if tick == reference else "grid"))
    parts += [
        text(frame.x(tick), bottom + 12, frame.axis.label(tick), "m", "middle") for tick in apart(frame.axis, frame.x)
    ]
    if reference is not None and reference not in frame.axis.ticks:
        parts.append(_upright(frame.x(reference), 4, bottom, "ref"))
    parts.append(text(frame.left + frame.width / 2, bottom + 27, unit, "m", "middle"))
    return parts


def apart(axis: Axis, x: Callable[[float], float]) -> tuple[float, ...]:
    """Every tick, every second tick, …, so that labels at ``x`` (px) do not touch."""

    def fits(ticks: tuple[float, ...]) -> bool:
        half = [text_width(axis.label(tick)) / 2 for tick in ticks]
        return all(
            x(ticks[at + 1]) - half[at + 1] >= x(ticks[at]) + half[at] + LABEL_GAP for at in range(len(ticks) - 1)
        )

    return (
        next(ticks for every in range(1, len(axis.ticks) + 1) if fits(ticks := axis.ticks[::every]))
        if axis.ticks
        else ()
    )


def _upright(x: float, top: float, bottom: float, kind: str) -> str:
    return element("path", class_=kind, d=f"M{number(x)} {number(top)}V{number(bottom)}")


def _row(frame: _Frame, bar: Bar, top: float) -> list[str]:
    middle = top + BAR / 2 + 4
    parts = [text(frame.left - 6, middle, shortened(bar.name, LONGEST_NAME), "t", "end")]
    end, total = frame.origin, 0.0
    for segment in bar.segments:
        total += segment.value
        begin, end = sorted((end, frame.x(total)))
        shape = {"x": begin, "y": top, "width": end - begin, "height": BAR}
        parts.append(element("rect", title(segment.tip), class_=segment.kind, **shape))
        if segment.inside and end - begin > text_width(segment.inside) + 2:
            parts.append(text((begin + end) / 2, middle, segment.inside, "in", "middle"))
    parts.append(text(end + 4, middle, bar.label, "v"))
    return parts


# ---- whiskers
# Bars to the middle of three numbers, with a line from the first to the last.

_WHISKERS_WIDTH, _WHISKERS_ROW, _WHISKERS_LEFT, _WHISKERS_RIGHT = 460.0, 22.0, 120.0, 90.0
Whiskers = tuple[str, tuple[float, float, float], str, str]
"""Name, (low, middle, high), label at the end, tip."""


def whisker_panel(rows: Sequence[Whiskers], most: float, spoken: str) -> str:
    """An SVG; ``most``: the number at the right end, above 0."""
    left = max(_WHISKERS_LEFT, 10 + max(text_width(name) for name, *_ in rows))
    width = _WHISKERS_WIDTH - left - _WHISKERS_RIGHT

    def x(value: float) -> float:
        return left + width * value / most

    parts = []
    for at, (name, (low, middle, high), label, tip) in enumerate(rows):
        top = _WHISKERS_ROW * at + 4
        parts.append(text(left - 6, top + 11, name, "t", "end"))
        shape = {"x": left, "y": top, "width": x(middle) - left, "height": 14.0}
        parts.append(element("rect", title(tip), class_="p0", **shape))
        line = f"M{number(x(low))} {number(top + 7)}H{number(x(high))}"
        ends = "".join(f"M{number(x(end))} {number(top + 3)}V{number(top + 11)}" for end in (low, high))
        parts.append(element("path", class_="mark whisker", d=line + ends))
        parts.append(text(x(max(middle, high)) + 5, top + 11, label, "v"))
    return picture(_WHISKERS_WIDTH, _WHISKERS_ROW * len(rows) + 8, spoken, parts)


# ---- lines
# Line panels: a few named lines over one linear axis each way.

LINES_WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 370.0, 240.0, 52.0, 12.0, 14.0, 36.0
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
    width, height = LINES_WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

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
    return picture(LINES_WIDTH, HEIGHT, spoken, parts)


# ---- roofline
# A roofline: FLOP/s over FLOP per byte of HBM, both logarithmic, under the roof of bandwidth and peak.

ROOFLINE_WIDTH, ROOFLINE_HEIGHT = 305.0, 250.0
ROOFLINE_LEFT, ROOFLINE_RIGHT, ROOFLINE_TOP, ROOFLINE_BOTTOM = 52.0, 12.0, 18.0, 40.0
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
    right, bottom = ROOFLINE_WIDTH - ROOFLINE_RIGHT, ROOFLINE_HEIGHT - ROOFLINE_BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        along, up = xs.share(x), 1 - ys.share(y)
        return ROOFLINE_LEFT + (right - ROOFLINE_LEFT) * along, ROOFLINE_TOP + (bottom - ROOFLINE_TOP) * up

    parts = []
    for tick in apart(xs, lambda tick: at(tick, ys.low)[0]):
        x = at(tick, ys.low)[0]
        parts.append(element("path", class_="grid", d=f"M{number(x)} {number(ROOFLINE_TOP)}V{number(bottom)}"))
        parts.append(text(x, bottom + 14, xs.label(tick), "m", "middle"))
    for tick in ys.ticks:
        y = at(xs.low, tick)[1]
        parts.append(element("path", class_="grid", d=f"M{number(ROOFLINE_LEFT)} {number(y)}H{number(right)}"))
        parts.append(text(ROOFLINE_LEFT - 5, y + 4, ys.label(tick), "m", "end"))
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
    parts.append(text((ROOFLINE_LEFT + right) / 2, bottom + 31, "FLOP per byte of HBM", "m", "middle"))
    parts.append(text(0, ROOFLINE_TOP - 6, "TFLOP/s of a die", "m"))
    return picture(ROOFLINE_WIDTH, ROOFLINE_HEIGHT, spoken, parts)


def _axis(values: Sequence[float], worth: float) -> Axis:
    """Logarithmic, with ticks at 1, 2 and 5 a decade, at 1 over many; ``worth``: of the unit of its labels."""
    low, high = min(values) / ROOM, max(values) * ROOM
    steps = (1, 2, 5) if high / low < MANY else (1,)
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    ticks = tuple(tick for power in powers for step in steps if low <= (tick := step * 10.0**power) <= high)
    return Axis(low, high, ticks, lambda tick: plain(tick / worth), log=True)


# ---- waterfall
# Waterfall charts: from a first value to a last one, one floating bar for every change between them.

WATERFALL_WIDTH, WATERFALL_ROW, WATERFALL_BAR, WATERFALL_AXIS = 372.0, 17.0, 12.0, 30.0
WATERFALL_END_LABEL = 46.0  # room for the number at the end of a bar
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
    bottom = WATERFALL_ROW * len(names)

    def x(value: float) -> float:
        return left + (WATERFALL_WIDTH - left - WATERFALL_END_LABEL) * axis.share(value)

    parts = _waterfall_grid(axis, x, bottom)
    parts += _bar(0, left, first[0], x(0.0), x(first[1]), factor(first[1]), "k-dec", f"{first[0]}: {factor(first[1])}")
    for row, change in enumerate(changes, 1):
        parts += _bar(
            row, left, change.name, x(change.before), x(change.after), _signed(change), _kind(change), change.tip
        )
    parts += _bar(
        len(names) - 1, left, last[0], x(0.0), x(last[1]), factor(last[1]), "k-dec", f"{last[0]}: {factor(last[1])}"
    )
    return picture(WATERFALL_WIDTH, bottom + WATERFALL_AXIS, spoken, parts)


def _waterfall_grid(axis: Axis, x, bottom: float) -> list[str]:
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
    top = row * WATERFALL_ROW + 2
    begin, end = sorted((begin, end))
    shape = {"x": begin, "y": top, "width": max(end - begin, 1.0), "height": WATERFALL_BAR}
    return [
        text(left - 6, top + WATERFALL_BAR / 2 + 3.5, name, "t", "end"),
        element("rect", title(tip), class_=kind, **shape),
        text(end + 4, top + WATERFALL_BAR / 2 + 3.5, label, "v"),
    ]


def _kind(change: Change) -> str:
    if abs(change.after / change.before - 1) < SMALL:
        return "k-llc"
    return "k-compute" if change.after > change.before else "k-link"


def _signed(change: Change) -> str:
    return f"{change.after - change.before:+.2f}".replace("-", "−")
