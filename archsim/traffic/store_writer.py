"""Writing stores: files named by their content first, the manifest last, so that a reader sees the old or the new."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from archsim.base.errors import TraceError, did_you_mean
from archsim.base.files import DRAFT_SUFFIX, sole_writer, write_draft, write_text
from archsim.base.host import in_order

if TYPE_CHECKING:
    from archsim.traffic.loads import Loads
from archsim.traffic import trace_store
from archsim.traffic.frames import pack_frames


def manifest_of(kind: str, shape: trace_store.Shape, **parts) -> dict:
    return {
        "format": trace_store.FORMAT,
        "version": trace_store.VERSION,
        "kind": kind,
        "shape": asdict(shape),
        "rows": [],
        **parts,
    }


# Writing stores: files named by their content first, the manifest last, so that a reader sees the old store or the
# new.

FILE_TOKENS = 8192
"""A file of rows ends with the request that brings it to this many tokens: 1–4 MB of the larger models."""


@contextmanager
def writing(out: Path, replace: bool) -> Iterator[None]:
    """Lock a folder that is, or will become, a store. TraceError if one exists that may not be replaced."""
    if trace_store.is_store(out) and not replace:
        raise TraceError(f"{out}: is already a trace store. Give another folder, or --replace")
    if out.exists() and not trace_store.is_store(out) and not _is_unfinished(out):
        raise TraceError(f"{out}: exists and is not a trace store; nothing is written there")
    with sole_writer(out):
        yield


def write_tokens(out: Path, shape: trace_store.Shape, entries: Sequence[trace_store.Entry], jobs: int) -> None:
    """Make `out` (see `writing`) a store of these requests, put in order. Raises TraceError for a duplicate request."""
    ordered = sorted(entries, key=lambda entry: entry[:3])
    if not ordered:
        raise TraceError(f"{out}: no requests are left; nothing is written")
    for one, other in zip(ordered, ordered[1:], strict=False):
        if one[:3] == other[:3]:
            raise TraceError(f"{out}: request {one.name} appears twice, in {one.file} and {other.file}")
    groups = list(in_batches(ordered, attrgetter("rows"), FILE_TOKENS))
    packed = in_order(jobs, lambda group: _pack_rows(shape, group), groups)
    rows: list[dict] = []
    with_scores = False
    for group, (content, scored) in zip(groups, packed, strict=True):
        if rows and scored != with_scores:
            raise TraceError(f"{out}: some requests have scores and others have not. Import them separately")
        with_scores = scored
        rows.append(_write(out, "rows", content, requests=len(group), tokens=sum(entry.rows for entry in group)))
    index, facts = _index(ordered)
    tokens = sum(entry.rows for entry in ordered)
    prefill = sum(entry.prefill_rows for entry in ordered)
    counted = {"requests": len(ordered), "tokens": tokens, "prefill_tokens": prefill, "subjects": facts["subjects"]}
    if with_scores:
        counted[trace_store.SCORED] = True
    parts = {"index": _write(out, "index", pack_frames(index, facts)), "rows": rows, **counted}
    _finish(out, manifest_of(trace_store.TOKENS, shape, **parts))


def write_loads(out: Path, shape: trace_store.Shape, loads: "Loads") -> None:
    """Make `out` (see `writing`) a store of load matrices."""
    columns = {"counts": loads.counts, "phase": np.array(loads.phase, np.int8)}
    about = _write(out, "loads", pack_frames(columns, {"names": loads.names, "series": loads.series}))
    _finish(out, manifest_of(trace_store.LOADS, shape, loads=about, matrices=len(loads.names)))


def in_batches(items: Iterable[Any], size_of: Callable[[Any], int], enough: int) -> Iterator[list[Any]]:
    """Lists of consecutive items; one ends with the item that brings its size to ``enough``."""
    batch, size = [], 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if size >= enough:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _pack_rows(shape: trace_store.Shape, entries: list[trace_store.Entry]) -> tuple[bytes, bool]:
    """The content of a file of rows, and whether it has scores."""
    tokens = sum(entry.rows for entry in entries)
    experts = np.empty((tokens, len(shape.layer_ids), shape.top_k), np.int16)
    iteration = np.empty(tokens, np.int16)
    scores = np.empty(experts.shape, np.float32)
    unscored = 0
    ends = np.cumsum([entry.rows for entry in entries])
    placed = sorted(zip(entries, ends, strict=True), key=lambda pair: str(pair[0].file))
    for file, pairs in groupby(placed, key=lambda pair: pair[0].file):
        columns = trace_store.rows_of(file, shape)
        for entry, end in pairs:
            rows = slice(entry.first, entry.first + entry.rows)
            experts[end - entry.rows : end] = columns["experts"][rows]
            iteration[end - entry.rows : end] = columns["iteration"][rows]
            if "scores" in columns:
                scores[end - entry.rows : end] = columns["scores"][rows]
            else:
                unscored += 1
    if 0 < unscored < len(entries):
        raise TraceError(f"{entries[0].file}: {unscored} of {len(entries)} requests have no scores, the others have")
    kept = None if unscored else scores
    return pack_frames(trace_store.row_columns(experts, iteration, shape.num_experts, kept), {}), kept is not None


def _index(entries: list[trace_store.Entry]) -> tuple[dict[str, np.ndarray], dict]:
    datasets = sorted({entry.dataset for entry in entries})
    subjects = sorted({entry.subject for entry in entries})
    dataset_of = {name: n for n, name in enumerate(datasets)}
    subject_of = {name: n for n, name in enumerate(subjects)}
    index: dict[str, np.ndarray] = {
        "dataset": np.array([dataset_of[entry.dataset] for entry in entries], np.int32),
        "subject": np.array([subject_of[entry.subject] for entry in entries], np.int32),
        "number": np.array([entry.number for entry in entries], np.int64),
        "rows": np.array([entry.rows for entry in entries], np.int32),
        "prefill_rows": np.array([entry.prefill_rows for entry in entries], np.int32),
    }
    return index, {"datasets": datasets, "subjects": subjects}


def _write(out: Path, part: str, content: bytes, **more: int) -> dict:
    digest = hashlib.sha256(content).hexdigest()
    name = f"{part}-{digest[:16]}.col"
    with write_draft(out / name, durable=True) as draft:
        draft.write_bytes(content)
    return {"file": name, "bytes": len(content), "sha256": digest, **more}


def _finish(out: Path, manifest: dict) -> None:
    write_text(out / trace_store.MANIFEST, json.dumps(manifest, indent=1), durable=True)
    named = {about["file"] for about in [*manifest["rows"], manifest.get("index"), manifest.get("loads")] if about}
    for file in [*out.glob("*.col"), *out.glob(f".*{DRAFT_SUFFIX}")]:
        if file.name not in named:
            file.unlink(missing_ok=True)
    shutil.rmtree(out / trace_store.DRAFTS, ignore_errors=True)


def _is_unfinished(out: Path) -> bool:
    """Whether a folder holds only the drafts of an interrupted import."""
    return out.is_dir() and all(
        file.name in (trace_store.DRAFTS, ".lock") or file.suffix == ".col" or file.name.endswith(DRAFT_SUFFIX)
        for file in out.iterdir()
    )


def slice_entries(
    store: trace_store.TraceStore, first: int, last: int | None, subjects: Sequence[str]
) -> list[trace_store.Entry]:
    """Requests first … last − 1 of the store in its order, of some subjects if named. Raises TraceError."""
    known = {entry.subject for entry in store.entries}
    for subject in subjects:
        if subject not in known:
            raise TraceError(f"{store.path}: no requests of subject {subject!r}{did_you_mean(subject, known)}")
    return [entry for entry in store.entries[first:last] if not subjects or entry.subject in subjects]


def sample_entries(store: trace_store.TraceStore, requests: int, seed: int) -> list[trace_store.Entry]:
    """So many requests, without replacement, by ``numpy.random.default_rng(seed)``. Raises TraceError."""
    if requests > len(store.entries):
        raise TraceError(f"{store.path}: holds {len(store.entries)} requests; {requests} cannot be sampled from it")
    chosen = np.random.default_rng(seed).choice(len(store.entries), requests, replace=False)
    return [store.entries[r] for r in sorted(chosen.tolist())]


def write_selection(
    store: trace_store.TraceStore, entries: Sequence[trace_store.Entry], out: Path, jobs: int, replace: bool = False
) -> None:
    """Make `out` a store of some requests of another."""
    with writing(out, replace):
        write_tokens(out, store.shape, entries, jobs)


def merge(paths: Sequence[Path], out: Path, jobs: int, overwrite: bool = False) -> None:
    """Make `out` a store of all requests of several, of one model and the same layers. Raises TraceError."""
    stores = [trace_store.open_store(path) for path in paths]
    for opened in stores:
        opened.require(trace_store.TOKENS)
        mine, theirs = (replace(each.shape, model="") for each in (opened, stores[0]))
        if mine != theirs or opened.shape.model.casefold() != stores[0].shape.model.casefold():
            raise TraceError(
                f"{opened.path}: is of {_name_shape(opened)}, {stores[0].path} of {_name_shape(stores[0])}; "
                "expected the same"
            )
    with writing(out, overwrite):
        write_tokens(out, stores[0].shape, [entry for opened in stores for entry in opened.entries], jobs)


def _name_shape(store: trace_store.TraceStore) -> str:
    shape = store.shape
    return f"{shape.model} ({len(shape.layer_ids)} layers, top-{shape.top_k} of {shape.num_experts})"
