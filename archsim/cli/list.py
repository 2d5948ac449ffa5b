"""``archsim list``: the names that an experiment may use."""

import argparse

from archsim.cli.exit_codes import OK


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", choices=("experiments", "systems", "models", "policies", "assumptions", "calibrations", "traffic")
    )


def run(args: argparse.Namespace) -> int:
    from archsim.specs.loading.describe import listing

    print(listing(args.what))
    return OK
