"""The gallery: ten small notebooks, each a question of an architect, a serving engineer or a student.

They run in this process, cell by cell, which is much cheaper than a kernel for each; their last cell checks what they
claim.
"""

import ast
import json
from pathlib import Path

import pytest
from support.examples import sampled

from archsim.base.errors import ArchsimError

GALLERY = sorted((Path(__file__).resolve().parents[1] / "examples" / "gallery").glob("*.ipynb"))

NIGHTLY = ("02", "03", "05", "06", "09")  # two seconds each and more


def cells_of(file, kind):
    found = json.loads(file.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]


def test_there_are_ten_for_three_kinds_of_readers():
    personas = [cells_of(file, "markdown")[0].partition("*For ")[2].partition(".*")[0] for file in GALLERY]
    assert len(GALLERY) == 10 and set(personas) == {"architects", "serving engineers", "students"}


@pytest.mark.parametrize(
    "file", sampled(GALLERY, lambda file: file.stem[:2] not in NIGHTLY), ids=lambda file: file.stem
)
def test_a_notebook_asks_answers_and_its_claims_hold(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    opening = cells_of(file, "markdown")[0]
    assert 0 < opening.find("**Question.**") < opening.find("**Answer.**")
    *code, last = cells_of(file, "code")
    assert sum(isinstance(node, ast.Assert) for node in ast.parse(last).body) >= 3
    run_cells((*code, last))


def test_the_own_policy_is_what_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (file,) = (file for file in GALLERY if file.stem == "10_own_policy")
    fails = "    raise ValueError('mine was called')\n    load = np"
    with pytest.raises(ArchsimError, match="mine was called"):
        run_cells(cell.replace("    load = np", fails) for cell in cells_of(file, "code"))


def run_cells(cells):
    """Run cells in the current directory; ``%%writefile NAME`` writes the rest of its cell there."""
    names: dict = {}
    for cell in cells:
        first, _, rest = cell.partition("\n")
        if first.startswith("%%writefile "):
            Path(first.split()[1]).write_text(rest + "\n", encoding="utf-8")
        else:
            exec(compile(cell, "cell", "exec"), names)
