# ruff: noqa: E501  (one row a case: a table is read across)
"""``archsim sweep`` and ``archsim run`` from the user's side."""

import csv
import json
import os
import pty
import re
import subprocess
import sys

import pytest
from support.examples import sampled
from support.tiny import archsim, start, tiny_file

from archsim.cli.main import main
from archsim.runs.traffic_notes import THREE_NUMBERS
from archsim.show.units import RATE_UNITS, TIME_UNITS, with_unit

FINITE = ["--set", "assumptions={set: published, capacity: finite}"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """(folder, what the first sweep printed); no run is found in the cache of another test."""
    folder = tmp_path_factory.mktemp("cli")
    tiny_file(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHSIM_CACHE", str(folder / ".cache"))
        return folder, archsim(folder, "sweep", "tiny.yaml", "--jobs", "1")


def test_sweep_prints_lines_a_table_and_where_the_page_is(swept):
    folder, ended = swept
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == "tiny: 20 runs, 1 job → reports/tiny"
    assert lines[-1] == "report: reports/tiny/index.html"
    assert (folder / "reports" / "tiny" / "index.html").stat().st_size > 1000
    progress = [line for line in ended.stderr.splitlines() if line.startswith("running [")]
    assert len(progress) == 10 and "[2/20]" in progress[0] and "[20/20]" in progress[-1]
    [estimate] = [line for line in ended.stderr.splitlines() if line.startswith("running; ")]
    assert " on 1 core when compiled" in estimate


def test_table_of_speedups_is_that_of_the_results(swept):
    folder, ended = swept
    with (folder / "reports" / "tiny" / "results.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    shown = [line.split() for line in ended.stdout.splitlines() if line.startswith(" ") and "published" in line]
    assert [line[:4] for line in shown] == [
        [row[name] for name in ("system", "model", "batch", "assumptions")] for row in rows if row["policy"] == "base"
    ]
    every = [cell for line in shown for cell in line[4:] if not cell.startswith("(")]  # a range in brackets
    assert every == [f"{float(row['speedup_vs_ep']):.2f}×" for row in rows]


def test_second_sweep_says_that_all_runs_are_kept(swept):
    folder, _ = swept
    ended = archsim(folder, "sweep", "tiny.yaml", "--jobs", "2")
    phases = (
        "  ",
        "compiling kernels, once: ",
        "loading the simulator",
        "running; ",
    )  # which one depends on what ran before
    lines = [line for line in ended.stderr.splitlines() if not line.startswith(phases)]
    assert ended.returncode == 0
    assert lines[:3] == ["reading tiny.yaml ...", "20 of 20 runs kept from before", "writing the page ..."]
    assert f"note: {THREE_NUMBERS}" in lines and all(line.startswith(("note: ", "ranges of ")) for line in lines[3:])


@pytest.mark.nightly
def test_terminal_gets_a_bar(tmp_path):
    """A pseudo-terminal as stderr: not one line per run, but a bar that counts them."""
    tiny_file(tmp_path)
    leader, follower = pty.openpty()
    arguments = [
        sys.executable,
        "-m",
        "archsim.cli.main",
        "sweep",
        "tiny.yaml",
        "--jobs",
        "1",
        "--set",
        "workload.batch=12",
    ]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "150"}
    process = subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=follower, env=environment)
    os.close(follower)
    shown = b""
    try:
        while piece := os.read(leader, 65536):
            shown += piece
    except OSError:  # Linux says so when the other side has closed
        pass
    os.close(leader)
    assert process.wait(60) == 0
    text = shown.decode()
    assert "10/10" in text and "━" in text and "simulated in" not in text


def test_something_is_shown_before_the_runs(tmp_path):
    """The first line does not wait for compilers, traces or runs."""
    tiny_file(tmp_path)
    (tmp_path / "stuck.py").write_text("import time\ndef stuck(step, **params):\n    time.sleep(600)\n")
    process = start(
        tmp_path, "sweep", "tiny.yaml", "--jobs", "1", "--set", "policies=[{name: s, allocation: stuck:stuck}]"
    )
    assert process.stdout.readline() == "tiny: 4 runs, 1 job → reports/tiny\n"
    process.kill()
    process.communicate()


def test_dry_run_shows_every_run_and_writes_nothing(tmp_path):
    tiny_file(tmp_path)
    ended = archsim(tmp_path, "sweep", "tiny.yaml", "--dry-run", *FINITE)
    assert ended.returncode == 0 and not [line for line in ended.stderr.splitlines() if not line.startswith("  ")]
    rows = [line.split() for line in ended.stdout.splitlines() if "published" in line]
    assert len(rows) == 20 and {row[-1] for row in rows} == {"yes"}
    # 16 experts of 3 slices of 512 × 256 fp16 in 2 layers: 3 experts on die 0; 4 GB less 10 %.
    small = next(row for row in rows if row[0] == "small")
    assert small[5:] == ["0", "0.0", "–", "–", "3.6", "3.6", "yes"]
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.yaml"]


def test_dry_run_of_what_does_not_fit(tmp_path):
    tiny_file(tmp_path)
    ended = archsim(tmp_path, "sweep", "tiny.yaml", "--dry-run", *FINITE, "--set", "systems.1.hbm.capacity=2MB")
    assert ended.returncode == 2
    rows = [line.split() for line in ended.stdout.splitlines() if "published" in line]
    assert {(row[0], row[-1]) for row in rows} == {("small", "yes"), ("square", "no")}
    assert ended.stderr.startswith("toy does not fit on square: die 0 needs ") and ended.stderr.count("\n") == 1


def test_dry_run_where_memory_is_not_limited(tmp_path):
    tiny_file(tmp_path)
    ended = archsim(tmp_path, "sweep", "tiny.yaml", "--dry-run", "--set", "systems.1.hbm.capacity=2MB")
    assert ended.returncode == 0 and ended.stdout.count("not limited") == 20


def test_sweep_refuses_what_does_not_fit(tmp_path):
    tiny_file(tmp_path)
    ended = archsim(tmp_path, "sweep", "tiny.yaml", *FINITE, "--set", "systems.1.hbm.capacity=2MB")
    assert ended.returncode == 2 and "toy does not fit on square" in ended.stderr
    assert not (tmp_path / "reports").exists()


def test_run_prints_its_row(swept):
    folder, _ = swept
    ended = archsim(folder, "run", "tiny.yaml", "--policy", "allo", "--system", "square", "--batch", "40")
    assert ended.returncode == 0, ended.stderr
    printed = dict(re.split(r"\s{2,}", line.strip())[:2] for line in ended.stdout.splitlines() if "  " in line.strip())
    with (folder / "reports" / "tiny" / "results.csv").open(newline="") as stream:
        row = next(row for row in csv.DictReader(stream) if row["run"] == printed["run"])
    assert (row["policy"], row["system"], row["batch"]) == ("allo", "square", "40")
    assert printed["decode"] == with_unit(float(row["decode_ns"]), TIME_UNITS) and printed["policy"] == "allo"
    assert printed["throughput"] == with_unit(float(row["tokens_per_s"]), RATE_UNITS)
    assert (
        "one of base, ep, allo, pred, allo+pred (choose with --policy)" in ended.stdout and "None" not in ended.stdout
    )


@pytest.mark.parametrize("assumptions", ["published", "physical"])
def test_run_writes_a_timeline(tmp_path, assumptions):
    tiny_file(tmp_path)
    arguments = ["--policy", "allo", "--step", "2", "--layer", "1", "--timeline", "step.json"]
    ended = archsim(tmp_path, "run", "tiny.yaml", *arguments, "--set", f"assumptions={assumptions}")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1].startswith("timeline: step.json")
    timeline = json.loads((tmp_path / "step.json").read_text())
    assert timeline["otherData"]["title"] == f"small toy batch 12 allo {assumptions}, iteration 2, layer 1"
    slices = [event for event in timeline["traceEvents"] if event["ph"] == "X"]
    assert len(slices) > 10
    path = [event for event in slices if event["pid"] == 1]
    ends = max(event["ts"] + event["dur"] for event in slices)
    assert len(path) > 2 and sum(event["dur"] for event in path) == pytest.approx(ends, abs=0.01)
    rates = [event["args"]["GB/s"] for event in timeline["traceEvents"] if event.get("name") == "HBM: rate"]
    assert 0 < max(rates) <= 2000.1  # of the system


def test_out_that_cannot_be_written(tmp_path, capsys):
    from archsim.cli.main import main

    (tmp_path / "file").write_text("")
    assert main(["sweep", str(tiny_file(tmp_path)), "--out", str(tmp_path / "file" / "out")]) == 2
    assert "cannot be written to" in capsys.readouterr().err


@pytest.mark.parametrize(("changes", "said"), [
    (["workload.trace={synthetic: {prompt_tokens: 0}}", "assumptions=[physical]"], "workload.context"),
    (["workload.trace={synthetic: {like: deepseek-v3}}"], "traffic of 256 experts, top-2; model toy has 16, top-2"),
    (["systems.0.compute={calibration: h100, dtype: nvfp4, peak: 1 PFLOP/s}",
     "assumptions=[physical]"] + ["workload.context=8"], "has no fused MoE table of dtype 'nvfp4'"),
    (["systems.1.hbm.capacity=2MB", FINITE[1], "workload.context=0"], "toy does not fit on square"),
])  # fmt: skip
def test_check_refuses_what_a_sweep_would(tmp_path, capsys, changes, said):
    file = tiny_file(tmp_path)
    sizes = ["attention={heads: 8, kv_heads: 8, head_dim: 64}", "vocabulary=100", "dense_ffn=512"]
    given = [str(file), *(word for size in sizes for word in ("--set", f"models.0.{size}"))]
    given += [word for change in changes for word in ("--set", change)]
    for command in (["check"], ["sweep", "--dry-run"], ["sweep", "--out", str(tmp_path / "out")]):
        assert main([*command, *given]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name", sampled(["balancers", "explore_dojo", "explore_spares"], lambda name: name == "explore_spares")
)
def test_every_point_of_a_shipped_sweep_can_run(name, capsys):
    """As `check` says, which asks what a sweep asks. tests/runs/test_sweeps.py has the design space, which is larger."""
    assert main(["check", name]) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "room for" in said and said.count("tokens of KV") <= 8
