"""``archsim sweep --search``: search the points of a sweep, report the recommended designs, print the Pareto front."""

from __future__ import annotations

import argparse

from archsim.cli import arguments

_SHOWN = 20  # printed points of the front


def add_explore(parser: argparse.ArgumentParser) -> None:
    arguments.add_experiment(parser, "An experiment with `sweep:` and `explore:`")
    arguments.add_report(parser, "reports/NAME-exploration")
    arguments.add_jobs(parser)
    parser.add_argument(
        "--samples", metavar="N", type=int, help="How many samples to draw, for objectives such as throughput.p10."
    )


def run_explore(args: argparse.Namespace) -> int:
    """Run what is missing; write the page, and a report for every recommended design."""
    from archsim.api import ExplorationPlan
    from archsim.base.host import available_cores
    from archsim.cli.printing import print_compiling, print_notes, print_replaced, report_folder
    from archsim.specs.library import load_exploration

    worlds = [] if args.samples is None else [f"explore.samples={args.samples}"]
    asked = ExplorationPlan(*load_exploration(args.file, [*args.overrides, *worlds]))
    name, objectives = asked.plan.experiment.name, ", ".join(asked.spec.objectives)
    folder, jobs = report_folder(name, args.out, "exploration"), args.jobs or available_cores()
    print(f"{name}: {asked.plan.combinations:,} points, by {objectives} → {folder}", flush=True)
    from archsim.api import explore
    from archsim.cli.progress import resumes, watcher
    from archsim.studies.exploration.explore import given

    print_replaced(folder, given(asked.plan.with_engine("analytical"), asked.spec))
    print_compiling("screening", of=asked.plan.with_engine("analytical").experiment)
    with resumes(folder):
        found = explore(asked, folder, jobs, watcher)
    args.result = found
    _print_answers(found)
    _print_front(found)
    print_notes(found.notes)
    print(f"report: {folder / 'index.html'}")
    return arguments.OK


def _print_answers(found) -> None:
    """The design of every question asked: the best by each objective, and within each budget, or that none is."""
    from archsim.report.units import amount
    from archsim.studies.exploration.answers import wanted_designs
    from archsim.studies.exploration.page import answer_heading, unmet_budgets

    for heading, point in wanted_designs(found).items():
        values = ", ".join(amount(name, point.values[name]) for name in found.spec.objectives)
        text = answer_heading(found, heading, point)
        print(f"{text}: point {point.index}, with {values}. It is limited by {point.limit[0]}.")
    for sentence in unmet_budgets(found):
        print(sentence)


def _print_front(found) -> None:
    from archsim.cli.printing import grid, print_fitting
    from archsim.report.units import amount

    state = "stable" if found.stable else f"not stable yet after {found.budget} event runs"
    if not found.budget:
        state = "estimates of the analytical engine alone"
    ran = f"{len(found.known)} of {len(found.points):,} ran on the event engine"
    title = f"{len(found.front)} designs on the front ({state}); {ran}"
    table = grid("point", title=title, numbers=found.spec.objectives)
    for column in ("limit", *found.axes):
        table.add_column(column)
    for point in found.front[:_SHOWN]:
        values = (amount(name, point.values[name]) for name in found.spec.objectives)
        table.add_row(str(point.index), *values, point.limit[0], *point.axes.values())
    print_fitting(table, kept=2 + len(found.spec.objectives))
    if len(found.front) > _SHOWN:
        print(f"{len(found.front) - _SHOWN} more designs of the front are in front.csv.")
