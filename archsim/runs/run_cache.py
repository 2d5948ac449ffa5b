"""Rows of runs that any sweep has made, named by everything that they are made of, so that the next sweep need not.

An entry is one run's key and the code that it is a result of; it is never stale and may be deleted at any time. Runs that take
less than `WORTH_S` are not kept, nor those of users' functions, whose code is not ours to know. The ones used longest ago go
when there are more than `MOST_RUNS`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from archsim.base.files import write_text
from archsim.runs.results import Record
from archsim.runs.run import Run
from archsim.workload.store import column_cache

WORTH_S = 0.05
MOST_RUNS = 200_000
_KEPT = ("run", "row", "host")


def folder() -> Path:
    return column_cache.folder().with_name("runs")


def find(run: Run) -> Record | None:
    """The record of a run (without dies and links) if any sweep has left it."""
    file = _file(run)
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        os.utime(file)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("run") == run.key else None


def keep(run: Run, record: Record) -> None:
    """Leave the record of a run for others, where the folder can be written."""
    if run.scenario.own_functions or record["host"]["wall_s"] < WORTH_S:
        return
    try:
        _file(run).parent.mkdir(parents=True, exist_ok=True)
        write_text(_file(run), json.dumps({name: record[name] for name in _KEPT}, allow_nan=False))
    except OSError:
        return


def remove_oldest() -> None:
    """Hold the cache to `MOST_RUNS`."""
    try:
        files = sorted(folder().glob("*/*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
        for file in files[MOST_RUNS:]:
            file.unlink(missing_ok=True)
    except OSError:
        return


def _file(run: Run) -> Path:
    return folder() / run.key[:2] / f"{run.key}-{run.code}.json"
