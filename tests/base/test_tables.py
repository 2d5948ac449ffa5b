"""Tables are packed and unpacked without pandas, as pyarrow does it."""

import subprocess
import sys

import numpy as np
import pyarrow
import pytest

from archsim.base.tables import INTEGER, REAL, TEXT, Table, cell_text, read_parquet, write_parquet_columns

KINDS = {TEXT: pyarrow.string(), INTEGER: pyarrow.int64(), REAL: pyarrow.float64()}
COLUMNS = {
    TEXT: ["a", None, "", "µs"], INTEGER: [1, None, -(1 << 62), np.int32(7)], REAL: [0.1, None, float("nan"), 3],
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [slice(0), slice(1, 2), slice(0, 1), slice(None), slice(2, None)])
def test_a_column_is_packed_and_unpacked_as_pyarrow_does(tmp_path, kind, rows):
    values = COLUMNS[kind][rows]
    table, expected = Table({"x": kind}, [{"x": value} for value in values]), pyarrow.array(values, KINDS[kind])
    packed = table.to_arrow(pyarrow.schema({"x": KINDS[kind]}))["x"]
    packed.validate(full=True)
    assert str(packed.combine_chunks()) == str(expected)
    for chunks in ([expected], [expected, expected.slice(1)], []):
        whole = pyarrow.chunked_array(chunks, KINDS[kind])
        column = Table({"x": kind}, pyarrow.table({"x": whole})).column("x")
        assert column.dtype == whole.to_numpy().dtype
        np.testing.assert_array_equal(column, whole.to_numpy())


@pytest.mark.parametrize("value", [10.560514879048277, 3, True, "a"])
def test_a_cell_of_numpy_reads_as_one_of_python(value):
    assert cell_text("x", np.array([value])[0]) == cell_text("x", value)


@pytest.mark.parametrize(("kind", "value"), [(INTEGER, "1"), (REAL, "0.5"), (TEXT, 3)])
def test_a_value_of_another_kind_is_refused(kind, value):
    with pytest.raises((pyarrow.ArrowInvalid, pyarrow.ArrowTypeError)):
        Table({"x": kind}, [{"x": value}]).to_arrow(pyarrow.schema({"x": KINDS[kind]}))


def test_blocks_of_columns_are_written_as_they_were_given(tmp_path):
    columns = {"n": INTEGER, "name": TEXT, "share": REAL, "none": REAL}
    names = np.array(["a", "b"])
    blocks = [(2, {"n": np.arange(2), "name": names, "share": 0.5, "none": None}), (1, {
        "n": 7, "name": "c", "share": np.ones(1), "none": np.full(1, np.nan)})]  # fmt: skip
    write_parquet_columns(tmp_path / "x.parquet", columns, blocks)
    found = read_parquet(tmp_path / "x.parquet", columns)
    assert [row["n"] for row in found] == [0, 1, 7] and [row["name"] for row in found] == ["a", "b", "c"]
    assert found.column("share").tolist() == [0.5, 0.5, 1.0] and [row["none"] for row in found][:2] == [None, None]


def test_writing_and_reading_a_table_loads_no_pandas(tmp_path):
    probe = f"""
import sys, pathlib
from archsim.base.tables import Table, read_parquet
path, columns = pathlib.Path({str(tmp_path)!r}) / "x.parquet", {{"a": "real", "b": "text", "c": "integer"}}
Table(columns, [{{"a": 1.5, "b": "x", "c": None}}]).write_parquet(path)
found = read_parquet(path, columns)
print(*found.column("a"), *found.column("b"), found.rows[0]["c"], "pandas" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout
    assert said == "1.5 x None False\n"
