"""Where jobs and tasks are done: here, in processes of this machine, or on a Dask cluster. The results are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from archsim.runs import cluster, pool
from archsim.runs.run import Record, Workspace

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


def do_all(work: Callable[[Any], Any], tasks: Iterable[Any], jobs: int) -> Iterator[tuple[Any, Any]]:
    """Every task with ``work(task)``, in the order in which they end, at most ``jobs`` at a time, or as many as a
    cluster has threads. An exception of ``work`` is raised here. All ends with the iterator.
    """
    address = _CLUSTER.get()
    if address is None:
        return pool.in_copies(work, tasks, jobs)
    return cluster.work_on_cluster(work, tasks, address)


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A temporary folder that workers see: those of a cluster have the current folder."""
    with TemporaryDirectory(prefix="archsim-", dir="." if _CLUSTER.get() else None) as folder:
        yield Path(folder).resolve()
