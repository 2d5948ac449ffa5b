"""Ablations: the chain leads from one assumption set to the other, and its ends equal the sets' own results."""

import csv
import re
from dataclasses import replace

import pytest
from support.tiny import tiny, tiny_file

import archsim as ar
from archsim.base.errors import ArchsimError
from archsim.cli.main import main
from archsim.questions.ablation import ORDER, ablate, ablated_experiment, links_between
from archsim.questions.ablation_page import render, sentence, write_ablation
from archsim.specs.assumptions import ASSUMPTIONS
from archsim.specs.library import load_assumptions

START, END = load_assumptions("published"), load_assumptions("physical")


def values(spec) -> dict[str, str]:
    return {field: getattr(spec, field) for field in ASSUMPTIONS}


def test_every_assumption_has_a_place_in_the_chain():
    assert sorted(ORDER) == sorted(ASSUMPTIONS)


def test_links_change_one_field_each_and_lead_from_start_to_end():
    before = values(START)
    for link in links_between(START, END):
        assert values(link.alone) == values(START) | {link.field: link.after}
        assert values(link.chain) == before | {link.field: link.after}
        before = values(link.chain)
    assert before == values(END)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ablation")
    experiment = tiny(folder, "policies=[base, allo+pred]", "workload.batch=[12]", "workload.decode_steps=1")
    experiment = experiment.model_copy(update={"systems": experiment.systems[:1]})
    return experiment, folder, ablate(experiment, START, END, folder / "out", jobs=1)


def test_the_chain_closes_and_its_ends_are_the_sets_own_results(made):
    experiment, _, found = made
    assert found.closes
    for end, name in ((START, "start"), (END, "end")):
        rows = ar.sweep(experiment.model_copy(update={"assumptions": (end,)}), jobs=1).runs.rows
        speeds = {(row["system"], row["batch"], row["policy"]): row["throughput_tokens_per_s"] for row in rows}
        for fall in found.waterfalls:
            own, base = (speeds[fall.system, fall.batch, each] for each in (fall.policy, "base"))
            assert getattr(fall, name) == own / base


def test_steps_multiply_to_the_whole(made):
    assert len(made[2].waterfalls) == 1
    for fall in made[2].waterfalls:
        product = fall.start
        for effect in fall.effects:
            product *= effect.factor
        assert product == pytest.approx(fall.end, rel=1e-12)
        assert fall.effects[0].speedup_alone == fall.effects[0].speedup_after


def test_page_and_table_contain_every_effect(made):
    _, folder, found = made
    page = write_ablation(found, "tiny", folder / "out").read_text(encoding="utf-8")
    assert page.count('<figure class="plot"') == len(found.waterfalls) and "The chain closes" in page
    rows = list(csv.DictReader((folder / "out" / "ablation.csv").open(encoding="utf-8")))
    assert len(rows) == len(found.waterfalls) * (len(found.links) + 1)  # and endpoints as measured
    last = [row for row in rows if row["place"] == str(len(found.links) + 1)]
    assert {(row["assumption"], row["from"], row["to"]) for row in last} == {("endpoint", "unlimited", "as_measured")}
    places = {(fall.system, fall.model, fall.batch) for fall in found.waterfalls}
    assert page.count("if a die&#39;s controller sends") == len(places)
    assert all(f"<code>{link.field}</code>" in page for link in found.links)
    again = "archsim why --ablate manifest.yaml --from published --to physical"
    assert "MoE layers of toy" in page and again in page
    assert (folder / "out" / "manifest.yaml").is_file()
    assert re.search(r"\b1 of 2\b[^.]* toy\b", render(replace(found, layers={"toy": ((1,), 2)}), "tiny"))


def test_page_says_if_the_chain_does_not_close(made):
    assert "does not close" in render(replace(made[2], closes=False), "tiny")


def test_summary_names_the_largest_changes(made):
    """The factor farthest from 1, either way, comes first; an assumption without effect is not named."""
    fall = max(made[2].waterfalls, key=lambda each: each.start)
    factors = [0.999, 1.3, 1.0, 0.5, 4.0, 0.9] + [1.0] * (len(fall.effects) - 6)
    effects = tuple(
        replace(each, speedup_before=2.0, speedup_after=2.0 * factor)
        for each, factor in zip(fall.effects, factors, strict=True)
    )
    text = sentence(replace(fall, effects=effects), made[2])
    names = [effects[place].link.field for place in (4, 3, 1, 5)]
    assert [text.index(f"by {name} (") for name in names] == sorted(text.index(f"by {name} (") for name in names)
    assert text.count(" by ") == 4 and "4.00× by" in text


def test_what_cannot_be_ablated_is_refused(tmp_path, capsys):
    with pytest.raises(ArchsimError, match="published.*published"):
        links_between(START, START)
    with pytest.raises(ArchsimError, match="'base'"):
        ablated_experiment(tiny(tmp_path, "policies=[ep, allo]"), START, END)
    assert main(["ablate", str(tiny_file(tmp_path)), "--from", "publisht"]) == 2
    assert re.search("'publisht'.*'published'", capsys.readouterr().err)
