"""Commands parse, call and print; those of one topic share a module, imported only when one of them is invoked."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import archsim.cli
from archsim.cli.main import COMMANDS, OLD, every_command, main, parser_of

FOLDER = Path(archsim.cli.__file__).parent
EVERY = dict(every_command())
NAMES = sorted(set(EVERY.values()))
MODULES = sorted({f"archsim.cli.{name.partition(':')[0]}" for name in NAMES})
SHARED = {f"archsim.cli.{name}" for name in ("arguments", "printing", "progress")}
OF_ONE_COMMAND = {"archsim.cli.main"}  # completion


def imported_by(module):
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    return {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)} | {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_command_has_two_functions(name):
    module, _, action = name.partition(":")
    found = importlib.import_module(f"archsim.cli.{module}")
    assert list(inspect.signature(getattr(found, f"add_{action or module}")).parameters) == ["parser"]
    assert list(inspect.signature(getattr(found, f"run_{action or module}")).parameters) == ["args"]


@pytest.mark.parametrize("name", MODULES)
def test_no_module_of_commands_imports_another(name):
    of_commands = {each for each in imported_by(importlib.import_module(name)) if each.startswith("archsim.cli.")}
    assert of_commands <= SHARED | OF_ONE_COMMAND


def test_every_file_is_of_commands_or_shared():
    names = {f"archsim.cli.{file.stem}" for file in FOLDER.glob("*.py") if file.stem != "__init__"}
    assert names == {*MODULES, *SHARED, "archsim.cli.main"}


def test_commands_have_different_names_and_help():
    assert len(EVERY) == len(list(every_command()))
    described = [each for entry in COMMANDS for each in (entry, *getattr(entry, "forms", ()))]
    assert all(each.help and not each.help.endswith(".") for each in described)


def test_a_dozen_or_so_are_shown_and_alone_archsim_says_where_to_start(capsys):
    assert main([]) == 0
    alone = capsys.readouterr().out
    shown = [line.split()[0] for line in alone.splitlines() if line.startswith("  ") and not line.startswith("  -")]
    assert {each.name for each in COMMANDS} <= set(shown) and len(COMMANDS) <= 15
    assert "Start here:" in alone and not any(f"  {old} " in alone for old in OLD)


def test_no_form_takes_an_option_of_its_command():
    """``archsim why FILE --assumptions physical`` chooses a set: no form may be asked for by such a flag."""
    taken = []
    for command in COMMANDS:
        for form in getattr(command, "forms", ()):
            (own,) = (each for each in parser_of([command.name])._actions if each.choices)
            taken += [form.flag for action in own.choices[command.name]._actions if form.flag in action.option_strings]
    assert taken == []


@pytest.mark.parametrize("old", OLD)
def test_an_old_spelling_is_the_new_command_and_says_so(old, capsys, monkeypatch):
    helps = []
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for words in (old, OLD[old]):
        with pytest.raises(SystemExit) as ended:
            main([*words.split(), "--help"])
        found = capsys.readouterr()
        helps.append(found.out)
        assert ended.value.code == 0 and (f"`archsim {OLD[old]}`" in found.err) == (words == old)
    assert helps[0] == helps[1] and f"archsim {OLD[old]}" in helps[0]


def test_only_the_invoked_command_is_imported():
    code = (
        "import sys; from archsim.cli.main import main\n"
        "try: main(['trace', 'info', '--help'])\nexcept SystemExit: pass\n"
        "print(*sorted(name for name in sys.modules if name.startswith('archsim.cli.')))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    modules = set(loaded.splitlines()[-1].split())
    assert modules & set(MODULES) == {"archsim.cli.trace"}


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        archsim.cli.main.main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"archsim {archsim.__version__}\n"
