"""Bar panels: one row per bar, its name on the left, its value at the end, groups stacked vertically."""

from collections.abc import Callable
from dataclasses import dataclass

from archsim.report.draw.svg import Axis, element, number, picture, shortened, text, text_width, title

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
