"""Builds of the package: what they compile, need and keep, as a function of the environment. None compiles here."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from archsim.base.code_digest import SHIPPED_FOR, code_is_for, installed_code, shipped_code

hatchling = pytest.importorskip("hatchling", reason="builds need hatchling")
CHECKOUT = Path(__file__).resolve().parents[1]
IS_FOR = json.dumps(code_is_for())


@pytest.fixture
def build(monkeypatch, tmp_path):
    """The build backend, in an environment without packages, with nothing kept; ``compiled``: how often it compiled."""
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.syspath_prepend(str(CHECKOUT))
    monkeypatch.delenv("ARCHSIM_COMPILED", raising=False)
    import hatch_build as found

    def compile_into(folder, own):
        found.compiled.append(folder)
        folder.mkdir()
        (folder / SHIPPED_FOR).write_text(IS_FOR)

    monkeypatch.setattr(found, "compiled", [], raising=False)
    monkeypatch.setattr(found, "compile_into", compile_into)
    monkeypatch.setattr(found, "folder", lambda: tmp_path / "kept")
    monkeypatch.setattr(found, "versions", dict)
    return found


def initialized(build, version="standard"):
    """What the build of a wheel takes along: folder → its place there."""
    data = {"force_include": {}}
    hook = build.MachineCode(str(CHECKOUT), {}, None, SimpleNamespace(version="0.2.0"), "dist", "wheel")
    try:
        hook.initialize(version, data)
        assert all((Path(each) / SHIPPED_FOR).is_file() for each in data["force_include"])
    finally:
        hook.finalize(version, data, "")
    return data["force_include"]


def needs(build):
    """What it needs to compile, whatever it builds."""
    of_wheel, of_editable = build.get_requires_for_build_wheel(), build.get_requires_for_build_editable()
    assert of_wheel == [each for each in of_editable if not each.startswith("editables")]
    return of_wheel


def test_an_installation_compiles_once_for_checkout_and_wheels(build, tmp_path):
    assert any(each.startswith("numba") for each in needs(build))
    assert initialized(build, "editable") == {} and len(build.compiled) == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["kept"]
    assert needs(build) == [] and initialized(build) == {str(tmp_path / "kept"): "archsim/machine_code"}
    assert len(build.compiled) == 1 and not build.compiled[0].exists()


def test_a_build_downloads_what_the_environment_lacks_alone(build, monkeypatch):
    assert not any(each.startswith(build.NOT_TO_COMPILE) for each in needs(build))
    there = {each.split(">")[0]: "99" for each in build.NEEDS}
    monkeypatch.setattr(build, "versions", lambda: there)
    assert needs(build) == []
    monkeypatch.setattr(build, "versions", lambda: there | {"numba": "0.1"})
    assert needs(build) == build.NEEDS


def test_code_of_another_numba_is_compiled_anew_where_the_environment_has_one(build, monkeypatch):
    initialized(build)
    numba = json.loads(IS_FOR)["numba"]
    for there, times in ({"numba": numba}, 1), ({}, 1), ({"numba": "99"}, 2):
        monkeypatch.setattr(build, "versions", lambda there=there: there)
        initialized(build, "editable")
        assert len(build.compiled) == times


def failing(build, monkeypatch):
    def refuse(folder, own):
        raise RuntimeError("no such compiler")

    monkeypatch.setattr(build, "compile_into", refuse)


def without(build, monkeypatch):
    monkeypatch.setenv("ARCHSIM_COMPILED", "0")


def on_new_python(build, monkeypatch):
    monkeypatch.setattr(build, "PROJECT", build.PROJECT | {"classifiers": []})


@pytest.mark.parametrize(
    ("where", "reason"),
    [(failing, "no such compiler"), (without, "ARCHSIM_COMPILED is 0"), (on_new_python, "numba may not exist for")],
)
@pytest.mark.parametrize("version", ["standard", "editable"])
def test_no_installation_fails_because_nothing_can_be_compiled(build, monkeypatch, capsys, where, reason, version):
    where(build, monkeypatch)
    assert initialized(build, version) == {} and build.compiled == []
    (line,) = capsys.readouterr().err.splitlines()
    assert "compiled at first use" in line and reason in line
    assert where is failing or needs(build) == []


def test_a_wheel_that_is_asked_to_have_machine_code_is_refused_without(build, monkeypatch):
    monkeypatch.setenv("ARCHSIM_COMPILED", "1")
    failing(build, monkeypatch)
    with pytest.raises(RuntimeError, match="no such compiler"):
        initialized(build)


def test_a_checkout_that_cannot_be_written_still_gives_wheels_with_code(build, monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(build, "folder", lambda: tmp_path / "file" / "kept")
    assert list(initialized(build).values()) == ["archsim/machine_code"]
    assert "kept in no folder" in capsys.readouterr().err


SLOW = "import os, subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"


@pytest.mark.parametrize(("code", "reason"), [("raise OSError('no room')", "OSError: no room"), (SLOW, "over 0 s")])
def test_what_compiles_is_ended_and_its_last_line_told(build, monkeypatch, tmp_path, code, reason):
    monkeypatch.undo()
    monkeypatch.setattr(build, "MOST_S", 0.3)
    if code is not SLOW:
        monkeypatch.setattr(build, "MOST_S", 60)
    popen = subprocess.Popen
    monkeypatch.setattr(build.subprocess, "Popen", lambda _, **given: popen([sys.executable, "-c", code], **given))
    with pytest.raises(RuntimeError, match=reason):
        build.compile_into(tmp_path / "code", tmp_path)


@pytest.mark.nightly
def test_what_is_compiled_without_large_dependencies_is_all_that_a_sweep_needs(build, monkeypatch, tmp_path):
    monkeypatch.undo()
    for name in build.NOT_TO_COMPILE:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('not there')")
    build.compile_into(tmp_path / "code", tmp_path)
    own = {"ARCHSIM_MACHINE_CODE": str(tmp_path / "code"), "ARCHSIM_CACHE": str(tmp_path / "runs")}
    own["NUMBA_CACHE_DIR"] = str(tmp_path / "later")
    changes = ("workload.batch=[64]", "workload.layers=2", "workload.decode_steps=2")
    words = ["sweep", "dojo", *(word for each in changes for word in ("--set", each)), "--out", str(tmp_path / "out")]
    subprocess.run([sys.executable, "-m", "archsim", *words], check=True, env=os.environ | own)
    assert not list((tmp_path / "later").rglob("*.nbc"))


def test_commands_in_a_checkout_find_what_its_installation_compiled(monkeypatch, tmp_path):
    monkeypatch.setattr("archsim.base.code_digest._kept_in", lambda: tmp_path)
    monkeypatch.delenv("ARCHSIM_MACHINE_CODE", raising=False)
    folder = installed_code()
    folder.mkdir()
    try:
        for is_for, found in ((IS_FOR, folder), (IS_FOR.replace("cpython", "pypy"), None)):
            (folder / SHIPPED_FOR).write_text(is_for)
            shipped_code.cache_clear()
            assert shipped_code() == found
    finally:
        monkeypatch.undo()
        shipped_code.cache_clear()


def test_the_package_names_the_versions_of_python_that_run_its_tests():
    """Its classifiers, its ``requires-python`` and the matrix of the tests are one list."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    workflow = yaml.safe_load((CHECKOUT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    tested = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    named = [
        each.rpartition(" ")[2]
        for each in project["classifiers"]
        if each.startswith("Programming Language :: Python :: 3.")
    ]
    assert named == tested and project["requires-python"] == f">={tested[0]}" and "3.13" in tested
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in tested
