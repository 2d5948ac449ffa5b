"""Demands cached on disk: a batch is summed once, and later runs and other processes read the result.

The name of an entry covers everything its content depends on: the routing, the batch, and the summing code. It may be
deleted at any time; the least recently used entries are deleted when the total exceeds `MOST_BYTES`.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from archsim.base.archives import UNREADABLE
from archsim.base.code_digest import numbers_digest
from archsim.base.files import drafted
from archsim.workload.demand import Demand
from archsim.workload.store import column_cache

MOST_BYTES = 4 << 30
WORTH_S = 0.5
"""Demands that take less are not cached."""

Kind = TypeVar("Kind", bound=Demand)


def folder() -> Path:
    return column_cache.folder().with_name("demands")


def cached_demand(kind: type[Kind], name: str, build: Callable[[], Kind]) -> Kind:
    """The demand that `build` makes: a dataclass of arrays, None and numbers. name: unique among demands of the same
    code.
    """
    file = folder() / f"{hashlib.sha256(f'{numbers_digest()} {name}'.encode()).hexdigest()}.npz"
    demand = _load(kind, file)
    if demand is None:
        begin = time.perf_counter()
        demand = build()
        if time.perf_counter() - begin > WORTH_S:
            _save(file, demand)
    return demand


def _load(kind: type[Kind], file: Path) -> Kind | None:
    try:
        with np.load(file, allow_pickle=False) as members:
            known = {field.name: _plain(members[field.name]) for field in fields(kind) if field.name in members}
        file.touch()
        return kind(**known)
    except (*UNREADABLE, TypeError):
        return None


def _plain(member: np.ndarray) -> Any:
    """Arrays as they are; numbers and text were written as arrays without axes."""
    return member if member.ndim else member.item()


def _save(file: Path, demand: Demand) -> None:
    """Store a demand, if the folder is writable."""
    known = {
        field.name: np.asarray(value) for field in fields(demand) if (value := getattr(demand, field.name)) is not None
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with drafted(file) as draft, draft.open("wb") as stream:
            np.savez(stream, **known)
        _remove_oldest(file.parent)
    except OSError:
        return


def _remove_oldest(entries: Path) -> None:
    total = 0
    for file in sorted(entries.glob("*.npz"), key=lambda file: file.stat().st_mtime, reverse=True):
        total += file.stat().st_size
        if total > MOST_BYTES:
            file.unlink(missing_ok=True)
