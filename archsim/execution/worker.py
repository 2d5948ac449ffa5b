"""A worker process: runs come in through its standard input, records go out through its standard output, both pickled.

It ends when its input does, also in the middle of a run, so that none is left behind whatever happens to its parent.
"""

import os
import pickle
import queue
import sys
import threading
import traceback
from dataclasses import dataclass
from typing import BinaryIO

from archsim.execution.runs import Run
from archsim.results import Record
from archsim.specs.errors import ArchsimError

STARTS = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from archsim.execution.worker import main; main()"


@dataclass(frozen=True)
class Failure:
    """Why a run has no record. ``details``: a traceback, where the program (or a user's function) is at fault."""

    message: str
    details: str = ""


def attempt(simulator, run: Run) -> Record | Failure:
    """The record of a run, or what went wrong."""
    try:
        return simulator.record(run)
    except ArchsimError as error:
        return Failure(str(error))
    except Exception as error:  # a user's function may raise anything; the other runs go on
        return Failure(f"{type(error).__name__}: {error}", traceback.format_exc())


def main() -> None:
    from archsim.execution.simulator import Simulator

    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a user's function prints is no reply
    simulator, runs = Simulator(), queue.SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, runs), daemon=True).start()
    while True:
        pickle.dump(attempt(simulator, runs.get()), replies)
        replies.flush()


def _receive(stream: BinaryIO, runs: queue.SimpleQueue) -> None:
    """Take in runs until there is nobody to send them."""
    try:
        while True:
            runs.put(pickle.load(stream))
    except (EOFError, OSError):
        os._exit(0)
