"""``archsim sure``: intervals on an answer, the probability of its order, what it hangs on, what to measure next."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from archsim.base import verbs
from archsim.cli import arguments

if TYPE_CHECKING:
    from archsim.base.answer import Answer


def run_sure(args: argparse.Namespace) -> Answer:
    """Draw, run and write; of a serve file its points or policies. Raises ArchsimError for too few samples."""
    print(f"reading {args.file} ...", file=sys.stderr, flush=True)  # before slow imports
    import archsim as ar
    from archsim.api import only_chosen
    from archsim.cli.printing import print_compiling, print_replaced, report_folder
    from archsim.specs.experiment import ExperimentSpec
    from archsim.specs.file_kinds import SERVE
    from archsim.specs.library import kind_of_file, load_planned

    asked = arguments.options_from(args, verbs.SURE, "experiment", "out", "overrides", *verbs.CHOSEN)
    if kind_of_file(args.file) == SERVE:
        source: Any = args.file
        asked |= {"overrides": args.overrides} | {name: getattr(args, name) for name in verbs.CHOSEN}
        folder = report_folder(arguments.stem_of(args.file), args.out, "sure")
        print_compiling("serving")
    else:
        source = only_chosen(
            load_planned(args.file, args.overrides), {name: getattr(args, name) for name in verbs.CHOSEN}
        )
        experiment = source if isinstance(source, ExperimentSpec) else source.experiment
        folder = report_folder(experiment.name, args.out, "sure")
        print_replaced(folder, None)
        print_compiling(of=experiment)
    from archsim.cli.progress import study

    with study(folder) as watching:
        if source is not args.file:
            watching.phase("loading the simulator")
        found = ar.sure(source, out=folder, watcher=watching, **asked).as_answer()
    return replace(found, parts=(*found.parts, f"report: {folder / 'sure.html'}"))
