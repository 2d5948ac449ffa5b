"""Commands parse, call and print; those of one topic share a module, imported only when one of them is invoked."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import archsim.cli
from archsim.cli.main import COMMANDS, Group

FOLDER = Path(archsim.cli.__file__).parent
EVERY = [each for entry in COMMANDS for each in (entry.commands if isinstance(entry, Group) else (entry,))]
NAMES = sorted({command.module for command in EVERY})
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
    for commands in (COMMANDS, *(each.commands for each in COMMANDS if isinstance(each, Group))):
        names = [command.name for command in commands]
        assert len(set(names)) == len(names) > 0
    assert all(command.help for command in EVERY)


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
