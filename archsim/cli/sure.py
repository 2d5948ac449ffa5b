"""``archsim sure``: intervals on an answer, the probability of its order, what it hangs on, what to measure next."""

from __future__ import annotations

import argparse
import sys

from archsim.cli import arguments

_SAMPLES = 256


def add_sure(parser: argparse.ArgumentParser) -> None:
    arguments.add_experiment(parser, "The experiment, or a file of `archsim serve`")
    arguments.add_chosen(parser, "all of them")
    arguments.add_samples(parser, _SAMPLES)
    parser.add_argument(
        "--seed", type=arguments.natural, default=0, metavar="N", help="Draw other samples (default: 0).",
        **arguments.below(parser, arguments.EFFORT),
    )  # fmt: skip
    arguments.add_report(parser, "reports/NAME-sure")
    arguments.add_jobs(parser)


def run_sure(args: argparse.Namespace) -> int:
    """Draw, run, print and write. Raises ArchsimError for too few samples."""
    print(f"reading {args.file} ...", file=sys.stderr, flush=True)  # before slow imports
    from archsim.api import only_chosen
    from archsim.cli.printing import print_compiling, print_replaced, print_sure, report_folder
    from archsim.specs.experiment import ExperimentSpec
    from archsim.specs.file_kinds import SERVE
    from archsim.specs.library import kind_of_file, load_planned

    if kind_of_file(args.file) == SERVE:
        return _run_deployment(args)
    chosen = {name: getattr(args, name) for name in arguments.CHOSEN}
    planned = only_chosen(load_planned(args.file, args.overrides), chosen)
    experiment = planned if isinstance(planned, ExperimentSpec) else planned.experiment
    folder = report_folder(experiment.name, args.out, "sure")
    print_replaced(folder, None)
    print_compiling(of=experiment)
    from archsim.cli.progress import study

    with study(folder) as watching:
        watching.phase("loading the simulator")
        from archsim.runs.plan import select
        from archsim.studies.sure import sure_into

        selected = select(planned, watching.phase)
        found = sure_into(selected, args.samples, folder, args.jobs, watching, args.seed)
    args.result = found.plain()
    print_sure(found)
    print(f"report: {folder / 'sure.html'}")
    return arguments.OK


def _run_deployment(args: argparse.Namespace) -> int:
    """The runs of a file of `archsim serve` in worlds: its points against each other, or its policies."""
    import archsim as ar
    from archsim.cli.printing import print_compiling, print_served_sure, report_folder
    from archsim.cli.progress import study

    folder = report_folder(arguments.stem_of(args.file), args.out, "sure")
    print_compiling("serving")
    with study(folder) as watching:
        found = ar.sure(args.file, args.samples, folder, overrides=args.overrides, watcher=watching, jobs=args.jobs)
    args.result = found.plain()
    print_served_sure(found)
    print(f"report: {folder / 'sure.html'}")
    return arguments.OK
