"""Work spread over threads, with results in order and a bounded number of items in flight."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from archsim.base.cores import available_cores

LEAST_SHARED = 1 << 16
"""Smallest number of selections worth spreading over threads; one thread counts fewer in a few hundred microseconds."""

Item, Result = TypeVar("Item"), TypeVar("Result")


def in_order(jobs: int, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield work(item) in order of the items; at most 2·jobs items are in flight.

    ``work`` should release the GIL (compiled kernels, compression, reading). What it raises is raised here, and items
    not started by then are dropped.
    """
    if jobs <= 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(jobs) as pool:
        waiting = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) >= 2 * jobs:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class LayerThreads:
    """Threads that share the layers of a kernel's work. Each layer runs on one thread, so results do not depend on
    timing.
    """

    def __init__(self, layers: int, threads: int | None) -> None:
        threads = min(threads or available_cores(), layers)
        edges = [layers * part // threads for part in range(threads + 1)] if threads else []
        self._spans = list(zip(edges, edges[1:], strict=False))
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def run(self, kernel: Callable[..., None], experts: np.ndarray, *others) -> None:
        """kernel(experts, first layer, end, *others) over all layers. experts: int16[n, layer, k]; n may be small."""
        if self._pool is None or experts.size < LEAST_SHARED:
            kernel(experts, 0, experts.shape[1], *others)
            return
        list(self._pool.map(lambda span: kernel(experts, *span, *others), self._spans))
