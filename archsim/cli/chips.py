"""``archsim hardware chips``: chips that exist, beside what archsim says of their area, price and power."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archsim.report.answer import Answer


def add_chips(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sources", action="store_true", help="Print the source of every public figure.")


def run_chips(args: argparse.Namespace) -> Answer:
    """Every public figure beside archsim's, with its range, and what explains those outside their bar."""
    from archsim.studies.known_chips import chips_answer

    return chips_answer(args.sources)
