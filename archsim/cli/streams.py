"""stdout and stderr of a command, whatever they are: a pipe of another encoding, closed, or on a full disk."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, TextIO


class Kept:
    """A stream that a command can write to until it ends. What the encoding lacks is replaced. After a write that fails
    nothing more is written, and ``failed`` says why: what goes to files is still finished.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.failed: OSError | None = None
        self._errors = getattr(stream, "errors", None)
        self._set_errors("replace" if self._errors == "strict" else self._errors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._drop(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._drop(error)

    def end(self) -> TextIO:
        """The stream as it was before."""
        self.flush()
        self._set_errors(self._errors)
        return self._stream

    def _drop(self, error: OSError) -> None:
        """Nothing more is written, not at exit of the process either, which flushes what is left."""
        self.failed = self.failed or error
        nothing = os.open(os.devnull, os.O_WRONLY)
        with suppress(OSError):  # a stream in memory has no number
            os.dup2(nothing, self._stream.fileno())
        os.close(nothing)

    def _set_errors(self, errors: str | None) -> None:
        if errors is not None and hasattr(self._stream, "reconfigure"):
            with suppress(OSError):  # it flushes
                self._stream.reconfigure(errors=errors)


def open_closed() -> None:
    """Open closed stdin, stdout, stderr on nothing, so that no file of the command gets their numbers."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is not None:
            continue
        nothing = os.open(os.devnull, os.O_RDWR)
        if nothing > number:
            nothing = _move(nothing, number)
        setattr(sys, name, os.fdopen(nothing, mode, encoding="utf-8", errors="replace"))


def _move(nothing: int, number: int) -> int:
    """The descriptor under the number, unless that was given to another file meanwhile."""
    with suppress(OSError):
        os.fstat(number)
        return nothing
    os.dup2(nothing, number)
    os.close(nothing)
    return number
