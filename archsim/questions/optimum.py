"""Run every combination of an experiment step by step; bound its steps from below."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from archsim.base import tables
from archsim.base.tables import DataFrame
from archsim.questions.optimum_distances import Bounds, StepDistance, distances
from archsim.runs.executor import do_all
from archsim.runs.plan import select
from archsim.runs.run import Run
from archsim.runs.simulator import Simulator
from archsim.specs.experiment import ExperimentSpec
from microarch.fabric.fabric import Fabric


@dataclass(frozen=True)
class Optimum(tables.Shown):
    """The bounded steps of every run of an experiment."""

    name: str
    runs: tuple[Measured, ...]

    def __repr__(self) -> str:
        return f"Optimum({self.name!r}, {len(self.runs)} runs, {sum(len(each.steps) for each in self.runs)} steps)"

    def to_pandas(self) -> DataFrame:
        """One row per bounded step; columns `archsim.questions.optimum.COLUMNS`; distance: share above the bound."""
        return table_of(list(self.runs)).to_pandas()


def measure_optimum(
    experiment: ExperimentSpec, most_steps: int, report: Callable[[Measured], None], jobs: int = 1
) -> Optimum:
    """Bound at most ``most_steps`` steps of every run, evenly spread; ``report`` gets every run in order. Raises
    CapacityError if the weights do not fit, ArchsimError for more than 128 dies.
    """
    selection = select(experiment)
    runs, simulator = selection.runs(), Simulator(selection.maker.traces)
    known: dict[str, Any] = {}  # the machine of the last run, and its bounds

    def measure(at: int) -> Measured:
        run = runs[at]
        replay, machine = simulator.replay(run), (run.system, run.model, run.batch, run.assumptions)
        if known.get("machine") != machine:
            known.update(machine=machine, bounds=Bounds())
        steps = tuple(distances(replay, most_steps, known["bounds"]))
        return Measured(run, np.array(run.model.moe_layer_ids)[replay.engine.rows], replay.engine.fabric, steps)

    ended: dict[int, Measured] = {}
    found: list[Measured] = []
    for at, each in do_all(measure, range(len(runs)), jobs):
        ended[at] = each
        while len(found) in ended:
            found.append(ended.pop(len(found)))
            report(found[-1])
    return Optimum(experiment.name, tuple(found))


COLUMNS = {
    **dict.fromkeys(("system", "model"), tables.TEXT), "batch": tables.INTEGER, "assumptions": tables.TEXT,
    "policy": tables.TEXT, "iteration": tables.INTEGER, "layer": tables.INTEGER,
    **dict.fromkeys(("bound_ns", "plan_ns", "step_ns", "exposed_ns", "distance"), tables.REAL),
    **dict.fromkeys(("allocation", "waiting", "decision"), tables.REAL),
    **dict.fromkeys(("bound_by", "plan_by"), tables.TEXT),
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """The bounded steps of one run. ``layer_ids``: the model's numbering of its MoE layers."""

    run: Run
    layer_ids: np.ndarray
    fabric: Fabric
    steps: tuple[StepDistance, ...]

    def summary(self) -> tuple[float, float, float]:
        far = [each.distance for each in self.steps]
        return float(np.mean(far)), float(np.percentile(far, 95)), float(max(far))

    @property
    def parts(self) -> dict[str, float]:
        """Mean of what the distance is made of, see ``StepDistance.parts``."""
        every = [each.parts for each in self.steps]
        return {name: float(np.mean([parts[name] for parts in every])) for name in every[0]}

    @property
    def worst(self) -> StepDistance:
        return max(self.steps, key=lambda each: each.distance)

    def name_of(self, step: StepDistance) -> str:
        return f"iteration {step.step}, layer {int(self.layer_ids[step.layer])}"


def table_of(found: list[Measured]) -> tables.Table:
    """One row per bounded step; ``distance``: step plus decision above the bound, 0.1 is 10 %."""
    rows = []
    for each in found:
        run = each.run
        for step in each.steps:
            values = (
                run.system.name, run.model.name, run.batch, run.assumptions.label, run.policy.name, step.step,
                int(each.layer_ids[step.layer]), step.bound.ns, step.plan_ns, float(step.step_ns),
                float(step.exposed_ns), float(step.distance), *step.parts.values(), step.bound_by, step.plan_by,
            )  # fmt: skip
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return tables.Table(COLUMNS, tuple(rows))
