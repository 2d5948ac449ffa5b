"""Processes that tests have started, where the system has /proc; elsewhere nothing is known of them."""

import os
import signal
from pathlib import Path


def children(pid: int) -> set[int]:
    """Processes that any thread of ``pid`` has started and that have not been waited for."""
    found = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found.update(map(int, task.read_text().split()))
        except OSError:
            continue  # the thread has ended
    return found


def kill(pid: int, named: str) -> None:
    """End a process whose command line has ``named`` in it; any other is left alone."""
    try:
        if named.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    except OSError:
        pass  # it has ended
