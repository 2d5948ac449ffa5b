"""What ``archsim explore`` does: search the points of a sweep, report the best designs, print the front."""

from __future__ import annotations

import sys
from pathlib import Path

from archsim.base.cores import available_cores
from archsim.cli.printing import console, grid, print_notes, tell_compiling
from archsim.cli.report_folder import report_folder, tell_replaced
from archsim.specs.sweeps.explore import ExploreSpec
from archsim.specs.sweeps.plan import SweepPlan

OK, INTERRUPTED = 0, 130
_SHOWN = 20  # points of the front that are printed


def explore_command(plan: SweepPlan, spec: ExploreSpec, out: str | None, jobs: int | None) -> int:
    """``plan``: with the analytical engine. Runs what is missing, writes the page and those of the best designs."""
    folder = report_folder(plan.experiment.name, out, "exploration")
    jobs = jobs or available_cores()
    print(f"{plan.experiment.name}: {plan.combinations:,} points, by {', '.join(spec.objectives)} → {folder}", flush=True)
    from archsim.base.files import sole_writer
    from archsim.cli.progress import watcher
    from archsim.studies.exploration.explore import explore
    from archsim.studies.exploration.manifest import given, write_manifest
    from archsim.studies.exploration.page import wanted, write_exploration

    tell_replaced(folder, given(plan, spec))
    tell_compiling()
    try:
        with sole_writer(folder):
            write_manifest(plan, spec, folder)
            found = explore(plan, spec, folder, jobs, watcher)
            designs = {point.index: plan.resolved(plan.point(point.index)._replace(engine="event")) for point in wanted(found).values()}
            pages = {index: _report(tree, index, folder, jobs) for index, tree in designs.items()}
            page = write_exploration(found, designs, pages, folder)
    except KeyboardInterrupt:
        print(f"\ninterrupted; the runs that have ended are kept in {folder}: the same command goes on", file=sys.stderr)
        return INTERRUPTED
    _print_front(found)
    print_notes(found.notes)
    print(f"report: {page}")
    return OK


def _report(tree: dict, index: int, folder: Path, jobs: int) -> str:
    """The page of one design, from its own small sweep; its path, relative to the folder."""
    from archsim.report.page import write_report
    from archsim.runs.sweep import sweep
    from archsim.specs.experiment import ExperimentSpec

    own = folder / "reports" / f"point-{index}"
    sweep(ExperimentSpec.model_validate(tree), own, jobs)
    return write_report(own).relative_to(folder).as_posix()


def _print_front(found) -> None:
    from archsim.studies.exploration.figures import value

    state = "stable" if found.stable else f"not stable yet after {found.budget} event runs"
    title = f"{len(found.front)} designs on the front ({state}); {len(found.known)} of {len(found.points):,} ran by the event engine"
    table = grid("point", title=title, numbers=found.spec.objectives)
    for column in ("limit", *found.axes):
        table.add_column(column)
    for point in found.front[:_SHOWN]:
        table.add_row(str(point.index), *(value(name, point.values[name]) for name in found.spec.objectives), point.limit[0], *point.axes.values())
    console().print(table)
    if len(found.front) > _SHOWN:
        print(f"and {len(found.front) - _SHOWN} more in front.csv")
