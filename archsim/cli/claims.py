"""``archsim claims``: published numbers of papers beside runs of their experiments."""

import argparse
import sys
from pathlib import Path

from archsim.cli.arguments import add_jobs, add_report
from archsim.cli.exit_codes import OK

FOLDER = "reports/claims"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("papers", nargs="*", metavar="PAPER", help="name or file of configs/papers (default: all)")
    add_report(parser, FOLDER)
    add_jobs(parser)


def run(args: argparse.Namespace) -> int:
    """Run what is missing, and print how many numbers are met, and the largest misses."""
    print("reading the papers' files ...", file=sys.stderr, flush=True)
    import archsim as ar
    from archsim.cli.printing import print_compiling, print_kept
    from archsim.cli.progress import watcher

    folder = Path(args.out or FOLDER)
    print_compiling()
    try:
        with watcher() as watching:
            found = ar.claims(args.papers, folder, args.jobs, watching)
    except KeyboardInterrupt:
        return print_kept(folder)
    _print(found)
    pages = [folder / each.paper.paper for each in found] if args.papers else [folder]
    for page in pages:
        print(f"report: {page / 'index.html'}")
    return OK


def _print(found) -> None:
    from archsim.cli.printing import console, grid
    from archsim.studies.claims import page

    for each in found:
        for answer in each.answers:
            print(page.answer_sentence(answer))
    print(page.summary_sentence(found))
    for claims, judged in page.largest_misses(found):
        unit, at = judged.group.unit, page.place_of(judged)
        print(
            f"largest miss: {claims.paper.title}: {judged.group.what}{f' ({at})' if at else ''}: published "
            f"{page.published(judged, unit)}, simulated {page.shown(judged.simulated, unit)}: {judged.why}"
        )
    names = tuple(name.replace("_", " ") for name in page.Counts._fields)
    table = grid("paper", title="published numbers", numbers=names)
    for each in found:
        table.add_row(each.paper.paper, *map(str, page.counts_of([each])))
    console().print(table)
