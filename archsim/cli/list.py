"""``archsim list``: the names that an experiment may use."""

from __future__ import annotations

import argparse

from archsim.cli.arguments import OK
from archsim.cli.completion import _names


def add_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", choices=("experiments", "systems", "models", "policies", "assumptions", "calibrations", "traffic")
    )


def run_list(args: argparse.Namespace) -> int:
    from archsim.cli.heartbeat import begins

    begins(f"reading the {args.what} that there are")
    from archsim.specs.describe import listing  # takes a second to load

    print(listing(args.what))
    args.result = {"what": args.what, "names": _names("" if args.what == "experiments" else args.what)}
    return OK
