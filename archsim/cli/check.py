"""``archsim check`` says whether a file is valid, whether the points of an experiment can run, and what it contains."""

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

from archsim.base.errors import ArchsimError
from archsim.base.own_code import NO_CODE, without_code
from archsim.cli.arguments import DIFFERS, OK, add_experiment, add_jobs


def add_check(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser, "The file to check")
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="Also print the tables of numbers that `archsim sure` samples, with their ranges and sources.",
    )
    parser.add_argument(
        "--no-code",
        action="store_true",
        help=f"import no module that the file names: what only its code can say is not checked (also: {NO_CODE}=1)",
    )


def run_check(args: argparse.Namespace) -> int:
    """Print what the file contains. Raises ArchsimError, which names the file, for one that is not valid or cannot
    run.
    """
    from archsim.api import check
    from archsim.cli.printing import print_notes

    with without_code() if args.no_code else nullcontext():
        try:
            found = check(args.file, args.overrides, lambda text: print(text, file=sys.stderr, flush=True))
        except ArchsimError as error:
            if Path(args.file).name in str(error):
                raise
            raise ArchsimError(f"{args.file}: {error}") from error
    print(f"{args.file}: {found!r}", flush=True)
    print_notes(found.notes)
    if args.verbose:
        print("\n".join(found.ranges))
    elif found.ranges:
        print("--verbose lists the numbers that `archsim sure` samples, with their ranges and sources.")
    details = (*found.details, *found.ranges)
    args.result = {"file": args.file, "summary": found.summary, "details": details, "notes": found.notes}
    return OK


# ``archsim check --report``: run a report again from its manifest, and say which numbers moved.

_SHOWN, _NAMES = 20, 4  # columns that moved; files that are not compared


def add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("report", metavar="REPORT", help="Folder of a report of sweep or serve, or its manifest.yaml.")
    add_jobs(parser)


def run_verify(args: argparse.Namespace) -> int:
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
    from archsim.base.errors import printable
    from archsim.cli.printing import console, grid

    table = grid("", "made by", "run again by")
    for name, made, now in found.facts():
        table.add_row(name, printable(made), now if now != made else "the same")
    console().print(table)
    compared = (
        f"{found.folder}: {found.numbers:,} cells in {found.rows:,} rows of {len(found.files)} files were compared"
    )
    for why in dict.fromkeys(found.not_compared.values()):
        names = [name for name, reason in found.not_compared.items() if reason == why]
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        print(printable(f"Not compared: {', '.join(names[:_NAMES])}{more}: {why}."))
    if not found.moved:
        print(f"{compared}. None has changed.")
        return
    print(f"{compared}. {len(found.moved)} column{' has' if len(found.moved) == 1 else 's have'} changed.")
    table = grid("file", "column", numbers=("rows", "before", "after", "change"))
    table.add_column("changed most at")
    for each in sorted(found.moved, key=lambda each: -abs(each.change or 0))[:_SHOWN]:
        change = "–" if each.change is None else f"{each.change:+.2%}"
        cells = each.file, each.column, str(each.rows), each.before, each.after, change, each.at
        table.add_row(*map(printable, cells))
    console().print(table)
    if len(found.moved) > _SHOWN:
        print(f"{len(found.moved) - _SHOWN} more columns have changed. --json prints all of them.")
