"""A line on stderr whenever a command has said nothing there for a while: what it does, and for how long. In a terminal
it is written over; elsewhere the first comes within three seconds, later ones every ten, then rarer.
"""

from __future__ import annotations

import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from archsim.base.code_digest import machine_code
from archsim.base.errors import spoken

SILENT_S = 2.0  # without a line, so that no three seconds are silent on a busy machine either
LONG_S, LONG_SILENT_S = 600.0, 15.0  # after ten minutes, lines are rarer
# Of a pipe: silent for so long between lines on the same thing, and for a part of the time that it goes on.
EVERY_S, RARER, RAREST_S = 10.0, 4.0, 30.0
_LOOK_S = 0.25
LEAST_TOLD_S = 8.0  # of compilation, to be announced: a group has a few kernels that most runs never use
_CLEARED = "\r\x1b[K"  # to the begin of the line, which is erased


class Heard:
    """A stream that knows when it was last written to, and its last line, at first ``line``. ``doing``: says what goes
    on; without it, that line does. ``expected``: groups of kernels that the command needs, and ``processes``: how many
    compile them (`machine_code`).
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic, line: str = "") -> None:
        self._stream, self._clock, self._lock = stream, clock, threading.RLock()
        self._began_s = self._line_s = self._last_s = clock()
        self._line, self._compiled = line, machine_code().functions
        self._terminal, self._standing = stream.isatty(), False
        self.doing: Callable[[], str] | None = None
        self._sentence: object = None  # what the last line on silence was on
        self._told_s = 0.0  # when the first such line on it was
        self.expected: Sequence[str] = ()
        self.processes = 1
        self._since_s = time.time()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._lock:
            self._last_s = self._clock()
            if (said := text.strip()) and not said.startswith("note: "):  # a note is nothing that goes on
                self._line, self._line_s = said.splitlines()[-1], self._last_s
                if text.startswith("  "):  # progress, which says already what goes on
                    self._sentence, self._told_s = _topic(self._line), self._last_s
            self.clear()
            return self._stream.write(text)

    def begin(self, line: str) -> None:
        """What goes on from now, as if ``line`` had been written; again the same, but for a count, as before."""
        with self._lock:
            if _topic(line) != _topic(self._line):
                self._line_s = self._clock()
            self._line = line

    def clear(self) -> None:
        """Erase the line that stands in a terminal, so that others can write there."""
        with self._lock:
            if self._standing:
                self._standing = False
                self._stream.write(_CLEARED)
                self._stream.flush()

    def beat(self) -> None:
        with self._lock:
            now = self._clock()
            silent_s = SILENT_S if now - self._began_s < LONG_S else LONG_SILENT_S
            goes_on = self.doing or _topic(self._line)
            if not self._terminal and goes_on == self._sentence:
                silent_s = max(silent_s, min(max(EVERY_S, (now - self._told_s) / RARER), RAREST_S))
            if now - self._last_s < silent_s:
                return
            if goes_on != self._sentence:
                self._sentence, self._told_s = goes_on, now
            self._last_s = now
            line = self._line.removesuffix(" ...")
            text = self.doing() if self.doing else f"{line}, {spoken(now - self._line_s)} so far"
            code = machine_code(self.expected, self._since_s, self.processes)
            compiled, waits = code.functions - self._compiled, code.going_on and code.missing_s > 0
            if compiled or waits:
                text += f"; compiling kernels, once ({compiled} so far)"
            if waits:
                text += f": about {spoken(code.missing_s)} left"
            if self._terminal:
                self.clear()
                self._stream.write(f"  {text}"[: shutil.get_terminal_size().columns - 1])
                self._standing = True
            else:
                self._stream.write(f"  {text}\n")
            self._stream.flush()


def _topic(line: str) -> str:
    """What a line is on: ``3 of 39 ways`` and ``4 of 39 ways`` are the same."""
    return re.sub(r"^(.*?: |)[\d,]+ of ", r"\1", line)


def begins(text: str) -> None:
    """From now on, the line on silence says ``text``, and for how long."""
    if isinstance(sys.stderr, Heard):
        sys.stderr.begin(text)


class ErasingStream:
    """Another stream to the same terminal, which erases the line that stands there before it writes."""

    def __init__(self, stream: TextIO, heard: Heard) -> None:
        self._stream, self._heard = stream, heard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._heard.clear()
        return self._stream.write(text)


@contextmanager
def heartbeat(what: str) -> Iterator[None]:
    """``sys.stderr`` is never silent for three seconds; ``what``: goes on before the first line."""
    before, out, ended = sys.stderr, sys.stdout, threading.Event()
    heard = Heard(before, line=what)

    def watch() -> None:
        while not ended.wait(_LOOK_S):
            heard.beat()

    thread = threading.Thread(target=watch, daemon=True)
    sys.stderr = heard
    if before.isatty() and out.isatty():
        sys.stdout = ErasingStream(out, heard)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        heard.clear()
        sys.stderr, sys.stdout = before, out
