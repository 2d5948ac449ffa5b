"""What ``archsim sweep`` does with a file that has a ``sweep:``: count, show one point, or run all and tell the best."""

from __future__ import annotations

import sys
from pathlib import Path

from archsim.base.cores import available_cores
from archsim.base.errors import SpecError
from archsim.cli.printing import console, grid, print_engine_errors, print_notes, tell_compiling
from archsim.cli.report_folder import target, tell_replaced
from archsim.specs.sweeps.plan import SweepPlan
from archsim.specs.text.yaml import dump_yaml

OK, INTERRUPTED = 0, 130
_LISTED, _BEST = 20, 10


def sweep_points_command(
    plan: SweepPlan, out: str | None, jobs: int | None, dry_run: bool, point: int | None, scheduler: str | None = None
) -> int:
    """Run the points that the constraints keep; or only list them, or print one as an experiment of its own."""
    if point is not None:
        sys.stdout.write(dump_yaml(plan.resolved(plan.point(point))))
        return OK
    folder = target(plan.experiment.name, out)
    print(f"{plan.experiment.name}: {_axes(plan)}, {plan.combinations:,} points{'' if dry_run else f' → {folder}'}", flush=True)
    from archsim.runs.point_sweep import select

    if dry_run:
        return _print_points(plan, select(plan))
    tell_replaced(folder, plan.given())
    tell_compiling()
    from archsim.cli.progress import watcher
    from archsim.runs.point_sweep import sweep_points
    from archsim.studies.comparison.comparison import STEPS_OF_REPORT, write_sample

    try:
        with watcher() as watching:
            results, selection = sweep_points(plan, folder, jobs or available_cores(), watching, scheduler)
    except KeyboardInterrupt:
        print(f"\ninterrupted; the runs that have ended are kept in {folder}: the same command goes on", file=sys.stderr)
        return INTERRUPTED
    _print_dropped(plan, selection)
    _print_best(plan, results)
    sample = write_sample(plan, folder, selection.kept)
    if sample is not None:
        print(f"{len(sample.runs)} of {sample.drawn_from:,} points also on the event engine, {STEPS_OF_REPORT} decode step each:")
        print_engine_errors(sample.runs)
    from archsim.studies.exploration.points_page import write_points_page

    print(f"results: {results}")
    page, notes = write_points_page(plan, results, selection.dropped.by_constraint, folder)
    print_notes(notes)
    print(f"report: {page}")
    return OK


def refuse_point(point: int | None) -> None:
    """Raises SpecError if a point is asked of an experiment that has none."""
    if point is not None:
        raise SpecError(f"--point {point}: the experiment has no sweep")


def _axes(plan: SweepPlan) -> str:
    count = len(plan.sweep.axes)
    return f"{count} {'axis' if count == 1 else 'axes'}"


def _print_points(plan: SweepPlan, selection) -> int:
    _print_dropped(plan, selection)
    table = grid("point", *_heads(plan), "system", "model", "batch", "policy", "assumptions")
    shown = selection.kept[:_LISTED]
    for number in shown:
        point = plan.point(number)
        cells = plan.shown(point).values()
        parts = (point.parts["system"].name, point.parts["model"].name, str(point.batch), point.parts["policy"].name, point.assumptions.label)
        table.add_row(str(number), *cells, *parts)
    console().print(table)
    if len(shown) < len(selection.kept):
        print(f"and {len(selection.kept) - len(shown):,} more; `--point N` prints one as an experiment")
    return OK


def _print_dropped(plan: SweepPlan, selection) -> None:
    """How many points run, and which constraint dropped how many."""
    parts = [f"{count:,} dropped by `{text}`" for text, count in selection.dropped.by_constraint.items()]
    if selection.dropped.repeats:
        parts.append(f"{selection.dropped.repeats:,} repeat another")
    print("; ".join([f"{len(selection.kept):,} of {plan.combinations:,} points run", *parts]))


def _print_best(plan: SweepPlan, results: Path) -> None:
    """The points of highest decode throughput."""
    from pyarrow import parquet

    names = ["point", "model", "batch", "policy", "throughput_tokens_per_s", "die_utilisation"]
    table = parquet.read_table(results, columns=names).sort_by([("throughput_tokens_per_s", "descending"), ("point", "ascending")])
    best = grid("point", *_heads(plan), "model", "batch", "policy", "tokens/s", "die use")
    for row in table.slice(0, _BEST).to_pylist():
        point = plan.point(row["point"])
        throughput = row["throughput_tokens_per_s"]
        told = ("–" if throughput is None else f"{throughput:,.0f}", f"{row['die_utilisation']:.0%}")
        best.add_row(str(point.index), *plan.shown(point).values(), point.parts["model"].name, str(point.batch), point.parts["policy"].name, *told)
    print("highest decode throughput:")
    console().print(best)


def _heads(plan: SweepPlan) -> list[str]:
    """The axes without their roots: narrow, and still telling."""
    return [".".join(axis.path[1:]) or axis.name for axis in plan.sweep.axes]
