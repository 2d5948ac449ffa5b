"""The page of an exploration: one self-contained HTML file, the front as CSV, the YAML of every best design."""

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
from archsim.machine.system import SystemSpec
from archsim.questions.exploration.answers import (
    EqualDesigns,
    budget_of,
    collapse_sentence,
    merge_equal,
    wanted_designs,
)
from archsim.questions.exploration.break_evens import BreakEven, break_evens, what_matters, what_pays
from archsim.questions.exploration.candidates import Candidate, Exploration
from archsim.questions.exploration.figures import over_key, scatter, strips, tornado
from archsim.questions.exploration.levels import MODEL
from archsim.questions.exploration.sweep_view import view_of
from archsim.questions.wafers_page import section_of, write_distributions
from archsim.runs.prices import Coefficients, build_costs
from archsim.runs.results import in_part, layer_counts
from archsim.show import balancers, sections
from archsim.show.rendering import render as rendered
from archsim.show.units import NO_BREAK, amount, between, listing, unit_of_objective
from archsim.specs import constraints, explore
from archsim.specs.plan import SweepPlan

MOST_STRIPS = 12
_POINT = re.compile(r"point (\d+): \S+\.[0-9a-f]{10}(?=,)")
PART_NOTE = (
    "Not all MoE layers ran. Throughput, time and energy on this page are for all of them, scaled by the share that "
    "ran, as is tokens_per_s in results.parquet; other times and counts there are for the layers that ran."
)


@dataclass(frozen=True)
class Best:
    """The best design of an objective within a budget."""

    heading: str  # objective and budget
    point: Candidate  # the design
    values: str  # its objectives, in words
    yaml: str  # its file's text
    file: str  # relative path of that file
    page: str  # relative path of its report, or empty


def write_exploration(
    found: Exploration, designs: Mapping[int, Mapping[str, Any]], pages: Mapping[int, str], folder: Path
) -> Path:
    """Write ``index.html``, ``front.csv`` and ``designs/*.yaml``; returns the page. designs: point → experiment,
    resolved; pages: point → path of its report, relative to ``folder``.
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
    """A row for every point that the event engine ran (of the front, if none): axes, objectives, bottleneck."""
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
        "notes": [name_points(found, note) for note in found.notes],
        "sentences": sentences(found, steps),
        "break_evens": steps,
        "engine_names": ["analytical"],  # of an exploration; it runs every design
        "answers": [(answer_heading(found, heading, point), point) for heading, point in wanted_designs(found).items()],
        "collapse": collapse_sentence(found.front, names),
        "layers": layer_counts(found.layers),
        "parts": in_part(found.layers),
        "part_note": PART_NOTE,
        "senses": {name: explore.sense_of(name) for name in names},
        "over_key": over_key(found, names[0]),
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


def name_points(found: Exploration, note: str) -> str:
    """A note with points named by their axes, not by the digest in the name of their system."""
    axes = {str(each.index): " ".join(each.axes[name] for name in found.axes) for each in found.points}
    return _POINT.sub(lambda match: f"point {match[1]} ({axes[match[1]]})" if match[1] in axes else match[0], note)


def sentences(found: Exploration, steps: Sequence[BreakEven]) -> list[str]:
    designs, unmet = wanted_designs(found), unmet_budgets(found)
    if not designs:
        return ["No design is allowed by the constraints."]
    heading, point = next(iter(designs.items()))
    design = ", ".join(f"{axis} {level}" for axis, level in point.axes.items())
    values = listing(f"{name} {amount(name, point.values[name])}" for name in found.spec.objectives)
    best = answer_heading(found, heading, point)
    cause, share = point.limit
    said = [f"{capital(best)}: {design}. It has {values}."]
    if cause in causes.DOING:  # a run without steps has none
        said[0] += f" It spends {100 * share:.0f}{NO_BREAK}% of its time {causes.DOING[cause]}."
    said += [*unmet, what_matters(found), what_pays(steps)]
    return [each if each.endswith(".") else f"{each}." for each in said if each]


def rows_of(found: Exploration, dominated: Sequence[Candidate]) -> list[EqualDesigns]:
    return [*merge_equal(found.front, found.spec.objectives), *(EqualDesigns(point, (), ()) for point in dominated)]


def unmet_budgets(found: Exploration) -> list[str]:
    said = []
    for budget in found.spec.budgets:
        if any(found.best(budget, found.spec.objectives[0], model) for model in found.models):
            continue
        ranges = []
        for name in constraints.parse_constraint(budget).names:
            every = [point.values[name] for point in found.points if point.allowed and name in point.values]
            ranges += [f"{name} is {between(every, partial(amount, name))}"] if every else []
        asked = with_units(budget).replace("<=", "≤").replace(">=", "≥")
        said.append(f"No design keeps {asked}, as {listing(ranges)}." if ranges else f"No design keeps {asked}.")
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
    for heading, point in wanted_designs(found).items():
        design = designs.get(point.index)
        values = ", ".join(
            f"{name} {amount(name, point.values[name])}{_range(found, name, point, design)}"
            for name in found.spec.objectives
        )
        heading = answer_heading(found, heading, point)
        yaml = dump_yaml(designs[point.index]) if point.index in designs else ""
        yield Best(heading, point, values, yaml, f"designs/point-{point.index}.yaml", pages.get(point.index, ""))


def _range(found: Exploration, objective: str, point: Candidate, design: Mapping[str, Any] | None) -> str:
    """`` (20.0 k USD to 210 k USD)``: price, energy or power with all coefficients at their bounds; else empty."""
    if objective in point.ranges:
        low, high = (amount(objective, end) for end in point.ranges[objective])
        return f" ({low} to {high})"
    if objective != "cost" or design is None:
        return ""
    system, own = SystemSpec.model_validate(design["systems"][0]), Coefficients().change(found.spec.coefficients)
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


MOST_ROWS = 200  # of the table: the front, then the fastest other points


def write_points_page(
    plan: SweepPlan, rows: Iterable[Mapping[str, Any]], dropped: Mapping[str, int], folder: Path,
    answer: Sequence[str] = (),
) -> tuple[Path, tuple[str, ...]]:  # fmt: skip
    """Write ``index.html`` and distributions of sampled machines; returns its path and notes. rows: of the results,
    with ``point``; answer: the first sentences.
    """
    rows = list(rows)
    found = view_of(plan, rows, dropped)
    wafers = write_distributions(plan, rows, folder)
    files.write_text(folder / "index.html", render_points(found, rows, folder, section_of(wafers), answer))
    return folder / "index.html", found.notes


def render_points(
    found: Exploration, rows: list[Mapping[str, Any]], folder: Path, wafers: Mapping[str, Any] | None = None,
    answer: Sequence[str] = (),
) -> str:  # fmt: skip
    """The page as text. ``rows``: of the results. ``folder``: may contain a comparison of both engines. ``wafers``:
    what it shows of drawn machines. ``answer``: the first sentences, in place of that of the best design.
    """
    first = found.spec.objectives[0]
    others = sorted((point for point in found.points if not point.front), key=lambda point: -point.values[first])
    shown = figures_of(found)
    if wafers:  # a random machine is no best one
        shown |= {"answers": [], "sentences": shown["sentences"][:1]}
    context = shown | {
        "asked": False,
        "sentences": [*answer, *shown["sentences"][1:]] if answer else shown["sentences"],
        "engine_names": sorted({point.engine for point in found.points}),
        "engines": sections.engines_section(folder),
        "sure": sections.sure_section(folder),
        "balancers": balancers.balancers_section(rows),
        "wafers": wafers,
        "rows": rows_of(found, others)[:MOST_ROWS],
    }
    return rendered("points.html.j2", context, {"shown": amount})
