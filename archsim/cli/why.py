"""``archsim why``: what limits a step, and what would help; without a step, the worst ones."""

import argparse
import sys

from archsim.cli.arguments import CHOSEN, add_chosen, add_experiment, add_json, natural, positive
from archsim.cli.exit_codes import OK
from archsim.cli.heartbeat import doing

_WORST = 10


def add(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser, "experiment, or folder of a report")
    add_chosen(parser)
    parser.add_argument("--step", type=natural, metavar="N", help="iteration (0: prefill)")
    parser.add_argument("--layer", type=natural, metavar="N", help="layer, as the model numbers it")
    parser.add_argument("--worst", type=positive, default=_WORST, metavar="N", help=f"steps listed (default: {_WORST})")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print five lines, or the worst steps. Raises ArchsimError for a step that the run does not have."""
    print(f"reading {args.file} ...", file=sys.stderr, flush=True)  # before slow imports
    from archsim.specs.loading.library import load_experiment

    experiment = load_experiment(args.file, args.overrides)
    import archsim as ar
    from archsim.cli.printing import console, grid, print_compiling
    from archsim.runs.plan import choose

    chosen = {name: getattr(args, name) for name in CHOSEN}
    choose(experiment, **chosen)  # refuses names before anything is said to be simulated
    print_compiling()
    given = args.step is not None or args.layer is not None
    print(f"simulating the run{', then what would help' if given else ''} ...", file=sys.stderr, flush=True)
    found = ar.why(experiment, step=args.step, layer=args.layer, worst=args.worst, told=doing, **chosen)
    args.result = found
    if given:
        print(repr(found))
        return OK
    from archsim.studies.why import HEADS, table_of

    table = grid(*HEADS, title=found.run)
    for cells in table_of(found.rows):
        table.add_row(*cells)
    console().print(table)
    first = found.rows[0]
    print(f"What would help the first: the same command with --step {first['step']} --layer {first['layer']}")
    return OK
