"""Routing as columns: which experts every token of every request chose, and how a batch streams out of it.

A *token source* is anything that can replay a batch iteration by iteration: a recorded `Trace`, or the generated
traffic of `archsim.traffic.synthetic`. Nothing here holds an object per token.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

CHUNK_BYTES = 4 << 20
"""Upper bound of the experts array of one `StepTokens` (unless one row alone is larger): stays within a large cache."""


@dataclass(frozen=True)
class StepTokens:
    """Consecutive rows of one iteration of a batch, every MoE layer of each."""

    iteration: int  # 0 is the prefill, 1, 2, ... are decode steps
    # int32[n], position of the row's request in the batch; ascending, rows of one request in token order
    request: np.ndarray
    experts: np.ndarray  # int16[n, layer, k], in the rank order of the source
    scores: np.ndarray | None = None  # float32[n, layer, k], the gate's; None where the source has none

    def first(self, rows: int) -> "StepTokens":
        """The first rows alone, without a copy."""
        if rows == len(self.request):
            return self
        scores = None if self.scores is None else self.scores[:rows]
        return StepTokens(self.iteration, self.request[:rows], self.experts[:rows], scores)


class TokenSource(Protocol):
    """What `BatchSum` needs of routing data.

    requests: number of distinct requests. layer_ids: int32[layer], the model's number of every column.
    num_experts, top_k: shape of the model. digest: names the content. label: for the `trace` column of results.
    """

    @property
    def requests(self) -> int: ...

    @property
    def layer_ids(self) -> np.ndarray: ...

    @property
    def num_experts(self) -> int: ...

    @property
    def top_k(self) -> int: ...

    @property
    def digest(self) -> str: ...

    @property
    def label(self) -> str: ...

    def steps(self, requests: np.ndarray, decode_steps: int) -> Iterator[StepTokens]:
        """Stream the batch `requests: int64[n]` (indices, repeats allowed) through iterations 0 to `decode_steps`.

        Iterations come in ascending order; within one, rows are ordered by position in the batch, then by token. A
        long iteration comes in several consecutive pieces; one in which no request has a row is skipped.
        """


@dataclass(frozen=True)
class Derived:
    """A `TokenSource` made from another: like it, but for what a subclass defines."""

    source: TokenSource

    @property
    def requests(self) -> int:
        return self.source.requests

    @property
    def layer_ids(self) -> np.ndarray:
        return self.source.layer_ids

    @property
    def num_experts(self) -> int:
        return self.source.num_experts

    @property
    def top_k(self) -> int:
        return self.source.top_k

    @property
    def label(self) -> str:
        return self.source.label


@dataclass(frozen=True)
class Trace:
    """Recorded routing in columns; a `TokenSource`.

    A trace of decode steps only has no rows of iteration 0, a trace of prompts only has no others; the numbering stays
    as recorded. digest: sha256 of the columns, so equal routing has equal digests whatever format it came in.
    """

    experts: np.ndarray  # int16[token, layer, k], possibly memory-mapped
    request_offsets: np.ndarray  # int64[R+1], request r owns the rows from request_offsets[r] to request_offsets[r+1]
    # int16[token] in its request, not decreasing; only iteration 0 (prefill) has more than one row
    iteration: np.ndarray
    layer_ids: np.ndarray  # int32[layer], the model's numbers
    num_experts: int  # of a layer
    top_k: int  # experts per token
    model: str  # name found with the data ('' if none)
    source: str  # path as given
    request_subject: np.ndarray  # int16[R], index into subject_names
    subject_names: tuple[str, ...]  # '' for requests without a subject
    known_digest: str = ""  # the digest, if already computed
    stored_as: str = ""  # name of the columns in the cache, '' if not cached
    # float32[token, layer, k], the gate's scores of the chosen experts; None: not recorded
    scores: np.ndarray | None = None

    @property
    def requests(self) -> int:
        return len(self.request_offsets) - 1

    @property
    def label(self) -> str:
        return self.source

    @cached_property
    def digest(self) -> str:
        return self.known_digest or content_digest(self, [self.experts]).hexdigest()

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64[R, 2]: rows of iteration 0 of every request, and others."""
        before = np.concatenate([[0], np.cumsum(self.iteration == 0)])
        prompt = np.diff(before[self.request_offsets])
        return np.stack([prompt, np.diff(self.request_offsets) - prompt], axis=1)

    def longest(self, requests: np.ndarray, decode_steps: int) -> int:
        """Most rows that one of `requests: int64[n]` has until its decode step `decode_steps`, its prompt included."""
        before = np.concatenate([[0], np.cumsum(self.iteration <= decode_steps)])
        return int(np.diff(before[self.request_offsets])[requests].max(initial=0))

    def steps(self, requests: np.ndarray, decode_steps: int) -> Iterator[StepTokens]:
        """See `TokenSource.steps`. A request that has ended stops contributing."""
        cursor = self.request_offsets[requests]
        end = self.request_offsets[requests + 1]
        last = int(self.iteration.max(initial=0))
        for iteration in range(min(last, decode_steps) + 1):
            rows = self.lengths[requests, 0] if iteration == 0 else self._decode_rows(cursor, end, iteration)
            yield from self._pieces(iteration, cursor, rows)
            cursor = cursor + rows

    def _decode_rows(self, cursor: np.ndarray, end: np.ndarray, iteration: int) -> np.ndarray:
        """int64[n]: 1 where the next row of a request is one of `iteration`, else 0."""
        rows = np.zeros(len(cursor), np.int64)
        running = np.flatnonzero(cursor < end)
        rows[running] = self.iteration[cursor[running]] == iteration
        return rows

    def _pieces(self, iteration: int, cursor: np.ndarray, rows: np.ndarray) -> Iterator[StepTokens]:
        position = np.repeat(np.arange(len(rows), dtype=np.int32), rows)
        first = cursor - (np.cumsum(rows) - rows)
        row = first[position] + np.arange(len(position))
        size = rows_per_piece(len(self.layer_ids), self.top_k)
        for start in range(0, len(row), size):
            piece = slice(start, start + size)
            scores = None if self.scores is None else self.scores[row[piece]]
            yield StepTokens(iteration, position[piece], self.experts[row[piece]], scores)


def content_digest(trace: Trace, blocks: Iterable[np.ndarray]):
    """The hash object of a trace whose experts come in blocks int16[token, layer, k]."""
    digest = hashlib.sha256(f"{trace.num_experts} {trace.experts.shape}".encode())
    for column in (trace.layer_ids, trace.request_offsets, trace.iteration):
        digest.update(np.ascontiguousarray(column).data)
    for block in blocks:
        digest.update(np.ascontiguousarray(block).data)
    if trace.scores is not None:
        digest.update(np.ascontiguousarray(trace.scores).data)
    return digest


def rows_per_piece(layers: int, top_k: int) -> int:
    """Rows whose experts (int16) fill `CHUNK_BYTES`; at least one."""
    return max(1, CHUNK_BYTES // (2 * layers * top_k))


def draw_requests(available: int, batch: int, seed: int) -> np.ndarray:
    """The requests of a batch: int64[batch].

    The first `batch` in file order; if there are fewer, all `batch` are drawn uniformly with replacement by
    ``numpy.random.default_rng(seed)``. A request drawn twice counts as two requests with equal routing.
    """
    if batch <= available:
        return np.arange(batch, dtype=np.int64)
    return np.random.default_rng(seed).integers(available, size=batch, dtype=np.int64)


def is_first_of(source: TokenSource, batch: int, whole: TokenSource, of: int, seed: int) -> bool:
    """Whether a batch is the first requests of the batch ``of`` of another source, routed equally."""
    first = draw_requests(whole.requests, of, seed)[:batch]
    same = np.array_equal(draw_requests(source.requests, batch, seed), first)
    return same and bool(identical_requests(source, whole)[first].all())


def identical_requests(source: TokenSource, whole: TokenSource) -> np.ndarray:
    """bool[request]: the requests of a source that are routed as those of the same number in another one.

    A source whose requests depend on how many it has says so (``identical``); others may name the routing of single
    requests (``request_digest``), where they differ only in how many they have.
    """
    identical = getattr(source, "identical", None)
    if identical is not None:
        found: np.ndarray = identical(getattr(whole, "itself", whole))
        return found
    same = _of_requests(source) == _of_requests(whole)
    return np.arange(source.requests) < (whole.requests if same else 0)


def _of_requests(source: TokenSource) -> str:
    return getattr(source, "request_digest", None) or source.digest
