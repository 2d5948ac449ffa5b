"""Jobs done on a Dask cluster: the same records as from processes of this machine.

Workers need the same archsim (compared by the digest of its code) and see recorded traces under the same path. A task
is a batch of jobs of one group. Of a group with several batches the first is one job, and the others are
submitted when it has ended: by then a demand that takes long to build is in the cache on disk, and no worker with the
same cache builds it again. Records leave the cluster as they are read. The tasks of a worker that dies are
rescheduled by Dask on another one, ``RETRIES`` times; then their runs are tasks of their own, so that the one at
fault fails alone. Each thread of a worker has a workspace of its own; one thread per worker (``dask worker
--nthreads 1``) shares demands best.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

from archsim.base.errors import ArchsimError
from archsim.runs.pool import Failure, attempt
from archsim.runs.run import Record, Workspace
from archsim.runs.run_queue import AnyJob

PATIENCE_S = 6.0  # for the scheduler to answer
RETRIES = 3  # of a run whose worker died
ADDRESS = re.compile(r"tcp://(?P<host>[\w.-]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
DASK_MOST_TOGETHER, TURNS = 16, 8  # runs of a task; tasks of a thread, so that none is idle for long at the end
OTHER = Failure("the worker has another version of archsim than this client; its results could differ")
Batch = tuple[AnyJob, ...]
MOST_FRAMES = 1 << 16  # of Dask's first message, which has a few


class Sent:
    """The work that jobs of a thread of a worker share."""

    def __init__(self, workspace: Workspace) -> None:
        self.work = b""


def simulate_on_cluster(
    jobs: Sequence[AnyJob], address: str, work: bytes = b""
) -> Iterator[tuple[AnyJob, Record | Failure]]:
    """Every job with its record or failure, as they finish. ``address``: such as ``tcp://host:8786``; ``work``: what
    jobs find in `Sent`. Raises ArchsimError without Dask or a scheduler within ``PATIENCE_S``. Pending jobs are
    cancelled when the iterator ends.
    """
    distributed = _import_distributed()
    with _client(distributed, address) as client, client.as_current():
        here = (os.getcwd(), tuple(each for each in sys.path if each))
        if work:
            client.wait_for_workers(1)  # as runs wait for one
        sent = client.scatter([work], broadcast=True, hash=False)[0] if work else work

        def submit(batch: Batch[AnyJob]) -> Any:
            codes, name = tuple(job.code for job in batch), f"{batch[0].name} {batch[0].key} {len(batch)}"
            return client.submit(simulate_here, batch, codes, sent, *here, key=name, pure=False, retries=RETRIES)

        threads = max(1, sum(client.nthreads().values()))
        futures = {submit(grouped[0]): grouped for grouped in batches(jobs, threads)}
        ended = distributed.as_completed(futures)
        try:
            for future in ended:
                (batch, *following), replies = futures.pop(future), _replies(future)
                alone = len(batch) == 1
                if isinstance(replies, Failure) and not alone:  # one of them may be at fault
                    following += [(job,) for job in batch]
                submitted = {submit(each): [each] for each in following}
                futures |= submitted
                ended.update(submitted)
                if not isinstance(replies, Failure):
                    yield from zip(batch, replies, strict=True)
                elif alone:
                    yield batch[0], replies
        finally:
            client.cancel(list(futures))


def pack(work: Any) -> bytes:
    """A function and what it refers to. Raises ArchsimError as `simulate_on_cluster`."""
    _import_distributed()
    import cloudpickle  # which Dask needs; functions within others are sent, too

    return bytes(cloudpickle.dumps(work))


def batches(jobs: Sequence[AnyJob], threads: int) -> list[list[Batch[AnyJob]]]:
    """Batches of every group: at most MOST_TOGETHER, few enough for TURNS of every thread; one job first."""
    most = max(1, min(DASK_MOST_TOGETHER, len(jobs) // (TURNS * threads)))
    grouped: dict[Hashable, list[AnyJob]] = {}
    for job in jobs:
        grouped.setdefault(job.group, []).append(job)
    found = []
    for each in grouped.values():
        first = 1 if len(each) > most else most
        found.append([tuple(each[:first]), *(tuple(each[at : at + most]) for at in range(first, len(each), most))])
    return found


def simulate_here(
    batch: Batch[AnyJob], codes: Sequence[str], work: bytes, folder: str, path: Sequence[str]
) -> list[Record | Failure]:
    """On a worker: the record of each job, simulated in the folder and with the modules of the client."""
    _settle(folder, path)
    workspace = _workspace(threading.get_ident())
    workspace.of(Sent).work = work
    return [
        attempt(partial(job.simulate, workspace)) if job.code == code else OTHER
        for job, code in zip(batch, codes, strict=True)
    ]


@lru_cache
def _settle(folder: str, path: Sequence[str]) -> None:
    """Once per process: change to the folder of the sweep, if visible; make the user's functions importable."""
    if os.path.isdir(folder):
        os.chdir(folder)
    sys.path.extend(each for each in path if each not in sys.path)


@lru_cache
def _workspace(thread: int) -> Workspace:
    return Workspace()


def _replies(future: Any) -> Any:
    """The results of a task, or a `Failure`: its worker died too often."""
    try:
        return future.result()
    except Exception as error:  # Dask raises whatever stopped the transport or the scheduler
        return Failure(f"the cluster gave up on it: {type(error).__name__}: {error}")


def _import_distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise ArchsimError("--scheduler needs Dask: pip install 'archsim[cluster]'") from None
    return distributed


def _refuse_others(address: str) -> None:
    """Raise ValueError for what is no address of TCP, and where something listens that does not speak first, as Dask
    does with 8 bytes that say how many frames follow; OSError where nothing answers.
    """
    found = ADDRESS.fullmatch(address)
    if found is None:
        raise ValueError("not an address of TCP")
    with _connect(found["host"].strip("[]"), int(found["port"])) as stream:
        first = b""
        while len(first) < 8 and (more := stream.recv(8 - len(first))):
            first += more
    if len(first) < 8 or int.from_bytes(first, "little") > MOST_FRAMES:
        raise ValueError("something else listens there")


def _connect(host: str, port: int) -> socket.socket:
    """A connection to what listens there, waited for. Raises OSError after PATIENCE_S."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection((host, port), PATIENCE_S)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


@contextmanager
def _client(distributed: Any, address: str) -> Iterator[Any]:
    """A client that is closed at the end. Raises ArchsimError if no scheduler answers."""
    import logging

    for name in ("distributed", "distributed.client"):  # the error below reports what went wrong
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        _refuse_others(address)
        client = distributed.Client(address, timeout=PATIENCE_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ArchsimError(
            f"--scheduler {address}: no Dask scheduler answers there ({reason}); expected such as tcp://host:8786"
        ) from None
    try:
        yield client
    finally:
        client.close()
