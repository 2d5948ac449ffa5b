"""``archsim sweep``: run every combination of an experiment, or every point of its ``sweep:``, and report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.base.cores import available_cores
from archsim.cli.arguments import add_experiment, add_jobs, add_json, add_report, natural
from archsim.cli.exit_codes import OK

_MOST_CHECKED = 20_000  # points that a dry run looks at one by one, a millisecond each
_SAMPLED = 200  # points of a larger sweep

if TYPE_CHECKING:
    from archsim.runs.plan import Selection
    from archsim.runs.results import Results
    from archsim.specs.sweeps.plan import SweepPlan
    from archsim.studies.sweep_page import SweepReport


def add(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser, "experiment, or manifest.yaml of a report")
    add_report(parser, "reports/NAME")
    add_jobs(parser)
    add_json(parser)
    parser.add_argument("--scheduler", metavar="ADDRESS", help="run on a Dask cluster, such as tcp://host:8786")
    parser.add_argument("--dry-run", action="store_true", help="print the runs and whether each fits in memory")
    parser.add_argument(
        "--point", type=natural, metavar="N", help="print point N of a `sweep:` as a separate experiment"
    )


def run(args: argparse.Namespace) -> int:
    """Run what is missing and report; or list what would run; or print one point as an experiment."""
    if not args.dry_run and args.point is None:
        print(f"reading {args.file} ...", file=sys.stderr, flush=True)  # before slow imports
    from archsim.specs.loading.library import load_planned
    from archsim.specs.sweeps.plan import SweepPlan, plan_without_axes

    planned = load_planned(args.file, args.overrides)
    plan = planned if isinstance(planned, SweepPlan) else plan_without_axes(planned)
    if args.point is not None:
        return _print_point(plan, args.point)
    if args.dry_run:
        print(f"{plan.experiment.name}: {_size(plan)}", flush=True)
        return _dry_run(plan)
    return _sweep(plan, args)


def _sweep(plan: SweepPlan, args: argparse.Namespace) -> int:
    from archsim.cli.printing import print_compiling, print_kept
    from archsim.cli.report_folder import print_replaced, report_folder

    folder = report_folder(plan.experiment.name, args.out)
    workers = args.scheduler or _counted(args.jobs or available_cores(), "job")
    print(f"{plan.experiment.name}: {_size(plan)}, {workers} → {folder}", flush=True)
    print_replaced(folder, plan.given())
    print_compiling()
    from archsim.cli.progress import watcher

    try:
        with watcher() as watching:
            watching.phase("loading the simulator, compiling what is new")
            from archsim.runs.plan import select
            from archsim.runs.sweep import sweep_selected

            selection = select(plan, watching.phase)
            from archsim.studies.sweep_page import failures_on_page, write_sweep_report

            with failures_on_page(plan.experiment.name, folder):
                results = sweep_selected(selection, folder, args.jobs, watching, args.scheduler)
            sample = "running a sample on both engines, " if plan.sweep.axes else ""
            watching.phase(f"{sample}writing the page")
            report = write_sweep_report(selection, folder)
    except KeyboardInterrupt:
        return print_kept(folder)
    args.result = results.runs.rows
    _print_results(selection, results, folder)
    _print_report(report, folder if plan.sweep.axes else None)
    return OK


def _print_results(selection: Selection, results: Results, folder: Path) -> None:
    from archsim.cli.sweep_tables import print_best, print_dropped, print_speedups

    plan = selection.plan
    if plan.sweep.axes:
        print_dropped(selection)
        print_best(plan, folder)
    else:
        print_speedups(results, [policy.name for policy in plan.experiment.policies])


def _print_report(report: SweepReport, folder: Path | None) -> None:
    """folder: where the table of points is, if there are axes."""
    from archsim.cli.printing import print_engine_errors, print_notes
    from archsim.studies.comparison.comparison import STEPS_OF_REPORT

    if report.sample is not None:
        sample, noun = report.sample, "runs" if folder is None else "points"
        drawn = f"{len(sample.runs)} of {sample.drawn_from:,} {noun}"
        print(f"{drawn} also run on the event engine, {STEPS_OF_REPORT} decode step each:")
        print_engine_errors(sample.runs)
    if folder is not None:
        print(f"results: {folder / 'results.parquet'}")
    print_notes(report.notes)
    print(f"report: {report.page}")


def _dry_run(plan: SweepPlan) -> int:
    """Print every run of an experiment and how it fits in memory; of a sweep with axes, the first points."""
    from archsim.cli.sweep_tables import print_dropped, print_points, print_rooms
    from archsim.runs.estimate import told
    from archsim.runs.plan import drawn, select

    print(told(plan, available_cores()), flush=True)
    if not plan.sweep.axes:
        print_rooms(select(plan, refuse=False).runs())
        return OK
    among = drawn(plan, _SAMPLED) if plan.combinations > _MOST_CHECKED else None
    selection = select(plan, lambda text: print(text, file=sys.stderr, flush=True), among=among)
    print_dropped(selection, "would run")
    print_points(selection)
    return OK


def _print_point(plan: SweepPlan, point: int) -> int:
    from archsim.base.errors import SpecError
    from archsim.base.text.yaml import dump_yaml

    if not plan.sweep.axes:
        raise SpecError(f"--point {point}: the experiment has no `sweep:`")
    sys.stdout.write(dump_yaml(plan.resolved(plan.point(point))))
    return OK


def _size(plan: SweepPlan) -> str:
    if not plan.sweep.axes:
        return _counted(plan.combinations, "run")
    axes = len(plan.sweep.axes)
    return f"{axes} {'axis' if axes == 1 else 'axes'}, {plan.combinations:,} points"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun if number == 1 else f'{noun}s'}"
