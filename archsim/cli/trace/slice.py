"""``archsim trace slice``: write a store with some requests of another."""

import argparse
from pathlib import Path

from archsim.cli.arguments import add_store_out, natural
from archsim.cli.exit_codes import OK


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE")
    parser.add_argument("--requests", type=_span, default=(0, None), metavar="A:B", help="requests A to B-1")
    parser.add_argument(
        "--subject", dest="subjects", action="append", default=[], metavar="NAME",
        help="only requests of this subject; repeatable",
    )
    add_store_out(parser)


def run(args: argparse.Namespace) -> int:
    """Slice and print the store. Raises TraceError for requests that the store does not have."""
    from archsim.base.cores import available_cores
    from archsim.cli.printing import print_store
    from archsim.workload.store.select import slice_entries, write_selection
    from archsim.workload.store.store import open_store

    store = open_store(args.store)
    first, last = args.requests
    entries = slice_entries(store, first, last, args.subjects)
    write_selection(store, entries, Path(args.out), args.jobs or available_cores(), args.replace)
    print_store(args.out)
    return OK


def _span(text: str) -> tuple[int, int | None]:
    first, colon, last = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r}: expected A:B, as in 0:100, :100 or 100:")
    return natural(first or "0"), natural(last) if last else None
