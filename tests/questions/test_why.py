"""Why a step takes its time: five lines, whose numbers are those of the run, and levers that are simulated."""

import re

import pytest
from support.tiny import TINY, archsim, tiny_file

import archsim as ar
from archsim.base.errors import ArchsimError
from archsim.runs.results import damage_notes


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with the experiment and its report."""
    folder = tmp_path_factory.mktemp("why")
    (folder / "tiny.yaml").write_text(TINY)
    return folder


@pytest.fixture(autouse=True)
def cache_of_this_test(tmp_path, monkeypatch):
    """No run of another test is reused."""
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / ".cache"))


def test_the_worst_steps_are_those_of_the_run(tmp_path):
    found = ar.why(tiny_file(tmp_path), policy="ep", worst=3)
    steps = ar.run(tiny_file(tmp_path), policy="ep").steps.rows
    worst = sorted((row["time_ns"] for row in steps), reverse=True)[:3]
    assert [row["time_ns"] for row in found.rows] == worst and found.levers


def test_without_a_step_the_worst_ones_follow_what_the_time_goes_to(tmp_path):
    """The first sentence has the share of the largest cause, its range, and the lever that helps most."""
    found = ar.why(tiny_file(tmp_path), policy="ep", worst=3)
    answer, title, *lines = repr(found).splitlines()
    assert answer == found.answer and title == found.run and len(lines) == 1 + 3
    row = ar.run(tiny_file(tmp_path), policy="ep").runs.rows[0]
    share = max(value for name, value in row.items() if name.startswith("bound_") and isinstance(value, float))
    low, high = map(
        int, re.search(r"\((\d+) % to (\d+) % in 90 % of 16 samples\)", answer.replace("\xa0", " ")).groups()
    )
    assert f"{share:.0%}".removesuffix("%") in answer and low <= 100 * share + 1 and 100 * share - 1 <= high
    best = min(found.levers, key=lambda each: each.time_ns)
    assert best.with_it in answer or best.time_ns >= found.rows[0]["time_ns"]


def test_of_a_report_the_run_that_matters_is_explained_and_helped(here):
    """The fastest at the largest batch; one command says the cause and what would help."""
    few = ("--set", "workload.decode_steps=2", "--set", "policies=[base, ep]")
    assert archsim(here, "sweep", "tiny.yaml", "--out", "report", "--jobs", "1", *few).returncode == 0
    rows = ar.Results.load(here / "report").runs.rows
    best = max((row for row in rows if row["batch"] == 40), key=lambda row: row["tokens_per_s"])
    done = archsim(here, "why", "report")
    assert done.returncode == 0, done.stderr
    last = " ".join(done.stdout.split())
    assert f"{best['policy']} on {best['system']}" in last and "batch 40" in last.partition(".")[0]
    assert "largest batch" in last
    assert "tried" in last
    report = here / "report"
    assert damage_notes(report) == []
    for name in ("results.csv", "steps.parquet"):
        (report / name).write_bytes((report / name).read_bytes()[:-9])
    first, second = damage_notes(report)
    assert "results.csv" in first and "steps.parquet" in second
    manifest = report / "manifest.yaml"
    manifest.write_text(manifest.read_text().rpartition(":")[0])  # in the middle of a line
    with pytest.raises(ArchsimError, match="manifest.yaml: "):
        ar.load_experiment(report)


def test_of_a_report_with_axes_the_fastest_point_is_explained(tmp_path):
    """At its value of the axis, not at the file's; under the other policies, too."""
    (tmp_path / "axes.yaml").write_text(TINY + "sweep: {grid: {system.hbm.bandwidth: [1 TB/s, 3 TB/s]}}\n")
    few = ("--set", "workload.decode_steps=1", "--set", "policies=[base, ep]", "--jobs", "1", "--samples", "0")
    assert archsim(tmp_path, "sweep", "axes.yaml", "--out", "report", *few).returncode == 0
    rows = ar.Results.load(tmp_path / "report").runs.rows
    best = max((row for row in rows if row["batch"] == 40), key=lambda row: row["tokens_per_s"])
    done = archsim(tmp_path, "why", "report")
    assert done.returncode == 0, done.stderr
    assert f"at its largest batch, point {best['point']} (system.hbm.bandwidth 3 TB/s)." in done.stdout
    assert best["system"] in done.stdout and "has no effect" not in done.stderr
    assert ar.why(tmp_path / "report").as_answer().parts[0] == done.stdout.splitlines()[0]


def test_the_five_lines_of_a_step(here):
    done = archsim(here, "why", "tiny.yaml", "--policy", "base", "--batch", "40", "--step", "2", "--layer", "2")
    assert done.returncode == 0, done.stderr
    answer, title, *lines = done.stdout.splitlines()
    assert (
        answer.startswith("Layer 2 in iteration 2 spends ")
        and title == "small toy batch 40 base published, iteration 2, layer 2"
    )
    assert [line.split()[0] for line in lines] == ["cause", "link", "die", "expert", "help"]
    assert "× the mean" in lines[2] and "under policy ep" in lines[4]


def test_a_lever_is_the_step_of_the_changed_machine(tmp_path):
    """The step of a run on a system with twice the links, under the same policy."""
    said = []
    found = ar.why(tiny_file(tmp_path), policy="base", batch=40, step=2, layer=2, report=said.append)
    assert len(said) >= len(found.levers) and said[-1].endswith("4 of 4")
    times = {each.what: each.time_ns for each in found.levers}
    faster = ar.load_experiment(tiny_file(tmp_path), ["systems.0.d2d.bandwidth=2 TB/s"])
    (row,) = [
        row for row in ar.run(faster, policy="base", batch=40).steps.rows if (row["step"], row["layer"]) == (2, 2)
    ]
    assert times["links twice as fast"] == row["time_ns"] <= found.rows[0]["time_ns"]


def test_one_of_step_and_layer_is_the_slowest_of_it(tmp_path):
    found = ar.why(tiny_file(tmp_path), policy="ep", layer=1)
    assert {row["layer"] for row in found.rows} == {1} and found.levers
    assert found.rows[0]["time_ns"] == max(row["time_ns"] for row in found.rows)


def test_a_step_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ArchsimError, match=r"\b17\b.* iterations 0 "):
        ar.why(tiny_file(tmp_path), step=17, layer=30)
    with pytest.raises(ArchsimError, match="layer 30: .* 1, 2"):
        ar.why(tiny_file(tmp_path), step=1, layer=30)
