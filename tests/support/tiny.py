"""A small experiment that runs in milliseconds, and ways to run ``archsim`` on it."""

import os
import subprocess
import sys
from pathlib import Path

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


def start(folder: Path, *arguments: str) -> subprocess.Popen:
    """``archsim`` with these arguments, in ``folder``; its output is captured."""
    return subprocess.Popen(
        [sys.executable, "-m", "archsim.cli.main", *map(str, arguments)], cwd=folder, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, encoding="utf-8", env=os.environ | {"COLUMNS": "200"},
    )


def archsim(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """The same, run to completion."""
    process = start(folder, *arguments)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)
