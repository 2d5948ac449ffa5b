"""Work spread over threads, results in order, and only so much of it under way at a time."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item, Result = TypeVar("Item"), TypeVar("Result")


def in_order(jobs: int, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """work(item) of every item, in order of the items; at most 2·jobs are taken before the first result is.

    The work should be such that other threads run meanwhile (compiled kernels, compression, reading). What it raises
    is raised here; items not begun by then are never worked on.
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
