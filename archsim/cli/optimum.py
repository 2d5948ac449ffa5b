"""``archsim why --bound``: run every combination, bound its steps, print the distances, write page and CSV."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archsim.base.answer import Answer


def run_optimum(args: argparse.Namespace) -> Answer:
    """Bound and report. Raises ArchsimError for more than 128 dies."""
    import archsim as ar
    from archsim.base.answer import Answer
    from archsim.base.host import available_cores
    from archsim.cli.printing import print_compiling, print_replaced, report_folder
    from archsim.questions.optimum_page import answers, write_optimum

    experiment = ar.load_experiment(args.file, args.overrides)
    folder = report_folder(experiment.name, args.out, "optimum")
    print_replaced(folder, None)
    print_compiling()
    print("simulating runs, bounding their layer-steps ...", file=sys.stderr, flush=True)
    found = ar.optimum(experiment, None, args.steps, _print_run, jobs=args.jobs or available_cores())
    print("writing the page ...", file=sys.stderr, flush=True)
    page = write_optimum(list(found.runs), found.name, folder, experiment.unread)
    said = [f"For {place}, {text}" for place, text in answers(list(found.runs))]
    parts = (*said, *map(_distance, found.runs), f"report: {page}")
    return Answer(parts, experiment.unread, found.to_pandas().to_dict("records"))


def _print_run(measured) -> None:
    from archsim.cli.heartbeat import begins

    begins(f"bounding layer-steps, {measured.run.name} is done")


def _distance(measured) -> str:
    from archsim.show.units import percent

    mean, p95, worst = (percent(share, 1) for share in measured.summary())
    parts = ", ".join(f"{name} {percent(share, 1)}" for name, share in measured.parts.items())
    steps = len(measured.steps)
    said = f"{measured.run.name}: {mean} above the bound ({parts})"
    return f"{said}, p95 {p95} and worst {worst} of {steps} layer-steps" if steps > 1 else said
