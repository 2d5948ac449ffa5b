"""Drawn machines: their distribution, the page, explorations over spares, worth of speeds, and a die that dies."""

import csv

import pytest
import yaml

from archsim.base.errors import SpecError
from archsim.cli.main import main
from archsim.runs.plan import choose, select
from archsim.runs.wafers import SCRAPPED
from archsim.specs.library import load_experiment, load_planned
from archsim.studies.wafers import death_of, distributions, drawing

TOY = {
    "name": "toy", "source": "made up", "layers": 2, "moe_layers": {"first": 1, "last": 1}, "hidden": 1024,
    "expert_ffn": 2048, "experts": 24, "top_k": 2,
}  # fmt: skip
SYSTEM = {
    "name": "small", "source": "made up", "mesh": {"x": 3, "y": 2}, "hbm": {"bandwidth": "2 TB/s", "capacity": "4 GB"},
    "d2d": {"bandwidth": "1 TB/s"}, "compute": {"peak": "50 TFLOP/s", "dtype": "fp16"},
}  # fmt: skip
DRAWN = {"defects_per_cm2": 0.1, "die_area": "600 mm2", "core_area": "400 mm2", "link_failure": "10 %", "wafers": 4}


def experiment(policies=("ep",), systems=None, **more):
    keys = {"drawn": DRAWN, "dies_as_built": {"speed": {"sigma": "5 %"}, "harvest": {"cores": 64, "needed": 56}}}
    return {
        "name": "wafers", "systems": systems or [SYSTEM | keys], "models": [TOY], "policies": list(policies),
        "workload": {"trace": {"synthetic": {"prompt_tokens": 0}}, "batch": [600], "decode_steps": 1},
        "assumptions": [{"set": "physical", "gemm": "roofline", "memory": "experts"}], "engine": "analytical",
    } | more  # fmt: skip


def written(folder, given):
    file = folder / "wafers.yaml"
    file.write_text(yaml.safe_dump(given))
    return str(file)


def test_a_sweep_of_drawn_machines_prints_and_draws_their_distribution(tmp_path, capsys):
    report = tmp_path / "report"
    assert main(["sweep", written(tmp_path, experiment()), "--out", str(report), "--jobs", "1"]) == 0
    assert "drawn machines" in capsys.readouterr().out
    (row,) = csv.DictReader((report / "wafers.csv").read_text().splitlines())
    plan = load_planned(experiment())
    selection = select(plan)
    assert int(row["made"]) == 4 and int(row["working"]) == len(selection)
    assert selection.dropped.by_constraint.get(SCRAPPED, 0) == 4 - len(selection)
    low, middle, high = (float(row[f"p{each}_tokens_per_s"]) for each in (5, 50, 95))
    assert low <= middle <= high <= float(row["best_tokens_per_s"])
    price = float(row["usd"]) * 4 / (int(row["working"]) * float(row["mean_tokens_per_s"]))
    assert float(row["usd_per_token_per_s"]) == pytest.approx(price, rel=1e-4)
    page = (report / "index.html").read_text()
    assert 'id="wafers"' in page and "built to the same design" in page


def test_scrapped_machines_are_paid_for_by_the_others():
    plan = load_planned(experiment())
    kept = select(plan).kept
    rows = [{"point": number, "tokens_per_s": 100.0 + at, "cost_usd": 1000.0} for at, number in enumerate(kept)]
    (found,) = distributions(plan, rows)
    assert found.made == 4 and found.working == len(kept)
    assert sum(found.bins) == pytest.approx(found.working / 4)
    assert [row["best"] for row in drawing([found]).rows] == [found.best]


def test_an_exploration_takes_all_machines_of_a_design(tmp_path, capsys):
    sweep = {"grid": {"system.spares.dies": [0, 1]}}
    asked = {"objectives": ["throughput", "cost", "throughput / cost"], "event_runs": 1}
    file = written(tmp_path, experiment(sweep=sweep, explore=asked))
    assert main(["explore", file, "--out", str(tmp_path / "found"), "--jobs", "1"]) == 0
    with open(tmp_path / "found" / "front.csv") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["system.spares.dies"] for row in rows} <= {"0", "1"} and rows
    assert "4 machines were drawn of every design" in (tmp_path / "found" / "index.html").read_text()


def test_speeds_are_a_block_whose_worth_depends_on_the_spread(tmp_path, capsys):
    policies = [{"name": "plain", "allocation": "copy_aware"},
                {"name": "fast", "allocation": {"name": "copy_aware", "needs": "speeds"}}]  # fmt: skip
    systems = [
        SYSTEM | {"name": f"sigma{sigma}", "dies_as_built": {"speed": {"sigma": f"{sigma} %"}}} for sigma in (0, 14)
    ]
    free = {"set": "physical", "gemm": "roofline", "memory": "experts", "decision_cost": "free"}
    file = written(tmp_path, experiment(policies, systems, assumptions=[free]))
    assert main(["worth", "speeds", "--in", file, "--jobs", "1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("speeds is") and "sigma0" in said and "sigma14" in said and "mm²" in said


def test_a_die_that_dies(tmp_path, capsys):
    chosen = choose(load_experiment(experiment(systems=[SYSTEM])))
    found = death_of(chosen, 4)
    expert_bytes = 3 * 2 * 1024 * 2048
    assert found.lost == 4 and found.lost_bytes == 4 * expert_bytes and found.dies == 6
    assert found.after_ns > found.before_ns and found.balanced_ns > found.before_ns
    assert found.moved_bytes % expert_bytes == 0 and found.moved_ns > 0
    with pytest.raises(SpecError, match="die 6 is none of the 6 that work of small; the nearest is 5"):
        death_of(chosen, 6)
    assert main(["run", written(tmp_path, experiment(systems=[SYSTEM])), "--die-dies", "4"]) == 0
    assert "die 4 is dead" in capsys.readouterr().out


def test_the_map_shows_dead_dies_and_clocks(tmp_path, capsys):
    table = [[0.9, 1.0]] + [[1.0, 1.0]] * 5
    system = SYSTEM | {"dies_as_built": {"dead": [4], "speed": {"table": table}}}
    report = tmp_path / "report"
    assert main(["sweep", written(tmp_path, experiment(systems=[system])), "--out", str(report), "--jobs", "1"]) == 0
    page = (report / "results.html").read_text() + (report / "index.html").read_text()
    assert "die 4: dead" in page and '"site"' in page and "clock of its array in decode, % of the nominal" in page
    assert main(["check", written(tmp_path, experiment(systems=[system]))]) == 0
    assert "5 of 6 dies work (die 4 dead)" in capsys.readouterr().out
