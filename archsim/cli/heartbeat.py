"""A line on stderr whenever a command has said nothing there for a while: what it does, and for how long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from archsim.base.code_digest import functions_compiled
from archsim.base.words import spoken

SILENT_S = 2.0  # without a line, so that no three seconds are silent on a busy machine either
LONG_S, LONG_SILENT_S = 600.0, 15.0  # after ten minutes, lines are rarer
_LOOK_S = 0.25


class Heard:
    """A stream that knows when it was last written to, and its last line, at first ``line``. ``doing``: says what goes
    on; without it, that line does.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic, line: str = "") -> None:
        self._stream, self._clock, self._lock = stream, clock, threading.Lock()
        self._began_s = self._line_s = self._last_s = clock()
        self._line, self._compiled = line, functions_compiled()
        self.doing: Callable[[], str] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._lock:
            self._last_s = self._clock()
            if said := text.strip():
                self._line, self._line_s = said.splitlines()[-1], self._last_s
            return self._stream.write(text)

    def beat(self) -> None:
        """Write a line if the stream was silent for too long."""
        with self._lock:
            now = self._clock()
            if now - self._last_s < (SILENT_S if now - self._began_s < LONG_S else LONG_SILENT_S):
                return
            self._last_s = now
            line = self._line.removesuffix(" ...")
            told = self.doing() if self.doing else f"{line}: for {spoken(now - self._line_s)}"
            compiled = functions_compiled() - self._compiled
            self._stream.write(f"  {told}{f', {compiled} functions compiled' if compiled else ''}\n")
            self._stream.flush()


@contextmanager
def heartbeat(what: str) -> Iterator[None]:
    """``sys.stderr`` is never silent for three seconds; ``what``: goes on before the first line."""
    before, ended = sys.stderr, threading.Event()
    heard = Heard(before, line=what)

    def watch() -> None:
        while not ended.wait(_LOOK_S):
            heard.beat()

    thread = threading.Thread(target=watch, daemon=True)
    sys.stderr = heard
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        sys.stderr = before
