"""What ``archsim run`` does: simulate one combination of an experiment, print it, write a timeline of one of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archsim.base.errors import ArchsimError
from archsim.cli.printing import console, grid, tell_compiling
from archsim.cli.sweep import print_result_notes
from archsim.specs.experiment import ExperimentSpec

if TYPE_CHECKING:
    from archsim.runs.run import Run

OK = 0


def run_command(
    experiment: ExperimentSpec,
    *,
    policy: str | None,
    system: str | None,
    model: str | None,
    batch: int | None,
    assumptions: str | None,
    step: int | None,
    layer: int | None,
    timeline: str | None,
) -> int:
    """Simulate one combination and print what came out; write a timeline of one of its steps."""
    from archsim.base.files import refuse_unwritable
    from archsim.runs.capacity import refuse_misfits
    from archsim.runs.results import collect
    from archsim.runs.simulator import Simulator
    from archsim.runs.sweep import choose, prepare

    if len({step is None, layer is None, timeline is None}) > 1:
        raise ArchsimError("a timeline needs all of --step, --layer and --timeline")
    if timeline is not None:
        refuse_unwritable(Path(timeline))
    chosen = choose(experiment, system=system, model=model, policy=policy, batch=batch, assumptions=assumptions)
    prepared = prepare(chosen)
    refuse_misfits(prepared.runs)
    tell_compiling()
    run, simulator = prepared.runs[0], Simulator(prepared.traces)
    if timeline is not None:
        _write_timeline(simulator, run, step, layer, Path(timeline))
    row = collect([simulator.record(run)]).runs.rows[0]
    _print_row(row, experiment)
    print_result_notes([row], chosen.systems)
    if timeline is not None:
        print(f"timeline: {timeline} (open it with https://ui.perfetto.dev)")
    return OK


def _write_timeline(simulator, run: Run, step: int, layer: int, path: Path) -> None:
    """Write what every block and link does in iteration ``step``, layer ``layer`` (the model's number of it)."""
    from archsim.report.timeline import write_timeline

    replay = simulator.replay(run)
    demand = replay.demands
    layers = demand.layer_ids.tolist()
    if not 0 <= step < demand.steps:
        raise ArchsimError(f"--step {step}: the run has iterations 0 (the prefill) to {demand.steps - 1}")
    if layer not in layers:
        nearest = min(layers, key=lambda each: abs(each - layer))
        raise ArchsimError(
            f"--layer {layer}: not an MoE layer of the routing; it has {_ranges(layers)}; nearest is {nearest}"
        )
    index = layers.index(layer)
    if not demand.tokens[step, index].any():
        raise ArchsimError(f"--step {step} --layer {layer}: no request has routing there")
    log = replay.trace_step(step, index)
    write_timeline(log, path, f"{run.name}, iteration {step}, layer {layer}", replay.engine.fabric)


def _print_row(row: Mapping[str, Any], experiment: ExperimentSpec) -> None:
    """Which combination it is and of how many, then the columns of the page's table that have a value, with units."""
    from archsim.report.tables import COLUMNS
    from archsim.report.units import percent
    from archsim.specs.sweeps.explore import OBJECTIVES
    from archsim.studies.exploration.figures import value

    table = grid("", "", "")
    table.show_header = False
    for name, others in _choices(experiment).items():
        table.add_row(name, str(row[name]), f"of {', '.join(others)}; choose by --{name}" if len(others) > 1 else "")
    for name in ("trace", "engine", "layers", "run"):
        table.add_row(name, str(row[name]), "")
    table.add_section()
    for column in COLUMNS:
        if row.get(column.name) is not None:
            table.add_row(column.header, column.shown(row[column.name]), column.meaning)
    if bound := row["bounded_by"]:
        table.add_row("bounded by", bound, f"{percent(row[f'bound_{bound}'])} of the critical path")
    for name in ("energy", "power", "area", "cost"):
        if row[OBJECTIVES[name][0]] is not None:
            table.add_row(name, value(name, row[OBJECTIVES[name][0]]), "estimated; its range: archsim cost")
    console().print(table)


def _choices(experiment: ExperimentSpec) -> dict[str, list[str]]:
    """Column → what the experiment has of it."""
    return {
        "system": [each.name for each in experiment.systems],
        "model": [each.name for each in experiment.models],
        "batch": [str(each) for each in experiment.workload.batch],
        "policy": [each.name for each in experiment.policies],
        "assumptions": [each.label for each in experiment.assumptions],
    }


def _ranges(layers: list[int]) -> str:
    """Layers as few words: 3 to 60, or 1, 3, 5, … 47."""
    if layers == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]} to {layers[-1]}"
    return ", ".join(map(str, layers)) if len(layers) < 6 else f"{', '.join(map(str, layers[:3]))}, … {layers[-1]}"
