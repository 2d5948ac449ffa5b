"""Reads and checks the measurements of a folder: bad files are refused, bad rows quarantined, with file and line."""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from archsim.base.errors import ArchsimError
from calibration.measurements.adapters import LAYOUTS
from calibration.measurements.cells import header_of, is_log, is_table, read_cells
from calibration.measurements.checks import check_rows, without_contradictions
from calibration.measurements.congested import without_congested
from calibration.measurements.layouts import UNKNOWN_VERSION, FileLayout
from calibration.measurements.peaks import Peaks
from calibration.measurements.schema import TABLES, MeasurementKind, MeasurementProblem, gpu_key

MANIFEST = "manifest.json"  # {run_id: {"gpu_name": ..., "driver": ...}}, or a single such machine


def with_machine(raw: pd.DataFrame, file: Path, label: str, problems: list[MeasurementProblem]) -> pd.DataFrame | None:
    """Cells with ``gpu_name`` (and ``driver``) of the folder; None, and a problem, for no GPU or several."""
    if "gpu_name" in raw:
        return raw
    machines = list(_machines(file))
    gpus = {gpu_key(machine["gpu_name"]): machine["gpu_name"] for machine in machines}
    if len(gpus) != 1:
        why = (
            f"the folder names several GPUs: {', '.join(map(repr, sorted(gpus.values())))}"
            if gpus
            else "no other file of the folder names the GPU"
        )
        remedy = (
            f'add the column, or {MANIFEST} with {{"gpu_name": "..."}}'
            if not gpus
            else "add the column, or use one folder per GPU"
        )
        problems.append(MeasurementProblem(label, 1, f"no column gpu_name, and {why}; {remedy}", "refused"))
        return None
    drivers = {machine.get("driver", "") for machine in machines} - {""}
    raw = raw.assign(gpu_name=next(iter(gpus.values())))
    return raw if "driver" in raw or len(drivers) != 1 else raw.assign(driver=drivers.pop())


def _machines(file: Path) -> Iterator[dict[str, str]]:
    """The machines named by the other tables and the manifest of a file's folder, each at least once."""
    for other in sorted(file.parent.iterdir()):
        if other != file and is_table(other):
            cells = read_cells(other, "", [])
            if cells is not None and "gpu_name" in cells:
                named = cells[[name for name in ("gpu_name", "driver") if name in cells]].drop_duplicates()
                yield from (machine for machine in named.to_dict("records") if gpu_key(machine["gpu_name"]))
    try:
        stated = json.loads((file.parent / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # missing or unreadable
        return
    for machine in [stated, *stated.values()] if isinstance(stated, dict) else []:
        if isinstance(machine, dict) and isinstance(machine.get("gpu_name"), str) and gpu_key(machine["gpu_name"]):
            yield {name: machine[name] for name in ("gpu_name", "driver") if isinstance(machine.get(name), str)}


WIDTH = 128  # of weights: features are multiples of it, and tokens are not
LEAST_SIZES = 4  # of a sweep over tokens
FEW_TOKENS = 64  # a sweep over tokens begins here or below; no expert is that narrow


def swapped_columns(rows: pd.DataFrame) -> str:
    """Why m (tokens) and n (output features) seem swapped in the rows of a file; '' if they do not.

    m has only widths of weights, and n takes several times as many values as m, small ones and odd ones among them.
    """
    sizes = rows[["m", "n", "k"]].astype(int).drop_duplicates()
    if (sizes["m"] % WIDTH).any() or not (sizes["n"] % WIDTH).any() or sizes["n"].min() > FEW_TOKENS:
        return ""
    along_m = sizes.groupby(["n", "k"])["m"].nunique().median()
    along_n = sizes.groupby(["m", "k"])["n"].nunique().median()
    if along_n < LEAST_SIZES or along_n < 2 * along_m:
        return ""
    widths = sorted(sizes["m"].unique())
    shown = ", ".join(f"{width}" for width in widths[:4]) + (", ..." if len(widths) > 4 else "")
    return (
        f"m is one of {len(widths)} widths of weights ({shown}), and n has {sizes['n'].nunique()} sizes from "
        f"{sizes['n'].min()} on: are the columns m (rows, tokens) and n (output features) swapped? Exchange their names"
    )


UNKNOWN_LAYOUT = "no known layout has these columns"
CASES = "cases.parquet"  # marks folders written by ``archsim calibrate --validate``, which have no measurements


class CalibrationError(ArchsimError):
    """Measurements or a calibration file cannot be used."""


@dataclass
class Measurements:
    """``tables``: kind → rows in the columns of the schema plus ``gpu`` (short name), ``file``, ``line``.

    ``skipped``: CSV file → why it is not read: unknown layout, or a layout without a law. ``own``: the files that the
    user measured; the others are public sets.
    """

    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    problems: list[MeasurementProblem] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)

    def table(self, kind: str, gpu: str | None = None) -> pd.DataFrame:
        """Rows of a kind (of one GPU); an empty frame with the schema's columns if there are none."""
        columns = [column.name for column in TABLES[kind].columns]
        rows = self.tables.get(kind, pd.DataFrame(columns=[*columns, "gpu", "file", "line"]))
        return rows if gpu is None else rows[rows["gpu"] == gpu].reset_index(drop=True)

    def gpus(self, kinds: tuple[str, ...] = tuple(TABLES)) -> list[str]:
        """Short names of the GPUs that have rows of these kinds."""
        return sorted({gpu for kind in kinds for gpu in self.table(kind)["gpu"].unique()})


# Section of a calibration → the measurements that it is fitted to.
KINDS = MappingProxyType(
    {
        "gemm": ("gemm", "quantisation", "memory"),
        "moe": ("moe",),
        "attention": ("attention",),
        "p2p": ("p2p",),
        "collectives": ("collective",),
        "pcie": ("hostpath",),
        "hbm": ("memory",),
        "launch": ("launch",),
    }
)


def kinds_of(sections: Sequence[str]) -> frozenset[str]:
    """The kinds of measurements behind sections; all of none."""
    return frozenset(kind for section in sections for kind in KINDS[section]) or frozenset(TABLES)


def read_measurements(
    path: str | Path, peaks: Peaks | None = None, kinds: Collection[str] = tuple(TABLES)
) -> Measurements:
    """All CSV files and outputs of nccl-tests below a folder (or one file). Raises CalibrationError if there are none.

    peaks: what no measurement exceeds; None: those of the datasheets. kinds: of measurements; files of others are not
    read.
    """
    path = Path(path)
    files = [path] if path.is_file() else sorted(filter(_may_hold_measurements, path.rglob("*")))
    if not files:
        why = "no CSV file in this folder, and no output of nccl-tests" if path.is_dir() else "no such file or folder"
        raise CalibrationError(f"{path}: {why}")
    found = Measurements()
    frames: dict[str, list[pd.DataFrame]] = {}
    for file in files:
        label = str(file.relative_to(path)) if path.is_dir() else str(file)
        for kind, rows in _read_file(file, label, peaks or Peaks(), kinds, found):
            frames.setdefault(kind, []).append(rows)
    for kind in (kind for kind in TABLES if kind in frames):
        rows, problems = without_contradictions(pd.concat(frames[kind], ignore_index=True), TABLES[kind])
        found.problems += problems
        if len(rows):
            found.tables[kind] = rows
    return found


def _may_hold_measurements(file: Path) -> bool:
    return (is_table(file) or is_log(file)) and not (file.parent / CASES).exists()


def _read_file(
    file: Path, label: str, peaks: Peaks, kinds: Collection[str], found: Measurements
) -> list[tuple[str, pd.DataFrame]]:
    """(kind, rows) of one file: several only for layouts of several kinds."""
    problems: list[MeasurementProblem] = []
    if not _may_be_of(file, kinds):
        return []
    raw = read_cells(file, label, problems)
    layouts = _layouts_of(raw, label, problems, found) if raw is not None else []
    count = 0 if raw is None else len(raw)
    if not layouts:  # problems of other files do not matter
        problems = [problem for problem in problems if problem.kind == "refused"]
    elif not count and not problems:
        problems.append(MeasurementProblem(label, 1, "a header and no rows", "warning"))
    if any(layout.of_user for layout in layouts):
        found.own.add(label)
        raw = with_machine(raw, file, label, problems)
    read = []
    for layout in layouts if raw is not None else []:
        rows = _rows_of(raw, layout, label, problems)
        rows = check_rows(rows, TABLES[layout.kind], label, problems, layout.of_user, peaks)
        if layout.kind == "gemm" and layout.of_user and len(rows) and (why := swapped_columns(rows)):
            problems.append(MeasurementProblem(label, 1, why, "refused"))
        if layout.kind == "collective" and len(rows):
            rows = without_congested(rows, problems)
        if len(rows):
            read.append((layout.kind, rows))
        elif layout.of_user and count:
            problems.append(MeasurementProblem(label, 1, "no row of this file can be used", "refused"))
    found.problems += sorted(set(problems), key=lambda problem: (problem.line, problem.reason))
    return [] if any(problem.kind == "refused" for problem in problems) else read


def _rows_of(raw: pd.DataFrame, layout: FileLayout, label: str, problems: list[MeasurementProblem]) -> pd.DataFrame:
    """The rows of a layout in the columns of the schema; unused rows and unknown versions are reported."""
    figures = _figures(raw, layout, label, problems)
    rows = layout.convert(figures.assign(file=Path(label).name))
    unused = figures.index.difference(rows.index)
    if layout.leaves_out and len(unused):
        reason = f"{len(unused)} rows from this line on are not used: {layout.leaves_out}"
        problems.append(MeasurementProblem(label, int(unused[0]), reason, "warning"))
    if layout.of_user and "library_version" not in raw and len(rows):
        nameless = rows.index[rows["library_version"] == UNKNOWN_VERSION]
        if len(nameless):
            reason = (
                f"no version of the library: recorded as {UNKNOWN_VERSION!r}, so different versions are fitted together"
            )
            problems.append(MeasurementProblem(label, int(nameless[0]), reason, "warning"))
    return rows


def _may_be_of(file: Path, kinds: Collection[str]) -> bool:
    """Whether a file may have measurements of these kinds: false only where its header tells another one."""
    if set(kinds) == set(TABLES):
        return True
    header = set(header_of(file))
    fitting = [
        layout for layout in (*map(_own_layout, TABLES.values()), *LAYOUTS) if header.issuperset(layout.required)
    ]
    most = max((len(layout.required) for layout in fitting), default=0)
    named = {layout.kind for layout in fitting if len(layout.required) == most}
    return not named or not named.isdisjoint(kinds)


def _own_layout(table: MeasurementKind) -> FileLayout:
    return FileLayout(table.kind, table.kind, table.required, table.figures, lambda rows: rows.copy(), of_user=True)


def _layouts_of(
    raw: pd.DataFrame, label: str, problems: list[MeasurementProblem], found: Measurements
) -> list[FileLayout]:
    """The layouts whose columns the file has. A file that nearly matches one is refused, others are skipped."""
    header = set(raw.columns)
    known = [*map(_own_layout, TABLES.values()), *LAYOUTS]
    fitting = [layout for layout in known if header.issuperset(layout.required)]
    if fitting:
        most = max(len(layout.required) for layout in fitting)
        odd = _odd_header(raw, [layout for layout in known if len(layout.required) > most])
        if odd:
            problems.append(MeasurementProblem(label, 1, odd, "refused"))
        largest = [layout for layout in fitting if len(layout.required) == most and not odd]
        found.skipped.update((label, layout.skip) for layout in largest if layout.skip)
        return [layout for layout in largest if not layout.skip]
    odd = _odd_header(raw, known)
    if odd:
        problems.append(MeasurementProblem(label, 1, odd, "refused"))
        return []
    nearest = max(
        (layout for layout in known if not layout.skip),
        key=lambda layout: len(header & set(layout.required)) / len(layout.required),
    )
    missing = [name for name in nearest.required if name not in header]
    if len(missing) <= max(1, len(nearest.required) // 4):
        extra = sorted(header - set(nearest.required))
        hint = f"; it has {', '.join(extra[:4])}" if extra else ""
        problems.append(
            MeasurementProblem(
                label, 1, f"layout {nearest.name}: column {', '.join(missing)} is missing{hint}", "refused"
            )
        )
    else:
        found.skipped[label] = UNKNOWN_LAYOUT
    return []


def _odd_header(raw: pd.DataFrame, known: list[FileLayout]) -> str:
    """What is wrong with a header that matches a layout except for its spelling; '' if it does not."""
    if len(raw.columns) == 1 and any(mark in raw.columns[0] for mark in ";\t|"):
        return f"columns are not separated by commas: {raw.columns[0][:60]!r}"
    written = {name.strip().lower(): name for name in raw.columns}
    for layout in known:
        if set(layout.required) <= set(written):
            name = next(name for name in layout.required if written[name] != name)
            return f"layout {layout.name}: expected the column {name!r}, not {written[name]!r}"
    return ""


def _figures(raw: pd.DataFrame, layout: FileLayout, label: str, problems: list[MeasurementProblem]) -> pd.DataFrame:
    """Figures as float64; rows with a cell that is not a number (a unit: mixed units) are quarantined."""
    raw, bad = raw.copy(), pd.Series(False, index=raw.index)
    for name in layout.figures:
        if name not in raw:
            continue
        cells = raw[name].str.strip()
        values = pd.to_numeric(cells, errors="coerce").astype(float)
        empty = (cells == "") & (name in layout.may_be_empty or layout.name in TABLES and name not in layout.required)
        wrong = ~np.isfinite(values) & ~empty
        for line, cell in cells[wrong].items():
            reason = f"{name}: {cell!r} is not a plain number; the unit is that of the column"
            problems.append(MeasurementProblem(label, line, reason))
        raw[name], bad = values, bad | wrong
    return raw[~bad]
