"""A worker process: it reads pickled (method of Simulator, run) from standard input and writes results to standard
output.

It exits when its input ends, even in the middle of a run, so that no worker outlives its parent.
"""

import ctypes
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from archsim.base.errors import ArchsimError
from archsim.runs.results import Record

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h
_PACKAGE = Path(__file__).resolve().parents[1]
STARTS = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from archsim.runs.worker import main; main()"


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
