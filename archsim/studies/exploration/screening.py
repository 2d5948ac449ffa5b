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
    PARTS,
    RATES,
    Recorded,
    Rows,
    Walked,
    record,
    rows_of,
    shares_plan,
    walk_machines,
)
from archsim.engine.analytic.walk import HBM_BYTES, LINK_BYTES, READ_BYTES, walk_strategy
from archsim.runs import columns
from archsim.runs.columns import BY_NAME, Finished
from archsim.runs.energy import Coefficients, Machine, activity_of, build_costs, economics, priced, work_of
from archsim.runs.feasibility import Measures
from archsim.runs.plan import RunMaker
from archsim.runs.run import Run
from archsim.runs.simulator import Simulator
from archsim.specs.model import ModelSpec
from archsim.specs.plan import AxisColumn, Point, SweepPlan
from archsim.studies.exploration.analysis import pareto

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
        if self.plan.experiment.all_columns or self._shared < LEAST_SHARED:
            return False
        return all(shares_plan(run.scenario) for run in self._runs())

    @property
    def _shared(self) -> int:
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

    def number(self, base: int, digits: Mapping[int, Any]) -> Any:
        """Number of the point with these digits of the rated groups."""
        return base + sum(digit * self._strides[at] for at, digit in digits.items())

    @cached_property
    def values(self) -> dict[tuple[str, ...], tuple[int, np.ndarray]]:
        """Path of every rated axis → its group, and the values of its digits, float64[digit]."""
        return {axis.path: (at, self._values(at, axis.path)) for at, axis in self._axes()}

    @cached_property
    def cells(self) -> dict[str, tuple[int, np.ndarray]]:
        """Column of every rated axis → its group, and the cells of its digits."""
        columns = {axis.name: AxisColumn(axis) for _, axis in self._axes()}
        return {
            columns[axis.name].name: (at, np.array([columns[axis.name].cell(value) for value in axis.values]))
            for at, axis in self._axes()
        }

    def _axes(self) -> Iterator[tuple[int, Any]]:
        return ((at, axis) for at in self._rated for axis in self.plan.sweep.groups[at].axes)

    def _values(self, at: int, path: tuple[str, ...]) -> np.ndarray:
        points = (self.plan.point(self.number(0, {at: digit})) for digit in range(self.plan.sizes[at]))
        return np.array([self.plan.value(point, path) for point in points], np.float64)

    def groups_of(self, part: str) -> list[int]:
        """The rated groups that a part depends on."""
        groups = self.plan.sweep.groups
        return [at for at in self._rated if any(axis.path[1:] in PARTS[part] for axis in groups[at].axes)]

    @property
    def rest(self) -> list[int]:
        """Rated groups that ``work`` does not depend on."""
        return [at for at in self._rated if at not in self.groups_of("work")]


class _Part(NamedTuple):
    """One combination of the rates of a part: its steps, and the costs of its machine."""

    recorded: Recorded
    costs: Machine


class _Family:
    """Points that differ in rates alone from that of ``run``."""

    def __init__(self, screen: Screen, run: Run, simulator: Simulator) -> None:
        self._screen, self._run, self._plan = screen, run, screen.plan
        assert run.point is not None
        self._base, self._demand = run.point, simulator.replay(run).demands
        self._costs = build_costs(run.system, screen._coefficients)

    def blocks(self) -> Iterator[Block]:
        screen, sizes = self._screen, self._plan.sizes
        links, llc = ([part for _, part in self._parts(name, alone=True)] for name in ("links", "llc"))
        rows = rows_of(*([each.recorded for each in parts] for parts in (links, llc)))
        d2d_mm2 = np.array([each.costs.area_mm2["d2d"] for each in links])
        shape = [sizes[at] for at in screen.rest]
        inner = np.indices(shape).reshape(len(shape), prod(shape))  # one point, if nothing but work varies
        works = prod(sizes[at] for at in screen.groups_of("work"))
        for at, (digits, work) in enumerate(self._parts("work"), 1):
            every = {at: np.full(inner.shape[1], digit) for at, digit in digits.items()}
            every |= dict(zip(screen.rest, inner, strict=True))
            points = np.broadcast_to(screen.number(self._base, every), inner.shape[1])
            block = self._block(points, every, work, rows, d2d_mm2)
            if len(block.numbers):
                yield block._replace(share=at / works)

    def _parts(self, name: str, alone: bool = False) -> Iterator[tuple[dict[int, int], _Part]]:
        """Every combination of a part, in the order of `_code`. ``alone``: its machine, without work."""
        groups = self._screen.groups_of(name)
        for chosen in product(*(range(self._plan.sizes[at]) for at in groups)):
            digits = dict(zip(groups, chosen, strict=True))
            system = self._plan.point(self._screen.number(self._base, digits)).system
            recorded = record(replace(self._run.scenario, system=system), self._demand)
            costs = build_costs(system, self._screen._coefficients)
            yield digits, _Part(recorded.machine_alone if alone else recorded, costs)

    def _code(self, name: str, digits: Mapping[int, np.ndarray], count: int) -> np.ndarray:
        """Number of each point's combination of a part, int64[point]."""
        code = np.zeros(count, np.int64)
        for at in self._screen.groups_of(name):
            code = code * self._plan.sizes[at] + digits[at]
        return code

    def _block(
        self, points: np.ndarray, digits: dict[int, np.ndarray], work: _Part, rows: Rows, d2d_mm2: np.ndarray
    ) -> Block:
        """``points``: their numbers; ``d2d_mm2``: float64[row of links], of a die."""
        row, llc_row = (self._code(name, digits, len(points)) for name in ("links", "llc"))
        machine = self._priced(work, d2d_mm2[row])
        kept = np.broadcast_to(self._keeps(machine, digits), len(points))
        row, llc_row, points = row[kept], llc_row[kept], points[kept]
        digits = {at: each[kept] for at, each in digits.items()}
        machine = self._priced(work, d2d_mm2[row])
        walked = walk_machines(work.recorded, rows, row, llc_row, walk_strategy(self._run.assumptions))
        axes = self._plan.cells(self._plan.point(self._base))
        axes |= {name: cells[digits[at]] for name, (at, cells) in self._screen.cells.items()}
        return Block(self._run.model, points, self._columns(work.recorded, walked, machine), axes, 0.0)

    def _priced(self, work: _Part, d2d_mm2: np.ndarray) -> Machine:
        """Area and price, float64[point]: areas of blocks are those of the parts that they depend on."""
        area = dict(self._costs.area_mm2)
        area |= {name: work.costs.area_mm2[name] for name in ("compute", "hbm")}
        area["d2d"] = d2d_mm2
        return priced(
            self._run.system, area, self._costs.decision, work.costs.stacks_per_die, self._screen._coefficients
        )

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

    def _columns(self, recorded: Recorded, walked: Walked, machine: Machine) -> dict[str, Any]:
        """Columns of objectives, and those that say which point it is."""
        run, outcome = self._run, recorded.outcome
        assert outcome is not None
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
    members = members[np.linspace(0, len(members) - 1, min(len(members), _MEMBERS)).astype(np.int64)]
    lacking = np.zeros(len(costs))
    for begin in range(0, len(costs), _AT_ONCE):
        own = costs[begin : begin + _AT_ONCE, None, :]
        share = (own - costs[None, members, :]) / np.maximum(np.abs(own), np.finfo(np.float64).tiny)
        lacking[begin : begin + _AT_ONCE] = share.min(axis=2).max(axis=1)
    lacking[front] = -np.inf
    return np.sort(np.argsort(lacking, kind="stable")[:count])
