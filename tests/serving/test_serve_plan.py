"""Serving is a plan as sweeps are: axes, kept runs, a manifest that reproduces, nothing half-written, progress."""

import json
import re
import subprocess
import sys

import pytest

import archsim as ar
from archsim.base.errors import ArchsimError
from archsim.cli.progress import Lines
from archsim.runs.sweep import Unwatched
from archsim.studies.serving import runs
from archsim.studies.serving.runs import serve_plan

FILE = {
    "system": "h200_node",
    "model": "qwen3-30b-a3b",
    "parallel": {"attention": {"tp": 4}},
    "requests": {"arrivals": {"rate": "6/s"}, "input": {"mean": 200, "cv": 0.5}, "output": {"fixed": 20}, "count": 24},
    "slo": {"ttft": "2 s"},
}
GRID = {"requests.arrivals.rate": ["4/s", "8/s"], "parallel.attention.tp": [4, 3], "scheduler.name": ["sglang"]}
AXES = FILE | {"sweep": {"grid": GRID}}
LAST = ("results.csv", "results.parquet", "index.html", "manifest.yaml")


class Killed(Unwatched):
    """Ends a plan after some runs."""

    def __init__(self, after):
        self.left = after

    def finished(self, run, record):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own."""
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / "cache"))


def read(folder, names=LAST):
    return {name: (folder / name).read_bytes() for name in names}


def test_axes_are_rows_and_what_cannot_run_says_why(tmp_path):
    served = ar.serve_plan(AXES, out=tmp_path)
    rows = served.table.rows
    assert [row["point"] for row in rows] == [0, 1, 2, 3] and {row["scheduler.name"] for row in rows} == {"sglang"}
    assert ["tp 3 does not divide" in row["refused"] for row in rows] == [False, True, False, True]
    assert rows[0]["goodput_per_s"] < rows[2]["goodput_per_s"]
    page = (tmp_path / "index.html").read_text()
    assert "over requests.arrivals.rate" in page or "4 points" in page
    assert len(repr(served).splitlines()) <= 6


def test_linked_axes_take_their_values_together():
    linked = {"requests.arrivals.rate": ["4/s", "8/s"], "requests.count": [12, 24]}
    plan = serve_plan(FILE | {"sweep": {"grid": {"scheduler.name": ["sglang", "vllm_v1"]}, "zip": linked}})
    found = [
        (each.spec.scheduler.name, each.spec.requests.arrivals.rate, each.spec.requests.total) for each in plan.points
    ]
    assert found == [(name, *each) for name in ("sglang", "vllm_v1") for each in ((4.0, 12), (8.0, 24))]
    assert [cell["requests.count"] for cell in plan.cells] == [12, 24, 12, 24]
    with pytest.raises(ArchsimError, match=r"as many values of every key; there are of .*rate 2, requests.count 1"):
        serve_plan(FILE | {"sweep": {"zip": linked | {"requests.count": [12]}}})
    with pytest.raises(ArchsimError, match="varies nothing"):
        serve_plan(FILE | {"sweep": {}})


def test_a_killed_plan_resumes_and_gives_the_same_bytes(tmp_path, monkeypatch):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    ar.serve_plan(FILE, out=whole)
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / "another"))
    with pytest.raises(KeyboardInterrupt):
        ar.serve_plan(FILE, out=killed, watcher=Killed(3))
    assert not any((killed / name).exists() for name in LAST if name != "manifest.yaml")
    ran = []
    row = runs.Simulator._row
    monkeypatch.setattr(runs.Simulator, "_row", lambda self, run: ran.append(run.name) or row(self, run))
    ar.serve_plan(FILE, out=killed)
    assert len(ran) == 6 - 3  # the file's own rate and five shares of it
    names = (*LAST, "bench.json", "requests.csv")
    assert read(killed, names) == read(whole, names)
    page = (whole / "index.html").read_text()
    assert all(f'href="{name}"' in page for name in names if name != "index.html")
    assert "<code>loads: {rates: […]}</code> in the file asks for higher ones" in page
    strict = tmp_path / "strict"
    ar.serve_plan(FILE | {"slo": {"ttft": "1 ms"}}, out=strict)
    assert "asks for higher ones" not in (strict / "index.html").read_text()
    assert '"goodput"' in page and '"throughput"' in page  # lines of a figure
    ran.clear()
    ar.serve_plan(FILE, out=killed)
    assert not ran and read(killed, names) == read(whole, names)


def test_half_a_file_is_not_taken_for_a_whole_one(tmp_path):
    ar.serve_plan(FILE, out=tmp_path, around=False)
    before = read(tmp_path, ("requests.csv", "results.csv"))
    [served] = (tmp_path / "runs").glob("*.npz")
    served.write_bytes(served.read_bytes()[: served.stat().st_size // 2])
    ar.serve_plan(FILE, out=tmp_path, around=False)
    assert read(tmp_path, ("requests.csv", "results.csv")) == before
    [row] = (tmp_path / "runs").glob("*.json")
    row.write_text(row.read_text()[:100])
    ar.serve_plan(FILE, out=tmp_path, around=False)
    assert read(tmp_path, ("requests.csv", "results.csv")) == before


def test_a_manifest_reproduces(tmp_path):
    ar.serve_plan(AXES, out=tmp_path / "one")
    ar.serve_plan(tmp_path / "one" / "manifest.yaml", out=tmp_path / "two")
    assert read(tmp_path / "one") == read(tmp_path / "two")


def test_other_requests_are_another_run(tmp_path):
    first = ar.serve_plan(FILE, out=tmp_path, around=False).table.rows[0]
    second = ar.serve_plan(FILE, ["requests.seed=1"], out=tmp_path, around=False).table.rows[0]
    assert first["run"] != second["run"] and first["ttft_mean_ms"] != second["ttft_mean_ms"]


def test_progress_has_a_phase_and_an_estimate(capsys):
    now = [0.0]
    lines = Lines(sys.stderr, lambda: now[0])
    for at in range(8):
        now[0] = 1.5 * at
        lines.at("ep: serving", at / 10)
    said = capsys.readouterr().err
    assert "ep: serving" in said and "left" in said and len(said.splitlines()) >= 3


@pytest.mark.parametrize(("grid", "told"), [
    ({"requests.rate": ["1/s"]}, "requests: unknown key 'rate'|rate"),
    ({"requests.arrivals.rate": []}, "key: .value, ...."), ({"policies": [["ep"]]}, "an? "),
])
def test_bad_axes_are_refused(grid, told):
    with pytest.raises(ArchsimError, match=told):
        ar.serve_plan(FILE | {"sweep": {"grid": grid}})


def test_a_page_links_every_other_file_of_its_folder_once(tmp_path):
    ar.serve_plan(FILE, out=tmp_path)
    (line,) = (line for line in (tmp_path / "index.html").read_text().splitlines() if 'class="files"' in line)
    links = re.findall(r'href="([^"]+)"', line)
    there = {file.name for file in tmp_path.iterdir() if file.is_file() and not file.name.startswith(".")}
    assert sorted(links) == sorted(there - {"index.html"})


def test_the_command_prints_points(tmp_path):
    (tmp_path / "mine.yaml").write_text(json.dumps(AXES))
    command = [sys.executable, "-m", "archsim.cli.main", "serve", "mine.yaml", "--out", "out"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    assert "4 runs, most goodput first" in process.stdout and "2 runs refused" in process.stdout
    assert process.stderr.startswith("reading mine.yaml")
