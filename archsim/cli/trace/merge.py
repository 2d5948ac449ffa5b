"""``archsim trace merge``: write a store with all requests of several."""

import argparse
from pathlib import Path

from archsim.cli.arguments import add_store_out
from archsim.cli.exit_codes import OK


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stores", nargs="+", metavar="STORE")
    add_store_out(parser)


def run(args: argparse.Namespace) -> int:
    """Merge and print the store. Raises TraceError for stores of different models."""
    from archsim.base.cores import available_cores
    from archsim.cli.printing import print_store
    from archsim.workload.store.select import merge

    merge([Path(store) for store in args.stores], Path(args.out), args.jobs or available_cores(), args.replace)
    print_store(args.out)
    return OK
