"""A cache of run records shared by all sweeps, keyed by a digest of all inputs.

An entry is one run's key and the code that it is a result of; it is never stale and may be deleted at any time. Dies,
links, pairs and steps are in a separate file if the sweep kept details. Runs shorter than `WORTH_S` are not kept, nor
those with users' functions, because the cache cannot see changes in user code. The least recently used ones are
removed when all exceed `MOST_BYTES`.
"""

import json
import os
from pathlib import Path
from typing import Any

from archsim.base.files import read_sealed, write_sealed
from archsim.runs.results import NO_DETAILS, Record
from archsim.runs.run import Run
from archsim.workload.store import column_cache

WORTH_S = 0.05
MOST_BYTES = 1 << 30
_ROW, _DETAILS = ("run", "row", "host"), ("run", "dies", "links", "pairs", "steps")


def folder() -> Path:
    return column_cache.folder().with_name("runs")


def find(run: Run, details: bool) -> Record | None:
    """The record of a run, if cached. ``details``: with its dies, links, pairs and steps, which are empty otherwise."""
    if run.own_code:
        return None
    record = _load(_file(run), run)
    more = _load(_file(run, "-details"), run) if details else NO_DETAILS
    return {**record, **more} if record is not None and more is not None else None


def keep(run: Run, record: Record) -> None:
    """Cache the record of a run, if the folder is writable."""
    if run.own_code or record["host"]["wall_s"] < WORTH_S:
        return
    try:
        _file(run).parent.mkdir(parents=True, exist_ok=True)
        write_sealed(_file(run), json.dumps({name: record[name] for name in _ROW}, allow_nan=False))
        if record["dies"]:
            write_sealed(_file(run, "-details"), json.dumps({name: record[name] for name in _DETAILS}, allow_nan=False))
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


def _load(file: Path, run: Run) -> dict[str, Any] | None:
    try:
        kept = json.loads(read_sealed(file))
        os.utime(file)
    except (OSError, ValueError):
        return None
    return kept if isinstance(kept, dict) and kept.get("run") == run.key else None


def _file(run: Run, what: str = "") -> Path:
    return folder() / run.key[:2] / f"{run.key}-{run.code}{what}.json"
