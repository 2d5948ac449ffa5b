"""``archsim trace sample``: write a store of requests drawn at random."""

import argparse
from pathlib import Path

from archsim.cli.arguments import add_store_out, natural, positive
from archsim.cli.exit_codes import OK


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE")
    parser.add_argument("-n", dest="requests", type=positive, required=True, metavar="N", help="number of requests")
    parser.add_argument("--seed", type=natural, default=0, metavar="N")
    add_store_out(parser)


def run(args: argparse.Namespace) -> int:
    """Sample and print the store. Raises TraceError for more requests than the store has."""
    from archsim.base.cores import available_cores
    from archsim.cli.printing import print_store
    from archsim.workload.store.select import sample_entries, write_selection
    from archsim.workload.store.store import open_store

    store = open_store(args.store)
    entries = sample_entries(store, args.requests, args.seed)
    write_selection(store, entries, Path(args.out), args.jobs or available_cores(), args.replace)
    print_store(args.out)
    return OK
