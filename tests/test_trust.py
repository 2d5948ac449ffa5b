"""What a file may do: which commands import the code that it names, and which do not (docs/trust.md)."""

import importlib
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import tracemalloc
import zipfile
from contextlib import nullcontext
from pathlib import Path

import numba
import numpy as np
import pytest
import yaml
from support.examples import sampled
from support.tiny import tiny_file

import archsim as ar
from archsim.base.code_digest import keep_machine_code
from archsim.base.compiled import kernel
from archsim.base.config_files import shipped_configs
from archsim.base.errors import ArchsimError
from archsim.base.own_code import NO_CODE, import_function
from archsim.cli.main import main
from archsim.specs.library import load_model
from archsim.traffic.traffic_presets import load_traffic

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
    assert f"Points were not checked: {own}:rule is code that the file names" in capsys.readouterr().out
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


# --- the current folder ---------------------------------------------------------------------------------------------

HOSTILE = (  # tried and not found by libraries that archsim loads, and two that are
    "coverage", "org", "msvcrt", "colorama", "cython", "Cython", "winreg", "pyodide_js", "simplejson", "json", "random",
    "numpy", "yaml",
)  # fmt: skip
DEFECT = "raise SystemExit('a file of the current folder was run')\n"
# Files that libraries look for in the current folder, or might: with text that ends, breaks or slows what reads it.
OF_LIBRARIES = {
    ".numba_config.yaml": "{disable_jit: 1, cpu_name: none, cache_dir: planted, opt: 0}",
    "dask.yaml": "distributed: {client: {preload: [planted.py]}}",
    "distributed.yaml": "distributed: {client: {preload: [planted.py]}}",
    "abc.rc": "quit\n",
    "optuna.ini": "[", "alembic.ini": "[", "setup.cfg": "[", ".env": "planted", ".netrc": "planted", "arrow.cfg": "[",
    "pyproject.toml": "[", "pyvenv.cfg": "home = planted", "pandas.yaml": "[", "fonts.conf": "<",
}  # fmt: skip
SCRIPT = """
import contextlib, os, sys
here, opened = os.getcwd() + os.sep, os.environ["OPENED"]
def note(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        path = os.path.join(here, os.fsdecode(arguments[0]))
        if path.startswith(here):
            file = os.open(opened, os.O_WRONLY | os.O_APPEND | os.O_CREAT) if path != opened else None
            if file is not None:
                os.write(file, (path[len(here):] + "\\n").encode())
                os.close(file)
sys.addaudithook(note)
from archsim.cli.main import every_command, main
asked = [each.split() for each in sys.argv[1:]]
names = [tuple(words.split()) for words, _ in every_command()]
for name in names:
    if not any(tuple(each[: len(name)]) == name for each in asked):
        asked.append([*name, "no-such-file"])
for words in asked:
    with contextlib.suppress(SystemExit):
        print("status", main(words), *words)
print("path", sys.path)
"""
ASKED = (
    "check tiny.yaml", "check --no-code own.yaml", "sweep own.yaml --out out --jobs 1 --samples 0",
    "check --report out --jobs 1",
    "list systems", "hardware blocks", "hardware cost dojo", "sweep --figure out limits --out figure.svg",
)  # fmt: skip


def hostile_folder(folder):
    for name, text in OF_LIBRARIES.items():
        (folder / name).write_text(text)
    for name in HOSTILE:
        (folder / f"{name}.py").write_text(DEFECT)
    rule = "import numpy, beside\nfrom beside import home\n\ndef rule(step):\n    return home(step)\n"
    (folder / "mine.py").write_text(rule)
    (folder / "beside.py").write_text("import json\nfrom archsim.policies.allocation import home\n")
    text = tiny_file(folder).read_text()
    own = text.replace("[base, ep, allo, pred, allo+pred]", "[{name: own, allocation: 'mine:rule'}]")
    (folder / "own.yaml").write_text(own.replace("[12, 40], decode_steps: 4", "[12], decode_steps: 1"))


def test_no_command_runs_or_reads_a_file_of_the_current_folder_that_none_names(tmp_path):
    hostile_folder(tmp_path)
    opened = tmp_path.with_name(f"{tmp_path.name}-opened")
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, *ASKED], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env={**os.environ, "OPENED": str(opened)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "was run" not in done.stdout + done.stderr and "Traceback" not in done.stderr
    lines = done.stdout.splitlines()
    for words in ASKED:
        assert any(line == f"status 0 {words}" for line in lines), (words, done.stdout, done.stderr)
    assert f"'{tmp_path}'" not in lines[-1] and "''" not in lines[-1]
    read = set(opened.read_text().splitlines())
    assert {"own.yaml", "mine.py", "figure.svg"} <= read and not read & OF_LIBRARIES.keys()
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize("imported", sampled(["archsim, numba", "numba, archsim"], lambda imported: imported[0] == "a"))
def test_libraries_read_nothing_of_the_current_folder_in_python_either(tmp_path, imported):
    hostile_folder(tmp_path)
    (tmp_path / ".numba_config.yaml").write_text("{disable_jit: 1, cache_dir: planted}")
    code = f"""
import {imported}, sys
import numpy
from archsim.laws.gemm import solve_definite
right = numpy.ones((1, 1))
solve_definite(numpy.full((1, 1), 4.0), right)
print(right[0, 0], numba.config.DISABLE_JIT, numba.config.CACHE_DIR)
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("0.25 0 /") and "planted" not in done.stdout


PLANTED = "import os, pathlib\nclass Planted:\n    def __reduce__(self):\n        return os.mkdir, ('was_unpickled',)\n"


@pytest.mark.parametrize("planted", ["mode", "owner"])
def test_machine_code_that_others_could_have_written_is_not_unpickled(
    tmp_path, monkeypatch, caplog, planted, sum_of_python
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))
    defined = {}
    exec(PLANTED, defined)
    (tmp_path / "own.py").write_text("def one(x):\n    return x + 1\n")
    own = {}
    exec(compile((tmp_path / "own.py").read_text(), str(tmp_path / "own.py"), "exec"), own)
    function = kernel(own["one"])
    index = Path(function._cache._cache_file._index_path)
    index.write_bytes(pickle.dumps(numba.__version__) + pickle.dumps(defined["Planted"]()))
    if planted == "mode":
        index.chmod(0o666)
    else:
        uid = os.geteuid
        monkeypatch.setattr(os, "geteuid", lambda: uid() + 1)
        monkeypatch.setattr(os, "stat", owned_by_another(os.stat, str(tmp_path)))
    assert function(1) == 2 and not (tmp_path / "was_unpickled").exists() and "not read" in caplog.text


def owned_by_another(stat, below):
    def found(path, *args, **kwargs):
        of = stat(path, *args, **kwargs)
        mine = isinstance(path, (str, Path)) and str(path).startswith(below)
        return os.stat_result((*of[:4], 65534, *of[5:])) if mine else of

    return found


def test_machine_code_is_kept_where_only_this_user_can_write(tmp_path, monkeypatch):
    """Where the installation is read-only, and whatever the environment says: never in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setattr("archsim.base.code_digest._kept_in", lambda: tmp_path / "file")
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for named in ("kept", "", str(tmp_path / "open")):
        for cache, expected in (("mine", tmp_path / "mine"), ("file", tempfile.gettempdir())):
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
            monkeypatch.setenv("NUMBA_CACHE_DIR", named)
            with pytest.warns(UserWarning, match="ignored") if named else nullcontext():
                keep_machine_code()
            found = Path(os.environ["NUMBA_CACHE_DIR"])
            assert found.is_relative_to(expected) and found.stat().st_mode & 0o077 == 0
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("start", sampled(
    [["-m", "archsim"], [str(Path(sys.executable).with_name("archsim"))]], lambda start: start[0] != "-m",
))  # fmt: skip
def test_however_it_is_started(tmp_path, start):
    hostile_folder(tmp_path)
    program = [sys.executable, *start] if start[0] == "-m" else start
    done = subprocess.run([*program, "check", "--no-code", "own.yaml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "own.yaml: ok" in done.stdout and "was run" not in done.stdout + done.stderr


def test_modules_of_a_folder_are_found_by_their_neighbours_alone(tmp_path, monkeypatch):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "inner.py").write_text("from . import other\nimport pack.other\nhere = lambda: pack.other.x\n")
    (tmp_path / "pack" / "other.py").write_text("from lone_neighbour import x\n")
    (tmp_path / "lone_neighbour.py").write_text("x = 7\n")
    monkeypatch.chdir(tmp_path)
    assert import_function("pack.inner:here")() == 7
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("lone_neighbour")
    assert not {"pack", "lone_neighbour"} & set(sys.modules) and not list(tmp_path.rglob("*.pyc"))
    assert import_function("archsim.policies.allocation:home").__module__ == "archsim.policies.allocation"


def test_a_check_of_parameters_of_traffic_takes_no_more_memory_than_they_may_have(tmp_path, monkeypatch):
    """1 MB that unpacks to gigabytes: refused by its headers, before anything is unpacked."""
    shutil.copy(shipped_configs() / "traffic" / "deepseek-v3.yaml", tmp_path / "own.yaml")
    head = yaml.safe_load((tmp_path / "own.yaml").read_text())
    key = "tables" if "tables" in head else "loads"
    for name, shape in ((key, (3, 1 << 14, 1 << 13)), ("tasks", (1 << 20, 9))):
        with zipfile.ZipFile(tmp_path / "big.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            for member in {"loads", "popularity", "acceptance", "layer_ids", "weights", name}:
                with archive.open(f"{member}.npy", "w") as stream:
                    np.lib.format.write_array_header_1_0(
                        stream, {"descr": "|u1", "fortran_order": False, "shape": shape}
                    )
                    stream.write(bytes(1 << 20))
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(head | {key: "big.npz"}))
        tracemalloc.start()
        with pytest.raises(ArchsimError, match="own.yaml.*(expected at most|expected .* of shape)"):
            load_traffic(str(tmp_path / "own.yaml"), load_model("deepseek-v3"))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
        tracemalloc.stop()


# --- where a report goes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("out", ["a\udcffb", "x" * 300, "a\0b", "tiny.yaml/x", "~nobody-of-this-name/x", "nowhere"])
@pytest.mark.parametrize("command", ["explore tiny.yaml", "sweep tiny.yaml", "serve tiny.yaml"])
def test_an_output_that_cannot_be_is_refused_before_the_file_is_read(tmp_path, monkeypatch, capsys, command, out):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text("no: experiment")
    (tmp_path / "nowhere").symlink_to("gone")
    assert main([*command.split(), "--out", out]) == 2
    said = capsys.readouterr().err
    assert "cannot be written to" in said or "no home folder" in said
    assert {each.name for each in tmp_path.iterdir()} == {"tiny.yaml", "nowhere"}


def test_a_tilde_that_the_shell_left_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    tiny_file(tmp_path)
    small = ["--set", "workload.batch=[12]", "--set", "policies=[ep]", "--set", "systems=[dojo]", "--jobs", "1"]
    assert main(["sweep", "tiny.yaml", "--out=~/out", "--samples", "0", *small]) == 0
    assert (tmp_path / "home" / "out" / "index.html").exists() and not (tmp_path / "~").exists()
    with pytest.raises(ArchsimError, match="expanded by shells"):
        ar.sweep(tmp_path / "tiny.yaml", "~/out")
