"""Open a recorded trace, whatever its layout; large ones are converted once."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from archsim.base import errors
from archsim.model.spec import ModelSpec
from archsim.traffic import column_cache, trace_checks, trace_store
from archsim.traffic.formats import jsonl, routed_experts
from archsim.traffic.formats.assembly import assemble
from archsim.traffic.formats.json_tree import request_files
from archsim.traffic.formats.npz import read_npz
from archsim.traffic.formats.registry import format_of
from archsim.traffic.trace import Trace

CACHED_BYTES = 4 << 20
"""Sources of at least this size are cached as columns; smaller ones are read again, within a second."""
SETTLED_S = 2.0
"""Files unchanged for this long are identified by size and modification time: file-system timestamps are at most this
coarse.
"""


def open_trace(path: str | Path, model: ModelSpec, reader: str | None = None) -> Trace:
    """Open a trace store, or a file or directory of any format that has a reader; check it against a model.

    reader: a user's own format. A directory may be any level of ``<org>/<model>/<dataset>/<subject>/<n>.json``. The
    trace may have fewer layers than the model. Raises TraceError naming file, request, iteration and layer.
    """
    location = Path(path)
    if not location.exists():
        raise errors.TraceError(f"{location}: no such file or directory{_beside(location)}")
    trace_checks.refuse_special(location)
    if trace_store.is_store(location):
        return trace_store.open_stored(location, model, str(path))
    if (location / trace_store.DRAFTS).is_dir():
        raise errors.TraceError(
            f"{location}: an import that was interrupted; repeat the same `archsim trace import` to resume it"
        )
    if reader is not None:
        return _assemble(location, model, str(path), reader)  # never cached: the cache cannot see changes in user code
    read, files = _reader_of(location)
    if sum(file.stat().st_size for file in files) < CACHED_BYTES:
        return read(location, model, str(path))
    key = column_cache.remember(_signature(files, model), lambda: _key(files, model))
    trace = column_cache.get(key) or column_cache.put(key, read(location, model, str(path)))
    return replace(trace, source=str(path))


def _reader_of(location: Path) -> tuple[Callable[[Path, ModelSpec, str], Trace], list[Path]]:
    """The reader of a source, and its files. npz has its own reader, by columns."""
    if location.suffix == ".npz" and location.is_file() and not routed_experts.is_routed_npz(location):
        return read_npz, [location]
    if location.is_dir() or (location.suffix == ".json" and not jsonl.is_response(location)):
        return _assemble, request_files(location)
    format_of(location)
    return _assemble, [location]


def _assemble(location: Path, model: ModelSpec, source: str, reader: str | None = None) -> Trace:
    found = format_of(location, reader)
    name = found.model_name(location)
    trace_checks.check_name(source, model, name)
    return assemble(found.items(location, model), model, name, source)


def _signature(files: list[Path], model: ModelSpec) -> str | None:
    """A key of files by path, size and time; None if one changed so recently that another change could hide."""
    digest = hashlib.sha256(repr(_shape(model)).encode())
    for file in files:
        status = file.stat()
        if time.time() - status.st_mtime < SETTLED_S:
            return None
        digest.update(f"{file.absolute()} {status.st_size} {status.st_mtime_ns} ".encode())
    return digest.hexdigest()


def _key(files: list[Path], model: ModelSpec) -> str:
    """A key of the files' content and of the model it is checked against."""
    digest = hashlib.sha256(repr(_shape(model)).encode())
    for file in files:
        with file.open("rb") as stream:
            digest.update(f"{'/'.join(file.absolute().parts[-5:])} ".encode())
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _shape(model: ModelSpec) -> tuple:
    return model.name, model.aliases, model.layers, model.moe_layer_ids, model.experts, model.top_k


def _beside(location: Path) -> str:
    """A hint at existing names near a mistyped path."""
    parent = next(parent for parent in location.absolute().parents if parent.exists())
    missing = location.absolute().relative_to(parent).parts[0]
    names = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    return f": {parent} has no {missing!r}{errors.did_you_mean(missing, names)}"
