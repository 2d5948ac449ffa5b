"""The heatmap as hardware implements it: 16-bit counters behind a port, updated while a step runs (``heatmap_update:
limited``).

Updates that the port cannot serve during a step are dropped, last requests first. The pairs of a step count from the
next iteration on. When a counter is full, its whole row is halved: counts keep their order, and old ones decay
(ageing); that takes the port two accesses a word of the row, as the store in RTL does (``microarch.rtl.heatmap``).
Compare `FreeHeatmap`, which counts every pair at once (``heatmap_update: free``).
"""

from collections.abc import Callable, Iterator
from itertools import groupby

import numpy as np

from archsim.base.compiled import inner, kernel, outer
from archsim.policies.heatmap import seen_of
from archsim.traffic.trace import StepTokens

COUNTER_LIMIT = np.int64(2**16 - 1)
ACCESSES_PER_UPDATE = 2  # a word is read and written


def cycles_per_transition(experts: int, top_k: int, port_bits: int) -> float:
    """Port cycles per token transition: k rows, in each the expected number of distinct words that hold k counters.

    A word holds ``port_bits / 16`` counters; k successors spread over w words fall on w (1 - (1 - 1/w)^k) of them.
    """
    words = max(1.0, experts * 16 / port_bits)
    return ACCESSES_PER_UPDATE * top_k * words * (1 - (1 - 1 / words) ** top_k)


def cycles_per_halving(experts: int, port_bits: int) -> int:
    """Port cycles for a row: every word is read and written."""
    return ACCESSES_PER_UPDATE * -(-experts * 16 // port_bits)


class PortedHeatmap:
    """Heatmaps of all layers of one run; iterations must begin in order.

    ``routing``: iterator of ``StepTokens`` in order of iteration. ``predictor``: a
    `Predictor`. ``per_word``: counters of a word of the port. ``halvings``: rows halved.
    ``count``: what adds pairs to a layer's counters; by default the compiled table of the store.
    """

    def __init__(
        self,
        routing: Iterator[StepTokens],
        batch: int,
        layers: int,
        experts: int,
        top_k: int,
        predictor: Callable,
        per_word: int = 32,
        count: Callable[..., int] | None = None,
    ):
        self._per_word, self.halvings, self._count = per_word, 0, count or _take_in
        self._iterations = groupby(routing, key=lambda piece: piece.iteration)
        self._next = next(self._iterations, None)
        self._predictor, self._look = predictor, getattr(predictor, "look", None)
        self._heat = np.zeros((layers, experts, experts), np.uint16)
        self._bound = np.zeros((layers, experts), np.int64)
        self._row_changed = np.ones((layers, experts), np.bool_)
        self._seen = np.zeros((1, experts, experts), np.uint32)  # one layer, in the layout of predictors
        self._hot = np.zeros((layers, experts, (experts + 7) // 8), np.uint8)
        self._last = np.zeros((layers, batch, top_k), np.int16)
        self._last_iteration = np.full(batch, -1, np.int64)
        self._begin_rows([], 0)

    def begin(self, iteration: int) -> None:
        """Move on to an iteration; ``take_in`` then counts its rows."""
        _remember(self._experts, self._request, self._last)
        self._last_iteration[self._request] = self._iteration
        pieces = []
        if self._next is not None and self._next[0] == iteration:
            pieces = list(self._next[1])
            self._next = next(self._iterations, None)
        self._begin_rows(pieces, iteration)

    def _begin_rows(self, pieces, iteration):
        self._iteration, self._pieces = iteration, pieces
        self._request = request = np.concatenate([np.zeros(0, np.int64), *(piece.request for piece in pieces)])
        layers, _, top_k = self._last.shape
        # layers outermost: they are read one at a time
        self._experts = np.empty((layers, len(request), top_k), np.int16)
        at = 0
        for piece in pieces:
            _by_layer(piece.experts, at, self._experts)
            at += len(piece.request)
        same = np.zeros(len(request), np.bool_)
        same[1:] = request[1:] == request[:-1]
        wanted = iteration - 1 if iteration else -2
        follows = same | (self._last_iteration[request] == wanted)
        # As in the published simulator: the pair (last prefill token, first decode step) is left out.
        self._pairs = np.flatnonzero(follows) if iteration != 1 else np.zeros(0, np.int64)
        self._same = same

    def hot(self, layer: int) -> np.ndarray:
        """uint8[expert, ceil(E/8)]: experts predicted by the pairs counted so far; none in iteration 0."""
        one = slice(layer, layer + 1)
        if self._iteration and self._look is not None:
            if self._pieces:
                self._hot[layer] = self._look(seen_of(layer, self._pieces, self._heat[layer]))
        elif self._iteration:
            self._seen[0] = self._heat[layer]
            self._predictor(self._seen, self._row_changed[one], self._hot[one])
            self._row_changed[one] = False
        return self._hot[layer]

    def take_in(self, layer: int, transitions: int) -> int:
        """Count at most ``transitions`` token transitions of the iteration. Returns how many are dropped."""
        taken = min(transitions, len(self._pairs))
        self.halvings += self._count(
            self._pairs[:taken],
            self._same,
            self._request,
            self._experts[layer],
            self._last[layer],
            self._heat[layer],
            self._bound[layer],
            self._row_changed[layer],
            np.int64(self._per_word),
        )
        return len(self._pairs) - taken


@kernel
def _by_layer(experts, first, out):
    """Copy ``experts: int16[n, layer, k]`` to rows of ``out: int16[layer, row, k]``, from ``first`` on."""
    rows, layers, top_k = experts.shape
    for row in range(rows):
        for layer in range(layers):
            for rank in range(top_k):
                out[layer, first + row, rank] = experts[row, layer, rank]


@kernel
def _remember(experts, request, last):
    """Keep the last row of every request: ``experts: int16[layer, n, k]``, ``last: int16[layer, batch, k]``."""
    layers, rows, top_k = experts.shape
    for layer in range(layers):
        for row in range(rows):
            for rank in range(top_k):
                last[layer, request[row], rank] = experts[layer, row, rank]


@kernel
def _take_in(pairs, same, request, experts, last, heat, bound, changed, per_word):
    """Add the pairs of rows ``pairs: int64[n]``; ``experts``, ``last``: int16[row or request, k] of one layer.

    ``heat``: uint16[E, E]; ``bound``: int64[E], no counter of a row is above it. So a row is scanned only every
    few thousand pairs, and its counters are compared with their limit only if one of them may reach it. Returns how
    many rows were halved.
    """
    top_k, halved = experts.shape[1], np.int64(0)
    for at in range(len(pairs)):
        row = pairs[at]
        before = experts[row - 1] if same[row] else last[request[row]]
        now = experts[row]
        for rank in range(top_k):
            prior = np.uint64(before[rank])
            changed[prior] = True
            counts = heat[prior]
            if bound[prior] + top_k > COUNTER_LIMIT:
                bound[prior] = _largest_in_row(counts)
            if bound[prior] + top_k > COUNTER_LIMIT:
                halved += add_words(counts, now, per_word)
                bound[prior] = COUNTER_LIMIT
                continue
            bound[prior] += top_k
            for following in range(top_k):
                counts[np.uint64(now[following])] += np.uint16(1)
    return halved


@outer
def add_words(counts, now, per_word):
    """Count the experts ``now`` by words; a full counter halves its row first. Returns how often."""
    halved = np.int64(0)
    for first in range(len(now)):
        word = now[first] // per_word
        if not _is_first(now, first, per_word):
            continue
        if _any_full(counts, now, word, per_word):
            halved += _halve(counts)
        for following in range(first, len(now)):
            if now[following] // per_word == word:
                if counts[np.uint64(now[following])] == COUNTER_LIMIT:  # an expert that stands twice in a token
                    halved += _halve(counts)
                counts[np.uint64(now[following])] += np.uint16(1)
    return halved


@inner
def _is_first(now, at, per_word):
    """Whether no expert before it is in the same word."""
    for earlier in range(at):
        if now[earlier] // per_word == now[at] // per_word:
            return False
    return True


@inner
def _any_full(counts, now, word, per_word):
    for each in range(len(now)):
        if now[each] // per_word == word and counts[np.uint64(now[each])] == COUNTER_LIMIT:
            return True
    return False


@inner
def _halve(counts):
    for other in range(counts.size):
        counts[other] >>= np.uint16(1)
    return np.int64(1)


@outer
def _largest_in_row(counts):
    largest = np.uint16(0)
    for i in range(counts.size):
        largest = max(largest, counts[i])
    return np.int64(largest)
