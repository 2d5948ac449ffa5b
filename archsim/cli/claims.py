"""``archsim compare --papers``: published numbers of papers beside runs of their experiments."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from archsim.base.answer import Answer, Grid, Part
from archsim.base.errors import capital, sentence
from archsim.cli import arguments
from archsim.evidence import claims_page

FOLDER = "reports/claims"


def add_claims(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "papers", nargs="*", metavar="PAPER", help="A paper, by its name in configs/papers or by file (default: all)."
    )
    parser.add_argument(
        "--recorded", action="store_true",
        help="Simulate nothing, and test the values that this code recorded, in the folder or as shipped "
        "(configs/papers/recorded.json). Papers whose values other code computed are left out.",
    )  # fmt: skip
    arguments.add_report(parser, FOLDER)
    arguments.add_jobs(parser)


def run_claims(args: argparse.Namespace) -> Answer:
    """Run what is missing; count what is reproduced and better than a guess; show the largest misses."""
    print("reading the papers' files ...", file=sys.stderr, flush=True)
    import archsim as ar
    from archsim.cli.printing import print_compiling
    from archsim.cli.progress import study
    from archsim.specs.papers import paper_names

    folder = Path(args.out or FOLDER)
    if args.recorded:
        found = ar.claims(args.papers, folder, recorded=True)
    else:
        print_compiling()
        with study(folder) as watching:
            found = ar.claims(args.papers, folder, args.jobs, watching)
    judged = {each.paper.paper for each in found}
    parts: list[Part] = []
    if left := [name for name in args.papers or paper_names() if Path(name).stem not in judged]:
        parts.append(
            f"Left out, because other code computed what is recorded of them: {', '.join(left)}. Simulate them: "
            f"archsim compare --papers {' '.join(left)}"
        )
    pages = [folder / each.paper.paper for each in found] if args.papers else [folder]
    return Answer(
        [*parts, *_parts(found), *(f"report: {page / 'index.html'}" for page in pages)],
        result=claims_page.as_json(found),
    )


def _parts(found: Sequence[claims_page.Claims]) -> Iterator[Part]:
    for each in found:
        yield from map(claims_page.answer_sentence, each.answers)
    yield claims_page.summary_sentence(found)
    for claims, judged in claims_page.largest_misses(found):
        unit, at = judged.group.unit, judged.place
        yield (
            f"Largest miss in {claims.paper.title}: {judged.group.what}{f' ({at})' if at else ''}. The published value "
            f"is {claims_page.published_text(judged, unit)} and the simulated "
            f"{claims_page.shown(judged.simulated, unit)}. {sentence(capital(judged.why))}"
        )
    names = tuple(name.replace("_", " ") for name in claims_page.VerdictCounts._fields)
    rows = [(each.paper.paper, *map(str, claims_page.counts_of([each]))) for each in found]
    yield Grid(("paper",), rows, names, title="published numbers")
