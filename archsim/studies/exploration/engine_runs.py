"""Run points on one engine, each once, and keep the results."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from archsim.runs.plan import RunMaker
from archsim.runs.pool.processes import simulate_all
from archsim.runs.store import RecordStore
from archsim.runs.sweep import complete
from archsim.specs.sweeps.plan import Point, SweepPlan

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
        simulate = partial(simulate_all, jobs=self._jobs, traces=self._maker.traces, verb="row")
        records = complete(list(unique.values()), simulate, self._store, self._watcher, self.failures)
        self.known |= {
            index: {**records[run.key]["row"], "run": run.key} for index, run in runs.items() if run.key in records
        }
