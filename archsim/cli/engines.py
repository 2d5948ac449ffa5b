"""``archsim compare --engines``: run a sample of an experiment on two engines, print how they differ."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from archsim.cli import arguments

if TYPE_CHECKING:
    from archsim.specs.experiment import ExperimentSpec
    from archsim.specs.plan import SweepPlan


def add_engines(parser: arguments.Parser) -> None:
    arguments.add_experiment(parser)
    parser.add_argument(
        "--runs",
        type=arguments.positive,
        metavar="N",
        default=40,
        help="How many runs to draw at random (default: 40).",
    )
    parser.spelled_before("--sample", "--runs")
    parser.add_argument(
        "--interpreted", action="store_true", help="Compare every column with engine: interpreted, which is slow."
    )
    parser.add_argument(
        "--steps",
        type=arguments.positive,
        metavar="N",
        default=3,
        help="The most decode steps of a run to simulate (default: 3).",
    )


def run_engines(args: argparse.Namespace) -> int:
    """Print the errors by assumption set, then every run outside the limit with the reason."""
    import archsim as ar
    from archsim.cli.printing import print_compiling, print_engine_errors, print_notes
    from archsim.cli.progress import watcher
    from archsim.specs.library import load_planned
    from archsim.specs.plan import SweepPlan

    planned = load_planned(args.file, args.overrides)
    print_compiling()
    if args.interpreted:
        return _interpret(planned, args)
    with watcher() as watching:
        found = ar.engines(planned, args.runs, args.steps, watching)
    kind = "points" if isinstance(planned, SweepPlan) else "runs"
    steps = f"at most {found.decode_steps} decode {'step' if found.decode_steps == 1 else 'steps'}"
    args.result = found.to_pandas().to_dict("records")
    print(f"{found.name}: {len(found.runs)} of {found.drawn_from:,} {kind} on both engines, {steps}")
    print_engine_errors(found.runs)
    print_notes((planned.experiment if isinstance(planned, SweepPlan) else planned).unread)
    return arguments.OK


def _interpret(planned: ExperimentSpec | SweepPlan, args: argparse.Namespace) -> int:
    """Print the column that differs most in each run; fails if one does by more than the order of floats explains."""
    from archsim.runs.engine_comparison import AGREES, sample, shorten
    from archsim.runs.interpreted_comparison import compare_interpreted
    from archsim.runs.plan import select
    from archsim.runs.simulator import Simulator

    selection = select(planned)
    points = map(selection.plan.point, sample(selection.kept, args.runs))
    runs = [shorten(run, args.steps) for run in selection.maker.runs(points)]
    worst, args.result = 0.0, []
    for each in compare_interpreted(runs, Simulator(selection.maker.traces)):
        said = "all columns equal" if each.share == 0.0 else f"{each.column} {each.event:.12g} {each.interpreted:.12g}"
        print(f"  {each.run}: {said}", flush=True)
        worst = max(worst, each.share)
        args.result.append(each)
    print(f"{len(runs)} runs, compiled and interpreted: largest difference {worst:.1e}")
    return arguments.OK if worst <= AGREES else arguments.DIFFERS
