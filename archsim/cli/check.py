"""``archsim check``: whether a file is valid, and what it contains."""

from __future__ import annotations

import argparse

from archsim.cli.arguments import add_experiment
from archsim.cli.exit_codes import OK


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_experiment(parser, "file to check")


def run(args: argparse.Namespace) -> int:
    """Print one line."""
    from archsim.api.loading import load

    print(f"{args.file}: {_summary(load(args.file, args.overrides), args.file)}")
    return OK


def _summary(found, file: str) -> str:
    from archsim.api.loading import ExplorationPlan
    from archsim.specs.loading.describe import summary, summary_of_serving, summary_of_sweep
    from archsim.specs.loading.serving import Serving
    from archsim.specs.sweeps.plan import SweepPlan
    from archsim.specs.text.fields import Spec

    match found:
        case Spec():
            return summary(found)
        case ExplorationPlan():
            return summary_of_sweep(found.plan)
        case SweepPlan():
            return summary_of_sweep(found)
        case Serving():
            return summary_of_serving(found)
    from archsim.workload.generated.traffic_presets import model_of

    return f"ok, a valid traffic preset of {model_of(file)}"
