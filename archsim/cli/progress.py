"""Progress of a sweep, on stderr: a bar with an estimate in a terminal; lines elsewhere, few even for many runs."""

from __future__ import annotations

import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column
from rich.text import Text

from archsim.base.code_digest import machine_code
from archsim.base.errors import spoken

if TYPE_CHECKING:
    from pathlib import Path

    from archsim.runs.pool import Failure
    from archsim.runs.run import Job, Record


# ---- heartbeat
# A line on stderr whenever a command has said nothing there for a while: what it does, and for how long.
#
# In a terminal it is one line, written over until the command says something itself. Elsewhere each has its own: the
# first comes within three seconds, and later ones are rarer the longer the same thing goes on.

SILENT_S = 2.0  # without a line, so that no three seconds are silent on a busy machine either
LONG_S, LONG_SILENT_S = 600.0, 15.0  # after ten minutes, lines are rarer
RARER, RAREST_S = 4.0, 30.0  # of a pipe: silent for a part of the time that the same thing goes on, up to so long
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
            self.clear()
            return self._stream.write(text)

    def begin(self, line: str) -> None:
        """What goes on from now, as if ``line`` had been written."""
        with self._lock:
            self._line, self._line_s = line, self._clock()

    def clear(self) -> None:
        """Erase the line that stands in a terminal, so that others can write there."""
        with self._lock:
            if self._standing:
                self._standing = False
                self._stream.write(_CLEARED)
                self._stream.flush()

    def beat(self) -> None:
        """Write a line if the stream was silent for too long."""
        with self._lock:
            now = self._clock()
            silent_s = SILENT_S if now - self._began_s < LONG_S else LONG_SILENT_S
            if not self._terminal:
                silent_s = min(max(silent_s, (now - self._line_s) / RARER), RAREST_S)
            if now - self._last_s < silent_s:
                return
            self._last_s = now
            line = self._line.removesuffix(" ...")
            told = self.doing() if self.doing else f"{line}, {spoken(now - self._line_s)} so far"
            code = machine_code(self.expected, self._since_s, self.processes)
            compiled, waits = code.functions - self._compiled, code.going_on and code.missing_s > 0
            if compiled or waits:
                told += f"; compiling kernels, once ({compiled} so far)"
            if waits:
                told += f": about {spoken(code.missing_s)} left"
            if self._terminal:
                self.clear()
                self._stream.write(f"  {told}"[: shutil.get_terminal_size().columns - 1])
                self._standing = True
            else:
                self._stream.write(f"  {told}\n")
            self._stream.flush()


def doing(text: str) -> None:
    """From now on, the line on silence says ``text``."""
    if isinstance(sys.stderr, Heard):
        sys.stderr.doing = lambda: text


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


# ---- progress

FEW = 200  # runs that get a line each
FIRST_S, INTERVAL_S = 5.0, 15.0  # of lines on the state
RUNNING, LOADING = "running", "loading"  # phases: of runs, if no other was named; of what precedes them
PART_S = 2.0  # of lines on one run that takes long
ENOUGH = 5  # runs for an estimate: the first ones compile and generate traffic for all


class Lines(AbstractContextManager):
    """One plain line per run; of more than ``FEW`` runs, a line on the state at intervals, the first an estimate.

    clock: seconds since any moment.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._runs = self._done = self._kept = 0
        self._began_s = self._said_s = clock()
        self._parts: dict[str, tuple[float, float]] = {}  # job → when its part began, and the share that is done
        self._told_s, self._part = 0.0, RUNNING
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
        self._said_s = self._began_s + FIRST_S - INTERVAL_S

    def kept(self, runs: int) -> None:
        self._done += runs
        self._kept += runs
        if runs:
            self._print(f"{runs} of {self._runs} runs kept from before")

    def finished(self, job: Job, record: Record) -> None:
        self._done += 1
        if self._runs <= FEW:
            summary, wall_s = job.summary(record["row"]), record["host"]["wall_s"]
            self._print(f"[{self._done}/{self._runs}] {job.name}: {summary}, simulated in {wall_s:.1f} s")
        elif self._clock() - self._said_s >= INTERVAL_S or self._done == self._runs:
            self._said_s = self._clock()
            self._print(self._state(self._phase))

    def failed(self, job: Job, failure: Failure) -> None:
        self._print(f"{job.name}: failed: {failure.message}")
        if failure.details:
            self._print(failure.details)

    def at(self, text: str, share: float) -> None:
        now, job = self._clock(), text.rpartition(": ")[0]  # several may go on at once
        began_s, before = self._parts.get(job, (now, 0.0))
        began_s = now if share < before or share == 0 else began_s
        self._parts[job], self._part = (began_s, share), text
        if not share or now - self._told_s < PART_S:  # what has only begun is told by the line on silence
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

    def finished(self, job: Job, record: Record) -> None:
        self._progress.update(self._task, advance=1, description=job.name)

    def at(self, text: str, share: float) -> None:
        self._progress.update(self._task, description=f"{text}, {percent_done(share)}" if share else text)

    def failed(self, job: Job, failure: Failure) -> None:
        self._progress.console.print(f"{job.name}: failed: {failure.message}\n{failure.details}", markup=False)


def watcher() -> Lines | Bar:
    """A bar if stderr is a terminal, else lines."""
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


# ---- import_progress
# Progress of an import, on stderr: one updated line in a terminal, a plain line every few seconds elsewhere.

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
    """A counter if stderr is a terminal, else lines."""
    from rich.console import Console

    console = Console(stderr=True)
    return Counter(console) if console.is_terminal else ImportLines()
