"""The page of an exploration: one self-contained HTML file, the front as CSV, the YAML of every best design."""

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.files import write_text
from archsim.base.yaml import dump_yaml
from archsim.report import data, sections
from archsim.report.charts import Axis, apart, element, linear_axis, number, picture, shortened, text, text_width, title
from archsim.report.page import rendered
from archsim.report.units import NO_BREAK, PREFIXES, between, plain, significant
from archsim.report.units import unit_of as unit_shown
from archsim.runs.energy import Coefficients, build_costs
from archsim.specs.constraints import parse_constraint
from archsim.specs.explore import OBJECTIVES, sense_of
from archsim.specs.plan import SweepPlan
from archsim.specs.system import SystemSpec
from archsim.studies.exploration.analysis import (
    MODEL,
    MOST_LEVELS,
    Alike,
    BreakEven,
    Candidate,
    Effect,
    Exploration,
    break_evens,
    budget_of,
    collapse_told,
    collapsed,
    effects,
    levels_of_axis,
    unit_of,
    view_of,
    wanted,
    what_matters,
    what_pays,
)
from archsim.studies.exploration.analysis import unit_of as unit_of_objective
from archsim.studies.wafers import section_of, write_distributions

# ---- figures
# Figures of an exploration: scatter plot with front, small multiples over the axes, tornado plot.

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
    if objective.startswith("probability("):
        return f"{number_:.0%}"
    worth, prefix = unit_shown([number_], SCALES)
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
    worth, prefix = unit_shown(shown, SCALES)
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


# ---- page

MOST_STRIPS = 12
_POINT = re.compile(r"point (\d+): \S+\.[0-9a-f]{10}(?=,)")
PART_NOTE = (
    "Not all MoE layers ran. Throughput, time and energy on this page are for all of them, scaled by the share that "
    "ran, as is tokens_per_s in results.parquet; other times and counts there are for the layers that ran."
)


@dataclass(frozen=True)
class Best:
    """The best design of an objective within a budget. ``page``: relative path of its report, or empty."""

    heading: str
    point: Candidate
    values: str
    yaml: str
    file: str
    page: str


def write_exploration(
    found: Exploration, designs: Mapping[int, Mapping[str, Any]], pages: Mapping[int, str], folder: Path
) -> Path:
    """Write ``index.html``, ``front.csv`` and ``designs/*.yaml``; returns the path of the page.

    designs: point → experiment, resolved, for :func:`wanted`; pages: point → path of its report, relative to
    ``folder``.
    """
    (folder / "designs").mkdir(parents=True, exist_ok=True)
    for index, tree in designs.items():
        write_text(folder / "designs" / f"point-{index}.yaml", dump_yaml(tree))
    write_text(folder / "front.csv", csv_of(found))
    write_text(folder / "index.html", render(found, designs, pages))
    return folder / "index.html"


def with_units(text: str) -> str:
    """``cost <= 30000 USD``; the units of its names in brackets if a budget does not end in a number."""
    names = parse_constraint(text).names
    if len(names) == 1 and text[-1].isdigit():
        return f"{text} {unit_of(names[0])}"
    return f"{text} ({', '.join(f'{name} in {unit_of(name)}' for name in names)})"


def csv_of(found: Exploration) -> str:
    """One row for every point that the event engine ran (of the front, if it ran none): its axes, objectives by both
    engines, and its bottleneck.
    """
    stream = io.StringIO()
    rows = csv.writer(stream, lineterminator="\n")
    names = tuple(dict.fromkeys((*OBJECTIVES, *found.spec.objectives)))
    units = [f"{name} ({unit_of(name)})" for name in names]
    rows.writerow(
        [
            "point",
            "front",
            *found.axes,
            *units,
            *(f"{name}, analytical" for name in names),
            "limit",
            "share",
            "run",
        ]
    )
    for point in found.known or found.front:
        numbers = [f"{each:.6g}" for values in (point.values, point.cheap) for each in (values[name] for name in names)]
        rows.writerow(
            [
                point.index,
                int(point.front),
                *point.axes.values(),
                *numbers,
                point.limit[0],
                f"{point.limit[1]:.4f}",
                point.run,
            ]
        )
    return stream.getvalue()


def render(found: Exploration, designs: Mapping[int, Mapping[str, Any]], pages: Mapping[int, str]) -> str:
    """The page as text."""
    context = figures_of(found) | {
        "asked": True,
        "best": list(_best(found, designs, pages)),
        "rows": rows_of(found, [point for point in found.known if not point.front]),
        "errors": [_error(found, name) for name in found.spec.objectives],
    }
    return rendered("explore.html.j2", context, {"shown": value})


def figures_of(found: Exploration) -> dict[str, Any]:
    """The figures that pages of designs share, by their names in the templates."""
    names = found.spec.objectives
    pairs = [(names[0], other) for other in names[1:]] or [(names[0], "cost")]
    several, steps = len(found.models) > 1, break_evens(found)
    return {
        "found": found,
        "notes": [named(found, note) for note in found.notes],
        "sentences": sentences(found, steps),
        "break_evens": steps,
        "engine_names": ["analytical"],  # of an exploration; it runs every design
        "answers": [(answer_heading(found, heading, point), point) for heading, point in wanted(found).items()],
        "collapse": collapse_told(found.front, names),
        "layers": data.told(found.layers),
        "parts": data.partial(found.layers),
        "part_note": PART_NOTE,
        "senses": {name: sense_of(name) for name in names},
        "scatters": [
            (up, across, model if several else "", scatter(found, across, up, model))
            for model in found.models
            for up, across in pairs
        ],
        "tornados": [(name, tornado(found.points, name)) for name in names],
        "strips": [
            (axis, model if several else "", strips(points, axis, names[0]))
            for model, points in _by_model(found).items()
            for axis in [axis for axis in found.axes if axis != MODEL][:MOST_STRIPS]
        ],
    }


def named(found: Exploration, note: str) -> str:
    """A note with points named by their axes, not by the digest in the name of their system."""
    axes = {str(each.index): " ".join(each.axes[name] for name in found.axes) for each in found.points}
    return _POINT.sub(lambda match: f"point {match[1]} ({axes[match[1]]})" if match[1] in axes else match[0], note)


def sentences(found: Exploration, steps: Sequence[BreakEven]) -> list[str]:
    """The answer: the best design within the first budget, or of all; what matters; the break-evens of steps."""
    named, unmet = wanted(found), unmet_budgets(found)
    if not named:
        return ["No design is allowed by the constraints."]
    heading, point = next(iter(named.items()))
    design = ", ".join(f"{axis} {level}" for axis, level in point.axes.items())
    values = ", ".join(f"{name} {value(name, point.values[name])}" for name in found.spec.objectives)
    best = answer_heading(found, heading, point)
    limit = f"{point.limit[0]}, {100 * point.limit[1]:.0f}{NO_BREAK}% of its time"
    said = [f"{best[0].upper()}{best[1:]}: {design}. It has {values}; what limits it is {limit}."]
    said += [*unmet, what_matters(found), what_pays(steps)]
    return [each if each.endswith(".") else f"{each}." for each in said if each]


def _by_model(found: Exploration) -> dict[str, list[Candidate]]:
    return {model: [each for each in found.points if each.model == model] for model in found.models}


def rows_of(found: Exploration, dominated: Sequence[Candidate]) -> list[Alike]:
    """Rows of the table of designs: the front, designs of equal values as one, then others."""
    return [*collapsed(found.front, found.spec.objectives), *(Alike(point, (), ()) for point in dominated)]


def unmet_budgets(found: Exploration) -> list[str]:
    """A sentence for every budget that no design keeps, with the range of its names over the designs."""
    said = []
    for budget in found.spec.budgets:
        if any(found.best(budget, found.spec.objectives[0], model) for model in found.models):
            continue
        ranges = []
        for name in parse_constraint(budget).names:
            every = [point.values[name] for point in found.points if point.allowed and name in point.values]
            ranges += [f"{name} is {between(every, lambda each, name=name: value(name, each))}"] if every else []
        asked = with_units(budget).replace("<=", "≤").replace(">=", "≥")
        said.append(f"No design is within {asked}{': ' * bool(ranges)}{', '.join(ranges)}.")
    return said


def answer_heading(found: Exploration, heading: str, point: Candidate) -> str:
    """The heading of a wanted design, its budget with units; a search says so if its values are only estimates."""
    first = found.spec.objectives[0]
    for budget in found.spec.budgets:
        heading = heading.replace(budget_of(first, budget), budget_of(first, with_units(budget)))
    estimated = " (estimate: the analytical engine alone ran it)" if found.budget and point.engine != "event" else ""
    return heading.replace("<=", "≤").replace(">=", "≥") + estimated


def _best(found: Exploration, designs: Mapping[int, Mapping[str, Any]], pages: Mapping[int, str]):
    for heading, point in wanted(found).items():
        design = designs.get(point.index)
        values = ", ".join(
            f"{name} {value(name, point.values[name])}{_range(found, name, point, design)}"
            for name in found.spec.objectives
        )
        heading = answer_heading(found, heading, point)
        yaml = dump_yaml(designs[point.index]) if point.index in designs else ""
        yield Best(heading, point, values, yaml, f"designs/point-{point.index}.yaml", pages.get(point.index, ""))


def _range(found: Exploration, objective: str, point: Candidate, design: Mapping[str, Any] | None) -> str:
    """`` (20.0 k USD to 210 k USD)`` after price, energy or power of a design: with all coefficients at their bounds.

    Empty for other objectives.
    """
    if objective in point.ranges:
        low, high = (value(objective, end) for end in point.ranges[objective])
        return f" ({low} to {high})"
    if objective != "cost" or design is None:
        return ""
    system, own = SystemSpec.model_validate(design["systems"][0]), Coefficients().changed(found.spec.coefficients)
    low, high = (value("cost", sum(build_costs(system, own.at(bound)).usd.values())) for bound in ("low", "high"))
    return f" ({low} to {high})"


def _error(found: Exploration, objective: str) -> tuple[str, int, str, str]:
    """(objective, points, median, from the 5th to the 95th percentile) of event over analytical, less one."""
    errors = found.errors(objective)
    if not len(errors):
        return objective, 0, "–", "–"
    low, middle, high = np.percentile(errors, [5, 50, 95])
    return objective, len(errors), _change(middle), f"{_change(low)} to {_change(high)}"


def _change(share: float) -> str:
    """``+1.2 %``, ``−0.3 %``; ``0 %`` if it rounds to zero."""
    rounded = round(100 * share, 1)
    return f"{'−' if rounded < 0 else '+'}{abs(rounded)}{NO_BREAK}%" if rounded else f"0{NO_BREAK}%"


# ---- points_page
# The page of a sweep over points: front, effect of each axis, best points; one self-contained HTML file.

MOST_ROWS = 200  # of the table: the front, then the fastest other points


def write_points_page(
    plan: SweepPlan, rows: Iterable[Mapping[str, Any]], dropped: Mapping[str, int], folder: Path
) -> tuple[Path, tuple[str, ...]]:
    """Write ``index.html`` beside the results, and the distribution of drawn machines; returns its path and the notes.
    Equal results give equal bytes.

    rows: rows of the results, with ``point``.
    """
    rows = list(rows)
    found = view_of(plan, rows, dropped)
    wafers = write_distributions(plan, rows, folder)
    write_text(folder / "index.html", render_points(found, rows, folder, section_of(wafers)))
    return folder / "index.html", found.notes


def render_points(
    found: Exploration, rows: list[Mapping[str, Any]], folder: Path, wafers: Mapping[str, Any] | None = None
) -> str:
    """The page as text. ``rows``: of the results. ``folder``: may contain a comparison of both engines. ``wafers``:
    what it shows of drawn machines.
    """
    first = found.spec.objectives[0]
    others = sorted((point for point in found.points if not point.front), key=lambda point: -point.values[first])
    context = figures_of(found) | {
        "asked": False,
        "engine_names": sorted({point.engine for point in found.points}),
        "engines": sections.engines_section(folder),
        "sure": sections.sure_section(folder),
        "balancers": sections.balancers_section(rows),
        "wafers": wafers,
        "rows": rows_of(found, others)[:MOST_ROWS],
    }
    return rendered("points.html.j2", context, {"shown": value})
