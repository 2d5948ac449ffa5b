"""``archsim compare --engines``: run a sample of an experiment on two engines, print how they differ."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from archsim.base import verbs
from archsim.cli import arguments

if TYPE_CHECKING:
    from archsim.base.answer import Answer
    from archsim.specs.experiment import ExperimentSpec
    from archsim.specs.plan import SweepPlan


def add_engines(parser: arguments.Parser) -> None:
    arguments.add_options(parser, verbs.ENGINES)
    parser.spelled_before("--sample", "--runs")


def run_engines(args: argparse.Namespace) -> Answer | int:
    """The errors by assumption set, then every run outside the limit with the reason."""
    import archsim as ar
    from archsim.cli.printing import print_compiling
    from archsim.cli.progress import watcher
    from archsim.specs.library import load_planned
    from archsim.specs.plan import SweepPlan

    planned = load_planned(args.file, args.overrides)
    print_compiling()
    if args.interpreted:
        return _interpret(planned, args)
    with watcher() as watching:
        asked = arguments.options_from(args, verbs.ENGINES, "experiment", "overrides", "interpreted")
        found = ar.engines(planned, watcher=watching, **asked)
    if isinstance(planned, SweepPlan):
        return replace(found.as_answer("points"), notes=planned.experiment.unread)
    return replace(found.as_answer(), notes=planned.unread)


def _interpret(planned: ExperimentSpec | SweepPlan, args: argparse.Namespace) -> int:
    """Print the column that differs most in each run; fails if one does by more than the order of floats explains."""
    from archsim.runs.engine_comparison import AGREES, sample, shorten
    from archsim.runs.interpreted_comparison import compare_interpreted
    from archsim.runs.plan import select
    from archsim.runs.simulator import Simulator

    selection = select(planned)
    points = map(selection.plan.point, sample(selection.kept, args.sample))
    runs = [shorten(run, args.steps) for run in selection.maker.runs(points)]
    worst, args.result = 0.0, []
    for each in compare_interpreted(runs, Simulator(selection.maker.traces)):
        said = "all columns equal" if each.share == 0.0 else f"{each.column} {each.event:.12g} {each.interpreted:.12g}"
        print(f"  {each.run}: {said}", flush=True)
        worst = max(worst, each.share)
        args.result.append(each)
    print(f"{len(runs)} runs, compiled and interpreted: largest difference {worst:.1e}")
    return arguments.OK if worst <= AGREES else arguments.DIFFERS
