"""``archsim engines``: run a sample of an experiment on both engines, print how they differ."""

from __future__ import annotations

import argparse

from archsim.cli.arguments import add_experiment, positive
from archsim.cli.exit_codes import OK


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_experiment(parser)
    parser.add_argument("--sample", type=positive, metavar="N", default=40, help="runs drawn at random (default: 40)")
    parser.add_argument(
        "--steps", type=positive, metavar="N", default=3, help="decode steps of each run, at most (default: 3)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the errors by assumption set, then every run outside the limit with the reason."""
    import archsim as ar
    from archsim.cli.printing import print_compiling, print_engine_errors
    from archsim.cli.progress import watcher
    from archsim.specs.loading.library import load_planned
    from archsim.specs.sweeps.plan import SweepPlan

    planned = load_planned(args.file, args.overrides)
    print_compiling()
    with watcher() as watching:
        found = ar.engines(planned, args.sample, args.steps, watching)
    kind = "points" if isinstance(planned, SweepPlan) else "runs"
    steps = f"at most {found.decode_steps} decode {'step' if found.decode_steps == 1 else 'steps'}"
    print(f"{found.name}: {len(found.runs)} of {found.drawn_from:,} {kind} on both engines, {steps}")
    print_engine_errors(found.runs)
    return OK
