"""A small experiment that runs in milliseconds, and ways to run ``archsim`` on it."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from archsim.cli.main import main
from archsim.specs.library import load_experiment

TINY = """\
name: tiny
systems:
- name: small
  source: made up
  mesh: {x: 3, y: 2}
  hbm: {bandwidth: 2 TB/s, capacity: 4 GB}
  d2d: {bandwidth: 1 TB/s}
  compute: {peak: 300 TFLOP/s, dtype: fp16}
- name: square
  source: made up
  mesh: {x: 2, y: 2}
  hbm: {bandwidth: 2 TB/s, capacity: 4 GB}
  d2d: {bandwidth: 1 TB/s}
  compute: {peak: 300 TFLOP/s, dtype: fp16}
models:
- name: toy
  source: made up
  layers: 3
  moe_layers: {first: 1, last: 2}
  hidden: 512
  expert_ffn: 256
  experts: 16
  top_k: 2
  shared_experts: 1
workload: {trace: {synthetic: {prompt_tokens: 3}}, batch: [12, 40], decode_steps: 4}
policies: [base, ep, allo, pred, allo+pred]
assumptions: published
"""

# Allocates as `home` does, slowly: 10 ms a step.
SLOW_POLICY = """\
import time
from archsim.policies.allocation import home

def slowly(step, **params):
    time.sleep(0.01)
    return home(step)
"""


def tiny(folder: Path, *overrides: str):
    """The experiment, from a file in ``folder``, after ``key.path=value`` overrides."""
    return load_experiment(tiny_file(folder), overrides)


def tiny_file(folder: Path) -> Path:
    file = folder / "tiny.yaml"
    file.write_text(TINY, encoding="utf-8")
    return file


def _without_ranges(arguments: tuple) -> list[str]:
    """Ranges take most of the time of a small sweep: a test that is about them asks for samples."""
    words = [str(each) for each in arguments]
    samples_none = {
        "--samples", "--search", "--help", "--figure", "--compare", "--calibrate", "--engines", "--phase", "--without",
    }  # fmt: skip
    takes = words and words[0] in ("sweep", "serve", "run", "compare") and not samples_none & set(words)
    return [*words, "--samples", "0"] if takes else words


def start(folder: Path, *arguments: str) -> subprocess.Popen:
    """``archsim`` with these arguments, in ``folder``; its output is captured."""
    return subprocess.Popen(
        [sys.executable, "-m", "archsim.cli.main", *_without_ranges(arguments)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=os.environ | {"COLUMNS": "200"},
    )


def apart(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """The same to the end, where a process of its own is what matters."""
    process = start(folder, *arguments)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def archsim(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """``apart``, but in this process: one of its own takes seconds to load what is loaded here."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        patch.setenv("COLUMNS", "200")
        try:
            status = main(_without_ranges(arguments))
        except SystemExit as ended:
            status = ended.code
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())
