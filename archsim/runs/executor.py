"""Where jobs and tasks are done: here, in processes of this machine, or on a Dask cluster. The results are the same."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from archsim.base.errors import ArchsimError
from archsim.runs import cluster, pool
from archsim.runs.run import KEY_DIGITS, Job, Record, Workspace, code_of

_CLUSTER: ContextVar[str | None] = ContextVar("cluster", default=None)


@contextmanager
def on_cluster(address: str | None) -> Iterator[None]:
    """Within, all that can be divided is done by the Dask cluster at ``address``, such as ``tcp://host:8786``; None:
    nothing changes.

    >>> with on_cluster(None):
    ...     pass
    """
    before = _CLUSTER.set(address or _CLUSTER.get())
    try:
        yield
    finally:
        _CLUSTER.reset(before)


def simulate_all(
    jobs: Sequence[pool.AnyJob], processes: int, workspace: Workspace
) -> Iterator[tuple[pool.AnyJob, Record | pool.Failure]]:
    """Every job with its record or failure, in the order in which they finish; see `pool.simulate_all`."""
    address = _CLUSTER.get()
    if address is None:
        return pool.simulate_all(jobs, processes, workspace)
    return cluster.simulate_on_cluster(jobs, address)


class _Work:
    """What the tasks of a process are done by; of a thread of a cluster, with its digest."""

    def __init__(self, workspace: Workspace) -> None:
        self.do: Callable[[Any], Any] | None = None
        self.digest = ""


@dataclass(frozen=True, eq=False)
class _Task(Job):
    """One task of `do_all`. Its result is no record, and is kept nowhere."""

    number: int
    task: Any
    digest: str  # of the work that is sent to threads of a cluster; '': copies of this process have it
    cacheable = True

    @property
    def key(self) -> str:
        return hashlib.sha256(self.digest.encode() + pickle.dumps(self.task)).hexdigest()[:KEY_DIGITS]

    @property
    def group(self) -> int:
        """None is shared with other tasks."""
        return self.number

    @property
    def code(self) -> str:
        return code_of(())

    @property
    def name(self) -> str:
        return f"task {self.number + 1}, {self.task!r:.100}"

    def summary(self, row: Mapping[str, Any]) -> str:
        return self.name

    def simulate(self, workspace: Workspace) -> Record:
        work = workspace.of(_Work)
        if work.digest != self.digest:
            work.digest, work.do = self.digest, pickle.loads(workspace.of(cluster.Sent).work)
        assert work.do is not None
        try:
            return {"result": work.do(self.task)}
        except ArchsimError as error:  # a `Failure` would have its text alone
            return {"raised": error}


def do_all(work: Callable[[Any], Any], tasks: Iterable[Any], jobs: int) -> Iterator[tuple[Any, Any]]:
    """Every task with ``work(task)``, as they end, at most ``jobs`` at a time, or as many as a cluster has threads.
    Tasks and results are pickled. Raises ArchsimError as ``work``, or for a process that ended, RuntimeError for
    others.
    """
    every, address = list(tasks), _CLUSTER.get()
    if address is None and (min(jobs, len(every)) <= 1 or not pool.COPIES):
        for task in every:
            yield task, work(task)
        return
    workspace = Workspace()
    workspace.of(_Work).do = work
    sent = b"" if address is None else cluster.pack(work)
    digest = hashlib.sha256(sent).hexdigest() if sent else ""
    asked = [_Task(number, task, digest) for number, task in enumerate(every)]
    there = None if address is None else cluster.simulate_on_cluster(asked, address, sent)
    for job, reply in there or pool.simulate_all(asked, jobs, workspace):
        if isinstance(reply, pool.Failure):
            raise RuntimeError(reply.details) if reply.details else ArchsimError(f"{job.name}: {reply.message}")
        if "raised" in reply:
            raise reply["raised"]
        yield job.task, reply["result"]


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A temporary folder that workers see: those of a cluster have the current folder."""
    with TemporaryDirectory(prefix="archsim-", dir="." if _CLUSTER.get() else None) as folder:
        yield Path(folder).resolve()
