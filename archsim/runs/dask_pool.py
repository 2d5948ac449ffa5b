"""Runs simulated on a Dask cluster: the same records as from processes of this machine.

Workers need the same archsim (compared by the digest of its code) and see recorded traces under the same path. A task
is a batch of runs that share a demand. Of a demand with several batches the first is one run, and the others are
submitted when it has ended: by then a demand that takes long to build is in the cache on disk, and no worker with the
same cache builds it again. Records leave the cluster as they are read. The tasks of a worker that dies are rescheduled
by Dask on another one, ``RETRIES`` times; then their runs are tasks of their own, so that the one at fault fails alone.
Each thread of a worker has a simulator of its own; one thread per worker (``dask worker --nthreads 1``) shares demands
best.
"""

import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from archsim.base.errors import ArchsimError
from archsim.runs.results import Record
from archsim.runs.run import Run
from archsim.runs.worker import Failure, attempt

PATIENCE_S = 6.0  # for the scheduler to answer
RETRIES = 3  # of a run whose worker died
ADDRESS = re.compile(r"tcp://(?P<host>[\w.-]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
MOST_TOGETHER, TURNS = 16, 8  # runs of a task; tasks of a thread, so that none is idle for long at the end
OTHER = Failure("the worker has another version of archsim than this client; its results could differ")
Batch = tuple[Run, ...]
MOST_FRAMES = 1 << 16  # of Dask's first message, which has a few


def simulate_on_cluster(
    runs: Sequence[Run], address: str, verb: str = "record"
) -> Iterator[tuple[Run, Record | Failure]]:
    """Every run with its record or failure, in the order in which they finish.

    ``address`` of the scheduler, such as ``tcp://host:8786``; ``verb``: as of ``simulate_all``. Raises ArchsimError if
    Dask is not installed, or the scheduler cannot be reached within ``PATIENCE_S``. Pending runs are cancelled when the
    iterator ends for any reason.
    """
    distributed = _distributed()
    with _client(distributed, address) as client, client.as_current():
        here = (os.getcwd(), tuple(each for each in sys.path if each))

        def submit(batch: Batch):
            codes, name = tuple(run.code for run in batch), f"{batch[0].name} {batch[0].key} {len(batch)}"
            return client.submit(simulate_here, batch, verb, codes, *here, key=name, pure=False, retries=RETRIES)

        threads = max(1, sum(client.nthreads().values()))
        futures = {submit(alike[0]): alike for alike in batches(runs, threads)}
        ended = distributed.as_completed(futures)
        try:
            for future in ended:
                (batch, *following), replies = futures.pop(future), _replies(future)
                failed = isinstance(replies, Failure)
                if failed and len(batch) > 1:  # one of them may be at fault
                    following += [(run,) for run in batch]
                submitted = {submit(each): [each] for each in following}
                futures |= submitted
                ended.update(submitted)
                if not failed or len(batch) == 1:
                    yield from zip(batch, [replies] if failed else replies, strict=True)
        finally:
            client.cancel(list(futures))


def batches(runs: Sequence[Run], threads: int) -> list[list[Batch]]:
    """The batches of every demand: all runs, at most MOST_TOGETHER in each, and few enough for TURNS of every thread.
    The first of several is one run.
    """
    most = max(1, min(MOST_TOGETHER, len(runs) // (TURNS * threads)))
    alike: dict[tuple, list[Run]] = {}
    for run in runs:
        alike.setdefault(run.demand.key, []).append(run)
    found = []
    for each in alike.values():
        first = 1 if len(each) > most else most
        found.append([tuple(each[:first]), *(tuple(each[at : at + most]) for at in range(first, len(each), most))])
    return found


def simulate_here(
    batch: Batch, verb: str, codes: Sequence[str], folder: str, path: Sequence[str]
) -> list[Record | Failure]:
    """On a worker: what a method of Simulator gives for each run, from the folder and with the modules of the client.
    """
    _settle(folder, path)
    simulate = getattr(_simulator(threading.get_ident()), verb)
    return [attempt(simulate, run) if run.code == code else OTHER for run, code in zip(batch, codes, strict=True)]


@lru_cache
def _settle(folder: str, path: Sequence[str]) -> None:
    """Once per process: change to the folder of the sweep, if visible here; make the user's own functions
    importable.
    """
    if os.path.isdir(folder):
        os.chdir(folder)
    sys.path.extend(each for each in path if each not in sys.path)


@lru_cache
def _simulator(thread: int):
    from archsim.runs.simulator import Simulator

    return Simulator()


def _replies(future) -> list[Record | Failure] | Failure:
    """The results of a batch, or why there are none: its worker died too often."""
    try:
        return future.result()
    except Exception as error:  # Dask raises whatever stopped the transport or the scheduler
        return Failure(f"the cluster gave up on it: {type(error).__name__}: {error}")


def _distributed():
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
    with _connected(found["host"].strip("[]"), int(found["port"])) as stream:
        first = b""
        while len(first) < 8 and (more := stream.recv(8 - len(first))):
            first += more
    if len(first) < 8 or int.from_bytes(first, "little") > MOST_FRAMES:
        raise ValueError("something else listens there")


def _connected(host: str, port: int) -> socket.socket:
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
def _client(distributed, address: str):
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
