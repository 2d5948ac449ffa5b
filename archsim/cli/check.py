"""``archsim check`` says whether a file is valid, whether the points of an experiment can run, and what it contains."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.base.errors import ArchsimError
from archsim.base.own_code import NO_CODE, without_code
from archsim.cli.arguments import add_experiment

if TYPE_CHECKING:
    from archsim.base.answer import Answer


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


def run_check(args: argparse.Namespace) -> Answer:
    """What the file contains. Raises ArchsimError for one that is not valid or cannot run."""
    from archsim.api import check
    from archsim.base.answer import Answer

    with without_code() if args.no_code else nullcontext():
        try:
            found = check(args.file, args.overrides, lambda text: print(text, file=sys.stderr, flush=True))
        except ArchsimError as error:
            if Path(args.file).name in str(error):
                raise
            raise ArchsimError(f"{args.file}: {error}") from error
    more = "--verbose lists the numbers that `archsim sure` samples, with their ranges and sources."
    ranges = found.ranges if args.verbose else (more,) if found.ranges else ()
    details = (*found.details, *found.ranges)
    result = {"file": args.file, "summary": found.summary, "details": details, "notes": found.notes}
    return Answer((f"{args.file}: {found!r}", *ranges), found.notes, result)


# ``archsim check --report``: run a report again from its manifest, and say which numbers moved.


def run_verify(args: argparse.Namespace) -> Answer:
    """What moved; status 1 if anything did. Raises ArchsimError for a report that was changed."""
    print(f"reading {args.report} ...", file=sys.stderr, flush=True)  # before slow imports
    import archsim as ar
    from archsim.cli.printing import print_compiling
    from archsim.cli.progress import watcher

    print_compiling()
    return ar.verify(Path(args.report), args.jobs, watcher).as_answer()
