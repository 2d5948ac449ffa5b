"""Least time of a call, for benchmarks, and the reference kernel that figures are also given in.

Seconds depend on the machine and on what else runs on it. The reference kernel is a fixed piece of compiled work, much
like that of the simulator's kernels: it is timed just before and after each figure, and figures are given as multiples
of it, too.
"""

import heapq
import time
from collections.abc import Callable

import numpy as np

from archsim.base.compiled import kernel

STEPS, ROWS = 1_000_000, 1 << 12  # of the reference; its rows fill a first-level cache
MULTIPLIER, INCREMENT = 6364136223846793005, 1442695040888963407  # of Knuth's MMIX, TAOCP volume 2, section 3.3.4


def least_s(run: Callable[[], object], repeats: int = 3, clock: Callable[[], float] = time.process_time) -> float:
    """Least seconds of a call by ``clock``, after one that compiles."""
    run()
    taken = []
    for _ in range(repeats):
        begin = clock()
        run()
        taken.append(clock() - begin)
    return min(taken)


def heap_events_per_s(events: int = 300_000) -> float:
    """Pops and pushes of (time, sequence) in plain Python, without any work per event, a processor second."""
    heap = [(float(i % 97), i) for i in range(1000)]
    heapq.heapify(heap)
    begin = time.process_time()
    for sequence in range(events):
        now, _ = heapq.heappop(heap)
        heapq.heappush(heap, (now + sequence % 89, sequence))
    return events / (time.process_time() - begin)


@kernel
def _reference(rows, steps):
    """Raise rows that a linear congruential generator names, one after the other, by a quotient of what they hold."""
    at, level = np.uint64(1), 1.0
    for _ in range(steps):
        at = at * np.uint64(MULTIPLIER) + np.uint64(INCREMENT)
        row = at >> np.uint64(52)
        level = min(level, rows[row]) / (1.0 + rows[row])
        rows[row] += 1.0 - level
    return level


def reference_s(repeats: int = 3) -> float:
    """Processor seconds that the reference kernel takes now, the least of a few."""
    return least_s(lambda: _reference(np.ones(ROWS), np.int64(STEPS)), repeats)
