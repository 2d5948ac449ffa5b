"""Least time of a call, for benchmarks."""

import time
from collections.abc import Callable


def least_s(run: Callable[[], object], repeats: int = 3, clock: Callable[[], float] = time.process_time) -> float:
    """Least seconds of a call by ``clock``, after one that compiles."""
    run()
    taken = []
    for _ in range(repeats):
        begin = clock()
        run()
        taken.append(clock() - begin)
    return min(taken)
