"""``archsim why --ablate``: run every link between two assumption sets, print the effect of each, write the page."""

from __future__ import annotations

import argparse

from archsim.cli import arguments


def add_ablate(parser: argparse.ArgumentParser) -> None:
    arguments.add_experiment(parser)
    parser.add_argument(
        "--from",
        dest="start",
        default="published",
        metavar="SET",
        help="The assumption set to start from (default: published).",
    )
    parser.add_argument(
        "--to", dest="end", default="physical", metavar="SET", help="The assumption set to end at (default: physical)."
    )
    arguments.add_report(parser, "reports/NAME-ablation")
    arguments.add_jobs(parser)


def run_ablate(args: argparse.Namespace) -> int:
    """Run what is missing and report. Raises ArchsimError for an unknown assumption set."""
    import archsim as ar
    from archsim.base.host import available_cores
    from archsim.cli.printing import print_compiling, print_notes, print_replaced, report_folder
    from archsim.cli.progress import study
    from archsim.studies.ablation import ablated_experiment, assumptions_named

    experiment = ar.load_experiment(args.file, args.overrides)
    whole = ablated_experiment(experiment, *(assumptions_named(experiment, name) for name in (args.start, args.end)))
    folder, jobs = report_folder(experiment.name, args.out, "ablation"), args.jobs or available_cores()
    print(f"{experiment.name}: {args.start} → {args.end}, {whole.runs} runs, {jobs} jobs → {folder}", flush=True)
    print_replaced(folder, whole.resolved())
    print_compiling()
    with study(folder) as watching:
        found = ar.ablate(experiment, args.start, args.end, folder, jobs, watching)
    args.result = found.to_pandas().to_dict("records")
    _print(found)
    print_notes(whole.unread)
    print(f"report: {folder / 'index.html'}")
    return arguments.OK


def _print(found) -> None:
    """One line per waterfall: the effects of at least 0.5 %."""
    from archsim.report.units import factor
    from archsim.studies.ablation_page import endpoint_sentence

    for fall in found.waterfalls:
        large = [each for each in fall.effects if abs(each.factor - 1) > 5e-3]
        place = f"{fall.model} on {fall.system}, batch {fall.batch:,}: the speed-up of {fall.policy} over base"
        start, end = (f"{factor(by)} under {of.label}" for by, of in ((fall.start, found.start), (fall.end, found.end)))
        print(f"{place} is {start} and {end}.")
        for each in large:
            print(f"  {each.link.field:<16} {each.link.before} → {each.link.after}: {factor(each.factor)}")
        if beyond := endpoint_sentence(fall, found):
            print(f" {beyond}")
    if not found.closes:
        print("The effects of the assumptions do not multiply to the whole change. This is a bug; please report it.")
