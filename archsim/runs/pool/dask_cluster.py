"""Runs simulated on a Dask cluster: the same records as from processes of this machine.

Workers need the same archsim (compared by the digest of its code) and see recorded traces under the same path. The
runs of a worker that dies are rescheduled by Dask on another one, ``RETRIES`` times. Each thread of a worker has a
simulator of its own; one thread per worker (``dask worker --nthreads 1``) shares demands best.
"""

from __future__ import annotations

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
from archsim.runs.pool.worker import Failure, attempt
from archsim.runs.results import Record
from archsim.runs.run import Run

PATIENCE_S = 6.0  # for the scheduler to answer
RETRIES = 3  # of a run whose worker died
ADDRESS = re.compile(r"tcp://(?P<host>[\w.-]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
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
        here = (os.getcwd(), tuple(sys.path))
        futures = {
            client.submit(
                simulate_here, run, verb, run.code, *here, key=f"{run.name} {run.key}", pure=False, retries=RETRIES
            ): run
            for run in runs
        }
        try:
            for future in distributed.as_completed(futures):
                yield futures[future], _reply(future)
        finally:
            client.cancel(list(futures))


def simulate_here(run: Run, verb: str, code: str, folder: str, path: Sequence[str]) -> Record | Failure:
    """On a worker: what a method of Simulator gives for a run, from the folder and with the modules of the client.
    """
    _settle(folder, path)
    if run.code != code:
        return Failure("the worker has another version of archsim than this client; its results could differ")
    return attempt(getattr(_simulator(threading.get_ident()), verb), run)


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


def _reply(future) -> Record | Failure:
    """The result of a run, or why there is none: its worker died too often."""
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

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # the error below reports what went wrong
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
