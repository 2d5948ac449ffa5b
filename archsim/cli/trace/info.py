"""``archsim trace info``: print what a store contains."""

import argparse

from archsim.cli.exit_codes import OK


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE")
    parser.add_argument("--verify", action="store_true", help="read everything and check every checksum")


def run(args: argparse.Namespace) -> int:
    """Print the store. Raises TraceError if it is damaged."""
    from archsim.cli.printing import print_store

    if args.verify:
        from archsim.workload.store.store import open_store
        from archsim.workload.store.verify import verify

        verify(open_store(args.store))
        print("all checksums match")
    print_store(args.store)
    return OK
