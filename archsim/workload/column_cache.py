"""Converted traces on disk, memory-mapped when they are opened again.

The folder is ``$ARCHSIM_CACHE``, else ``archsim`` in ``$XDG_CACHE_HOME`` or ``~/.cache``. An entry is named by the
content it was made of, so it is never stale, and may be deleted at any time.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from archsim.workload.trace import Trace

_LAYOUT = 1
"""Raised when the files of an entry change, so that old entries are not read."""

_COLUMNS = ("experts", "request_offsets", "iteration", "layer_ids", "request_subject")
_FACTS = ("num_experts", "top_k", "model", "source", "subject_names")


def folder() -> Path:
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "archsim"
    return Path(os.environ.get("ARCHSIM_CACHE") or default) / f"traces-{_LAYOUT}"


def load(key: str) -> Trace | None:
    """The trace stored under a key, its columns memory-mapped, or None."""
    entry = folder() / key
    try:
        facts = json.loads((entry / "facts.json").read_text(encoding="utf-8"))
        columns = {name: np.load(entry / f"{name}.npy", mmap_mode="r") for name in _COLUMNS}
    except (OSError, ValueError):
        return None
    return Trace(**columns, **{**facts, "subject_names": tuple(facts["subject_names"])})


def store(key: str, trace: Trace) -> Trace:
    """Store a trace and return it memory-mapped; as it is where the folder cannot be written.

    The entry appears as a whole (by renaming), so concurrent processes see all of it or nothing.
    """
    try:
        folder().mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=folder(), prefix="draft-"))
        try:
            for name in _COLUMNS:
                np.save(draft / f"{name}.npy", getattr(trace, name))
            facts = {name: getattr(trace, name) for name in _FACTS}
            (draft / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
            shutil.rmtree(folder() / key, ignore_errors=True)  # a damaged entry, or an equal one made meanwhile
            draft.rename(folder() / key)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError:
        pass
    return load(key) or trace
