"""``archsim rtl lockstep``: a component beside its table, on random or recorded stimulus."""

import argparse

from archsim.cli.arguments import positive
from archsim.cli.exit_codes import DIFFERS, OK
from archsim.cli.rtl.arguments import add_parameters, add_run, combinations, known_block, parameters_of, recorded_in

NAMED = 5  # of what a stimulus did not cover
LANES = {"allocator": {"lanes": (1, 4, 8, 16)}}  # that run where none are given


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("block", metavar="BLOCK", help="allocator, select, sorter, pdu, atu or heatmap")
    parser.add_argument(
        "--events", "--blocks", dest="events", type=positive, default=1000, metavar="N",
        help="blocks of tokens, cycles, look-ups or words at random, at least, after the corners (default: 1000)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the stimulus (default: 0)")
    parser.add_argument("--lanes", metavar="N[,N]", help="of the allocator, as --set lanes=N (default: 1,4,8,16)")
    add_run(parser)
    add_parameters(parser)


def run(args: argparse.Namespace) -> int:
    """Print what was compared, by parameters, and the first difference of each. Raises SpecError for an unknown block
    or parameter.
    """
    block, differences = known_block(args.block), 0
    given = [*args.changes, *([f"lanes={args.lanes}"] if args.lanes else [])]
    of_run = recorded_in(args.recorded, block, args.events) if args.recorded else None
    if of_run:
        print(f"{block}: {len(of_run.given):,} recorded in {of_run.run}")
    for changes in combinations(block, given, LANES.get(block, {})):
        changes = (of_run.changes if of_run else {}) | changes
        parameters_of(block, changes)
        from microarch.rtl.lockstep import lockstep

        found = lockstep(block, args.events, args.seed, changes, given=of_run and of_run.given, cover=True)
        said = " ".join(f"{key}={value}" for key, value in changes.items())
        print(
            f"{block} {said}{' ' if said else ''}seed {args.seed}: {found.events:,} events, {found.cycles:,} cycles, "
            f"{found.differences} differences; covered {found.coverage}",
            flush=True,
        )
        if missed := found.coverage.missed:
            more = f" and {len(missed) - NAMED:,} more" if len(missed) > NAMED else ""
            print(f"  not covered: {'; '.join(missed[:NAMED])}{more}")
        if found.difference:
            print(f"  {found.difference}")
        differences += found.differences
    return DIFFERS if differences else OK
