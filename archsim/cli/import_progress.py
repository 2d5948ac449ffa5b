"""Progress of an import, on stderr: one updated line in a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

_EVERY_S = 5.0  # between plain lines


class ImportLines:
    """A plain line every few seconds."""

    def __init__(self) -> None:
        self._requests = self._size = 0
        self._next = time.monotonic() + _EVERY_S

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        pass

    def read(self, requests: int, size: int) -> None:
        self._requests += requests
        self._size += size
        if time.monotonic() > self._next:
            self._next = time.monotonic() + _EVERY_S
            print(f"{self._requests:,} requests, {self._size / 1e6:,.0f} MB", file=sys.stderr, flush=True)

    def problem(self, message: str) -> None:
        print(f"left out: {message}", file=sys.stderr, flush=True)


class Counter(ImportLines):
    """Counts, updated in one line of a terminal."""

    def __init__(self, console: Any) -> None:
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TransferSpeedColumn

        super().__init__()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TransferSpeedColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._progress.add_task("reading", total=None)

    def __enter__(self):
        self._progress.start()
        return self

    def __exit__(self, *error) -> None:
        self._progress.stop()

    def read(self, requests: int, size: int) -> None:
        self._requests += requests
        self._size += size
        self._progress.update(self._task, completed=self._size, description=f"{self._requests:,} requests")

    def problem(self, message: str) -> None:
        self._progress.console.print(f"left out: {message}", markup=False)


def import_watcher() -> ImportLines:
    from rich.console import Console

    console = Console(stderr=True)
    return Counter(console) if console.is_terminal else ImportLines()
