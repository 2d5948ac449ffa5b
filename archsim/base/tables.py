"""A table with declared columns, as CSV and Parquet: equal tables are equal files, byte for byte."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archsim.base.files import drafted, write_text

if TYPE_CHECKING:
    import pandas
    import pyarrow

TEXT, INTEGER, REAL = "text", "integer", "real"


@dataclass(frozen=True)
class Table:
    """columns: name → TEXT, INTEGER or REAL. rows: a value for every column, None where there is none."""

    columns: Mapping[str, str]
    rows: tuple[Mapping[str, Any], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"Table({len(self.rows):,} rows × {len(self.columns)} columns)"

    def to_csv(self) -> str:
        """Reals in the shortest form that reads back to the same number; whole nanoseconds as integers."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        for row in self.rows:
            writer.writerow([_cell(name, row[name]) for name in self.columns])
        return text.getvalue()

    def write_csv(self, path: Path) -> None:
        write_text(path, self.to_csv())

    def write_parquet(self, path: Path, facts: Mapping[str, str] | None = None) -> None:
        """``facts``: kept in the file's metadata; see `parquet_facts`."""
        from pyarrow import parquet

        with drafted(path) as draft:
            parquet.write_table(self._arrow(_schema(self.columns, facts)), draft)

    def _arrow(self, schema: pyarrow.Schema) -> pyarrow.Table:
        import pyarrow

        arrays = [pyarrow.array([row[field.name] for row in self.rows], field.type) for field in schema]
        return pyarrow.Table.from_arrays(arrays, schema=schema)

    def to_pandas(self) -> pandas.DataFrame:
        """Texts as ``object``, integers as ``int64`` (``Int64`` where some are missing), reals as ``float64``."""
        import pandas

        kinds = {TEXT: "object", INTEGER: "int64", REAL: "float64"}
        series = {}
        for name, kind in self.columns.items():
            values = [row[name] for row in self.rows]
            missing = kind == INTEGER and None in values
            series[name] = pandas.Series(values, dtype="Int64" if missing else kinds[kind])
        return pandas.DataFrame(series)


def read_csv(path: Path, columns: Mapping[str, str]) -> Table:
    """A table written by :meth:`Table.write_csv`; columns that are not declared are left out."""
    parse: Mapping[str, Callable[[str], Any]]
    parse = {TEXT: str, INTEGER: int, REAL: lambda text: float(text) if text else None}
    with path.open(encoding="utf-8", newline="") as stream:
        rows = [{name: parse[kind](row[name]) for name, kind in columns.items()} for row in csv.DictReader(stream)]
    return Table(columns, tuple(rows))


def write_parquet_stream(path: Path, columns: Mapping[str, str], tables: Iterable[Table]) -> None:
    """One file of many tables with the same columns, a row group each; one is in memory at a time."""
    from pyarrow import parquet

    schema = _schema(columns, None)
    with drafted(path) as draft, parquet.ParquetWriter(draft, schema) as writer:
        for table in tables:
            writer.write_table(table._arrow(schema))


def read_parquet(path: Path, columns: Mapping[str, str]) -> Table:
    """A table written by :meth:`Table.write_parquet`."""
    from pyarrow import parquet

    return Table(columns, tuple(parquet.read_table(path, columns=list(columns)).to_pylist()))


def parquet_facts(path: Path) -> dict[str, str]:
    """The facts that a file was written with; none for a file that is not there or not whole."""
    import pyarrow
    from pyarrow import parquet

    try:
        kept = parquet.read_schema(path).metadata or {}
    except (OSError, pyarrow.ArrowInvalid):
        return {}
    return {key.decode(): value.decode() for key, value in kept.items()}


def _schema(columns: Mapping[str, str], facts: Mapping[str, str] | None) -> pyarrow.Schema:
    import pyarrow

    kinds = {TEXT: pyarrow.string(), INTEGER: pyarrow.int64(), REAL: pyarrow.float64()}
    return pyarrow.schema([(name, kinds[kind]) for name, kind in columns.items()], metadata=dict(facts) if facts else None)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith("_ns") and value == int(value):
        return str(int(value))
    return repr(value) if isinstance(value, float) else str(value)
