"""Run every combination of an experiment step by step; bound its steps from below."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from archsim.base.shown import Shown
from archsim.runs.plan import select
from archsim.runs.simulator import Simulator
from archsim.specs.experiment import ExperimentSpec
from archsim.studies.optimum.distances import Bounds, distances
from archsim.studies.optimum.page import Measured, table_of

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Optimum(Shown):
    """The bounded steps of every run of an experiment."""

    name: str
    runs: tuple[Measured, ...]

    def __repr__(self) -> str:
        return f"Optimum({self.name!r}, {len(self.runs)} runs, {sum(len(each.steps) for each in self.runs)} steps)"

    def to_pandas(self) -> pandas.DataFrame:
        """One row per bounded step; columns `archsim.studies.optimum.page.COLUMNS`; distance: share above the bound."""
        return table_of(list(self.runs)).to_pandas()


def measure_optimum(experiment: ExperimentSpec, most_steps: int, told: Callable[[Measured], None]) -> Optimum:
    """Bound at most ``most_steps`` steps of every run, evenly spread; call ``told`` for every finished run.

    Raises CapacityError if the weights do not fit, ArchsimError for more than 128 dies.
    """
    selection = select(experiment)
    simulator, found, bounds, machine = Simulator(selection.maker.traces), [], Bounds(), None
    for run in selection.runs():
        replay = simulator.replay(run)
        same = (run.system, run.model, run.batch, run.assumptions)
        if same != machine:
            bounds, machine = Bounds(), same
        steps = tuple(distances(replay, most_steps, bounds))
        found.append(Measured(run, np.array(run.model.moe_layer_ids)[replay.engine.rows], replay.engine.fabric, steps))
        told(found[-1])
    return Optimum(experiment.name, tuple(found))
