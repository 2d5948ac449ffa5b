"""An exploration and its report: the page, and a report of every recommended design."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import product
from math import prod
from operator import and_
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.base.files import sole_writer
from archsim.base.host import available_cores
from archsim.base.sums import sum
from archsim.base.tables import INTEGER, TEXT, write_parquet_columns
from archsim.engine.analytic.count import HBM_BYTES, LINK_BYTES, READ_BYTES
from archsim.engine.analytic.machines import ManyWalked, shares_plan, walk_all_carriers
from archsim.engine.analytic.rates import RATES, with_rates
from archsim.engine.analytic.recorded_steps import RecordedSteps, record
from archsim.engine.analytic.walk import walk_strategy
from archsim.engine.demand import RunDemand
from archsim.engine.fabrics import build_fabric, carriers_of
from archsim.engine.loop import RunOutcome
from archsim.engine.pair_traffic import statistics_bytes
from archsim.report.page import write_report
from archsim.runs import columns, energy, results, sweep
from archsim.runs.columns import BY_NAME, Finished
from archsim.runs.feasibility import PartMeasures
from archsim.runs.plan import RunMaker, plan_of, select
from archsim.runs.run import Run, Workspace
from archsim.runs.simulator import Simulator
from archsim.runs.store import RecordStore
from archsim.specs.axes import WAFER
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.explore import EXPLORE_KEY, OBJECTIVES, ExploreSpec, risk_of, with_expressions
from archsim.specs.model import ModelSpec
from archsim.specs.plan import AxisColumn, Point, SweepPlan
from archsim.specs.system import SystemSpec
from archsim.specs.unread import UNREAD
from archsim.studies.exploration.analysis import (
    Exploration,
    as_costs,
    candidate_of,
    every_is_finite,
    layers_of,
    notes_of,
    objectives_of,
    pareto,
    wanted,
    without_constants,
)
from archsim.studies.exploration.page import write_exploration
from archsim.studies.wafers import is_drawn
from archsim.uncertainty.worlds import Worlds, propagate
from microarch.fabric.grid import ROW_MAJOR

# ---- screening
# Screen a space: objectives of every point by the analytical engine, many machines in one call.
#
# Points of a *family* differ only in rates and latencies of their machine, and share their plans
# (`archsim.engine.analytic.machines`). Their values are columns, never rows; `nearest` says which points go
# on to the search.
#
# Values are those of single runs: times to the bit, energy and price to rounding (a power of an array may differ from
# that of a number in its last digit).

LEAST_SHARED = 64  # points of a family; with fewer, one after the other is as fast

Columns = Mapping[str, Any]
"""Name of a column → float64[point]; numbers and texts are those of all points."""


class PointBlock(NamedTuple):
    """Points of one model that the constraints keep, ``numbers: int64[point]``; ``columns`` of the results; ``axes``:
    cells of their columns; ``share``: of the work that is done with them.
    """

    model: ModelSpec
    numbers: np.ndarray
    columns: Columns
    axes: Columns
    share: float


class Screen:
    """The families of a plan. Raises as `archsim.runs.plan.RunMaker.runs`."""

    def __init__(self, plan: SweepPlan, coefficients: energy.Coefficients) -> None:
        self.plan, self._coefficients = plan, coefficients
        sizes, groups = plan.sizes, plan.sweep.groups
        self._strides = [prod(sizes[at + 1 :]) for at in range(len(sizes))]
        self._rated = [at for at, group in enumerate(groups) if all(axis.path[1:] in RATES for axis in group.axes)]
        self._others = [at for at in range(len(sizes)) if at not in self._rated]
        self._maker = RunMaker(plan=plan)
        self._measures = PartMeasures(self._maker.contexts)

    @cached_property
    def applies(self) -> bool:
        """Whether all points belong to families of many."""
        if self.plan.experiment.all_columns or self.family < LEAST_SHARED:
            return False
        return all(shares_plan(run) for run in self._runs())

    @property
    def family(self) -> int:
        """Points of a family."""
        return prod(self.plan.sizes[at] for at in self._rated)

    def blocks(self) -> Iterator[PointBlock]:
        """The blocks of all points that the constraints keep."""
        simulator = Simulator(self._maker.traces)
        families = prod(self.plan.sizes[at] for at in self._others)
        for at, run in enumerate(self._runs()):
            for block in _Family(self, run, simulator).blocks():
                yield block._replace(share=(at + block.share) / families)

    def _runs(self) -> Iterator[Run]:
        """One of every family, its first point's."""
        for digits in product(*(range(self.plan.sizes[at]) for at in self._others)):
            number = sum(digit * self._strides[at] for digit, at in zip(digits, self._others, strict=True))
            yield from self._maker.runs([self.plan.point(number)])

    def digits(self, places: np.ndarray) -> dict[int, np.ndarray]:
        """Rated group → digit of each point, int64[point], of the points at these ``places`` of a family."""
        found, rest = {}, places
        for at in reversed(self._rated):
            rest, found[at] = np.divmod(rest, self.plan.sizes[at])
        return found

    def numbers(self, base: int, digits: Mapping[int, np.ndarray], count: int) -> np.ndarray:
        """Numbers of the points with these digits, int64[point]."""
        return np.full(count, base) + sum(digit * self._strides[at] for at, digit in digits.items())

    @cached_property
    def values(self) -> dict[tuple[str, ...], tuple[int, np.ndarray]]:
        """Path of every rated axis → its group, and the values of its digits in base units, float64[digit]."""
        return {axis.path: (at, self.cells[AxisColumn(axis).name][1].astype(np.float64)) for at, axis in self._axes()}

    @cached_property
    def cells(self) -> dict[str, tuple[int, np.ndarray]]:
        """Column of every rated axis → its group, and the cells of its digits."""
        columns = ((at, AxisColumn(axis)) for at, axis in self._axes())
        return {column.name: (at, np.array(column.cells())) for at, column in columns}

    def _axes(self) -> Iterator[tuple[int, Any]]:
        return ((at, axis) for at in self._rated for axis in self.plan.sweep.groups[at].axes)


class _Family:
    """Points that differ in rates alone from that of ``run``."""

    def __init__(self, screen: Screen, run: Run, simulator: Simulator) -> None:
        self._screen, self._run, self._plan = screen, run, screen.plan
        assert run.point is not None
        demand = simulator.replay(run).demands
        assert isinstance(demand, RunDemand)
        self._base, self._demand = run.point, demand
        self._costs = energy.build_costs(run.system, screen._coefficients)
        self._link_class = build_fabric(run.system, ROW_MAJOR).link_class

    def blocks(self) -> Iterator[PointBlock]:
        first, family = record(self._run, self._demand), self._screen.family
        at_once = first.most_machines
        recorded = {carriers_of(self._run): first}
        for begin in range(0, family, at_once):
            end = min(begin + at_once, family)
            block = self._block(recorded, self._screen.digits(np.arange(begin, end)), end - begin)
            if len(block.numbers):
                yield block._replace(share=end / family)

    def _block(self, recorded: dict[int, RecordedSteps], digits: dict[int, np.ndarray], count: int) -> PointBlock:
        system = self._system(digits, count)
        machine = self._priced(system)
        kept = np.broadcast_to(self._keeps(machine, digits), count)
        if not kept.all():
            digits, count = {at: each[kept] for at, each in digits.items()}, int(kept.sum())
            system = self._system(digits, count)
            machine = self._priced(system)
        points = self._screen.numbers(self._base, digits, count)
        if not count:
            return PointBlock(self._run.model, points, {}, {}, 0.0)
        walked = walk_all_carriers(recorded, system, self._demand, walk_strategy(self._run.assumptions))
        outcome = next(iter(recorded.values())).outcome
        axes = self._plan.cells(self._plan.point(self._base))
        axes |= {name: cells[digits[at]] for name, (at, cells) in self._screen.cells.items()}
        return PointBlock(self._run.model, points, self._columns(outcome, walked, machine), axes, 0.0)

    def _system(self, digits: Mapping[int, np.ndarray], count: int) -> SystemSpec:
        """That stands for the machines of points."""
        rates = {(path[1], path[2]): values[digits[at]] for path, (at, values) in self._screen.values.items()}
        return with_rates(self._run.system, rates, count)

    def _priced(self, system: SystemSpec) -> energy.SystemHardware:
        return energy.costs_of_many(system, self._costs, self._link_class, self._screen._coefficients)

    def _keeps(self, machine: energy.SystemHardware, digits: Mapping[int, np.ndarray]) -> Any:
        point, screen = self._plan.point(self._base), self._screen
        own = {"die_mm2": machine.die_mm2, "silicon_mm2": machine.silicon_mm2, "cost_usd": sum(machine.usd.values())}
        measures = dict(screen._measures.functions()) | {name: _always(value) for name, value in own.items()}

        def value(point: Point, path: tuple[str, ...]) -> Any:
            if path not in screen.values:
                return self._plan.value(point, path)
            at, values = screen.values[path]
            return values[digits[at]]

        return self._plan.keeps(point, measures, value)

    def _columns(self, outcome: RunOutcome, walked: ManyWalked, machine: energy.SystemHardware) -> dict[str, Any]:
        """Columns of objectives, and those that say which point it is."""
        run = self._run
        no_source: Any = None  # a throughput needs no token one by one
        # of each point, as arrays
        timed: dict[str, Any] = {"prefill_ns": walked.prefill_ns, "decode_ns": walked.decode_ns}
        finished = Finished(run, self._demand, no_source, replace(outcome, **timed))
        tokens = int(outcome.load.sum())
        counted: dict[str, list[Any]] = {"tokens": [tokens], "hbm_bytes": [walked.counted[:, HBM_BYTES]]}
        shown, fabric = columns.shown_links(outcome), outcome.fabric
        statistics = statistics_bytes(outcome.machine, outcome.tally)[fabric.link_src[shown] != fabric.link_dst[shown]]
        crossed: dict[str, list[Any]] = {
            "bytes": [walked.counted[:, LINK_BYTES] + statistics.sum()],
            "src": [0],
            "dst": [1],
        }
        row = energy.work_of(run.model, run.assumptions, counted, crossed, int(outcome.counts.padded.sum())) | {
            "prefill_ns": walked.prefill_ns,
            "decode_ns": walked.decode_ns,
            "decision_ns": walked.decision_ns,
            "local_hbm_read_bytes": walked.counted[:, READ_BYTES],
            "remote_hbm_read_bytes": 0,
            "pairs_lost": 0 if self._demand.lost_pairs is None else int(self._demand.lost_pairs.sum()),
        }
        named = {"model": run.model.name, "batch": run.batch, "policy": run.policy.name}
        return named | {
            "layers": self._demand.layers,
            "decode_ns": walked.decode_ns,
            "tokens_per_s": columns.decode_rates(finished)["tokens_per_s"],
            **energy.economics(energy.activity_of(run.model, row), machine, self._screen._coefficients),
        }


def _always(value: Any) -> Callable[[Point], Any]:
    return lambda point: value


# ---- screened
# From a screened space to the points that go on: those that are on the front by the analytical engine, or nearest to
# it. All are written to a file, in row groups.

FILE = "screened.parquet"
MEASURED = ("tokens_per_s", "decode_ns", "energy_per_token_j", "power_w", "die_mm2", "silicon_mm2", "cost_usd")
_OF_POINT = {"model": TEXT, "batch": INTEGER, "policy": TEXT, "layers": INTEGER}
_MEMBERS, _AT_ONCE = 64, 4096  # of the front, and points that are held against them at a time


def screened_points(
    screen: Screen, costs_of: Callable[[PointBlock], np.ndarray], count: int, folder: Path, watcher: Any
) -> list[int]:
    """Numbers of about ``count`` points, shared evenly by the models; writes all that the constraints keep to ``FILE``.

    ``costs_of``: of a block, float64[point, objective]. Raises ArchsimError if the constraints keep none.
    """
    known: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}

    def seen() -> Iterator[tuple[int, dict[str, Any]]]:
        done = 0
        for block in screen.blocks():
            done += len(block.numbers)
            known.setdefault(block.model.name, []).append((block.numbers, costs_of(block)))
            yield len(block.numbers), {"point": block.numbers, **block.axes, **block.columns}
            watcher.at(f"screened {done:,} points", block.share)

    folder.mkdir(parents=True, exist_ok=True)
    write_parquet_columns(folder / FILE, columns_of(screen.plan), seen())
    if not known:
        raise ArchsimError(f"no point is left of {screen.plan.combinations:,}")
    chosen = [_chosen(blocks, -(-count // len(known))) for blocks in known.values()]
    return sorted(np.concatenate(chosen).tolist())


def columns_of(plan: SweepPlan) -> dict[str, str]:
    """Columns of ``FILE`` and their kinds."""
    axes = {column.name: column.kind for column in plan.columns}
    return {"point": INTEGER} | axes | _OF_POINT | {name: BY_NAME[name].kind for name in MEASURED}


def _chosen(blocks: list[tuple[np.ndarray, np.ndarray]], count: int) -> np.ndarray:
    """Of the points of a model. A point of the front is on that of its block."""
    numbers, costs = (np.concatenate(each) for each in zip(*blocks, strict=True))
    front = np.concatenate([pareto(own) for _, own in blocks])
    front[front] = pareto(costs[front])
    ran = every_is_finite(costs)
    return numbers[ran][nearest(costs[ran], front[ran], count)]


def nearest(costs: np.ndarray, front: np.ndarray, count: int) -> np.ndarray:
    """Indices of the front and of the points that it takes least to bring there, ``count`` of them, ascending.

    ``costs: float64[point, objective]``, finite; ``front``: bool[point]. What it takes: the share of every cost after
    which no point of the front is better in all; of a large front, an even sample of it is asked. Of a front of more
    than ``count`` points, those that `_spread_over` it.
    """
    members = np.flatnonzero(front)
    if len(members) > count:
        return np.sort(members[_spread_over(costs[members], count)])
    members = members[np.linspace(0, len(members) - 1, min(len(members), _MEMBERS)).astype(np.int64)]
    lacking = np.zeros(len(costs))
    for begin in range(0, len(costs), _AT_ONCE):
        share = np.full((len(costs[begin : begin + _AT_ONCE]), len(members)), np.inf)
        for own, member in zip(costs[begin : begin + _AT_ONCE].T, costs[members].T, strict=True):
            size = np.maximum(np.abs(own), np.finfo(np.float64).tiny)
            np.minimum(share, (own[:, None] - member) / size[:, None], out=share)
        lacking[begin : begin + _AT_ONCE] = share.max(axis=1)
    lacking[front] = -np.inf
    return np.sort(np.argsort(lacking, kind="stable")[:count])


def _spread_over(costs: np.ndarray, count: int) -> np.ndarray:
    """Indices of ``count`` of these points, all on a front: the best by each objective and others at even ranks of it;
    points of equal costs, after the first of them, only where there are not enough others.
    """
    _, first = np.unique(costs, axis=0, return_index=True)
    first.sort()
    if len(first) <= count:
        return np.concatenate([first, np.setdiff1d(np.arange(len(costs)), first)[: count - len(first)]])
    orders = [first[np.argsort(own, kind="stable")] for own in costs[first].T]
    best = np.array([order[0] for order in orders])
    ranks = np.linspace(0, len(first) - 1, max(1, count // len(orders))).astype(np.int64)
    chosen = np.concatenate([best, *(order[ranks] for order in orders)])
    chosen = chosen[np.sort(np.unique(chosen, return_index=True)[1])][:count]
    others = np.setdiff1d(first, chosen)
    more = others[np.linspace(0, len(others) - 1, count - len(chosen)).astype(np.int64)]
    return np.concatenate([chosen, more])


# ---- search
# Search with two fidelities: an estimate of every point, and few event runs that establish the Pareto front.
#
# 1. Run the points on the front of the estimates, and a few of every *family* (points with similar errors, such as
# those
#    of one policy and model). They give the correction of each family: the median ratio of event run to estimate.
# 2. Run the points on the front of known values and corrected estimates, until every point on it is known.
# 3. Run the points that would be on the front if they beat their estimate by a quantile of the observed errors, those
#    with the largest gain first.
#
# The front is *stable* if no such point is left at the end; else the budget ended the search. Objectives that both
# fidelities know exactly (area, price) have no error, and a correction of 1.

SAMPLED = 2  # points of every family to run, to learn its error
BATCH = 8  # runs between two updates of the errors
QUANTILE = 0.9  # of the observed errors: how much better than estimated a point may be
LEAST_ERROR = 0.01  # engines that have agreed so far may still differ by this, for objectives that are not exact


@dataclass(frozen=True)
class ObjectiveValues:
    """``known: bool[point]`` that were run; ``values``: float64[point, objective], known or corrected.

    ``front``: bool[point], all of them known.
    """

    known: np.ndarray
    values: np.ndarray
    front: np.ndarray
    stable: bool


def search(
    cheap: np.ndarray,
    families: np.ndarray,
    run: Callable[[Sequence[int]], np.ndarray],
    budget: int,
    seed: int = 0,
) -> ObjectiveValues:
    """Establish the front.

    ``cheap``: float64[point, objective], estimates to minimise, of one sign per objective (an objective to maximise is
    negated); ``families``: int64[point]; ``run``: maps indices to event values, float64[index, objective], NaN for a
    failed run; ``budget``: most event runs, at least 1.
    """
    state = _State(np.asarray(cheap, np.float64), np.asarray(families), run, budget)
    state.establish(_first(state, np.random.default_rng(seed)))
    while True:
        todo = state.unknown_on_front()
        if not len(todo):
            todo = state.hopeful()
        if not len(todo) or state.left == 0:
            break
        state.establish(todo[:BATCH])
    values = state.values()
    known = np.where(state.known[:, None], values, np.inf)
    return ObjectiveValues(state.known, values, pareto(known), stable=not len(todo))


def search_each(
    cheap: np.ndarray,
    families: np.ndarray,
    groups: Sequence[str],
    run: Callable[[Sequence[int]], np.ndarray],
    budget: int,
    seed: int = 0,
) -> ObjectiveValues:
    """Establish the front of every group, such as the points of a model: the budget is divided by their numbers of
    points, and what one does not need is left to the next. Otherwise as `search`.
    """
    points, own = len(cheap), np.array(groups)
    every = ObjectiveValues(np.zeros(points, bool), np.array(cheap, np.float64), np.zeros(points, bool), True)
    stable, left, waiting = True, budget, points
    for group in dict.fromkeys(groups):
        members = np.flatnonzero(own == group)
        if budget == 0:  # the front of the estimates
            every.front[members], stable = pareto(every.values[members]), False
            continue
        share, waiting = round(left * len(members) / waiting), waiting - len(members)
        if left == 0:
            stable = False
            continue

        def run_members(asked: Sequence[int], members: np.ndarray = members) -> np.ndarray:
            return run(members[list(asked)].tolist())

        found = search(cheap[members], families[members], run_members, max(1, share), seed)
        every.known[members], every.values[members], every.front[members] = found.known, found.values, found.front
        stable, left = stable and found.stable, left - int(found.known.sum())
    return replace(every, stable=stable)


def gain_over(costs: np.ndarray, front: np.ndarray) -> np.ndarray:
    """By what ratio a point must get worse before a member of ``front`` is nowhere worse: float64[point].

    Above 0: nothing on the front dominates it (the additive epsilon of Zitzler et al., IEEE TEVC 7(2), 2003, of
    relative costs).
    """
    size = np.abs(front)[None] + np.abs(costs)[:, None]
    return ((front[None] - costs[:, None]) / np.where(size > 0, size, 1.0)).max(axis=2).min(axis=1)


def _spread(costs: np.ndarray, points: np.ndarray, count: int) -> list[int]:
    """At most ``count`` of ``points``, each the one that the earlier ones cover least; the first has the least cost."""
    taken: list[int] = []
    left = points
    gain = -costs[left, 0]
    while len(left) and len(taken) < count:
        best = gain.argmax()
        taken.append(int(left[best]))
        fresh = gain_over(costs[left], costs[left[best]][None])
        gain = fresh if len(taken) == 1 else np.minimum(gain, fresh)
        left, gain = np.delete(left, best), np.delete(gain, best)
    return taken


def _first(state: _State, rng: np.random.Generator) -> np.ndarray:
    """The front of the estimates, up to half of the budget, and a sample of every family."""
    front = np.flatnonzero(pareto(state.cheap))
    half = max(1, state.left // 2)
    taken = _spread(state.cheap, front, half)
    for family in np.unique(state.families):
        members = np.flatnonzero((state.families == family) & np.isfinite(state.cheap).all(axis=1))
        missing = SAMPLED - np.isin(members, taken).sum()
        others = np.setdiff1d(members, taken)
        if missing > 0 and len(others):
            taken += list(rng.choice(others, min(missing, len(others)), replace=False))
    return np.array(taken[: max(1, state.left * 3 // 4)], np.int64)


class _State:
    def __init__(self, cheap: np.ndarray, families: np.ndarray, run: Callable, budget: int) -> None:
        self.cheap, self.families, self._run, self.left = cheap, families, run, budget
        self.known = np.zeros(len(cheap), bool)
        self._event = np.full_like(cheap, np.nan)

    def establish(self, points: np.ndarray) -> None:
        """Run points within the budget. A failed run has infinite costs."""
        points = points[~self.known[points]][: self.left]
        if len(points):
            found = np.asarray(self._run(points.tolist()), np.float64)
            self._event[points] = np.where(np.isnan(found), np.inf, found)
            self.known[points] = True
            self.left -= len(points)

    def values(self) -> np.ndarray:
        """Known values, and corrected estimates of the others."""
        corrected = self.cheap * np.exp(self._corrections())
        return np.where(self.known[:, None], self._event, corrected)

    def unknown_on_front(self) -> np.ndarray:
        """Points on the front of known values and estimates, those that the known ones cover least first."""
        values = self.values()
        unknown = np.flatnonzero(pareto(values) & ~self.known)
        covered = values[self.known & np.isfinite(values).all(axis=1)]
        if not len(covered):
            return unknown
        return unknown[np.argsort(-gain_over(values[unknown], covered), kind="stable")]

    def hopeful(self) -> np.ndarray:
        """Points that could be on the front given the observed errors, the most promising first."""
        values, luck = self.values(), self._errors()
        front = values[pareto(np.where(self.known[:, None], values, np.inf))]
        if not len(front):
            return np.flatnonzero(~self.known)
        lucky = np.where(values > 0, values * np.exp(-luck), values * np.exp(luck))
        waiting = np.flatnonzero(~self.known & np.isfinite(values).all(axis=1))
        gain = gain_over(lucky[waiting], front)
        order = np.argsort(-gain, kind="stable")
        return waiting[order][gain[order] > 0]

    def _log_ratios(self) -> np.ndarray:
        """ln(event / estimate), float64[point, objective]; NaN if unknown, failed or without a ratio."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.log(self._event / self.cheap)
        return np.where(np.isfinite(ratios), ratios, np.nan)

    def _by_family(self, ratios: np.ndarray, of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """A value for every point and objective: of its family if that has known points, else of all points."""
        nothing = np.zeros(self.cheap.shape[1])
        seen = np.isfinite(ratios).all(axis=1)
        result = np.tile(of(ratios[seen]) if seen.any() else nothing, (len(self.cheap), 1))
        for family in np.unique(self.families[seen]):
            own = self.families == family
            result[own] = of(ratios[own & seen])
        return result

    def _corrections(self) -> np.ndarray:
        return self._by_family(self._log_ratios(), lambda ratios: np.median(ratios, axis=0))

    def _errors(self) -> np.ndarray:
        """How much better than its corrected estimate a point may be, as a logarithm; 0 for exact objectives."""
        ratios = self._log_ratios()
        misses = np.abs(ratios - self._corrections())
        every = misses[np.isfinite(misses).all(axis=1)]
        if not len(every):
            return np.zeros_like(self.cheap)
        exact = (np.abs(ratios[np.isfinite(ratios).all(axis=1)]) < 1e-12).all(axis=0)
        overall = np.quantile(every, QUANTILE, axis=0)
        own = self._by_family(misses, lambda each: np.quantile(each, QUANTILE, axis=0))
        return np.where(exact, 0.0, np.maximum(np.maximum(own, overall / 2), LEAST_ERROR))


# ---- engine_runs
# Run points on one engine, each once, and keep the results.

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


# ---- sampling
# Sample a space that is too large to run completely: optuna proposes points from the results of others.
#
# NSGA-II (Deb et al., IEEE TEVC 6(2), 2002) over a point's index in every group of axes, as implemented in optuna.

GENERATION = 50  # points proposed together; optuna's default population
PATIENCE = 20  # generations without a new point that is kept, after which the space counts as exhausted


def sample_points(
    plan: SweepPlan,
    measures: Mapping[str, Callable[[Point], Any]],
    evaluate: Callable[[Sequence[Point]], Sequence[np.ndarray]],
    count: int,
    objectives: int,
    seed: int,
) -> list[Point]:
    """At most ``count`` points that the sweep's constraints keep, ordered by number.

    evaluate: costs of points, float64[objective] each, infinite for one that failed. Raises ArchsimError if optuna is
    not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ArchsimError(
            "explore.analytical_runs is below the number of points: sampling needs optuna: pip install "
            "'archsim[explore]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        directions=["minimize"] * objectives,
        sampler=optuna.samplers.NSGAIISampler(seed=seed, population_size=GENERATION),
    )
    within: dict[str, optuna.distributions.BaseDistribution] = {
        f"group {place}": optuna.distributions.IntDistribution(0, size - 1) for place, size in enumerate(plan.sizes)
    }
    seen: dict[int, np.ndarray] = {}
    points: dict[int, Point] = {}
    idle = 0
    while len(points) < count and idle < PATIENCE:
        trials = [study.ask(within) for _ in range(GENERATION)]
        asked = [plan.index_of(tuple(trial.params.values())) for trial in trials]
        fresh = [plan.point(index) for index in dict.fromkeys(asked) if index not in seen]
        fresh = [point for point in fresh if plan.keeps(point, measures)][: count - len(points)]
        seen |= {point.index: costs for point, costs in zip(fresh, evaluate(fresh) if fresh else [], strict=True)}
        points |= {point.index: point for point in fresh}
        idle = 0 if fresh else idle + 1
        for trial, index in zip(trials, asked, strict=True):
            costs = seen.get(index)
            if costs is None or not np.isfinite(costs).all():
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, costs.tolist())
    if not points:
        raise ArchsimError(
            f"no point of {plan.combinations:,} that optuna proposed satisfies the constraints of the sweep"
        )
    return [points[index] for index in sorted(points)]


# ---- explore
# Explore a sweep: the analytical engine on every point, the event engine on and near the front.

ANALYTICAL, EVENT, WORLDS = "analytical", "event", "worlds"


def explore(
    plan: SweepPlan, spec: ExploreSpec, folder: Path, jobs: int | None, watching: Callable[[], Any]
) -> Exploration:
    """Find the front of a sweep. Raises as ``archsim.runs.sweep.sweep``.

    ``plan``: with the analytical engine; ``watching``: returns a context manager that gives a watcher, once per stage.
    Finished runs are kept in ``folder`` and reused.
    """
    plan = plan_of(plan)
    judge = Judge(spec, energy.Coefficients().changed(spec.coefficients))
    jobs = jobs or available_cores()
    with watching() as watcher:
        watcher.phase(f"1 of 2: points on the analytical engine, of {plan.combinations:,}")
        ran = _estimated(plan, judge, folder / ANALYTICAL, jobs, watcher)
        (points, cheap, dropped, told), yields = of_designs(plan, ran) if is_drawn(plan) else (ran, {})
    if judge.draws:
        if is_drawn(plan):
            raise ArchsimError(
                "explore.objectives: a risk over worlds and machines that are drawn cannot be told apart. Give the "
                "design a fixed wafer, or take the objective itself"
            )
        with watching() as watcher:
            points, told = _drawn(plan, judge, points, cheap, folder / WORLDS, jobs, watcher, told)
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
        values, shown = judge.values(point, row), candidate_of(plan, point, judge.estimated(point, row))
        candidates.append(replace(shown, values=values, cheap=own, front=front, allowed=judge.allows(values)))
    return Exploration(
        name=plan.experiment.name, spec=spec, points=tuple(without_constants(candidates)),
        combinations=plan.combinations, dropped=dropped, budget=budget, stable=found.stable,
        failures=tuple(events.failures), assumptions=tuple(each.label for each in plan.experiment.assumptions),
        notes=(*told, *notes_of(points, rows), *plan.experiment.unread), layers=layers_of(points, rows),
    )  # fmt: skip


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
    coefficients: energy.Coefficients
    slower: dict[int, np.ndarray] = field(default_factory=dict)
    """Number of a point → float64[sample], time of every world over that of the point itself."""

    @property
    def draws(self) -> bool:
        """Whether an objective is about many worlds."""
        return any(risk_of(name) for name in self.spec.objectives if name not in OBJECTIVES)

    def values(self, point: Point, row: Row) -> dict[str, float]:
        """Every objective of a run, NaN if it has none; energy, area and price by these coefficients."""
        own = objectives_of(point.model, self.estimated(point, row))
        return with_expressions(own, self.spec.objectives, self.slower.get(point.index))

    def estimated(self, point: Point, row: Row) -> Row:
        """The row with energy, area and price by these coefficients."""
        own = energy.economics(
            energy.activity_of(point.model, row), energy.build_costs(point.system, self.coefficients), self.coefficients
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
    """Designs in the place of the machines that were drawn of each: of its working machines the median one, whose
    throughput stands for the mean of all that were made, scrapped ones with 0; and point → that mean over its own.
    """
    at = next(at for at, group in enumerate(plan.sweep.groups) if group.axes[0].path == WAFER)
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
        mean = sum(ran.rows[point.index]["tokens_per_s"] for point in machines) / every
        yields[middle.index] = mean / ran.rows[middle.index]["tokens_per_s"]
        points.append(middle)
    points.sort(key=lambda point: point.index)
    rows = {point.index: _yielding(ran.rows[point.index], yields, point.index) for point in points}
    told = (
        f"{made} machines were drawn of every design; its throughput is the mean of all that were made, with 0 for "
        "scrapped ones, and all else is that of its median machine",
    )
    return _Cheap(points, rows, ran.dropped, (*ran.told, *told)), yields


def _yielding(row: Row, yields: Mapping[int, float], index: int) -> Row:
    """The row of a point with the throughput of its design, once."""
    if index not in yields or SCALED in row:
        return row
    rates = {name: row[name] * yields[index] for name in ("tokens_per_s", "throughput_tokens_per_s") if row.get(name)}
    return {**row, **rates, SCALED: 1}


def _estimated(plan: SweepPlan, judge: Judge, folder: Path, jobs: int, watcher: Any) -> _Cheap:
    """The points that the analytical engine runs: all that the constraints keep; of a larger space those that a screen
    leaves, where its points share plans, or that optuna proposes.
    """
    spec = judge.spec
    if plan.combinations <= spec.analytical_runs:
        selection = select(plan, watcher.phase)
        rows = {row["point"]: row for row in sweep.sweep_selected(selection, folder, jobs, watcher).runs.rows}
        return _Cheap([plan.point(index) for index in selection.kept], rows, dict(selection.dropped.by_constraint))
    if is_drawn(plan):
        raise ArchsimError(
            f"{plan.combinations:,} points, those of drawn machines included, are more than explore.analytical_runs "
            f"({spec.analytical_runs:,}), and all machines of a design are run. Raise it, or draw fewer wafers"
        )
    runs = EngineRuns(ANALYTICAL, plan, folder, jobs, watcher)
    told: tuple[str, ...] = ()
    if (screen := Screen(plan, judge.coefficients)).applies:
        count = min(spec.screened_runs, spec.analytical_runs)
        watcher.phase(f"screening {plan.combinations:,} points; then {count:,} on and near the front are run whole")
        points = [plan.point(at) for at in screened_points(screen, judge.costs_of, count, folder, watcher)]
        watcher.begin(len(points))
        runs.run(points)
        told = (
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
    return _Cheap([point for point in points if point.index in runs.known], runs.known, {}, told)


def _drawn(
    plan: SweepPlan,
    judge: Judge,
    points: list[Point],
    cheap: Mapping[int, Row],
    folder: Path,
    jobs: int,
    watcher: Any,
    told: tuple[str, ...],
) -> tuple[list[Point], tuple[str, ...]]:
    """The points nearest to the front, whose analytical runs are drawn in many worlds, the same for all; ``judge``
    learns how much slower each is in every world.
    """
    spec, maker = judge.spec, RunMaker(plan=plan)
    costs = np.array([judge.costs(point, cheap[point.index]) for point in points])
    ran = np.flatnonzero(np.isfinite(costs).all(axis=1))
    if len(ran):
        ran = ran[nearest(costs[ran], pareto(costs[ran]), spec.drawn_designs)]
    chosen = [points[at] for at in ran]
    runs = maker.runs([point._replace(engine=ANALYTICAL) for point in chosen])
    watcher.phase(f"{len(runs):,} designs in {spec.samples:,} worlds")
    worlds = Worlds(runs, spec.samples, spec.seed)
    folder.mkdir(parents=True, exist_ok=True)
    found = propagate(runs, worlds, folder, maker.traces, jobs, watcher)
    for point, each in zip(chosen, found, strict=True):
        judge.slower[point.index] = each.ns / each.value_ns
    said = (
        f"risks are those of {spec.samples:,} worlds (archsim sure), the same for all designs, of the {len(chosen):,} "
        f"of {len(points):,} designs on and nearest to the front; a probability counts half a world more on either side"
    )
    return chosen, (*told, said)


def _families(points: Sequence[Point]) -> np.ndarray:
    """Families of points with similar analytical error: same model, policy, assumption set and topology.

    int64[point].
    """
    names = [(each.model.name, each.policy.name, each.assumptions.label, each.system.kind_of_fabric) for each in points]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names])


# ---- study


def explore_to_report(
    plan: SweepPlan, spec: ExploreSpec, folder: Path, jobs: int | None, watching: Callable[[], Any]
) -> Exploration:
    """Like ``explore``, but writes ``index.html`` and a report for each recommended design to ``folder``."""
    with sole_writer(folder):
        functions = plan.experiment.all_columns
        unread = {UNREAD: list(plan.experiment.unread)} if plan.experiment.unread else {}
        results.write_manifest(folder, given(plan, spec), {"points": plan.combinations} | unread, functions)
        found = explore(plan, spec, folder, jobs, watching)
        engine = EVENT if found.budget else ANALYTICAL
        designs = {
            point.index: plan.resolved(plan.point(point.index)._replace(engine=engine))
            for point in wanted(found).values()
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
    sweep.sweep(ExperimentSpec.model_validate(tree), own, jobs, watcher)
    return write_report(own).relative_to(folder).as_posix()
