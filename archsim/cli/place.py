"""``archsim place``: from recorded loads to a placement that a serving engine starts with."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from archsim.base import verbs
from archsim.cli import arguments

if TYPE_CHECKING:
    from archsim.base.answer import Answer


def run_place(args: argparse.Namespace) -> Answer:
    """Place, and say what it gains and costs. Raises ArchsimError for what does not fit."""
    import archsim as ar
    from archsim.cli.printing import print_compiling

    print_compiling()
    return ar.place(**arguments.options_from(args, verbs.PLACEMENT)).as_answer()
