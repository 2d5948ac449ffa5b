"""What a batch asks of the machine, step by step: tokens per expert, and what the predictor makes of the routing.

One pass over a token source; the state is a few arrays per layer and the last token of every request.
Heatmap rules: Yu et al., ISCA 2026 (arXiv 2510.05497v4), as in the published simulator.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import numpy as np

from archsim.base.kernels import free
from archsim.base.threads import LayerThreads
from archsim.workload.trace import StepTokens, TokenSource, draw_requests


class Predictor(Protocol):
    """Marks, for every expert, those expected to follow it."""

    def __call__(self, heat: np.ndarray, changed: np.ndarray, out: np.ndarray) -> None:
        """Rewrite rows of `out` from the heatmap.

        heat: uint32[layer, expert, expert], heat[l, i, j] = times a token that chose j followed one that chose i.
        changed: bool[layer, expert], rows of `heat` that differ from the previous call (all of them at the first).
        out: uint8[layer, expert, ceil(E/8)], little-endian bitset, rows as left by the previous call (zero at first).
        """


@dataclass(frozen=True)
class Demand:
    """What one batch asks for, over step s (= iteration; 0 is the prefill) and MoE layer l of the trace.

    tokens: int32[step, layer, expert], token–expert selections.
    first_seen: int16[step, layer, expert], active experts in order of first appearance (requests in batch order,
      tokens in order, ranks in order), padded with -1.
    has_prefill: step 0 is the prefill: the last request that has routing at iteration 0 has more than one row there.
      Otherwise step 0 is a decode step like the others (one without tokens, where the trace starts at iteration 1).
    origins: uint16 or int32[step, layer, die, expert], tokens by the die their request lives on (position·dies//batch),
      or None.
    hot: uint8[step, layer, expert, ceil(E/8)], little-endian bitset: bit j of row i is set where expert j is predicted
      to follow expert i by the heatmap as of this step, this step included; all zero in step 0; or None.
    batch: requests. digest: names the source and the batch drawn from it.
    """

    tokens: np.ndarray
    first_seen: np.ndarray
    has_prefill: bool
    origins: np.ndarray | None
    hot: np.ndarray | None
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


def build_demand(
    source: TokenSource,
    batch: int,
    decode_steps: int,
    seed: int,
    *,
    origin_dies: int | None = None,
    predictor: Predictor | None = None,
    threads: int | None = None,
) -> Demand:
    """Sum the routing of `batch` requests (see `draw_requests`) over iterations 0 to `decode_steps`, at most.

    There are as many steps as the last iteration any of the requests reaches, plus one. origin_dies: fill `origins`
    for that many dies. predictor: fill `hot`. threads: layers are spread over them (default: the cores there are).
    Pure: the result depends on the arguments alone, and not on threads.
    """
    requests = draw_requests(source.requests, batch, seed)
    layers, experts = len(source.layer_ids), source.num_experts
    die = _home_dies(batch, origin_dies) if origin_dies else None
    layer_threads = LayerThreads(layers, threads)
    heatmap = _Heatmap(batch, layers, experts, source.top_k, predictor, layer_threads) if predictor else None
    columns: dict[str, list[np.ndarray]] = {"tokens": [], "first_seen": [], "origins": [], "hot": []}
    prefill_rows = np.zeros(batch, np.int64)
    for iteration, pieces in _every_iteration(source.steps(requests, decode_steps)):
        tokens = np.zeros((layers, experts), np.int32)
        order = np.full((layers, experts), -1, np.int16)
        seen = np.zeros(layers, np.int64)
        origins = np.zeros((layers, origin_dies or 0, experts), np.int32)
        for piece in pieces:
            layer_threads.run(_count, piece.experts, seen, tokens, order)
            if die is not None:
                layer_threads.run(_count_origins, piece.experts, die[piece.request], origins)
            if heatmap:
                heatmap.add(piece)
            if iteration == 0:
                prefill_rows += np.bincount(piece.request, minlength=batch)
        columns["tokens"].append(tokens)
        columns["first_seen"].append(order)
        if die is not None:
            columns["origins"].append(_narrow(origins))
        if heatmap:
            columns["hot"].append(heatmap.hot_experts(iteration))
    routed = np.flatnonzero(prefill_rows)
    return Demand(
        tokens=_stack(columns["tokens"], (layers, experts), np.int32),
        first_seen=_stack(columns["first_seen"], (layers, experts), np.int16),
        has_prefill=bool(len(routed) and prefill_rows[routed[-1]] > 1),
        origins=_stack(columns["origins"], (layers, origin_dies, experts), np.uint16) if origin_dies else None,
        hot=_stack(columns["hot"], (layers, experts, (experts + 7) // 8), np.uint8) if predictor else None,
        layer_ids=source.layer_ids,
        top_k=source.top_k,
        batch=batch,
        digest=_digest(source, requests, decode_steps),
    )


class _Heatmap:
    """The heatmap of every layer, and the last token of every request of the batch."""

    def __init__(self, batch: int, layers: int, experts: int, top_k: int, predictor: Predictor, layer_threads: LayerThreads):
        self._predictor = predictor
        self._layer_threads = layer_threads
        self._heat = np.zeros((layers, experts, experts), np.uint32)
        self._changed = np.ones((layers, experts), np.bool_)
        self._hot = np.zeros((layers, experts, (experts + 7) // 8), np.uint8)
        self._last = np.zeros((batch, layers, top_k), np.int16)
        self._last_iteration = np.full(batch, -1, np.int32)

    def add(self, piece: StepTokens) -> None:
        """Count the pairs that end in this piece: between prefill tokens, and between decode steps from the 2nd on."""
        wanted = piece.iteration - 1 if piece.iteration else 0
        same = np.concatenate([[False], piece.request[1:] == piece.request[:-1]])
        follows = same | (self._last_iteration[piece.request] == wanted)
        if piece.iteration != 1:
            self._layer_threads.run(
                _count_pairs, piece.experts, piece.request, same, follows, self._last, self._heat, self._changed
            )
        ends = np.concatenate([~same[1:], [True]])
        self._last[piece.request[ends]] = piece.experts[ends]
        self._last_iteration[piece.request[ends]] = piece.iteration

    def hot_experts(self, iteration: int) -> np.ndarray:
        """uint8[layer, expert, ceil(E/8)] for a step; nothing is predicted in iteration 0."""
        if iteration == 0:
            return np.zeros_like(self._hot)
        self._predictor(self._heat, self._changed, self._hot)
        self._changed[:] = False
        return self._hot.copy()


@free
def _count(experts, first, end, seen, tokens, order):
    """Add experts int16[n, layer, k] of layers first … end − 1 to tokens int32[layer, expert]; append new ones to order.

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


@free
def _count_origins(experts, first, end, die, origins):
    """Add experts int16[n, layer, k] of rows that live on die int32[n] to origins int32[layer, die, expert]."""
    rows, _, top_k = experts.shape
    for layer in range(first, end):
        for row in range(rows):
            for rank in range(top_k):
                origins[layer, die[row], experts[row, layer, rank]] += 1


@free
def _count_pairs(experts, first, end, request, same, follows, last, heat, changed):
    """Add pairs (previous token, this token) to heat uint32[layer, expert, expert], marking changed[layer, expert].

    The previous token of a row is the row before it where `same`, else last[request] where `follows`, else none.
    Layers outermost: the map of one layer stays in cache.
    """
    rows, _, top_k = experts.shape
    for layer in range(first, end):
        for row in range(rows):
            if not follows[row]:
                continue
            before = experts[row - 1, layer] if same[row] else last[request[row], layer]
            now = experts[row, layer]
            for rank in range(top_k):
                prior = np.uint64(before[rank])
                changed[layer, prior] = True
                counts = heat[layer, prior]
                for following in range(top_k):
                    counts[np.uint64(now[following])] += np.uint32(1)


def _every_iteration(steps: Iterator[StepTokens]) -> Iterator[tuple[int, Iterator[StepTokens]]]:
    """(iteration, its pieces) for every iteration from 0 to the last one there is, also those without rows."""
    due = 0
    for iteration, pieces in groupby(steps, key=lambda piece: piece.iteration):
        yield from ((missing, iter(())) for missing in range(due, iteration))
        yield iteration, pieces
        due = iteration + 1


def _home_dies(batch: int, dies: int) -> np.ndarray:
    """int32[batch]: requests live on dies in contiguous blocks of equal size."""
    return (np.arange(batch, dtype=np.int64) * dies // batch).astype(np.int32)


def _narrow(counts: np.ndarray) -> np.ndarray:
    return counts.astype(np.uint16) if counts.max(initial=0) < 1 << 16 else counts


def _stack(steps: list[np.ndarray], shape: tuple[int, ...], dtype: type) -> np.ndarray:
    return np.stack(steps) if steps else np.zeros((0, *shape), dtype)


def _digest(source: TokenSource, requests: np.ndarray, decode_steps: int) -> str:
    digest = hashlib.sha256(f"{source.digest} {decode_steps} ".encode())
    digest.update(requests.astype("<i8").tobytes())
    return digest.hexdigest()
