"""What ``archsim sweep`` does: call the API, print, write the report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.base.cores import available_cores
from archsim.base.errors import SpecError
from archsim.cli.printing import print_notes, tell_compiling
from archsim.cli.report_folder import report_folder, tell_replaced
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.sweeps.plan import SweepPlan, plan_without_axes
from archsim.specs.text.yaml import dump_yaml

if TYPE_CHECKING:
    from archsim.runs.plan import Selection
    from archsim.runs.results import Results

OK, REFUSED, INTERRUPTED = 0, 2, 130


def sweep_command(
    planned: ExperimentSpec | SweepPlan, out: str | None, jobs: int | None, dry_run: bool, point: int | None = None, scheduler: str | None = None
) -> int:
    """Run what is missing, write the report, print its best; or only list what would run, or print one point as an experiment."""
    plan = planned if isinstance(planned, SweepPlan) else plan_without_axes(planned)
    if point is not None:
        return _print_point(plan, point)
    folder = report_folder(plan.experiment.name, out)
    # Before anything heavy is imported: something is on the screen at once.
    doers = _counted(jobs or available_cores(), "job") if scheduler is None else scheduler
    print(f"{plan.experiment.name}: {_size(plan)}{'' if dry_run else f', {doers} → {folder}'}", flush=True)
    if dry_run:
        return _dry_run(plan)
    tell_replaced(folder, plan.given())
    tell_compiling()
    from archsim.cli.progress import watcher

    try:
        with watcher() as watching:
            watching.phase("loading the simulator")
            from archsim.runs.plan import select
            from archsim.runs.sweep import sweep_selected

            selection = select(plan, watching.phase)
            results = sweep_selected(selection, folder, jobs, watching, scheduler)
    except KeyboardInterrupt:
        print(f"\ninterrupted; the runs that have ended are kept in {folder}: the same command goes on", file=sys.stderr)
        return INTERRUPTED
    _report(selection, results, folder)
    return OK


def _report(selection: Selection, results: Results, folder: Path) -> None:
    """Print what came out, sample the event engine where another was asked, write the page."""
    from archsim.cli.compare import write_sample, write_sample_of_points
    from archsim.cli.sweep_tables import print_best, print_dropped, print_speedups
    from archsim.studies.sweep_page import write_sweep_page

    plan = selection.plan
    if plan.sweep.axes:
        print_dropped(selection)
        print_best(plan, results)
        write_sample_of_points(plan, selection.kept, folder)
        print(f"results: {folder / 'results.parquet'}")
    else:
        print_speedups(results, [policy.name for policy in plan.experiment.policies])
        if plan.experiment.engine == "analytical":
            write_sample(plan.experiment, folder)
    page, notes = write_sweep_page(selection, folder)
    print_notes(notes)
    print(f"report: {page}")


def _dry_run(plan: SweepPlan) -> int:
    """What would run: of an experiment every run, and how it lies in memory; of a sweep with axes the first points."""
    from archsim.cli.sweep_tables import print_dropped, print_points, print_rooms
    from archsim.runs.plan import select

    if not plan.sweep.axes:
        print_rooms(select(plan, refuse=False).runs())
        return OK
    selection = select(plan)
    print_dropped(selection)
    print_points(selection)
    return OK


def _print_point(plan: SweepPlan, point: int) -> int:
    if not plan.sweep.axes:
        raise SpecError(f"--point {point}: the experiment has no sweep")
    sys.stdout.write(dump_yaml(plan.resolved(plan.point(point))))
    return OK


def print_result_notes(rows, systems) -> None:
    """What a reader of these rows of results must know, on stderr. systems: specs."""
    from archsim.runs.calibration_notes import calibration_notes, die_of
    from archsim.runs.drawn_notes import drawn_notes

    print_notes(calibration_notes(rows, [(system.name, die_of(system)) for system in systems]))
    print_notes(drawn_notes(rows))


def _size(plan: SweepPlan) -> str:
    if not plan.sweep.axes:
        return _counted(plan.combinations, "run")
    axes = len(plan.sweep.axes)
    return f"{axes} {'axis' if axes == 1 else 'axes'}, {plan.combinations:,} points"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun if number == 1 else f'{noun}s'}"
