"""Runs simulated here or by worker processes, returned as they finish."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import pickle
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from archsim.base.errors import ArchsimError
from archsim.runs.results import Record
from archsim.runs.run import DemandSpec, Run
from archsim.workload import Trace

# ---- worker
# A worker process: it reads pickled (method of Simulator, run) from standard input and writes results to standard
# output.
#
# It exits when its input ends, even in the middle of a run, so that no worker outlives its parent.

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h
_PACKAGE = Path(__file__).resolve().parents[1]
STARTS = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from archsim.runs.pool import main; main()"


Asked = TypeVar("Asked")


@dataclass(frozen=True)
class Failure:
    """Why a run has no record. ``details``: a traceback, if the program (or a user's function) is at fault."""

    message: str
    details: str = ""


def attempt(do: Callable[[Asked], Record | None], run: Asked) -> Record | Failure | None:
    """The result of ``do`` for a run, or for what else is asked, or its failure."""
    try:
        return do(run)
    except ArchsimError as error:
        # The cause is the exception of the user's function.
        return Failure(str(error), own_frames(error.__cause__) if error.__cause__ else "")
    except SystemExit as error:  # of a user's function; the other runs go on
        return Failure(f"calls sys.exit({error.code!r:.100}); a rule returns its result, or raises", own_frames(error))
    except Exception as error:  # a user's function may raise anything; the other runs go on
        return Failure(f"{type(error).__name__}: {error}", traceback.format_exc())


def own_frames(error: BaseException) -> str:
    """The traceback of a user's function, without the frames of archsim before it."""
    frames = traceback.extract_tb(error.__traceback__)
    last = max((at for at, frame in enumerate(frames) if Path(frame.filename).is_relative_to(_PACKAGE)), default=-1)
    return "".join([*traceback.format_list(frames[last + 1 :]), *traceback.format_exception_only(error)])


def main() -> None:
    """Do what standard input asks, one request after the other, until it ends; failures are replies."""
    _end_with_parent()  # first: a parent may end while modules load

    from archsim.runs.simulator import Simulator

    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of a user's function must not mix with replies
    simulator, requests = Simulator(), queue.SimpleQueue[Any]()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, requests), daemon=True).start()
    while True:
        verb, run = requests.get()
        pickle.dump(attempt(getattr(simulator, verb), run), replies)
        replies.flush()


def _end_with_parent() -> None:
    """On Linux, the kernel ends this process with the thread that started it, even if no thread here can run; the end
    of the input ends it elsewhere.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


def _receive(stream: BinaryIO, requests: queue.SimpleQueue) -> None:
    """Receive requests until the input ends."""
    try:
        while True:
            requests.put(pickle.load(stream))
    except (EOFError, OSError):
        os._exit(0)


# ---- pool

# ---- schedule
# Which run a worker does next: no kernel is compiled twice, demands are built rarely, and no worker idles
# needlessly.

_Line = deque[tuple[int, Run]]  # runs of one kernel, with their place among all
_Waiting = dict[tuple[str, str], _Line]  # of one demand, by kernel


MOST_TOGETHER = 4  # demands that are built in one pass: each has counts of its own in memory
OWN_CODE_BESIDE = True  # in a process of its own, which a function of the user's may end
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
    if jobs > 1 or OWN_CODE_BESIDE and any(run.own_code for run in runs):
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
    """A worker process, seen from the parent."""

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


# ---- dask_pool
# Runs simulated on a Dask cluster: the same records as from processes of this machine.
#
# Workers need the same archsim (compared by the digest of its code) and see recorded traces under the same path. A task
# is a batch of runs that share a demand. Of a demand with several batches the first is one run, and the others are
# submitted when it has ended: by then a demand that takes long to build is in the cache on disk, and no worker with the
# same cache builds it again. Records leave the cluster as they are read. The tasks of a worker that dies are
# rescheduled by Dask on another one, ``RETRIES`` times; then their runs are tasks of their own, so that the one at
# fault fails alone. Each thread of a worker has a simulator of its own; one thread per worker (``dask worker
# --nthreads 1``) shares demands best.

PATIENCE_S = 6.0  # for the scheduler to answer
RETRIES = 3  # of a run whose worker died
ADDRESS = re.compile(r"tcp://(?P<host>[\w.-]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
DASK_MOST_TOGETHER, TURNS = 16, 8  # runs of a task; tasks of a thread, so that none is idle for long at the end
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
    most = max(1, min(DASK_MOST_TOGETHER, len(runs) // (TURNS * threads)))
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
