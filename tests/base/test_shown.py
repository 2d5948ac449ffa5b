"""Results in notebooks and terminals: one line that fits a screen, and the first rows of a table."""

import pytest
from support.tiny import TINY

import archsim as ar
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
