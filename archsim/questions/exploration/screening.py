"""Screen a space: objectives of every point by the analytical engine, many machines in one call. Points of a *family*
differ only in rates and latencies and share their plans. Times are those of single runs to the bit, energy and price to
rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from archsim.base.sums import sum
from archsim.engine.analytic import machines, recorded_steps, walk
from archsim.engine.analytic.rates import RATES, with_rates
from archsim.engine.demand import RunDemand
from archsim.engine.fabrics import build_fabric, carriers_of
from archsim.engine.loop import RunOutcome
from archsim.engine.pair_traffic import statistics_bytes
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.runs import energy, point_measures, prices
from archsim.runs.finished import Finished
from archsim.runs.measures.times import decode_rates
from archsim.runs.measures.units import shown_links
from archsim.runs.plan import RunMaker
from archsim.runs.run import Run
from archsim.runs.simulator import Simulator
from archsim.specs.plan import AxisColumn, Point, SweepPlan
from microarch.fabric.grid import ROW_MAJOR

LEAST_SHARED = 64  # points of a family; with fewer, one after the other is as fast

Columns = Mapping[str, Any]  # name of a column → float64[point]; numbers and texts are those of all points


class PointBlock(NamedTuple):
    """Points of one model that the constraints keep."""

    model: ModelSpec  # of all of them
    numbers: np.ndarray  # int64[point]: in the sweep
    columns: Columns  # column of results → array[point]
    axes: Columns  # column of an axis → cells
    share: float  # of all work of the screen that is done with them


class Screen:
    """The families of a plan. Raises as `archsim.runs.plan.RunMaker.runs`."""

    def __init__(self, plan: SweepPlan, coefficients: prices.Coefficients) -> None:
        self.plan, self._coefficients = plan, coefficients
        sizes, groups = plan.sizes, plan.sweep.groups
        self._strides = [prod(sizes[at + 1 :]) for at in range(len(sizes))]
        self._rated = [at for at, group in enumerate(groups) if all(axis.path[1:] in RATES for axis in group.axes)]
        self._others = [at for at in range(len(sizes)) if at not in self._rated]
        self._maker = RunMaker(plan=plan)
        self._measures = point_measures.PartMeasures(self._maker.contexts)

    @cached_property
    def applies(self) -> bool:
        """Whether all points belong to families of many."""
        if self.plan.experiment.all_columns or self.family < LEAST_SHARED:
            return False
        return all(machines.shares_plan(run) for run in self._runs())

    @property
    def family(self) -> int:
        return prod(self.plan.sizes[at] for at in self._rated)

    def blocks(self) -> Iterator[PointBlock]:
        """The blocks of all points that the constraints keep."""
        simulator = Simulator(self._maker.traces)
        families = prod(self.plan.sizes[at] for at in self._others)
        for at, run in enumerate(self._runs()):
            for block in _Family(self, run, simulator).blocks():
                yield block._replace(share=(at + block.share) / families)

    def _runs(self) -> Iterator[Run]:
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
        self._costs = prices.build_costs(run.system, screen._coefficients)
        self._link_class = build_fabric(run.system, ROW_MAJOR).link_class

    def blocks(self) -> Iterator[PointBlock]:
        first, family = recorded_steps.record(self._run, self._demand), self._screen.family
        at_once = first.most_machines
        recorded = {carriers_of(self._run): first}
        for begin in range(0, family, at_once):
            end = min(begin + at_once, family)
            block = self._block(recorded, self._screen.digits(np.arange(begin, end)), end - begin)
            if len(block.numbers):
                yield block._replace(share=end / family)

    def _block(
        self, recorded: dict[int, recorded_steps.RecordedSteps], digits: dict[int, np.ndarray], count: int
    ) -> PointBlock:
        system = self._system(digits, count)
        machine = self._price(system)
        kept = np.broadcast_to(self._keeps(machine, digits), count)
        if not kept.all():
            digits, count = {at: each[kept] for at, each in digits.items()}, int(kept.sum())
            system = self._system(digits, count)
            machine = self._price(system)
        points = self._screen.numbers(self._base, digits, count)
        if not count:
            return PointBlock(self._run.model, points, {}, {}, 0.0)
        walked = machines.walk_all_carriers(recorded, system, self._demand, walk.walk_strategy(self._run.assumptions))
        outcome = next(iter(recorded.values())).outcome
        axes = self._plan.cells(self._plan.point(self._base))
        axes |= {name: cells[digits[at]] for name, (at, cells) in self._screen.cells.items()}
        return PointBlock(self._run.model, points, self._columns(outcome, walked, machine), axes, 0.0)

    def _system(self, digits: Mapping[int, np.ndarray], count: int) -> SystemSpec:
        """That stands for the machines of points."""
        rates = {(path[1], path[2]): values[digits[at]] for path, (at, values) in self._screen.values.items()}
        return with_rates(self._run.system, rates, count)

    def _price(self, system: SystemSpec) -> prices.SystemHardware:
        return prices.costs_of_many(system, self._costs, self._link_class, self._screen._coefficients)

    def _keeps(self, machine: prices.SystemHardware, digits: Mapping[int, np.ndarray]) -> Any:
        point, screen = self._plan.point(self._base), self._screen
        own = {"die_mm2": machine.die_mm2, "silicon_mm2": machine.silicon_mm2, "cost_usd": sum(machine.usd.values())}
        measures = dict(screen._measures.functions()) | {name: _always(value) for name, value in own.items()}

        def value(point: Point, path: tuple[str, ...]) -> Any:
            if path not in screen.values:
                return self._plan.value(point, path)
            at, values = screen.values[path]
            return values[digits[at]]

        return self._plan.keeps(point, measures, value)

    def _columns(
        self, outcome: RunOutcome, walked: machines.ManyWalked, machine: prices.SystemHardware
    ) -> dict[str, Any]:
        """Columns of objectives, and those that say which point it is."""
        run = self._run
        no_source: Any = None  # a throughput needs no token one by one
        # of each point, as arrays
        timed: dict[str, Any] = {"prefill_ns": walked.prefill_ns, "decode_ns": walked.decode_ns}
        finished = Finished(run, self._demand, no_source, replace(outcome, **timed))
        tokens = int(outcome.load.sum())
        counted: dict[str, list[Any]] = {"tokens": [tokens], "hbm_bytes": [walked.counted[:, machines.HBM_BYTES]]}
        shown, fabric = shown_links(outcome), outcome.fabric
        statistics = statistics_bytes(outcome.machine, outcome.tally)[fabric.link_src[shown] != fabric.link_dst[shown]]
        crossed: dict[str, list[Any]] = {
            "bytes": [walked.counted[:, machines.LINK_BYTES] + statistics.sum()],
            "src": [0],
            "dst": [1],
        }
        row = energy.work_of(run.model, run.assumptions, counted, crossed, int(outcome.counts.padded.sum())) | {
            "prefill_ns": walked.prefill_ns,
            "decode_ns": walked.decode_ns,
            "decision_ns": walked.decision_ns,
            "local_hbm_read_bytes": walked.counted[:, machines.READ_BYTES],
            "remote_hbm_read_bytes": 0,
            "pairs_lost": 0 if self._demand.lost_pairs is None else int(self._demand.lost_pairs.sum()),
        }
        named = {"model": run.model.name, "batch": run.batch, "policy": run.policy.name}
        return named | {
            "layers": self._demand.layers,
            "decode_ns": walked.decode_ns,
            "tokens_per_s": decode_rates(finished)["tokens_per_s"],
            **energy.economics(
                energy.activity_of(run.model, row | {"batch": run.batch}), machine, self._screen._coefficients
            ),
        }


def _always(value: Any) -> Callable[[Point], Any]:
    return lambda point: value
