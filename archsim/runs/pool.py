"""Jobs done here or by worker processes, returned as they finish."""

from __future__ import annotations

import copyreg
import ctypes
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, BinaryIO, NamedTuple, TypeVar

from archsim.base.errors import ArchsimError
from archsim.runs.run import Record, Workspace
from archsim.runs.run_queue import AnyJob, RunQueue

# A worker process does the jobs that it is asked for, one after the other. What it reads are pickles of (method, job,
# further arguments); what it writes are pickles of results and, before these, of `Progress`.
#
# It ends when its input ends, even in the middle of a job, so that no worker outlives its parent.

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h
_PACKAGE = Path(__file__).resolve().parents[1]
STARTS = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from archsim.runs.pool import main; main()"
COPIES = sys.platform == "linux"  # elsewhere, libraries of the system may not survive in a copy of a process

Result = TypeVar("Result")


@dataclass(frozen=True)
class Failure:
    """Why a job has no record. ``details``: a traceback, if the program (or a user's function) is at fault."""

    message: str
    details: str = ""


class Progress(NamedTuple):
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

    workspace.tell = lambda text, share: reply(Progress(text, share))
    requests = queue.SimpleQueue[Any]()
    threading.Thread(target=_receive, args=(asked, requests), daemon=True).start()
    while True:
        verb, job, *more = requests.get()
        reply(attempt(partial(getattr(job, verb), workspace, *more)))


def _end_with_parent() -> None:
    """On Linux, the kernel ends this process with the thread that started it; elsewhere its input's end."""
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


def _receive(stream: BinaryIO, requests: queue.SimpleQueue[Any]) -> None:
    try:
        while True:
            requests.put(pickle.load(stream))
    except (EOFError, OSError):
        os._exit(0)


_COPYING = threading.Lock()  # a copy that held the end of another's pipe would hide that the other has ended


class _Copy:
    """A copy of this process that does ``work`` with two streams: of what is asked, and of its replies."""

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
    """In a group of its own, without Ctrl-C of the terminal; what users' functions print goes to stderr."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)


def simulate_all(
    jobs: Sequence[AnyJob], processes: int, workspace: Workspace
) -> Iterator[tuple[AnyJob, Record | Failure]]:
    """Every job with its record or failure, as they finish, at most ``processes`` at a time. One is this process,
    unless users' functions take part, which may end it. ``workspace``: what jobs find at the beginning, and who hears
    how far they are. Workers end with the iterator.
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
    schedule, heard = RunQueue(jobs), queue.SimpleQueue[Progress | tuple[AnyJob, Record | Failure]]()
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
            if isinstance(each, Progress):
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
    """A worker process, seen from the parent. ``workspace``: what a copy begins with; ``tell``: hears of progress."""

    def __init__(self, workspace: Workspace | None = None, tell: Callable[[Progress], None] = lambda _: None) -> None:
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
        """The result of a job's method, or its failure. Blocks until job or process ends; the latter is replaced."""
        try:
            asked = pickle.dumps((verb, job, *more))
        except Exception as error:  # whatever an object of the job raises; without a reply, the others would wait
            return Failure(f"cannot be sent to a process: {type(error).__name__}: {error}", traceback.format_exc())
        try:
            self._asks.write(asked)
            self._asks.flush()
            while isinstance(reply := pickle.load(self._answers), Progress):
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
