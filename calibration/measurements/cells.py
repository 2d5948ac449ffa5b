"""Cells of a file of measurements: a table in any of the formats that are read, or the log of nccl-tests."""

import csv
import gzip
import re
import zlib
from pathlib import Path

import pandas as pd

from archsim.base.packed_files import UNREADABLE, decompress
from calibration.measurements.layouts import UNKNOWN_VERSION
from calibration.measurements.schema import MeasurementProblem

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
    """All cells of a CSV file, or of nccl-tests' prints, as text by line; wrong numbers of cells are quarantined."""
    try:
        data = file.read_bytes()
        text = (decompress(data, "gzip") if file.suffix.lower() == PACKED else data).decode("utf-8-sig")
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

    def end_sweep(line: int) -> None:
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
            end_sweep(line - 1)
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
    end_sweep(line)
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
