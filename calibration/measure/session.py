"""A measuring session: the points that are missing, one after the other, with progress and a word on what is left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from archsim.files import write_text
from archsim.specs.model import ModelSpec
from calibration.measure.backend import Backend, Machine, Point, PointError
from calibration.measure.points import PLANS
from calibration.measure.recording import Recording

MANIFEST = "manifest.json"


@dataclass
class Tally:
    """How many points of a table were there from before, were measured now, and were left out (reason → number)."""

    kind: str
    kept: int = 0
    measured: int = 0
    left_out: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.measured} measured, {self.kept} from before"]
        lines += [f"  left out {count} points: {reason}" for reason, count in self.left_out.items()]
        return "\n".join(lines)


def measure(
    backend: Backend, kinds: Sequence[str], models: Sequence[ModelSpec], out: Path, run_id: str, console: Console
) -> list[Tally]:
    """Measure what is missing of some tables into ``out/<kind>.csv``. Raises MeasureError."""
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


def _measure_kind(backend: Backend, kind: str, points: list[Point], recording: Recording, console: Console) -> Tally:
    missing = [point for point in points if not recording.has(point)]
    tally = Tally(kind, kept=len(points) - len(missing))
    columns = (TextColumn(kind), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"))
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        for point in progress.track(missing, description=kind):
            try:
                recording.add(point, backend.time(kind, point))
                tally.measured += 1
            except PointError as reason:
                tally.left_out[str(reason)] = tally.left_out.get(str(reason), 0) + 1
    return tally


def write_manifest(out: Path, run_id: str, machine: Machine) -> None:
    """``manifest.json``: run_id → machine."""
    path = out / MANIFEST
    runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    write_text(path, json.dumps(runs | {run_id: asdict(machine)}, indent=2, sort_keys=True) + "\n")
