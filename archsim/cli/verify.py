"""``archsim verify``: run a report again from its manifest, and say which numbers moved."""

import argparse
import sys
from pathlib import Path

from archsim.cli.arguments import add_jobs, add_json
from archsim.cli.exit_codes import DIFFERS, OK

_SHOWN = 20  # columns that moved


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("report", metavar="REPORT", help="folder of a sweep, serve or explore, or its manifest.yaml")
    add_jobs(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print what moved; status 1 if anything did. Raises ArchsimError for a report that was changed."""
    print(f"reading {args.report} ...", file=sys.stderr, flush=True)  # before slow imports
    import archsim as ar
    from archsim.cli.printing import print_compiling
    from archsim.cli.progress import watcher

    print_compiling()
    found = ar.verify(Path(args.report), args.jobs, watcher)
    args.result = found
    _print(found)
    return DIFFERS if found.moved else OK


def _print(found) -> None:
    from archsim.cli.printing import console, grid, printable

    table = grid("", "made by", "run again by")
    for name, made, now in found.facts():
        table.add_row(name, printable(made), now if now != made else "the same")
    console().print(table)
    compared = f"{found.rows:,} rows, {found.numbers:,} cells"
    if not found.moved:
        print(f"{found.folder}: {compared}: none moved")
        return
    print(f"{found.folder}: {compared}: {len(found.moved)} columns moved")
    table = grid("file", "column", numbers=("rows", "before", "after", "change"))
    table.add_column("moved most at")
    for each in sorted(found.moved, key=lambda each: -abs(each.change or 0))[:_SHOWN]:
        change = "–" if each.change is None else f"{each.change:+.2%}"
        cells = each.file, each.column, str(each.rows), each.before, each.after, change, each.at
        table.add_row(*map(printable, cells))
    console().print(table)
    if len(found.moved) > _SHOWN:
        print(f"and {len(found.moved) - _SHOWN} more columns; --json has all")
