"""Measurements of a folder, checked: what is wrong is refused (a file) or quarantined (a row), with file and line."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from archsim.specs.errors import ArchsimError
from calibration.adapters import LAYOUTS
from calibration.layouts import Layout
from calibration.schema import TABLES, Table, gpu_key

SIZES = {
    "gemm": "m",
    "moe": "tokens_total",
    "p2p": "bytes",
    "collective": "bytes",
    "hostpath": "bytes",
    "quantisation": "m",
}
MOST_SPREAD_OF_COPIES = 1.2  # two rows for one point of one run may differ by this factor
UNIT_SLIP = 100.0  # a time this many times off its neighbours in size is in another unit
CASES = "cases.parquet"  # lies in every folder that ``archsim validate`` has written, which holds no measurements
CUT_OFF = 0.5  # a last series with less than this share of the usual sizes was cut off


class CalibrationError(ArchsimError):
    """Measurements or a calibration file cannot be used."""


@dataclass(frozen=True)
class Problem:
    """``kind``: 'refused' (the file is not used), 'quarantined' (the row is not used) or 'warning'."""

    file: str
    line: int
    reason: str
    kind: str = "quarantined"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}: {self.reason}"


@dataclass
class Measurements:
    """``tables``: kind → rows in the columns of the schema plus ``gpu`` (short name), ``file``, ``line``.

    ``skipped``: CSV files of no known layout.
    """

    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def table(self, kind: str, gpu: str | None = None) -> pd.DataFrame:
        """Rows of a kind (of one GPU); an empty frame with the schema's columns where there are none."""
        columns = [column.name for column in TABLES[kind].columns]
        rows = self.tables.get(kind, pd.DataFrame(columns=[*columns, "gpu", "file", "line"]))
        return rows if gpu is None else rows[rows["gpu"] == gpu].reset_index(drop=True)

    def gpus(self, kinds: tuple[str, ...] = tuple(TABLES)) -> list[str]:
        """Short names of the GPUs that have rows of these kinds."""
        return sorted({gpu for kind in kinds for gpu in self.table(kind)["gpu"].unique()})


def read_measurements(path: str | Path) -> Measurements:
    """All CSV files below a folder (or one file). Raises CalibrationError where there is nothing to read."""
    path = Path(path)
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*.csv") if not (file.parent / CASES).exists())
    if not files:
        raise CalibrationError(f"{path}: {'no CSV file in it' if path.is_dir() else 'no such file or folder'}")
    found = Measurements()
    frames: dict[str, list[pd.DataFrame]] = {}
    for file in files:
        label = str(file.relative_to(path)) if path.is_dir() else str(file)
        for kind, rows in _read_file(file, label, found):
            frames.setdefault(kind, []).append(rows)
    found.tables = {kind: pd.concat(frames[kind], ignore_index=True) for kind in TABLES if kind in frames}
    return found


def _read_file(file: Path, label: str, found: Measurements) -> list[tuple[str, pd.DataFrame]]:
    """(kind, rows) of one file: several only for layouts of several kinds."""
    problems: list[Problem] = []
    raw = _read_cells(file, label, problems)
    layouts = _layouts_of(raw, label, problems, found) if raw is not None else []
    read = []
    for layout in layouts:
        figures = _figures(raw, layout, label, problems)
        rows = layout.convert(figures)
        unused = figures.index.difference(rows.index)
        if layout.leaves_out and len(unused):
            reason = f"{len(unused)} rows from here on are not used: {layout.leaves_out}"
            problems.append(Problem(label, int(unused[0]), reason, "warning"))
        rows = _checked(rows, TABLES[layout.kind], label, problems, own=layout.name in TABLES)
        if len(rows):
            read.append((layout.kind, rows))
    found.problems += sorted(set(problems), key=lambda problem: (problem.line, problem.reason))
    return [] if any(problem.kind == "refused" for problem in problems) else read


def _read_cells(file: Path, label: str, problems: list[Problem]) -> pd.DataFrame | None:
    """All cells as text; index = line number. Lines of a wrong width are quarantined."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        problems.append(Problem(label, 1, f"cannot be read as UTF-8 text: {error}", "refused"))
        return None
    reader = csv.reader(text.splitlines())
    header = next(reader, None)
    if not header or len(set(header)) < len(header):
        problems.append(Problem(label, 1, "no header, or a column twice", "refused"))
        return None
    rows, lines, last = [], [], text.count("\n") + 1
    for cells in reader:
        if len(cells) == len(header) and (reader.line_num < last or text.endswith("\n")):
            rows.append(cells)
            lines.append(reader.line_num)
        elif cells and len(cells) == len(header):
            problems.append(Problem(label, reader.line_num, "the last line has no line end: the file may be cut off"))
        elif cells:
            why = "the file is cut off here" if reader.line_num >= last - 1 else "a cell is missing or too many"
            problems.append(Problem(label, reader.line_num, f"{len(cells)} of {len(header)} cells: {why}"))
    return pd.DataFrame(rows, columns=header, index=pd.Index(lines, name="line"), dtype=object)


def _own_layout(table: Table) -> Layout:
    return Layout(table.kind, table.kind, table.required, table.figures, lambda rows: rows.copy())


def _layouts_of(raw: pd.DataFrame, label: str, problems: list[Problem], found: Measurements) -> list[Layout]:
    """The layouts whose columns the file has. A file that nearly is one is refused, others are skipped."""
    header = set(raw.columns)
    known = [*map(_own_layout, TABLES.values()), *LAYOUTS]
    fitting = [layout for layout in known if header.issuperset(layout.required)]
    if fitting:
        most = max(len(layout.required) for layout in fitting)
        return [layout for layout in fitting if len(layout.required) == most]
    odd = _odd_header(raw, known)
    if odd:
        problems.append(Problem(label, 1, odd, "refused"))
        return []
    nearest = max(known, key=lambda layout: len(header & set(layout.required)) / len(layout.required))
    missing = [name for name in nearest.required if name not in header]
    if len(missing) <= max(1, len(nearest.required) // 4):
        extra = sorted(header - set(nearest.required))
        hint = f"; it has {', '.join(extra[:4])}" if extra else ""
        problems.append(
            Problem(label, 1, f"layout {nearest.name}: column {', '.join(missing)} is missing{hint}", "refused")
        )
    else:
        found.skipped.append(label)
    return []


def _odd_header(raw: pd.DataFrame, known: list[Layout]) -> str:
    """What is wrong with a header that would fit a layout if it were written in another way; '' if it would not."""
    if len(raw.columns) == 1 and any(mark in raw.columns[0] for mark in ";\t|"):
        return f"columns are not separated by commas: {raw.columns[0][:60]!r}"
    written = {name.strip().lower(): name for name in raw.columns}
    for layout in known:
        if set(layout.required) <= set(written):
            name = next(name for name in layout.required if written[name] != name)
            return f"layout {layout.name}: expected the column {name!r}, not {written[name]!r}"
    return ""


def _figures(raw: pd.DataFrame, layout: Layout, label: str, problems: list[Problem]) -> pd.DataFrame:
    """Figures as float64; rows where one is no number are quarantined (a unit behind it would mean mixed units)."""
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
            problems.append(Problem(label, line, reason))
        raw[name], bad = values, bad | wrong
    return raw[~bad]


def _checked(rows: pd.DataFrame, table: Table, label: str, problems: list[Problem], own: bool) -> pd.DataFrame:
    """Rows within what the columns allow, without copies, with ``gpu``, ``file`` and ``line``."""
    bad = np.zeros(len(rows), bool)

    def quarantine(wrong: np.ndarray, reason) -> None:
        for at in np.flatnonzero(wrong & ~bad):
            problems.append(Problem(label, int(rows.index[at]), reason(rows.iloc[at])))
        bad[wrong] = True

    for column in table.columns:
        if column.name not in rows:
            rows = rows.assign(**{column.name: np.nan if column.is_figure else ""})
        wrong = _outside(rows[column.name], column)
        quarantine(wrong, lambda row, name=column.name: f"{name}: {_shown(row[name])} is out of range")
    rows, bad = rows[~bad], bad[~bad]
    if own:
        _refuse_second_gpu(rows, label, problems)
    size = SIZES.get(table.kind)
    series = [name for name in table.key if name != size]
    if size and len(rows):
        quarantine(_unit_slips(rows, series, size, table.value), lambda row: _slip(table.value, row))
        rows, bad = rows[~bad], bad[~bad]
        _warn_cut_off(rows, series, size, label, problems)
    quarantine(_disagreeing(rows, table), lambda row: f"another row for the same point disagrees: {row[table.value]:g}")
    rows = rows[~bad].drop_duplicates(list(table.key))
    gpu = rows["gpu_name"].map({name: gpu_key(name) for name in rows["gpu_name"].unique()})
    names = [column.name for column in table.columns]
    return rows[names].assign(gpu=gpu, file=label, line=rows.index).reset_index(drop=True)


def _shown(cell) -> str:
    return f"{cell:g}" if isinstance(cell, float) else repr(cell)


def _slip(name: str, row: pd.Series) -> str:
    return f"{name}: {row[name]:g} is more than {UNIT_SLIP:g} times off its neighbours: another unit?"


def _outside(cells: pd.Series, column) -> np.ndarray:
    if isinstance(column.kind, tuple):
        return ~cells.isin(column.kind).to_numpy()
    if not column.is_figure:
        return np.zeros(len(cells), bool) if not column.required else (cells == "").to_numpy()
    values = cells.to_numpy(float)
    below = values < 0 if column.kind in ("count", "number") else values <= 0
    broken = (
        (values % 1 != 0) & np.isfinite(values) if column.kind in ("count", "size") else np.zeros(len(values), bool)
    )
    return below | broken | (np.isnan(values) if column.required else False)


def _refuse_second_gpu(rows: pd.DataFrame, label: str, problems: list[Problem]) -> None:
    other = rows["gpu_name"] != rows["gpu_name"].iloc[0] if len(rows) else pd.Series(dtype=bool)
    if other.any():
        line = int(other.idxmax())
        names = f"{rows['gpu_name'].iloc[0]!r} and {rows['gpu_name'][line]!r}"
        problems.append(Problem(label, line, f"two GPUs in one file: {names}", "refused"))


def _unit_slips(rows: pd.DataFrame, series: list[str], size: str, value: str) -> np.ndarray:
    """Rows whose time, and whose time per size, is far off the median of the five around it in size."""
    group = rows.groupby(series, dropna=False, sort=False).ngroup().to_numpy()
    sizes, times = rows[size].to_numpy(float), rows[value].to_numpy(float)
    order = np.lexsort((sizes, group))
    off = [_off_neighbours(np.log(figures)[order], group[order]) for figures in (times, times / sizes)]
    slips = np.empty(len(rows), bool)
    slips[order] = np.minimum(*off) > np.log(UNIT_SLIP)
    return slips


def _off_neighbours(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Distance of each value to the median of the five around it, fewer at the ends of its group."""
    window = np.full((5, len(values)), np.nan)
    place = np.arange(len(values))
    for row, shift in zip(window, range(-2, 3), strict=True):
        other = np.clip(place + shift, 0, len(values) - 1)
        there = (other == place + shift) & (group[other] == group)
        row[there] = values[other[there]]
    return np.abs(values - np.nanmedian(window, axis=0))


def _warn_cut_off(rows: pd.DataFrame, series: list[str], size: str, label: str, problems: list[Problem]) -> None:
    """A last series that stops at a fraction of the sizes of the others of its run."""
    number = rows.groupby(series, dropna=False, sort=False).ngroup()
    last = number.iloc[-1]
    counts = number[rows["run_id"] == rows["run_id"].iloc[-1]].value_counts()
    mine = rows[number == last]
    largest = rows.loc[rows["run_id"] == rows["run_id"].iloc[-1], size].max()
    if len(counts) > 2 and len(mine) < CUT_OFF * counts.median() and mine[size].max() < largest:
        reason = f"the sweep seems cut off: {len(mine)} sizes in its last series, {counts.median():g} in others"
        problems.append(Problem(label, int(rows.index[-1]), reason, "warning"))


def _disagreeing(rows: pd.DataFrame, table: Table) -> np.ndarray:
    values = rows.reset_index(drop=True).groupby(list(table.key), dropna=False, sort=False)[table.value]
    spread = values.transform("max") / values.transform("min")
    return (spread > MOST_SPREAD_OF_COPIES).to_numpy(bool)
