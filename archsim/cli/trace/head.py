"""``archsim trace head``: print the first rows of a store."""

import argparse

from archsim.cli.arguments import natural
from archsim.cli.exit_codes import OK


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE")
    parser.add_argument("-n", dest="rows", type=natural, default=5, metavar="N", help="number of tokens (default: 5)")


def run(args: argparse.Namespace) -> int:
    """Print the rows. Raises TraceError for a store of loads."""
    from archsim.workload.store.describe import head_of
    from archsim.workload.store.store import open_store

    for line in head_of(open_store(args.store), args.rows):
        print(line)
    return OK
