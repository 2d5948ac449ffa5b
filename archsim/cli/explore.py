"""``archsim explore``: search the points of a sweep, report the recommended designs, print the Pareto front."""

import argparse

from archsim.cli.arguments import add_experiment, add_jobs, add_json, add_report
from archsim.cli.exit_codes import OK

_SHOWN = 20  # printed points of the front


def add(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser, "experiment with `sweep:` and `explore:`")
    add_report(parser, "reports/NAME-exploration")
    add_jobs(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run what is missing; write the page, and a report for every recommended design."""
    from archsim.api.loading import ExplorationPlan
    from archsim.base.cores import available_cores
    from archsim.cli.printing import print_compiling, print_kept, print_notes
    from archsim.cli.report_folder import print_replaced, report_folder
    from archsim.specs.loading.library import load_exploration

    asked = ExplorationPlan(*load_exploration(args.file, args.overrides))
    name, objectives = asked.plan.experiment.name, ", ".join(asked.spec.objectives)
    folder, jobs = report_folder(name, args.out, "exploration"), args.jobs or available_cores()
    print(f"{name}: {asked.plan.combinations:,} points, by {objectives} → {folder}", flush=True)
    from archsim.api.studying import explore
    from archsim.cli.progress import watcher
    from archsim.studies.exploration.study import given

    print_replaced(folder, given(asked.plan.with_engine("analytical"), asked.spec))
    print_compiling()
    try:
        found = explore(asked, folder, jobs, watcher)
    except KeyboardInterrupt:
        return print_kept(folder)
    args.result = found
    _print_answers(found)
    _print_front(found)
    print_notes(found.notes)
    print(f"report: {folder / 'index.html'}")
    return OK


def _print_answers(found) -> None:
    """The design of every question asked: the best by each objective, and within each budget, or that none is."""
    from archsim.studies.exploration.answers import wanted
    from archsim.studies.exploration.figures import value
    from archsim.studies.exploration.page import answer_heading, unmet_budgets

    for heading, point in wanted(found).items():
        values = ", ".join(value(name, point.values[name]) for name in found.spec.objectives)
        print(f"{answer_heading(found, heading, point)}: point {point.index}, {values}, limited by {point.limit[0]}")
    for sentence in unmet_budgets(found):
        print(sentence)


def _print_front(found) -> None:
    from archsim.cli.printing import grid, print_fitting
    from archsim.studies.exploration.figures import value

    state = "stable" if found.stable else f"not stable yet after {found.budget} event runs"
    ran = f"{len(found.known)} of {len(found.points):,} ran on the event engine"
    title = f"{len(found.front)} designs on the front ({state}); {ran}"
    table = grid("point", title=title, numbers=found.spec.objectives)
    for column in ("limit", *found.axes):
        table.add_column(column)
    for point in found.front[:_SHOWN]:
        values = (value(name, point.values[name]) for name in found.spec.objectives)
        table.add_row(str(point.index), *values, point.limit[0], *point.axes.values())
    print_fitting(table, kept=2 + len(found.spec.objectives))
    if len(found.front) > _SHOWN:
        print(f"and {len(found.front) - _SHOWN} more in front.csv")
