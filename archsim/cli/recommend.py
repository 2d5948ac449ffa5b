"""``archsim recommend``: what to serve a model with, within limits and a budget."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.base import verbs
from archsim.cli import arguments, heartbeat

if TYPE_CHECKING:
    from archsim.base.answer import Answer, Grid, Part
    from archsim.serving.answers.recommendation import Recommendation


def run_recommend(args: argparse.Namespace) -> Answer:
    """The answer, the table and the reasons. Raises ArchsimError."""
    print("reading ...", file=sys.stderr, flush=True)  # before slow imports
    import archsim as ar
    from archsim.base.answer import Answer
    from archsim.base.errors import SpecError
    from archsim.cli.printing import print_compiling
    from archsim.cli.progress import resumes
    from archsim.serving.answers.recommendation import answer, start_script, why

    if args.loads and not args.out:
        raise SpecError("--loads: a placement is written to a file. Give --out DIR, too")
    print_compiling("serving")
    with resumes(Path(args.out)) if args.out else nullcontext():
        found = ar.recommend(**arguments.options_from(args, verbs.RECOMMEND), report=heartbeat.begins)
    if args.out:
        names = sorted(each.name for each in Path(args.out).iterdir() if each.name not in ("runs", ".lock"))
        files = [f"Written to {args.out}: {', '.join(names)}"]
    else:
        lines = [line for line in start_script(found.best).splitlines() if line and not line.startswith("#!")]
        files = ["Start it with these lines (--out DIR writes them, and a file for `archsim serve`):", *lines]
    parts: list[Part] = [answer(found), _table(found), *(f"- {each}" for each in why(found)), *files]
    return Answer(parts, found.notes, found.as_json())


def _table(found: Recommendation) -> Grid:
    from archsim.base.answer import Grid
    from archsim.serving.answers.question import NAMES
    from archsim.show.units import interval

    rows = []
    for each in (found.best, *found.others):
        usd = "–" if each.usd_per_million != each.usd_per_million else f"{each.usd_per_million:.2f}"
        rate, low, high = interval(each.rate_per_s, each.low, each.high)
        rows.append((
            NAMES[each.kind.engine], each.sizes, each.kind.recipe,
            f"{each.choice.max_num_seqs} / {each.choice.max_num_batched_tokens}",
            f"{each.devices} {each.kind.offer.gpu}", rate, f"{low} to {high}", usd,
            interval(*each.upkeep.j_per_token)[0], f"{each.probability:.0%}",
        ))  # fmt: skip
    return Grid(
        ("engine", "sizes", "precision", "limits"), rows, title="the best, and what comes close",
        numbers=("GPUs", "requests/s", "80 % range", "USD/M tokens", "J/token", "best with"),
    )  # fmt: skip
