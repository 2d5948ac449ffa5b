"""`archsim compile`: small commands that need all kernels, each in a process of its own."""

import subprocess

import pytest

from archsim.cli import compile as compiling
from archsim.cli.main import main
from archsim.runs.plan import select
from archsim.specs.library import load_planned
from archsim.specs.serving_files import load_serving


@pytest.fixture
def asked(monkeypatch):
    commands = []

    def run(command, *, env, **_):
        commands.append((command[3:], env["ARCHSIM_CACHE"]))
        return subprocess.CompletedProcess(command, 3 if "reserved" in run.fails else 0, "", "no such thing")

    run.fails = ""
    monkeypatch.setattr(compiling.subprocess, "run", run)
    return commands, run


def test_each_part_runs_in_a_process_that_finds_no_results(asked, capsys):
    commands, _ = asked
    assert main(["compile", "--jobs", "1"]) == 0
    told = capsys.readouterr().out
    assert all(what in told for what in compiling.RUNS) and "functions in" in told
    assert len({cache for _, cache in commands}) == len(commands) == len(compiling.RUNS)


def test_a_part_that_fails_is_told(asked, capsys):
    asked[1].fails = "reserved"
    assert main(["compile", "--jobs", "1"]) == 2
    assert "ended with 3: no such thing" in capsys.readouterr().err


@pytest.mark.parametrize("what", compiling.RUNS)
def test_parts_are_small_and_their_keys_exist(what):
    verb, file, *changes = compiling.RUNS[what]
    if verb == "serve":
        assert load_serving(file, changes).given["requests"]["count"] <= 20
        return
    runs = select(load_planned(file, changes)).runs()
    assert 5 <= len(runs) <= 10 and all(run.demand.selections < 1000 for run in runs)
