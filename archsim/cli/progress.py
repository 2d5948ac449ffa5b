"""Progress of a sweep, on stderr: a bar with an estimate in a terminal; lines elsewhere, few even for many runs."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from archsim.base.code_digest import machine_code
from archsim.base.errors import spoken
from archsim.cli.heartbeat import EVERY_S, Heard

if TYPE_CHECKING:
    from pathlib import Path

    from archsim.runs.pool import Failure
    from archsim.runs.run import Job, Record


FEW = 10  # runs that get a line each, as each is a tenth or more
RUNNING, LOADING = "running", "loading"  # phases: of runs, if no other was named; of what precedes them
PART_S = 2.0  # of one run, before a line estimates what is left of it
ENOUGH = 5  # runs for an estimate: the first ones compile and generate traffic for all


class Lines(AbstractContextManager):
    """One plain line per run; of more than ``FEW`` runs, one at each tenth of them; between them
    `archsim.cli.heartbeat` speaks every ``EVERY_S``. clock: seconds since any moment.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._runs = self._done = self._kept = 0
        self._began_s = clock()
        self._parts: dict[str, tuple[float, float]] = {}  # job → when its part began, and the share that is done
        self._told_s, self._part = clock() + PART_S - EVERY_S, RUNNING
        self._phase = RUNNING

    def __exit__(self, *error) -> None:
        self._doing(None)

    def phase(self, text: str) -> None:
        self._phase = RUNNING if text.startswith(LOADING) else re.split("[,;] ", text)[0]
        self._doing(None)
        self._print(f"{text} ...")

    def begin(self, runs: int) -> None:
        self._part = self._phase
        self._doing(lambda: self._state(self._part))
        self._runs, self._done, self._kept = runs, 0, 0
        self._began_s = self._clock()

    def kept(self, runs: int) -> None:
        self._done += runs
        self._kept += runs
        if runs:
            self._print(f"{runs} of {self._runs} runs kept from before")

    def on_finished(self, job: Job, record: Record) -> None:
        self._done += 1
        if self._runs <= FEW:
            summary, wall_s = job.summary(record["row"]), record["host"]["wall_s"]
            self._print(f"[{self._done}/{self._runs}] {job.name}: {summary}, simulated in {wall_s:.1f} s")
        elif 10 * self._done // self._runs > 10 * (self._done - 1) // self._runs:
            self._print(self._state(self._phase))

    def on_failed(self, job: Job, failure: Failure) -> None:
        self._print(f"{job.name}: failed: {failure.message}")
        if failure.details:
            self._print(failure.details)

    def at(self, text: str, share: float) -> None:
        now, job = self._clock(), text.rpartition(": ")[0]  # several may go on at once
        began_s, before = self._parts.get(job, (now, 0.0))
        began_s = now if share < before or share == 0 else began_s
        self._parts[job], self._part = (began_s, share), text
        if not share or now - self._told_s < EVERY_S:  # the line on silence names what has only begun
            return
        self._told_s, so_far_s = now, now - began_s
        left = f", about {spoken(so_far_s / share * (1 - share))} left" if share and so_far_s > PART_S else ""
        self._print(f"  {text}, {percent_done(share)} after {spoken(so_far_s)}{left}")

    def _state(self, phase: str) -> str:
        """``running [1,200/10,188] 12 %, 40 s so far, about 5 min left``."""
        so_far_s, new = self._clock() - self._began_s, self._done - self._kept
        share = percent_done(self._done / max(self._runs, 1))
        left = _left(so_far_s, new, self._runs - self._done)
        return f"{phase} [{self._done:,}/{self._runs:,}] {share}, {spoken(so_far_s)} so far{left and f', {left}'}"

    def _doing(self, doing: Callable[[], str] | None) -> None:
        if isinstance(self._stream, Heard):
            self._stream.doing = doing

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


def percent_done(share: float) -> str:
    """``12 %``."""
    return f"{share:.0%}".replace("%", " %")


def _left(so_far_s: float, new: float, waiting: float) -> str:
    """``about 5 min left``, of ``new`` runs so far; empty for too few of them, and where none waits."""
    return f"about {spoken(so_far_s / new * waiting)} left" if new >= ENOUGH and waiting > 0 else ""


class _Left(ProgressColumn):
    """Estimated as in lines; the task has when its runs ``began``, by the clock of its progress, and how many it
    ``kept``.
    """

    def render(self, task: Task) -> Text:
        so_far_s = task.get_time() - task.fields["began"]
        return Text(_left(so_far_s, task.completed - task.fields["kept"], task.remaining or 0))


class _Compiled(ProgressColumn):
    """How many functions were compiled since the column was made: what long first runs wait for."""

    max_refresh = 1.0  # seconds

    def __init__(self) -> None:
        super().__init__()
        self._before, self._since_s = machine_code().functions, time.time()
        self._expected = sys.stderr.expected if isinstance(sys.stderr, Heard) else ()

    def render(self, task: Task) -> Text:
        code = machine_code(self._expected, self._since_s)
        found = code.functions - self._before
        if code.going_on and code.missing_s > 0:
            return Text(f"compiling kernels, once: about {spoken(code.missing_s)} left")
        return Text(f"{found} function{'s' if found > 1 else ''} compiled" if found else "")


class Bar(AbstractContextManager):
    """A bar that fills as runs finish, with elapsed and remaining time."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            _Left(),
            TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
            _Compiled(),
            console=console,
            expand=True,  # a long name of a run is cut, not the bar
        )
        self._task, self._phase = self._progress.add_task("", total=None, began=0.0, kept=0), ""

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *error) -> None:
        self._progress.stop()

    def phase(self, text: str) -> None:
        self._phase = text
        self._progress.update(self._task, description=text)

    def begin(self, runs: int) -> None:
        doing, now = self._phase or "compiling and running", self._progress.get_time()
        self._progress.reset(self._task, total=runs, description=doing, began=now, kept=0)

    def kept(self, runs: int) -> None:
        kept = self._progress.tasks[0].fields["kept"] + runs
        self._progress.update(self._task, advance=runs, kept=kept)
        if runs:
            self._progress.console.print(f"{runs} runs kept from before", markup=False, highlight=False)

    def on_finished(self, job: Job, record: Record) -> None:
        self._progress.update(self._task, advance=1, description=job.name)

    def at(self, text: str, share: float) -> None:
        self._progress.update(self._task, description=f"{text}, {percent_done(share)}" if share else text)

    def on_failed(self, job: Job, failure: Failure) -> None:
        self._progress.console.print(f"{job.name}: failed: {failure.message}\n{failure.details}", markup=False)


def watcher() -> Lines | Bar:
    console = Console(stderr=True)
    return Bar(console) if console.is_terminal else Lines(sys.stderr)


@contextmanager
def resumes(folder: Path) -> Iterator[None]:
    """A part of a command that keeps finished runs in ``folder``. Where Ctrl-C ends it, `archsim.cli.main` says so."""
    try:
        yield
    except KeyboardInterrupt:
        kept = f"Finished runs are kept in {folder}. The same command resumes there."
        raise KeyboardInterrupt(kept) from None


@contextmanager
def study(folder: Path) -> Iterator[Lines | Bar]:
    """`resumes`, with a watcher of the runs."""
    with resumes(folder), watcher() as watching:
        yield watching
