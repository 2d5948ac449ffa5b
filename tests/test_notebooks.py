"""The notebooks of ``examples/`` run from top to bottom, and their last cell checks what they claim. Each starts a
Python of its own, which loads everything again: they run nightly, and those of the gallery at each commit.
"""

import ast
import shutil
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat: pip install -e '.[test]'")
nbclient = pytest.importorskip("nbclient", reason="notebooks need nbclient: pip install -e '.[test]'")
pytest.importorskip("ipykernel", reason="notebooks need ipykernel: pip install -e '.[test]'")
pytest.importorskip("matplotlib", reason="notebooks need matplotlib: pip install -e '.[test]'")

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
LONGEST_CELL_S = 300  # a cell that hangs, not a measurement: the first one may compile
TOPICS = ["1_first_sweep", "2_own_machine_and_policy", "3_calibrate", "4_what_limits_this_step", "5_a_policy_in_rtl"]


def read(file):
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    return notebook


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_the_notebooks_are_there():
    assert [file.stem for file in NOTEBOOKS] == TOPICS


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook_asks_first_and_is_kept_without_outputs(file):
    notebook = read(file)
    opening = notebook.cells[0]
    assert opening.cell_type == "markdown"
    assert 0 < opening.source.find("**Question.**") < opening.source.find("**Answer.**")
    assert [cell.outputs for cell in code_cells(notebook)] == [[]] * len(code_cells(notebook))
    assert {cell.execution_count for cell in code_cells(notebook)} == {None}


@pytest.mark.nightly
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook_runs_and_checks_its_claims(file, tmp_path):
    copy = tmp_path / file.name
    shutil.copy(file, copy)
    notebook = read(copy)
    last = ast.parse(code_cells(notebook)[-1].source)
    assert sum(isinstance(node, ast.Assert) for node in last.body) >= 3
    client = nbclient.NotebookClient(
        notebook, timeout=LONGEST_CELL_S, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()  # raises CellExecutionError, with the cell and its traceback
    assert [cell.execution_count for cell in code_cells(notebook)] == list(range(1, len(code_cells(notebook)) + 1))
    assert notebook.cells[-1] is code_cells(notebook)[-1]
    shown = [output for cell in code_cells(notebook) for output in cell.outputs if "data" in output]
    assert any("image/png" in each.data or "<figure" in each.data.get("text/html", "") for each in shown)
