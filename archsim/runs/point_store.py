"""The folder of a sweep over points: rows go to Parquet in parts as they are complete, and are found again by a later sweep.

=================== =====================================================================================================
``manifest.yaml``   the experiment with its sweep; ``archsim sweep manifest.yaml`` makes the results again
``runs/``           records of the part that is under way
``parts/``          ``part-00000.parquet``, …: the rows of PART_RUNS consecutive points each, written once and whole
``results.parquet`` all rows in the order of the points, with the speed-ups, which need all of them; written last
=================== =====================================================================================================

A part says in its metadata which runs, of which code, it holds; one that holds others is made anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from archsim.base.files import write_text
from archsim.base.tables import INTEGER, Table, parquet_facts, read_parquet, write_parquet_stream
from archsim.runs.results import RUN_COLUMNS, base_of, with_speedup
from archsim.runs.run import Run
from archsim.runs.store import RunStore, made_by
from archsim.specs.loading.library import MANIFEST, MANIFEST_KEY
from archsim.specs.sweeps.plan import SweepPlan
from archsim.specs.text.yaml import dump_yaml

PART_RUNS = 5000
RESULTS = "results.parquet"
_HOLDS = "archsim.runs"


class PointStore:
    """Parts of one sweep. ``columns`` of the rows: point, axes, then those of every run."""

    def __init__(self, folder: Path, plan: SweepPlan) -> None:
        self.folder, self._plan = folder, plan
        self.columns = {"point": INTEGER} | {column.name: column.kind for column in plan.columns} | dict(RUN_COLUMNS)
        self.runs = RunStore(folder)
        self._parts = folder / "parts"
        self._parts.mkdir(exist_ok=True)
        for draft in self._parts.glob(".*"):
            draft.unlink(missing_ok=True)  # of a sweep that was killed

    def has_part(self, number: int, runs: Sequence[Run]) -> bool:
        """Whether a part is there, whole, and holds the results of these runs by the present code."""
        return parquet_facts(self._part(number)).get(_HOLDS) == _digest(runs)

    def write_part(self, number: int, runs: Sequence[Run], rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a part; the records that it is made of go."""
        Table(self.columns, tuple(rows)).write_parquet(self._part(number), {_HOLDS: _digest(runs)})
        for run in runs:
            self.runs.forget(run)

    def finish(self, parts: int) -> Path:
        """``results.parquet`` from the parts, one in memory at a time; parts of a longer sweep go."""
        base: dict[tuple, Mapping[str, Any]] = {}
        for number in range(parts):
            base |= base_of(self._rows(number))
        tables = (Table(self.columns, tuple(with_speedup(row, base) for row in self._rows(number))) for number in range(parts))
        write_parquet_stream(self.folder / RESULTS, self.columns, tables)
        for file in sorted(self._parts.glob("part-*.parquet"))[parts:]:
            file.unlink()
        return self.folder / RESULTS

    def outdate(self) -> None:
        """Remove the results before a part is missing or another."""
        (self.folder / RESULTS).unlink(missing_ok=True)

    def write_manifest(self, runs: int, dropped: Mapping[str, int]) -> None:
        """The experiment as it is before axes change it; how many runs there are and what was dropped, by constraint."""
        about = {
            **made_by(),
            "points": self._plan.combinations,
            "runs": runs,
            "dropped": dict(dropped),
        }
        write_text(self.folder / MANIFEST, dump_yaml({MANIFEST_KEY: about, **self._plan.given()}))

    def _rows(self, number: int) -> Iterator[dict[str, Any]]:
        yield from read_parquet(self._part(number), self.columns).rows

    def _part(self, number: int) -> Path:
        return self._parts / f"part-{number:05d}.parquet"


def _digest(runs: Sequence[Run]) -> str:
    return hashlib.sha256(" ".join(f"{run.key} {run.code}" for run in runs).encode()).hexdigest()
