"""Runs simulated here or by worker processes, returned as they finish."""

from __future__ import annotations

import json
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

from archsim.runs.pool.schedule import Schedule
from archsim.runs.pool.worker import STARTS, Failure, attempt
from archsim.runs.results import Record
from archsim.runs.run import DemandSpec, Run
from archsim.workload import Trace


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
    """A worker process, seen from the parent; see ``archsim.runs.pool.worker``."""

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
