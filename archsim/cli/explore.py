"""``archsim sweep --search``: search the points of a sweep, report the recommended designs, print the Pareto front."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archsim.base.answer import Answer, Part
    from archsim.questions.exploration.candidates import Exploration

_SHOWN = 20  # printed points of the front


def run_explore(args: argparse.Namespace) -> Answer:
    """Run what is missing; write the page, and a report for every recommended design."""
    from archsim.api import ExplorationPlan
    from archsim.base.answer import Answer
    from archsim.base.host import available_cores
    from archsim.cli.printing import print_compiling, print_replaced, report_folder
    from archsim.specs.library import load_exploration

    worlds = [] if args.samples is None else [f"explore.samples={args.samples}"]
    asked = ExplorationPlan(*load_exploration(args.file, [*args.overrides, *worlds]))
    name, objectives = asked.plan.experiment.name, ", ".join(asked.spec.objectives)
    folder, jobs = report_folder(name, args.out, "exploration"), args.jobs or available_cores()
    print(f"{name}: {asked.plan.combinations:,} points, by {objectives} → {folder}", flush=True)
    from archsim.api import explore
    from archsim.cli.progress import resumes, watcher
    from archsim.questions.exploration.explore import given

    print_replaced(folder, given(asked.plan.with_engine("analytical"), asked.spec))
    print_compiling("screening", of=asked.plan.with_engine("analytical").experiment)
    with resumes(folder):
        found = explore(asked, folder, jobs, watcher)
    return Answer((*_designs(found), *_front(found), f"report: {folder / 'index.html'}"), found.notes, found)


def _designs(found: Exploration) -> Iterator[str]:
    """The design of every question asked: the best by each objective, and within each budget, or that none is."""
    from archsim.questions.exploration.answers import wanted_designs
    from archsim.questions.exploration.page import answer_heading, unmet_budgets
    from archsim.show.units import amount

    for heading, point in wanted_designs(found).items():
        values = ", ".join(amount(name, point.values[name]) for name in found.spec.objectives)
        text = answer_heading(found, heading, point)
        yield f"{text}: point {point.index}, with {values}. It is limited by {point.limit[0]}."
    yield from unmet_budgets(found)


def _front(found: Exploration) -> Iterator[Part]:
    from archsim.base.answer import Grid
    from archsim.show.units import amount

    state = "stable" if found.stable else f"not stable yet after {found.budget} event runs"
    if not found.budget:
        state = "estimates of the analytical engine alone"
    ran = f"{len(found.known)} of {len(found.points):,} ran on the event engine"
    objectives = found.spec.objectives
    rows = [
        (
            str(point.index), *(amount(name, point.values[name]) for name in objectives), point.limit[0],
            *point.axes.values(),
        )
        for point in found.front[:_SHOWN]
    ]  # fmt: skip
    yield Grid(
        ("point",), rows, objectives, more=("limit", *found.axes), least=2 + len(objectives),
        title=f"{len(found.front)} designs on the front ({state}); {ran}",
    )  # fmt: skip
    if len(found.front) > _SHOWN:
        yield f"{len(found.front) - _SHOWN} more designs of the front are in front.csv."
