"""Two designs side by side: what differs, by how much, and who is better."""

import csv
import re
from dataclasses import replace

import pandas
import pytest
import yaml
from support.html_page import Page
from support.tiny import tiny, tiny_file

import archsim as ar
from archsim.base.causes import CAUSES
from archsim.base.errors import ArchsimError, SpecError
from archsim.cli.main import main
from archsim.questions import designs_page
from archsim.questions.death import death_of
from archsim.questions.designs import DesignFigure, _causes
from archsim.questions.wafers import distributions
from archsim.questions.wafers_page import drawing
from archsim.runs.choice import choose
from archsim.runs.packed_steps import unpack
from archsim.runs.plan import SCRAPPED, select
from archsim.runs.simulator import Simulator
from archsim.specs.library import load_experiment, load_planned

FEW = ["workload.decode_steps=1"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """(comparison of two policies, its folder)"""
    folder = tmp_path_factory.mktemp("compared")
    found = ar.compare("base", "ep", inside=tiny(folder, *FEW), out=folder / "out", batch=40)
    return found, folder / "out"


def test_two_policies_differ_in_the_policy_alone(compared):
    found, _ = compared
    assert found.spec and {each.key.split(".")[0] for each in found.spec} == {"policies"}
    assert [row["policy"] for row in found.rows] == ["base", "ep"] and {row["batch"] for row in found.rows} == {40}


def test_causes_sum_to_a_decode_step(compared, tmp_path):
    found, _ = compared
    assert {each.group for each in found.causes} == {"a decode step"}
    for side, row in zip("ab", found.rows, strict=True):
        assert sum(getattr(each, side) for each in found.causes) == pytest.approx(row["decode_step_ns"])
        (run,) = select(choose(tiny(tmp_path, *FEW), policy=row["policy"], batch=40)).runs()
        steps = pandas.DataFrame(unpack(Simulator().record(run)["steps"]))
        decode = steps[steps.step > 0]
        assert row["prefill_ns"] > 0 and len(decode) == 2  # layers of one step
        columns = {about.label: cause.column for cause, about in CAUSES.items()}
        for each in found.causes:
            column = columns[each.name]
            assert getattr(each, side) == pytest.approx(decode[f"bound_{column}_ns"].sum()), each.name
            of_run = row[f"bound_{column}"] * row["decode_step_ns"]
            assert column != "compute" or getattr(each, side) != pytest.approx(of_run)


def test_causes_are_those_of_a_run_without_decode():
    row = {"prefill_ns": 10.0, "decode_ns": 0.0, "decode_step_ns": None}
    row |= {f"bound_{name}": 0.5 if name in ("hbm", "link") else 0.0 for name in (cause.column for cause in CAUSES)}
    found = list(_causes([{"row": row, "steps": {}}] * 2))
    assert [(each.group, each.name, each.a) for each in found] == [("the run", "HBM", 5.0), ("the run", "links", 5.0)]


def test_energy_parts_sum_and_throughput_is_a_ratio(compared):
    found, _ = compared
    rate = next(each for each in found.quantities if each.unit == "tokens/s")
    assert rate.ratio == pytest.approx(found.rows[1]["tokens_per_s"] / found.rows[0]["tokens_per_s"])
    energy = {each.name: each.a for each in found.quantities if each.group == "energy"}
    parts = sum(value for name, value in energy.items() if name.startswith("of it: "))
    assert parts == pytest.approx(energy["energy per token"])


def test_the_page_says_who_is_faster_and_what_differs(compared):
    found, folder = compared
    page = Page((folder / "index.html").read_text(encoding="utf-8"))
    assert "ep has" in page.text and "the throughput of base" in page.text
    assert all(each.key in page.text for each in found.spec)
    assert len(found.to_pandas()) == len(found.causes) + len(found.quantities)


@pytest.mark.parametrize(
    ("a", "b", "sense", "better"), [(1.0, 2.0, 1, 1), (1.0, 2.0, -1, -1), (1.0, 1.001, 1, 0), (None, 2.0, 1, 0)]
)
def test_better_follows_the_sense(a, b, sense, better):
    assert DesignFigure("time", "x", "ns", "", a, b, sense).better == better


def test_two_models_are_named_where_tokens_of_both_are_compared(compared):
    found, _ = compared
    assert "two models" not in designs_page.answer(found)
    rows = tuple(row | {"model": name} for row, name in zip(found.rows, ("toy", "large"), strict=True))
    assert "serves toy" in (said := designs_page.answer(replace(found, rows=rows))) and "--model" in said


def test_names_that_mean_nothing_are_refused(tmp_path):
    inside = tiny(tmp_path)
    with pytest.raises(ArchsimError, match="'alo'.*tiny.*'allo'"):
        ar.compare("alo", "ep", inside=inside)
    with pytest.raises(ArchsimError, match="'ep'.*--in dojo"):
        ar.compare("ep", "allo")
    with pytest.raises(ArchsimError, match="the same design"):
        ar.compare("ep", "ep", inside=inside)


def test_the_command_compares_experiments(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny_file(tmp_path)
    (tmp_path / "wide.yaml").write_text((tmp_path / "tiny.yaml").read_text().replace("1 TB/s", "2 TB/s"))
    assert main(["compare", "tiny.yaml", "wide.yaml", "--set", *FEW, "--policy", "base"]) == 0
    said = capsys.readouterr().out
    assert re.match(
        r"[\w.]+ has [\d.]+\u00a0× \([\d.]+–[\d.]+ in 90.% of 32 samples(, a tie)?\) the throughput of", said
    )
    assert "systems.d2d.bandwidth" in said and "better" in said
    both = ("tiny.yaml", "wide.yaml", "small", "toy", "batch 12", "base", "published")
    assert all(each in said for each in both)
    assert "report: reports/tiny-wide-base-workload.decode_steps=1/index.html" in said


def test_two_designs_have_an_order_in_samples_that_are_asked_for(tmp_path):
    inside = tiny(tmp_path, *FEW)
    found = ar.compare("base", "ep", inside=inside, batch=40, samples=16, jobs=1)
    assert found.sure.samples == 16 and ar.compare("base", "ep", inside=inside, batch=40).sure is None


def test_a_report_is_the_experiment_that_it_was_made_from(tmp_path):
    """Of a folder, in `compare --in` and `load`, as in `why` and `worth`; its results are read, not simulated."""
    made = ar.sweep(tiny(tmp_path, *FEW), tmp_path / "out", jobs=1)
    assert ar.load(tmp_path / "out") == ar.load(tmp_path / "out" / "manifest.yaml")
    found = ar.compare("base", "ep", inside=tmp_path / "out", batch=40)
    assert (found.a, found.b) == ("base", "ep")
    assert ar.Results.load(tmp_path / "out").runs.rows == made.runs.rows


# ---- Drawn machines: their distribution, the page, explorations over spares, worth of speeds, and a die that dies.

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
    assert main(["sweep", written(tmp_path, experiment()), "--out", str(report), "--jobs", "1", "--samples", "0"]) == 0
    assert "sampled machines" in capsys.readouterr().out
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
    assert 'id="wafers"' in page


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
    assert "4 machines" in (tmp_path / "found" / "index.html").read_text()


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
    assert "speeds is" in said.partition(".")[0] and "sigma0" in said and "sigma14" in said and "mm²" in said


def test_a_die_that_dies(tmp_path, capsys):
    chosen = choose(load_experiment(experiment(systems=[SYSTEM])))
    found = death_of(chosen, 4)
    expert_bytes = 3 * 2 * 1024 * 2048
    assert found.lost == 4 and found.lost_bytes == 4 * expert_bytes and found.dies == 6
    assert found.after_ns > found.before_ns and found.balanced_ns > found.before_ns
    assert found.moved_bytes % expert_bytes == 0 and found.moved_ns > 0
    assert found.steps is None or (found.steps - 1) * (found.after_ns - found.balanced_ns) < found.moved_ns
    low, middle, high = found.after_change
    assert low <= middle <= high and middle == found.after_ns / found.before_ns - 1 and found.samples == 32
    assert f"in 90\u00a0% of {found.samples} samples" in found.lines[0]
    low, middle, high = found.won
    assert low <= middle <= high and middle == pytest.approx(found.after_change[1] - found.balanced_change[1])
    slow = replace(
        found, before_ns=281e3, after_ns=281_370.0, balanced_ns=283_700.0, moved_ns=5e5, won=(-0.01, -0.008, 0)
    )
    assert "0.2814 instead of 0.2810 ms" in slow.lines[0] and "leave the other experts" in slow.lines[0]
    fast = replace(slow, balanced_ns=281_170.0, won=(0.0, 7e-4, 9e-4))
    unsure = replace(fast, balanced_change=(-0.01, 0.01, 0.03), won=(-0.02, 7e-4, 9e-4))
    assert "between 1.0\u00a0% less and 3.0\u00a0% more (" in unsure.lines[0]
    assert unsure.steps is None and not re.search("decode steps|leave|take that", " ".join(unsure.lines)), unsure.lines
    assert fast.steps == 2500 and "2,500 decode steps" in fast.lines[0]
    once = replace(fast, moved_ns=1.0)
    assert (
        once.steps == 1 and "1 decode step or more" in once.lines[0] and once.lines[2].endswith("after 1 decode step")
    )
    free = replace(fast, moved_ns=0.0, after_ns=281_000.3, balanced_ns=270_000.0)
    assert "placement at once" in free.lines[0] and "instead of" not in free.lines[0], free.lines
    assert not any("0 decode step" in line for line in free.lines)
    with pytest.raises(SpecError, match=r"die 6\b.*\b6\b.* small\b.*\b5\b"):
        death_of(chosen, 6)
    assert main(["run", written(tmp_path, experiment(systems=[SYSTEM])), "--die-dies", "4"]) == 0
    assert "die 4" in capsys.readouterr().out


def test_the_map_shows_dead_dies_and_clocks(tmp_path, capsys):
    table = [[0.9, 1.0]] + [[1.0, 1.0]] * 5
    system = SYSTEM | {"dies_as_built": {"dead": [4], "speed": {"table": table}}}
    report = tmp_path / "report"
    file = written(tmp_path, experiment(systems=[system]))
    assert main(["sweep", file, "--out", str(report), *"--jobs 1 --samples 0".split()]) == 0
    page = (report / "results.html").read_text() + (report / "index.html").read_text()
    assert "die 4: dead" in page and '"site"' in page and "% of the nominal" in page
    assert main(["check", written(tmp_path, experiment(systems=[system]))]) == 0
    assert re.search(r"\b5 of 6 dies\b.*\bdie 4\b", capsys.readouterr().out)
