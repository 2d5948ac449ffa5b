"""``--out`` into a folder that archsim did not make: refused, and nothing there is touched, unless ``--force``."""

import pytest
from support.tiny import tiny_file

from archsim.cli.main import main

COMMANDS = (
    "sweep tiny.yaml", "ablate tiny.yaml --set assumptions=[published]", "optimum tiny.yaml", "compare dojo h200_node",
    "serve serve_h200", "serve serve_h200 --search", "place loads.npz --model deepseek-v3 --system h200_node",
    "trace profile loads.npz --model deepseek-v3", "explore explore_dojo",
)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder of the user's with results of another program."""
    monkeypatch.chdir(tmp_path)
    tiny_file(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "results.csv").write_text("of another program\n")
    return tmp_path / "mine"


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_files_of_others_are_not_touched(mine, capsys, command):
    assert main([*command.split(), "--out", "mine"]) == 2
    assert "mine: has files that archsim did not make, such as 'results.csv'" in capsys.readouterr().err
    assert [each.name for each in mine.iterdir()] == ["results.csv"]
    assert (mine / "results.csv").read_text() == "of another program\n"


def test_force_writes_among_them(mine):
    (mine / "notes.txt").write_text("mine\n")
    assert main(["sweep", "tiny.yaml", "--set", "policies=[ep]", "--out", "mine", "--force", "--jobs", "1"]) == 0
    assert (mine / "notes.txt").read_text() == "mine\n" and (mine / "index.html").exists()
    assert main(["sweep", "tiny.yaml", "--set", "policies=[ep]", "--out", "mine", "--jobs", "1"]) == 0


def test_a_report_without_its_lock_is_a_report(mine):
    (mine / "results.csv").write_text("")
    (mine / "manifest.yaml").write_text("manifest:\n  version: 0.1.0\nname: tiny\n")
    assert main(["sweep", "tiny.yaml", "--set", "policies=[ep]", "--out", "mine", "--jobs", "1"]) == 0
