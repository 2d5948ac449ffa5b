"""Demands cached on disk: a batch is summed once, and later runs and other processes read the result.

An entry is a folder with a file of bytes for every array; large ones are mapped. Its name covers everything its
content depends on: the routing, the batch, and the summing code. It may be deleted at any time; the least recently
used entries are deleted when the total exceeds `MOST_BYTES`.
"""

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from archsim.base import code_digest, files
from archsim.traffic import column_cache
from archsim.traffic.demand import Demand
from archsim.traffic.stacked import checksum, read_array

MOST_BYTES = 4 << 30
WORTH_S = 0.5
"""Demands that take less are not cached."""
ABANDONED_S = 24 * 60 * 60
"""Age of drafts whose process is taken to have been killed."""
_FACTS = "facts.json"
_DRAFT = "draft-"

Kind = TypeVar("Kind", bound=Demand)


def folder() -> Path:
    return column_cache.folder().with_name("demands")


def cached_demand(kind: type[Kind], name: str, build: Callable[[Path | None], Kind]) -> Kind:
    """What `build(folder or None)` makes: a dataclass of arrays, None and numbers. name: unique for the code."""
    found = _load(kind, _entry(name))
    return built_together([name], lambda folders: [build(folders[0])])[0] if found is None else found


def missing(names: Sequence[str]) -> list[str]:
    """Those that are not there, or that this user may not read."""
    return [name for name in names if not os.access(_entry(name) / _FACTS, os.R_OK)]


def built_together(names: Sequence[str], build: Callable[[Sequence[Path | None]], list[Kind]]) -> list[Kind]:
    """Demands that are built in one pass, as `cached_demand` says; they are cached, if the folder is writable."""
    drafts: list[Path] = []
    begin = time.perf_counter()
    try:
        folder().mkdir(parents=True, exist_ok=True)
        for _ in names:
            drafts.append(folder() / f"{_DRAFT}{uuid.uuid4()}")
            drafts[-1].mkdir()
        demands = build(drafts)
        if time.perf_counter() - begin > WORTH_S:
            for name, draft, demand in zip(names, drafts, demands, strict=True):
                _save(demand, draft, _entry(name))
            _remove_oldest()
    except OSError:  # nothing can be written there
        demands = build([None] * len(names))
    finally:
        for draft in drafts:
            shutil.rmtree(draft, ignore_errors=True)
    return demands


def _entry(name: str) -> Path:
    return folder() / hashlib.sha256(f"{code_digest.digest_here()} {name}".encode()).hexdigest()


def _load(kind: type[Kind], entry: Path) -> Kind | None:
    try:
        facts = json.loads(files.read_sealed(entry / _FACTS))
        arrays: dict[str, Any] = {}
        for name, (dtype, shape, crc) in facts["arrays"].items():
            arrays[name] = read_array(entry / name, dtype, tuple(shape))
            if checksum(arrays[name]) != crc:  # a damaged file
                return None
        with suppress(PermissionError):  # the entry of another user
            os.utime(entry)
        return kind(**facts["plain"], **arrays)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _save(demand: Demand, draft: Path, entry: Path) -> None:
    """Complete a draft, to which columns may have been written under their names, and make it the entry."""
    known = {field.name: getattr(demand, field.name) for field in fields(demand)}
    arrays = {name: value for name, value in known.items() if isinstance(value, np.ndarray)}
    for name, array in arrays.items():
        if not (draft / name).exists():
            np.ascontiguousarray(array).tofile(draft / name)
    written = {name: (array.dtype.str, array.shape, checksum(array)) for name, array in arrays.items()}
    plain = {name: value for name, value in known.items() if name not in arrays}
    files.write_sealed(
        draft / _FACTS, json.dumps({"arrays": written, "plain": plain}, default=lambda number: number.item())
    )
    shutil.rmtree(entry, ignore_errors=True)  # a damaged one, or an equal one made meanwhile
    with suppress(OSError):  # another process has just made it
        draft.rename(entry)


def _remove_oldest() -> None:
    """Remove the least recently used entries beyond `MOST_BYTES`, and abandoned drafts; drafts in use stay."""
    found, total = [], 0
    for entry in folder().iterdir():
        with suppress(OSError):  # another process has just removed it
            n_bytes = sum(each.stat().st_size for each in (entry, *entry.glob("*")))
            found.append((entry.stat().st_mtime, n_bytes, entry))
    for used, n_bytes, entry in sorted(found, reverse=True):
        if entry.name.startswith(_DRAFT):
            stays = time.time() - used < ABANDONED_S
        else:
            total += n_bytes
            stays = total <= MOST_BYTES
        if not stays:
            shutil.rmtree(entry, ignore_errors=True)
