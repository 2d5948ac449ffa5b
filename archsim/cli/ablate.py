"""What ``archsim ablate`` does: run every link between two sets of assumptions, print what each is worth, write the page."""

from __future__ import annotations

import sys

from archsim.base.cores import available_cores
from archsim.base.errors import ArchsimError
from archsim.base.nearest import did_you_mean
from archsim.cli.printing import tell_compiling
from archsim.cli.report_folder import report_folder, tell_replaced
from archsim.specs.assumptions import AssumptionsSpec, shipped_sets
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.loading.library import load_assumptions

OK, INTERRUPTED = 0, 130


def ablate_command(experiment: ExperimentSpec, start: str, end: str, out: str | None, jobs: int | None) -> int:
    """Raises ArchsimError for a set that neither the experiment nor archsim has."""
    from archsim.cli.progress import watcher
    from archsim.report.units import factor
    from archsim.studies.ablation.ablation import ablate, ablated
    from archsim.studies.ablation.page import write_ablation

    first, last = set_of(experiment, start), set_of(experiment, end)
    folder = report_folder(experiment.name, out, "ablation")
    jobs = jobs or available_cores()
    whole = ablated(experiment, first, last)
    print(f"{experiment.name}: {start} → {end}, {whole.runs} runs, {jobs} jobs → {folder}", flush=True)
    tell_replaced(folder, whole.resolved())
    tell_compiling()
    try:
        with watcher() as watching:
            found = ablate(experiment, first, last, folder, jobs, watching)
    except KeyboardInterrupt:
        print(f"\ninterrupted; the runs that have ended are kept in {folder}: the same command goes on", file=sys.stderr)
        return INTERRUPTED
    for fall in found.waterfalls:
        steps = ", ".join(f"{each.link.field} {factor(each.factor)}" for each in fall.effects if abs(each.factor - 1) > 5e-3)
        print(f"{fall.system} {fall.model} batch {fall.batch} {fall.policy}: {factor(fall.start)} → {factor(fall.end)} ({steps})")
    print("the chain closes, to the bit" if found.closes else "THE CHAIN DOES NOT CLOSE: this is a defect")
    print(f"report: {write_ablation(found, experiment.name, folder)}")
    return OK


def set_of(experiment: ExperimentSpec, name: str) -> AssumptionsSpec:
    """A set by its label: one of the experiment's, or one that comes with archsim."""
    own = {each.label: each for each in experiment.assumptions}
    if name in own:
        return own[name]
    if name not in shipped_sets():
        known = list(dict.fromkeys([*shipped_sets(), *own]))
        raise ArchsimError(f"unknown assumption set {name!r}{did_you_mean(name, known)} (known: {', '.join(known)})")
    return load_assumptions(name)
