"""How many cores and how much memory of this machine the process may use."""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    import numpy as np


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_one_blas_thread() -> None:
    """Have numpy use one thread, unless the user has said otherwise; only before numpy is imported. One thread inverts
    small matrices several times faster, and the same way on every machine.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


# Work spread over threads, with results in order and a bounded number of items in flight.

LEAST_SHARED = 1 << 16
"""Smallest number of selections worth spreading over threads; one thread counts fewer in a few hundred microseconds."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(jobs: int, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield work(item) in order of the items; at most 2·jobs are in flight. ``work`` should release the GIL; what it
    raises is raised here, and items that have not begun are dropped.
    """
    if jobs <= 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(jobs) as pool:
        waiting: deque[Future[Result]] = deque()
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
    """Threads that share the layers of a kernel's work, a layer on one thread, so results do not depend on timing."""

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


# How much memory this machine has for the process, and arrays that take of it what is written alone.

# Where Linux keeps the limit of a container's memory: versions 2 and 1 of control groups (kernel documentation,
# admin-guide/cgroup-v2 and cgroup-v1/memory).
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def machine_bytes() -> int | None:
    """Memory of the machine, or of the container that is smaller; None where the system does not say."""
    try:
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, ValueError, OSError):
        found = []
    for limit in _LIMITS:
        try:
            found.append(int(limit.read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return min(found, default=None)


# Linux, include/uapi/asm-generic/mman-common.h: the system does not ask whether all of it would fit.
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def sparse_zeros(shape: tuple[int, int]) -> np.ndarray:
    """int64[shape] of zeros in pages of the least size: a row that is never written takes addresses but no memory."""
    import numpy as np

    size = prod(shape)
    if not size:
        return np.zeros(shape, np.int64)
    pages = mmap.mmap(-1, 8 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, np.int64).reshape(shape)
