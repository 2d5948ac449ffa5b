"""The folder of a sweep: finished runs are kept there, and a later sweep finds them.

======================= ================================================================================================
``manifest.yaml``       the experiment; ``archsim sweep manifest.yaml`` reproduces the results
``runs/``               ``<key>.json``: the record of a run, and the code that it is a result of
``parts/``              ``part-00000.parquet``, …: the rows of PART_RUNS consecutive runs each, written once and whole
``results.partial.csv`` rows of the finished runs that are in no chunk yet, as they finish; removed when the sweep ends
``results.csv``         all rows in the order of the experiment, with the speed-ups, which need all of them
others                  ``results.parquet``, ``timings.csv``; ``dies.csv``, ``links.csv``, ``pairs.csv`` and
                        ``steps.parquet`` where details are kept; all written last, as is ``results.csv``
======================= ================================================================================================

With details (of dies and links), records stay in ``runs/`` for later sweeps, and chunks are removed. Without, chunks
stay, and ``runs/`` holds the current chunk. The metadata of a chunk state its runs and their code.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from archsim.base.files import DRAFT_SUFFIX, LOG, read_sealed, write_sealed
from archsim.base.tables import (
    INTEGER,
    CsvLog,
    Table,
    parquet_facts,
    read_parquet,
    write_csv_stream,
    write_parquet_stream,
)
from archsim.runs import results
from archsim.runs.columns import (
    DIE_COLUMNS,
    LAYOUT,
    LINK_COLUMNS,
    PAIR_COLUMNS,
    STEP_COLUMNS,
    TIMING_COLUMNS,
    Kinds,
    columns_with,
    kinds_of,
)
from archsim.runs.plan import Selection
from archsim.runs.run import ROW, Job, Record, Run
from archsim.specs.plan import Point, SweepPlan
from archsim.specs.unread import UNREAD
from archsim.traffic import column_cache

PART_RUNS = 5000
FEW_RUNS = 1000  # most runs with details, unless the experiment says otherwise: 30 to 100 kB per run
PAGE = "index.html"
PARTIAL = "results.partial.csv"
# Written from all runs once the last has finished; removed when outdated.
_PAGES = (PAGE, "results.html", "assumptions.html", "files.html", "glossary.html")
_OF_SAMPLES = ("sure.html", "sure.csv", "sure.json", "ranges.json")
_MADE_LAST = (
    results.CSV, results.PARQUET, "dies.csv", "links.csv", "pairs.csv", results.STEPS, results.FRAMES,
    "timings.csv", "comparison.json", *_PAGES, *_OF_SAMPLES,
)  # fmt: skip
_HOLDS = "archsim.runs"


def keeps_details(plan: SweepPlan, runs: int) -> bool:
    """Whether dies and links of ``runs`` runs are kept."""
    details = plan.experiment.details
    return runs <= FEW_RUNS if details == "few_runs" else details == "kept"


def columns_of(plan: SweepPlan) -> Kinds:
    """The columns of a plan's results: point and axes (where there are axes), each run's, the user's own."""
    axes = {"point": INTEGER} | {column.name: column.kind for column in plan.columns} if plan.columns else {}
    return {**axes, **kinds_of(columns_with(plan.experiment.all_columns))}


class RecordStore:
    """``runs/`` of a folder: a record for each job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs = folder / "runs"
        self._runs.mkdir(parents=True, exist_ok=True)
        remove_drafts(folder, self._runs)

    def load(self, job: Job) -> Record | None:
        """The complete record of a job with the details that it asks for, of the present code; else None."""
        try:
            kept = json.loads(read_sealed(self._file(job)))
        except (OSError, ValueError):
            return None
        record = kept.get("record", {}) if isinstance(kept, dict) and kept.get("code") == job.code else {}
        whole = record.get("run") == job.key and (not job.details or len(record) > len(ROW))
        return record if whole else None

    def save(self, job: Job, record: Record) -> None:
        """Store a record; it is on disk when this returns."""
        text = json.dumps({"name": job.name, "code": job.code, "record": record}, allow_nan=False)
        write_sealed(self._file(job), text, durable=True)

    def forget(self, job: Job) -> None:
        """Remove a record that is now kept elsewhere."""
        self._file(job).unlink(missing_ok=True)

    def _file(self, job: Job) -> Path:
        return self._runs / f"{job.key}.json"


class SweepStore:
    """The folder of one sweep. ``details``: whether records of dies and links are kept."""

    def __init__(self, folder: Path, selection: Selection) -> None:
        self.folder, self._selection, self._plan = folder, selection, selection.plan
        self.details = keeps_details(self._plan, len(selection))
        self.columns = columns_of(self._plan)
        self._kept_columns = {**self.columns, **{name: kind for name, kind in TIMING_COLUMNS.items() if name != "run"}}
        self.records = RecordStore(folder)
        self._parts = folder / "parts"
        self._parts.mkdir(exist_ok=True)
        remove_drafts(self._parts)
        self.partial = CsvLog(folder / PARTIAL, self.columns)

    def has_part(self, number: int, points: Sequence[Point], runs: Sequence[Run]) -> bool:
        """Whether a chunk exists, is whole, and holds these runs as results of the present code."""
        if self.details or parquet_facts(self._part(number)).get(_HOLDS) != self._digest(points, runs):
            return False
        try:
            return len(read_parquet(self._part(number), self._kept_columns, len(runs))) == len(runs)
        except (OSError, ValueError) as error:
            LOG.warning("%s: damaged (%s); it is made anew", self._part(number), error)
            return False

    def write_part(
        self, number: int, points: Sequence[Point], runs: Sequence[Run], records: Mapping[str, Record]
    ) -> None:
        """Write a chunk; without details, remove the records in it."""
        pairs = zip(points, runs, strict=True)
        rows = tuple(self._row(point, records[run.key]) | records[run.key]["host"] for point, run in pairs)
        Table(self._kept_columns, rows).write_parquet(self._part(number), {_HOLDS: self._digest(points, runs)})
        self.partial.clear()
        if not self.details:
            for run in runs:
                self.records.forget(run)

    def log(self, point: Point, record: Record) -> None:
        """Add a finished run to ``results.partial.csv``."""
        self.partial.append(self._row(point, record))

    def finish(self, parts: int) -> None:
        """Write all files from chunks and records, one in memory at a time; remove obsolete chunks."""
        references: dict[tuple, float | None] = {}
        for number in range(parts):
            references |= results.references_of(self._rows(number))
        done = ((results.with_speedups(row, references) for row in self._rows(number)) for number in range(parts))
        tables = (Table(self.columns, tuple(rows)) for rows in done)
        write_parquet_stream(self.folder / results.PARQUET, self.columns, tables)
        rows = (results.with_speedups(row, references) for row in self._every(parts))
        write_csv_stream(self.folder / results.CSV, self.columns, rows)
        write_csv_stream(self.folder / "timings.csv", TIMING_COLUMNS, self._every(parts))
        if self.details:
            for name, columns in (("dies", DIE_COLUMNS), ("links", LINK_COLUMNS), ("pairs", PAIR_COLUMNS)):
                write_csv_stream(self.folder / f"{name}.csv", columns, self._spread(name))
            write_parquet_stream(self.folder / results.STEPS, STEP_COLUMNS, self._tables("steps", STEP_COLUMNS))
            results.write_frames(self.folder / results.FRAMES, self._records())
        for file in sorted(self._parts.glob("part-*.parquet"))[0 if self.details else parts :]:
            file.unlink()
        if self.details:
            self._parts.rmdir()
        self.partial.clear()
        results.seal(self.folder, results.CSV)

    def outdate(self) -> None:
        """Remove the files written from all runs before any of these changes."""
        for name in _MADE_LAST:
            (self.folder / name).unlink(missing_ok=True)

    def write_manifest(self) -> None:
        """Write the experiment as it is before axes change it, and what was derived from it."""
        about: dict[str, Any] = {"layout": LAYOUT, "code": list(self._selection.code)}
        if self._plan.sweep.axes:
            about |= {"points": self._plan.combinations, "dropped": dict(self._selection.dropped.by_constraint)}
        about |= {
            "runs": len(self._selection),
            "traces": {name: " ".join(each) for name, each in self._selection.routing.items()},
        }
        if self._plan.experiment.unread:
            about[UNREAD] = list(self._plan.experiment.unread)
        results.write_manifest(self.folder, self._plan.given(), about, self._selection.functions)

    def _row(self, point: Point, record: Record) -> dict[str, Any]:
        axes = {"point": point.index} | self._plan.cells(point) if self._plan.columns else {}
        later = dict.fromkeys(f"speedup_vs_{policy}" for policy in results.REFERENCES)
        return axes | record["row"] | later | {"run": record["run"]}

    def _every(self, parts: int) -> Iterator[Mapping[str, Any]]:
        return (row for number in range(parts) for row in self._rows(number))

    def _rows(self, number: int) -> Iterator[Mapping[str, Any]]:
        yield from read_parquet(self._part(number), self._kept_columns).rows

    def _spread(self, name: str) -> Iterator[Mapping[str, Any]]:
        for record in self._records():
            yield from results.spread(record, name)

    def _tables(self, name: str, columns: Kinds) -> Iterator[Table]:
        for record in self._records():
            yield Table(columns, tuple(results.spread(record, name)))

    def _records(self) -> Iterator[Record]:
        for _, runs in self._selection.blocks(PART_RUNS, self.details):
            for run in runs:
                record = self.records.load(run)
                assert record is not None, "was written by this sweep"
                yield record

    def _part(self, number: int) -> Path:
        return self._parts / f"part-{number:05d}.parquet"

    def _digest(self, points: Sequence[Point], runs: Sequence[Run]) -> str:
        digest = hashlib.sha256(repr(tuple(self._kept_columns.items())).encode())
        for point, run in zip(points, runs, strict=True):
            digest.update(f"{point.index} {list(self._plan.cells(point).values())} {run.key} {run.code} ".encode())
        return digest.hexdigest()


def remove_drafts(*folders: Path) -> None:
    """Remove unfinished files of a killed sweep."""
    for folder in folders:
        for draft in folder.glob(f".*{DRAFT_SUFFIX}"):
            draft.unlink(missing_ok=True)


# A cache of records shared by all commands, keyed by a digest of all inputs.
#
# An entry is one job's key and the code that it is a result of; it is never stale and may be deleted at any time.
# Details are in a separate file. Jobs shorter than `WORTH_S` are not kept, nor those with users' functions, because the
# cache cannot see changes in user code. The least recently used ones are removed when all exceed `MOST_BYTES`.

WORTH_S = 0.05
MOST_BYTES = 1 << 30
_LARGEST = 8  # details above this part of it are not kept: one such job would push out many others


def folder() -> Path:
    return column_cache.folder().with_name("runs")


def find(job: Job) -> Record | None:
    if not job.cacheable:
        return None
    record = _load(_file(job), job)
    more = _load(_file(job, "-details"), job) if job.details else {}
    return {**record, **more} if record is not None and more is not None else None


def keep(job: Job, record: Record) -> None:
    """Cache the record of a job, if the folder is writable."""
    if not job.cacheable or record["host"]["wall_s"] < WORTH_S:
        return
    details = {name: each for name, each in record.items() if name not in ROW}
    try:
        _file(job).parent.mkdir(parents=True, exist_ok=True)
        write_sealed(_file(job), json.dumps({name: record[name] for name in ROW}, allow_nan=False))
        text = json.dumps({"run": job.key, **details}, allow_nan=False)
        if details and len(text) <= MOST_BYTES // _LARGEST:
            write_sealed(_file(job, "-details"), text)
    except OSError:
        return


def remove_oldest() -> None:
    """Limit the cache to `MOST_BYTES`."""
    try:
        files = [(file, file.stat()) for file in folder().glob("*/*.json")]
        total = 0
        for file, status in sorted(files, key=lambda each: each[1].st_mtime, reverse=True):
            total += status.st_size
            if total > MOST_BYTES:
                file.unlink(missing_ok=True)
    except OSError:
        return


def _load(file: Path, job: Job) -> dict[str, Any] | None:
    try:
        kept = json.loads(read_sealed(file))
        os.utime(file)
    except (OSError, ValueError):
        return None
    return kept if isinstance(kept, dict) and kept.get("run") == job.key else None


def _file(job: Job, what: str = "") -> Path:
    return folder() / job.key[:2] / f"{job.key}-{job.code}{what}.json"
