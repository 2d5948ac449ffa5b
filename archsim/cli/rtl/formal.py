"""``archsim rtl formal``: invariants of the components by induction."""

import argparse

from archsim.base.errors import ArchsimError, SpecError
from archsim.cli.exit_codes import DIFFERS, OK
from archsim.cli.rtl.arguments import benches


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("block", nargs="?", metavar="BLOCK", help="allocator, atu, heatmap or pdu (default: all)")


def run(args: argparse.Namespace) -> int:
    """Print what was proved of every component, at which size. Raises SpecError for a block without a claim and
    ArchsimError without the extra ``rtl``.
    """
    from microarch.rtl import missing

    benches()
    if (lacking := missing("pyosys")) is not None:
        raise ArchsimError(lacking)
    from microarch.rtl.formal import PROPERTIES, prove

    if args.block and args.block not in PROPERTIES:
        raise SpecError(f"nothing is claimed of {args.block!r} (of: {', '.join(PROPERTIES)})")
    failed = 0
    for block in [args.block] if args.block else PROPERTIES:
        for changes in PROPERTIES[block].SIZES:
            proof = prove(block, changes)
            said = " ".join(f"{key}={value}" for key, value in changes.items())
            told = f"proved by induction over {proof.steps} steps" if proof.proved else "not proved"
            print(f"{block} {said}: {proof.claim}: {told}", flush=True)
            if not proof.proved:
                print(f"  {proof.counterexample}")
            failed += not proof.proved
    return DIFFERS if failed else OK
