"""What a file may do: which commands import the code that it names, and which do not (docs/trust.md)."""

import pytest
from support.tiny import tiny_file

from archsim.base.own_code import NO_CODE
from archsim.cli.main import main

MODULE = "import pathlib\npathlib.Path('ran').touch()\n\ndef rule(step, **params):\n    return step.home\n"
KEYS = (
    "policies=[{name: own, allocation: 'MODULE:rule'}]",
    "policies=[{name: own, allocation: home, placement: 'MODULE:rule'}]",
    "policies=[{name: own, allocation: home, rebalancing: {name: 'MODULE:rule', every_steps: 1}}]",
    "columns=['MODULE:rule']",
    "assumptions=[{set: physical, execution: 'MODULE:rule'}]",
    "systems.0.topology={name: 'MODULE:rule'}",
)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with an experiment and a module of its own name that leaves a file where it runs."""
    monkeypatch.chdir(tmp_path)
    tiny_file(tmp_path)
    name = f"own_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    return name


@pytest.mark.parametrize("key", KEYS)
def test_a_check_without_code_imports_none(own, tmp_path, capsys, key):
    assert main(["check", "--no-code", "tiny.yaml", "--set", key.replace("MODULE", own)]) == 0
    assert f"points were not checked: {own}:rule is code that the file names" in capsys.readouterr().out
    assert not (tmp_path / "ran").exists()


def test_without_code_nothing_runs_that_needs_it(own, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(NO_CODE, "1")
    key = KEYS[0].replace("MODULE", own)
    assert main(["sweep", "tiny.yaml", "--set", key, "--out", "out"]) == 2
    assert f"{own}:rule is code" in capsys.readouterr().err and not (tmp_path / "ran").exists()
    assert main(["check", "tiny.yaml"]) == 0


def test_the_terminal_names_what_is_imported_once(own, tmp_path, capsys):
    key = KEYS[0].replace("MODULE", own)
    for times in (1, 0):
        assert main(["check", "tiny.yaml", "--set", key]) == 0
        assert capsys.readouterr().err.count(f"imports and runs the module {own}") == times
    assert (tmp_path / "ran").exists()


def test_no_control_character_reaches_the_terminal(capsys):
    assert main(["check", "\x1b]0;mine\x07.yaml"]) == 2
    told = capsys.readouterr().err
    assert "\\x1b]0;mine\\x07.yaml" in told and "\x1b" not in told
