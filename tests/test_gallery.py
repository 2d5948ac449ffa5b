"""The gallery: ten small notebooks, each a question of an architect, a serving engineer or a student.

They run in this process, cell by cell, which is much cheaper than a kernel for each; their last cell checks what they
claim.
"""

import ast
import json
from pathlib import Path

import pytest

GALLERY = sorted((Path(__file__).resolve().parents[1] / "examples" / "gallery").glob("*.ipynb"))


def cells_of(file, kind):
    found = json.loads(file.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]


def test_there_are_ten_for_three_kinds_of_readers():
    personas = [cells_of(file, "markdown")[0].partition("*For ")[2].partition(".*")[0] for file in GALLERY]
    assert len(GALLERY) == 10 and set(personas) == {"architects", "serving engineers", "students"}


@pytest.mark.parametrize("file", GALLERY, ids=lambda file: file.stem)
def test_a_notebook_asks_answers_and_its_claims_hold(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    opening = cells_of(file, "markdown")[0]
    assert 0 < opening.find("**Question.**") < opening.find("**Answer.**")
    *code, last = cells_of(file, "code")
    assert sum(isinstance(node, ast.Assert) for node in ast.parse(last).body) >= 3
    names: dict = {}
    for cell in (*code, last):
        exec(compile(cell, file.name, "exec"), names)
