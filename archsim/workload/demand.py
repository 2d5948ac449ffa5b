"""The demand of a batch by iteration and MoE layer: tokens per expert, independent of machine and policy.

One pass over a token source; a `DemandObserver` sees the routing itself in the same pass. Batches that are the first
requests of a larger one are summed in the pass of that one.
"""

import hashlib
import json
import mmap
import os
import shutil
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from archsim.base import code_digest, compiled, files, host
from archsim.workload import generated, store
from archsim.workload.trace import (
    Derived,
    SomeLayers,
    StepTokens,
    TokenSource,
    Trace,
    draw_requests,
    is_first_of,
    rows_per_piece,
)

# ---- stacked
# Arrays of one shape, one a step, as one array: in memory, or, if there are many, in a file that is mapped.
#
# Pages of a mapped file that were read count as memory of the process until it lets go of them, see `let_go`.

HELD_BYTES = 1 << 20
"""Most bytes of one array that stay in memory where there is a file for it."""


class Stacked:
    """Collects steps. shape, dtype: of a step; wider steps widen all. file: where steps go beyond HELD_BYTES; None: to
    no file.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, file: Path | None = None) -> None:
        self._shape, self._dtype, self._file = shape, np.dtype(dtype), file
        self._held: list[np.ndarray] = []
        self._written = 0

    def append(self, step: np.ndarray) -> None:
        """Add the array of the next step, which must not change from then on. Raises OSError as writing does."""
        self._held.append(step)
        if self._file is not None and sum(each.nbytes for each in self._held) > HELD_BYTES:
            self._write(self._file)

    def take(self) -> np.ndarray:
        """All steps so far, [step, ...] of the shape, which are forgotten here. Raises OSError as writing does."""
        if self._file is None or not self._written:
            return self._joined()
        self._write(self._file)
        steps, self._written = self._written, 0
        return read_array(self._file, self._dtype, (steps, *self._shape))

    def _write(self, file: Path) -> None:
        narrow, steps = self._dtype, self._joined()
        if self._written and steps.dtype != narrow:  # those in the file are too narrow
            before = read_array(file, narrow, (self._written, *self._shape)).astype(steps.dtype)
            file.unlink()
            _append(file, before)
        _append(file, steps)
        self._written += len(steps)

    def _joined(self) -> np.ndarray:
        """The steps that are held, emptying the list on the way, so that memory never holds all of them twice."""
        self._dtype = np.result_type(self._dtype, *{step.dtype for step in self._held})
        every = np.empty((len(self._held), *self._shape), self._dtype)
        for at in reversed(range(len(self._held))):
            every[at] = self._held.pop()
        return every


def read_array(file: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> np.ndarray:
    """The array whose bytes a file is; mapped, if it has more than HELD_BYTES. Changes of it stay in the process.

    Raises OSError as reading does, ValueError for a file of another size.
    """
    n_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if file.stat().st_size != n_bytes:
        raise ValueError(f"{file}: {file.stat().st_size} bytes; expected {n_bytes}")
    if n_bytes <= HELD_BYTES:
        return np.fromfile(file, dtype).reshape(shape)
    with file.open("rb") as stream:
        return np.ndarray(shape, dtype, buffer=mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY))


def checksum(array: np.ndarray) -> int:
    """CRC-32 of an array's bytes. A mapped array's pages are given back on the way, as `let_go` does."""
    crc, content, step = 0, array.reshape(-1).view(np.uint8), max(HELD_BYTES, mmap.PAGESIZE)
    for begin in range(0, len(content), step):
        crc = zlib.crc32(content[begin : begin + step].data, crc)
        let_go(array)
    return crc


def let_go(array: np.ndarray) -> None:
    """Give the pages of a mapped array back, if it is one that nobody has changed; they are read anew when needed."""
    if isinstance(array.base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        array.base.madvise(mmap.MADV_DONTNEED)


def _append(file: Path, steps: np.ndarray) -> None:
    with file.open("ab") as stream:
        stream.write(steps.data)


# ---- demand


class DemandObserver(Protocol):
    """Sees the routing of a batch while it is summed."""

    def add(self, piece: StepTokens, layer_threads: host.LayerThreads) -> None:
        """Rows of an iteration, in the order of the source. layer_threads: they share the layers of kernels."""

    def end(self, iteration: int, layer_threads: host.LayerThreads) -> None:
        """An iteration is complete; called for every iteration from 0 on."""


@dataclass(frozen=True)
class Demand:
    """The demand of one batch, by step s (= iteration; 0 is the prefill) and MoE layer l of the trace.

    tokens: int32[step, layer, expert], token–expert selections.
    first_seen: int16[step, layer, expert], active experts in order of first appearance (requests in batch order,
      tokens in order, ranks in order), padded with -1.
    has_prefill: step 0 is the prefill: a request has more than one row there (prompts of one token are like a decode).
      Otherwise step 0 is a decode step like the others (without tokens, if the trace starts at iteration 1).
    layer_ids: int32[layer], the model's number of every layer. batch: requests. digest: names the source and the batch.
    """

    tokens: np.ndarray
    first_seen: np.ndarray
    has_prefill: bool
    layer_ids: np.ndarray
    top_k: int
    batch: int
    digest: str

    @property
    def steps(self) -> int:
        return self.tokens.shape[0]

    @property
    def layers(self) -> int:
        return self.tokens.shape[1]

    @property
    def experts(self) -> int:
        return self.tokens.shape[2]


class BatchSum:
    """Sums the routing of one batch as it passes: the first ``batch`` requests (see `draw_requests`) of a source, over
    iterations 0 to `decode_steps`, at most. ``watchers`` see it, too.

    folder: where the steps of columns go that would fill the memory (`Stacked`); None: they stay there.
    """

    def __init__(
        self, source: TokenSource, batch: int, decode_steps: int, seed: int, watchers: Sequence[DemandObserver] = (),
        folder: Path | None = None,
    ) -> None:  # fmt: skip
        self.source, self.batch, self.decode_steps, self.seed = source, batch, decode_steps, seed
        self.requests = draw_requests(source.requests, batch, seed)
        self._watchers = watchers
        self._shape = len(source.layer_ids), source.num_experts
        self._tokens = Stacked(self._shape, np.int32, folder and folder / "tokens")
        self._order = Stacked(self._shape, np.int16, folder and folder / "first_seen")
        self._prefill_rows = np.zeros(batch, np.int64)
        self._iteration = 0
        self._begin()

    def _begin(self) -> None:
        self._now = np.zeros(self._shape, np.int32), np.full(self._shape, -1, np.int16)
        self._seen = np.zeros(self._shape[0], np.int64)
        self._has_rows = False

    def add(self, piece: StepTokens, layer_threads: host.LayerThreads) -> None:
        """Rows of an iteration, in the order of the source."""
        while self._iteration < piece.iteration:
            self._end(layer_threads)
        self._has_rows = True
        layer_threads.run(_count, piece.experts, self._seen, *self._now)
        for watcher in self._watchers:
            watcher.add(piece, layer_threads)
        if piece.iteration == 0:
            self._prefill_rows += np.bincount(piece.request, minlength=self.batch)

    def _end(self, layer_threads: host.LayerThreads) -> None:
        """An iteration is complete."""
        tokens, order = self._now
        self._tokens.append(tokens)
        self._order.append(order)
        for watcher in self._watchers:
            watcher.end(self._iteration, layer_threads)
        self._iteration += 1
        self._begin()

    def finish(self, layer_threads: host.LayerThreads) -> None:
        """No more rows follow."""
        if self._has_rows:
            self._end(layer_threads)

    def demand(self) -> Demand:
        """The sums of a batch that has passed, which are forgotten here."""
        return Demand(
            tokens=self._tokens.take(), first_seen=self._order.take(),
            has_prefill=bool(self._prefill_rows.max(initial=0) > 1), layer_ids=self.source.layer_ids,
            top_k=self.source.top_k, batch=self.batch, digest=_digest(self.source, self.requests, self.decode_steps),
        )  # fmt: skip


def build_demand(
    source: TokenSource, batch: int, decode_steps: int, seed: int, *, threads: int | None = None
) -> Demand:
    """Sum the routing of `batch` requests (see `draw_requests`) over iterations 0 to `decode_steps`, at most.

    The number of steps is one more than the last iteration that any request reaches. threads: layers are spread over
    them (default: all available cores). Pure: the result depends only on the arguments, and not on threads.
    """
    one = BatchSum(source, batch, decode_steps, seed)
    sum_together([one], threads)
    return one.demand()


def sum_together(sums: Sequence[BatchSum], threads: int | None = None) -> None:
    """Pass the routing of the largest batch, once, to the sums of all: the others are its first requests.

    Raises ValueError where they are not, or run for other numbers of decode steps.
    """
    whole = max(sums, key=lambda each: each.batch)
    for each in sums:
        first = is_first_of(each.source, each.batch, whole.source, whole.batch, whole.seed)
        if not first or (each.decode_steps, each.seed) != (whole.decode_steps, whole.seed):
            raise ValueError(f"the batch of {each.batch} is not the beginning of that of {whole.batch}")
    layer_threads = host.LayerThreads(len(whole.source.layer_ids), threads)
    for piece in whole.source.steps(whole.requests, whole.decode_steps):
        for each in sums:
            rows = int(np.searchsorted(piece.request, each.batch))
            if rows:
                each.add(piece.first(rows), layer_threads)
    for each in sums:
        each.finish(layer_threads)


@compiled.kernel
def _count(experts, first, end, seen, tokens, order):
    """Add experts int16[n, layer, k] of layers first … end − 1 to tokens int32[layer, expert]; append new ones to
    order.

    order: int16[layer, expert], of which seen: int64[layer] are filled.
    """
    rows, _, top_k = experts.shape
    for row in range(rows):
        for layer in range(first, end):
            for rank in range(top_k):
                expert = experts[row, layer, rank]
                if tokens[layer, expert] == 0:
                    order[layer, seen[layer]] = expert
                    seen[layer] += 1
                tokens[layer, expert] += 1


def _digest(source: TokenSource, requests: np.ndarray, decode_steps: int) -> str:
    digest = hashlib.sha256(f"{source.digest} {decode_steps} ".encode())
    digest.update(requests.astype("<i8").tobytes())
    return digest.hexdigest()


# ---- step_demand
# The demand of one MoE layer in one iteration: everything an engine knows about the traffic when it runs a step.

# ---- first steps
# Where answers begin with a template, as gpt-oss's do, few experts are active in the first decode steps.

LOOKED, OF_REQUESTS = 32, 64  # decode steps, and requests that stand for a batch
SETTLED_SHARE = 0.8  # of the experts active later; chance moves them by less than 5 % from step to step


def active_by_step(source: TokenSource, requests: np.ndarray) -> np.ndarray:
    """float64[step]: experts that the first ``OF_REQUESTS`` of the requests (int64[n]) activate in a layer in each of
    the first ``LOOKED`` decode steps, as a mean over layers.
    """
    found: dict[int, np.ndarray] = {}
    layers = np.arange(len(source.layer_ids))[None, :, None]
    for piece in source.steps(requests[:OF_REQUESTS], LOOKED):
        if piece.iteration:
            active = found.setdefault(piece.iteration, np.zeros((len(source.layer_ids), source.num_experts), bool))
            active[np.broadcast_to(layers, piece.experts.shape), piece.experts] = True
    return np.array([found[step].sum(axis=1).mean() for step in sorted(found)])


def unsettled_steps(active: np.ndarray) -> int:
    """The first decode steps whose experts are fewer than later, by ``active``: float64[step] of the first ``LOOKED``;
    0 where they are as many, or where there are too few steps to tell.
    """
    half = LOOKED // 2
    if len(active) < half + half // 2:
        return 0
    few = np.flatnonzero(active[:half] < SETTLED_SHARE * np.median(active[half:LOOKED]))
    return int(few[-1]) + 1 if len(few) else 0


def dies_of_requests(batch: int, dies: int) -> np.ndarray:
    """int32[request]: requests live on dies in contiguous blocks of equal size."""
    return (np.arange(batch, dtype=np.int64) * dies // batch).astype(np.int32)


class Predicted(NamedTuple):
    """What a predictor expects in a step. ``took_ns``: time of the prediction on this host."""

    rows: (
        np.ndarray
    )  # uint8[expert, ceil(E/8)], little-endian bitset: bit j of row i is set where j is expected to follow i
    took_ns: float = 0.0


class TokenRouting(NamedTuple):
    """The routing of single tokens, if known."""

    experts: np.ndarray  # int16[token, k], in rank order of the source
    die: np.ndarray  # int32[token]: where the token lives


class StepDemand(NamedTuple):
    """One MoE layer in one iteration. Token counts are token–expert selections, ``top_k`` per token.

    ``tokens`` are all of them, ``prefill_tokens`` those of prompts; the others are decoded. ``first_seen``: active
    experts in order of first appearance, padded with -1. ``origins``: the same tokens by the die on which they live;
    None if no assumption needs it. ``predicted``: None under a policy that predicts nothing. ``routing``: None if
    only sums are known. Where a policy does not execute every chosen pair, all of these count executed ones alone, and
    ``residents`` are the tokens that live on each die, executed or not. ``expected``: tokens that a policy's predictor
    expects.
    """

    step: int  # iteration
    tokens: np.ndarray  # int32[expert]
    prefill_tokens: np.ndarray  # int32[expert]
    first_seen: np.ndarray  # int16[expert]
    top_k: int
    origins: np.ndarray | None = None  # uint16 or int32[die, expert]
    predicted: Predicted | None = None
    routing: TokenRouting | None = None
    residents: np.ndarray | None = None  # int64[die]; None: origins / top_k
    expected: np.ndarray | None = None  # float32[expert]; None: nothing is predicted

    @property
    def living(self) -> np.ndarray:
        """Tokens that live on each die, int64[die]; needs ``origins``."""
        if self.residents is not None:
            return self.residents.astype(np.int64)
        assert self.origins is not None, "the assumptions ask for them"
        return self.origins.sum(axis=1, dtype=np.int64) // self.top_k


# ---- demand_cache
# Demands cached on disk: a batch is summed once, and later runs and other processes read the result.
#
# An entry is a folder with a file of bytes for every array; large ones are mapped. Its name covers everything its
# content depends on: the routing, the batch, and the summing code. It may be deleted at any time; the least recently
# used entries are deleted when the total exceeds `MOST_BYTES`.

MOST_BYTES = 4 << 30
WORTH_S = 0.5
"""Demands that take less are not cached."""
ABANDONED_S = 24 * 60 * 60
"""Age of drafts whose process is taken to have been killed."""
_FACTS = "facts.json"
_DRAFT = "draft-"

Kind = TypeVar("Kind", bound=Demand)


def folder() -> Path:
    return store.folder().with_name("demands")


def cached_demand(kind: type[Kind], name: str, build: Callable[[Path | None], Kind]) -> Kind:
    """The demand that `build` makes: a dataclass of arrays, None and numbers. name: unique among demands of the same
    code. build: gets a folder to which columns may be written, or None.
    """
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


# ---- extended
# Batches that are larger than their trace: what the requests beyond the recorded ones do.
#
# ============  ===========================================================================================
# ``redraw``    all requests are drawn with replacement; copies of one choose the same experts at each step
# ``shifted``   copies of a request decode the same steps, each from another one on, and go on at its first
# ``fitted``    all requests are generated from a traffic model that is fitted to the trace
# ============  ===========================================================================================

REDRAW, SHIFTED, FITTED = "redraw", "shifted", "fitted"


@dataclass(frozen=True)
class Shifted(Derived):
    """A `TokenSource` of ``batch`` requests: number i is recorded request i modulo their number, of which copy c of C
    begins c/C of its decode steps later. Its prompt is the recorded one.
    """

    source: Trace
    batch: int

    @property
    def requests(self) -> int:
        return self.batch

    @property
    def recorded(self) -> int:
        return self.source.requests

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.source.digest} shifted {self.batch}".encode()).hexdigest()

    def longest(self, requests: np.ndarray, decode_steps: int) -> int:
        """See `Trace.longest`."""
        return self.source.longest(requests % self.recorded, decode_steps)

    def steps(self, requests: np.ndarray, decode_steps: int) -> Iterator[StepTokens]:
        """See `TokenSource.steps`."""
        trace, original = self.source, requests % self.recorded
        yield from trace.steps(original, 0)
        prompt, length = trace.lengths[original].T
        begin = trace.request_offsets[original] + prompt
        shift = requests // self.recorded * length // -(-self.batch // self.recorded)
        size = rows_per_piece(len(trace.layer_ids), trace.top_k)
        for iteration in range(1, min(decode_steps, int(length.max(initial=0))) + 1):
            decoding = np.flatnonzero(length >= iteration).astype(np.int32)
            row = begin[decoding] + (iteration - 1 + shift[decoding]) % length[decoding]
            for start in range(0, len(row), size):
                piece = row[start : start + size]
                scores = None if trace.scores is None else trace.scores[piece]
                yield StepTokens(iteration, decoding[start : start + size], trace.experts[piece], scores)


@dataclass(frozen=True)
class FittedRequests(Derived):
    """Generated requests with the statistics of a trace; lengths and subjects are drawn from the recorded ones."""

    source: generated.Traffic
    recorded: int

    @property
    def digest(self) -> str:
        return self.source.digest

    def longest(self, requests: np.ndarray, decode_steps: int) -> int:
        """See `Trace.longest`."""
        return self.source.longest(requests, decode_steps)

    def steps(self, requests: np.ndarray, decode_steps: int) -> Iterator[StepTokens]:
        """See `TokenSource.steps`."""
        return self.source.steps(requests, decode_steps)


def _fitted(trace: Trace, batch: int, seed: int) -> FittedRequests:
    from archsim.workload.traffic_fit import fit_subjects

    drawn = np.random.default_rng(seed).integers(trace.requests, size=batch)
    model = fit_subjects(trace, FITTED, f"fit of digest {trace.digest[:12]}", seed)
    subject = trace.request_subject[drawn]
    used = np.unique(subject)
    names = [generated.task_of(model, trace.subject_names[each]) for each in used]
    tasks = list(dict.fromkeys(names))
    task = np.array([tasks.index(name) for name in names])[np.searchsorted(used, subject)]
    mix = dict.fromkeys(tasks, 1.0)
    return FittedRequests(generated.traffic_of(model, batch, seed, mix, trace.lengths[drawn], task), trace.requests)


def extended(trace: Trace, batch: int, extend: str, seed: int) -> TokenSource:
    """The source of a batch: the trace itself unless the batch is larger and ``extend`` is not ``redraw``."""
    if batch <= trace.requests or extend == REDRAW:
        return trace
    return Shifted(trace, batch) if extend == SHIFTED else _fitted(trace, batch, seed)


def recorded_requests(source: TokenSource) -> int:
    """Requests that a source has, or was extended from."""
    whole = source.source if isinstance(source, SomeLayers) else source
    return whole.recorded if isinstance(whole, Shifted | FittedRequests) else whole.requests
