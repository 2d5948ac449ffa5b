"""Jobs done here, by worker processes or on a cluster, returned as they finish."""

from __future__ import annotations

import copyreg
import ctypes
import json
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
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from multiprocessing.connection import wait
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, BinaryIO, Generic, NamedTuple, TypeVar

from archsim.base.errors import ArchsimError
from archsim.runs.run import Job, Record, Workspace

# A worker process does the jobs that it is asked for, one after the other. What it reads are pickles of (method, job,
# further arguments); what it writes are pickles of results and, before these, of `Told`.
#
# It ends when its input ends, even in the middle of a job, so that no worker outlives its parent.

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h
_PACKAGE = Path(__file__).resolve().parents[1]
STARTS = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from archsim.runs.pool import main; main()"
COPIES = sys.platform == "linux"  # elsewhere, libraries of the system may not survive in a copy of a process

AnyJob = TypeVar("AnyJob", bound=Job)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Failure:
    """Why a job has no record. ``details``: a traceback, if the program (or a user's function) is at fault."""

    message: str
    details: str = ""


class Told(NamedTuple):
    """What a job does, and the share of it that is done."""

    text: str
    share: float


def _read_only(given: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(given)


copyreg.pickle(MappingProxyType, lambda each: (_read_only, (dict(each),)))  # jobs hold some, and are sent as pickles


def attempt(do: Callable[[], Result]) -> Result | Failure:
    """The result of ``do``, or why there is none."""
    try:
        return do()
    except ArchsimError as error:
        # The cause is the exception of the user's function.
        return Failure(str(error), own_frames(error.__cause__) if error.__cause__ else "")
    except SystemExit as error:  # of a user's function; the other jobs go on
        return Failure(f"calls sys.exit({error.code!r:.100}); a rule returns its result, or raises", own_frames(error))
    except Exception as error:  # a user's function may raise anything; the other jobs go on
        return Failure(f"{type(error).__name__}: {error}", traceback.format_exc())


def own_frames(error: BaseException) -> str:
    """The traceback of a user's function, without the frames of archsim before it."""
    frames = traceback.extract_tb(error.__traceback__)
    last = max((at for at, frame in enumerate(frames) if Path(frame.filename).is_relative_to(_PACKAGE)), default=-1)
    return "".join([*traceback.format_list(frames[last + 1 :]), *traceback.format_exception_only(error)])


def main() -> None:
    """Be a worker that is asked on standard input and answers on standard output."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of a user's function must not mix with replies
    _work(sys.stdin.buffer, replies, Workspace())


def _work(asked: BinaryIO, replies: BinaryIO, workspace: Workspace) -> None:
    """Do what is asked, one job after the other; failures are replies. The process ends with what is asked."""
    _end_with_parent()

    def reply(what: Any) -> None:
        pickle.dump(what, replies)
        replies.flush()

    workspace.tell = lambda text, share: reply(Told(text, share))
    requests = queue.SimpleQueue[Any]()
    threading.Thread(target=_receive, args=(asked, requests), daemon=True).start()
    while True:
        verb, job, *more = requests.get()
        reply(attempt(partial(getattr(job, verb), workspace, *more)))


def _end_with_parent() -> None:
    """On Linux, the kernel ends this process with the thread that started it, even if no thread here can run; the end
    of the input ends it elsewhere.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


def _receive(stream: BinaryIO, requests: queue.SimpleQueue[Any]) -> None:
    """Receive requests until the input ends."""
    try:
        while True:
            requests.put(pickle.load(stream))
    except (EOFError, OSError):
        os._exit(0)


_COPYING = threading.Lock()  # a copy that held the end of another's pipe would hide that the other has ended


class _Copy:
    """A process that begins as a copy of this one, and does ``work`` with two streams: of what is asked, and of its
    replies. It loads nothing again, and has what is open here.
    """

    def __init__(self, work: Callable[[BinaryIO, BinaryIO], None]) -> None:
        with _COPYING:
            asked, asks = os.pipe()
            answers, answered = os.pipe()
            parent, self.pid = os.getpid(), os.fork()
            if not self.pid:
                try:  # nothing of the parent's goes on here, whatever is raised
                    _end_with_parent()
                    if os.getppid() == parent:
                        os.close(asks)
                        os.close(answers)
                        _be_a_copy()
                        work(os.fdopen(asked, "rb"), os.fdopen(answered, "wb"))
                except Exception:
                    traceback.print_exc()
                finally:
                    os._exit(1)
            os.close(asked)
            os.close(answered)
        self.stdin, self.stdout = os.fdopen(asks, "wb"), os.fdopen(answers, "rb")
        self._status: int | None = None
        self._reaps = threading.Lock()

    def kill(self) -> None:
        """End it. A process that has been waited for is left alone: another may have its number."""
        with self._reaps:
            if self._status is None:
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """The exit status, once it has ended; negative for a signal."""
        with suppress(ChildProcessError):  # another thread has waited for it
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._reaps:
            if self._status is None:
                self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status


def _be_a_copy() -> None:
    """In a process group of its own, a worker does not get the terminal's Ctrl-C: the parent ends it. What a user's
    function prints goes to standard error; objects of the parent's may be locked there.
    """
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)


# Which job a worker does next: no kernel is compiled twice, what is shared is built rarely, and no worker idles
# needlessly.

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
    """Jobs that wait, by the group that shares what takes long to build. Thread-safe.

    A kernel is compiled by the first worker that needs it, while the others do other jobs. A worker stays with its
    group; then it takes one that no worker has begun, of its own traffic, else of a traffic that is not begun, the
    largest first; then it helps with the one that has most jobs left. The first worker with one of a family builds
    those of others, too; the others take none of these meanwhile.
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
        """The next job of a worker (0, 1, …), or None when none waits.

        Blocks while all waiting jobs need a kernel that is being compiled, or groups that are being gathered.
        """
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
        """The first job of the group, with those of smaller groups of its family that nobody has begun; none if there
        are no others.
        """
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


def simulate_all(
    jobs: Sequence[AnyJob], processes: int, workspace: Workspace
) -> Iterator[tuple[AnyJob, Record | Failure]]:
    """Every job with its record or failure, in the order in which they finish.

    At most ``processes`` of them go on at a time; with one, they are done in this process, unless a function of the
    user's takes part, which may end the process. ``workspace``: what jobs find at the beginning, and who hears how far
    they are. Worker processes end with the iterator, for whatever reason it ends.
    """
    processes = min(processes, len(jobs))
    if not jobs:
        return
    if processes > 1 or not all(job.cacheable for job in jobs):
        yield from _simulate_beside(jobs, processes, workspace)
        return
    schedule = RunQueue(jobs)
    while task := schedule.next(0):
        job, together = task.job, task.together
        schedule.note_compiled(job)
        if together:
            attempt(partial(job.gather, workspace, together))  # where it fails, so does what needs it, and says why
            schedule.note_gathered(together)
        yield job, attempt(partial(job.simulate, workspace))


def _simulate_beside(
    jobs: Sequence[AnyJob], processes: int, workspace: Workspace
) -> Iterator[tuple[AnyJob, Record | Failure]]:
    schedule, heard = RunQueue(jobs), queue.SimpleQueue[Told | tuple[AnyJob, Record | Failure]]()
    workers = [Worker(workspace, heard.put) for _ in range(processes)]
    threads = [
        threading.Thread(target=_employ, args=(*each, schedule, heard.put), daemon=True) for each in enumerate(workers)
    ]
    try:
        for thread in threads:
            thread.start()
        left = len(jobs)
        while left:
            each = heard.get()
            if isinstance(each, Told):
                workspace.tell(*each)
            else:
                left -= 1
                yield each
    finally:
        for worker in workers:
            worker.dismiss()
        for thread in threads:
            thread.join()


def _employ(number: int, worker: Worker, schedule: RunQueue[AnyJob], ended: Callable[[tuple], None]) -> None:
    """Assign jobs to a worker until none waits or it is dismissed. ``ended``: gets each with its result."""
    while not worker.dismissed and (task := schedule.next(number)):
        if task.cold:
            worker.ask("warm_up", task.job)
            schedule.note_compiled(task.job)
        if task.together:
            worker.ask("gather", task.job, task.together)  # where it fails, so does what needs it, and says why
            schedule.note_gathered(task.together)
        ended((task.job, worker.ask("simulate", task.job)))


class Worker:
    """A worker process, seen from the parent. ``workspace``: what a copy of this process begins with; ``tell``: hears
    how far a job is.
    """

    def __init__(self, workspace: Workspace | None = None, tell: Callable[[Told], None] = lambda _: None) -> None:
        self.dismissed = False
        self._workspace, self._tell = workspace or Workspace(), tell
        self._process, self._asks, self._answers = self._start()

    def _start(self) -> tuple[_Copy | subprocess.Popen[bytes], IO[bytes], IO[bytes]]:
        if COPIES:
            copy = _Copy(partial(_work, workspace=self._workspace))
            return copy, copy.stdin, copy.stdout
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", STARTS, json.dumps([each for each in sys.path if each])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0 if os.name == "posix" else None,  # see `_be_a_copy`
        )
        assert process.stdin is not None and process.stdout is not None
        return process, process.stdin, process.stdout

    def ask(self, verb: str, job: object, *more: object) -> Any:
        """The result of a method of the job, or its failure.

        Blocks until the job has ended, or the process has (killed, out of memory); then another takes its place.
        """
        try:
            asked = pickle.dumps((verb, job, *more))
        except Exception as error:  # whatever an object of the job raises; without a reply, the others would wait
            return Failure(f"cannot be sent to a process: {type(error).__name__}: {error}", traceback.format_exc())
        try:
            self._asks.write(asked)
            self._asks.flush()
            while isinstance(reply := pickle.load(self._answers), Told):
                self._tell(reply)
            return reply
        except (EOFError, OSError, pickle.UnpicklingError):
            status = self._process.wait()
            if not self.dismissed:
                self._process, self._asks, self._answers = self._start()
            cause = f"was ended by signal {-status} (out of memory?)" if status < 0 else f"ended with status {status}"
            return Failure(f"the process that ran it {cause}")

    def dismiss(self) -> None:
        self.dismissed = True
        self._process.kill()
        self._process.wait()


# Work whose tasks depend on each other's results, in processes that begin as copies of this one.


def in_copies(work: Callable[[Any], Any], tasks: Iterable[Any], jobs: int) -> Iterator[tuple[Any, Any]]:
    """Every task with ``work(task)``, in the order in which they end, at most ``jobs`` at a time.

    The next task is drawn when a process is free, so that ``tasks`` may depend on what has been yielded. With one job,
    or where a process cannot be copied, the work is done here. Tasks and results are sent as pickles. An exception of
    ``work`` is raised here. The copies do not hear Ctrl-C, and end with the iterator.
    """
    drawn = iter(tasks)
    if jobs <= 1 or not COPIES:
        for task in drawn:
            yield task, work(task)
        return
    busy: dict[int, tuple[_Copy, Any]] = {}  # the descriptor of a copy's replies → the copy, and its task
    every: list[_Copy] = []

    def begin(copy: _Copy, task: Any) -> None:
        pickle.dump(task, copy.stdin)
        copy.stdin.flush()
        busy[copy.stdout.fileno()] = copy, task

    try:
        for task in islice(drawn, jobs):
            every.append(_Copy(partial(_do_tasks, work)))
            begin(every[-1], task)
        while busy:
            for replies in wait(list(busy)):
                assert isinstance(replies, int)
                copy, task = busy.pop(replies)
                try:
                    failed, result = pickle.load(copy.stdout)
                except EOFError:
                    raise ChildProcessError(f"a process ended with status {copy.wait()}") from None
                if failed:
                    raise result
                yield task, result
                for following in islice(drawn, 1):
                    begin(copy, following)
    finally:
        for copy in every:
            copy.kill()
            copy.wait()


def _do_tasks(work: Callable[[Any], Any], tasks: BinaryIO, replies: BinaryIO) -> None:
    while True:
        task = pickle.load(tasks)
        try:
            reply = False, work(task)
        except Exception as error:  # raised in the process that waits for it
            reply = True, error
        pickle.dump(reply, replies)
        replies.flush()


# Jobs done on a Dask cluster: the same records as from processes of this machine.
#
# Workers need the same archsim (compared by the digest of its code) and see recorded traces under the same path. A task
# is a batch of jobs of one group. Of a group with several batches the first is one job, and the others are
# submitted when it has ended: by then a demand that takes long to build is in the cache on disk, and no worker with the
# same cache builds it again. Records leave the cluster as they are read. The tasks of a worker that dies are
# rescheduled by Dask on another one, ``RETRIES`` times; then their runs are tasks of their own, so that the one at
# fault fails alone. Each thread of a worker has a workspace of its own; one thread per worker (``dask worker
# --nthreads 1``) shares demands best.

PATIENCE_S = 6.0  # for the scheduler to answer
RETRIES = 3  # of a run whose worker died
ADDRESS = re.compile(r"tcp://(?P<host>[\w.-]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
DASK_MOST_TOGETHER, TURNS = 16, 8  # runs of a task; tasks of a thread, so that none is idle for long at the end
OTHER = Failure("the worker has another version of archsim than this client; its results could differ")
Batch = tuple[AnyJob, ...]
MOST_FRAMES = 1 << 16  # of Dask's first message, which has a few


def simulate_on_cluster(jobs: Sequence[AnyJob], address: str) -> Iterator[tuple[AnyJob, Record | Failure]]:
    """Every job with its record or failure, in the order in which they finish.

    ``address`` of the scheduler, such as ``tcp://host:8786``. Raises ArchsimError if Dask is not installed, or the
    scheduler cannot be reached within ``PATIENCE_S``. Pending jobs are cancelled when the iterator ends for any reason.
    """
    distributed = _import_distributed()
    with _client(distributed, address) as client, client.as_current():
        here = (os.getcwd(), tuple(each for each in sys.path if each))

        def submit(batch: Batch[AnyJob]) -> Any:
            codes, name = tuple(job.code for job in batch), f"{batch[0].name} {batch[0].key} {len(batch)}"
            return client.submit(simulate_here, batch, codes, *here, key=name, pure=False, retries=RETRIES)

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


def batches(jobs: Sequence[AnyJob], threads: int) -> list[list[Batch[AnyJob]]]:
    """The batches of every group: all jobs, at most MOST_TOGETHER in each, and few enough for TURNS of every thread.
    The first of several is one job.
    """
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
    batch: Batch[AnyJob], codes: Sequence[str], folder: str, path: Sequence[str]
) -> list[Record | Failure]:
    """On a worker: the record of each job, simulated in the folder and with the modules of the client."""
    _settle(folder, path)
    workspace = _workspace(threading.get_ident())
    return [
        attempt(partial(job.simulate, workspace)) if job.code == code else OTHER
        for job, code in zip(batch, codes, strict=True)
    ]


@lru_cache
def _settle(folder: str, path: Sequence[str]) -> None:
    """Once per process: change to the folder of the sweep, if visible here; make the user's own functions
    importable.
    """
    if os.path.isdir(folder):
        os.chdir(folder)
    sys.path.extend(each for each in path if each not in sys.path)


@lru_cache
def _workspace(thread: int) -> Workspace:
    return Workspace()


def _replies(future: Any) -> list[Record | Failure] | Failure:
    """The results of a batch, or why there are none: its worker died too often."""
    try:
        found: list[Record | Failure] = future.result()
        return found
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
