"""Writes rows to disk as soon as they are measured, so that a second call measures only the missing ones."""

import csv
import io
import os
from pathlib import Path

from calibration.measure.backend import MeasuredMachine, MeasuredTime, MeasureError, Point
from calibration.measurements.schema import TABLES

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
