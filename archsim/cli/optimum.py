"""What ``archsim optimum`` does: run every combination step by step, bound its steps, print the distances, write page and CSV."""

from __future__ import annotations

from archsim.cli.printing import tell_compiling
from archsim.cli.report_folder import report_folder, tell_replaced
from archsim.specs.experiment import ExperimentSpec

OK = 0


def optimum_command(experiment: ExperimentSpec, out: str | None, most_steps: int) -> int:
    """``most_steps``: of each run that are bounded, evenly spread over it. Raises ArchsimError for more than 128 dies."""
    from archsim.report.units import percent
    from archsim.runs.capacity import refuse_misfits
    from archsim.runs.simulator import Simulator
    from archsim.runs.sweep import prepare
    from archsim.studies.optimum.distances import Bounds, distances
    from archsim.studies.optimum.page import Measured, write_optimum

    folder = report_folder(experiment.name, out, "optimum")
    tell_replaced(folder, None)
    prepared = prepare(experiment)
    refuse_misfits(prepared.runs)
    tell_compiling()
    simulator, found, bounds, machine = Simulator(prepared.traces), [], Bounds(), None
    for run in prepared.runs:
        replay = simulator.replay(run)
        same = (run.system, run.model, run.batch, run.assumptions)
        if same != machine:
            bounds, machine = Bounds(), same
        steps = tuple(distances(replay, most_steps, bounds))
        found.append(Measured(run, replay.demands.layer_ids, replay.engine.fabric, steps))
        mean, p95, worst = found[-1].summary()
        print(f"{run.name}: above the bound by {percent(mean, 1)} in the mean, {percent(p95, 1)} p95, {percent(worst, 1)} worst; {len(steps)} steps", flush=True)
    print(f"report: {write_optimum(found, experiment.name, folder)}")
    return OK
