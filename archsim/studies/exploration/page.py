"""The page of an exploration: one self-contained HTML file, the front as CSV, the YAML of every best design."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.files import write_text
from archsim.base.text.yaml import dump_yaml
from archsim.report import layers
from archsim.report.rendering import rendered
from archsim.report.units import NO_BREAK, between
from archsim.runs.economics import Coefficients, build_costs
from archsim.specs.machine.system import SystemSpec
from archsim.specs.sweeps.constraints import parse_constraint
from archsim.specs.sweeps.explore import OBJECTIVES, sense_of
from archsim.studies.exploration.answers import Alike, budget_of, collapse_told, collapsed, wanted
from archsim.studies.exploration.break_evens import BreakEven, break_evens, what_matters, what_pays
from archsim.studies.exploration.figures import scatter, strips, tornado, value
from archsim.studies.exploration.levels import MODEL
from archsim.studies.exploration.outcome import Candidate, Exploration, unit_of

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
    """One row for every point that the event engine ran: its axes, objectives by both engines, and its bottleneck."""
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
    for point in found.known:
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
        "layers": layers.told(found.layers),
        "parts": layers.partial(found.layers),
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
    for text in found.spec.budgets:
        if any(found.best(text, found.spec.objectives[0], model) for model in found.models):
            continue
        ranges = []
        for name in parse_constraint(text).names:
            every = [point.values[name] for point in found.points if point.allowed and name in point.values]
            ranges += [f"{name} is {between(every, lambda each, name=name: value(name, each))}"] if every else []
        asked = with_units(text).replace("<=", "≤").replace(">=", "≥")
        said.append(f"No design is within {asked}{': ' * bool(ranges)}{', '.join(ranges)}.")
    return said


def answer_heading(found: Exploration, heading: str, point: Candidate) -> str:
    """The heading of a wanted design, its budget with units; a search says so if its values are only estimates."""
    first = found.spec.objectives[0]
    for text in found.spec.budgets:
        heading = heading.replace(budget_of(first, text), budget_of(first, with_units(text)))
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
