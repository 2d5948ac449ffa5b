"""``archsim sure``: intervals on an answer, the probability of its order, what it hangs on, what to measure next."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.cli.arguments import (
    CHOSEN,
    OK,
    add_chosen,
    add_experiment,
    add_jobs,
    add_json,
    add_report,
    add_samples,
)

if TYPE_CHECKING:
    from archsim.runs.plan import Selection
    from archsim.runs.sweep import Watcher
    from archsim.studies.sure import Sure

_SAMPLES = 256


def add_sure(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser)
    add_chosen(parser, "all of them")
    add_samples(parser, _SAMPLES)
    add_report(parser, "reports/NAME-sure")
    add_jobs(parser)
    add_json(parser)


def run_sure(args: argparse.Namespace) -> int:
    """Draw, run, print and write. Raises ArchsimError for too few samples."""
    print(f"reading {args.file} ...", file=sys.stderr, flush=True)  # before slow imports
    from archsim.api import only_chosen
    from archsim.cli.printing import print_compiling, print_kept, print_replaced, report_folder
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

            found = sure_of(select(planned, watching.phase), args.samples, folder, args.jobs, watching)
    except KeyboardInterrupt:
        return print_kept(folder)
    args.result = found.plain()
    print_sure(found)
    print(f"report: {folder / 'sure.html'}")
    return OK


def sure_of(selection: Selection, samples: int, folder: Path, jobs: int | None, watching: Watcher) -> Sure:
    """The answer in all worlds; its page and tables are in ``folder``."""
    from archsim.studies.sure import find_sure, write_sure

    found = find_sure(selection, samples, folder, jobs, watching)
    write_sure(found, folder)
    return found


def print_sure(found: Sure) -> None:
    """The sentence of every place, a table of its options, what it hangs on, and what to measure."""
    from archsim.cli.printing import console, grid, print_notes
    from archsim.report.units import TIME_UNITS, percent, scaled
    from archsim.studies.sure import SHOWN, measured_told, order_told

    for place in found.places:
        table = grid("", numbers=("median", "5 %", "95 %", "fastest in"), title=place.name)
        for option in place.options:
            times = (scaled(each, TIME_UNITS) for each in (option.ns.p50, option.ns.p05, option.ns.p95))
            table.add_row(option.name, *times, percent(option.fastest))
        console().print(table)
        for each in place.pairs:
            print(f"  {each.faster} over {each.slower}: {each.ratio.p50:.3f} × ({each.ratio.p05:.3f}–"
                  f"{each.ratio.p95:.3f}); {order_told(each)}")  # fmt: skip
        told = [
            f"{each.name} {percent(each.total)} ± {percent(2 * each.total_error)}"
            for each in place.indices[:SHOWN] if each.total > 0.005
        ]  # fmt: skip
        print(f"  hangs on: {', '.join(told) or 'no number that was drawn'} (of the variance)")
        for each in place.measurements:
            print(f"  {measured_told(each, place)}")
        print(place.told)
    print_notes(list(found.notes))
