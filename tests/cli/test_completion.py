"""Completion of commands, options and names, as the scripts of the shells ask for it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from archsim.cli.list import SCRIPTS, completions
from archsim.cli.main import main


@pytest.mark.parametrize(("line", "found"), [
    ("swe", ["sweep"]), ("sweep explo", ["explore_dojo", "explore_spares"]), ("sweep dojo --sched", ["--scheduler"]),
    ("trace im", ["import"]), ("list sys", ["systems"]), ("new mo", ["model"]),
    ("run dojo --policy allo-", ["allo-paper", "allo-lp"]),
    ("run dojo --model deepseek-v3", ["deepseek-v3", "deepseek-v3.2"]),
    ("place x.npz --system isca26_d", ["isca26_dojo"]), ("validate --with h2", ["h20", "h200"]), ("nothing he", []),
])
def test_a_word_is_completed(line, found):
    words = line.split()
    assert completions(words, len(words)) == found


def test_a_new_word_after_the_last():
    assert {"import", "synth"} <= set(completions(["trace"], 2))


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_script_is_valid(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "archsim list --completion --words" in script
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script, text=True, check=False).returncode == 0


def test_bash_completes(tmp_path):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    (tmp_path / "archsim").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m archsim.cli.main "$@"\n')
    (tmp_path / "archsim").chmod(0o755)
    asked = "COMP_WORDS=(archsim swe); COMP_CWORD=1; _archsim; echo ${COMPREPLY[@]}"
    code = f'PATH="{tmp_path}:$PATH"; source <(archsim list --completion bash); {asked}'
    ended = subprocess.run([bash, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert ended.stdout.split() == ["sweep"], ended.stderr


def test_a_shell_is_needed(capsys):
    assert main(["completion"]) == 2
    assert "bash, zsh or fish" in capsys.readouterr().err
