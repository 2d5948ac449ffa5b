"""``archsim why``: what limits a step, and what would help; without a step, the worst ones."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from archsim.cli import arguments, progress

# ---- why

_WORST = 10


def add_why(parser: argparse.ArgumentParser) -> None:
    arguments.add_experiment(parser, "The experiment, or the folder of a report")
    arguments.add_chosen(parser)
    parser.add_argument(
        "--step", type=arguments.natural, metavar="N", help="Explain a layer of this iteration (0: prefill)."
    )
    parser.add_argument(
        "--layer", type=arguments.natural, metavar="N", help="Explain this layer in a step, as the model numbers it."
    )
    parser.add_argument(
        "--worst",
        type=arguments.positive,
        default=_WORST,
        metavar="N",
        help=f"How many of the slowest layer-steps to list (default: {_WORST}).",
    )


def run_why(args: argparse.Namespace) -> int:
    """Print five lines, or the worst steps. Raises ArchsimError for a step that the run does not have."""
    print(f"reading {args.file} ...", file=sys.stderr, flush=True)  # before slow imports
    from archsim.specs.library import load_experiment

    experiment = load_experiment(args.file, args.overrides)
    import archsim as ar
    from archsim.cli.printing import console, grid, print_compiling, print_notes
    from archsim.runs.plan import choose
    from archsim.runs.results import damage_told
    from archsim.studies.why import run_that_matters, sentence

    chosen = {name: getattr(args, name) for name in arguments.CHOSEN}
    given = args.step is not None or args.layer is not None
    picked = Path(args.file).is_dir() and not given and not any(chosen.values())
    if picked:
        chosen |= run_that_matters(Path(args.file))
    print_notes(damage_told(Path(args.file)))
    choose(experiment, **chosen)  # refuses names before anything is said to be simulated
    print_compiling()
    print(f"simulating the run{', then what would help' if given else ''} ...", file=sys.stderr, flush=True)
    found = ar.why(experiment, step=args.step, layer=args.layer, worst=args.worst, told=progress.doing, **chosen)
    args.result = found
    print_notes((*found.notes, *experiment.unread))
    if given:
        print(repr(found))
        return arguments.OK
    from archsim.studies.why import HEADS, MORE, table_of

    table = grid(*HEADS, title=found.run)
    for cells in table_of(found.rows):
        table.add_row(*cells)
    console().print(table)
    first = found.rows[0]
    if found.clock:
        print(found.clock)
    if picked:
        where = {"step": first["step"], "layer": first["layer"]}
        args.result = helped = ar.why(experiment, **where, worst=args.worst, told=progress.doing, **chosen)
        print(f"This is the fastest run of the report at its largest batch. {sentence(helped)}")
    else:
        print(f"{MORE}, add --step {first['step']} --layer {first['layer']} to this command.")
    return arguments.OK


# ---- optimum
# ``archsim why --bound``: run every combination, bound its steps, print the distances, write page and CSV.


def add_optimum(parser: argparse.ArgumentParser) -> None:
    arguments.add_experiment(parser)
    arguments.add_report(parser, "reports/NAME-optimum")
    parser.add_argument(
        "--steps",
        type=arguments.positive,
        default=200,
        metavar="N",
        help="How many layer-steps of a run to bound. They are spread evenly (default: 200).",
    )


def run_optimum(args: argparse.Namespace) -> int:
    """Bound and report. Raises ArchsimError for more than 128 dies."""
    import archsim as ar
    from archsim.cli.printing import print_compiling, print_notes, print_replaced, report_folder

    experiment = ar.load_experiment(args.file, args.overrides)
    folder = report_folder(experiment.name, args.out, "optimum")
    print_replaced(folder, None)
    print_compiling()
    print("simulating runs, bounding their layer-steps ...", file=sys.stderr, flush=True)
    found = ar.optimum(experiment, None, args.steps, _print_run)
    print("writing the page ...", file=sys.stderr, flush=True)
    from archsim.studies.optimum_page import answers, write_optimum

    write_optimum(list(found.runs), found.name, folder, experiment.unread)
    for place, said in answers(list(found.runs)):
        print(f"For {place}, {said}")
    args.result = found.to_pandas().to_dict("records")
    print_notes(experiment.unread)
    print(f"report: {folder / 'index.html'}")
    return arguments.OK


def _print_run(measured) -> None:
    from archsim.report.units import percent

    mean, p95, worst = (percent(share, 1) for share in measured.summary())
    parts = ", ".join(f"{name} {percent(share, 1)}" for name, share in measured.parts.items())
    steps = len(measured.steps)
    said = f"{measured.run.name}: {mean} above the bound ({parts})"
    print(f"{said}, p95 {p95} and worst {worst} of {steps} layer-steps" if steps > 1 else said, flush=True)


# ---- ablate
# ``archsim why --ablate``: run every link between two assumption sets, print the effect of each, write the page.


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


# ---- sure
# ``archsim sure``: intervals on an answer, the probability of its order, what it hangs on, what to measure next.

_SAMPLES = 256


def add_sure(parser: argparse.ArgumentParser) -> None:
    arguments.add_experiment(parser)
    arguments.add_chosen(parser, "all of them")
    arguments.add_samples(parser, _SAMPLES)
    arguments.add_report(parser, "reports/NAME-sure")
    arguments.add_jobs(parser)
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="Run on this Dask cluster, such as tcp://host:8786.",
        **arguments.below(parser, arguments.EFFORT),
    )


def run_sure(args: argparse.Namespace) -> int:
    """Draw, run, print and write. Raises ArchsimError for too few samples."""
    print(f"reading {args.file} ...", file=sys.stderr, flush=True)  # before slow imports
    from archsim.api import only_chosen
    from archsim.cli.printing import print_compiling, print_replaced, print_sure, report_folder
    from archsim.specs.experiment import ExperimentSpec
    from archsim.specs.library import load_planned

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
        found = sure_into(selected, args.samples, folder, args.jobs, watching, args.scheduler)
    args.result = found.plain()
    print_sure(found)
    print(f"report: {folder / 'sure.html'}")
    return arguments.OK
