"""Lines of a CSV file whose faults are reported with file, line, column and what was expected."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from archsim.base.errors import ArchsimError


class CsvLine(NamedTuple):
    """A line of a CSV file. Its members raise ``error`` for a cell that is not what was asked for."""

    file: Path
    line: int
    cells: Mapping[str, str]
    error: type[ArchsimError]

    def text(self, column: str, among: Iterable[str] = ()) -> str:
        value = self.cells[column].strip()
        known = tuple(among)
        if known and value not in known:
            raise self.fault(column, f"expected one of {', '.join(known)}")
        return value

    def number(self, column: str, least: float = 0.0, more: bool = True, whole: bool = False) -> float:
        """A finite number above ``least`` (``more``), or from it on."""
        wanted = f"expected a{' whole' if whole else ''} number {'above' if more else 'from'} {least:g}"
        try:
            value = float(self.cells[column])
        except ValueError:
            raise self.fault(column, wanted) from None
        if not isfinite(value) or value < least or (more and value == least) or (whole and value != int(value)):
            raise self.fault(column, wanted)
        return value

    def count(self, column: str, zero: bool = False) -> int:
        return int(self.number(column, 0, not zero, whole=True))

    def fault(self, column: str, expected: str) -> ArchsimError:
        value = self.cells.get(column, "")
        return self.error(f"{self.file}: line {self.line}, column {column}: {value!r}; {expected}")

    def refusal(self, why: str) -> ArchsimError:
        return self.error(f"{self.file}: line {self.line}: {why}")


def csv_rows(file: Path, columns: tuple[str, ...], error: type[ArchsimError]) -> list[CsvLine]:
    """The lines of a file after its header, which must have ``columns``; none without a file. Raises ``error``."""
    if not file.is_file():
        return []
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream, restkey="+")
            given = reader.fieldnames or []
            lacking = [name for name in columns if name not in given]
            if lacking:
                raise error(f"{file}: line 1: no column {lacking[0]!r}; expected {', '.join(columns)}")
            found = []
            for cells in reader:
                if "+" in cells or None in cells.values():
                    raise error(
                        f"{file}: line {reader.line_num}: another number of cells than the header, which has "
                        f"{len(given)}"
                    )
                found.append(CsvLine(file, reader.line_num, cells, error))
            return found
    except (OSError, UnicodeDecodeError, csv.Error) as fault:
        raise error(f"{file}: not a readable CSV file ({fault})") from fault
