"""Demands kept on disk: what a batch asks for is summed once, and read again by later runs and other processes.

An entry is named by everything its content follows from: the routing, the batch, and the code that sums it. It may be
deleted at any time, and the ones used longest ago are, when all together exceed `MOST_BYTES`.
"""

import hashlib
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from archsim.base.code_digest import numbers_digest
from archsim.base.files import drafted
from archsim.workload.demand import Demand
from archsim.workload.store import column_cache

MOST_BYTES = 4 << 30
WORTH_S = 0.5
"""Demands that take less are not kept."""

_ARRAYS = ("tokens", "first_seen", "origins", "hot", "layer_ids")
_FACTS = ("has_prefill", "top_k", "batch", "digest")


def folder() -> Path:
    return column_cache.folder().with_name("demands")


def cached_demand(name: str, build: Callable[[], Demand]) -> Demand:
    """The demand that `build` makes. name: tells it from every other of the same code."""
    file = folder() / f"{hashlib.sha256(f'{numbers_digest()} {name}'.encode()).hexdigest()}.npz"
    demand = _load(file)
    if demand is None:
        begin = time.perf_counter()
        demand = build()
        if time.perf_counter() - begin > WORTH_S:
            _save(file, demand)
    return demand


def _load(file: Path) -> Demand | None:
    try:
        with np.load(file, allow_pickle=False) as members:
            columns = {name: members[name] if name in members else None for name in _ARRAYS}
            facts = {name: members[name].item() for name in _FACTS}
        file.touch()
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return Demand(**columns, **facts)


def _save(file: Path, demand: Demand) -> None:
    """Keep a demand, where the folder can be written."""
    columns = {name: column for name in _ARRAYS if (column := getattr(demand, name)) is not None}
    facts = {name: np.array(getattr(demand, name)) for name in _FACTS}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with drafted(file) as draft, draft.open("wb") as stream:
            np.savez(stream, **columns, **facts)
        _remove_oldest(file.parent)
    except OSError:
        return


def _remove_oldest(entries: Path) -> None:
    total = 0
    for file in sorted(entries.glob("*.npz"), key=lambda file: file.stat().st_mtime, reverse=True):
        total += file.stat().st_size
        if total > MOST_BYTES:
            file.unlink(missing_ok=True)
