"""``archsim hardware chips``: chips that exist, beside what archsim says of their area, price and power."""

from __future__ import annotations

import argparse

from archsim.cli import arguments


def add_chips(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sources", action="store_true", help="Print the source of every public figure.")


def run_chips(args: argparse.Namespace) -> int:
    """Print every public figure beside archsim's, with its range, and what explains those outside their bar."""
    from archsim.cli.heartbeat import begins
    from archsim.cli.printing import print_compiling
    from archsim.evidence.known_chips import known_evidence

    begins("simulating chips and machines whose figures are public")
    print_compiling("serving")
    found = known_evidence(args.sources)
    print(*found.lines(), *found.left_out, *found.notes, sep="\n")
    args.result = found.as_json()
    return arguments.OK
