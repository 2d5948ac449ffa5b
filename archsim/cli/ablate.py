"""``archsim ablate``: run every link between two assumption sets, print the effect of each, write the page."""

import argparse

from archsim.cli.arguments import add_experiment, add_jobs, add_json, add_report
from archsim.cli.exit_codes import OK


def add(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser)
    parser.add_argument(
        "--from", dest="start", default="published", metavar="SET", help="first set (default: published)"
    )
    parser.add_argument("--to", dest="end", default="physical", metavar="SET", help="last set (default: physical)")
    add_report(parser, "reports/NAME-ablation")
    add_jobs(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run what is missing and report. Raises ArchsimError for an unknown assumption set."""
    import archsim as ar
    from archsim.base.cores import available_cores
    from archsim.cli.printing import print_compiling, print_kept
    from archsim.cli.progress import watcher
    from archsim.cli.report_folder import print_replaced, report_folder
    from archsim.studies.ablation.ablation import ablated, assumptions_named

    experiment = ar.load_experiment(args.file, args.overrides)
    whole = ablated(experiment, *(assumptions_named(experiment, name) for name in (args.start, args.end)))
    folder, jobs = report_folder(experiment.name, args.out, "ablation"), args.jobs or available_cores()
    print(f"{experiment.name}: {args.start} → {args.end}, {whole.runs} runs, {jobs} jobs → {folder}", flush=True)
    print_replaced(folder, whole.resolved())
    print_compiling()
    try:
        with watcher() as watching:
            found = ar.ablate(experiment, args.start, args.end, folder, jobs, watching)
    except KeyboardInterrupt:
        return print_kept(folder)
    args.result = found.to_pandas().to_dict("records")
    _print(found)
    print(f"report: {folder / 'index.html'}")
    return OK


def _print(found) -> None:
    """One line per waterfall: the effects of at least 0.5 %."""
    from archsim.report.units import factor
    from archsim.studies.ablation.page import endpoint_told

    for fall in found.waterfalls:
        large = [each for each in fall.effects if abs(each.factor - 1) > 5e-3]
        steps = ", ".join(f"{each.link.field} {factor(each.factor)}" for each in large)
        place = f"{fall.system} {fall.model} batch {fall.batch} {fall.policy}"
        print(f"{place}: {factor(fall.start)} → {factor(fall.end)} ({steps}){endpoint_told(fall, found)}")
    print("the chain closes, bit for bit" if found.closes else "THE CHAIN DOES NOT CLOSE: this is a bug")
