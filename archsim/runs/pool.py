"""Runs simulated here or by worker processes, returned as they finish."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from archsim.runs.results import Record
from archsim.runs.run import DemandSpec, Run
from archsim.runs.worker import STARTS, Failure, attempt
from archsim.workload import Trace

# ---- schedule
# Which run a worker does next: no kernel is compiled twice, demands are built rarely, and no worker idles
# needlessly.

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


# ---- processes

def simulate_all(
    runs: Sequence[Run], jobs: int, traces: dict[tuple[str, str], Trace], verb: str = "record"
) -> Iterator[tuple[Run, Record | Failure]]:
    """Every run with its record or failure, in the order in which they finish.

    traces: (path, model name) → trace, where it is open already. At most ``jobs`` run at a time. verb: ``record`` or
    ``row`` of Simulator.
    Worker processes end with the iterator, for whatever reason it ends.
    """
    jobs = min(jobs, len(runs))
    if not runs:
        return
    if jobs > 1 or any(run.own_code for run in runs):  # a user's function may end its process
        yield from _simulate_beside(runs, jobs, verb)
        return
    from archsim.runs.simulator import Simulator

    simulator, schedule = Simulator(traces), Schedule(runs)
    while task := schedule.next(0):
        schedule.compiled(task.run)
        if task.together:
            attempt(simulator.gather, task.together)  # where it fails, so does what needs it, and says why
            schedule.gathered(task.together)
        yield task.run, attempt(getattr(simulator, verb), task.run)


def _simulate_beside(runs: Sequence[Run], jobs: int, verb: str) -> Iterator[tuple[Run, Record | Failure]]:
    schedule, replies = Schedule(runs), queue.SimpleQueue()
    workers = [Worker() for _ in range(jobs)]
    threads = [
        threading.Thread(target=_employ, args=(*each, verb, schedule, replies), daemon=True)
        for each in enumerate(workers)
    ]
    try:
        for thread in threads:
            thread.start()
        for _ in runs:
            yield replies.get()
    finally:
        for worker in workers:
            worker.dismiss()
        for thread in threads:
            thread.join()


def _employ(number: int, worker: Worker, verb: str, schedule: Schedule, replies: queue.SimpleQueue) -> None:
    """Assign runs to a worker until none waits or it is dismissed."""
    while not worker.dismissed and (task := schedule.next(number)):
        if task.cold:
            worker.ask("warm_up", task.run)
            schedule.compiled(task.run)
        if task.together:
            worker.ask("gather", task.together)  # where it fails, so does what needs it, and says why
            schedule.gathered(task.together)
        replies.put((task.run, worker.ask(verb, task.run)))


class Worker:
    """A worker process, seen from the parent; see ``archsim.runs.worker``."""

    def __init__(self) -> None:
        self.dismissed = False
        self._start()

    def _start(self) -> None:
        # In a process group of its own, a worker does not get the terminal's Ctrl-C: the parent ends it.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", STARTS, json.dumps([each for each in sys.path if each])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0 if os.name == "posix" else None,
        )

    def ask(self, verb: str, run: Run | tuple[DemandSpec, ...]) -> Record | Failure | None:
        """The result of a method of the worker's Simulator for a run, or for demands.

        Blocks until the run has ended, or the process has (killed, out of memory); then another takes its place.
        """
        try:
            pickle.dump((verb, run), self._process.stdin)
            self._process.stdin.flush()
            return pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            status = self._process.wait()
            if not self.dismissed:
                self._start()
            cause = f"was ended by signal {-status} (out of memory?)" if status < 0 else f"ended with status {status}"
            return Failure(f"the process that ran it {cause}")

    def dismiss(self) -> None:
        self.dismissed = True
        self._process.kill()
        self._process.wait()


# ---- copies
# Processes that begin as copies of this one: what it has loaded and built need not be sent to them.

def in_copies(work: Callable[[Any], Any], tasks: Iterable[Any], jobs: int) -> Iterator[tuple[Any, Any]]:
    """Every task with ``work(task)``, in the order in which they end, at most ``jobs`` at a time.

    The next task is drawn when a process is free, so that ``tasks`` may depend on what has been yielded. With one job,
    or where a process cannot be copied, the work is done here. Tasks and results are sent as pickles. An exception of
    ``work`` is raised here. The copies do not hear Ctrl-C, and end with the iterator.
    """
    drawn = iter(tasks)
    if jobs <= 1 or "fork" not in multiprocessing.get_all_start_methods():
        for task in drawn:
            yield task, work(task)
        return
    context = multiprocessing.get_context("fork")
    here: dict[Connection, tuple[Any, Any]] = {}  # end of a pipe here → its process, and its task
    try:
        for _ in range(jobs):
            if (task := next(drawn, _NO_TASK)) is _NO_TASK:
                break
            ours, theirs = context.Pipe()
            process = context.Process(target=_copy, args=(work, theirs), daemon=True)
            process.start()
            theirs.close()
            ours.send((True, task))
            here[ours] = process, task
        while here:
            for pipe in wait(list(here)):
                assert isinstance(pipe, Connection)
                process, task = here[pipe]
                try:
                    failed, result = pipe.recv()
                except EOFError:
                    process.join()
                    raise ChildProcessError(f"a process ended with status {process.exitcode}") from None
                if failed:
                    raise result
                yield task, result
                if (following := next(drawn, _NO_TASK)) is _NO_TASK:
                    pipe.send((False, None))
                    del here[pipe]
                    process.join()
                    pipe.close()
                else:
                    pipe.send((True, following))
                    here[pipe] = process, following
    finally:
        for pipe, (process, _) in here.items():
            process.kill()
            process.join()
            pipe.close()


_NO_TASK = object()


def _copy(work: Callable[[Any], Any], pipe: Connection) -> None:
    """Work until there is no task left. Copies made later hold the other end of the pipe, too: its end says nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while (message := pipe.recv())[0]:
        task = message[1]
        try:
            reply = False, work(task)
        except Exception as error:  # raised in the process that waits for it
            reply = True, error
        pipe.send(reply)
