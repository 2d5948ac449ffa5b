"""Screen a space: objectives of every point by the analytical engine, many machines in one call.

Points of a *family* differ only in rates and latencies of their machine, and share their plans
(`archsim.engine.analytic.machines`). Their values are columns, never rows; `archsim.studies.exploration.screening` says
which points go on to the search.

Values are those of single runs: times to the bit, energy and price to rounding (a power of an array may differ from
that of a number in its last digit).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.base.tables import INTEGER, TEXT, write_parquet_columns
from archsim.engine.analytic.machines import (
    RATES,
    Recorded,
    Walked,
    record,
    shares_plan,
    walk_all_carriers,
    with_rates,
)
from archsim.engine.analytic.walk import HBM_BYTES, LINK_BYTES, READ_BYTES, walk_strategy
from archsim.engine.loop import Outcome
from archsim.engine.machine import build_fabric, carriers_of
from archsim.runs import columns
from archsim.runs.columns import BY_NAME, Finished
from archsim.runs.energy import Coefficients, Machine, activity_of, build_costs, costs_of_many, economics, work_of
from archsim.runs.feasibility import Measures
from archsim.runs.plan import RunMaker
from archsim.runs.run import Run
from archsim.runs.simulator import Simulator
from archsim.specs.model import ModelSpec
from archsim.specs.plan import AxisColumn, Point, SweepPlan
from archsim.specs.system import SystemSpec
from archsim.studies.exploration.analysis import pareto
from microarch.fabric.topology import ROW_MAJOR

# ---- screening

LEAST_SHARED = 64  # points of a family; with fewer, one after the other is as fast

Columns = Mapping[str, Any]
"""Name of a column → float64[point]; numbers and texts are those of all points."""


class Block(NamedTuple):
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

    def __init__(self, plan: SweepPlan, coefficients: Coefficients) -> None:
        self.plan, self._coefficients = plan, coefficients
        sizes, groups = plan.sizes, plan.sweep.groups
        self._strides = [prod(sizes[at + 1 :]) for at in range(len(sizes))]
        self._rated = [at for at, group in enumerate(groups) if all(axis.path[1:] in RATES for axis in group.axes)]
        self._others = [at for at in range(len(sizes)) if at not in self._rated]
        self._maker = RunMaker(plan=plan)
        self._measures = Measures(self._maker.contexts)

    @cached_property
    def applies(self) -> bool:
        """Whether all points belong to families of many."""
        if self.plan.experiment.all_columns or self.family < LEAST_SHARED:
            return False
        return all(shares_plan(run.scenario) for run in self._runs())

    @property
    def family(self) -> int:
        """Points of a family."""
        return prod(self.plan.sizes[at] for at in self._rated)

    def blocks(self) -> Iterator[Block]:
        """Of all points that the constraints keep."""
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
        self._base, self._demand = run.point, simulator.replay(run).demands
        self._costs = build_costs(run.system, screen._coefficients)
        self._link_class = build_fabric(run.system, ROW_MAJOR).link_class

    def blocks(self) -> Iterator[Block]:
        first, family = record(self._run.scenario, self._demand), self._screen.family
        at_once = first.most_machines
        recorded = {carriers_of(self._run.scenario): first}
        for begin in range(0, family, at_once):
            end = min(begin + at_once, family)
            block = self._block(recorded, self._screen.digits(np.arange(begin, end)), end - begin)
            if len(block.numbers):
                yield block._replace(share=end / family)

    def _block(self, recorded: dict[int, Recorded], digits: dict[int, np.ndarray], count: int) -> Block:
        system = self._system(digits, count)
        machine = self._priced(system)
        kept = np.broadcast_to(self._keeps(machine, digits), count)
        if not kept.all():
            digits, count = {at: each[kept] for at, each in digits.items()}, int(kept.sum())
            system = self._system(digits, count)
            machine = self._priced(system)
        points = self._screen.numbers(self._base, digits, count)
        if not count:
            return Block(self._run.model, points, {}, {}, 0.0)
        walked = walk_all_carriers(recorded, system, self._demand, walk_strategy(self._run.assumptions))
        outcome = next(iter(recorded.values())).outcome
        axes = self._plan.cells(self._plan.point(self._base))
        axes |= {name: cells[digits[at]] for name, (at, cells) in self._screen.cells.items()}
        return Block(self._run.model, points, self._columns(outcome, walked, machine), axes, 0.0)

    def _system(self, digits: Mapping[int, np.ndarray], count: int) -> SystemSpec:
        """That stands for the machines of points."""
        rates = {path[1:]: values[digits[at]] for path, (at, values) in self._screen.values.items()}
        return with_rates(self._run.system, rates, count)

    def _priced(self, system: SystemSpec) -> Machine:
        return costs_of_many(system, self._costs, self._link_class, self._screen._coefficients)

    def _keeps(self, machine: Machine, digits: Mapping[int, np.ndarray]) -> Any:
        point, screen = self._plan.point(self._base), self._screen
        own = {"die_mm2": machine.die_mm2, "silicon_mm2": machine.silicon_mm2, "cost_usd": sum(machine.usd.values())}
        measures = dict(screen._measures.functions()) | {name: _always(value) for name, value in own.items()}

        def value(point: Point, path: tuple[str, ...]) -> Any:
            if path not in screen.values:
                return self._plan.value(point, path)
            at, values = screen.values[path]
            return values[digits[at]]

        return self._plan.keeps(point, measures, value)

    def _columns(self, outcome: Outcome, walked: Walked, machine: Machine) -> dict[str, Any]:
        """Columns of objectives, and those that say which point it is."""
        run = self._run
        timed = replace(outcome, prefill_ns=walked.prefill_ns, decode_ns=walked.decode_ns)
        finished = Finished(run, self._demand, None, timed)
        counted = {"tokens": [int(outcome.load.sum())], "hbm_bytes": [walked.counted[:, HBM_BYTES]]}
        between_dies = {"bytes": [walked.counted[:, LINK_BYTES]], "src": [0], "dst": [1]}
        row = work_of(run.model, run.assumptions, counted, between_dies, int(outcome.counts.padded.sum())) | {
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
            "tokens_per_s": columns.tokens_per_s(finished),
            **economics(activity_of(run.model, row), machine, self._screen._coefficients),
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
    screen: Screen, costs_of: Callable[[Block], np.ndarray], count: int, folder: Path, watcher: Any
) -> list[int]:
    """Numbers of about ``count`` points, shared evenly by the models; writes all that the constraints keep to ``FILE``.

    ``costs_of``: of a block, float64[point, objective]. Raises ArchsimError if the constraints keep none.
    """
    known: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}

    def seen() -> Iterator[tuple[int, dict[str, Any]]]:
        for block in _told(screen, watcher):
            known.setdefault(block.model.name, []).append((block.numbers, costs_of(block)))
            yield len(block.numbers), {"point": block.numbers, **block.axes, **block.columns}

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


def _told(screen: Screen, watcher: Any) -> Iterator[Block]:
    done = 0
    for block in screen.blocks():
        yield block
        done += len(block.numbers)
        watcher.at(f"screened {done:,} points", block.share)


def _chosen(blocks: list[tuple[np.ndarray, np.ndarray]], count: int) -> np.ndarray:
    """Of the points of a model. A point of the front is on that of its block."""
    numbers, costs = (np.concatenate(each) for each in zip(*blocks, strict=True))
    front = np.concatenate([pareto(own) for _, own in blocks])
    front[front] = pareto(costs[front])
    ran = np.isfinite(costs).all(axis=1)
    return numbers[ran][nearest(costs[ran], front[ran], count)]


def nearest(costs: np.ndarray, front: np.ndarray, count: int) -> np.ndarray:
    """Indices of the front and of the points that it takes least to bring there, ``count`` of them, ascending.

    ``costs: float64[point, objective]``, finite; ``front``: bool[point]. What it takes: the share of every cost after
    which no point of the front is better in all; of a large front, an even sample of it is asked.
    """
    members = np.flatnonzero(front)
    if len(members) >= count:
        return members[:count]
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
