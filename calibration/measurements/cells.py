"""CSV files as text cells: lines with the wrong number of cells are quarantined, files that are not tables are
refused.
"""

import csv
import gzip
import zlib
from pathlib import Path

import pandas as pd

from archsim.base.archives import UNREADABLE, unpacked
from calibration.measurements.checking import Problem

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


def read_cells(file: Path, label: str, problems: list[Problem]) -> pd.DataFrame | None:
    """All cells as text; index = line number. Lines with the wrong number of cells are quarantined."""
    try:
        data = file.read_bytes()
        text = (unpacked(data, "gzip") if file.suffix.lower() == PACKED else data).decode("utf-8-sig")
    except UNREADABLE as error:
        problems.append(Problem(label, 1, f"cannot be read as UTF-8 text: {error}", "refused"))
        return None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    written, whole = text.split("\n"), text.endswith("\n")
    header = _cells(written[0])
    if not header or len(set(header)) < len(header):
        problems.append(Problem(label, 1, "no header, or a column appears twice", "refused"))
        return None
    rows, lines, last = [], [], len(written) - whole
    for line, given in enumerate(written[1:], 2):
        cells = _cells(given) if given.strip() else []
        if cells is None:
            problems.append(Problem(label, line, "unbalanced quotation mark, or a cell that never ends"))
        elif len(cells) == len(header) and (line < last or whole):
            rows.append(cells)
            lines.append(line)
        elif cells and len(cells) == len(header):
            problems.append(Problem(label, line, "the last line has no line end: the file may be truncated"))
        elif cells:
            why = "the file is truncated here" if line == last else "cells missing or extra"
            problems.append(Problem(label, line, f"{len(cells)} of {len(header)} cells: {why}"))
    return pd.DataFrame(rows, columns=header, index=pd.Index(lines, name="line"), dtype=object)


def _cells(line: str) -> list[str] | None:
    """The cells of one line; None if the line is malformed."""
    if '"' not in line:
        return line.split(",") if line else []
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error:
        return None
