"""The trace store: token-level routing, or expert loads, in a folder of compressed and checksummed columns.

Layout (docs/traces.md): ``manifest.json``, written last, names every other file by its content;
``index-<digest>.col`` has one row per request; ``rows-<digest>.col`` hold the tokens of consecutive requests.
Requests are ordered by (dataset, subject, number), so equal requests give equal files, whatever their source. A store
of loads has one ``loads-<digest>.col``. A folder without a manifest is not a store.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from archsim.base.errors import TraceError
from archsim.model.spec import ModelSpec
from archsim.traffic import store_checks, trace_checks
from archsim.traffic.column_cache import build, get
from archsim.traffic.frames import read_frames
from archsim.traffic.trace import Trace
from archsim.traffic.trace_checks import check_distinct, span

MANIFEST = "manifest.json"
DRAFTS = ".import"  # what an import has read so far
FORMAT, VERSION = "archsim trace store", 1
TOKENS, LOADS = "tokens", "loads"
SCORED = "scores"  # of a manifest: whether files of rows have the gate's scores
MAPPED_BYTES = 4 << 20
"""Routing of at least this size (int16) is kept decompressed in the column cache; smaller routing is decompressed
every time.
"""


@dataclass(frozen=True)
class Shape:
    """Whose routing it is."""

    model: str  # name found with the data
    layers: int  # of the model
    num_experts: int  # of a layer
    top_k: int  # experts per token
    layer_ids: tuple[int, ...]  # those with routing

    @classmethod
    def of(cls, model: ModelSpec, name: str, layer_ids) -> "Shape":
        return cls(name or model.name, model.layers, model.experts, model.top_k, tuple(map(int, layer_ids)))


class Entry(NamedTuple):
    """A request in a file of rows: its position and identity."""

    dataset: str  # '' if it has none
    subject: str  # within the data set
    number: int  # within the subject
    file: Path  # of rows
    first: int  # row in the file
    rows: int  # tokens
    prefill_rows: int  # of them in iteration 0

    @property
    def name(self) -> str:
        return "/".join([part for part in (self.dataset, self.subject) if part] + [str(self.number)])


@dataclass(frozen=True)
class TraceStore:
    """An opened store. manifest: as in the file."""

    path: Path
    kind: str
    shape: Shape
    manifest: dict

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The requests in the order of the store. Raises TraceError."""
        self.require(TOKENS)
        file = self.path / self.manifest["index"]["file"]
        index, facts = read_frames(file)
        store_checks.check_index(str(file), index, facts, self.manifest)
        names, subjects = facts["datasets"], facts["subjects"]
        found, at = [], 0
        for about in self.manifest["rows"]:
            first, file = 0, self.path / about["file"]
            for r in range(at, at + about["requests"]):
                rows = int(index["rows"][r])
                where = names[index["dataset"][r]], subjects[index["subject"][r]], int(index["number"][r])
                found.append(Entry(*where, file, first, rows, int(index["prefill_rows"][r])))
                first += rows
            at += about["requests"]
        return tuple(found)

    @property
    def files(self) -> list[dict]:
        return [self.manifest[part] for part in ("index", "loads") if part in self.manifest] + self.manifest["rows"]

    @property
    def digest(self) -> str:
        return hashlib.sha256(
            repr((self.kind, self.shape, [about["file"] for about in self.files])).encode()
        ).hexdigest()

    def experts(self) -> Iterator[np.ndarray]:
        """int16[token, layer, k], file by file."""
        for about in self.manifest["rows"]:
            file = self.path / about["file"]
            experts = rows_of(file, self.shape, "experts")["experts"]
            if len(experts) != about["tokens"]:
                raise TraceError(f"{file}: {len(experts)} tokens; the manifest has {about['tokens']}")
            yield experts

    def scores(self) -> np.ndarray | None:
        """float32[token, layer, k] of all requests, or None. Raises TraceError."""
        if not self.manifest.get(SCORED):
            return None
        every = []
        for about in self.manifest["rows"]:
            file = self.path / about["file"]
            found = rows_of(file, self.shape, "scores")["scores"]
            store_checks.check_scores(str(file), found, (about["tokens"], len(self.shape.layer_ids), self.shape.top_k))
            every.append(found)
        return np.concatenate(every)

    def trace(self, source: str) -> Trace:
        """All requests; memory-mapped from the column cache if large. Raises TraceError."""
        self.require(TOKENS)
        if kept := get(self.digest):
            return kept
        shape = (sum(entry.rows for entry in self.entries), len(self.shape.layer_ids), self.shape.top_k)
        if 2 * math.prod(shape) >= MAPPED_BYTES:
            plan = self._assemble(source, np.broadcast_to(np.int16(0), shape))
            if built := build(self.digest, plan, self.experts):
                return built
        return self._assemble(source, np.concatenate(list(self.experts())))

    def _assemble(self, source: str, experts: np.ndarray) -> Trace:
        subjects = tuple(dict.fromkeys(entry.subject for entry in self.entries))
        offsets = np.cumsum([0, *(entry.rows for entry in self.entries)], dtype=np.int64)
        return Trace(
            experts=experts,
            request_offsets=offsets,
            iteration=self._iteration(offsets),
            layer_ids=np.array(self.shape.layer_ids, np.int32),
            num_experts=self.shape.num_experts,
            top_k=self.shape.top_k,
            model=self.shape.model,
            source=source,
            request_subject=np.array([subjects.index(entry.subject) for entry in self.entries], np.int16),
            subject_names=subjects,
            scores=self.scores(),
        )

    def _iteration(self, offsets: np.ndarray) -> np.ndarray:
        """int16[token] of all requests. Raises TraceError."""
        every = []
        for about in self.manifest["rows"]:
            file = self.path / about["file"]
            iteration = rows_of(file, self.shape, "iteration")["iteration"]
            store_checks.check_steps(str(file), iteration, about["tokens"])
            every.append(iteration)
        iteration = np.concatenate(every)
        trace_checks.check_iterations(str(self.path), iteration, offsets)
        prefill = np.add.reduceat(iteration == 0, offsets[:-1])
        if prefill.tolist() != [entry.prefill_rows for entry in self.entries]:
            raise TraceError(f"{self.path}: the index has other numbers of prefill rows than the files of rows")
        return iteration

    def loads(self) -> tuple[dict[str, np.ndarray], dict]:
        """({'counts': int64[matrix, layer, expert], 'phase': int8[matrix]}, {'names': […]}). Raises TraceError."""
        self.require(LOADS)
        file = self.path / self.manifest["loads"]["file"]
        columns, facts = read_frames(file)
        shape = self.manifest["matrices"], len(self.shape.layer_ids), self.shape.num_experts
        store_checks.check_loads(str(file), columns, facts, shape)
        return columns, facts

    def require(self, kind: str) -> None:
        if self.kind != kind:
            has, wants = (
                ("expert loads", "the experts of every token") if kind == TOKENS else ("tokens", "expert loads")
            )
            raise TraceError(f"{self.path}: the store holds {has}; this needs {wants}")


def is_store(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def open_store(path: str | Path) -> TraceStore:
    """Open a store: read its manifest and check that its files exist. Raises TraceError."""
    folder = Path(path)
    if not is_store(folder):
        raise TraceError(f"{folder}: not a trace store (it has no {MANIFEST}; an interrupted import leaves none)")
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT or manifest["version"] != VERSION:
            raise ValueError(f"format {manifest['format']!r}, version {manifest['version']!r}")
        store_checks.check_manifest(manifest)
        shape = Shape(**{**manifest["shape"], "layer_ids": tuple(manifest["shape"]["layer_ids"])})
        store = TraceStore(folder, manifest["kind"], shape, manifest)
        for about in store.files:
            _check_file(folder, about)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TraceError(f"{folder / MANIFEST}: not the manifest of a trace store ({error})") from error
    return store


def open_stored(path: Path, model: ModelSpec, source: str) -> Trace:
    """The trace in a store, checked against a model. Raises TraceError."""
    store = open_store(path)
    where, shape = str(path), store.shape
    trace_checks.check_name(where, model, shape.model)
    trace_checks.check_shape(where, model, experts=shape.num_experts, top_k=shape.top_k, layers=shape.layers)
    trace_checks.check_layers(where, model, np.array(shape.layer_ids))
    return replace(store.trace(source), source=source)


def rows_of(file: Path, shape: Shape, *only: str) -> dict[str, np.ndarray]:
    """Columns of a file of rows: experts int16[token, layer, k], iteration int16[token], and where there are any,
    scores float32[token, layer, k]. Raises TraceError, also where they have other layers or ids than the store.
    """
    columns, _ = read_frames(file, frozenset(only) if only else None)
    wanted = {"experts": (3, "iu"), "iteration": (1, "iu"), "scores": (3, "f")}
    for name in only or set(columns) & {"scores"} | {"experts", "iteration"}:
        dimensions, kinds = wanted[name]
        if name not in columns or columns[name].ndim != dimensions or columns[name].dtype.kind not in kinds:
            what = "numbers" if kinds == "f" else "integers"
            raise TraceError(f"{file}: has no column '{name}' of {what} in {dimensions} dimension(s)")
    if "experts" in columns:
        if columns["experts"].dtype not in (np.uint8, np.int16):
            raise TraceError(f"{file}: column 'experts' is {columns['experts'].dtype}; expected uint8 or int16")
        columns["experts"] = np.ascontiguousarray(columns["experts"].transpose(1, 0, 2), np.int16)
        store_checks.check_rows(str(file), columns["experts"], (len(shape.layer_ids), shape.top_k), shape.num_experts)
    if "iteration" in columns:
        iteration = np.cumsum(columns["iteration"], dtype=np.int64)
        store_checks.check_steps(str(file), iteration, len(iteration))
        columns["iteration"] = iteration.astype(np.int16)
    if "scores" in columns:
        columns["scores"] = np.ascontiguousarray(columns["scores"].transpose(1, 0, 2))
    return columns


def row_columns(
    experts: np.ndarray, iteration: np.ndarray, num_experts: int, scores: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Columns of a file of rows: experts (a byte if ids allow) and any scores by layer; iterations as differences."""
    narrow = np.uint8 if num_experts <= 256 else np.int16
    columns = {
        "experts": np.ascontiguousarray(experts.transpose(1, 0, 2), narrow),
        "iteration": np.diff(iteration, prepend=np.int16(0)),
    }
    if scores is not None:
        columns["scores"] = np.ascontiguousarray(scores.transpose(1, 0, 2), np.float32)
    return columns


def _check_file(folder: Path, about: dict) -> None:
    file = folder / about["file"]
    found = file.stat().st_size if file.is_file() else None
    if found != about["bytes"]:
        raise TraceError(
            f"{file}: {'missing' if found is None else f'{found} bytes'}; the manifest has {about['bytes']} bytes"
        )


_SHOWN = 12  # subjects or matrices


def facts_of(store: TraceStore) -> dict[str, str]:
    """Name → text: model, layers, experts, then of token-level stores requests, tokens, size; of loads, its matrices."""  # noqa: E501
    shape, manifest = store.shape, store.manifest
    facts = {
        "store": str(store.path),
        "model": shape.model,
        "layers": f"{len(shape.layer_ids)} of {shape.layers}: {span(shape.layer_ids)}",
        "experts": f"top-{shape.top_k} of {shape.num_experts}",
    }
    if store.kind == TOKENS:
        size_bytes = sum(about["bytes"] for about in store.files)
        decode = manifest["tokens"] - manifest["prefill_tokens"]
        facts["requests"] = f"{manifest['requests']:,}"
        facts["tokens"] = f"{manifest['tokens']:,}: {manifest['prefill_tokens']:,} prefill, {decode:,} decode"
        facts["size"] = f"{size_bytes / 1e6:,.3f} MB in {len(store.files)} files"
        facts["subjects"] = _subjects(store)
    else:
        columns, about = store.loads()
        facts["matrices"] = str(len(about["names"]))
        for name, counts in list(zip(about["names"], columns["counts"], strict=True))[:_SHOWN]:
            facts[f"  {name}"] = f"{counts[0].sum() / shape.top_k:,.0f} tokens"
        if len(about["names"]) > _SHOWN:
            facts["  …"] = f"{len(about['names']) - _SHOWN} more"
    return facts | {"digest": store.digest}


def head_of(store: TraceStore, rows: int) -> list[str]:
    """A line for each of the first ``rows`` tokens: request, iteration, expert ids by layer. Raises TraceError."""
    store.require(TOKENS)
    lines: list[str] = []
    for entry in store.entries:
        left = rows - len(lines)
        if left <= 0:
            break
        columns = rows_of(entry.file, store.shape)
        for row in range(entry.first, entry.first + min(left, entry.rows)):
            ids = "  ".join(
                f"{layer}: {' '.join(map(str, ranks))}"
                for layer, ranks in zip(store.shape.layer_ids, columns["experts"][row].tolist(), strict=True)
            )
            lines.append(f"{entry.name} iteration {columns['iteration'][row]}  {ids}")
    return lines


def _subjects(store: TraceStore) -> str:
    counted = Counter(entry.subject for entry in store.entries)
    shown = [f"{subject or '(none)'} {requests}" for subject, requests in list(counted.items())[:_SHOWN]]
    more = f", … {len(counted) - _SHOWN} more" if len(counted) > _SHOWN else ""
    return ", ".join(shown) + more


def _place(file: Path, layers: tuple[int, ...], row: int, column: int) -> str:
    return f"{file}: token {row}, layer {layers[column]}"


def verify(store: TraceStore) -> None:
    """Raises TraceError at the first damaged file."""
    for about in store.files:
        file = store.path / about["file"]
        with file.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != about["sha256"]:
                raise TraceError(f"{file}: damaged: its checksum does not match that of the manifest")
    if store.kind == TOKENS:
        for about in store.manifest["rows"]:
            file = store.path / about["file"]
            experts = rows_of(file, store.shape)["experts"]
            check_distinct(str(file), experts, partial(_place, file, store.shape.layer_ids))
        store.trace(str(store.path))
