"""Machine code that is kept on disk: what is damaged is compiled anew, and said."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pytest
from support.examples import sampled
from support.from_python import from_python

from archsim.base.code_digest import (
    COMPILED,
    KERNELS,
    SHIPPED_FOR,
    _shipped_names,
    code_is_for,
    digest_here,
    machine_code,
    shipped_code,
)
from archsim.base.compiled import allocating, for_shipping, inner, kernel, outer, pointer, reference, ship
from archsim.cli.compile import RUNS


def twice(number):
    return 2 * number


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("decorate", [kernel, allocating])
def test_others_run_beside_a_kernel(decorate):
    assert decorate(twice).targetoptions["nogil"]


@pytest.mark.parametrize("decorate", [kernel, allocating])
def test_machine_code_is_kept(folder, caplog, decorate):
    assert [decorate(twice)(np.int64(21)) for _ in range(2)] == [42, 42]
    again = decorate(twice)
    assert again(np.int64(4)) == 8 and sum(again.stats.cache_hits.values()) == 1 and not caplog.records


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("seed", [pytest.param(at, marks=[pytest.mark.nightly] if at > 3 else []) for at in range(40)])
def test_what_is_damaged_is_compiled_anew(folder, caplog, ending, seed):
    kernel(twice)(np.int64(1))
    (file,) = folder.rglob(f"*.{ending}")
    content, rng = bytearray(file.read_bytes()), random.Random(seed)
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content[: rng.randrange(len(content))] if seed % 4 == 0 else content)
    damaged = kernel(twice)
    assert damaged(np.int64(21)) == 42
    if damaged.stats.cache_hits:  # the bit does not tell anything, as in the name of a pickle's frame
        return
    said = len(caplog.records)  # none where the index is of another version, or of another signature
    mended = kernel(twice)
    assert mended(np.int64(4)) == 8 and sum(mended.stats.cache_hits.values()) == 1 and len(caplog.records) == said
    assert said == 0 or "it is compiled anew" in caplog.text


def test_a_callback_is_kept_and_compiled_anew(folder, caplog):
    signature = numba.types.int64(numba.types.int64)
    assert pointer(twice, signature).ctypes(4) == 8
    (file,) = folder.rglob("*.nbc")
    file.write_bytes(file.read_bytes()[:100])
    assert pointer(twice, signature).ctypes(5) == 10 and "it is compiled anew" in caplog.text
    caplog.clear()
    assert pointer(twice, signature).cache_hits == 1 and not caplog.records


COMPILES = """
import sys, numba
import numpy as np
from archsim.base.compiled import kernel
sys.path.insert(0, sys.argv[1])
from slow import total
numba.config.CACHE_DIR = sys.argv[1]
found = kernel(total)
print("ready", flush=True)
input()
found(np.arange(3))
print(sum(found.stats.cache_hits.values()))
"""


def test_one_process_compiles_and_the_others_load(tmp_path):
    (tmp_path / "slow.py").write_text("def total(values):\n    return values.sum()\n")
    command = [sys.executable, "-c", COMPILES, str(tmp_path)]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [each.stdout.readline() for each in both] == ["ready\n"] * 2
    for each in both:
        each.stdin.write("\n")
        each.stdin.flush()
    assert sorted(each.communicate()[0] for each in both) == ["0\n", "1\n"]


@pytest.mark.parametrize("imported", sampled(["archsim, numba", "numba, archsim"], "numba, archsim".__eq__))
def test_the_folder_of_machine_code_does_not_depend_on_what_is_imported_first(imported):
    code = f"import {imported}; from archsim.base.compiled import unsigned; print(numba.config.CACHE_DIR)"
    beside = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    found = subprocess.run([sys.executable, "-c", code], env=beside, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).name == digest_here(COMPILED)


def test_all_machine_code_on_disk_is_sealed():
    root = Path(__file__).resolve().parents[2]
    files = [file for room in ("archsim", "microarch", "calibration") for file in (root / room).rglob("*.py")]
    assert len(files) > 100
    assert not [file for file in files if "cache=True" in file.read_text(encoding="utf-8")]


def seconds_left(*expected):
    """How long processes still compile; 0 where none does."""
    code = machine_code(*expected)
    return code.missing_s if code.going_on else 0


def test_what_compiles_now_is_told_with_the_time_that_it_takes(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert seconds_left() == 0
    (tmp_path / "shared.run_step-560.py311.nbi.lock").touch()
    (tmp_path / "shared.short-12.py311.nbi.lock").touch()
    assert 0 < seconds_left() <= 20
    os.utime(tmp_path / "shared.run_step-560.py311.nbi.lock", (0, 0))  # of a process that was ended
    assert seconds_left() == 0
    (tmp_path / "walk._walk_held-151.py311.nbi.lock").touch()
    assert 0 < seconds_left() <= 7
    (tmp_path / "walk._walk_held-151.py311.1.nbc").touch()
    assert seconds_left() == 0


def test_kernels_that_a_command_will_need_are_counted_as_slow_as_those_before(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("archsim.base.code_digest._shipped_names", frozenset)  # by no installation, either
    (tmp_path / "now").touch()
    begun_s = (tmp_path / "now").stat().st_mtime
    whole_s = sum(KERNELS["runs"].values()) + sum(KERNELS["shared"].values())
    (tmp_path / "generative._generate-1.py311.nbi.lock").touch()
    assert whole_s - 1 < seconds_left(["runs", "shared"], begun_s) <= whole_s
    (tmp_path / "generative._generate-1.py311.1.nbc").touch()
    (tmp_path / "shared.run_step-560.py311.nbi.lock").touch()
    least_s = seconds_left(["shared"], begun_s)
    assert 13 < least_s <= KERNELS["shared"]["shared.run_step"]
    assert seconds_left(["shared"], begun_s - 3 * KERNELS["runs"]["generative._generate"]) > 2.5 * least_s
    os.utime(tmp_path / "shared.run_step-560.py311.nbi.lock", (begun_s - 20, begun_s - 20))
    assert seconds_left(["shared"], begun_s) == 1  # it still goes on


def test_what_is_missing_is_told_before_anything_compiles(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("archsim.base.code_digest._shipped_names", frozenset)  # by no installation, either
    (tmp_path / "generative._generate-1.py311.1.nbc").touch()
    (tmp_path / "generative._generate-1.py311.2.nbc").touch()
    os.utime(tmp_path / "generative._generate-1.py311.1.nbc", (0, 0))
    os.utime(tmp_path / "generative._generate-1.py311.2.nbc", (0, 0))
    least_s = sum(KERNELS["runs"].values()) - KERNELS["runs"]["generative._generate"]
    assert machine_code(["runs"]) == (2, pytest.approx(least_s), False)


# ---- Machine code that comes with the package: for any processor of a kind, and of no other sources.

SOLVES = """
import numpy as np
from archsim.laws.gemm import solve_definite
matrix = np.random.default_rng(5).random((30, 30))
right = np.arange(60.0).reshape(2, 30)
solve_definite(matrix @ matrix.T + np.eye(30), right)
"""
ANSWERS = (
    SOLVES
    + """
print(right.tobytes().hex())
"""
)


def answered(kept: Path, code: str | Path, beside=()) -> str:
    """The bits that another process finds, which leaves its machine code in ``kept``; ``code``: what is shipped."""
    own = {"NUMBA_CACHE_DIR": str(kept), "ARCHSIM_MACHINE_CODE": str(code), **dict(beside)}
    done = subprocess.run(
        [sys.executable, "-c", ANSWERS], env={**os.environ, **own}, capture_output=True, text=True, check=True
    )
    assert not done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """A folder of machine code, and the bits that it found where it was compiled."""
    kept, folder = tmp_path_factory.mktemp("kept"), tmp_path_factory.mktemp("shipped")
    bits = answered(kept, "0", for_shipping(kept))
    assert ship(kept, folder) == 1
    return folder, bits


@pytest.fixture
def asked_for(shipped, tmp_path, monkeypatch):
    """A copy of that folder, which this process asks for machine code."""
    folder = tmp_path / "machine_code"
    shutil.copytree(shipped[0], folder)
    monkeypatch.setenv("ARCHSIM_MACHINE_CODE", str(folder))
    for found in (shipped_code, _shipped_names):
        found.cache_clear()
    yield folder
    monkeypatch.undo()
    for found in (shipped_code, _shipped_names):
        found.cache_clear()


def test_shipped_code_finds_the_same_bits_as_code_for_this_processor_and_nothing_is_compiled(shipped, tmp_path):
    folder, bits = shipped
    found = {}
    exec(SOLVES, found)  # in this process, with code for this processor
    assert found["right"].tobytes().hex() == bits
    assert answered(tmp_path, folder) == bits and not list(tmp_path.rglob("*.nbc"))


@pytest.mark.nightly
@pytest.mark.parametrize("part", RUNS)
def test_runs_with_shipped_code_have_the_bytes_of_runs_with_code_for_this_processor(part, tmp_path):
    function, file, *changes = RUNS[part]
    verb = {"serve_plan": ["serve"], "explore": ["sweep", "--search"]}.get(function, [function])
    words = [word for change in changes for word in ("--set", change)]

    def found(name, **own):
        beside = {"ARCHSIM_CACHE": str(tmp_path / f"results-{name}"), "NUMBA_CACHE_DIR": str(tmp_path / name), **own}
        command = [sys.executable, "-m", "archsim", *verb, file, *words, "--out", str(tmp_path / f"out-{name}")]
        subprocess.run(command, env={**os.environ, **beside}, check=True, capture_output=True)
        return (tmp_path / f"out-{name}" / "results.parquet").read_bytes()

    native = found("native", ARCHSIM_MACHINE_CODE="0")
    assert found("portable", **for_shipping(tmp_path / "portable")) == native
    functions = ship(tmp_path / "portable", tmp_path / "code")
    assert found("shipped", ARCHSIM_MACHINE_CODE=str(tmp_path / "code")) == native
    assert functions >= 10 and not list((tmp_path / "shipped").rglob("*.nbc"))


def test_code_of_other_sources_or_libraries_is_not_loaded(asked_for):
    assert shipped_code() == asked_for
    is_for = code_is_for()
    for name in is_for:
        (asked_for / SHIPPED_FOR).write_text(json.dumps(is_for | {name: "another"}))
        shipped_code.cache_clear()
        assert shipped_code() is None
    (asked_for / SHIPPED_FOR).write_text("{")
    shipped_code.cache_clear()
    assert shipped_code() is None


def test_shipped_code_is_not_waited_for(asked_for, monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "none"))
    monkeypatch.setattr("archsim.base.code_digest._TAKES_S", {"gemm.solve_definite": 7.0, "gemm.other": 5.0})
    monkeypatch.setattr("archsim.base.code_digest.KERNELS", {"laws": {"gemm.solve_definite": 7.0, "gemm.other": 5.0}})
    assert machine_code(["laws"]).missing_s == 5.0


def test_a_damaged_file_of_shipped_code_is_compiled_anew(asked_for, tmp_path, monkeypatch, caplog):
    from archsim.laws.gemm import solve_definite

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))

    def solved():
        right = np.ones((1, 1))
        solver = kernel(solve_definite.py_func)
        solver(np.full((1, 1), 4.0), right)
        assert right == 0.25
        return sum(solver.stats.cache_hits.values())

    (file,) = asked_for.rglob("*.nbc")
    assert solved() == 1 and not list((tmp_path / "kept").rglob("*.nbc"))
    file.write_bytes(file.read_bytes()[:100])
    assert solved() == 0 and "it is compiled anew" in caplog.text and list((tmp_path / "kept").rglob("*.nbc"))
    assert solved() == 1  # of what was compiled


# ---- Functions of kernels: called by kernels, refused in Python.


@pytest.mark.parametrize("decorate", [inner, outer])
def test_python_is_told_that_a_function_is_for_kernels(decorate):
    @decorate
    def twice(number):
        return 2 * number

    assert from_python(twice)(21) == 42
    with pytest.raises(TypeError, match=r"twice is for kernels alone; in Python call twice\.py_func"):
        twice(21)
    assert twice.py_func(21) == 42


# ---- References of kernels: a named tuple that is handed on as one address.

ROW = np.dtype([("real", "f8"), ("whole", "i8")], align=True)


class Inside(NamedTuple):
    values: np.ndarray  # float64[n]
    each: int
    wanted: bool


class Outside(NamedTuple):
    inside: Inside
    rows: np.ndarray  # ROW[n]
    pair: tuple
    table: np.ndarray  # int64[n, 2]


@inner
def _value(inside, at):
    return inside.values[at]


@outer
def _work(s, at):
    s.inside.values[at] += s.inside.each
    if s.inside.wanted:
        s.rows[at].real += 1.5
        s.rows[at].whole -= at
    s.table[at, 1] += len(s.pair[0]) + s.pair[1]
    return _value(s.inside, at)


@kernel
def by_value(s):
    total = 0.0
    for at in range(len(s.rows)):
        total += _work(s, at)
    return total


@kernel
def by_reference(s):
    s = reference(reference(s))
    total = 0.0
    for at in range(len(s.rows)):
        total += _work(s, at)
    return total


def test_a_kernel_reads_through_a_reference_what_it_would_read_of_the_tuple():
    def state():
        inside = Inside(np.arange(4.0), 3, True)
        return Outside(inside, np.zeros(4, ROW), (np.zeros(3), 2), np.zeros((4, 2), np.int64))

    one, other = state(), state()
    assert by_value(one) == by_reference(other) == 18.0
    assert other.inside.values.tolist() == [3.0, 4.0, 5.0, 6.0] and other.table[:, 1].tolist() == [5] * 4
    assert other.rows.tolist() == one.rows.tolist() == [(1.5, -at) for at in range(4)]


def test_two_references_in_one_kernel_are_apart():
    @kernel
    def both(one, other):
        one, other = reference(one), reference(other)
        return one.each * 10 + other.each

    assert both(Inside(np.zeros(1), 1, True), Inside(np.zeros(1), 2, False)) == 12
