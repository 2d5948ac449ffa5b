"""``archsim check --trust``: the error of the nearest machine that was measured, by part of the time."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from archsim.base import verbs

if TYPE_CHECKING:
    from archsim.base.answer import Answer


def run_trust(args: argparse.Namespace) -> Answer:
    """Simulate one run shortly, and say what its time rests on. Raises ArchsimError."""
    from archsim.cli.printing import print_compiling
    from archsim.evidence.trust import trust
    from archsim.search.options import experiment_or_machine

    experiment, chosen = experiment_or_machine(args.file, args.overrides, args.model)
    print_compiling(of=experiment)
    choice = {name: getattr(args, name) for name in verbs.CHOSEN}
    found = trust(experiment, choice | ({"model": None} if chosen else {})).as_answer()
    if not chosen:
        return found
    return replace(found, parts=(*found.parts, chosen), result=found.result | {"chosen": chosen})
