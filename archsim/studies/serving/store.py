"""The folder of ``archsim serve --out``: what a sweep promises of its own (``archsim.runs.store``).

=================== =================================================================================================
``manifest.yaml``   the file; ``archsim serve manifest.yaml`` reproduces the results
``runs/``           ``<key>.json``: the row of a run; ``<key>.npz``: all that happened, of runs that have a page
``results.csv``     all rows in order, ``results.parquet``; ``index.html``, ``bench.json`` and ``requests.csv``: last
=================== =================================================================================================
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from archsim.base.archives import UNREADABLE, read_npz
from archsim.base.files import drafted
from archsim.base.tables import REAL, TEXT, Table
from archsim.runs import manifest
from archsim.runs.results import Record
from archsim.runs.store import RecordStore
from archsim.serving.groups import Moved
from archsim.serving.serving import Outcome, deploy, requests_of
from archsim.serving.simulate import Served
from archsim.studies.serving.plan import ServePlan
from archsim.studies.serving.runs import COLUMNS, ServeRun, measures_of

TABLES = ("results.csv", "results.parquet")
MADE_LAST = (*TABLES, "index.html", "bench.json", "requests.csv")
_ARRAYS = ("requests", "gaps", "series", "totals", "balance", "log")


class ServeStore(RecordStore):
    """As ``RecordStore``; a run that is kept whole is there only with all that happened."""

    def load(self, run: ServeRun) -> Record | None:  # type: ignore[override]
        record = super().load(run)  # type: ignore[arg-type]
        return None if record is None or (run.whole and self._served(run) is None) else record

    def save_served(self, run: ServeRun, served: Served) -> None:
        """What happened, whole or not at all; with the key and the code that it is of."""
        arrays = {name: np.asarray(getattr(served, name)) for name in _ARRAYS}
        moves = np.array([tuple(each) for each in served.moves], float).reshape(-1, len(Moved._fields))
        named = np.array([run.key, run.code])
        with drafted(self._file(run).with_suffix(".npz"), durable=True) as draft, draft.open("wb") as stream:
            np.savez_compressed(
                stream, named=named, moves=moves, scalars=np.array([served.bin_ns, served.concurrency]), **arrays
            )

    def outcome(self, run: ServeRun, record: Record) -> Outcome:
        """The outcome of a run that was kept. Its deployment is built anew."""
        served = self._served(run)
        assert served is not None, "was kept by this plan"
        deployment, requests = deploy(run.serving), requests_of(run.serving)
        return Outcome(run.serving, deployment, requests, served, measures_of(record["row"]))

    def _served(self, run: ServeRun) -> Served | None:
        try:
            kept = read_npz(self._file(run).with_suffix(".npz"))
            if kept["named"].tolist() != [run.key, run.code]:
                return None
            found = {name: kept[name] for name in _ARRAYS}
            moves = tuple(Moved(row[0], int(row[1]), int(row[2]), row[3], row[4]) for row in kept["moves"].tolist())
            bin_ns, concurrency = kept["scalars"].tolist()
        except UNREADABLE:
            return None
        totals = found.pop("totals")[()]
        return Served(**found, bin_ns=bin_ns, totals=totals, concurrency=int(concurrency), moves=moves)


def write_manifest(folder: Path, plan: ServePlan, runs: Sequence[ServeRun]) -> None:
    """The file with what it names, and what it was made with."""
    about = {"code": sorted({run.code for run in runs}), "runs": len(runs)}
    manifest.write_manifest(folder, plan.first.given, about, sorted({each for run in runs for each in run.functions}))


def table_of(plan: ServePlan, runs: Sequence[ServeRun], records: Mapping[str, Record]) -> Table:
    """A row a run, in their order; first its point and axes."""
    axes = {path: _kind(plan, path) for path in plan.first.axes}
    columns = {"point": "integer"} | axes | dict(COLUMNS) | {"run": TEXT}
    rows = [{"point": run.point} | dict(run.cells) | records[run.key]["row"] | {"run": run.key} for run in runs]
    return Table(columns, tuple(rows))


def _kind(plan: ServePlan, path: str) -> str:
    numbers = all(isinstance(cells[path], int | float) for cells in plan.cells)
    return REAL if numbers else TEXT
