"""Which experts a heatmap predicts to follow each expert.

A predictor is called as ``predictor(heat, changed, out)``; see `archsim.workload.demand.Predictor`.
"""

import math
from dataclasses import dataclass

import numpy as np
from numba import njit


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
        # The product is rounded first: 0.2 · 35 is 7.000000000000001 in binary and means 7.
        hot_rows(heat, changed, math.ceil(round(self.fraction * heat.shape[2], 9)), 0, True, out)


@dataclass(frozen=True)
class TopPositive:
    """The n experts of a row with the largest counts above zero (fewer if there are not so many); lowest id wins ties.

    The default n = 8 is ours: Yu et al., ISCA 2026 (arXiv 2510.05497v4), describe the rule and give no n.
    """

    n: int = 8

    def __post_init__(self):
        if self.n < 1:
            raise ValueError(f"top_n is {self.n}; expected 1 or more")

    def __call__(self, heat: np.ndarray, changed: np.ndarray, out: np.ndarray) -> None:
        hot_rows(heat, changed, self.n, 1, False, out)


@njit(cache=True)
def hot_rows(heat, changed, keep, least_count, larger_id_wins, out):
    """For every changed row of heat uint32[layer, E, E], set the bits of its `keep` largest entries in out.

    changed: bool[layer, E]. Entries below `least_count` are never kept. out: uint8[layer, E, ceil(E/8)], little-endian
    bitset, changed rows are overwritten.
    """
    layers, experts, _ = heat.shape
    keys = np.empty(experts, np.uint64)
    keep = min(keep, experts)
    for layer in range(layers):
        for row in range(experts):
            if changed[layer, row]:
                counts = heat[layer, row]
                for expert in range(experts):
                    keys[expert] = _key(counts[expert], expert, experts, larger_id_wins)
                _mark(counts, _kth_largest(keys, keep), least_count, larger_id_wins, out[layer, row])


@njit(cache=True)
def _key(count, expert, experts, larger_id_wins):
    """Distinct and ordered by count, then by id in the direction that wins ties."""
    tie = expert if larger_id_wins else experts - 1 - expert
    return np.uint64(count) * np.uint64(experts) + np.uint64(tie)


@njit(cache=True)
def _mark(counts, threshold, least_count, larger_id_wins, bits):
    """Set in bits uint8[ceil(E/8)] the entries whose key reaches the threshold."""
    experts = counts.size
    bits[:] = 0
    for expert in range(experts):
        if counts[expert] >= least_count and _key(counts[expert], expert, experts, larger_id_wins) >= threshold:
            bits[expert >> 3] |= np.uint8(1 << (expert & 7))


@njit(cache=True)
def _kth_largest(keys, k):
    """The k-th largest of distinct keys uint64[n], by quickselect (Hoare's FIND); reorders `keys`."""
    wanted = keys.size - k
    low, high = 0, keys.size - 1
    while low < high:
        pivot = keys[wanted]
        i, j = low, high
        while i <= j:
            while keys[i] < pivot:
                i += 1
            while pivot < keys[j]:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i += 1
                j -= 1
        if j < wanted:
            low = i
        if wanted < i:
            high = j
    return keys[wanted]
