"""Every combination of an experiment run step by step, its steps bounded from below."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsim.runs.capacity import refuse_misfits
from archsim.runs.simulator import Simulator
from archsim.runs.sweep import prepare
from archsim.specs.experiment import ExperimentSpec
from archsim.studies.optimum.distances import Bounds, distances
from archsim.studies.optimum.page import Measured, table_of
from archsim.studies.optimum.problem import ProblemBuilder

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Optimum:
    """The bounded steps of every run of an experiment."""

    name: str
    runs: tuple[Measured, ...]

    def __repr__(self) -> str:
        return f"Optimum({self.name!r}, {len(self.runs)} runs, {sum(len(each.steps) for each in self.runs)} steps)"

    def to_pandas(self) -> pandas.DataFrame:
        """One row a bounded step; columns `archsim.studies.optimum.page.COLUMNS`; distance: share above the bound."""
        return table_of(list(self.runs)).to_pandas()


def measure_optimum(experiment: ExperimentSpec, most_steps: int, told: Callable[[Measured], None]) -> Optimum:
    """``most_steps``: of each run that are bounded, evenly spread over it; ``told``: called for every finished run.

    Raises CapacityError where the weights do not fit, ArchsimError for more than 128 dies.
    """
    prepared = prepare(experiment)
    refuse_misfits(prepared.runs)
    simulator, found, bounds, machine = Simulator(prepared.traces), [], Bounds(), None
    for run in prepared.runs:
        engine = simulator.engine(run)
        same = (run.system, run.model, run.batch, run.assumptions)
        if same != machine:
            bounds, machine = Bounds(), same
        copies, most_tokens = engine.policy.predictor is not None, int(engine.demand.tokens.max())
        builder = ProblemBuilder(run.system, run.model, run.assumptions, engine.home, copies, most_tokens)
        steps = tuple(distances(engine, builder, most_steps, bounds))
        found.append(Measured(run, engine.demand.layer_ids, engine.mesh, steps))
        told(found[-1])
    return Optimum(experiment.name, tuple(found))
