"""Which run a worker does next: demands are built as seldom as possible, and no worker is idle while a run waits."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

from archsim.execution.runs import Run


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Schedule:
    """Runs that wait, by the demand that they share. May be asked from several threads.

    A worker stays with its demand; then it takes one that nobody has begun, the largest first; then it helps with the
    one that has most runs left. Of the runs of a demand it prefers those of the contention it ran last; workers start
    with different ones, so that each compiles one kernel and finds the others' compiled.
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        self._waiting: dict[tuple, list[Run]] = {}
        for run in sorted(runs, key=_size, reverse=True):
            self._waiting.setdefault(run.demand.key, []).append(run)
        self._kinds = sorted({run.assumptions.contention for waiting in self._waiting.values() for run in waiting})
        self._begun: set[tuple] = set()
        self._last: dict[int, tuple[tuple | None, str]] = {}
        self._lock = threading.Lock()

    def next(self, worker: int) -> Run | None:
        """The next run of a worker (0, 1, …), or None when none waits."""
        with self._lock:
            if not self._waiting:
                return None
            demand, kind = self._last.get(worker) or (None, self._kinds[worker % len(self._kinds)])
            if demand not in self._waiting:
                fresh = [each for each in self._waiting if each not in self._begun]
                demand = fresh[0] if fresh else max(self._waiting, key=lambda each: len(self._waiting[each]))
            waiting = self._waiting[demand]
            run = next((each for each in waiting if each.assumptions.contention == kind), waiting[0])
            waiting.remove(run)
            if not waiting:
                del self._waiting[demand]
            self._begun.add(demand)
            self._last[worker] = demand, run.assumptions.contention
            return run


def _size(run: Run) -> int:
    """Grows with the time that the demand and the run take."""
    return run.batch * len(run.model.moe_layer_ids)
