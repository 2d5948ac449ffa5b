"""Results in notebooks and terminals: one line that fits a screen, and the first rows of a table."""

import numpy as np
import pytest
from support.tiny import TINY

import archsim as ar
from archsim.base.errors import nearest
from archsim.base.host import machine_bytes, sparse_zeros
from archsim.base.tables import MOST_ROWS, Table

LINES, WIDTH = 24, 400


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    file = tmp_path_factory.mktemp("shown") / "tiny.yaml"
    file.write_text(TINY)
    tiny = ar.load(str(file), {"workload.batch": [12], "workload.decode_steps": 2})
    return ar.run(tiny), ar.compare("ep", "base", inside=tiny, policy=None), ar.why(tiny, step=1)


def test_a_result_fits_a_screen_and_a_notebook(results):
    for each in results:
        assert len(repr(each).splitlines()) <= LINES and max(map(len, repr(each).splitlines())) <= WIDTH
        html = each._repr_html_()
        assert html.startswith("<p><code>") and "<table" in html and html.count("<tr") <= MOST_ROWS + 1


def test_long_tables_say_how_long_they_are():
    table = Table({"a": "integer"}, tuple({"a": number} for number in range(1234)))
    assert "1,234 rows, 1 columns" in table._repr_html_() and table._repr_html_().count("<tr") == MOST_ROWS + 1


def test_dir_is_the_public_api():
    assert dir(ar) == sorted(ar.__all__) and "importlib" not in dir(ar)


# ---- Hints at the name that was meant: near ones, or those of which it is a part; none where nothing is like it.


@pytest.mark.parametrize(("name", "valid", "meant"), [
    ("alo", ["allo", "base"], "allo"),
    ("h200", ["dojo", "h200_node"], "h200_node"),
    ("Hop-Latency", ["hop_latency"], "hop_latency"),
    ("lanes", ["atu_entries", "executor"], None),
    ("serving", ["numbering", "name"], None),
    ("qwen3-235b", ["qwen3-32b", "qwen3-235b-a22b"], "qwen3-235b-a22b"),
])  # fmt: skip
def test_the_nearest_name(name, valid, meant):
    assert nearest(name, valid) == meant


# ---- Arrays that take memory where they are written.


def test_rows_that_nobody_writes_take_no_memory():
    rows = 1 << 20
    columns = 1 << 14 if machine_bytes() is None else 2 * machine_bytes() // (8 * rows)
    array = sparse_zeros((rows, columns))
    array[rows // 2, -1] = 7
    assert array.shape == (rows, columns) and array.dtype == np.int64
    assert array[rows // 2, -1] == 7 and not array[rows // 2 + 1].any() and not array[-1].any()


def test_no_rows():
    assert sparse_zeros((3, 0)).shape == (3, 0)
