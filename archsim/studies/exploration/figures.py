"""Figures of an exploration: scatter plot with front, small multiples over the axes, tornado plot."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from archsim.report.draw.charts import apart
from archsim.report.draw.svg import Axis, element, linear_axis, number, picture, shortened, text, text_width, title
from archsim.report.units import PREFIXES, plain, significant, unit_of
from archsim.specs.sweeps.explore import sense_of
from archsim.studies.exploration.levels import MOST_LEVELS, Effect, effects, levels_of_axis
from archsim.studies.exploration.outcome import Candidate, Exploration
from archsim.studies.exploration.outcome import unit_of as unit_of_objective

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 370.0, 290.0, 52.0, 12.0, 20.0, 40.0
MOST_DOTS = 3000  # of the cloud behind the markers
MOST_MARKS = 600  # for points off the front
FEWEST_TICKS, MOST_TICKS = 4, 7
SCALES = (*PREFIXES, (1e-3, "m"), (1e-6, "µ"))
_STRIP = 300.0
_ROW = 16.0
TORNADO, LONGEST_LEVEL = 470.0, 18


def value(objective: str, number_: float) -> str:
    """``throughput``, 12345.0 → ``12.3 k tokens/s``."""
    worth, prefix = unit_of([number_], SCALES)
    return f"{significant(number_ / worth)} {_unit(objective, prefix)}"


def _unit(objective: str, prefix: str) -> str:
    """``mJ/token``, ``k tokens/s``, ``USD``."""
    unit = unit_of_objective(objective)
    return f"{prefix}{unit}" if unit[:1] in "JW" else f"{prefix} {unit}".strip()


def _axis(objective: str, values: np.ndarray) -> tuple[Axis, str]:
    """A logarithmic axis over the values, and the unit of its labels.

    Ticks at 1, 2 and 5 per decade, or evenly spaced if too few.
    """
    low, high = values.min() / 1.06, values.max() * 1.06
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**power for power in decades for step in (1, 2, 5) if low <= step * 10.0**power <= high]
    if len(ticks) < FEWEST_TICKS:
        step = linear_axis(high - low, str, FEWEST_TICKS).ticks[1]
        ticks = [step * count for count in range(math.ceil(low / step), math.floor(high / step) + 1)]
    every = max(1, math.ceil(len(ticks) / MOST_TICKS))
    shown = tuple(ticks[::every])
    worth, prefix = unit_of(shown, SCALES)
    return Axis(low, high, shown, lambda tick: plain(round(tick / worth, 6)), log=True), _unit(objective, prefix)


def scatter(found: Exploration, across: str, up: str, model: str) -> str:
    """All points of a model by two objectives: the front and up to ``MOST_MARKS`` event runs as markers with tooltips.

    The others as dots.
    """
    shown = [
        point
        for point in found.points
        if point.model == model and point.allowed and all(0 < point.values[name] < math.inf for name in (across, up))
    ]
    if not shown:
        return picture(WIDTH, 30, "no points", [text(8, 18, "no point is allowed")])
    (xs, x_unit), (ys, y_unit) = (
        _axis(name, np.array([point.values[name] for point in shown])) for name in (across, up)
    )

    def at(point: Candidate) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * xs.share(point.values[across])
        return x, TOP + (HEIGHT - TOP - BOTTOM) * (1 - ys.share(point.values[up]))

    parts = _frame(xs, ys, f"{across} ({x_unit}, logarithmic)", f"{up} ({y_unit}, logarithmic)")
    events = [point for point in shown if point.engine == "event" and not point.front]
    marks = events if len(events) <= MOST_MARKS else []
    cloud = [point for point in shown if not point.front and (point.engine != "event" or not marks)]
    every = max(1, math.ceil(len(cloud) / MOST_DOTS))
    cloud = cloud[::every]
    dots = "".join(f"M{number(x)} {number(y)}h0" for x, y in map(at, cloud))
    if dots:
        parts.append(element("path", class_="cloud", d=dots))
    for point in [*marks, *(point for point in shown if point.front)]:
        x, y = at(point)
        if point.front and point.band and up == "throughput":
            ends = [TOP + (HEIGHT - TOP - BOTTOM) * (1 - ys.share(end)) for end in point.band]
            parts.append(element("path", class_="band", d=f"M{number(x)} {number(ends[0])}V{number(ends[1])}"))
        kind = "p4 front" if point.front else "p0"
        parts.append(
            element("circle", title(tip(found, point)), class_=kind, cx=x, cy=y, r=4.5 if point.front else 3.0)
        )
    front = sum(point.front for point in shown)
    drawn = f"; of the others, one in {every} is drawn" if every > 1 else ""
    return picture(WIDTH, HEIGHT, f"{up} over {across}: {len(shown)} designs, {front} on the front{drawn}", parts)


def _frame(xs: Axis, ys: Axis, across: str, up: str) -> list[str]:
    """Grid, ticks, and the axis titles ``across`` and ``up``."""
    parts = []
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x_of(tick: float) -> float:
        return LEFT + (right - LEFT) * xs.share(tick)

    for tick in xs.ticks:
        parts.append(element("path", class_="grid", d=f"M{number(x_of(tick))} {number(TOP)}V{number(bottom)}"))
    parts += [text(x_of(tick), bottom + 14, xs.label(tick), "m", "middle") for tick in apart(xs, x_of)]
    for tick in ys.ticks:
        y = TOP + (bottom - TOP) * (1 - ys.share(tick))
        parts.append(element("path", class_="grid", d=f"M{number(LEFT)} {number(y)}H{number(right)}"))
        parts.append(text(LEFT - 5, y + 3.5, ys.label(tick), "m", "end"))
    parts.append(text((LEFT + right) / 2, bottom + 31, across, "m", "middle"))
    parts.append(text(0, TOP - 9, up, "m"))
    return parts


def axis_label(axis: str) -> str:
    """The axis without its root, which most share."""
    return shortened(axis.removeprefix("system."), 22)


def tip(found: Exploration, point: Candidate) -> str:
    """Tooltip of a point."""
    axes = "\n".join(f"{axis}: {level}" for axis, level in point.axes.items())
    values = "\n".join(f"{name}: {value(name, point.values[name])}" for name in found.spec.objectives)
    name, share = point.limit
    told = f"{' '.join(point.axes.values())}: {'on the front' if point.front else 'dominated'}"
    made = f"point {point.index}, {point.engine} engine"
    return f"{told}\n{values}\nbottleneck: {name} ({share:.0%})\n{axes}\n{made}"


def strips(points: Sequence[Candidate], axis: str, objective: str) -> str:
    """One row per level of an axis, or bin of its values: 10th to 90th percentile of an objective, median and best."""
    usable = [point for point in points if point.allowed and 0 < point.values[objective] < math.inf]
    if not usable:
        return picture(_STRIP, 20, "no points", [])
    levels = levels_of_axis(usable, axis)
    levels = levels[:: math.ceil(len(levels) / MOST_LEVELS)]
    of_all = np.array([point.values[objective] for point in usable])
    scale, unit = _axis(objective, of_all)
    left = 10 + max(text_width(shortened(level.name, 18)) for level in levels)
    sense = sense_of(objective)

    def x(of: float) -> float:
        return left + (_STRIP - left - 10) * scale.share(of)

    parts, bottom = [], _ROW * len(levels)
    parts += [element("path", class_="grid", d=f"M{number(x(tick))} 0V{number(bottom)}") for tick in scale.ticks]
    parts += [text(x(tick), bottom + 12, scale.label(tick), "m", "middle") for tick in apart(scale, x)]
    for row, (level, members) in enumerate(levels):
        values = of_all[members]
        low, middle, high = np.percentile(values, [10, 50, 90])
        best, y = values.max() if sense == "max" else values.min(), row * _ROW + _ROW / 2
        tooltip = f"{level}: median {value(objective, middle)}, best {value(objective, best)}, {len(values)} designs"
        parts.append(text(left - 6, y + 3.5, shortened(level, 18), "t", "end"))
        parts.append(
            element(
                "rect", title(tooltip), class_="k-hbm", x=x(low), y=y - 4, width=max(x(high) - x(low), 1.0), height=8.0
            )
        )
        parts.append(element("path", class_="mark", d=f"M{number(x(middle))} {number(y - 5)}v10"))
        parts.append(element("circle", title(tooltip), class_="p4", cx=x(best), cy=y, r=3.0))
    parts.append(text((left + _STRIP - 10) / 2, bottom + 25, f"{objective} ({unit}, logarithmic)", "m", "middle"))
    return picture(_STRIP, bottom + 30, f"{objective} over {axis}", parts)


def tornado(points: Sequence[Candidate], objective: str) -> str:
    """The axes by their effect on an objective, those within twice their error, and of one design a level, faint.

    A bar spans the lowest to the highest geometric mean of a level, over that of all points; green is the better side;
    a line at each end is the standard error.
    """
    found = effects([point for point in points if point.allowed], objective)
    if not found:
        return picture(TORNADO, 20, "no axis", [text(8, 14, "no axis has an effect")])
    low, high = min(each.below for each in found) / 1.02, max(each.above for each in found) * 1.02
    left = 10 + max(text_width(axis_label(each.axis)) for each in found)
    names = [shortened(name, LONGEST_LEVEL) for each in found for name in (each.least, each.most)]
    span, ends = math.log(high / low), 12 + max(map(text_width, names))

    def x(ratio: float) -> float:
        return left + ends + (TORNADO - left - 2 * ends) * math.log(max(low, min(ratio, high)) / low) / span

    parts, bottom = [], _ROW * len(found) + 4
    parts.append(element("path", class_="ref", d=f"M{number(x(1.0))} 0V{number(bottom)}"))
    better_right = sense_of(objective) == "max"
    for row, each in enumerate(found):
        parts += _tornado_row(each, row * _ROW + _ROW / 2 + 2, left, x, better_right)
    said = f"{objective}, over its mean (1×): {significant(low)} to {significant(high)}; green is better"
    parts.append(text(TORNADO / 2, bottom + 14, said, "m", "middle"))
    return picture(TORNADO, bottom + 20, f"sensitivity of {objective}", parts)


def _tornado_row(each: Effect, y: float, left: float, x: Callable[[float], float], better_right: bool) -> list[str]:
    known = math.isfinite(each.error)
    error = f"standard error of their ratio {each.error:.1%}{'' if each.shown else ': no effect beyond it'}"
    error, width = (error, 1 + each.error) if known else ("one design a level: error not known", 1.0)
    tooltip = f"{each.axis}: {each.least} {each.below:.3g}×, {each.most} {each.above:.3g}× of the mean; {error}"
    faint = "" if each.shown else " faint"
    sides = ((each.below, 1.0, "better" if not better_right else "worse"),)
    sides += ((1.0, each.above, "better" if better_right else "worse"),)
    parts = [text(left - 6, y + 4, axis_label(each.axis), "t", "end")]
    for begin, end, kind in sides:
        shape = {"x": x(begin), "y": y - 5, "width": max(x(end) - x(begin), 0.0), "height": 10.0}
        parts.append(element("rect", title(tooltip), class_=f"{kind}{faint}", **shape))
    for at in (each.below, each.above):
        ends = x(at / width), x(at * width)
        parts.append(
            element("path", title(tooltip), class_="band", d=f"M{number(ends[0])} {number(y)}H{number(ends[1])}")
        )
    outer = x(each.below / width), x(each.above * width)
    parts.append(text(outer[0] - 3, y + 4, shortened(each.least, LONGEST_LEVEL), "m", "end"))
    parts.append(text(outer[1] + 3, y + 4, shortened(each.most, LONGEST_LEVEL), "m"))
    return parts
