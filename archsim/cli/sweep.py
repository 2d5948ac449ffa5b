"""``archsim sweep``: run every combination of an experiment, or every point of its ``sweep:``, and report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.base import verbs
from archsim.base.host import available_cores
from archsim.cli import arguments

if TYPE_CHECKING:
    from archsim.questions.comparison import SweepReport
    from archsim.runs.plan import Selection
    from archsim.runs.results import Results
    from archsim.specs.plan import SweepPlan


_MOST_CHECKED = 20_000  # points that a dry run looks at one by one, a millisecond each
_SAMPLED = 200  # points of a larger sweep


def run_sweep(args: argparse.Namespace) -> int:
    if not args.dry_run and args.point is None:
        print(f"reading {args.file} ...", file=sys.stderr, flush=True)  # before slow imports
    from archsim.specs.library import load_planned
    from archsim.specs.plan import SweepPlan, plan_without_axes

    planned = load_planned(args.file, args.overrides)
    plan = planned if isinstance(planned, SweepPlan) else plan_without_axes(planned)
    if args.point is not None:
        return _print_point(plan, args)
    if args.dry_run:
        print(f"{plan.experiment.name}: {_size(plan)}", flush=True)
        return _dry_run(plan, args)
    return _sweep(plan, args)


def _sweep(plan: SweepPlan, args: argparse.Namespace) -> int:
    from archsim.cli.printing import print_answer, print_compiling, print_replaced, report_folder
    from archsim.show.units import count_of

    folder = report_folder(plan.experiment.name, args.out)
    workers = args.scheduler or count_of(args.jobs or available_cores(), "job")
    print(f"{plan.experiment.name}: {_size(plan)}, {workers} → {folder}", flush=True)
    print_compiling(of=plan.experiment)
    from archsim.cli.progress import study

    with study(folder) as watching:
        watching.phase("loading the simulator")
        from archsim.runs.plan import select
        from archsim.runs.run_cost import cost_sentence
        from archsim.runs.sweep import sweep_selected

        selection = select(plan, watching.phase)
        cores = min(args.jobs or available_cores(), available_cores())
        watching.phase("running" if args.scheduler else f"running; {cost_sentence(plan, cores)}")
        print_replaced(folder, plan.given())
        from archsim.questions.comparison import failures_on_page, write_sweep_report
        from archsim.uncertainty.ranges import WORLDS
        from archsim.uncertainty.sure import sure_into

        with failures_on_page(plan.experiment.name, folder):
            results = sweep_selected(selection, folder, args.jobs, watching)
        sure = None
        if args.samples:
            sure = sure_into(selection, args.samples, folder, args.jobs, watching)
        sample = "running a sample on both engines, " if plan.sweep.axes else ""
        watching.phase(f"{sample}writing the page")
        worlds = WORLDS if args.samples is None else min(args.samples, WORLDS)
        report = write_sweep_report(selection, folder, worlds, args.jobs, watching)
    args.result = {"answer": report.answer, "rows": results.runs.rows}
    if report.answer:
        print(report.answer)
    _print_results(selection, results, folder)
    if sure is not None:
        args.result["sure"] = sure.plain()
        print_answer(sure.as_answer())
    _print_report(report, folder if plan.sweep.axes else None)
    return arguments.OK


def _print_results(selection: Selection, results: Results, folder: Path) -> None:
    from archsim.cli.sweep_tables import print_best, print_dropped, print_speedups, print_wafers
    from archsim.questions.wafers import is_drawn

    plan = selection.plan
    if plan.sweep.axes:
        print_dropped(selection)
        (print_wafers if is_drawn(plan) else print_best)(plan, folder)
    else:
        print_speedups(results, [policy.name for policy in plan.experiment.policies])


def _print_report(report: SweepReport, folder: Path | None) -> None:
    """folder: where the table of points is, if there are axes."""
    from archsim.cli.printing import print_notes, print_parts
    from archsim.questions.comparison import STEPS_OF_REPORT, errors_of

    if report.sample is not None:
        sample, noun = report.sample, "runs" if folder is None else "points"
        drawn = f"{len(sample.runs)} of {sample.drawn_from:,} {noun}"
        print(f"{drawn} also run on the event engine, {STEPS_OF_REPORT} decode step each:")
        print_parts(errors_of(sample.runs))
    if folder is not None:
        print(f"results: {folder / 'results.parquet'}")
    print_notes(report.notes)
    print(f"report: {report.page}")


def _dry_run(plan: SweepPlan, args: argparse.Namespace) -> int:
    """Print every run of an experiment and how it fits in memory; of a sweep with axes, the first points."""
    from archsim.cli.sweep_tables import print_dropped, print_points, print_rooms
    from archsim.runs.plan import drawn, select
    from archsim.runs.run_cost import cost_sentence

    print(cost_sentence(plan, available_cores()), flush=True)
    if not plan.sweep.axes:
        runs = select(plan, refuse=False).runs()
        args.result = {"runs": [run.name for run in runs]}
        print_rooms(runs)
        return arguments.OK
    among = drawn(plan, _SAMPLED) if plan.combinations > _MOST_CHECKED else None
    selection = select(plan, lambda text: print(text, file=sys.stderr, flush=True), among=among)
    args.result = {"points": len(selection.kept), "of": plan.combinations, "dropped": selection.dropped.total}
    print_dropped(selection, "would run")
    print_points(selection)
    return arguments.OK


def _print_point(plan: SweepPlan, args: argparse.Namespace) -> int:
    from archsim.base.errors import SpecError
    from archsim.base.yaml import dump_yaml

    if not plan.sweep.axes:
        raise SpecError(f"--point {args.point}: the experiment has no `sweep:`")
    args.result = plan.resolved(plan.point(args.point))
    sys.stdout.write(dump_yaml(args.result))
    return arguments.OK


def _size(plan: SweepPlan) -> str:
    if not plan.sweep.axes:
        from archsim.show.units import count_of

        return count_of(plan.combinations, "run")
    axes = len(plan.sweep.axes)
    return f"{axes} {'axis' if axes == 1 else 'axes'}, {plan.combinations:,} points"


# ``archsim sweep --figure``: a figure of a report as a file for print.


def add_figure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("report", metavar="REPORT", help="Folder of a report.")
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="Which figure to write (default: list those that the report has)."
    )
    parser.add_argument(
        "--columns", type=int, choices=(1, 2), help="Width in columns of a paper: 1 is 252 pt, 2 is 516 pt "
        "(default: 1, or 2 for several panels).",
    )  # fmt: skip
    parser.add_argument("--font", type=verbs.positive, metavar="PT", help="Size of the text, in pt (default: 8).")
    arguments.add_file(parser, "File to write, whose ending (.pdf, .png or .svg) says its kind", "NAME.pdf")


def run_figure(args: argparse.Namespace) -> int:
    """Write the figure, or list their names. Raises ArchsimError for a name that the report does not have."""
    from pathlib import Path

    from archsim.show.printed_figures import FONT_PT, names_of, write_figure

    if args.name is None and args.out is None:
        args.result = {"figures": dict(names_of(Path(args.report)))}
        for name, about in args.result["figures"].items():
            print(f"{name:<10}  {about}")
        return arguments.OK
    file = arguments.file_out(args.out, f"{args.name}.pdf")
    written = write_figure(Path(args.report), args.name or "", file, args.columns, args.font or FONT_PT)
    args.result = {"figure": str(written)}
    print(f"figure: {written}")
    return arguments.OK
