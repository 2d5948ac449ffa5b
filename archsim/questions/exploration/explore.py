"""Explore a sweep: the analytical engine on every point, the event engine on and near the front; and its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod
from operator import and_
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from archsim.base import errors, files, host, sums
from archsim.questions.exploration.answers import wanted_designs
from archsim.questions.exploration.candidates import Exploration, objectives_of, without_constants
from archsim.questions.exploration.page import write_exploration
from archsim.questions.exploration.pareto import as_costs, pareto
from archsim.questions.exploration.sampling import sample_points
from archsim.questions.exploration.screened import FILE, nearest, screened_points
from archsim.questions.exploration.screening import PointBlock, Screen
from archsim.questions.exploration.search import search_each
from archsim.questions.exploration.sweep_view import candidate_of, layers_of, notes_of
from archsim.questions.wafers import is_drawn
from archsim.runs import energy, prices, results, sweep
from archsim.runs.plan import RunMaker, plan_of, select
from archsim.runs.point_measures import PartMeasures
from archsim.runs.run import Workspace
from archsim.runs.store import RecordStore
from archsim.show.page import write_report
from archsim.specs import axes, experiment
from archsim.specs.explore import EXPLORE_KEY, OBJECTIVES, ExploreSpec, risk_of, with_expressions
from archsim.specs.plan import Point, SweepPlan
from archsim.specs.unread import UNREAD
from archsim.uncertainty.propagation import propagate
from archsim.uncertainty.worlds import Worlds

ANALYTICAL, EVENT, WORLDS = "analytical", "event", "worlds"


def explore(
    plan: SweepPlan, spec: ExploreSpec, folder: Path, jobs: int | None, watching: Callable[[], Any]
) -> Exploration:
    """Find the front of a sweep; finished runs are kept in ``folder``. ``plan``: with the analytical engine;
    ``watching``: gives a context manager with a watcher, once per stage. Raises as ``archsim.runs.sweep.sweep``.
    """
    plan = plan_of(plan)
    judge = Judge(spec, prices.Coefficients().change(spec.coefficients))
    jobs = jobs or host.available_cores()
    with watching() as watcher:
        watcher.phase(f"1 of 2: points on the analytical engine, of {plan.combinations:,}")
        ran = _estimate_points(plan, judge, folder / ANALYTICAL, jobs, watcher)
        (points, cheap, dropped, notes), yields = of_designs(plan, ran) if is_drawn(plan) else (ran, {})
    if judge.draws:
        if is_drawn(plan):
            raise errors.ArchsimError(
                "explore.objectives: a risk over samples and machines that are sampled cannot be separated. Give the "
                "design a fixed wafer, or take the objective itself"
            )
        with watching() as watcher:
            points, notes = _drawn(plan, judge, points, cheap, folder / WORLDS, jobs, watcher, notes)
    cheap_values = [judge.values(point, cheap[point.index]) for point in points]
    budget = min(len(points), spec.most_runs(len(points)))
    models = [point.variants["model"].name for point in points]
    costs = np.array([judge.costs(point, cheap[point.index]) for point in points])
    with watching() as watcher:
        most = f"at most {budget:,}; it ends when no other point can be on the front"
        if budget:
            watcher.phase(f"2 of 2: points on and near the front on the event engine, {most}")
            watcher.begin(budget)
        events = EngineRuns(EVENT, plan, folder / EVENT, jobs, watcher)

        def run(asked: Sequence[int]) -> np.ndarray:
            events.run([points[at] for at in asked])
            events.known = {index: _yielding(row, yields, index) for index, row in events.known.items()}
            return np.array([judge.costs(points[at], events.known.get(points[at].index)) for at in asked])

        found = search_each(costs, _families(points), models, run, budget, spec.seed)
        ended = "no other point can be on the front" if found.stable else "as many as `event_runs` allows"
        if budget:
            watcher.phase(f"the search ended after {len(events.known):,} of at most {budget:,} event runs: {ended}")
    rows, candidates = [events.known.get(point.index, cheap[point.index]) for point in points], []
    for point, row, own, front in zip(points, rows, cheap_values, found.front.tolist(), strict=True):
        values, shown = judge.values(point, row), candidate_of(plan, point, judge.estimate(point, row))
        candidates.append(replace(shown, values=values, cheap=own, front=front, allowed=judge.allows(values)))
    return Exploration(
        name=plan.experiment.name, spec=spec, points=tuple(without_constants(candidates)),
        combinations=plan.combinations, dropped=dropped, budget=budget, stable=found.stable,
        failures=tuple(events.failures), assumptions=tuple(each.label for each in plan.experiment.assumptions),
        notes=(*notes, *notes_of(points, rows), *plan.experiment.unread), layers=layers_of(points, rows),
    )  # fmt: skip


class _Cheap(NamedTuple):
    """Points that the analytical engine ran, rows by number, how many each constraint dropped, and notes for pages."""

    points: list[Point]
    rows: Mapping[int, Row]
    dropped: dict[str, int]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judge:
    """Values and costs of a run, by an exploration's objectives and coefficients."""

    spec: ExploreSpec
    coefficients: prices.Coefficients
    slower: dict[int, np.ndarray] = field(default_factory=dict)
    """Number of a point → float64[sample], time of every world over that of the point itself."""

    @property
    def draws(self) -> bool:
        """Whether an objective is about many worlds."""
        return any(risk_of(name) for name in self.spec.objectives if name not in OBJECTIVES)

    def values(self, point: Point, row: Row) -> dict[str, float]:
        """Every objective of a run, NaN if it has none; energy, area and price by these coefficients."""
        own = objectives_of(point.model, self.estimate(point, row))
        return with_expressions(own, self.spec.objectives, self.slower.get(point.index))

    def estimate(self, point: Point, row: Row) -> Row:
        own = energy.economics(
            energy.activity_of(point.model, row), prices.build_costs(point.system, self.coefficients), self.coefficients
        )
        return {**row, **own}

    def costs_of(self, block: PointBlock) -> np.ndarray:
        """Like `costs`, but for all points of a block: float64[point, objective]."""
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


SCALED = "mean_of_machines"  # key of rows of designs of drawn machines: that they were scaled to the mean


def of_designs(plan: SweepPlan, ran: _Cheap) -> tuple[_Cheap, dict[int, float]]:
    """(each design as its median working machine, point → mean throughput over all machines made, scrapped ones with 0,
    over that of the median one).
    """
    at = next(at for at, group in enumerate(plan.sweep.groups) if group.axes[0].path == axes.WAFER)
    stride, made = prod(plan.sizes[at + 1 :]), plan.sizes[at]
    designs: dict[int, list[Point]] = {}
    for point in ran.points:
        if ran.rows.get(point.index, {}).get("tokens_per_s"):
            designs.setdefault(point.index - point.index // stride % made * stride, []).append(point)
    points, yields = [], {}
    for machines in designs.values():
        machines.sort(key=lambda point: ran.rows[point.index]["tokens_per_s"])
        middle = machines[len(machines) // 2]
        every = made if machines[0].system.drawn is not None else len(machines)
        mean = sums.sum(ran.rows[point.index]["tokens_per_s"] for point in machines) / every
        yields[middle.index] = mean / ran.rows[middle.index]["tokens_per_s"]
        points.append(middle)
    points.sort(key=lambda point: point.index)
    rows = {point.index: _yielding(ran.rows[point.index], yields, point.index) for point in points}
    notes = (
        f"{made} machines were sampled of every design; its throughput is the mean of all that were made, with 0 for "
        "scrapped ones, and all else is that of its median machine",
    )
    return _Cheap(points, rows, ran.dropped, (*ran.notes, *notes)), yields


def _yielding(row: Row, yields: Mapping[int, float], index: int) -> Row:
    """The row of a point with the throughput of its design, once."""
    if index not in yields or SCALED in row:
        return row
    rates = {name: row[name] * yields[index] for name in ("tokens_per_s", "throughput_tokens_per_s") if row.get(name)}
    return {**row, **rates, SCALED: 1}


def _estimate_points(plan: SweepPlan, judge: Judge, folder: Path, jobs: int, watcher: Any) -> _Cheap:
    """Points that the analytical engine runs: all that constraints keep; of a large space a screen's or optuna's."""
    spec = judge.spec
    if plan.combinations <= spec.analytical_runs:
        selection = select(plan, watcher.phase)
        rows = {row["point"]: row for row in sweep.sweep_selected(selection, folder, jobs, watcher).runs.rows}
        return _Cheap([plan.point(index) for index in selection.kept], rows, dict(selection.dropped.by_constraint))
    if is_drawn(plan):
        raise errors.ArchsimError(
            f"{plan.combinations:,} points, those of sampled machines included, are more than explore.analytical_runs "
            f"({spec.analytical_runs:,}), and all machines of a design are run. Raise it, or sample fewer wafers"
        )
    runs = EngineRuns(ANALYTICAL, plan, folder, jobs, watcher)
    notes: tuple[str, ...] = ()
    if (screen := Screen(plan, judge.coefficients)).applies:
        count = min(spec.screened_runs, spec.analytical_runs)
        watcher.phase(f"screening {plan.combinations:,} points; then {count:,} on and near the front are run whole")
        points = [plan.point(at) for at in screened_points(screen, judge.costs_of, count, folder, watcher)]
        watcher.begin(len(points))
        runs.run(points)
        notes = (
            f"{plan.combinations:,} points were screened by the analytical engine; those that the constraints keep are "
            f"in {ANALYTICAL}/{FILE}, and shown here are the {len(points):,} on and nearest to its front",
        )
    else:
        watcher.phase(f"{spec.analytical_runs:,} of {plan.combinations:,} points, chosen by optuna")
        watcher.begin(spec.analytical_runs)

        def evaluate(points: Sequence[Point]) -> list[np.ndarray]:
            runs.run(points)
            return [judge.costs(point, runs.known.get(point.index)) for point in points]

        points = sample_points(
            plan, PartMeasures().functions(), evaluate, spec.analytical_runs, len(spec.objectives), spec.seed
        )
    return _Cheap([point for point in points if point.index in runs.known], runs.known, {}, notes)


def _drawn(
    plan: SweepPlan,
    judge: Judge,
    points: list[Point],
    cheap: Mapping[int, Row],
    folder: Path,
    jobs: int,
    watcher: Any,
    notes: tuple[str, ...],
) -> tuple[list[Point], tuple[str, ...]]:
    """The points nearest to the front, run in samples; ``judge`` learns how much slower each is in every sample."""
    spec, maker = judge.spec, RunMaker(plan=plan)
    costs = np.array([judge.costs(point, cheap[point.index]) for point in points])
    ran = np.flatnonzero(np.isfinite(costs).all(axis=1))
    if len(ran):
        ran = ran[nearest(costs[ran], pareto(costs[ran]), spec.drawn_designs)]
    chosen = [points[at] for at in ran]
    runs = maker.runs([point._replace(engine=ANALYTICAL) for point in chosen])
    watcher.phase(f"{len(runs):,} designs in {spec.samples:,} samples")
    worlds = Worlds(runs, spec.samples, spec.seed)
    folder.mkdir(parents=True, exist_ok=True)
    found = propagate(runs, worlds, folder, maker.traces, jobs, watcher)
    for point, each in zip(chosen, found, strict=True):
        judge.slower[point.index] = each.ns / each.value_ns
    said = (
        f"risks are those of {spec.samples:,} samples (archsim sure), the same for all designs, of the {len(chosen):,} "
        f"of {len(points):,} designs on and nearest to the front; a probability counts half a sample more "
        f"on either side"
    )
    return chosen, (*notes, said)


def _families(points: Sequence[Point]) -> np.ndarray:
    """int64[point]: families with similar analytical error: same model, policy, assumption set and topology."""
    names = [(each.model.name, each.policy.name, each.assumptions.label, each.system.kind_of_fabric) for each in points]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names])


Row = Mapping[str, Any]


class EngineRuns:
    """``known``: index of a point → its row; ``failures``: why others have none; ``watcher`` receives progress."""

    def __init__(self, engine: str, plan: SweepPlan, folder: Path, jobs: int, watcher: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._engine, self._jobs, self._watcher = engine, jobs, watcher
        self._maker, self._store = RunMaker(plan=plan), RecordStore(folder)
        self.known: dict[int, Row] = {}
        self.failures: list[str] = []

    def run(self, points: Sequence[Point]) -> None:
        """Add the rows of points to ``known``, except those that fail."""
        new = [point._replace(engine=self._engine) for point in points if point.index not in self.known]
        runs = {point.index: run for point, run in zip(new, self._maker.runs(new), strict=True)}
        unique = {run.key: run for run in runs.values()}
        workspace = Workspace(self._watcher.at, self._maker.traces)
        records = sweep.complete(
            list(unique.values()), self._store, self._watcher, self.failures, self._jobs, workspace=workspace
        )
        self.known |= {
            index: {**records[run.key]["row"], "run": run.key} for index, run in runs.items() if run.key in records
        }


def explore_to_report(
    plan: SweepPlan, spec: ExploreSpec, folder: Path, jobs: int | None, watching: Callable[[], Any]
) -> Exploration:
    """Like ``explore``, but writes ``index.html`` and a report for each recommended design to ``folder``."""
    with files.sole_writer(folder):
        functions = plan.experiment.all_columns
        unread = {UNREAD: list(plan.experiment.unread)} if plan.experiment.unread else {}
        results.write_manifest(folder, given(plan, spec), {"points": plan.combinations} | unread, functions)
        found = explore(plan, spec, folder, jobs, watching)
        engine = EVENT if found.budget else ANALYTICAL
        designs = {
            point.index: plan.resolved(plan.point(point.index)._replace(engine=engine))
            for point in wanted_designs(found).values()
        }
        pages: dict[int, str] = {}
        with watching() as watcher:
            for index, tree in designs.items():
                watcher.phase(f"report {len(pages) + 1} of {len(designs)}: point {index}")
                pages[index] = _report(tree, index, folder, jobs, watcher)
            watcher.phase("writing the page")
            write_exploration(found, designs, pages, folder)
        results.seal(folder, "front.csv")
    return found


def given(plan: SweepPlan, spec: ExploreSpec) -> dict[str, Any]:
    """The experiment with its ``sweep:`` and ``explore:``, references expanded: ``sweep --search`` takes it."""
    return plan.given() | {EXPLORE_KEY: spec.model_dump(mode="json")}


def _report(tree: Mapping[str, Any], index: int, folder: Path, jobs: int | None, watcher: sweep.Watcher) -> str:
    """The page of one design, from its own small sweep; returns its path, relative to the folder."""
    own = folder / "reports" / f"point-{index}"
    sweep.sweep(experiment.ExperimentSpec.model_validate(tree), own, jobs, watcher)
    return write_report(own).relative_to(folder).as_posix()
