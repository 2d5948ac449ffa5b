"""Two designs side by side: what differs, by how much, and who is better."""

import argparse

import pandas
import pytest
from support.html_page import Page
from support.tiny import tiny, tiny_file

import archsim as ar
from archsim.base.causes import CAUSES
from archsim.base.errors import ArchsimError
from archsim.cli import compare
from archsim.cli.main import main
from archsim.runs.columns import unpacked
from archsim.runs.plan import choose, select
from archsim.runs.simulator import Simulator
from archsim.studies.designs import Quantity, _causes

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
        steps = pandas.DataFrame(unpacked(Simulator().record(run)["steps"]))
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
    assert parts == pytest.approx(energy["energy a token"])


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
    assert Quantity("time", "x", "ns", "", a, b, sense).better == better


def test_names_that_mean_nothing_are_refused(tmp_path):
    inside = tiny(tmp_path)
    with pytest.raises(ArchsimError, match="'alo' is neither a policy of tiny .* did you mean 'allo'"):
        ar.compare("alo", "ep", inside=inside)
    with pytest.raises(ArchsimError, match="'ep' is a policy, not an experiment; .*--in dojo"):
        ar.compare("ep", "allo")
    with pytest.raises(ArchsimError, match="the same design"):
        ar.compare("ep", "ep", inside=inside)


def test_the_command_compares_experiments(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny_file(tmp_path)
    (tmp_path / "wide.yaml").write_text((tmp_path / "tiny.yaml").read_text().replace("1 TB/s", "2 TB/s"))
    assert main(["compare", "tiny.yaml", "wide.yaml", "--set", *FEW, "--policy", "base"]) == 0
    said = capsys.readouterr().out
    assert "systems.d2d.bandwidth" in said and "better" in said
    assert "A: tiny.yaml, B: wide.yaml; both: system small, model toy, batch 12, assumptions published" in said
    assert "report: reports/tiny-wide-base-workload.decode_steps=1/index.html" in said


def test_another_comparison_has_another_folder():
    parser = argparse.ArgumentParser()
    compare.add_compare(parser)
    given = ["", "--in=dojo", "--in=wide", "--batch=8", "--batch=9", "--model=toy", "--system=toy2", "--set=a.b=1"]
    names = {compare._folder_name(parser.parse_args(["configs/x.yaml", "y", *each.split()])) for each in given}
    assert len(names) == len(given) and {"x-y", "dojo-x-y", "x-y-8", "x-y-a.b=1"} < names


def test_a_report_is_the_experiment_that_it_was_made_from(tmp_path):
    """Of a folder, in `compare --in` and `load`, as in `why` and `worth`; its results are read, not simulated."""
    made = ar.sweep(tiny(tmp_path, *FEW), tmp_path / "out", jobs=1)
    assert ar.load(tmp_path / "out") == ar.load(tmp_path / "out" / "manifest.yaml")
    found = ar.compare("base", "ep", inside=tmp_path / "out", batch=40)
    assert (found.a, found.b) == ("base", "ep")
    assert ar.Results.load(tmp_path / "out").runs.rows == made.runs.rows
