"""Which experts a heatmap predicts to follow each expert.

A predictor is called as ``predictor(heat, changed, out)``; see `Predictor`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from archsim.base.compiled import allocating, unsigned
from archsim.traffic.trace import StepTokens


class Predictor(Protocol):
    """Marks, for every expert, those expected to follow it."""

    def __call__(self, heat: np.ndarray, changed: np.ndarray, out: np.ndarray) -> None:
        """Rewrite rows of `out` from the heatmap.

        heat: uint32[layer, expert, expert], heat[l, i, j] = times a token that chose j followed one that chose i.
        changed: bool[layer, expert], rows of `heat` that differ from the previous call (all of them at the first).
        out: uint8[layer, expert, ceil(E/8)], little-endian bitset, rows as left by the previous call (zero at first).
        """


class Seen(NamedTuple):
    """What a predictor of a user's own sees of a layer before a step. No trace has hidden states."""

    step: int  # iteration, from 1; in 0, the prefill, nothing is predicted
    layer: int  # position among the MoE layers that run
    tokens: np.ndarray  # int16[token, k], experts that the tokens of this iteration chose in the layer
    before: np.ndarray  # the same in the MoE layer before; int16[0, k] in the first
    scores: np.ndarray | None  # float32[token, k], of the gate for ``tokens``; None where the trace has none
    request: np.ndarray  # int64[token], whose token it is
    heat: np.ndarray  # uint32[expert, expert], heat[i, j] = times that a token that chose j followed one that chose i


def seen_of(layer: int, pieces: Sequence[StepTokens], heat: np.ndarray) -> Seen:
    """pieces: of an iteration, at least one. heat: uint[expert, expert]."""
    tokens = np.concatenate([each.experts[:, layer] for each in pieces])
    before = np.concatenate([each.experts[:, layer - 1] for each in pieces]) if layer else tokens[:0]
    known = [each.scores[:, layer] for each in pieces if each.scores is not None]
    scores = np.concatenate(known) if len(known) == len(pieces) else None
    request = np.concatenate([each.request for each in pieces]).astype(np.int64)
    return Seen(pieces[0].iteration, layer, tokens, before, scores, request, heat.astype(np.uint32))


@dataclass(frozen=True)
class TopFraction:
    """The ⌈fraction·E⌉ largest counts of a row, ties and zeros to the larger id; the published simulator's is 0.2."""

    fraction: float = 0.2

    def __post_init__(self):
        if not 0 < self.fraction <= 1:
            raise ValueError(f"top_fraction is {self.fraction}; expected above 0, at most 1")

    def __call__(self, heat: np.ndarray, changed: np.ndarray, out: np.ndarray) -> None:
        hot_rows(heat, changed, self.keep(heat.shape[2]), 0, True, out)

    def keep(self, experts: int) -> int:
        # The product is rounded first: 0.2 · 35 is 7.000000000000001 in binary and means 7.
        """Experts that are marked in a row."""
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
