"""Progress of a sweep, on stderr: a bar with an estimate in a terminal, one line per finished run elsewhere."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from archsim.runs.pool.worker import Failure
    from archsim.runs.results import Record
    from archsim.runs.run import Run


class Lines(AbstractContextManager):
    """One plain line per run."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._runs = self._done = 0

    def __exit__(self, *error) -> None:
        pass

    def phase(self, text: str) -> None:
        self._print(f"{text} ...")

    def begin(self, runs: int) -> None:
        self._runs, self._done = runs, 0

    def kept(self, runs: int) -> None:
        self._done += runs
        if runs:
            self._print(f"{runs} of {self._runs} runs kept from before")

    def finished(self, run: Run, record: Record) -> None:
        self._done += 1
        milliseconds, wall_s = record["row"]["decode_ns"] / 1e6, record["host"]["wall_s"]
        self._print(
            f"[{self._done}/{self._runs}] {run.name}: decode {milliseconds:.3f} ms, simulated in {wall_s:.1f} s"
        )

    def failed(self, run: Run, failure: Failure) -> None:
        self._print(f"{run.name}: failed: {failure.message}")
        if failure.details:
            self._print(failure.details)

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class Bar(AbstractContextManager):
    """A bar that fills as runs finish, with elapsed and remaining time."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
        )
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *error) -> None:
        self._progress.stop()

    def phase(self, text: str) -> None:
        self._progress.update(self._task, description=text)

    def begin(self, runs: int) -> None:
        self._progress.update(self._task, total=runs, completed=0, description="compiling and running")

    def kept(self, runs: int) -> None:
        self._progress.update(self._task, advance=runs)

    def finished(self, run: Run, record: Record) -> None:
        self._progress.update(self._task, advance=1, description=run.name)

    def failed(self, run: Run, failure: Failure) -> None:
        self._progress.console.print(f"{run.name}: failed: {failure.message}\n{failure.details}", markup=False)


def watcher() -> Lines | Bar:
    """A bar if stderr is a terminal, else lines."""
    console = Console(stderr=True)
    return Bar(console) if console.is_terminal else Lines(sys.stderr)
