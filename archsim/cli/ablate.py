"""``archsim why --ablate``: run every link between two assumption sets, print the effect of each, write the page."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archsim.base.answer import Answer


def run_ablate(args: argparse.Namespace) -> Answer:
    """Run what is missing and report. Raises ArchsimError for an unknown assumption set."""
    import archsim as ar
    from archsim.base.answer import Answer
    from archsim.base.host import available_cores
    from archsim.cli.printing import print_compiling, print_replaced, report_folder
    from archsim.cli.progress import study
    from archsim.questions.ablation import ablated_experiment, assumptions_named
    from archsim.questions.ablation_page import lines_of

    experiment = ar.load_experiment(args.file, args.overrides)
    whole = ablated_experiment(experiment, *(assumptions_named(experiment, name) for name in (args.start, args.end)))
    folder, jobs = report_folder(experiment.name, args.out, "ablation"), args.jobs or available_cores()
    print(f"{experiment.name}: {args.start} → {args.end}, {whole.runs} runs, {jobs} jobs → {folder}", flush=True)
    print_replaced(folder, whole.resolved())
    print_compiling()
    with study(folder) as watching:
        found = ar.ablate(experiment, args.start, args.end, folder, jobs, watching)
    parts = (*lines_of(found), f"report: {folder / 'index.html'}")
    return Answer(parts, whole.unread, found.to_pandas().to_dict("records"))
