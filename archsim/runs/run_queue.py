"""Which job a worker does next: no kernel is compiled twice, shared parts are built rarely, no worker idles."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

from archsim.runs.run import Job

AnyJob = TypeVar("AnyJob", bound=Job)
_Line = deque[tuple[int, AnyJob]]  # jobs of one kernel, with their place among all
_Waiting = dict[Hashable, _Line[AnyJob]]  # of one group, by kernel

MOST_TOGETHER = 4  # groups that are built in one pass: each has counts of its own in memory
LEAST_TOGETHER = 10**8  # selections of the largest: more than a second; faster ones are not cached, so not shared


class Task(NamedTuple, Generic[AnyJob]):
    """A job to do. cold: no worker has run its kernel yet; compile it first, then call ``RunQueue.note_compiled``.
    together: one job of each group, its own among them, whose shared parts are built in one pass first
    (``Job.gather``); then call ``RunQueue.note_gathered``.
    """

    job: AnyJob
    cold: bool
    together: tuple[AnyJob, ...] = ()


class RunQueue(Generic[AnyJob]):
    """Jobs that wait, by the group that shares what takes long to build. Thread-safe. The first worker that needs a
    kernel compiles it. A worker stays with its group, then begins one of its own traffic, else of a new one, the
    largest first, then helps where most is left. The first with one of a family builds those of others.
    """

    def __init__(self, jobs: Iterable[AnyJob]) -> None:
        self._waiting: dict[Hashable, _Waiting[AnyJob]] = {}
        self._first: dict[Hashable, AnyJob] = {}  # of each group
        for number, job in enumerate(sorted(jobs, key=lambda each: each.size, reverse=True)):
            lines = self._waiting.setdefault(job.group, {})
            lines.setdefault(job.kernel, deque()).append((number, job))
            self._first.setdefault(job.group, job)
        self._begun: set[Hashable] = set()
        self._gathered: set[Hashable] = set()
        self._gathering: set[Hashable] = set()
        self._compiling: set[Hashable] = set()
        self._compiled: set[Hashable] = set()
        self._last: dict[int, Hashable] = {}
        self._changed = threading.Condition()

    def next(self, worker: int) -> Task[AnyJob] | None:
        """The next job of a worker (0, 1, …), or None; blocks while all need what is being compiled or gathered."""
        with self._changed:
            while self._waiting:
                group = self._last.get(worker)
                if group in self._waiting and (ready := self._ready(group)):
                    return self._take(worker, group, ready)
                free = (group for group in self._waiting if group not in self._gathering)
                possible = {group: ready for group in free if (ready := self._ready(group))}
                if possible:
                    return self._take(worker, *self._choose(worker, possible))
                self._changed.wait()
            return None

    def note_compiled(self, job: AnyJob) -> None:
        """The kernel of a job is compiled: every worker may use it."""
        with self._changed:
            self._compiling.discard(job.kernel)
            self._compiled.add(job.kernel)
            self._changed.notify_all()

    def note_gathered(self, together: Iterable[AnyJob]) -> None:
        """Groups have been built, or cannot be: other workers wait for them no longer."""
        with self._changed:
            self._gathering.difference_update(job.group for job in together)
            self._changed.notify_all()

    def _ready(self, group: Hashable) -> list[_Line[AnyJob]]:
        return [line for kernel, line in self._waiting[group].items() if kernel not in self._compiling]

    def _choose(
        self, worker: int, possible: dict[Hashable, list[_Line[AnyJob]]]
    ) -> tuple[Hashable, list[_Line[AnyJob]]]:
        fresh = {each: self._first[each].traffic for each in possible if each not in self._begun}
        if not fresh:
            group = max(possible, key=lambda each: sum(map(len, possible[each])))
        else:
            begun = {self._first[each].traffic for each in self._begun}
            own = self._first[self._last[worker]].traffic if worker in self._last else None

            def rank(each: Hashable) -> int:  # the first of the least: groups are ordered by size
                return 0 if own is not None and fresh[each] == own else 1 + (fresh[each] in begun)

            group = min(fresh, key=rank)
        return group, possible[group]

    def _take(self, worker: int, group: Hashable, ready: list[_Line[AnyJob]]) -> Task[AnyJob]:
        together = () if group in self._begun else self._together(group)
        line = min(ready, key=lambda each: each[0][0])
        job = line.popleft()[1]
        kernel = job.kernel
        if not line:
            del self._waiting[group][kernel]
        if not self._waiting[group]:
            del self._waiting[group]
        self._begun.add(group)
        self._last[worker] = group
        cold = kernel not in self._compiled
        if cold:
            self._compiling.add(kernel)
        self._changed.notify_all()
        return Task(job, cold, together)

    def _together(self, group: Hashable) -> tuple[AnyJob, ...]:
        """The group's first job with those of smaller unbegun groups of its family; none without others."""
        first, done = self._first[group], self._begun | self._gathered
        if first.family is None or first.size < LEAST_TOGETHER or group in self._gathered:
            return ()
        waiting = (self._first[each] for each in self._waiting if each not in done)
        found = tuple(each for each in waiting if each.family == first.family)[:MOST_TOGETHER]
        if len(found) < 2 or found[0] is not first:
            return ()
        self._gathered.update(each.group for each in found)
        self._gathering.update(each.group for each in found)
        return found
