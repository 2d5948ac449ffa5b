"""Reads and checks the measurements of a folder: bad files are refused, bad rows quarantined, with file and line."""

import csv
import gzip
import json
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from archsim.base.errors import ArchsimError
from archsim.base.files import UNREADABLE, unpacked
from archsim.laws.tables import newest_first
from calibration.measurements.adapters import LAYOUTS
from calibration.measurements.checks import (
    MeasurementProblem,
    Peaks,
    checked,
    without_congested,
    without_contradictions,
)
from calibration.measurements.schema import TABLES, UNKNOWN_VERSION, FileLayout, MeasurementKind, gpu_key

# ---- cells
# CSV files as text cells: lines with the wrong number of cells are quarantined, files that are not tables are
# refused.

PACKED = ".gz"
_LONGEST_HEADER = 1 << 20
SUFFIXES = (".csv", f".csv{PACKED}")


def is_table(file: Path) -> bool:
    """Whether a path is a file named like a CSV file."""
    return file.name.lower().endswith(SUFFIXES) and file.is_file()


def header_of(file: Path) -> list[str]:
    """The cells of the first line; none of a file that cannot be read."""
    opened = gzip.open if file.suffix.lower() == PACKED else open
    try:
        with opened(file, "rt", encoding="utf-8-sig", newline="") as stream:
            return _cells(stream.readline(_LONGEST_HEADER).rstrip("\r\n")) or []
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        return []


def read_cells(file: Path, label: str, problems: list[MeasurementProblem]) -> pd.DataFrame | None:
    """All cells of a CSV file, or of what nccl-tests print, as text; index = line number. Lines with the wrong number
    of cells are quarantined.
    """
    try:
        data = file.read_bytes()
        text = (unpacked(data, "gzip") if file.suffix.lower() == PACKED else data).decode("utf-8-sig")
    except UNREADABLE as error:
        problems.append(MeasurementProblem(label, 1, f"cannot be read as UTF-8 text: {error}", "refused"))
        return None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if is_log(file):
        return _log_cells(file, text, label, problems)
    written, whole = text.split("\n"), text.endswith("\n")
    header = _cells(written[0])
    if not header or len(set(header)) < len(header):
        problems.append(MeasurementProblem(label, 1, "no header, or a column appears twice", "refused"))
        return None
    rows, lines, last = [], [], len(written) - whole
    for line, given in enumerate(written[1:], 2):
        cells = _cells(given) if given.strip() else []
        if cells is None:
            problems.append(MeasurementProblem(label, line, "unbalanced quotation mark, or a cell that never ends"))
        elif len(cells) == len(header) and (line < last or whole):
            rows.append(cells)
            lines.append(line)
        elif cells and len(cells) == len(header):
            problems.append(MeasurementProblem(label, line, "the last line has no line end: the file may be truncated"))
        elif cells:
            why = "the file is truncated here" if line == last else "cells missing or extra"
            problems.append(MeasurementProblem(label, line, f"{len(cells)} of {len(header)} cells: {why}"))
    return pd.DataFrame(rows, columns=header, index=pd.Index(lines, name="line"), dtype=object)


def _cells(line: str) -> list[str] | None:
    """The cells of one line; None if the line is malformed."""
    if '"' not in line:
        return line.split(",") if line else []
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error:
        return None


# ---- nccl_tests
# What the programs of NVIDIA's nccl-tests (and AMD's rccl-tests) print, as cells of ``collective.csv``: times out of
# place. A run begins with a header, and a file may have several. Versions differ in columns: older ones lack redop and
# root, and have ``error`` for ``#wrong`` (nccl-tests, src/common.cu).

LOGS = (".txt", ".log", ".out")
_HEAD = re.compile(r"#\s*(size\s+count\s+type\b.*)")
_PROGRAM = re.compile(r"(all_reduce|all_gather|alltoall|broadcast|reduce_scatter|reduce|sendrecv|gather|scatter)_perf")
_RANK = re.compile(r"#\s+Rank\s+(\d+).*\bon\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s+(.+)")
_LOG_COLUMNS = [
    "run_id", "gpu_name", "library", "library_version", "op", "num_gpus", "nodes", "bytes", "dtype",
    "latency_us_median",
]  # fmt: skip
_OPERATION = {"alltoall": "all_to_all", "sendrecv": "send_recv"}
_HALVES = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_SAME_RATE = 0.03  # of rates that are printed with three digits or more
_LEAST_RATE = 1.0  # GB/s, printed with three digits
_MOST_ERROR = 0.01  # of the old column error; sums of half-precision numbers are off by less


def is_log(file: Path) -> bool:
    """Whether a path is a file of nccl-tests' output."""
    if file.suffix.lower() not in LOGS or not file.is_file():
        return False
    with file.open("rb") as stream:
        return _HEAD.search(stream.read(_LONGEST_HEADER).decode("utf-8", "replace")) is not None


def _log_cells(file: Path, text: str, label: str, problems: list[MeasurementProblem]) -> pd.DataFrame | None:
    """As `read_cells`, in the columns of the schema."""
    named = _PROGRAM.search(file.stem)
    program, version, largest = named[1] if named else "", UNKNOWN_VERSION, 0
    ranks, hosts, gpus, columns = 0, set[str](), set[str](), list[str]()
    runs: dict[str, int] = {}
    rows, lines, size = [], [], 0

    def problem(line: int, reason: str, kind: str = "quarantined") -> None:
        problems.append(MeasurementProblem(label, line, reason, kind))

    def ended(line: int) -> None:
        if 0 < size < largest:
            problem(line, f"the sweep is truncated: it ends at {size:,} of {largest:,} bytes (maxBytes)", "warning")

    for line, given in enumerate(text.split("\n"), 1):
        written = re.sub(r"^\[\d+,\d+\]<std(out|err)>:", "", given).strip()
        if found := _PROGRAM.search(written):
            program = found[1]
        elif found := re.search(r"nccl-library=(\d+)", written):
            version = f"{int(found[1]) // 10000}.{int(found[1]) // 100 % 100}.{int(found[1]) % 100}"
        elif found := re.search(r"[NR]CCL version[ :]+([\d.]+)", written):
            version = found[1]
        if found := re.search(r"#\s*nThread.*maxBytes\s+(\d+)", written):
            ended(line - 1)
            largest, ranks, hosts, size = int(found[1]), 0, set(), 0
        elif found := _RANK.match(written):
            ranks = max(ranks, int(found[1]) + 1)
            hosts, gpus = hosts | {found[2]}, gpus | {found[3].strip()}
        elif found := _HEAD.match(written):
            columns, op = found[1].split(), _OPERATION.get(program, program)
            runs[op] = runs.get(op, 0) + 1
            if not program or not ranks:
                what = "no line names the program" if not program else "no line 'Rank ... on ... device'"
                problem(line, f"{what}; expected the whole output of nccl-tests, as all_reduce_perf.txt", "refused")
                return None
        elif columns and re.match(r"\d", written):
            cells = written.split()
            if len(cells) != len(columns):
                problem(line, f"{len(cells)} of {len(columns)} cells: the file is truncated here")
                continue
            row = dict(reversed(list(zip(columns, cells, strict=True))))  # the first of a name is out of place
            size = int(row["size"]) if row["size"].isdecimal() else size
            if why := _contradiction(op, ranks, row):
                problem(line, why)
            elif size:
                rows.append((str(runs[op]), min(gpus), "nccl", version, op, str(ranks), str(len(hosts)), row["size"],
                             row["type"], row["time"]))  # fmt: skip
                lines.append(line)
    ended(line)
    if len(gpus) > 1:
        problem(1, f"ranks on two GPUs: {', '.join(map(repr, sorted(gpus)))}", "refused")
        return None
    return pd.DataFrame(rows, index=pd.Index(lines, name="line"), columns=_LOG_COLUMNS, dtype=object)


def _contradiction(op: str, ranks: int, row: dict[str, str]) -> str:
    """Why the columns of a row cannot be of one measurement; '' if they can."""
    try:
        size, time, algorithm, bus = (float(row[name]) for name in ("size", "time", "algbw", "busbw"))
        wrong, error = (float(row.get(name, "0").replace("N/A", "0")) for name in ("#wrong", "error"))
    except (KeyError, ValueError):
        return "a size, time, algbw or busbw that is no number"
    if wrong or error > _MOST_ERROR:
        return f"#wrong: {wrong:g} values were not as expected" if wrong else f"error: {error:g}; expected 0"
    if not size or not time or algorithm < _LEAST_RATE:
        return ""
    if abs(size / time / 1e3 / algorithm - 1) > _SAME_RATE:
        return f"algbw: {algorithm:g} GB/s; {size:,.0f} bytes in {time:g} us are {size / time / 1e3:.4g}: another unit?"
    share = 2 * (ranks - 1) / ranks if op == "all_reduce" else (ranks - 1) / ranks if op in _HALVES else 1.0
    if abs(bus / algorithm - share) > _SAME_RATE:
        return f"busbw is {bus / algorithm:.3g} times algbw; expected {share:.3g}, of {op} on {ranks} ranks"
    return ""


# ---- machine
# Files that do not name the measured GPU: it is taken from the folder, from other files or the manifest.

MANIFEST = "manifest.json"  # {run_id: {"gpu_name": ..., "driver": ...}}, or a single such machine


def with_machine(raw: pd.DataFrame, file: Path, label: str, problems: list[MeasurementProblem]) -> pd.DataFrame | None:
    """Cells with ``gpu_name``, and ``driver`` if the folder names one; None, and a problem, if the
    folder names no GPU or several.
    """
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


# ---- swapped
# GEMM tables whose columns m and n are swapped.

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


# ---- reading

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
        rows = checked(rows, TABLES[layout.kind], label, problems, layout.of_user, peaks)
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
    """Figures as float64; rows with a cell that is not a number are quarantined (a unit in a cell
    would mean mixed units).
    """
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


# ---- sweeps
# Finds repetitions among runs: sweeps are pooled, duplicates counted once, versions that disagree kept separate.

MOST_DISAGREEMENT = 0.05  # median |log ratio| of two release candidates that still count as one version
SAME = " = "  # between the names of duplicate sweeps
LEAST_COMMON_POINTS = 20  # points, before two sweeps are compared
MOST_APART = 1.5  # ratio of the times of two sweeps at a point that are still averaged
# Of two sweeps of one version, the newer counts unless it is slower by more: two public ones are up to 1.52 apart
PLAINLY_SLOWER = 2.0


def release(version: str) -> str:
    """The release of a release candidate: '1.3.0rc10' → '1.3.0'."""
    found = re.match(r"(.*?\d)[.-]?rc\d", version)
    return found[1] if found else version


def table_of_sweeps(rows: pd.DataFrame, point: list[str], value: str) -> pd.DataFrame:
    """ln of the measured times: one column per sweep ('version/run'), one row per point; NaN where not measured.

    A sweep that equals another on all their common points is merged into it; the column is named 'one = other'.
    """
    names = rows["library_version"] + "/" + rows["run_id"]
    logs = np.log(rows[value].astype(float)).groupby([*(rows[name] for name in point), names.rename("sweep")]).median()
    sweeps = logs.unstack("sweep")
    order = sorted(sorted(sweeps.columns), key=lambda name: newest_first(name.partition("/")[0]), reverse=True)
    merged = pd.DataFrame(index=sweeps.index)
    for name in order:
        same = [kept for kept in merged if _is_copy(merged[kept], sweeps[name])]
        if same:
            merged[same[0]] = merged[same[0]].fillna(sweeps[name])
            merged = merged.rename(columns={same[0]: f"{same[0]}{SAME}{name}"})
        else:
            merged[name] = sweeps[name]
    return merged


def _is_copy(a: pd.Series, b: pd.Series) -> bool:
    both = (a - b).dropna()
    return len(both) >= LEAST_COMMON_POINTS and bool((both == 0).all())


def pools(rows: pd.DataFrame, point: list[str], value: str) -> list[tuple[str, pd.DataFrame]]:
    """(version, table of sweeps) for the rows of one library: sweeps of a release together, unless versions
    disagree. Repeats of one version stay together, as nothing names them apart: `consensus` is for those.
    """
    found = []
    for name, mine in rows.groupby(rows["library_version"].map(release), sort=True):
        left = table_of_sweeps(mine, point, value)
        pools = []
        while left.shape[1]:
            first = left.columns[0]
            alike = [
                column for column in left if _version(column) == _version(first) or _agree(left[first], left[column])
            ]
            pools.append(left[alike].dropna(how="all"))
            left = left.drop(columns=alike)
        found += [(name if len(pools) == 1 else _version(sweeps.columns[0]), sweeps) for sweeps in pools]
    return found


def _version(sweep: str) -> str:
    return sweep.partition("/")[0]


def _agree(a: pd.Series, b: pd.Series) -> bool:
    both = (a - b).dropna().abs()
    return len(both) < LEAST_COMMON_POINTS or float(both.median()) <= MOST_DISAGREEMENT


def off_the_others(sweeps: pd.DataFrame) -> pd.DataFrame:
    """Measured / median of the other sweeps - 1, by sweep; nan if there is no other."""
    found = {name: sweeps[name] - sweeps.drop(columns=name).median(axis=1) for name in sweeps}
    return np.expm1(pd.DataFrame(found, index=sweeps.index))


def repeatability(sweeps: pd.DataFrame) -> pd.Series:
    """Distance of a sweep from the median of the others, mean over sweeps; nan for a single sweep."""
    return off_the_others(sweeps).abs().mean(axis=1)


def consensus(sweeps: pd.DataFrame) -> pd.Series:
    """ln of the time at each point: the median over the sweeps that measured it.

    Sweeps that are over MOST_APART apart at a point are not averaged: the median is over those that agree with most
    others, of two that disagree the newer, or the faster one of a version if the newer is over PLAINLY_SLOWER: a
    throttled GPU is only slower. Columns are sweeps, the newest first.
    """
    found = sweeps.median(axis=1)
    kept = _kept(sweeps)
    found[kept.index] = sweeps.loc[kept.index].where(kept).median(axis=1)
    return found.dropna()


def note_of(sweeps: pd.DataFrame) -> str:
    """Where sweeps disagree, and which ones count there; '' if they agree everywhere."""
    kept = _kept(sweeps)
    if not len(kept):
        return ""
    apart = sweeps.loc[kept.index]
    times = np.exp((apart.max(axis=1) - apart.min(axis=1)).max())
    shared = int((sweeps.notna().sum(axis=1) > 1).sum())
    names = ", ".join(name for name in sweeps if kept[name].any())
    return (
        f"sweeps are over {MOST_APART:g} times apart at {len(kept)} of {shared} points ({times:.1f} times at most): "
        f"not averaged there, but as in {names}"
    )


def _kept(sweeps: pd.DataFrame) -> pd.DataFrame:
    """bool: which sweeps count, for each of the points at which sweeps are too far apart."""
    apart = sweeps[sweeps.max(axis=1) - sweeps.min(axis=1) > np.log(MOST_APART)]
    times = apart.to_numpy()
    near = np.abs(times[:, :, None] - times[:, None, :]) <= np.log(MOST_APART)  # point, sweep, other sweep
    others, point = near.sum(axis=2), np.arange(len(apart))
    most = others == others.max(axis=1, keepdims=True)
    newest = most.argmax(axis=1)  # the first, of those with most others
    version = np.array([name.partition("/")[0] for name in apart])
    fastest = np.where(most & (version == version[newest][:, None]), times, np.inf).argmin(axis=1)
    throttled = times[point, newest] - times[point, fastest] > np.log(PLAINLY_SLOWER)
    best = np.where(throttled, fastest, newest)
    return pd.DataFrame(near[point, best], index=apart.index, columns=apart.columns)


# ---- fittable
# GEMM tables of the user with too few points for a law: refused, or told.

LEAST_POINTS = 8  # two more than the law has parameters
LEAST_SIZES_OF_LAW = 3  # of m at one shape, before a law is known to follow m
LEAST_FITTED_SIZES = 5  # of m at each shape, before their corrections mean much
REMEDY = "measure more, for instance with `python -m calibration.measure gemm`"
_TABLE = ["gpu", "library", "release", "dtype", "quant_included", "groups"]


def fittable(measurements: Measurements) -> Measurements:
    """The measurements without the user's GEMM tables that no law can be judged on, and with what is told of them."""
    rows = measurements.table("gemm")
    own = rows["file"].isin(measurements.own).to_numpy(bool)
    refused, problems = np.zeros(len(rows), bool), list(measurements.problems)
    for at, found in _judged(rows[own]):
        problems += found
        refused[np.flatnonzero(own)[at]] = any(problem.kind == "refused" for problem in found)
    tables = {**measurements.tables, "gemm": rows[~refused].reset_index(drop=True)} if refused.any() else None
    return replace(measurements, tables=tables or measurements.tables, problems=problems)


def _judged(rows: pd.DataFrame) -> Iterator[tuple[np.ndarray, list[MeasurementProblem]]]:
    """(positions of the rows of a table, its problems) of the tables with too few points."""
    named = rows.assign(release=rows["library_version"].map(release))
    for (gpu, library, version, dtype, *_), at in named.groupby(_TABLE, sort=True).indices.items():
        mine = rows.iloc[at]
        points = mine[["m", "n", "k"]].drop_duplicates()
        sizes = points.groupby(["n", "k"])["m"].nunique()
        name = f"{gpu}, {library} {version}, {dtype}"
        most = sizes.max()
        lines = mine.groupby("file")["line"].min().items()
        if len(points) < LEAST_POINTS or most < LEAST_SIZES_OF_LAW:
            reason = (
                f"{name}: {len(points)} points, at most {most} sizes of m at a shape (n, k); no law can be judged with "
                f"fewer than {LEAST_POINTS} points, or than {LEAST_SIZES_OF_LAW} sizes: {REMEDY}"
            )
            yield at, [MeasurementProblem(file, int(line), reason, "refused") for file, line in lines]
        elif (sizes < LEAST_FITTED_SIZES).any():
            few = sizes[sizes < LEAST_FITTED_SIZES]
            n, k = few.index[0]
            reason = (
                f"{name}: {len(few)} of {len(sizes)} shapes have fewer than {LEAST_FITTED_SIZES} sizes of m "
                f"(n {n:g}, k {k:g} "
                f"has {few.iloc[0]}); between and beyond them, only the law predicts: {REMEDY}"
            )
            yield at, [MeasurementProblem(file, int(line), reason, "warning") for file, line in lines]
