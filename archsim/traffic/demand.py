"""The demand of a batch by iteration and MoE layer: tokens per expert, independent of machine and policy.

One pass over a token source; a `DemandObserver` sees the routing itself in the same pass. Batches that are the first
requests of a larger one are summed in the pass of that one.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from archsim.base import compiled, host
from archsim.traffic.stacked import Stacked
from archsim.traffic.trace import StepTokens, TokenSource, draw_requests, is_first_of


class DemandObserver(Protocol):
    """Sees the routing of a batch while it is summed."""

    def add(self, piece: StepTokens, layer_threads: host.LayerThreads) -> None:
        """Rows of an iteration, in the order of the source. layer_threads: they share the layers of kernels."""

    def end(self, iteration: int, layer_threads: host.LayerThreads) -> None:
        """An iteration is complete; called for every iteration from 0 on."""


@dataclass(frozen=True)
class Demand:
    """The demand of one batch, by step (= iteration; 0 is the prefill) and MoE layer of the trace."""

    tokens: np.ndarray  # int32[step, layer, expert], token–expert selections
    # int16[step, layer, expert], active experts by first appearance (request, token, rank), padded with -1
    first_seen: np.ndarray
    # a request has more than one row in step 0, which else is a decode step (empty if the trace starts at 1)
    has_prefill: bool
    layer_ids: np.ndarray  # int32[layer], the model's numbers
    top_k: int  # experts per token
    batch: int  # requests
    digest: str  # names the source and the batch

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
    """Sums the routing of a batch, the first ``batch`` requests over `decode_steps`, as it passes; ``watchers`` see it.

    folder: where steps go that would fill the memory (`Stacked`); None: they stay there.
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
        tokens, order = self._now
        self._tokens.append(tokens)
        self._order.append(order)
        for watcher in self._watchers:
            watcher.end(self._iteration, layer_threads)
        self._iteration += 1
        self._begin()

    def finish(self, layer_threads: host.LayerThreads) -> None:
        if self._has_rows:
            self._end(layer_threads)

    def demand(self) -> Demand:
        """The sums of a batch that has passed, which are forgotten here."""
        return Demand(
            tokens=self._tokens.take(), first_seen=self._order.take(),
            has_prefill=bool(self._prefill_rows.max(initial=0) > 1), layer_ids=self.source.layer_ids,
            top_k=self.source.top_k, batch=self.batch, digest=_digest(self.source, self.requests, self.decode_steps),
        )  # fmt: skip


def sum_together(sums: Sequence[BatchSum], threads: int | None = None) -> None:
    """Pass the largest batch's routing once to the sums of all. ValueError unless the others are its first requests."""
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
    """Add int16[n, layer, k] of layers first … end − 1 to ``tokens``; append new ones to order[layer, :seen[layer]]."""
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


# Where answers begin with a template, as gpt-oss's do, few experts are active in the first decode steps.

LOOKED, OF_REQUESTS = 32, 64  # decode steps, and requests that stand for a batch
SETTLED_SHARE = 0.8  # of the experts active later; chance moves them by less than 5 % from step to step


def active_by_step(source: TokenSource, requests: np.ndarray) -> np.ndarray:
    """float64[step]: experts that the first ``OF_REQUESTS`` activate in ``LOOKED`` decode steps, mean of layers."""
    found: dict[int, np.ndarray] = {}
    layers = np.arange(len(source.layer_ids))[None, :, None]
    for piece in source.steps(requests[:OF_REQUESTS], LOOKED):
        if piece.iteration:
            active = found.setdefault(piece.iteration, np.zeros((len(source.layer_ids), source.num_experts), bool))
            active[np.broadcast_to(layers, piece.experts.shape), piece.experts] = True
    return np.array([found[step].sum(axis=1).mean() for step in sorted(found)])


def unsettled_steps(active: np.ndarray) -> int:
    """The first decode steps with fewer experts than later, by ``active`` (float64[step]); 0 for none, or few steps."""
    half = LOOKED // 2
    if len(active) < half + half // 2:
        return 0
    few = np.flatnonzero(active[:half] < SETTLED_SHARE * np.median(active[half:LOOKED]))
    return int(few[-1]) + 1 if len(few) else 0
