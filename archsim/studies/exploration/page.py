"""The page of an exploration: one self-contained HTML file, the front as CSV, the YAML of every best design."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base import causes, files, sums, tables
from archsim.base.errors import capital
from archsim.base.yaml import dump_yaml
from archsim.report import plots, sections
from archsim.report.page import rendered
from archsim.report.units import (
    NO_BREAK,
    amount,
    between,
    listed,
    objective_unit,
    scales_of,
    unit_of_objective,
)
from archsim.report.units import unit_of as unit_shown
from archsim.runs.energy import Coefficients, build_costs
from archsim.runs.results import in_part, layers_told
from archsim.specs import constraints, explore
from archsim.specs.plan import SweepPlan
from archsim.specs.system import SystemSpec
from archsim.studies.exploration.analysis import (
    MODEL,
    MOST_LEVELS,
    BreakEven,
    Candidate,
    EqualDesigns,
    Exploration,
    break_evens,
    budget_of,
    collapse_told,
    collapsed,
    effects,
    levels_of_axis,
    view_of,
    wanted,
    what_matters,
    what_pays,
)
from archsim.studies.wafers import section_of, write_distributions

# ---- figures
# Figures of an exploration: scatter plot with front, small multiples over the axes, tornado plot.

MOST_DOTS = 3000  # of designs off the front; of more, every n-th


def _axis(field: str, objective: str, values: Sequence[float] | np.ndarray) -> tuple[plots.PlotAxis, float]:
    """A logarithmic axis of an objective over these values, and the worth of its unit."""
    worth, prefix = unit_shown(values, scales_of(unit_of_objective(objective)))
    return plots.PlotAxis(field, f"{objective}, {objective_unit(objective, prefix)}", "~g", log=True), worth


def scatter(found: Exploration, across: str, up: str, model: str) -> plots.Points | None:
    """All allowed designs of a model by two objectives; the front with its bands. None where there are none."""
    shown = [
        point
        for point in found.points
        if point.model == model and point.allowed and all(0 < point.values[name] < math.inf for name in (across, up))
    ]
    if not shown:
        return None
    off = [point for point in shown if not point.front]
    every = max(1, math.ceil(len(off) / MOST_DOTS))
    front = sorted((point for point in shown if point.front), key=lambda point: point.values[across])
    axes = (("x", across), ("y", up))
    (x, x_worth), (y, y_worth) = (_axis(name, of, [point.values[of] for point in shown]) for name, of in axes)
    bands = up == "throughput" and any(point.band for point in front)
    rows = []
    for point in [*off[::every], *front]:
        row: dict[str, Any] = {"x": point.values[across] / x_worth, "y": point.values[up] / y_worth}
        row |= {"kind": "on the front" if point.front else "dominated", "point": point.index, "engine": point.engine}
        row |= {"limit": f"{point.limit[0]} ({point.limit[1]:.0%})"}
        row["design"] = ", ".join(f"{axis} {level}" for axis, level in point.axes.items())
        row["values"] = ", ".join(f"{name} {amount(name, point.values[name])}" for name in found.spec.objectives)
        if bands:
            ends = point.band if point.front and point.band else (point.values[up],) * 2
            row |= {"low": ends[0] / y_worth, "high": ends[1] / y_worth}
        rows.append(row)
    of_model = f" ({model})" if len(found.models) > 1 else ""
    drawn = f"; one in {every} of the others is drawn" if every > 1 else ""
    return plots.Points(
        question=f"Which designs are best by {up} and {across}?{of_model} "
        f"{len(front)} of {len(shown)} are on the front{drawn}",
        rows=rows, x=x, y=y, zero=False, low="low" if bands else "", high="high" if bands else "",
        curves=[{"line": "front", "x": p.values[across] / x_worth, "y": p.values[up] / y_worth} for p in front],
        colours=plots.Colours("kind", {"dominated": "--p0", "on the front": "--p4"}), size=34,
        tips=(("design", "design"), ("values", "values"), ("limit", "limited by"), ("point", "point"),
              ("engine", "engine")),
    )  # fmt: skip


def axis_label(axis: str) -> str:
    """The axis without its root, which most share."""
    return axis.removeprefix("system.")


def strips(points: Sequence[Candidate], axes: Sequence[str], objective: str, model: str) -> plots.Ranges | None:
    """For every level of an axis, or bin of its values: 10th to 90th percentile of an objective, median and best."""
    usable = [point for point in points if point.allowed and 0 < point.values[objective] < math.inf]
    if not usable:
        return None
    of_all, rows = np.array([point.values[objective] for point in usable]), []
    x, worth = _axis("value", objective, of_all)
    for axis in axes:
        levels = levels_of_axis(usable, axis)
        for level, members in levels[:: math.ceil(len(levels) / MOST_LEVELS)]:
            values = of_all[members]
            low, middle, high = np.percentile(values, [10, 50, 90])
            best = values.max() if explore.sense_of(objective) == "max" else values.min()
            told = f"median {amount(objective, middle)}, best {amount(objective, best)}"
            rows.append({
                "level": str(level), "axis": axis_label(axis), "low": low / worth, "value": middle / worth,
                "high": high / worth, "best": best / worth, "told": told, "designs": len(values),
            })  # fmt: skip
    return plots.Ranges(
        question=f"How does each axis change {objective}?{f' ({model})' if model else ''}", rows=rows, x=x, y="level",
        low="low", high="high", best="best", panel="axis",
        tips=(("axis", "axis"), ("level", "level"), ("told", objective), ("designs", "designs")),
    ) if rows else None  # fmt: skip


def tornado(points: Sequence[Candidate], objective: str) -> plots.Bars | None:
    """The axes by their effect on an objective: from the lowest to the highest geometric mean of a level, over that of
    all points. Effects within twice their error have the colour of ``not beyond its error``.
    """
    rows = []
    for each in effects([point for point in points if point.allowed], objective):
        known = math.isfinite(each.error)
        error = f"standard error of their ratio {each.error:.1%}" if known else "one design a level: error not known"
        higher = explore.sense_of(objective) == "max"
        for begin, end, better in ((each.below, 1.0, not higher), (1.0, each.above, higher)):
            kind = ("better" if better else "worse") if each.shown else "not beyond its error"
            rows.append({
                "axis": axis_label(each.axis), "begin": begin, "value": end, "kind": kind, "error": error,
                "label": f"{each.least} to {each.most}", "least": f"{each.least}: {each.below:.3g}×",
                "most": f"{each.most}: {each.above:.3g}×",
            })  # fmt: skip
    return plots.Bars(
        question=f"Which axis matters most for {objective}?", rows=rows, y="axis", begin="begin", reference=1.0,
        x=plots.PlotAxis("value", f"mean {objective} of a level, over the mean of all designs, ×", log=True),
        colours=plots.Colours("kind", {"better": "--p4", "worse": "--p7", "not beyond its error": "--p0"}),
        tips=(("axis", "axis"), ("least", "lowest"), ("most", "highest"), ("error", "error")),
    ) if rows else None  # fmt: skip


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
        files.write_text(folder / "designs" / f"point-{index}.yaml", dump_yaml(tree))
    files.write_text(folder / "front.csv", csv_of(found))
    files.write_text(folder / "index.html", render(found, designs, pages))
    return folder / "index.html"


def with_units(text: str) -> str:
    """``cost <= 30000 USD``; the units of its names in brackets if a budget does not end in a number."""
    names = constraints.parse_constraint(text).names
    if len(names) == 1 and text[-1].isdigit():
        return f"{text} {unit_of_objective(names[0])}"
    return f"{text} ({', '.join(f'{name} in {unit_of_objective(name)}' for name in names)})"


def csv_of(found: Exploration) -> str:
    """One row for every point that the event engine ran (of the front, if it ran none): its axes, objectives by both
    engines, and its bottleneck.
    """
    names = tuple(dict.fromkeys((*explore.OBJECTIVES, *found.spec.objectives)))
    units = [f"{name} ({unit_of_objective(name)})" for name in names]
    analytical = [f"{name}, analytical" for name in names]
    rows: list[list[Any]] = [["point", "front", *found.axes, *units, *analytical, "limit", "share", "run"]]
    for point in found.known or found.front:
        numbers = [f"{each:.6g}" for values in (point.values, point.cheap) for each in (values[name] for name in names)]
        limit, share = point.limit
        rows.append([point.index, int(point.front), *point.axes.values(), *numbers, limit, f"{share:.4f}", point.run])
    return tables.csv_text(rows)


def render(found: Exploration, designs: Mapping[int, Mapping[str, Any]], pages: Mapping[int, str]) -> str:
    """The page as text."""
    context = figures_of(found) | {
        "asked": True,
        "best": list(_best(found, designs, pages)),
        "rows": rows_of(found, [point for point in found.known if not point.front]),
        "errors": [_error(found, name) for name in found.spec.objectives],
    }
    return rendered("explore.html.j2", context, {"shown": amount})


def figures_of(found: Exploration) -> dict[str, Any]:
    """The figures that pages of designs share, by their names in the templates."""
    names = found.spec.objectives
    pairs = [(names[0], other) for other in names[1:]] or [(names[0], "cost")]
    several, steps = len(found.models) > 1, break_evens(found)
    axes = [axis for axis in found.axes if axis != MODEL][:MOST_STRIPS]
    return {
        "found": found,
        "notes": [named(found, note) for note in found.notes],
        "sentences": sentences(found, steps),
        "break_evens": steps,
        "engine_names": ["analytical"],  # of an exploration; it runs every design
        "answers": [(answer_heading(found, heading, point), point) for heading, point in wanted(found).items()],
        "collapse": collapse_told(found.front, names),
        "layers": layers_told(found.layers),
        "parts": in_part(found.layers),
        "part_note": PART_NOTE,
        "senses": {name: explore.sense_of(name) for name in names},
        "scatters": [
            figure for model in found.models for up, across in pairs if (figure := scatter(found, across, up, model))
        ],
        "tornados": [bars for name in names if (bars := tornado(found.points, name))],
        "strips": [
            ranges
            for model in found.models
            if (
                ranges := strips(
                    [each for each in found.points if each.model == model], axes, names[0], model if several else ""
                )
            )
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
    values = listed(f"{name} {amount(name, point.values[name])}" for name in found.spec.objectives)
    best = answer_heading(found, heading, point)
    cause, share = point.limit
    said = [f"{capital(best)}: {design}. It has {values}."]
    if cause in causes.DOING:  # a run without steps has none
        said[0] += f" It spends {100 * share:.0f}{NO_BREAK}% of its time {causes.DOING[cause]}."
    said += [*unmet, what_matters(found), what_pays(steps)]
    return [each if each.endswith(".") else f"{each}." for each in said if each]


def rows_of(found: Exploration, dominated: Sequence[Candidate]) -> list[EqualDesigns]:
    """Rows of the table of designs: the front, designs of equal values as one, then others."""
    return [*collapsed(found.front, found.spec.objectives), *(EqualDesigns(point, (), ()) for point in dominated)]


def unmet_budgets(found: Exploration) -> list[str]:
    """A sentence for every budget that no design keeps, with the range of its names over the designs."""
    said = []
    for budget in found.spec.budgets:
        if any(found.best(budget, found.spec.objectives[0], model) for model in found.models):
            continue
        ranges = []
        for name in constraints.parse_constraint(budget).names:
            every = [point.values[name] for point in found.points if point.allowed and name in point.values]
            ranges += [f"{name} is {between(every, partial(amount, name))}"] if every else []
        asked = with_units(budget).replace("<=", "≤").replace(">=", "≥")
        said.append(f"No design keeps {asked}, as {listed(ranges)}." if ranges else f"No design keeps {asked}.")
    return said


def answer_heading(found: Exploration, heading: str, point: Candidate) -> str:
    """The heading of a wanted design, its budget with units; a search says so if its values are only estimates."""
    first = found.spec.objectives[0]
    for budget in found.spec.budgets:
        heading = heading.replace(budget_of(first, budget), budget_of(first, with_units(budget)))
    heading = heading.replace("<=", "≤").replace(">=", "≥")
    estimated = found.budget and point.engine != "event"
    return f"{heading} (an estimate, as only the analytical engine ran it)" if estimated else heading


def _best(found: Exploration, designs: Mapping[int, Mapping[str, Any]], pages: Mapping[int, str]):
    for heading, point in wanted(found).items():
        design = designs.get(point.index)
        values = ", ".join(
            f"{name} {amount(name, point.values[name])}{_range(found, name, point, design)}"
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
        low, high = (amount(objective, end) for end in point.ranges[objective])
        return f" ({low} to {high})"
    if objective != "cost" or design is None:
        return ""
    system, own = SystemSpec.model_validate(design["systems"][0]), Coefficients().changed(found.spec.coefficients)
    low, high = (amount("cost", sums.sum(build_costs(system, own.at(bound)).usd.values())) for bound in ("low", "high"))
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
    files.write_text(folder / "index.html", render_points(found, rows, folder, section_of(wafers)))
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
    return rendered("points.html.j2", context, {"shown": amount})
