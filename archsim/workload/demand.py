"""The demand of a batch by iteration and MoE layer: tokens per expert, independent of machine and policy.

One pass over a token source; a `Watcher` sees the routing itself in the same pass.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import numpy as np

from archsim.base.kernels import free
from archsim.base.threads import LayerThreads
from archsim.workload.trace import StepTokens, TokenSource, draw_requests


class Watcher(Protocol):
    """Sees the routing of a batch while it is summed."""

    def add(self, piece: StepTokens, layer_threads: LayerThreads) -> None:
        """Rows of an iteration, in the order of the source. layer_threads: they share the layers of kernels."""

    def end(self, iteration: int, layer_threads: LayerThreads) -> None:
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


def build_demand(
    source: TokenSource, batch: int, decode_steps: int, seed: int, *, watchers: Sequence[Watcher] = (),
    threads: int | None = None,
) -> Demand:
    """Sum the routing of `batch` requests (see `draw_requests`) over iterations 0 to `decode_steps`, at most.

    The number of steps is one more than the last iteration that any request reaches. threads: layers are spread over
    them (default: all available cores). Pure: the result depends only on the arguments, and not on threads.
    """
    requests = draw_requests(source.requests, batch, seed)
    layers, experts = len(source.layer_ids), source.num_experts
    layer_threads = LayerThreads(layers, threads)
    every_tokens: list[np.ndarray] = []
    every_order: list[np.ndarray] = []
    prefill_rows = np.zeros(batch, np.int64)
    for iteration, pieces in _every_iteration(source.steps(requests, decode_steps)):
        tokens = np.zeros((layers, experts), np.int32)
        order = np.full((layers, experts), -1, np.int16)
        seen = np.zeros(layers, np.int64)
        for piece in pieces:
            layer_threads.run(_count, piece.experts, seen, tokens, order)
            for watcher in watchers:
                watcher.add(piece, layer_threads)
            if iteration == 0:
                prefill_rows += np.bincount(piece.request, minlength=batch)
        every_tokens.append(tokens)
        every_order.append(order)
        for watcher in watchers:
            watcher.end(iteration, layer_threads)
    return Demand(
        tokens=stacked(every_tokens, (layers, experts), np.int32),
        first_seen=stacked(every_order, (layers, experts), np.int16), has_prefill=bool(prefill_rows.max(initial=0) > 1),
        layer_ids=source.layer_ids, top_k=source.top_k, batch=batch, digest=_digest(source, requests, decode_steps),
    )


def stacked(steps: list[np.ndarray], shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """One array of all steps (`dtype` or wider), emptying the list on the way, so that memory never holds all of them
    twice.
    """
    every = np.empty((len(steps), *shape), np.result_type(dtype, *{step.dtype for step in steps}))
    for at in reversed(range(len(steps))):
        every[at] = steps.pop()
    return every


@free
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


def _every_iteration(steps: Iterator[StepTokens]) -> Iterator[tuple[int, Iterator[StepTokens]]]:
    """(iteration, its pieces) for every iteration from 0 to the last, including those without rows."""
    due = 0
    for iteration, pieces in groupby(steps, key=lambda piece: piece.iteration):
        yield from ((missing, iter(())) for missing in range(due, iteration))
        yield iteration, pieces
        due = iteration + 1


def _digest(source: TokenSource, requests: np.ndarray, decode_steps: int) -> str:
    digest = hashlib.sha256(f"{source.digest} {decode_steps} ".encode())
    digest.update(requests.astype("<i8").tobytes())
    return digest.hexdigest()
