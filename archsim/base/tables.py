"""Tables with declared columns, written as CSV and Parquet. Equal tables give identical bytes."""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from html import escape
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

import numpy as np

from archsim.base.errors import ArchsimError, did_you_mean
from archsim.base.files import write_draft
from archsim.base.packed_files import MOST_TIMES_OF_PART, refuse_bomb

if TYPE_CHECKING:
    import pandas
    import pyarrow
    from pandas import DataFrame as DataFrame
else:
    DataFrame = Any  # pandas is imported only where somebody asks for a frame


# How results show themselves in notebooks: their one line, and the first rows of their table.

MOST_ROWS, MOST_COLUMNS = 10, 12
_MOST_SAID = 8  # values of a column, in a message


class Shown:
    """How notebooks show a class with ``__repr__`` and ``to_pandas``, or with tables of which ``_shown`` is one."""

    def _shown(self) -> Any:
        """The frame that is shown; None: none."""
        return self.to_pandas()  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        line, frame = f"<p><code>{escape(repr(self))}</code></p>", self._shown()
        if frame is None:
            return line
        more = f"<p>{len(frame):,} rows, {len(frame.columns)} columns</p>" if len(frame) > MOST_ROWS else ""
        return line + frame.head(MOST_ROWS).to_html(index=False, max_cols=MOST_COLUMNS, border=0, na_rep="–") + more


def frame_of(rows: Iterable[Any], columns: Sequence[str] | None = None) -> DataFrame:
    """A row each: records (with ``columns``: of these fields), mappings, or tuples in the order of ``columns``."""
    import pandas

    found = list(rows)
    if columns is not None and found and not isinstance(found[0], tuple):
        found = [{name: getattr(each, name) for name in columns} for each in found]
    elif found and is_dataclass(found[0]):
        found = [asdict(each) for each in found]
    elif found and hasattr(found[0], "_asdict"):
        found = [each._asdict() for each in found]
    return pandas.DataFrame(found, columns=None if columns is None else list(columns))


TEXT, INTEGER, REAL = "text", "integer", "real"
_CELL_BYTES = 8  # of a number
GROUP_ROWS = 1 << 16  # least of a row group that is written from columns


class Table(Shown):
    """columns: name → TEXT, INTEGER or REAL. ``rows``: one value per column, None if missing. kept: the rows, or the
    table of arrow that a file was read into, packed until rows are asked for.
    """

    def __init__(self, columns: Mapping[str, str], kept: Iterable[Mapping[str, Any]] | pyarrow.Table) -> None:
        self.columns = columns
        self._packed: Any = kept if hasattr(kept, "schema") else None
        self._rows = tuple(kept) if self._packed is None else None
        self._arrays: dict[str, np.ndarray] = {}
        self._whole: Table | None = None  # of which these rows were chosen

    @property
    def rows(self) -> tuple[Mapping[str, Any], ...]:
        if self._rows is None:
            self._rows = tuple(self._packed.to_pylist())
        return self._rows

    def __len__(self) -> int:
        return len(self.rows) if self._packed is None else self._packed.num_rows

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self.columns == other.columns and self.rows == other.rows

    def __repr__(self) -> str:
        return f"Table({len(self):,} rows × {len(self.columns)} columns)"

    def where(self, **values: Any) -> Table:
        """The rows that have these values: ``results.runs.where(system="dojo", batch=4096)``; None: a missing value.

        Raises ArchsimError for a column that is not there, and for a value that no row of the whole table has.
        """
        for name, value in values.items():
            if name not in self.columns:
                raise ArchsimError(f"no column {name!r}{did_you_mean(name, self.columns)}")
            (self if self._whole is None else self._whole)._refuse_unknown(name, value)
        if self._packed is None:
            own = values.items()
            rows = [row for row in self.rows if all(row[name] == value for name, value in own)]
            return self._chosen(Table(self.columns, rows))
        keep = np.ones(len(self), bool)
        for name, value in values.items():
            keep &= self._packed[name].is_null().to_numpy() if value is None else self.column(name) == value
        return self._chosen(Table(self.columns, self._packed.filter(keep)))

    def _chosen(self, table: Table) -> Table:
        table._whole = self if self._whole is None else self._whole
        return table

    def _refuse_unknown(self, name: str, value: Any) -> None:
        """Raise ArchsimError for a value that no row has, with those that are nearest; a table without rows has any."""
        if value is None or not len(self) or np.any(self.column(name) == value):
            return
        known = [each for each in self.by(name) if each is not None and each == each]
        likely = did_you_mean(str(value), map(str, known)) if self.columns[name] == TEXT else ""
        if isinstance(value, Real) and self.columns[name] != TEXT:
            known = sorted(sorted(known, key=lambda each: abs(each - value))[:_MOST_SAID])
            said = "nearest"
        else:
            said = "values"
        listed = ", ".join(map(repr, known[:_MOST_SAID])) + (", …" if len(known) > _MOST_SAID else "")
        raise ArchsimError(f"no row has {name} = {value!r}{likely} ({said}: {listed or 'none'})")

    def by(self, name: str) -> dict[Any, Table]:
        """Every value of a column, in the order in which the values come first → its rows."""
        if self._packed is None:
            places: dict[Any, list[Mapping[str, Any]]] = {}
            for row in self.rows:
                places.setdefault(row[name], []).append(row)
            return {value: Table(self.columns, rows) for value, rows in places.items()}
        if not len(self):
            return {}
        coded = self._packed[name].combine_chunks().dictionary_encode("encode")
        indices = coded.indices
        codes = np.frombuffer(indices.buffers()[1], np.int32)[indices.offset : indices.offset + len(indices)]
        order = np.argsort(codes, kind="stable")
        ends = np.searchsorted(codes[order], np.arange(1, len(coded.dictionary)))
        found, whole = {}, _arrow_types()[INTEGER]
        for value, at in zip(coded.dictionary.to_pylist(), np.split(order, ends), strict=True):
            together = at[-1] - at[0] == len(at) - 1  # then nothing is copied
            rows = self._packed.slice(int(at[0]), len(at)) if together else self._packed.take(_as_arrow(at, whole))
            found[value] = Table(self.columns, rows)
        return found

    def column(self, name: str) -> np.ndarray:
        """A column: float64 (NaN if missing) or, of integers without a missing one, int64; texts as objects."""
        if name not in self._arrays:
            packed = self.to_arrow(_schema({name: self.columns[name]}, None)) if self._packed is None else self._packed
            self._arrays[name] = _as_numpy(packed[name])
        return self._arrays[name]

    def _values(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows] if self._packed is None else self._packed[name].to_pylist()

    def to_csv(self) -> str:
        """Reals in the shortest form that reads back as the same number; whole nanoseconds as integers."""
        text = io.StringIO()
        write_rows(text, self.columns, self.rows)
        return text.getvalue()

    def write_csv(self, path: Path) -> None:
        write_csv_stream(path, self.columns, self.rows)

    def write_parquet(self, path: Path, facts: Mapping[str, str] | None = None) -> None:
        """``facts``: stored in the file's metadata; see `parquet_facts`."""
        from pyarrow import parquet

        with write_draft(path) as draft:
            parquet.write_table(self.to_arrow(_schema(self.columns, facts)), draft, write_page_checksum=True)

    def to_arrow(self, schema: pyarrow.Schema) -> pyarrow.Table:
        import pyarrow

        arrays = [_as_arrow(self._values(field.name), field.type) for field in schema]
        return pyarrow.Table.from_arrays(arrays, schema=schema)

    def to_pandas(self) -> pandas.DataFrame:
        """Texts as ``object``, integers as ``int64`` (``Int64`` where some are missing), reals as ``float64``."""
        import pandas

        kinds = {TEXT: "object", INTEGER: "int64", REAL: "float64"}
        series = {}
        for name, kind in self.columns.items():
            values = self._values(name)
            missing = kind == INTEGER and None in values
            series[name] = pandas.Series(values, dtype="Int64" if missing else kinds[kind])
        return pandas.DataFrame(series)


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Rows of cells as CSV, the first row their names."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def write_rows(stream: TextIO, columns: Iterable[str], rows: Iterable[Mapping[str, Any]], header: bool = True) -> None:
    columns = tuple(columns)
    writer = csv.writer(stream, lineterminator="\n")
    if header:
        writer.writerow(columns)
    for row in rows:
        writer.writerow([cell_text(name, row[name]) for name in columns])


def write_csv_stream(path: Path, columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write all rows, with one in memory at a time; the file is replaced atomically."""
    with write_draft(path) as draft, draft.open("w", encoding="utf-8", newline="") as stream:
        write_rows(stream, columns, rows)


class CsvLog:
    """A file that grows row by row; the first row replaces an existing file."""

    def __init__(self, path: Path, columns: Iterable[str]) -> None:
        self._path, self._columns, self._begun = path, tuple(columns), False

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a row; it is complete on disk when this returns."""
        with self._path.open("a" if self._begun else "w", encoding="utf-8", newline="") as stream:
            write_rows(stream, self._columns, [row], header=not self._begun)
        self._begun = True

    def clear(self) -> None:
        """Delete the file; the next row starts a new one."""
        self._path.unlink(missing_ok=True)
        self._begun = False


class MissingColumn(ArchsimError):
    """A file lacks a column."""


def read_csv(path: Path, columns: Mapping[str, str]) -> Table:
    """A table written by :meth:`Table.write_csv`; columns that are not declared are left out. An empty number: None.
    Raises FileNotFoundError; ArchsimError, with file and line, for wrong cells, MissingColumn for a missing column.
    """
    import pyarrow
    from pyarrow import csv as arrow_csv

    types = {name: _arrow_types()[kind] for name, kind in columns.items()}
    cells = arrow_csv.ConvertOptions(
        column_types=types, include_columns=list(types), null_values=[""], strings_can_be_null=False
    )
    try:
        in_order = arrow_csv.ReadOptions(use_threads=False)  # which counts rows, for messages
        return Table(columns, arrow_csv.read_csv(path, in_order, convert_options=cells))
    except KeyError as error:
        raise MissingColumn(f"{path}:1: no column {_MISSING_COLUMN.findall(str(error))[0]}") from None
    except pyarrow.ArrowInvalid as error:
        where, fault = f"{path}", str(error)
        if found := _BAD_ROW.search(fault):
            where, fault = f"{path}:{found[1]}", found[2]
        elif found := _BAD_CELL.search(fault):
            with path.open(encoding="utf-8", newline="") as stream:
                name = next(csv.reader(stream))[int(found[1])]
            where, fault = f"{path}:{found[2]}", f"{name}: {found[3]} is not a {_TOLD[columns[name]]}"
        raise ArchsimError(f"{where}: {fault}") from None


# What pyarrow says of a CSV file; rows are counted from 1, with the header.
_MISSING_COLUMN = re.compile(r"Column ('.*?') in include_columns")
_BAD_ROW = re.compile(r"Row #(\d+): (Expected \d+ columns, got \d+)")
_BAD_CELL = re.compile(r"column #(\d+): Row #(\d+): .*invalid value ('.*')")
_TOLD = {INTEGER: "whole number", REAL: "number", TEXT: "text"}


def write_parquet_stream(path: Path, columns: Mapping[str, str], tables: Iterable[Table]) -> None:
    """Write tables with the same columns to one file, one row group each; one table is in memory at a time."""
    schema = _schema(columns, None)
    _write_groups(path, schema, (table.to_arrow(schema) for table in tables))


def write_parquet_columns(
    path: Path, columns: Mapping[str, str], blocks: Iterable[tuple[int, Mapping[str, Any]]]
) -> None:
    """Write blocks of rows to one file, in row groups of at least `GROUP_ROWS`. A block: its number of rows, and the
    values of every column, an array or one value for all rows.
    """
    import pyarrow

    schema = _schema(columns, None)

    def put(rows: int, field: pyarrow.Field, value: Any) -> pyarrow.Array:
        if hasattr(value, "__len__") and not isinstance(value, str):
            return _as_arrow(value, field.type)
        nought = _as_arrow(np.zeros(rows, np.int64), pyarrow.int64())
        return pyarrow.DictionaryArray.from_arrays(nought, _as_arrow([value], field.type)).dictionary_decode()

    def groups() -> Iterator[pyarrow.Table]:
        waiting: list[pyarrow.Table] = []
        for rows, values in blocks:
            arrays = [put(rows, field, values[field.name]) for field in schema]
            waiting.append(pyarrow.Table.from_arrays(arrays, schema=schema))
            if sum(map(len, waiting)) >= GROUP_ROWS:
                yield pyarrow.concat_tables(waiting)
                waiting.clear()
        if waiting:
            yield pyarrow.concat_tables(waiting)

    _write_groups(path, schema, groups())


def _write_groups(path: Path, schema: pyarrow.Schema, groups: Iterable[pyarrow.Table]) -> None:
    from pyarrow import parquet

    with write_draft(path) as draft, parquet.ParquetWriter(draft, schema, write_page_checksum=True) as writer:
        for group in groups:
            writer.write_table(group)


def read_parquet(path: Path | BinaryIO, columns: Mapping[str, str], most_rows: int | None = None) -> Table:
    """Read a table written by :meth:`Table.write_parquet`, from a file or what it holds. Raises ValueError or OSError
    for a damaged file (every page has a checksum), and for one that says to hold more than ``most_rows`` or more than
    fits into its size.
    """
    from pyarrow import parquet

    about = parquet.read_metadata(path)
    if most_rows is not None and about.num_rows > most_rows:
        raise ValueError(f"{about.num_rows} rows; expected at most {most_rows}")
    parts = [about.row_group(at) for at in range(about.num_row_groups)]
    packed = sum(part.column(at).total_compressed_size for part in parts for at in range(part.num_columns))
    cells = _CELL_BYTES * about.num_rows * len(columns)
    refuse_bomb("the table", max(cells, sum(part.total_byte_size for part in parts)), packed, MOST_TIMES_OF_PART)
    if not isinstance(path, Path):
        path.seek(0)
    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
        return Table(columns, file.read(columns=list(columns)))


def parquet_columns(path: Path) -> dict[str, str]:
    """Columns of a :meth:`Table.write_parquet` file, with types. Raises ValueError for others, as `read_parquet`."""
    from pyarrow import parquet

    types = {"string": TEXT, "int64": INTEGER, "double": REAL}
    schema = parquet.read_schema(path)
    if other := [field for field in schema if str(field.type) not in types]:
        raise ValueError(f"column {other[0].name!r} is of type {other[0].type}; expected one of {', '.join(types)}")
    return {field.name: types[str(field.type)] for field in schema}


def parquet_facts(path: Path) -> dict[str, str]:
    """The facts with which a file was written; none if the file is missing or incomplete."""
    import pyarrow
    from pyarrow import parquet

    try:
        kept = parquet.read_schema(path).metadata or {}
    except (OSError, pyarrow.ArrowInvalid):
        return {}
    return {key.decode(): value.decode() for key, value in kept.items()}


def _schema(columns: Mapping[str, str], facts: Mapping[str, str] | None) -> pyarrow.Schema:
    import pyarrow

    fields = [(name, _arrow_types()[kind]) for name, kind in columns.items()]
    return pyarrow.schema(fields, metadata=dict(facts) if facts else None)


def _arrow_types() -> dict[str, pyarrow.DataType]:
    import pyarrow

    return {TEXT: pyarrow.string(), INTEGER: pyarrow.int64(), REAL: pyarrow.float64()}


# Arrays of arrow are built of their buffers, and read from them: `pyarrow.array`, `read_table` and `to_numpy` import
# pandas, which costs every command a quarter of a second.

_CODES = {"int64": "q", "double": "d"}  # of array.array


def _as_arrow(values: Sequence[Any] | np.ndarray, kind: pyarrow.DataType) -> pyarrow.Array:
    """As `pyarrow.array`; None: missing."""
    import pyarrow

    count, code = len(values), _CODES.get(str(kind))
    if isinstance(values, np.ndarray):
        if code and values.dtype.kind in "iuf" and np.can_cast(values.dtype, code):
            numbers = np.ascontiguousarray(values, code)
            return pyarrow.Array.from_buffers(kind, count, [None, pyarrow.py_buffer(numbers)])
        values = values.tolist()
    present = np.fromiter((value is not None for value in values), bool, count)
    lacking = count - int(present.sum())
    try:
        if code:
            own = array(code, [0 if value is None else value for value in values] if lacking else values)
            buffers = [pyarrow.py_buffer(own)]
        else:
            texts = [b"" if value is None else value.encode() for value in values]
            ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
            if ends[-1] > np.iinfo(np.int32).max:
                raise OverflowError
            buffers = [pyarrow.py_buffer(ends.astype(np.int32)), pyarrow.py_buffer(b"".join(texts))]
    except (TypeError, AttributeError, OverflowError):
        return pyarrow.array(values, kind)  # takes what can be converted, and says why the rest cannot
    valid = pyarrow.py_buffer(np.packbits(present, bitorder="little")) if lacking else None
    return pyarrow.Array.from_buffers(kind, count, [valid, *buffers], lacking)


def _as_numpy(packed: pyarrow.ChunkedArray) -> np.ndarray:
    """As ``to_numpy``; see `Table.column`."""
    if (code := _CODES.get(str(packed.type))) is None:
        found = np.empty(len(packed), object)
        found[:] = packed.to_pylist()
        return found
    parts = [np.zeros(0, code)]
    for chunk in packed.chunks:
        valid, data = chunk.buffers()
        own = slice(chunk.offset, chunk.offset + len(chunk))
        parts.append(np.frombuffer(data, code, own.stop)[own] if len(chunk) else parts[0])
        if chunk.null_count:
            bits = np.unpackbits(np.frombuffer(valid, np.uint8), count=own.stop, bitorder="little")[own]
            parts[-1] = np.where(bits, parts[-1], np.nan)
    return parts[1] if len(parts) == 2 else np.concatenate(parts)


def cell_text(name: str, value: Any) -> str:
    """A cell as it is written to CSV files."""
    if value is None:
        return ""
    if name.endswith("_ns") and value == int(value):
        return str(int(value))
    return repr(float(value)) if isinstance(value, float) else str(value)  # numpy's says its type
