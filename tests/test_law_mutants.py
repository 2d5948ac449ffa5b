"""Every numbered law of a room kills a mutant: with one line of the source changed, the test that holds it fails."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

ROOT = Path(__file__).parents[1]
COPIED = ("archsim", "microarch", "calibration", "benchmarks", "configs", "tests", "docs", "examples")


class Mutant(NamedTuple):
    """A row of ``law_mutants.yaml``."""

    test: str  # file under tests/ and the test that the room's contract names
    file: str  # of the source
    text: str  # stands there once
    instead: str


MUTANTS = {
    number: Mutant(**row)
    for number, row in yaml.safe_load(Path(__file__).with_name("law_mutants.yaml").read_text()).items()
}


def link(source: str, target: str) -> None:
    """The same file under another name; a copy where the folders are of two file systems."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.mark.nightly
@pytest.mark.parametrize("number", MUTANTS)
def test_a_law_kills_its_mutant(number, tmp_path):
    test, file, text, instead = MUTANTS[number]
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, copy_function=link)
    for name in ("pyproject.toml", "README.md", "mkdocs.yml", "hatch_build.py", ".numba_cache"):
        (tmp_path / name).symlink_to(ROOT / name)
    source = (ROOT / file).read_text(encoding="utf-8")
    assert source.count(text) == 1, f"{file}: {text!r} stands there {source.count(text)} times"
    (tmp_path / file).unlink()
    (tmp_path / file).write_text(source.replace(text, instead), encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-p", "no:cacheprovider", "-m", "", f"tests/{test}"]
    beside = {
        "PYTHONPATH": str(tmp_path),
        "ARCHSIM_SHARED": os.environ.get("ARCHSIM_SHARED", str(ROOT.parent / "shared")),
    }
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=os.environ | beside)
    assert done.returncode == 1 and "failed" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
