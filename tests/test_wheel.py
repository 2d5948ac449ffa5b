"""Builds of the package: only a wheel that is to take machine code along needs what archsim itself needs."""

from pathlib import Path
from types import SimpleNamespace

import pytest

hatchling = pytest.importorskip("hatchling", reason="builds need hatchling")
CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture
def build(monkeypatch):
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.syspath_prepend(str(CHECKOUT))
    import hatch_build

    monkeypatch.setattr(hatch_build, "WANTED", True)
    return hatch_build


@pytest.fixture
def compiled(build, monkeypatch):
    """Commands that would compile; ``returncode`` is theirs."""
    found = SimpleNamespace(commands=[], returncode=0, stderr="no such thing")

    def run(command, **_):
        found.commands.append(command)
        return found

    monkeypatch.setattr(build.subprocess, "run", run)
    return found


def initialized(build, version):
    data = {"force_include": {}}
    hook = build.MachineCode(str(CHECKOUT), {}, None, SimpleNamespace(version="0.2.0"), "dist", "wheel")
    try:
        hook.initialize(version, data)
    finally:
        hook.finalize(version, data, "")
    return data["force_include"]


def test_machine_code_is_put_into_wheels_alone(build, compiled):
    assert list(initialized(build, "standard").values()) == ["archsim/machine_code"]
    assert initialized(build, "editable") == {} and len(compiled.commands) == 1
    assert compiled.commands[0][1:4] == ["-m", "archsim", "compile"]


def test_a_build_needs_numba_only_where_it_compiles(build, monkeypatch):
    assert any(each.startswith("numba") for each in build.get_requires_for_build_wheel())
    assert not any(each.startswith("numba") for each in build.get_requires_for_build_editable())
    monkeypatch.setattr(build, "WANTED", False)
    assert not any(each.startswith("numba") for each in build.get_requires_for_build_wheel())
    assert initialized(build, "standard") == {}


def test_a_wheel_that_cannot_be_compiled_is_refused(build, compiled):
    compiled.returncode = 2
    with pytest.raises(RuntimeError, match="no such thing"):
        initialized(build, "standard")
