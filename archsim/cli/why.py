"""``archsim why``: what limits a step, and what would help; without a step, the worst ones."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.base import verbs
from archsim.cli import heartbeat

if TYPE_CHECKING:
    from archsim.base.answer import Answer


def run_why(args: argparse.Namespace) -> Answer:
    """Five lines, or the worst steps. Raises ArchsimError for a step that the run does not have."""
    print(f"reading {args.file} ...", file=sys.stderr, flush=True)  # before slow imports
    from archsim.specs.file_kinds import SERVE
    from archsim.specs.library import kind_of_file, load_experiment

    if kind_of_file(args.file) == SERVE:
        return _of_deployment(args)
    import archsim as ar
    from archsim.cli.printing import print_compiling, print_notes
    from archsim.questions.why import Why, fastest_run
    from archsim.runs.choice import choose
    from archsim.runs.results import damage_notes

    chosen = {name: getattr(args, name) for name in verbs.CHOSEN}
    if picked := fastest_run(args.file, args.overrides, args.step, args.layer, chosen):
        experiment, chosen, last = picked
    else:
        experiment, last = load_experiment(args.file, args.overrides), ""
    print_notes(damage_notes(Path(args.file)))
    choose(experiment, **chosen)  # refuses names before anything is said to be simulated
    print_compiling()
    print("simulating the run, then what would help ...", file=sys.stderr, flush=True)
    found = ar.why(experiment, step=args.step, layer=args.layer, worst=args.worst, report=heartbeat.begins, **chosen)
    assert isinstance(found, Why)
    answer = found.as_answer()
    return replace(answer, parts=(*answer.parts, *filter(None, [last])), notes=(*found.notes, *experiment.unread))


def _of_deployment(args: argparse.Namespace) -> Answer:
    """Where the time of a deployment goes, and what doubling each rate would change."""
    import archsim as ar
    from archsim.base.answer import Answer, Grid
    from archsim.cli.printing import print_compiling
    from archsim.search.served_why import ServedWhy

    print_compiling("serving")
    chosen = {name: getattr(args, name) for name in verbs.CHOSEN}
    found = ar.why(args.file, args.overrides, step=args.step, layer=args.layer, report=heartbeat.begins, **chosen)
    assert isinstance(found, ServedWhy)
    table = Grid(("with",), found.changes, ("mean TTFT", "mean TPOT", "goodput"))
    slow = found.outcome.why_slow
    notes = [each for each in found.outcome.notes if each not in slow]
    return Answer((found.sentence, table, *(f"- {said}" for said in slow)), notes, found.as_json())
