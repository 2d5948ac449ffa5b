"""A measuring session: measures the missing points one by one, with progress, and reports the points left out."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from archsim.base.files import write_text
from archsim.model.spec import ModelSpec
from calibration.measure.backend import Backend, MeasuredMachine, MeasureError, Point, PointError
from calibration.measure.points import PLANS
from calibration.measure.recording import Recording

MANIFEST = "manifest.json"
MOST_REASONS = 10  # reported per table
WORD_EVERY_S = 30.0  # progress interval without a terminal


@dataclass
class SessionTally:
    """Numbers of points of a table kept from earlier calls, measured now, and left out (reason → number)."""

    kind: str
    kept: int = 0
    measured: int = 0
    left_out: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.measured} measured, {self.kept} kept from earlier calls"]
        reasons = sorted(self.left_out.items(), key=lambda item: -item[1])
        lines += [f"  left out {count} points: {reason}" for reason, count in reasons[:MOST_REASONS]]
        if len(reasons) > MOST_REASONS:
            lines.append(f"  left out {sum(count for _, count in reasons[MOST_REASONS:])} points for other reasons")
        return "\n".join(lines)


def measure(
    backend: Backend, kinds: Sequence[str], models: Sequence[ModelSpec], out: Path, run_id: str, console: Console
) -> list[SessionTally]:
    """Measure the missing points of some tables into ``out/<kind>.csv``. Raises MeasureError."""
    tallies = []
    for kind in kinds:
        recording = Recording(out, kind, run_id, backend.machine)
        write_manifest(out, run_id, backend.machine)
        try:
            points = list(PLANS[kind](models, backend.machine.gpus))
            tallies.append(_measure_kind(backend, kind, points, recording, console))
        finally:
            recording.close()
        console.print(str(tallies[-1]), highlight=False, markup=False)
    return tallies


def _measure_kind(
    backend: Backend, kind: str, points: list[Point], recording: Recording, console: Console
) -> SessionTally:
    missing = [point for point in points if not recording.has(point)]
    tally = SessionTally(kind, kept=len(points) - len(missing))
    for point in _show_progress(kind, missing, console):
        try:
            recording.add(point, backend.time(kind, point))
            tally.measured += 1
        except PointError as reason:
            tally.left_out[str(reason)] = tally.left_out.get(str(reason), 0) + 1
    return tally


def _show_progress(kind: str, points: list[Point], console: Console) -> Iterator[Point]:
    """The points one by one, with a progress bar on a terminal, else a line now and then."""
    if console.is_terminal:
        columns = (TextColumn(kind), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"))
        with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
            yield from progress.track(points, description=kind)
        return
    began = reported = time.monotonic()
    for done, point in enumerate(points):
        now = time.monotonic()
        if done and now - reported >= WORD_EVERY_S:
            left_min = (now - began) / done * (len(points) - done) / 60
            console.print(f"{kind}: {done} of {len(points)}, about {left_min:.0f} min left", highlight=False)
            reported = now
        yield point


def write_manifest(out: Path, run_id: str, machine: MeasuredMachine) -> None:
    """``manifest.json``: run_id → machine. Raises MeasureError if an existing one is unreadable."""
    path = out / MANIFEST
    try:
        runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise MeasureError(f"{path}: {error}. Remove it, or use another folder") from error
    write_text(path, json.dumps(runs | {run_id: asdict(machine)}, indent=2, sort_keys=True) + "\n")
