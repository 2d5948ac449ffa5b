"""Which run a worker does next: no kernel is compiled twice, demands are built rarely, and no worker idles
needlessly.
"""

import threading
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from archsim.runs.run import DemandSpec, Run

_Line = deque[tuple[int, Run]]  # runs of one kernel, with their place among all
_Waiting = dict[tuple[str, str], _Line]  # of one demand, by kernel


MOST_TOGETHER = 4  # demands that are built in one pass: each has counts of its own in memory
LEAST_TOGETHER = 10**8  # selections of the largest: more than a second; faster ones are not cached, so not shared


class Task(NamedTuple):
    """A run to do. cold: no worker has run its kernel yet; compile it first, then call ``Schedule.compiled``.
    together: demands, its own among them, that are built in one pass first (``Simulator.gather``); then call
    ``Schedule.gathered``.
    """

    run: Run
    cold: bool
    together: tuple[DemandSpec, ...] = ()


class Schedule:
    """Runs that wait, by the demand that they share. Thread-safe.

    A kernel (one per engine and contention strategy) is compiled by the first worker that needs it, while the others do
    other runs. A worker stays with its demand; then it takes one that no worker has begun, the largest first; then it
    helps with the one that has most runs left. The first worker with one of a family builds those of other batches,
    too; the others take none of these meanwhile.
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        self._waiting: dict[tuple, _Waiting] = {}
        self._specs: dict[tuple, DemandSpec] = {}
        for number, run in enumerate(sorted(runs, key=_size, reverse=True)):
            lines = self._waiting.setdefault(run.demand.key, {})
            lines.setdefault(_kernel(run), deque()).append((number, run))
            self._specs[run.demand.key] = run.demand
        self._begun: set[tuple] = set()
        self._gathered: set[tuple] = set()
        self._gathering: set[tuple] = set()
        self._compiling: set[tuple[str, str]] = set()
        self._compiled: set[tuple[str, str]] = set()
        self._last: dict[int, tuple] = {}
        self._changed = threading.Condition()

    def next(self, worker: int) -> Task | None:
        """The next run of a worker (0, 1, …), or None when none waits.

        Blocks while all waiting runs need a kernel that is being compiled, or demands that are being gathered.
        """
        with self._changed:
            while self._waiting:
                demand = self._last.get(worker)
                if demand is not None and demand in self._waiting and (ready := self._ready(demand)):
                    return self._take(worker, demand, ready)
                free = (demand for demand in self._waiting if demand not in self._gathering)
                possible = {demand: ready for demand in free if (ready := self._ready(demand))}
                if possible:
                    return self._take(worker, *self._choose(possible))
                self._changed.wait()
            return None

    def compiled(self, run: Run) -> None:
        """The kernel of a run is compiled: every worker may use it."""
        with self._changed:
            self._compiling.discard(_kernel(run))
            self._compiled.add(_kernel(run))
            self._changed.notify_all()

    def gathered(self, together: Iterable[DemandSpec]) -> None:
        """Demands have been built, or cannot be: other workers wait for them no longer."""
        with self._changed:
            self._gathering.difference_update(spec.key for spec in together)
            self._changed.notify_all()

    def _ready(self, demand: tuple) -> list[_Line]:
        return [line for kernel, line in self._waiting[demand].items() if kernel not in self._compiling]

    def _choose(self, possible: dict[tuple, list[_Line]]) -> tuple[tuple, list[_Line]]:
        fresh = next((each for each in possible if each not in self._begun), None)
        demand = max(possible, key=lambda each: sum(map(len, possible[each]))) if fresh is None else fresh
        return demand, possible[demand]

    def _take(self, worker: int, demand: tuple, ready: list[_Line]) -> Task:
        together = () if demand in self._begun else self._together(demand)
        line = min(ready, key=lambda each: each[0][0])
        run = line.popleft()[1]
        kernel = _kernel(run)
        if not line:
            del self._waiting[demand][kernel]
        if not self._waiting[demand]:
            del self._waiting[demand]
        self._begun.add(demand)
        self._last[worker] = demand
        cold = kernel not in self._compiled
        if cold:
            self._compiling.add(kernel)
        self._changed.notify_all()
        return Task(run, cold, together)

    def _together(self, demand: tuple) -> tuple[DemandSpec, ...]:
        """The demand with smaller ones of its family that nobody has begun; none if there are no others."""
        spec, done = self._specs[demand], self._begun | self._gathered
        if spec.family is None or spec.selections < LEAST_TOGETHER or demand in self._gathered:
            return ()
        waiting = (self._specs[each] for each in self._waiting if each not in done)
        found = tuple(each for each in waiting if each.family == spec.family)[:MOST_TOGETHER]
        if len(found) < 2 or found[0] is not spec:
            return ()
        self._gathered.update(each.key for each in found)
        self._gathering.update(each.key for each in found)
        return found


def _kernel(run: Run) -> tuple[str, str]:
    return run.engine, run.assumptions.contention


def _size(run: Run) -> int:
    """Grows with the time that the demand and the run take."""
    return run.batch * (run.workload.layers or len(run.model.moe_layer_ids))
