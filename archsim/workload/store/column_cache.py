"""Converted traces on disk, memory-mapped when they are opened again.

The folder is ``$ARCHSIM_CACHE``, else ``archsim`` in ``$XDG_CACHE_HOME`` or ``~/.cache``. The name of an entry is a
digest of the source content, so it is never stale, and may be deleted at any time.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from archsim.base.files import write_text
from archsim.workload.trace import Trace, content_digest

_LAYOUT = 3
"""Incremented when the file layout of an entry changes, so that old entries are not read."""

_COLUMNS = ("experts", "request_offsets", "iteration", "layer_ids", "request_subject")
_SCORES = "scores.npy"
_FACTS = ("num_experts", "top_k", "model", "source", "subject_names", "known_digest")


def folder() -> Path:
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "archsim"
    return Path(os.environ.get("ARCHSIM_CACHE") or default) / f"traces-{_LAYOUT}"


def remembered(signature: str | None, compute: Callable[[], str]) -> str:
    """The key that ``compute`` finds by reading whole files, computed once per signature; None is not remembered."""
    if signature is None:
        return compute()
    note = folder().with_name("keys") / signature
    try:
        return note.read_text(encoding="utf-8")
    except OSError:
        key = compute()
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        write_text(note, key)
    except OSError:
        pass
    return key


def load(key: str) -> Trace | None:
    """The trace stored under a key, its columns memory-mapped, or None; also None for the empty key."""
    if not key:
        return None
    entry = folder() / key
    try:
        facts = json.loads((entry / "facts.json").read_text(encoding="utf-8"))
        columns = {name: np.load(entry / f"{name}.npy", mmap_mode="r") for name in _COLUMNS}
        if (entry / _SCORES).is_file():
            columns["scores"] = np.load(entry / _SCORES, mmap_mode="r")
    except (OSError, ValueError):
        return None
    return Trace(**columns, **{**facts, "subject_names": tuple(facts["subject_names"])}, stored_as=key)


def store(key: str, trace: Trace) -> Trace:
    """Store a trace and return it memory-mapped; return it unchanged if the folder is not writable."""
    return build(key, trace, lambda: iter([trace.experts])) or trace


def build(key: str, trace: Trace, blocks: Callable[[], Iterator[np.ndarray]]) -> Trace | None:
    """Store a trace whose experts come in blocks int16[token, layer, k]; None if the folder is not writable.

    Of trace.experts only the shape is used. The entry appears atomically (by renaming), so concurrent processes see
    all of it or nothing.
    """
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
    return load(key)


def _write_entry(draft: Path, trace: Trace, blocks: Iterator[np.ndarray]) -> None:
    for name in _COLUMNS[1:]:
        np.save(draft / f"{name}.npy", getattr(trace, name))
    if trace.scores is not None:
        np.save(draft / _SCORES, trace.scores)
    with (draft / "experts.npy").open("wb") as stream:
        header = {"descr": "<i2", "fortran_order": False, "shape": trace.experts.shape}
        np.lib.format.write_array_header_1_0(stream, header)

        def written() -> Iterator[np.ndarray]:
            for block in blocks:
                stream.write(np.ascontiguousarray(block, "<i2").data)
                yield block

        known = replace(trace, known_digest=content_digest(trace, written()).hexdigest())
    facts = {name: getattr(known, name) for name in _FACTS}
    (draft / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
