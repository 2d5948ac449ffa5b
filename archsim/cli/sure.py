"""``archsim sure``: intervals on an answer, the probability of its order, what it hangs on, what to measure next."""

from __future__ import annotations

import argparse
import sys

from archsim.cli.arguments import (
    CHOSEN,
    OK,
    add_chosen,
    add_experiment,
    add_jobs,
    add_report,
    add_samples,
)

_SAMPLES = 256


def add_sure(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser)
    add_chosen(parser, "all of them")
    add_samples(parser, _SAMPLES)
    add_report(parser, "reports/NAME-sure")
    add_jobs(parser)
    parser.add_argument("--scheduler", metavar="ADDRESS", help="run on a Dask cluster, such as tcp://host:8786")


def run_sure(args: argparse.Namespace) -> int:
    """Draw, run, print and write. Raises ArchsimError for too few samples."""
    print(f"reading {args.file} ...", file=sys.stderr, flush=True)  # before slow imports
    from archsim.api import only_chosen
    from archsim.cli.printing import print_compiling, print_kept, print_replaced, print_sure, report_folder
    from archsim.specs.experiment import ExperimentSpec
    from archsim.specs.library import load_planned

    chosen = {name: getattr(args, name) for name in CHOSEN}
    planned = only_chosen(load_planned(args.file, args.overrides), chosen)
    experiment = planned if isinstance(planned, ExperimentSpec) else planned.experiment
    folder = report_folder(experiment.name, args.out, "sure")
    print_replaced(folder, None)
    print_compiling()
    from archsim.cli.progress import watcher

    try:
        with watcher() as watching:
            watching.phase("loading the simulator, compiling what is new")
            from archsim.runs.plan import select
            from archsim.studies.sure import sure_into

            selected = select(planned, watching.phase)
            found = sure_into(selected, args.samples, folder, args.jobs, watching, args.scheduler)
    except KeyboardInterrupt:
        return print_kept(folder)
    args.result = found.plain()
    print_sure(found)
    print(f"report: {folder / 'sure.html'}")
    return OK
