"""Converted traces on disk, memory-mapped when they are opened again.

The folder is ``$ARCHSIM_CACHE``, else `user_cache`. The name of an entry is a digest of the source content, so it is
never stale, and may be deleted at any time. Columns are compared with their checksums whenever an entry is opened; a
damaged entry is made anew.
"""

import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from archsim.base.files import LOG, read_sealed, write_sealed
from archsim.base.libraries import user_cache
from archsim.traffic.trace import Trace, content_digest

_LAYOUT = 4
"""Incremented when the file layout of an entry changes, so that old entries are not read."""

_COLUMNS = ("experts", "request_offsets", "iteration", "layer_ids", "request_subject")
_SCORES = "scores"
_FACTS = ("num_experts", "top_k", "model", "source", "subject_names", "known_digest")


def folder() -> Path:
    return Path(os.environ.get("ARCHSIM_CACHE") or user_cache()) / f"traces-{_LAYOUT}"


def remember(signature: str | None, compute: Callable[[], str]) -> str:
    """The key that ``compute`` finds by reading whole files, computed once per signature; None is not remembered."""
    if signature is None:
        return compute()
    note = folder().with_name("keys") / signature
    try:
        return read_sealed(note)
    except (OSError, ValueError):
        key = compute()
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        write_sealed(note, key)
    except OSError:
        pass
    return key


def get(key: str) -> Trace | None:
    """The trace stored under a key, its columns memory-mapped, or None; also None for the empty key."""
    if not key:
        return None
    entry = folder() / key
    try:
        facts = json.loads(read_sealed(entry / "facts.json"))
        checksums = facts.pop("checksums")
        columns = {name: np.load(entry / f"{name}.npy", mmap_mode="r") for name in checksums}
    except (OSError, ValueError, EOFError):
        return None
    if any(_checksum(columns[name]) != known for name, known in checksums.items()):
        LOG.warning("%s: damaged: a checksum does not match; it is made anew", entry)
        return None
    return Trace(**columns, **{**facts, "subject_names": tuple(facts["subject_names"])}, stored_as=key)


def put(key: str, trace: Trace) -> Trace:
    """Store a trace and return it memory-mapped; return it unchanged if the folder is not writable."""
    return build(key, trace, lambda: iter([trace.experts])) or trace


def build(key: str, trace: Trace, blocks: Callable[[], Iterator[np.ndarray]]) -> Trace | None:
    """Store a trace of blocks int16[token, layer, k], atomically; None: the folder is not writable."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=folder(), prefix="draft-"))
        try:
            _write_entry(draft, trace, blocks())
            shutil.rmtree(folder() / key, ignore_errors=True)  # a damaged entry, or an equal one written concurrently
            draft.rename(folder() / key)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError:
        return None
    return get(key)


def _checksum(column: np.ndarray) -> int:
    return zlib.crc32(column.reshape(-1).view(np.uint8).data)


def _write_entry(draft: Path, trace: Trace, blocks: Iterator[np.ndarray]) -> None:
    checksums = {}
    for name in _COLUMNS[1:] if trace.scores is None else (*_COLUMNS[1:], _SCORES):
        column = np.ascontiguousarray(getattr(trace, name))
        np.save(draft / f"{name}.npy", column)
        checksums[name] = _checksum(column)
    with (draft / "experts.npy").open("wb") as stream:
        header = {"descr": "<i2", "fortran_order": False, "shape": trace.experts.shape}
        np.lib.format.write_array_header_1_0(stream, header)

        def written() -> Iterator[np.ndarray]:
            checksums["experts"] = 0
            for block in blocks:
                content = np.ascontiguousarray(block, "<i2").data
                checksums["experts"] = zlib.crc32(content, checksums["experts"])
                stream.write(content)
                yield block

        known = replace(trace, known_digest=content_digest(trace, written()).hexdigest())
    facts = {name: getattr(known, name) for name in _FACTS} | {"checksums": checksums}
    write_sealed(draft / "facts.json", json.dumps(facts))
