"""``archsim compare``: options as well as each can be used, designs at one batch, or deployments, side by side."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.base import verbs
from archsim.cli import arguments, heartbeat

if TYPE_CHECKING:
    from archsim.base.answer import Answer


def run_compare(args: argparse.Namespace) -> Answer:
    """What differs, or which option serves more; write the page."""
    import archsim as ar
    from archsim.base.answer import Answer
    from archsim.cli.printing import print_compiling, print_notes
    from archsim.cli.progress import study
    from archsim.questions.designs import DesignComparison
    from archsim.questions.designs_page import as_answer
    from archsim.runs.results import damage_notes
    from archsim.search.compare import OptionComparison
    from archsim.search.options import vary_of

    print_compiling()
    folder = Path(args.out or Path("reports") / _folder_name(args))
    for each in dict.fromkeys(filter(None, (args.inside, *args.sides))):
        print_notes(damage_notes(Path(each)))
    print("comparing ...", file=sys.stderr, flush=True)
    asked = arguments.options_from(args, verbs.COMPARE, "sides", "vary", "out")
    with study(folder) as watching:
        found = ar.compare(
            *args.sides, vary=vary_of(args.vary), out=folder, report=heartbeat.begins, watcher=watching, **asked
        )
    if isinstance(found, DesignComparison):
        answer = as_answer(found)
        sure = found.sure.as_answer() if found.sure is not None else Answer(())
    else:
        answer = Answer((found.sentence,), result=found.as_json())
        if isinstance(found, OptionComparison):
            sure = Answer([f"- {each}" for each in found.reasons], found.notes)
        else:
            own = found.sure.as_answer()
            sure = Answer(own.parts[1:], own.notes)  # all but its sentence
    parts = (*answer.parts, *sure.parts, f"report: {folder / 'index.html'}")
    return Answer(parts, (*answer.notes, *sure.notes), answer.result)


def _folder_name(args: argparse.Namespace) -> str:
    """The name of the folder of the comparison, which depends on ``--in``, ``--batch``, ``--set`` and the like."""
    files = [Path(each).stem for each in (args.inside, *args.sides) if each]
    given = [str(value) for name in (*verbs.CHOSEN, "tpot", "ttft", "rate", "equal", "input_tokens", "output_tokens")
             if (value := getattr(args, name)) is not None]  # fmt: skip
    return re.sub(r"[^\w.+=-]+", "_", "-".join([*files, *given, *args.overrides, *args.vary]))
