"""``archsim why``: what limits a step, and what would help; without a step, the worst ones."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from archsim.cli import arguments, heartbeat

_WORST = 10


def add_why(parser: argparse.ArgumentParser) -> None:
    arguments.add_experiment(parser, "The experiment, a file of `archsim serve`, or the folder of a report")
    arguments.add_chosen(parser)
    parser.add_argument(
        "--step", type=arguments.natural, metavar="N", help="Explain a layer of this iteration (0: prefill)."
    )
    parser.add_argument(
        "--layer", type=arguments.natural, metavar="N", help="Explain this layer in a step, as the model numbers it."
    )
    parser.add_argument(
        "--worst",
        type=arguments.positive,
        default=_WORST,
        metavar="N",
        help=f"How many of the slowest layer-steps to list (default: {_WORST}).",
    )


def run_why(args: argparse.Namespace) -> int:
    """Print five lines, or the worst steps. Raises ArchsimError for a step that the run does not have."""
    print(f"reading {args.file} ...", file=sys.stderr, flush=True)  # before slow imports
    from archsim.specs.file_kinds import SERVE
    from archsim.specs.library import kind_of_file, load_experiment

    if kind_of_file(args.file) == SERVE:
        return _run_deployment(args)
    experiment = load_experiment(args.file, args.overrides)
    import archsim as ar
    from archsim.cli.printing import console, grid, print_compiling, print_notes
    from archsim.runs.choice import choose
    from archsim.runs.results import damage_told
    from archsim.studies.why import HEADS, Why, run_that_matters, table_of

    chosen = {name: getattr(args, name) for name in arguments.CHOSEN}
    given = args.step is not None or args.layer is not None
    picked = Path(args.file).is_dir() and not given and not any(chosen.values())
    if picked:
        chosen |= run_that_matters(Path(args.file))
    print_notes(damage_told(Path(args.file)))
    choose(experiment, **chosen)  # refuses names before anything is said to be simulated
    print_compiling()
    print("simulating the run, then what would help ...", file=sys.stderr, flush=True)
    found = ar.why(experiment, step=args.step, layer=args.layer, worst=args.worst, report=heartbeat.begins, **chosen)
    assert isinstance(found, Why)
    args.result = found
    print(found.answer)
    print_notes((*found.notes, *experiment.unread))
    if given:
        print(repr(found).removeprefix(f"{found.answer}\n"))
        return arguments.OK
    table = grid(*HEADS, title=found.run)
    for cells in table_of(found.rows):
        table.add_row(*cells)
    console().print(table)
    if found.clock:
        print(found.clock)
    if picked:
        print("This is the fastest run of the report at its largest batch.")
    return arguments.OK


def _run_deployment(args: argparse.Namespace) -> int:
    """Where the time of a deployment goes, and what doubling each rate would change."""
    import archsim as ar
    from archsim.cli.printing import console, grid, print_compiling, print_notes
    from archsim.search.deployments import ServedWhy

    print_compiling("serving")
    found = ar.why(args.file, args.overrides, report=heartbeat.begins)
    assert isinstance(found, ServedWhy)
    args.result = found.as_json()
    print(found.sentence)
    table = grid("with", numbers=("mean TTFT", "mean TPOT", "goodput"))
    for each in found.levers:
        table.add_row(each.what, f"{each.ttft:+.1%}", f"{each.tpot:+.1%}", f"{each.goodput:+.1%}")
    console().print(table)
    for said in found.outcome.why_slow:
        print(f"- {said}")
    print_notes(found.outcome.notes)
    return arguments.OK
