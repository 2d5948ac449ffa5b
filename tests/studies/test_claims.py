"""Claims: rows of papers' files, judged by one evaluator, for sweeps and for serving; their pages."""

import json
from pathlib import Path

import pytest
import yaml

import archsim as ar
from archsim.base.errors import SpecError
from archsim.specs.library import load_planned
from archsim.specs.papers import ClaimGroup, ClaimRow, listed_ids, load_paper, paper_names, parsed_quantity
from archsim.specs.serving_files import load_serving
from archsim.studies import claims
from archsim.studies.claims import NO_ROOM, Judged, value_of

ROOT = Path(__file__).resolve().parents[2]
PAPERS = paper_names()
# -46 % as a ratio; "within 10 %" as a range
RESTATED = {"h022": 0.54, "h396": [0.0, 10.0]}
ROWS = [
    {"policy": "ep", "batch": 8, "time": 4.0}, {"policy": "fast", "batch": 8, "time": 2.0},
    {"policy": "ep", "batch": 16, "time": 9.0}, {"policy": "fast", "batch": 16, "time": 3.0},
    {"policy": "full", "batch": 8, "time": None, "refused": "no room"},
]


def group(**more) -> ClaimGroup:
    given = {"what": "time", "run": "r", "quantity": "other.time / time", "unit": "×", "within_percent": 10}
    given |= {"against": {"policy": "ep"}, "rows": [{"id": "h001", "published": 2.5}]}
    return ClaimGroup.model_validate(given | more)


def row(**more) -> ClaimRow:
    return ClaimRow.model_validate({"id": "h001", "published": 2.5} | more)


@pytest.mark.parametrize(("at", "more", "value"), [
    ({"policy": "fast", "batch": 8}, {}, 2.0),
    ({"policy": "fast", "batch": 16}, {}, 3.0),
    ({"policy": "fast"}, {}, 2.5),
    ({"policy": "fast"}, {"take": "most"}, 3.0),
    ({"policy": "fast"}, {"take": "least"}, 2.0),
    ({"policy": ["fast", "ep"]}, {}, 1.75),
    ({"policy": "fast"}, {"quantity": "100 * time - -1", "against": {}}, 251.0),
    ({"policy": "fast", "batch": 16}, {"against": {"policy": "fast", "batch": 8}}, 2 / 3),
    ({"policy": "full"}, {}, NO_ROOM),
    ({"policy": "slow"}, {}, None),
    ({"policy": "fast"}, {"quantity": "time / gone"}, None),
])
def test_a_quantity_is_taken_over_the_rows_that_are_meant(at, more, value):
    found = value_of(group(**more), row(at=at), ROWS, ())
    assert found == (pytest.approx(value) if isinstance(value, float) else value)


def test_rows_of_other_points_are_not_compared():
    rows = [each | {"skew": skew, "time": (each["time"] or 0) * skew} for each in ROWS for skew in (1.0, 10.0)]
    assert value_of(group(), row(at={"policy": "fast", "batch": 8}), rows, ("skew",)) == 2.0


@pytest.mark.parametrize("text", ["__import__('os')", "time.real", "f(time)", "1 if a else 2", "'a'", "a ** 2", "1 +"])
def test_a_quantity_is_arithmetic_on_columns_alone(text):
    with pytest.raises(ValueError, match="expected"):
        parsed_quantity(text)


@pytest.mark.parametrize(
    ("published", "simulated", "more", "kind"),
    [
        (2.0, 2.19, {}, "met"), (2.0, 2.21, {}, "missed"),
        ([1.0, 3.0], 3.2, {}, "met"), ([1.0, 3.0], 3.4, {}, "missed"),
        (1.0, -0.2, {"within_percent": None, "within": 1.5}, "met"),
        (1.0, -0.2, {"within_percent": None, "within": 1.5, "sign": True}, "missed"),
        ("OOM", "OOM", {}, "met"), ("OOM", 3.0, {}, "missed"), (3.0, "OOM", {}, "missed"), (3.0, None, {}, "none"),
    ],
)  # fmt: skip
def test_a_row_is_met_within_its_tolerance_and_with_its_sign(published, simulated, more, kind):
    assert Judged(group(**more), row(published=published), {0: simulated}, {0: "physical"}).kind == kind


def test_what_moves_a_value_is_told_the_largest_first():
    found = Judged(group(), row(), {0: 1.0, 1: 1.5, 3: 4.0}, {0: "physical", 1: "kernels", 3: "links"})
    assert found.moved == (("links", 2.5), ("kernels", 0.5)) and found.physical == 1.0 and found.simulated == 4.0
    assert claims.moved(found) == "links +2.50; kernels +0.500"


# --- the shipped papers


@pytest.mark.parametrize("name", PAPERS)
def test_every_run_of_a_paper_can_be_read_under_each_of_its_rules(name):
    paper = load_paper(name)
    for run, spec in paper.runs.items():
        for at in paper.steps(run):
            overrides = paper.overrides(run, at)
            assert load_planned(spec.sweep, overrides) if spec.sweep else load_serving(spec.serve, overrides)


def test_every_number_has_a_row_or_a_reason_and_the_published_value(shared):
    known = {each["id"]: each for each in json.loads((shared / "reference/claims/headline.json").read_text())}
    listed = [name for each in PAPERS for name in listed_ids(load_paper(each).numbers)]
    assert sorted(listed) == sorted(known)
    for name in PAPERS:
        paper = load_paper(name)
        for _, each in paper.rows():
            value, number = known[each.id]["value"], each.published
            stated = list(number) if isinstance(number, tuple) else number
            assert stated == RESTATED.get(each.id, value), each.id


def test_the_wafer_papers_rules_end_in_the_published_set():
    plan = load_planned(load_paper("wafer").runs["v2"].sweep, load_paper("wafer").overrides("v2", 9))
    assert [each.label for each in plan.assumptions] == ["published"] and plan.engine == "event"


def test_a_file_says_what_is_wrong(tmp_path):
    given = small() | {"claims": [small()["claims"][0] | {"run": "gone", "quantity": "a.b"}]}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(given))
    with pytest.raises(SpecError, match=r"quantity: 'a.b': a.b: expected columns") as error:
        load_paper(tmp_path / "p.yaml")
    assert "p.yaml" in str(error.value)
    with pytest.raises(SpecError, match="no paper of this name; did you mean 'libra'"):
        load_paper("libre")


# --- running


def small() -> dict:
    """A paper with a sweep, a rule and an answer, a second to run."""
    experiment = {
        "name": "small", "systems": ["dojo"], "models": ["olmoe-1b-7b"], "policies": ["base", "allo"],
        "workload": {"context": 0, "batch": [64, 128], "decode_steps": 2, "layers": 1}
        | {"trace": {"synthetic": {"prompt_tokens": 0}}},
        "assumptions": [{"set": "physical", "capacity": "unbounded"}], "engine": "analytical",
    }  # fmt: skip
    claim = {
        "what": "speed-up", "run": "one", "quantity": "throughput_tokens_per_s / other.throughput_tokens_per_s",
        "unit": "×", "at": {"policy": "allo"}, "against": {"policy": "base"}, "within_percent": 10, "why": "because",
        "rows": [{"id": "h001", "published": 1000.0}, {"id": "h002", "published": [0.0, 99.0], "at": {"batch": 64}}],
    }  # fmt: skip
    answer = {key: claim[key] for key in ("run", "at", "quantity", "unit")}
    answer |= {"question": "Worth it?", "by": "batch", "against": {"base": {"policy": "base"}}}
    answer["says"] = "It is {paper_base}, in the mean {paper_base_mean}; honestly {physical_base}"
    rule = {"name": "as published", "why": "its simulator", "runs": {"one": ["assumptions=[published]"]}}
    return {
        "paper": "small", "title": "Small & new", "source": "nowhere", "numbers": ["h001-h003"],
        "setup": {"GPUs": {"is": "25 dies", "place": "1"}}, "runs": {"one": {"sweep": experiment}}, "rules": [rule],
        "claims": [claim], "answers": [answer], "outside": [{"ids": ["h003"], "why": "an accuracy"}],
    }  # fmt: skip


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("claims")
    (folder / "small.yaml").write_text(yaml.safe_dump(small()))
    (found,) = ar.claims([folder / "small.yaml"], folder / "out", jobs=1)
    return found, folder


def test_a_paper_runs_and_its_page_has_both_sets_and_what_takes_the_difference(judged):
    found, folder = judged
    missed, met = found.judged
    assert (missed.kind, met.kind, found.runs) == ("missed", "met", 8)
    assert missed.simulated != missed.physical and missed.moved[0][0] == "as published"
    text = (folder / "out/small/index.html").read_text()
    assert "1 of 2 that were not fitted are met" in text and "h003: an accuracy" in text and "Small &amp; new" in text
    assert "Worth it?" in text and claims.answer_sentence(found.answers[0]) in text
    assert "as published" in text and claims.shown(missed.physical, "×") in text and "25 dies" in text


def test_what_is_there_is_kept(judged):
    found, folder = judged
    again = ar.claims([folder / "small.yaml"], folder / "out", jobs=1, watcher=(kept := Kept()))[0]
    assert [each.values for each in again.judged] == [each.values for each in found.judged]
    assert kept.runs == 8


class Kept:
    """Counts runs that are kept."""

    runs = 0

    def kept(self, runs: int) -> None:
        self.runs += runs

    def __getattr__(self, name):
        return lambda *args: None


def test_a_summary_counts_and_names_the_largest_misses(judged, tmp_path):
    found, _ = judged
    text = claims.write_summary([found], tmp_path).read_text()
    assert "2 of 3 published numbers have a row" in text and text.count("<li>") == 1 and "because" in text
    assert claims.counts_of([found]) == (3, 2, 1, 1, 0, 0, 1)


def test_pages_render_in_light_dark_and_on_narrow_screens(judged):
    text = (judged[1] / "out/small/index.html").read_text()
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text
    assert text.count("<table") == text.count('<div class="wide"><table')  # tables scroll in a box of their own
