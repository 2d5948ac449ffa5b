"""What a command takes: wall and processor time, memory, and how long it says nothing. Linux only."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

_SLOWER = ("PYTHONDONTWRITEBYTECODE",)  # of a developer: sources are compiled at every start, where pip has done it
EVERY_S = 0.25  # between two samples of memory
MAIN = "import sys; from archsim.cli.main import main; sys.exit(main())"


class Taken(NamedTuple):
    """``first_s``: until the first line; ``silent_s``: the longest time without output; ``held_bytes``: most memory of
    all its processes together (RSS); ``pss_bytes``: the same, a page that several share counted once.
    """

    wall_s: float
    processor_s: float
    first_s: float
    silent_s: float
    held_bytes: int
    pss_bytes: int


def archsim(*arguments: str) -> list[str]:
    """The command line of ``archsim`` of this interpreter."""
    return [sys.executable, "-c", MAIN, *arguments]


def take(command: Sequence[str], environment: Mapping[str, str] = MappingProxyType({})) -> Taken:
    """Run a command to its end, with caches of its own but for compiled kernels.

    Raises RuntimeError with its last output if it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        own = {"ARCHSIM_CACHE": f"{folder}/cache", "PYTHONUNBUFFERED": "1"} | dict(environment)
        begin = time.perf_counter()
        others = {name: value for name, value in os.environ.items() if name not in _SLOWER}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, env=others | own, bufsize=0, **pipes)
        memory = PeakMemory(process.pid)
        memory.start()
        said, last = [begin], b""
        assert process.stdout is not None
        while part := process.stdout.read(1 << 16):
            said.append(time.perf_counter())
            last = (last + part)[-2000:]
        _, status, used = os.wait4(process.pid, 0)
        memory.end()
    said.append(time.perf_counter())
    if status:
        raise RuntimeError(f"{' '.join(command)} failed:\n{last.decode(errors='replace')}")
    silent_s = max(later - earlier for earlier, later in zip(said, said[1:], strict=False))
    processor_s = used.ru_utime + used.ru_stime
    return Taken(said[-1] - begin, processor_s, said[1] - begin, silent_s, *memory.most)


class PeakMemory(threading.Thread):
    """Samples the memory of a process and all its descendants until `end`. ``most``: bytes, RSS and PSS, which takes
    the kernel long and is read where RSS has grown by a hundredth.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self._ended, self.most = pid, threading.Event(), (0, 0)

    def run(self) -> None:
        while not self._ended.wait(EVERY_S):
            rss, pss = held_bytes(self._pid, "status", "VmRSS"), 0
            if rss > 1.01 * self.most[0]:
                pss = held_bytes(self._pid, "smaps_rollup", "Pss")
            self.most = max(self.most[0], rss), max(self.most[1], pss)

    def end(self) -> None:
        self._ended.set()


def held_bytes(pid: int, file: str, name: str) -> int:
    """Memory of a process and all its descendants: a line of a file of theirs in /proc."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it has ended meanwhile
        return 0
    own = next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)
    return own + sum(held_bytes(child, file, name) for child in children)
