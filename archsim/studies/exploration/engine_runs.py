"""Points run by one engine, once each, and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from archsim.runs.point_runs import PointRuns
from archsim.runs.point_sweep import complete
from archsim.runs.pool.processes import simulate_all
from archsim.runs.store import RunStore
from archsim.specs.sweeps.plan import Point

Row = Mapping[str, Any]


class EngineRuns:
    """``known``: index of a point → its row; ``failures``: why others have none; ``watcher`` hears of all."""

    def __init__(self, engine: str, folder: Path, jobs: int, watcher: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._engine, self._jobs, self._watcher = engine, jobs, watcher
        self._makers, self._store = PointRuns(), RunStore(folder)
        self.known: dict[int, Row] = {}
        self.failures: list[str] = []

    def run(self, points: Sequence[Point]) -> None:
        """Add the rows of points to ``known``, but for those that fail."""
        runs = {point.index: self._makers.run(point._replace(engine=self._engine)) for point in points if point.index not in self.known}
        unique = {run.key: run for run in runs.values()}
        simulate = partial(simulate_all, jobs=self._jobs, traces=self._makers.traces)
        records = complete(list(unique.values()), simulate, self._store, self._watcher, self.failures)
        self.known |= {index: {**records[run.key]["row"], "run": run.key} for index, run in runs.items() if run.key in records}
