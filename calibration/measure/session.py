"""A measuring session: measures the missing points one by one, with progress, and reports the points left out."""

import csv
import io
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from archsim.base.files import write_text
from archsim.specs.model import ModelSpec
from calibration.measure.points import PLANS, Backend, MeasuredMachine, MeasuredTime, MeasureError, Point, PointError
from calibration.measurements.schema import TABLES

# ---- recording
# Writes rows to disk as soon as they are measured, so that a second call measures only the missing ones.

OF_DRIVER = ("p2p", "hostpath", "launch")  # tables of driver operations, independent of the PyTorch version


class Recording:
    """One CSV file of the schema, appended row by row; a truncated last line is removed on opening.

    Raises MeasureError if the file is from another GPU or has other columns.
    """

    def __init__(self, folder: Path, kind: str, run_id: str, machine: MeasuredMachine) -> None:
        self.path = folder / f"{kind}.csv"
        self._table, self._run_id, self._machine = TABLES[kind], run_id, machine
        self._columns = [column.name for column in self._table.columns]
        folder.mkdir(parents=True, exist_ok=True)
        self._done = self._read()
        self._stream = self.path.open("a", encoding="utf-8", newline="")
        if not self._stream.tell():
            self._write(self._columns)

    def close(self) -> None:
        self._stream.close()

    def has(self, point: Point) -> bool:
        """Whether this run has the point, from this call or an earlier one."""
        return self._key(self._row(point)) in self._done

    def add(self, point: Point, timing: MeasuredTime) -> None:
        """Append the row; it is on disk when this returns."""
        row = self._row(point) | {"iters": timing.repeats, **timing.notes}
        if self._table.value == "value":
            row["value"] = value_of(point, timing)
        else:
            row |= {f"latency_us_{name}": f"{getattr(timing, f'{name}_us'):.6g}" for name in ("median", "p10", "p90")}
        self._write([row.get(name, "") for name in self._columns])
        self._done.add(self._key(row))

    def _row(self, point: Point) -> dict:
        machine = self._machine
        library, version = (
            ("cuda", machine.driver) if self._table.kind in OF_DRIVER else (machine.library, machine.library_version)
        )
        return {
            "run_id": self._run_id,
            "gpu_name": machine.gpu_name,
            "library": library,
            "library_version": version,
            "driver": machine.driver,
            **point,
        }

    def _key(self, row: dict) -> tuple[str, ...]:
        return tuple(str(row.get(name, "")) for name in self._table.key)

    def _read(self) -> set[tuple[str, ...]]:
        if not self.path.exists():
            return set()
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            with self.path.open("r+b") as stream:
                stream.truncate(len(whole))
        reader = csv.DictReader(io.StringIO(whole.decode("utf-8")))
        if whole and reader.fieldnames != self._columns:
            raise MeasureError(f"{self.path}: its columns are not those of the schema. Use another folder")
        done = set()
        for row in reader:
            if row["gpu_name"] != self._machine.gpu_name:
                message = f"{self.path}: measured on {row['gpu_name']!r}, this is {self._machine.gpu_name!r}"
                raise MeasureError(f"{message}. Use another folder")
            done.add(self._key(row))
        return done

    def _write(self, cells: list) -> None:
        csv.writer(self._stream, lineterminator="\n").writerow(cells)
        self._stream.flush()
        os.fsync(self._stream.fileno())


def value_of(point: Point, timing: MeasuredTime) -> str:
    """Value of a memory point: bytes/s of one pass (read and write move the working set once), or ns per load."""
    if point["quantity"] == "latency_ns":
        return f"{timing.median_us * 1e3:.6g}"
    return f"{int(point['working_set_bytes']) / timing.median_us * 1e6:.6g}"


# ---- session

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
    for point in _watched(kind, missing, console):
        try:
            recording.add(point, backend.time(kind, point))
            tally.measured += 1
        except PointError as reason:
            tally.left_out[str(reason)] = tally.left_out.get(str(reason), 0) + 1
    return tally


def _watched(kind: str, points: list[Point], console: Console) -> Iterator[Point]:
    """The points one by one, with a progress bar on a terminal, else a line now and then; both estimate the
    time left.
    """
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
