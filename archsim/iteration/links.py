"""What an iteration waits for on a machine's links and for its host, by the rates that its own file gives them: of
wafers, whose collectives nobody measured.

Ranks of a group are dies of consecutive numbers. A reduce-scatter, or the all-gather that is its way back, has one
stage, or one along each of two axes of the group (bucket algorithms: Chan, Heimlich, Purkayastha and van de Geijn,
Concurrency and Computation 19, 2007, section 4); an all-reduce is both (Thakur, Rabenseifner and Gropp, International
Journal of High Performance Computing Applications 19, 2005, section 4.4). In a stage, n dies with S bytes each

==========  ==========================================================================================================
ring        take n - 1 steps of S / n bytes to the next die, one way or half of it each way. A rectangle has a ring of
            neighbours. On a line, it goes out by every second die and back by the others: two hops a step
direct      send S / n bytes to every other die at once
==========  ==========================================================================================================

All groups are at it together. A step takes the latency of its longest route, and the time of the bytes on the busiest
link, port of an endpoint or not. The fastest of all is taken, as libraries choose by size. Sums take no time: a die
adds faster than its links bring bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from archsim.base.units import NS_PER_S
from microarch.fabric.fabric import Fabric

ALL_REDUCE = "all_reduce"
MOST_DIRECT = 64  # dies; more of them never send to each other directly
TOKEN_BYTES = 4  # the number of a token, as int32


class HostPath(NamedTuple):
    """Host to machine and back: the numbers and sources of ``decision.host``."""

    ns: float  # of a command and its answer
    bytes_per_s: float  # of what they carry


class Links(NamedTuple):
    """The links of a machine, and its host."""

    fabric: Fabric
    host: HostPath

    def collective_ns(self, op: str, size_bytes: np.ndarray, ranks: int) -> np.ndarray:
        """float64[size]: ``op`` is all_reduce, all_gather or reduce_scatter; ``size_bytes`` of all ranks together."""
        if ranks == 1:
            return np.zeros(np.shape(size_bytes))
        fixed_ns, ns_per_byte = _lines(self.fabric, ranks)
        found = (fixed_ns[:, None] + ns_per_byte[:, None] * np.asarray(size_bytes, float)).min(axis=0)
        return 2 * found if op == ALL_REDUCE else found

    def next_stage_ns(self, size_bytes: np.ndarray, ranks: int, stages: int) -> np.ndarray:
        """float64[size]: every rank of a pipeline sends ``size_bytes`` to the rank of its number in the next stage."""
        sources = np.arange((stages - 1) * ranks)
        fixed_ns, ns_per_byte = _step(self.fabric, sources, sources + ranks)
        return fixed_ns + ns_per_byte * np.asarray(size_bytes, float)

    def host_ns(self, tokens: np.ndarray) -> np.ndarray:
        """float64[iteration]: tokens to and from the host through the die nearest to all; no work of the host."""
        there_ns = float(self.fabric.pair_ns.max(axis=1).min())
        carried_ns = 2 * TOKEN_BYTES * tokens / self.host.bytes_per_s * NS_PER_S
        return np.where(tokens > 0, self.host.ns + 2 * there_ns + carried_ns, 0.0)


@lru_cache(maxsize=8)
def _lines(fabric: Fabric, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Of every way to scatter the sum of S bytes: ns, and ns for each byte of S, float64[way] each."""
    groups, found = np.arange(fabric.dies // ranks * ranks).reshape(-1, ranks), []
    for first in (each for each in range(2, ranks + 1) if ranks % each == 0):
        along = groups.reshape(-1, first)
        if first == ranks:
            found += _stages(fabric, along)
            continue
        across = groups.reshape(-1, ranks // first, first).transpose(0, 2, 1).reshape(-1, ranks // first)
        for (ns, of_along), (more_ns, of_across) in product(_stages(fabric, along), _stages(fabric, across)):
            of_bytes = min(of_along + of_across / first, of_across + of_along * first / ranks)  # either axis first
            found.append((ns + more_ns, of_bytes))
    fixed_ns, ns_per_byte = np.array(found).T
    return fixed_ns, ns_per_byte


def _stages(fabric: Fabric, groups: np.ndarray) -> list[tuple[float, float]]:
    """(ns, ns a byte) of every way of one stage; ``groups: int64[group, die]``."""
    dies = groups.shape[1]
    found = []
    for order in _orders(dies):
        ring = groups[:, order]
        there = ring.ravel(), np.roll(ring, -1, axis=1).ravel()
        both = np.concatenate(there), np.concatenate(there[::-1])
        for pairs, share in ((there, 1.0), (both, 0.5)):
            ns, ns_per_byte = _step(fabric, *pairs)
            found.append(((dies - 1) * ns, (dies - 1) / dies * share * ns_per_byte))
    if dies <= MOST_DIRECT:
        ns, ns_per_byte = _step(fabric, *_all_pairs(groups))
        found.append((ns, ns_per_byte / dies))
    return found


def _orders(dies: int) -> Iterator[np.ndarray]:
    """Orders of a ring: as numbered; out by every second die and back by the others; and around rectangles of whole
    rows, or of pieces of one, with an even side: along the first row, then back column by column.
    """
    given = np.arange(dies)
    yield given
    yield np.concatenate([given[::2], given[1::2][::-1]])
    for width in (each for each in range(2, dies // 2 + 1) if dies % each == 0):
        rows = given.reshape(-1, width)
        even = rows if width % 2 == 0 else rows.T
        if even.shape[1] % 2 == 0:
            back = [even[1:, -1 - at][:: 1 if at % 2 == 0 else -1] for at in range(even.shape[1])]
            yield np.concatenate([even[0], *back])


def _all_pairs(groups: np.ndarray) -> Iterator[np.ndarray]:
    """Sources and targets of all pairs in a group."""
    sources, targets = np.broadcast_arrays(groups[:, :, None], groups[:, None, :])
    return (each[sources != targets] for each in (sources, targets))


def _step(fabric: Fabric, sources: np.ndarray, targets: np.ndarray) -> tuple[float, float]:
    """ns of the longest route, and ns a byte where every source sends one to its target."""
    pair = sources * fabric.dies + targets
    begin, length = fabric.route_ptr[pair], np.diff(fabric.route_ptr)[pair]
    behind = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
    passed = np.bincount(fabric.route_links[np.repeat(begin, length) + behind], minlength=fabric.links)
    return float(fabric.pair_ns[sources, targets].max()), float((passed / fabric.link_bytes_per_ns).max())
