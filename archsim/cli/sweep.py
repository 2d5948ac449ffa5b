"""What ``archsim sweep`` does: call the API, print, write the report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.base.cores import available_cores
from archsim.base.errors import ArchsimError
from archsim.cli.arguments import add_experiment, add_jobs, add_report, natural
from archsim.cli.printing import console, grid, print_engine_errors, print_result_notes, tell_compiling
from archsim.cli.report_folder import target, tell_replaced
from archsim.specs.experiment import ExperimentSpec

if TYPE_CHECKING:
    from archsim.runs.results import Results

OK, REFUSED, INTERRUPTED = 0, 2, 130
_GB = 1e9


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add_experiment(parser, "experiment, or manifest.yaml of a report")
    add_report(parser, "reports/NAME")
    add_jobs(parser)
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="a Dask cluster that does the runs, such as tcp://host:8786"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the runs and whether each fits in memory")
    parser.add_argument(
        "--point", type=natural, metavar="N", help="print point N of a `sweep:` as an experiment of its own"
    )


def run(args: argparse.Namespace) -> int:
    """Run what is missing, write the report, print what came out."""
    from archsim.cli.sweep_points import refuse_point, sweep_points_command
    from archsim.specs.loading.library import load_planned
    from archsim.specs.sweeps.plan import SweepPlan

    planned = load_planned(args.file, args.overrides)
    if isinstance(planned, SweepPlan):
        return sweep_points_command(planned, args.out, args.jobs, args.dry_run, args.point, args.scheduler)
    refuse_point(args.point)
    return sweep_command(planned, args.out, args.jobs, args.dry_run, args.scheduler)


def sweep_command(
    experiment: ExperimentSpec, out: str | None, jobs: int | None, dry_run: bool, scheduler: str | None = None
) -> int:
    """Run what is missing, write the report, print the speed-ups."""
    head = f"{experiment.name}: {_counted(experiment.runs, 'run')}"
    if dry_run:
        print(head, flush=True)
        return _print_runs(experiment)
    folder = target(experiment.name, out)
    jobs = jobs or available_cores()
    # Before anything heavy is imported: something is on the screen at once.
    doers = _counted(jobs, "job") if scheduler is None else scheduler
    print(f"{head}, {doers} → {folder}", flush=True)
    tell_replaced(folder, experiment.resolved())
    tell_compiling()
    from archsim.cli.progress import watcher
    from archsim.runs.sweep import sweep

    try:
        with watcher() as watching:
            results = sweep(experiment, folder, jobs, watching, scheduler)
    except KeyboardInterrupt:
        print(
            f"\ninterrupted; the runs that have ended are kept in {folder}: the same command goes on", file=sys.stderr
        )
        return INTERRUPTED
    _print_speedups(results, [policy.name for policy in experiment.policies])
    print_result_notes(results.runs.rows, experiment.systems)
    if experiment.engine == "analytical":
        from archsim.studies.comparison.comparison import STEPS_OF_REPORT, write_sample

        sample = write_sample(experiment, folder)
        print(
            f"{len(sample.runs)} of {sample.drawn_from} runs also on the event engine, {STEPS_OF_REPORT} decode step each:"
        )
        print_engine_errors(sample.runs)
    _print_page(folder)
    return OK


def _print_runs(experiment: ExperimentSpec) -> int:
    """The runs, and how the weights of each lie in the memory of its fullest die."""
    from archsim.runs.capacity import rooms
    from archsim.runs.sweep import prepare

    table = grid("system", "model", "batch", "policy", "assumptions")
    for title in ("fullest die", "weights GB", "bound GB", "left GB", "fits"):
        table.add_column(title, justify="right")
    every = list(rooms(prepare(experiment).runs))
    for room in every:
        run, bound = room.run, room.fit.bound_bytes
        table.add_row(
            *(
                run.system.name,
                run.model.name,
                str(run.batch),
                run.policy.name,
                run.assumptions.label,
                str(room.fullest_die),
            ),
            *(f"{size / _GB:.1f}" for size in (room.demand_bytes, bound, bound - room.demand_bytes)),
            "no" if room.problem else "yes" if room.bounded else "not limited",
        )
    console().print(table)
    problems = dict.fromkeys(room.problem for room in every if room.problem)
    if problems:
        raise ArchsimError("\n".join(problems))
    return OK


def _print_speedups(results: Results, policies: Iterable[str]) -> None:
    """Decode throughput of every policy over base; in tokens/s where the experiment has no base."""
    table = grid("system", "model", "batch", "assumptions")
    for policy in policies:
        table.add_column(policy, justify="right")
    cells: dict[tuple, dict[str, str]] = {}
    for row in results.runs.rows:
        speedup, throughput = row["speedup_vs_base"], row["throughput_tokens_per_s"]
        shown = f"{speedup:.2f}×" if speedup else f"{throughput:,.0f} tokens/s" if throughput else "–"
        cells.setdefault(tuple(str(row[name]) for name in ("system", "model", "batch", "assumptions")), {})[
            row["policy"]
        ] = shown
    for combination, shown in cells.items():
        table.add_row(*combination, *shown.values())
    console().print(table)


def _print_page(folder: Path) -> None:
    from archsim.report.page import write_report

    print(f"report: {write_report(folder)}")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun if number == 1 else f'{noun}s'}"
