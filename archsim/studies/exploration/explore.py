"""Explore a sweep: the analytical engine on every point, the event engine on and near the front."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import and_
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from archsim.base.cores import available_cores
from archsim.runs.economics import Coefficients, activity_of, build_costs, economics
from archsim.runs.machine_measures import Measures
from archsim.runs.plan import select
from archsim.runs.sweep import sweep_selected
from archsim.specs.sweeps.explore import ExploreSpec, with_expressions
from archsim.specs.sweeps.plan import Point, SweepPlan
from archsim.studies.exploration.engine_runs import EngineRuns, Row
from archsim.studies.exploration.front import as_costs
from archsim.studies.exploration.outcome import Candidate, Exploration, objectives_of, without_constants
from archsim.studies.exploration.sampling import sample_points
from archsim.studies.exploration.screened import FILE, screened_points
from archsim.studies.exploration.screening import Block, Screen
from archsim.studies.exploration.search import search_each
from archsim.studies.exploration.sweep_view import candidate_of, layers_of, notes_of

ANALYTICAL, EVENT = "analytical", "event"


def explore(
    plan: SweepPlan, spec: ExploreSpec, folder: Path, jobs: int | None, watching: Callable[[], Any]
) -> Exploration:
    """Find the front of a sweep. Raises as ``archsim.runs.sweep.sweep``.

    ``plan``: with the analytical engine; ``watching``: returns a context manager that gives a watcher, once per stage.
    Finished runs are kept in ``folder`` and reused.
    """
    judge = Judge(spec, Coefficients().changed(spec.coefficients))
    jobs = jobs or available_cores()
    with watching() as watcher:
        watcher.phase(f"1 of 2: points on the analytical engine, of {plan.combinations:,}")
        points, cheap, dropped, told = _stage(plan, judge)(plan, judge, folder / ANALYTICAL, jobs, watcher)
    cheap_values = [judge.values(point, cheap[point.index]) for point in points]
    budget = min(len(points), spec.most_runs(len(points)))
    with watching() as watcher:
        most = f"at most {budget:,}; it ends when no other point can be on the front"
        watcher.phase(f"2 of 2: points on and near the front on the event engine, {most}")
        watcher.begin(budget)
        events = EngineRuns(EVENT, plan, folder / EVENT, jobs, watcher)

        def run(asked: Sequence[int]) -> np.ndarray:
            events.run([points[at] for at in asked])
            return np.array([judge.costs(points[at], events.known.get(points[at].index)) for at in asked])

        costs = np.array([judge.costs(point, cheap[point.index]) for point in points])
        models = [point.variants["model"].name for point in points]
        found = search_each(costs, _families(points), models, run, budget, spec.seed)
        ended = "no other point can be on the front" if found.stable else "as many as `event_runs` allows"
        watcher.phase(f"the search ended after {len(events.known):,} of at most {budget:,} event runs: {ended}")
    rows = [events.known.get(point.index, cheap[point.index]) for point in points]
    candidates = _candidates(plan, judge, points, cheap, cheap_values, events.known, found.front)
    return Exploration(
        name=plan.experiment.name,
        spec=spec,
        points=candidates,
        combinations=plan.combinations,
        dropped=dropped,
        budget=budget,
        stable=found.stable,
        failures=tuple(events.failures),
        assumptions=tuple(each.label for each in plan.experiment.assumptions),
        notes=(*told, *notes_of(points, rows)),
        layers=layers_of(points, rows),
    )


class _Cheap(NamedTuple):
    """Points that the analytical engine ran, their rows by number, how many points each constraint dropped, and what
    pages say of how they were chosen.
    """

    points: list[Point]
    rows: Mapping[int, Row]
    dropped: dict[str, int]
    told: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judge:
    """Values and costs of a run, by an exploration's objectives and coefficients."""

    spec: ExploreSpec
    coefficients: Coefficients

    def values(self, point: Point, row: Row) -> dict[str, float]:
        """Every objective of a run, NaN if it has none; energy, area and price by these coefficients."""
        return with_expressions(objectives_of(point.model, self.estimated(point, row)), self.spec.objectives)

    def estimated(self, point: Point, row: Row) -> Row:
        """The row with energy, area and price by these coefficients."""
        own = economics(activity_of(point.model, row), build_costs(point.system, self.coefficients), self.coefficients)
        return {**row, **own}

    def costs_of(self, block: Block) -> np.ndarray:
        """As `costs`, of all points of a block: float64[point, objective]."""
        values = with_expressions(objectives_of(block.model, block.columns), self.spec.objectives)
        shape = len(block.numbers)
        costs = np.stack([np.broadcast_to(values[name], shape) for name in self.spec.objectives], axis=1)
        allowed = np.broadcast_to(self.allows(values), shape)
        return np.where(allowed[:, None], as_costs(costs, self.spec.senses), np.inf)

    def costs(self, point: Point, row: Row | None) -> np.ndarray:
        """float64[objective], to minimise; infinite for a run that failed or is not allowed."""
        if row is None or not self.allows(values := self.values(point, row)):
            return np.full(len(self.spec.objectives), np.inf)
        return as_costs(np.array([[values[name] for name in self.spec.objectives]]), self.spec.senses)[0]

    def allows(self, values: Mapping[str, Any]) -> Any:
        return reduce(and_, (constraint.holds(values.get) for constraint in self.spec.constraints()), True)


def _stage(plan: SweepPlan, judge: Judge) -> Callable[..., _Cheap]:
    """Which points the analytical engine runs: all; of a larger space those that a screen leaves, where its points
    share plans, or that optuna proposes.
    """
    if plan.combinations <= judge.spec.analytical_runs:
        return _all_points
    screen = Screen(plan, judge.coefficients)
    return partial(_screened_points, screen) if screen.applies else _some_points


def _all_points(plan: SweepPlan, judge: Judge, folder: Path, jobs: int, watcher) -> _Cheap:
    """Every point that the constraints keep."""
    selection = select(plan, watcher.phase)
    rows = {row["point"]: row for row in sweep_selected(selection, folder, jobs, watcher).runs.rows}
    return _Cheap([plan.point(index) for index in selection.kept], rows, dict(selection.dropped.by_constraint))


def _screened_points(screen: Screen, plan: SweepPlan, judge: Judge, folder: Path, jobs: int, watcher) -> _Cheap:
    """The points of a screened space that are on the front or nearest to it."""
    count = min(judge.spec.screened_runs, judge.spec.analytical_runs)
    watcher.phase(f"screening {plan.combinations:,} points; then {count:,} on and near the front are run whole")
    numbers = screened_points(screen, judge.costs_of, count, folder, watcher)
    watcher.begin(len(numbers))
    runs, points = EngineRuns(ANALYTICAL, plan, folder, jobs, watcher), [plan.point(number) for number in numbers]
    runs.run(points)
    told = (
        f"{plan.combinations:,} points were screened by the analytical engine; those that the constraints keep are in "
        f"{ANALYTICAL}/{FILE}, and shown here are the {len(numbers):,} on and nearest to its front"
    )
    return _Cheap([point for point in points if point.index in runs.known], runs.known, {}, (told,))


def _some_points(plan: SweepPlan, judge: Judge, folder: Path, jobs: int, watcher) -> _Cheap:
    """As many points as the analytical engine may run, chosen by optuna."""
    spec = judge.spec
    watcher.phase(f"{spec.analytical_runs:,} of {plan.combinations:,} points, chosen by optuna")
    watcher.begin(spec.analytical_runs)
    runs = EngineRuns(ANALYTICAL, plan, folder, jobs, watcher)

    def evaluate(points: Sequence[Point]) -> list[np.ndarray]:
        runs.run(points)
        return [judge.costs(point, runs.known.get(point.index)) for point in points]

    points = sample_points(
        plan, Measures().functions(), evaluate, spec.analytical_runs, len(spec.objectives), spec.seed
    )
    return _Cheap([point for point in points if point.index in runs.known], runs.known, {})


def _families(points: Sequence[Point]) -> np.ndarray:
    """Families of points with similar analytical error: same model, policy, assumption set and topology.

    int64[point].
    """
    names = [(each.model.name, each.policy.name, each.assumptions.label, each.system.kind_of_fabric) for each in points]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names])


def _candidates(
    plan: SweepPlan,
    judge: Judge,
    points: Sequence[Point],
    cheap: Mapping[int, Row],
    cheap_values: Sequence[Mapping[str, float]],
    known: Mapping[int, Row],
    front: np.ndarray,
) -> tuple[Candidate, ...]:
    candidates = []
    for at, point in enumerate(points):
        row = known.get(point.index, cheap[point.index])
        values = judge.values(point, row)
        candidates.append(
            replace(
                candidate_of(plan, point, judge.estimated(point, row)),
                values=values,
                cheap=cheap_values[at],
                front=bool(front[at]),
                allowed=judge.allows(values),
            )
        )
    return tuple(without_constants(candidates))
