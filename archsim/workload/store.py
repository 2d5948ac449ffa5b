"""The trace store: token-level routing, or expert loads, in a folder of compressed and checksummed columns.

Layout (docs/traces.md): ``manifest.json``, written last, names every other file by its content;
``index-<digest>.col`` has one row per request; ``rows-<digest>.col`` hold the tokens of consecutive requests.
Requests are ordered by (dataset, subject, number), so equal requests give equal files, whatever their source. A store
of loads has one ``loads-<digest>.col``. A folder without a manifest is not a store.
"""

import hashlib
import json
import math
import os
import re
import shutil
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from archsim.base.errors import TraceError, did_you_mean
from archsim.base.files import (
    DRAFT_SUFFIX,
    LOG,
    Bomb,
    drafted,
    read_sealed,
    refuse_bomb,
    sole_writer,
    write_sealed,
    write_text,
)
from archsim.base.host import in_order
from archsim.base.libraries import user_cache
from archsim.specs.model import ModelSpec
from archsim.workload import trace
from archsim.workload.trace import Trace, check_distinct, content_digest, span

if TYPE_CHECKING:
    from archsim.workload.loads import Loads

# ---- column_cache
# Converted traces on disk, memory-mapped when they are opened again.
#
# The folder is ``$ARCHSIM_CACHE``, else `user_cache`. The name of an entry is a
# digest of the source content, so it is never stale, and may be deleted at any time. Columns are compared with their
# checksums whenever an entry is opened; a damaged entry is made anew.

_LAYOUT = 4
"""Incremented when the file layout of an entry changes, so that old entries are not read."""

_COLUMNS = ("experts", "request_offsets", "iteration", "layer_ids", "request_subject")
_SCORES = "scores"
_FACTS = ("num_experts", "top_k", "model", "source", "subject_names", "known_digest")


def folder() -> Path:
    return Path(os.environ.get("ARCHSIM_CACHE") or user_cache()) / f"traces-{_LAYOUT}"


def remembered(signature: str | None, compute: Callable[[], str]) -> str:
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


def load(key: str) -> Trace | None:
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


# ---- checking
# What a store says about itself, checked when it is opened, and its columns, checked when they are read.
#
# Checksums show damage; these checks show content that no import writes. They read the manifest and the index, and
# compare smallest and largest ids of columns that are decompressed anyway: less than 5 % of the time to read a store.

_FILE = re.compile(r"(index|rows|loads)-([0-9a-f]{16})\.col")
_SHA256 = re.compile(r"[0-9a-f]{64}")
MOST = 2**62
MOST_LAYERS, MOST_EXPERTS = 10_000, 32_767  # as in archsim.specs.model


def whole(given: Any, name: str, least: int = 0, most: int = MOST) -> int:
    """A whole number in a range, of a JSON value. Raises ValueError."""
    if type(given) is not int or not least <= given <= most:
        raise ValueError(f"{name} is {_short(given)}; expected a whole number from {least} to {most}")
    return given


def _text(given: Any, name: str) -> str:
    if type(given) is not str:
        raise ValueError(f"{name} is {_short(given)}; expected text")
    return given


def _list(given: Any, name: str) -> list:
    if type(given) is not list:
        raise ValueError(f"{name} is {_short(given)}; expected a list")
    return given


def _object(given: Any, name: str, keys: tuple[str, ...]) -> dict:
    if type(given) is not dict:
        raise ValueError(f"{name} is {_short(given)}; expected an object")
    for key in keys:
        if key not in given:
            raise ValueError(f"{name} has no {key!r}")
    return given


def _short(given: Any) -> str:
    text = repr(given) if not isinstance(given, int) or abs(given) < MOST else "a number of many digits"
    return text if len(text) < 60 else f"{text[:57]}..."


def check_manifest(manifest: Any) -> None:
    """Raises ValueError for a manifest that no import writes."""
    _object(manifest, "the manifest", ("kind", "shape", "rows"))
    shape = _object(manifest["shape"], "shape", ("model", "layers", "num_experts", "top_k", "layer_ids"))
    if len(shape) != 5:
        raise ValueError(f"shape has the keys {', '.join(map(str, shape))}")
    _text(shape["model"], "shape.model")
    layers = whole(shape["layers"], "shape.layers", 1, MOST_LAYERS)
    experts = whole(shape["num_experts"], "shape.num_experts", 1, MOST_EXPERTS)
    whole(shape["top_k"], "shape.top_k", 1, experts)
    ids = [whole(each, "shape.layer_ids", 0, layers - 1) for each in _list(shape["layer_ids"], "shape.layer_ids")]
    if not ids or sorted(set(ids)) != ids:
        raise ValueError("shape.layer_ids do not ascend")
    rows = [_file(each, f"rows[{n}]", "rows") for n, each in enumerate(_list(manifest["rows"], "rows"))]
    kind = _text(manifest["kind"], "kind")
    if kind == "tokens":
        _check_tokens(manifest, rows)
    elif kind == "loads":
        _file(manifest.get("loads"), "loads", "loads")
        whole(manifest.get("matrices"), "matrices", 1)
        if rows:
            raise ValueError("a store of loads has files of rows")
    else:
        raise ValueError(f"kind is {_short(kind)}; expected 'tokens' or 'loads'")


def _check_tokens(manifest: dict, rows: list[dict]) -> None:
    _file(manifest.get("index"), "index", "index")
    for n, about in enumerate(rows):
        whole(about.get("requests"), f"rows[{n}].requests", 1)
        whole(about.get("tokens"), f"rows[{n}].tokens", 1)
    for name in ("requests", "tokens"):
        if whole(manifest.get(name), name, 1) != sum(about[name] for about in rows):
            raise ValueError(f"{name} is {manifest[name]}; the files of rows have {sum(each[name] for each in rows)}")
    if type(manifest.get("scores", False)) is not bool:
        raise ValueError(f"scores is {_short(manifest['scores'])}; expected true or false")
    whole(manifest.get("prefill_tokens"), "prefill_tokens", 0, manifest["tokens"])
    for subject in _list(manifest.get("subjects"), "subjects"):
        _text(subject, "subjects")


def _file(about: Any, name: str, part: str) -> dict:
    """The manifest's entry of a file: named after its content, so it cannot lead out of the folder."""
    _object(about, name, ("file", "bytes", "sha256"))
    digest, match = _text(about["sha256"], f"{name}.sha256"), _FILE.fullmatch(_text(about["file"], f"{name}.file"))
    if match is None:
        raise ValueError(f"{name} names a file outside of the store: {_short(about['file'])}")
    if not _SHA256.fullmatch(digest) or match[1] != part or match[2] != digest[:16]:
        raise ValueError(f"{name}.file is {about['file']}; expected {part}-{digest[:16]}.col, after its sha256")
    whole(about["bytes"], f"{name}.bytes")
    return about


def check_index(where: str, index: dict[str, np.ndarray], facts: dict, manifest: dict) -> None:
    """Raise TraceError unless the index has one valid row for every request of the manifest."""
    requests = manifest["requests"]
    for name in ("dataset", "subject", "number", "rows", "prefill_rows"):
        if name not in index or index[name].shape != (requests,) or index[name].dtype.kind not in "iu":
            raise TraceError(f"{where}: column '{name}' is missing, or has not {requests} integers, one a request")
    for name in ("datasets", "subjects"):
        given = facts.get(name)
        if type(given) is not list or not all(type(each) is str and each.isprintable() for each in given):
            raise TraceError(f"{where}: {name}: expected a list of printable names")
    limits: list[tuple[str, int, Any]] = [
        ("dataset", 0, len(facts["datasets"]) - 1),
        ("subject", 0, len(facts["subjects"]) - 1),
        ("number", 0, MOST),
        ("rows", 1, MOST),
        ("prefill_rows", 0, index["rows"]),
    ]
    for name, least, most in limits:
        bad = np.flatnonzero((index[name] < least) | (index[name] > most))
        if len(bad):
            allowed = most[bad[0]] if isinstance(most, np.ndarray) else most
            raise TraceError(
                f"{where}: {name} of request {bad[0]} is {index[name][bad[0]]}; expected {least} to {allowed}"
            )
    ends = np.cumsum([about["requests"] for about in manifest["rows"]])
    tokens = np.add.reduceat(index["rows"].astype(np.int64), np.r_[0, ends[:-1]])
    stated = [about["tokens"] for about in manifest["rows"]]
    if tokens.tolist() != stated or index["prefill_rows"].sum(dtype=np.int64) != manifest["prefill_tokens"]:
        raise TraceError(f"{where}: its requests have other numbers of tokens than the manifest")


def check_rows(where: str, experts: np.ndarray, shape: tuple[int, int], num_experts: int) -> None:
    """Raise TraceError unless the column experts, int16[token, layer, k], has these (layers, k) and ids of experts."""
    if experts.shape[1:] != shape:
        raise TraceError(
            f"{where}: column 'experts' has {experts.shape[1]} layers and top-{experts.shape[2]}; the manifest has "
            f"{shape[0]} layers and top-{shape[1]}"
        )
    if experts.size and experts.view(np.uint16).max() >= num_experts:  # negative ids are the largest: one pass
        raise TraceError(f"{where}: expert ids {experts.min()} to {experts.max()}; expected 0 to {num_experts - 1}")


def check_scores(where: str, scores: np.ndarray, shape: tuple) -> None:
    """Raise TraceError unless scores are float32[token, layer, k] of this shape, finite and not negative."""
    if scores.dtype != np.float32 or scores.shape != shape:
        raise TraceError(f"{where}: scores are {scores.dtype}{list(scores.shape)}; expected float32{list(shape)}")
    if not np.isfinite(scores).all() or scores.min(initial=0) < 0:
        raise TraceError(f"{where}: a score is negative or not finite")


def check_steps(where: str, iteration: np.ndarray, tokens: int) -> None:
    """Raise TraceError unless there is one iteration a token, in range."""
    if iteration.shape != (tokens,) or iteration.dtype.kind not in "iu":
        raise TraceError(f"{where}: iteration is {iteration.dtype}{list(iteration.shape)}; expected {tokens} integers")
    if iteration.size and (iteration.min() < 0 or iteration.max() > trace.MAX_ITERATION):
        raise TraceError(
            f"{where}: iterations {iteration.min()} to {iteration.max()}; expected 0 to {trace.MAX_ITERATION}"
        )


def check_loads(where: str, columns: dict[str, np.ndarray], facts: dict, shape: tuple[int, ...]) -> None:
    """Raise TraceError unless counts are numbers >= 0 of ``shape``, with a name and a phase each."""
    counts, phase = columns.get("counts"), columns.get("phase")
    if counts is None or counts.dtype.kind not in "iuf" or counts.shape != shape:
        found = "missing" if counts is None else f"{counts.dtype}{list(counts.shape)}"
        raise TraceError(f"{where}: counts are {found}; expected numbers {list(shape)}")
    if not np.isfinite(counts).all() or counts.min(initial=0) < 0:
        raise TraceError(f"{where}: a count is negative or not finite")
    if phase is None or phase.shape != shape[:1] or not np.isin(phase, (-1, 0, 1)).all():
        raise TraceError(f"{where}: phase: expected {shape[0]} of -1, 0 and 1")
    for name in ("names", "series") if "series" in facts else ("names",):
        given = facts.get(name)
        if type(given) is not list or len(given) != shape[0] or not all(type(each) is str for each in given):
            raise TraceError(f"{where}: {name}: expected {shape[0]} names")


# ---- frames
# Files of columns: compressed, checksummed, written atomically.
#
# Layout: the magic ``ARCHCOL1``, the length of the header (uint32, little-endian), its CRC-32 (uint32), the header, the
# frames. The header is JSON: ``facts``, and ``columns`` {name: {dtype, shape, frames: [[bytes, CRC-32], …]}}. A frame
# is one Zstandard frame; a column has one for each index of its first axis if it has three axes, else one in all.
# Nothing in a file depends on when or where it was written: equal columns make equal bytes.

MAGIC = b"ARCHCOL1"
LEVEL = 3
"""Of Zstandard: beyond it, routing gets smaller by 1–4 %, and takes 2–7 times as long."""

LARGEST_COLUMN_BYTES = 1 << 34
LEAST_SUSPECT_BYTES, MOST_TIMES = 64 << 20, 1000
"""A column that declares more than LEAST_SUSPECT_BYTES and MOST_TIMES its compressed size is refused as a bomb."""

_DTYPE = re.compile(r"[<|][iuf][1248]")
_LENGTHS = struct.Struct("<II")


def pack_frames(columns: dict[str, np.ndarray], facts: dict[str, Any]) -> bytes:
    """The content of a file of integer columns."""
    codec = _zstd(LEVEL)
    described, frames = {}, []
    for name, column in columns.items():
        parts = column if column.ndim == 3 else [column]
        packed = [codec.compress(np.ascontiguousarray(part), asbytes=True) for part in parts]
        described[name] = {
            "dtype": column.dtype.newbyteorder("<").str,
            "shape": list(column.shape),
            "frames": [[len(frame), zlib.crc32(frame)] for frame in packed],
        }
        frames += packed
    header = json.dumps({"facts": facts, "columns": described}, separators=(",", ":")).encode()
    return b"".join([MAGIC, _LENGTHS.pack(len(header), zlib.crc32(header)), header, *frames])


def write_frames(path: Path, columns: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
    with drafted(path, durable=True) as draft:
        draft.write_bytes(pack_frames(columns, facts))


def read_frames(path: Path, only: frozenset[str] | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(columns, facts) of a file; `only` some of the columns. Raises TraceError if it is damaged."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from error
    header, at = _header(path, content)
    columns, declared = {}, 0
    for name, about in header["columns"].items():
        frames = _frames(path, name, about)
        size = sum(size for size, _ in frames)
        if only is None or name in only:
            declared += math.prod(about["shape"]) * np.dtype(about["dtype"]).itemsize
            try:
                refuse_bomb(f"column '{name}', with those before it,", declared, len(content))
            except Bomb as error:
                raise TraceError(f"{path}: {error}") from None
            columns[name] = _column(path, name, about, frames, content[at : at + size])
        at += size
    if at != len(content):
        raise TraceError(f"{path}: damaged: {len(content)} bytes; expected {at}")
    return columns, header["facts"]


def _header(path: Path, content: bytes) -> tuple[dict, int]:
    start = len(MAGIC) + _LENGTHS.size
    if len(content) < start or not content.startswith(MAGIC):
        raise TraceError(f"{path}: not a file of columns (it does not start with {MAGIC.decode()})")
    length, checksum = _LENGTHS.unpack(content[len(MAGIC) : start])
    text = content[start : start + length]
    if len(text) != length or zlib.crc32(text) != checksum:
        raise TraceError(f"{path}: damaged: the checksum of the header does not match")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: damaged: its header is not valid JSON ({error})") from error
    if type(header) is not dict or type(header.get("columns")) is not dict or type(header.get("facts")) is not dict:
        raise TraceError(f"{path}: damaged: its header has no 'facts' and 'columns'")
    return header, start + length


def _frames(path: Path, name: str, about: Any) -> list[list[int]]:
    """The (bytes, CRC-32) of a column's frames; dtype, shape and frames are checked. Raises TraceError."""
    given = about if type(about) is dict else {}
    dtype, frames = given.get("dtype"), given.get("frames")
    shape: Any = given.get("shape")
    whole = type(shape) is list and all(type(n) is int and 0 <= n <= LARGEST_COLUMN_BYTES for n in shape)
    if not (whole and len(shape) <= 8 and type(dtype) is str and _DTYPE.fullmatch(dtype)):
        raise TraceError(f"{path}: damaged: column {name!r} has dtype {dtype!r:.40} and shape {shape!r:.40}")
    pairs: list[Any] = frames if type(frames) is list else [None]
    if not all(type(each) is list and [type(n) for n in each] == [int, int] and min(each) >= 0 for each in pairs):
        raise TraceError(f"{path}: damaged: the frames of column {name!r} are not pairs of numbers")
    expected = shape[0] if len(shape) == 3 else 1
    if len(pairs) != expected:
        raise TraceError(f"{path}: damaged: column {name!r} has {len(pairs)} frames; expected {expected}")
    return pairs


def _column(path: Path, name: str, about: dict, frames: list[list[int]], content: bytes) -> np.ndarray:
    dtype, shape = np.dtype(about["dtype"]), tuple(about["shape"])
    declared = math.prod(shape) * dtype.itemsize
    most = min(LARGEST_COLUMN_BYTES, max(LEAST_SUSPECT_BYTES, MOST_TIMES * len(content)))
    if declared > most:
        raise TraceError(f"{path}: column '{name}' declares {declared} bytes; at most {most}")
    column = np.empty(shape, dtype)
    codec, at = _zstd(), 0
    parts = column if column.ndim == 3 else [column]
    for part, (size, checksum) in zip(parts, frames, strict=True):
        frame = content[at : at + size]
        if len(frame) != size or zlib.crc32(frame) != checksum:
            raise TraceError(f"{path}: damaged: the checksum of column '{name}' does not match")
        try:
            part[...] = np.frombuffer(codec.decompress(frame, part.nbytes), dtype).reshape(part.shape)
        except (OSError, ValueError, MemoryError) as error:  # pyarrow's errors are ValueErrors or OSErrors
            raise TraceError(f"{path}: damaged: a frame of column {name!r} does not unpack ({error})") from error
        at += size
    return column


def _zstd(level: int | None = None):
    """A codec; pyarrow is imported only when files are packed or read."""
    import pyarrow

    return pyarrow.Codec("zstd", level)


# ---- store

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
        check_index(str(file), index, facts, self.manifest)
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
            check_scores(str(file), found, (about["tokens"], len(self.shape.layer_ids), self.shape.top_k))
            every.append(found)
        return np.concatenate(every)

    def trace(self, source: str) -> Trace:
        """All requests; memory-mapped from the column cache if large. Raises TraceError."""
        self.require(TOKENS)
        if kept := load(self.digest):
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
            check_steps(str(file), iteration, about["tokens"])
            every.append(iteration)
        iteration = np.concatenate(every)
        trace.check_iterations(str(self.path), iteration, offsets)
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
        check_loads(str(file), columns, facts, shape)
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
        check_manifest(manifest)
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
    trace.check_name(where, model, shape.model)
    trace.check_shape(where, model, experts=shape.num_experts, top_k=shape.top_k, layers=shape.layers)
    trace.check_layers(where, model, np.array(shape.layer_ids))
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
        check_rows(str(file), columns["experts"], (len(shape.layer_ids), shape.top_k), shape.num_experts)
    if "iteration" in columns:
        iteration = np.cumsum(columns["iteration"], dtype=np.int64)
        check_steps(str(file), iteration, len(iteration))
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


# ---- describe
# What a store holds, as text.

_SHOWN = 12  # subjects or matrices


def facts_of(store: Store) -> dict[str, str]:
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


def head_of(store: Store, rows: int) -> list[str]:
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


def _subjects(store: Store) -> str:
    counted = Counter(entry.subject for entry in store.entries)
    shown = [f"{subject or '(none)'} {requests}" for subject, requests in list(counted.items())[:_SHOWN]]
    more = f", … {len(counted) - _SHOWN} more" if len(counted) > _SHOWN else ""
    return ", ".join(shown) + more


# ---- verify
# Reads a whole store and compares its checksums and content with the manifest.


def _place(file: Path, layers: tuple[int, ...], row: int, column: int) -> str:
    return f"{file}: token {row}, layer {layers[column]}"


def verify(store: Store) -> None:
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


# ---- store_writer
# Writing stores: files named by their content first, the manifest last, so that a reader sees the old store or the
# new.

FILE_TOKENS = 8192
"""A file of rows ends with the request that brings it to this many tokens: 1–4 MB of the larger models."""


@contextmanager
def writing(out: Path, replace: bool) -> Iterator[None]:
    """Lock a folder that is, or will become, a store. Raises TraceError if a store exists, unless it
    may be replaced.
    """
    if is_store(out) and not replace:
        raise TraceError(f"{out}: is already a trace store. Give another folder, or --replace")
    if out.exists() and not is_store(out) and not _is_unfinished(out):
        raise TraceError(f"{out}: exists and is not a trace store; nothing is written there")
    with sole_writer(out):
        yield


def write_tokens(out: Path, shape: Shape, entries: Sequence[Entry], jobs: int) -> None:
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
        counted[SCORED] = True
    parts = {"index": _write(out, "index", pack_frames(index, facts)), "rows": rows, **counted}
    _finish(out, manifest_of(TOKENS, shape, **parts))


def write_loads(out: Path, shape: Shape, loads: "Loads") -> None:
    """Make `out` (see `writing`) a store of load matrices."""
    columns = {"counts": loads.counts, "phase": np.array(loads.phase, np.int8)}
    about = _write(out, "loads", pack_frames(columns, {"names": loads.names, "series": loads.series}))
    _finish(out, manifest_of(LOADS, shape, loads=about, matrices=len(loads.names)))


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


def _pack_rows(shape: Shape, entries: list[Entry]) -> tuple[bytes, bool]:
    """The content of a file of rows, and whether it has scores."""
    tokens = sum(entry.rows for entry in entries)
    experts = np.empty((tokens, len(shape.layer_ids), shape.top_k), np.int16)
    iteration = np.empty(tokens, np.int16)
    scores = np.empty(experts.shape, np.float32)
    unscored = 0
    ends = np.cumsum([entry.rows for entry in entries])
    placed = sorted(zip(entries, ends, strict=True), key=lambda pair: str(pair[0].file))
    for file, pairs in groupby(placed, key=lambda pair: pair[0].file):
        columns = rows_of(file, shape)
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
    return pack_frames(row_columns(experts, iteration, shape.num_experts, kept), {}), kept is not None


def _index(entries: list[Entry]) -> tuple[dict[str, np.ndarray], dict]:
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
    with drafted(out / name, durable=True) as draft:
        draft.write_bytes(content)
    return {"file": name, "bytes": len(content), "sha256": digest, **more}


def _finish(out: Path, manifest: dict) -> None:
    write_text(out / MANIFEST, json.dumps(manifest, indent=1), durable=True)
    named = {about["file"] for about in [*manifest["rows"], manifest.get("index"), manifest.get("loads")] if about}
    for file in [*out.glob("*.col"), *out.glob(f".*{DRAFT_SUFFIX}")]:
        if file.name not in named:
            file.unlink(missing_ok=True)
    shutil.rmtree(out / DRAFTS, ignore_errors=True)


def _is_unfinished(out: Path) -> bool:
    """Whether a folder holds only the drafts of an interrupted import."""
    return out.is_dir() and all(
        file.name in (DRAFTS, ".lock") or file.suffix == ".col" or file.name.endswith(DRAFT_SUFFIX)
        for file in out.iterdir()
    )


# ---- select
# Stores built from the requests of others: a slice of one, several merged, or a random sample.


def slice_entries(store: Store, first: int, last: int | None, subjects: Sequence[str]) -> list[Entry]:
    """Requests first … last − 1 of the store (counted in its order), of some subjects if any are named. Raises
    TraceError.
    """
    known = {entry.subject for entry in store.entries}
    for subject in subjects:
        if subject not in known:
            raise TraceError(f"{store.path}: no requests of subject {subject!r}{did_you_mean(subject, known)}")
    return [entry for entry in store.entries[first:last] if not subjects or entry.subject in subjects]


def sample_entries(store: Store, requests: int, seed: int) -> list[Entry]:
    """The given number of requests, drawn without replacement by ``numpy.random.default_rng(seed)``. Raises
    TraceError.
    """
    if requests > len(store.entries):
        raise TraceError(f"{store.path}: holds {len(store.entries)} requests; {requests} cannot be drawn from it")
    chosen = np.random.default_rng(seed).choice(len(store.entries), requests, replace=False)
    return [store.entries[r] for r in sorted(chosen.tolist())]


def write_selection(store: Store, entries: Sequence[Entry], out: Path, jobs: int, replace: bool = False) -> None:
    """Make `out` a store of some requests of another."""
    store.require(TOKENS)
    with writing(out, replace):
        write_tokens(out, store.shape, entries, jobs)


def merge(paths: Sequence[Path], out: Path, jobs: int, overwrite: bool = False) -> None:
    """Make `out` a store of all requests of several, of one model and the same layers. Raises TraceError."""
    stores = [open_store(path) for path in paths]
    for opened in stores:
        opened.require(TOKENS)
        mine, theirs = (replace(each.shape, model="") for each in (opened, stores[0]))
        if mine != theirs or opened.shape.model.casefold() != stores[0].shape.model.casefold():
            raise TraceError(
                f"{opened.path}: is of {_named(opened)}, {stores[0].path} of {_named(stores[0])}; expected the same"
            )
    with writing(out, overwrite):
        write_tokens(out, stores[0].shape, [entry for opened in stores for entry in opened.entries], jobs)


def _named(store: Store) -> str:
    shape = store.shape
    return f"{shape.model} ({len(shape.layer_ids)} layers, top-{shape.top_k} of {shape.num_experts})"
