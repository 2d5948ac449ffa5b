"""Admission: which of the predicted experts are worth a copy.

The paper's rule copies every predicted expert that a die runs and does not hold. Where room is finite, most copies are
then evicted before they are read again. ``reread`` copies an expert only if the reads that it is expected to save,
until it is evicted, are at least as many as the write.

Expected reads follow from the past alone. ``ran[expert, die]`` counts the iterations in which a die ran an expert that
it does not hold by placement (older ones weigh less, by a factor of e over HORIZON_STEPS). The rate of a pair is its
share of iterations, drawn towards the expert's mean over dies by as much as chance explains of the differences between
dies (empirical Bayes with a beta prior: Robbins 1956; Efron, Large-Scale Inference, 2010, chapter 1). A copy stays for
``residence`` iterations: the room over what is written in an iteration, at most HORIZON_STEPS. If it takes the place of
other copies, the oldest ones under LRU, the reads that those would have saved are lost (as in TinyLFU: Einziger,
Friedman and Manes, ACM Transactions on Storage 13, 2017).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from archsim.base.compiled import allocating, inner, kernel, outer, unsigned
from archsim.base.host import LayerThreads
from archsim.policies.allocation import Plan
from archsim.specs.model import SLICES
from archsim.workload.demand import Stacked
from archsim.workload.trace import StepTokens, TokenSource

# ---- prediction

HORIZON_STEPS = 64.0  # iterations over which the past counts and a copy may pay; a choice of archsim
_AVERAGED_STEPS = 4.0  # iterations over which writes are averaged; a choice of archsim


class CopiesView(NamedTuple):
    """Cached copies before a step."""

    slices: np.ndarray  # int8[layer · ids + expert, die] slices of the expert that the die holds copies of
    # [die, key + 1] by slice; "newer": the slice that was used next, of the last row the one used longest ago
    ring: np.ndarray
    room: np.ndarray  # int64[die] slices that the die has room for
    free: np.ndarray  # int64[die] slices that fit beside those that it holds; admissions change it


class Reread:
    """``admission: reread``; see the module's text. Without it every predicted expert is copied, the paper's rule."""

    def __init__(self, layers: int, dies: int, ids: int):
        self._ids = ids
        self._ran = np.zeros((layers, ids, dies))
        self._iterations = np.zeros(layers)
        self._written = np.zeros((layers, dies))  # slices admitted in an iteration
        self._rate = np.zeros((layers * ids, dies))

    def admit(self, layer: int, plan: Plan, holds: np.ndarray, bits: np.ndarray | None, copies: CopiesView) -> None:
        """Clear cp_en bits of a step that is about to run. ``holds``: bool[expert, die], by placement. ``bits``:
        uint8[die, id], changed; None: nothing is predicted.
        """
        away = ~holds[plan.expert, plan.die]
        expert, die = plan.expert[away], plan.die[away]
        self._count(layer, expert, die)
        admitted = np.zeros(len(copies.free), np.int64)
        if bits is not None:
            wanted = bits[die, expert] != 0
            expert, die = expert[wanted], die[wanted]
            first = layer * self._ids
            order = np.argsort(-self._rate[first + expert, die], kind="stable")
            residence = self._residence(copies.room)
            oldest = copies.ring[:, -1]["newer"].copy()
            _admit(expert[order], die[order], first, self._rate, residence, copies, oldest, bits, admitted)
        self._written[layer] += (admitted - self._written[layer]) / _AVERAGED_STEPS

    def _count(self, layer, expert, die):
        """Count an iteration of a layer, and find its rates anew."""
        ran, kept = self._ran[layer], 1.0 - 1.0 / HORIZON_STEPS
        ran *= kept
        ran[expert, die] += 1.0
        self._iterations[layer] = self._iterations[layer] * kept + 1.0
        first = layer * self._ids
        self._rate[first : first + self._ids] = rates(ran, self._iterations[layer])

    def _residence(self, room):
        """Iterations for which a copy that is written now stays, float64[die]."""
        return np.minimum(HORIZON_STEPS, room / np.maximum(self._written.sum(axis=0), 1e-9))


def rates(ran: np.ndarray, iterations: float) -> np.ndarray:
    """Reads of an iteration expected of every pair, float64[expert, die].

    ``ran``: float64[expert, die], iterations of ``iterations`` in which the die ran the expert. The prior is worth as
    many iterations as make the differences between dies those that are seen; without any beyond chance, the mean over
    dies is the rate of each.
    """
    mean = ran.mean(axis=1, keepdims=True)
    dies = ran.shape[1]
    chance = (dies - 1) * (mean * (1.0 - mean / iterations)).sum()
    beyond = ((ran - mean) ** 2).sum() - chance
    if beyond <= 0.0:
        return np.broadcast_to(mean / iterations, ran.shape)
    prior = chance / beyond * iterations
    return (ran + prior * mean / iterations) / (iterations + prior)


@kernel
def _admit(expert, die, first, rate, residence, copies, oldest, bits, admitted):
    """Clear the bits of pairs, in falling order of rate, that are not worth their write; count ``admitted`` slices.

    ``oldest: int64[die]`` and ``copies.free`` follow what has been admitted.
    """
    head = copies.ring.shape[1] - 1
    for at in range(len(expert)):
        here, own = die[at], rate[first + expert[at], die[at]]
        missing = SLICES - np.int64(copies.slices[first + expert[at], here])
        into_free = min(copies.free[here], missing)
        reads, leaving = into_free * own * HORIZON_STEPS, oldest[here]
        for _ in range(missing - into_free):
            if leaving == head:
                reads = -np.inf
                break
            reads += (own - rate[leaving // SLICES, here]) * residence[here]
            leaving = copies.ring[here, leaving].newer
        if reads < missing:
            bits[here, expert[at]] = 0
            continue
        copies.free[here] -= into_free
        oldest[here] = leaving
        admitted[here] += missing


# ---- heatmap
# Which experts a heatmap predicts to follow each expert.
#
# A predictor is called as ``predictor(heat, changed, out)``; see `Predictor`.


class Predictor(Protocol):
    """Marks, for every expert, those expected to follow it."""

    def __call__(self, heat: np.ndarray, changed: np.ndarray, out: np.ndarray) -> None:
        """Rewrite rows of `out` from the heatmap.

        heat: uint32[layer, expert, expert], heat[l, i, j] = times a token that chose j followed one that chose i.
        changed: bool[layer, expert], rows of `heat` that differ from the previous call (all of them at the first).
        out: uint8[layer, expert, ceil(E/8)], little-endian bitset, rows as left by the previous call (zero at first).
        """


class Seen(NamedTuple):
    """What a predictor of a user's own sees of a layer before a step. No trace has hidden states.

    ``step``: iteration, from 1; in 0, the prefill, nothing is predicted. ``layer``: position among the MoE layers that
    run. ``tokens``: int16[token, k], experts that the tokens of this iteration chose in the layer. ``before``: the same
    in the MoE layer before; int16[0, k] in the first. ``scores``: float32[token, k], of the gate for ``tokens``; None
    where the trace has none. ``request``: int64[token], whose token it is. ``heat``: uint32[expert, expert], heat[i, j]
    = times that a token that chose j followed one that chose i.
    """

    step: int
    layer: int
    tokens: np.ndarray
    before: np.ndarray
    scores: np.ndarray | None
    request: np.ndarray
    heat: np.ndarray


def _seen(layer: int, pieces: Sequence[StepTokens], heat: np.ndarray) -> Seen:
    """pieces: of an iteration, at least one. heat: uint[expert, expert]."""
    tokens = np.concatenate([each.experts[:, layer] for each in pieces])
    before = np.concatenate([each.experts[:, layer - 1] for each in pieces]) if layer else tokens[:0]
    known = [each.scores[:, layer] for each in pieces if each.scores is not None]
    scores = np.concatenate(known) if len(known) == len(pieces) else None
    request = np.concatenate([each.request for each in pieces]).astype(np.int64)
    return Seen(pieces[0].iteration, layer, tokens, before, scores, request, heat.astype(np.uint32))


@dataclass(frozen=True)
class TopFraction:
    """The ⌈fraction·E⌉ last experts of a row in ascending order of count; the larger id wins ties, also of zeros.

    The rule of the published simulator, where fraction is 0.2.
    """

    fraction: float = 0.2

    def __post_init__(self):
        if not 0 < self.fraction <= 1:
            raise ValueError(f"top_fraction is {self.fraction}; expected above 0, at most 1")

    def __call__(self, heat: np.ndarray, changed: np.ndarray, out: np.ndarray) -> None:
        hot_rows(heat, changed, self.keep(heat.shape[2]), 0, True, out)

    def keep(self, experts: int) -> int:
        """Experts that are marked in a row."""
        # The product is rounded first: 0.2 · 35 is 7.000000000000001 in binary and means 7.
        return math.ceil(round(self.fraction * experts, 9))


@dataclass(frozen=True)
class TopPositive:
    """The n experts of a row with the largest counts above zero (fewer if fewer are positive); lowest id wins ties.

    The default n = 8 is a choice of archsim: Yu et al., ISCA 2026 (arXiv 2510.05497v4), describe the rule and give no
    n.
    """

    n: int = 8

    def __post_init__(self):
        if self.n < 1:
            raise ValueError(f"top_n is {self.n}; expected 1 or more")

    def __call__(self, heat: np.ndarray, changed: np.ndarray, out: np.ndarray) -> None:
        hot_rows(heat, changed, self.n, 1, False, out)

    def keep(self, experts: int) -> int:
        """Experts that are marked in a row, at most."""
        return self.n


@allocating
def hot_rows(heat, changed, keep, least_count, larger_id_wins, out):
    """For every changed row of heat uint32[layer, E, E], set the bits of its `keep` largest entries in out.

    changed: bool[layer, E]. Entries below `least_count` are never kept. out: uint8[layer, E, ceil(E/8)], little-endian
    bitset, changed rows are overwritten.
    """
    layers, experts, _ = heat.shape
    for layer in range(layers):
        for row in range(experts):
            if changed[layer, row]:
                counts = heat[layer, row]
                threshold = max(_kth_largest(counts, min(keep, experts)), np.uint32(least_count))
                _mark(counts, threshold, keep, larger_id_wins, out[layer, row])


@allocating
def _kth_largest(counts, k):
    """The k-th largest of counts uint32[n], repeats counted: the largest x that at least k of them reach.

    Bisects x: every probe is one pass without branches, so a few probes cost less than one partial sort.
    """
    low, high = np.uint32(0), _largest(counts)
    while low < high:
        middle = high - (high - low) // np.uint32(2)
        if _reaching(counts, middle) >= k:
            low = middle
        else:
            high = middle - np.uint32(1)
    return low


@allocating
def _largest(counts):
    """The largest of counts uint32[n] (a plain loop vectorises; ``max`` of an array does not)."""
    largest = np.uint32(0)
    for i in range(counts.size):
        largest = max(largest, counts[i])
    return largest


@allocating
def _reaching(counts, threshold):
    """How many of counts uint32[n] are at least `threshold`; a plain loop like `_largest`."""
    number = np.uint32(0)
    for i in range(counts.size):
        number += np.uint32(1) if counts[i] >= threshold else np.uint32(0)
    return number


@allocating
def _mark(counts, threshold, keep, larger_id_wins, bits):
    """Set in bits uint8[ceil(E/8)] the entries above the threshold and, up to `keep` in all, those equal to it."""
    experts = counts.size
    for byte in range(len(bits)):
        above = np.uint8(0)
        for bit in range(min(8, experts - 8 * byte)):
            above |= np.uint8(counts[8 * byte + bit] > threshold) << np.uint8(bit)
        bits[byte] = above
    ties = np.int64(keep) - np.int64(_reaching(counts, threshold + np.uint32(1)))
    expert, step = (experts - 1, -1) if larger_id_wins else (0, 1)
    while ties > 0 and 0 <= expert < experts:
        tied = counts[expert] == threshold
        bits[expert >> 3] |= np.uint8(tied) << np.uint8(expert & 7)
        ties -= tied
        expert += step


@allocating
def copy_bits(plan_expert, plan_die, hot, dies, ids, until_own_id):
    """The cp_en bits of a step, uint8[die, ids]: experts predicted to follow one that the die runs now.

    plan_*: int32[entry] in order of expert. hot: uint8[expert, ceil(E/8)], little-endian bitset. until_own_id: a die's
    list of experts ends with the one whose id equals the die's, if there is one (an error of the published simulator).
    """
    experts, row_bytes = hot.shape
    marked, bits = np.zeros((dies, row_bytes), np.uint8), np.zeros((dies, ids), np.uint8)
    closed = np.zeros(dies, np.bool_)
    for entry in range(len(plan_expert)):
        die = plan_die[entry]
        if not closed[die]:
            row, after = marked[die], hot[plan_expert[entry]]
            for byte in range(unsigned(row_bytes)):
                row[byte] |= after[byte]
            closed[die] = until_own_id and plan_expert[entry] == die
    for die in range(unsigned(dies)):
        for expert in range(unsigned(experts)):
            bits[die, expert] = (marked[die, expert >> unsigned(3)] >> (expert & unsigned(7))) & np.uint8(1)
    return bits


# ---- free_heatmap
# The heatmap that counts every pair at once (``heatmap_update: free``): its predictions follow from the routing alone.
#
# Rules: Yu et al., ISCA 2026 (arXiv 2510.05497v4), as in the published simulator. Compare `PortedHeatmap`.


class FreeHeatmap:
    """The heatmap of every layer, and the last token of every request of the batch; a `Watcher` of the demand.

    Rows: uint8[step, layer, expert, ceil(E/8)], little-endian bitset: bit j of row i is set where expert j is predicted
    to follow expert i by the heatmap as of this step, this step included; all zero in step 0. folder: where they go
    that would fill the memory; None: they stay there.
    """

    def __init__(self, source: TokenSource, batch: int, predictor: Predictor, folder: Path | None = None):
        layers, experts = len(source.layer_ids), source.num_experts
        self._predictor = predictor
        self._heat = np.zeros((layers, experts, experts), np.uint32)
        self._changed = np.ones((layers, experts), np.bool_)
        self._hot = np.zeros((layers, experts, (experts + 7) // 8), np.uint8)
        self._last = np.zeros((batch, layers, source.top_k), np.int16)
        self._last_iteration = np.full(batch, -1, np.int32)
        self._rows = Stacked(self._hot.shape, np.uint8, folder and folder / "predicted_rows")
        self._look = getattr(predictor, "look", None)  # of a predictor that sees tokens
        self._pieces: list[StepTokens] = []

    def take_rows(self) -> np.ndarray:
        """Return the rows of all steps so far and clear them: uint8[step, layer, expert, ceil(E/8)]."""
        return self._rows.take()

    def add(self, piece: StepTokens, layer_threads: LayerThreads) -> None:
        """Count the pairs that end in this piece: between prefill tokens, and between decode steps from the 2nd on."""
        if self._look is not None and piece.iteration:
            self._pieces.append(deepcopy(piece))
        wanted = piece.iteration - 1 if piece.iteration else 0
        same = np.concatenate([[False], piece.request[1:] == piece.request[:-1]])
        follows = same | (self._last_iteration[piece.request] == wanted)
        if piece.iteration != 1:
            layer_threads.run(
                _count_pairs, piece.experts, piece.request, same, follows, self._last, self._heat, self._changed
            )
        ends = np.concatenate([~same[1:], [True]])
        self._last[piece.request[ends]] = piece.experts[ends]
        self._last_iteration[piece.request[ends]] = piece.iteration

    def end(self, iteration: int, layer_threads: LayerThreads) -> None:
        """Predict for a step; nothing is predicted in iteration 0."""
        if iteration == 0:
            self._rows.append(np.zeros_like(self._hot))
            return
        if self._look is None:
            self._predictor(self._heat, self._changed, self._hot)
        elif self._pieces:
            for layer in range(len(self._hot)):
                self._hot[layer] = self._look(_seen(layer, self._pieces, self._heat[layer]))
            self._pieces.clear()
        self._changed[:] = False
        self._rows.append(self._hot.copy())


@kernel
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


# ---- ported_heatmap
# The heatmap as hardware implements it: 16-bit counters behind a port, updated while a step runs (``heatmap_update:
# limited``).
#
# Updates that the port cannot serve during a step are dropped, last requests first. The pairs of a step count from the
# next iteration on. When a counter is full, its whole row is halved: counts keep their order, and old ones decay
# (ageing); that takes the port two accesses a word of the row, as the store in RTL does (``microarch.rtl.heatmap``).
# Compare `FreeHeatmap`, which counts every pair at once (``heatmap_update: free``).

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
        """uint8[expert, ceil(E/8)]: experts predicted to follow each expert by the pairs counted so far; none in
        iteration 0.
        """
        one = slice(layer, layer + 1)
        if self._iteration and self._look is not None:
            if self._pieces:
                self._hot[layer] = self._look(_seen(layer, self._pieces, self._heat[layer]))
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
    """Count the experts ``now``, a word of the row after the other; a full counter of the word halves the row first.
    Returns how often.
    """
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
