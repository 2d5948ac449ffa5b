"""The trace store: token-level routing, or expert loads, in a folder of compressed and checksummed columns.

Layout (docs/traces.md): ``manifest.json``, written last, names every other file by its content;
``index-<digest>.col`` has one row per request; ``rows-<digest>.col`` hold the tokens of consecutive requests.
Requests are ordered by (dataset, subject, number), so equal requests give equal files, whatever their source. A store
of loads has one ``loads-<digest>.col``. A folder without a manifest is not a store.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from archsim.base.errors import TraceError
from archsim.specs.model import ModelSpec
from archsim.workload import checks
from archsim.workload.store import checking, column_cache
from archsim.workload.store.frames import read_frames
from archsim.workload.trace import Trace

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
    """Whose routing it is. model: name found with the data. layers: of the model; layer_ids: those with routing."""

    model: str
    layers: int
    num_experts: int
    top_k: int
    layer_ids: tuple[int, ...]

    @classmethod
    def of(cls, model: ModelSpec, name: str, layer_ids) -> "Shape":
        return cls(name or model.name, model.layers, model.experts, model.top_k, tuple(map(int, layer_ids)))


class Entry(NamedTuple):
    """A request in a file of rows: its position and identity."""

    dataset: str
    subject: str
    number: int
    file: Path
    first: int
    rows: int
    prefill_rows: int

    @property
    def name(self) -> str:
        return "/".join([part for part in (self.dataset, self.subject) if part] + [str(self.number)])


@dataclass(frozen=True)
class Store:
    """An opened store. manifest: as in the file."""

    path: Path
    kind: str
    shape: Shape
    manifest: dict

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The requests in the order of the store. Raises TraceError."""
        file = self.path / self.manifest["index"]["file"]
        index, facts = read_frames(file)
        checking.check_index(str(file), index, facts, self.manifest)
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
            checking.check_scores(str(file), found, (about["tokens"], len(self.shape.layer_ids), self.shape.top_k))
            every.append(found)
        return np.concatenate(every)

    def trace(self, source: str) -> Trace:
        """All requests; memory-mapped from the column cache if large. Raises TraceError."""
        self.require(TOKENS)
        if kept := column_cache.load(self.digest):
            return kept
        shape = (sum(entry.rows for entry in self.entries), len(self.shape.layer_ids), self.shape.top_k)
        if 2 * math.prod(shape) >= MAPPED_BYTES:
            plan = self._assemble(source, np.broadcast_to(np.int16(0), shape))
            if built := column_cache.build(self.digest, plan, self.experts):
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
            checking.check_steps(str(file), iteration, about["tokens"])
            every.append(iteration)
        iteration = np.concatenate(every)
        checks.check_iterations(str(self.path), iteration, offsets)
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
        checking.check_loads(str(file), columns, facts, shape)
        return columns, facts

    def require(self, kind: str) -> None:
        if self.kind != kind:
            has, wants = (
                ("expert loads", "the experts of every token") if kind == TOKENS else ("tokens", "expert loads")
            )
            raise TraceError(f"{self.path}: the store holds {has}; this needs {wants}")


def is_store(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def open_store(path: str | Path) -> Store:
    """Open a store: read its manifest and check that its files exist. Raises TraceError."""
    folder = Path(path)
    if not is_store(folder):
        raise TraceError(f"{folder}: not a trace store (it has no {MANIFEST}; an interrupted import leaves none)")
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT or manifest["version"] != VERSION:
            raise ValueError(f"format {manifest['format']!r}, version {manifest['version']!r}")
        checking.check_manifest(manifest)
        shape = Shape(**{**manifest["shape"], "layer_ids": tuple(manifest["shape"]["layer_ids"])})
        store = Store(folder, manifest["kind"], shape, manifest)
        for about in store.files:
            _check_file(folder, about)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TraceError(f"{folder / MANIFEST}: not the manifest of a trace store ({error})") from error
    return store


def open_stored(path: Path, model: ModelSpec, source: str) -> Trace:
    """The trace in a store, checked against a model. Raises TraceError."""
    store = open_store(path)
    where, shape = str(path), store.shape
    checks.check_name(where, model, shape.model)
    checks.check_shape(where, model, experts=shape.num_experts, top_k=shape.top_k, layers=shape.layers)
    checks.check_layers(where, model, np.array(shape.layer_ids))
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
        checking.check_rows(str(file), columns["experts"], (len(shape.layer_ids), shape.top_k), shape.num_experts)
    if "iteration" in columns:
        iteration = np.cumsum(columns["iteration"], dtype=np.int64)
        checking.check_steps(str(file), iteration, len(iteration))
        columns["iteration"] = iteration.astype(np.int16)
    if "scores" in columns:
        columns["scores"] = np.ascontiguousarray(columns["scores"].transpose(1, 0, 2))
    return columns


def row_columns(
    experts: np.ndarray, iteration: np.ndarray, num_experts: int, scores: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """What a file of rows holds: experts, and scores if there are any, by layer, experts in one byte where ids allow;
    iterations as differences.
    """
    narrow = np.uint8 if num_experts <= 256 else np.int16
    columns = {
        "experts": np.ascontiguousarray(experts.transpose(1, 0, 2), narrow),
        "iteration": np.diff(iteration, prepend=np.int16(0)),
    }
    if scores is not None:
        columns["scores"] = np.ascontiguousarray(scores.transpose(1, 0, 2), np.float32)
    return columns


def manifest_of(kind: str, shape: Shape, **parts) -> dict:
    return {"format": FORMAT, "version": VERSION, "kind": kind, "shape": asdict(shape), "rows": [], **parts}


def _check_file(folder: Path, about: dict) -> None:
    file = folder / about["file"]
    found = file.stat().st_size if file.is_file() else None
    if found != about["bytes"]:
        raise TraceError(
            f"{file}: {'missing' if found is None else f'{found} bytes'}; the manifest has {about['bytes']} bytes"
        )
