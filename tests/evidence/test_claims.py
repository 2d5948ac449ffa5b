"""Claims: rows of papers' files, judged by one evaluator, for sweeps and for serving; their pages."""

import json
import math
import re
from pathlib import Path

import pytest
import yaml
from support.examples import sampled
from support.papers import small

import archsim as ar
from archsim.base.config_files import shipped_configs
from archsim.base.errors import SpecError
from archsim.evidence import claim_tables, claims_page
from archsim.evidence.claims import code_of, judge_paper, judge_recorded
from archsim.evidence.judged_claims import JudgedClaim, judged_signs, value_of
from archsim.runs.sweep import Unwatched
from archsim.specs.library import load_model, load_planned
from archsim.specs.papers import (
    NO_ROOM,
    ClaimGroup,
    ClaimRow,
    PublishedBound,
    listed_ids,
    load_paper,
    paper_names,
    parsed_quantity,
    recorded_values,
)
from archsim.specs.serving_files import load_serving
from archsim.traffic import statistics
from archsim.traffic.subjects import collect, traffic_of
from archsim.traffic.traffic_presets import load_traffic, of_layers

ROOT = Path(__file__).resolve().parents[2]
PAPERS = paper_names()
# -46 % as a ratio; "within 10 %" as a range; the first of a pair; 50 MB of a text; an upper limit; two ranges that the
# text exchanges
RESTATED = {"h324": [17.0, 661.0], "h022": 0.54, "h396": [0.0, 10.0], "h276": 2.0, "h381": 50.0, "h270": 1.1}
ROWS = [
    {"policy": "ep", "batch": 8, "time": 4.0},
    {"policy": "fast", "batch": 8, "time": 2.0},
    {"policy": "ep", "batch": 16, "time": 9.0},
    {"policy": "fast", "batch": 16, "time": 3.0},
    {"policy": "full", "batch": 8, "time": None, "refused": "no room"},
]


def group(**more) -> ClaimGroup:
    given = {"what": "time", "run": "r", "quantity": "other.time / time", "unit": "×", "within_percent": 10}
    given |= {
        "spread": "three runs",
        "against": {"policy": "ep"},
        "guess": 1,
        "rows": [{"id": "h001", "published": 2.5}],
    }
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
    ({"policy": "fast"}, {"take": "total"}, 13 / 5),
    ({"policy": ["fast", "ep"]}, {"against": {"policy": {"fast": "ep", "ep": "fast"}}}, (2.0 + 3.0 + 0.5 + 1 / 3) / 4),
    ({"policy": "full"}, {}, NO_ROOM),
    ({"policy": "slow"}, {}, None),
    ({"policy": "fast"}, {"quantity": "time / gone"}, None),
])  # fmt: skip
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


def judged_row(published, simulated, more, nulls=(1.0,), ends=(), row_keys=()) -> JudgedClaim:
    named = {f"null {at}": value for at, value in enumerate(nulls)}
    given = row(published=published, **dict(row_keys))
    return JudgedClaim(group(**more), given, {0: simulated}, {0: "physical"}, named, ends)


NO_SPREAD = {"within_percent": 0, "spread": None}


@pytest.mark.parametrize(
    ("published", "simulated", "more", "nulls", "skill", "kind"),
    [
        (2.0, 2.19, {}, [1.0], 0.81, "reproduced"), (2.0, 2.25, {}, [1.0], 0.75, "better"),
        (2.0, 2.5, {}, [1.0], 0.5, "missed"), (2.0, 2.19, {}, [1.0, 1.7], 0.19 / 0.3 * -1 + 1, "missed"),
        (2.0, 2.19, {}, [9.0, 2.0], -math.inf, "missed"), (2.0, 2.0, {}, [2.0], 0.0, "missed"),
        ([1.0, 3.0], 3.2, {}, [0.0], 0.8, "reproduced"), ([1.0, 3.0], 3.2, {}, [1.5], -math.inf, "missed"),
        (1.0, -0.2, {}, [0.0], -0.2, "missed"),
        ("OOM", "OOM", {}, [1.0], 1.0, "reproduced"), ("OOM", "OOM", {}, ["OOM"], 0.0, "missed"),
        ("OOM", 3.0, {}, [1.0], 0.0, "missed"), (3.0, "OOM", {}, [1.0], -math.inf, "missed"),
        (3.0, None, {}, [1.0], None, "none"),
        # an inequality is met or it is not, however near
        ({"less_than": 2.0}, 1.9, {}, [3.0], 1.0, "reproduced"), ({"less_than": 2.0}, 1.9, {}, [1.0], 0.0, "missed"),
        ({"more_than": 2.0}, 1.9, {}, [1.0], 0.0, "missed"), ({"more_than": 2.0}, 2.1, {}, [1.0], 1.0, "reproduced"),
        # a rounded number is an interval, for the null model as well
        (2.0, 2.4, {"rounded": 0.5} | NO_SPREAD, [1.0], 1.0, "reproduced"),
        (2.0, 2.6, {"rounded": 0.5} | NO_SPREAD, [1.0], 0.8, "better"),
        (1.3, 1.3, {"rounded": 0.25}, [1.5], 0.0, "missed"),
        # a null model inside the paper's spread cannot be told from the paper, and nobody is better than it
        (2.0, 2.01, {}, [1.85], 0.0, "missed"), (2.0, 2.5, {}, [1.85], -2.33, "missed"),
        ([1.0, 3.0], 2.0, {}, [0.95], 0.0, "missed"), (2.0, 2.0, {"rounded": 0.5}, [1.4], 0.0, "missed"),
        # by the logarithm: 4 times too large against 16 times too small
        (16.0, 64.0, {"scale": "log"}, [1.0], 0.5, "missed"), (16.0, 20.0, {"scale": "log"}, [1.0], 0.92, "better"),
    ],
)  # fmt: skip
def test_a_row_is_reproduced_by_skill_against_the_best_null_model_inside_the_papers_spread(
    published, simulated, more, nulls, skill, kind
):
    found = judged_row(published, simulated, more, nulls)
    assert found.kind == kind and found.skill == (skill if skill is None else pytest.approx(skill, abs=0.005))


@pytest.mark.parametrize("null", [0.0, 1.0, 1.9, 2.0, 2.1, 5.0])
def test_a_further_null_model_never_helps(null):
    """Whatever it says, and wherever the simulated value is."""
    for value in (0.5, 1.9, 2.0, 2.2, 4.0):
        assert judged_row(2.0, value, {}, [1.0, null]).skill <= judged_row(2.0, value, {}, [1.0]).skill


@pytest.mark.parametrize(("ends", "kind"), [((2.4, 2.6), "reproduced"), ((2.4, 3.0), "better"), ((1.0, 2.6), "missed")])
def test_a_row_is_reproduced_only_for_the_whole_interval_of_a_fitted_constant(ends, kind):
    found = judged_row(2.5, 2.5, {}, ends=ends)
    assert found.kind == kind and claims_page.ends(found, "×") == f"{ends[0]:.2f} to {ends[1]:.2f}×"


def test_an_end_of_the_interval_that_does_not_fit_is_told_and_is_not_met():
    found = judged_row(2.5, NO_ROOM, {}, ends=(NO_ROOM, 2.6))
    assert found.kind == "missed" and claims_page.ends(found, "×") == "OOM to 2.60×"


def test_fitted_numbers_and_numbers_that_follow_do_not_count_and_a_fit_that_misses_is_said():
    found = judged_row(2.0, 2.5, {}, row_keys={"fit": True}.items())
    assert found.kind == "fit" and "missed" in claims_page.verdict(found) and "25" in claims_page.verdict(found)
    assert "missed" not in claims_page.verdict(judged_row(2.0, 2.1, {}, row_keys={"fit": True}.items()))
    found = judged_row(2.0, 2.0, {}, row_keys={"follows": ["h002"]}.items())
    assert found.kind == "follows" and "h002" in claims_page.verdict(found)


@pytest.mark.parametrize("values", [
    (4.0, 3.0, 5.0),
    (3.0, 4.0, 5.0),
    (3.0, 3.0, 5.0),
    (4.0, NO_ROOM, 5.0),
    (4.0, 3.0, 3.5),
])  # fmt: skip
def test_the_order_of_two_systems_is_a_row_of_its_own(values):
    """Published: slow 4, fast 3, slower 5; a reader expects fast to be below slow, and slower too."""
    signs = [{"of": {"policy": "fast"}, "over": {"policy": "slow"}, "guess": "below"}]
    signs += [{"of": {"policy": "slower"}, "over": {"policy": "slow"}, "guess": "below"}]
    at = ("slow", "fast", "slower")
    published = zip(at, (4, 3, 5), strict=True)
    rows = [{"id": name, "published": value, "at": {"policy": name}} for name, value in published]
    given = group(signs=signs, rows=rows)
    both = zip(given.rows, values, strict=True)
    found = [JudgedClaim(given, row, {0: value}, {0: "physical"}, {"": 1.0}) for row, value in both]
    judged = {each.one.id: each.kind for each in judged_signs(found)}
    fast = "none" if values[1] == NO_ROOM else "as null" if values[1] < values[0] else "missed"
    assert judged == {"fast": fast, "slower": "better" if values[2] > values[0] else "missed"}


def test_a_null_model_is_arithmetic_on_published_numbers_and_on_what_a_row_is_of(tmp_path):
    claim = small()["claims"][0] | {"guess": "2 * h002 / batch", "at": {"policy": "allo", "batch": 64}}
    claim["rows"] = [{"id": "h001", "published": 3.0}, {"id": "h002", "published": [4.0, 8.0], "guess": "OOM"}]
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(small() | {"claims": [claim]}))
    paper = load_paper(tmp_path / "p.yaml")
    assert [paper.guess_of(*each) for each in paper.rows()] == [pytest.approx(12 / 64), NO_ROOM]
    claim["nulls"] = [{"name": "b", "by": "batch", "guesses": {"64": 5}}, {"name": "others", "others": "batch"}]
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(small() | {"claims": [claim]}))
    paper = load_paper(tmp_path / "p.yaml")
    first, second = (paper.guesses_of(*each) for each in paper.rows())
    assert (first["b"], first["others"], second["others"]) == (5, 6.0, 3.0)  # the middle of a range


def test_what_moves_a_value_is_told_the_largest_first():
    found = JudgedClaim(group(), row(), {0: 1.0, 1: 1.5, 3: 4.0}, {0: "physical", 1: "kernels", 3: "links"})
    assert found.moved == (("links", 2.5), ("kernels", 0.5)) and found.physical == 1.0 and found.simulated == 4.0
    assert claims_page.moved_text(found) == "links +2.50; kernels +0.500"


# --- the shipped papers


@pytest.mark.parametrize("name", sampled(PAPERS, lambda name: name in ("capacity", "craft", "wafer")))
def test_every_run_of_a_paper_can_be_read_under_each_of_its_rules(name):
    paper = load_paper(name)
    for run, spec in paper.runs.items():
        for at in paper.steps(run):
            overrides = paper.overrides(run, at)
            if spec.table is None:
                assert load_planned(spec.sweep, overrides) if spec.sweep else load_serving(spec.serve, overrides)


def test_every_number_has_a_row_or_a_reason_and_the_published_value(shared):
    known = {each["id"]: each for each in json.loads((shared / "reference/claims/headline.json").read_text())}
    listed = [name for each in PAPERS for name in listed_ids(load_paper(each).numbers)]
    assert sorted(name for name in listed if "table" not in name) == sorted(known)  # one stands for 840 of a table
    for name in PAPERS:
        paper = load_paper(name)
        for _, each in paper.rows():
            value, number = known[each.id]["value"], each.published
            stated = list(number) if isinstance(number, tuple) else number
            stated = number.value if isinstance(number, PublishedBound) else stated
            assert stated == RESTATED.get(each.id, value), each.id


# a count of tokens; "within 10 %", which is an inequality
NOT_ROUNDED = {"h406", "h396"}


def test_every_number_is_an_interval_as_wide_as_the_rounding_of_its_last_printed_digit():
    """A table that prints 2.00 may have a narrower interval than a 2.0 of its file, never a wider one."""
    for name in PAPERS:
        paper = load_paper(name)
        written = dict(_as_written((shipped_configs() / "papers" / f"{name}.yaml").read_text()))
        for group, each in paper.rows():
            if isinstance(each.published, str | PublishedBound):
                continue
            rounded = each.rounded if each.rounded is not None else group.rounded
            if each.id in NOT_ROUNDED:
                assert rounded == 0, each.id
                continue
            digits = max(len(text.partition(".")[2]) for text in re.findall(r"[0-9.]+", written[each.id]))
            exponent = -math.log10(2 * rounded)
            assert exponent == pytest.approx(round(exponent)) and round(exponent) >= digits, each.id


def _as_written(text: str) -> list[tuple[str, str]]:
    """Id and published number, as the file has it."""
    return re.findall(r"id: (h\d{3}), published: (\[[^]]*\]|[^,}]+)", text)


def test_the_wafer_papers_rules_end_in_the_published_set():
    plan = load_planned(load_paper("wafer").runs["v2"].sweep, load_paper("wafer").overrides("v2", 9))
    first = plan.experiment
    assert [each.label for each in first.assumptions] == ["published"] and first.engine == "event"


def test_a_file_says_what_is_wrong(tmp_path):
    given = small() | {"claims": [small()["claims"][0] | {"run": "gone", "quantity": "a.b"}]}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(given))
    with pytest.raises(SpecError, match=r"quantity: 'a.b': a.b: ") as error:
        load_paper(tmp_path / "p.yaml")
    assert "p.yaml" in str(error.value)
    with pytest.raises(SpecError, match="'libra'"):
        load_paper("libre")


# What a paper states, as its text has it, and what no reason may therefore say. By hand, with the place in the paper.
STATED = [
    ("capacity_aware", "eight A30 GPUs", "5.1", r"hardware.*not stated"),
    ("capacity_aware", "eight experts per GPU", "5.1", r"experts a GPU.*not stated"),
    ("capacity_aware", "less than 20%", "5.1", r"= 20|exactly 20"),
    ("wafer_scale", "Our traces and results are publicly avail", "abstract", r"not public"),
    ("libra", "900 GB/s", "5.1, Environments", r"bandwidth.*not stated"),
    ("libra", "an even buffer and an odd buffer", "4", r"buffers.*not stated"),
    ("craft", "maximum prefill chunk size 4096", "5.1", r"chunk.*not stated"),
    ("libra", "implemented in Cython", "4", r"Cython.*not stated"),
    ("wafer_scale", "3.7×-4.4×", "V-D", r"hops.*not stated"),
    ("wafer_scale", "over 3.7× higher overhead", "V-F", r"= 3.7|exactly 3.7"),
    ("waterfill_lplb", "appears only as overhead", "Evaluation, figure 4", r"overhead.*not stated"),
    ("waterfill_lplb", "two Hopper GPU nodes, 16 GPUs total", "Evaluation", r"hardware.*not stated|GPUs.*not stated"),
]


@pytest.mark.parametrize(("paper", "sentence", "place", "denied"), STATED)
def test_no_reason_says_not_stated_of_what_the_paper_states(shared, paper, sentence, place, denied):
    (file,) = (shared / "papers").glob(f"{paper}.*.txt")
    assert sentence in " ".join(file.read_text().split()), place
    read = load_paper({"wafer_scale": "wafer", "capacity_aware": "capacity"}.get(paper, paper))
    reasons = [part.why for part in read.outside] + [rule.why for rule in read.rules] + list(read.assumed)
    reasons += [each for group, row in read.rows() for each in (group.why, row.why) if each]
    assert [each for each in reasons if re.search(denied, each)] == []


def test_every_number_of_a_paper_is_judged_fitted_follows_or_has_a_reason():
    for name in PAPERS:
        paper = load_paper(name)
        there = {row.id for _, row in paper.rows()} | {each for part in paper.outside for each in listed_ids(part.ids)}
        assert there == set(listed_ids(paper.numbers)), name
        for group, row in paper.rows():
            assert paper.guesses_of(group, row), row.id


def test_what_other_code_computed_is_left_out_and_shipped_values_name_their_code(tmp_path):
    """Whichever code this is: a shipped value counts only where its digest is that of the code at hand."""
    values = recorded_values()
    for name in PAPERS:
        paper = load_paper(name)
        found = judge_recorded(paper, values[name])
        assert (found is not None) == (values[name]["code"] == code_of(paper))
        assert judge_recorded(paper, values[name] | {"code": "000000000000"}) is None
        assert judge_recorded(paper, {}) is None


def sampled(name: str, runs: set[str], folder: Path):
    """A paper with these of its runs alone."""
    paper = load_paper(name)
    claims = tuple(each for each in paper.claims if each.run in runs)
    return judge_paper(
        paper.model_copy(update={"claims": claims, "answers": (), "figure": None}), folder, 1, Unwatched()
    )


@pytest.mark.parametrize(("name", "runs", "least"), [
    ("wafer", {"hardware", "traffic"}, 5),
    ("waterfill_lplb", {"graphs", "vector"}, 2),
    ("capacity", {"olmoe_loads"}, 0),
])  # fmt: skip
def test_a_sample_of_every_commit_is_as_it_was_recorded(name, runs, least, tmp_path):
    """Of these rows so many have skill; and what this code recorded, it computes."""
    found = sampled(name, runs, tmp_path)
    counts, recorded = claims_page.counts_of([found]), recorded_values()[name]
    assert counts.skilled >= least and not counts.none
    if recorded["code"] == code_of(load_paper(name)):
        for row, here in found.as_recorded()["rows"].items():
            assert same_values(here, recorded["rows"][row]), row


def same_values(one, other) -> bool:
    """Equal trees, but for the last digits of numbers, in which processors differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_values(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_values, one, other))
    return one == (pytest.approx(other, rel=1e-9) if isinstance(other, float) else other)


# Independent numbers with a skill above 0.5, where no null model is inside the paper's spread; never lowered quietly.
LEAST_SKILLED = {
    "capacity": 2, "craft": 2, "harmoeny": 0, "libra": 49, "lina": 0, "remap_dup": 0, "wafer": 20, "waterfill_lplb": 9,
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("name", PAPERS)
def test_a_paper_is_computed_as_recorded(name, tmp_path):
    """Nightly, all of them: what --recorded judges is what this code computes, and no fewer rows have skill."""
    (found,) = ar.claims([name], tmp_path)
    recorded = recorded_values()[name]
    assert claims_page.counts_of([found]).skilled >= LEAST_SKILLED[name]
    if recorded["code"] == code_of(found.paper):
        assert same_values(json.loads((tmp_path / "recorded.json").read_text())[name], recorded)


# --- running


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("claims")
    (folder / "small.yaml").write_text(yaml.safe_dump(small()))
    (found,) = ar.claims([folder / "small.yaml"], folder / "out", jobs=1)
    return found, folder


def test_a_paper_runs_and_its_page_has_both_sets_and_what_takes_the_difference(judged):
    found, folder = judged
    missed, met = found.judged
    assert (missed.kind, met.kind, found.runs) == ("missed", "reproduced", 8)
    assert missed.simulated != missed.physical and missed.moved[0][0] == "as published"
    text = (folder / "out/small/index.html").read_text()
    assert "predicts 1 of 2 independent numbers" in text
    assert "h003: An accuracy." in text and "Small &amp; new" in text
    assert "Worth it?" in text and claims_page.answer_sentence(found.answers[0]) in text
    assert "as published" in text and claims_page.shown(missed.physical, "×") in text and "25 dies" in text
    assert (missed.place, met.place) == ("mean of all", "few requests") and "few requests <small>h002" in text


def test_a_summary_counts_and_names_the_largest_misses(judged, tmp_path):
    found, _ = judged
    text = claims_page.write_summary([found], tmp_path).read_text()
    assert re.search(r"\b1 of 2 independent published numbers\b", text)
    assert text.count("<li>") == 1 and "Because." in text
    counts = claims_page.counts_of([found])
    assert (counts.numbers, counts.judged, counts.reproduced, counts.skilled, counts.outside) == (3, 2, 1, 1, 1)


def test_what_was_recorded_is_judged_alike_and_json_has_every_row(judged):
    found, folder = judged
    recorded = json.loads((folder / "out/recorded.json").read_text())
    again = judge_recorded(found.paper, recorded["small"])
    assert claims_page.table_of([again]).rows == claims_page.table_of([found]).rows
    assert again.answers == found.answers and again.answers
    told = json.loads(json.dumps(claims_page.as_json([again])))
    assert [each["verdict"] for each in told["rows"]] == [
        claims_page.VERDICTS[kind] for kind in ("missed", "reproduced")
    ]
    assert (
        told["rows"][0]["null"] == "100"
        and told["all"]["skilled"] == 1
        and "A hundred times." in (folder / "out/small/index.html").read_text()
    )
    (kept,) = ar.claims([folder / "small.yaml"], folder / "out", recorded=True)
    assert kept.judged == found.judged
    empty = judge_recorded(found.paper, recorded["small"] | {"rows": {}})
    assert empty.of("none") == empty.judged
    with pytest.raises(SpecError, match="other code computed what is recorded of small"):
        ar.claims([folder / "small.yaml"], folder / "elsewhere", recorded=True)


def test_a_constant_that_was_fitted_on_a_rounded_number_has_an_interval(tmp_path):
    """The runs of both ends are made, too."""
    paper = small()
    key = "systems.0.hbm.bandwidth"
    paper["runs"]["one"]["sweep"] |= {"systems": [{"like": "dojo", "name": "dojo"}], "policies": ["base", "allo"]}
    paper["figure"] = {
        "name": "Figure 1", "place": "2", "run": "one", "by": "policy", "at": {"batch": 64}, "unit": "ms",
        "parts": {"decoding": "decode_ns / 1000000"},
    }  # fmt: skip
    paper["rules"] = [{
        "name": "HBM", "why": "rounded", "runs": {"one": [f"{key}=2 TB/s"]}, "fitted": ["h001"],
        "ends": [{"one": [f"{key}=1 TB/s"]}, {"one": [f"{key}=3 TB/s"]}],
    }]  # fmt: skip
    paper["claims"][0] |= {"quantity": "decode_ns", "at": {"policy": "allo", "batch": 64}, "against": {}}
    with pytest.raises(SpecError, match="fitted: h001 is tested"):
        (tmp_path / "judged.yaml").write_text(yaml.safe_dump(paper))
        load_paper(tmp_path / "judged.yaml")
    paper["claims"][0]["rows"][0]["fit"] = True
    del paper["answers"]
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(paper))
    (found,) = ar.claims([tmp_path / "small.yaml"], tmp_path / "out", jobs=1)
    slow, fast = found.judged[0].ends
    assert slow > found.judged[0].simulated > fast
    assert [(value, part) for value, part, _ in found.bars] == [("base", "decoding"), ("allo", "decoding")]
    assert found.bars[1][2] == pytest.approx(found.judged[0].simulated / 1e6)
    assert "Figure 1 (2): simulated" in (tmp_path / "out/small/index.html").read_text()
    (again,) = ar.claims([tmp_path / "small.yaml"], tmp_path / "out", recorded=True)
    assert again.bars == found.bars and "Figure 1 (2): simulated" in (tmp_path / "out/small/index.html").read_text()
    fitted, other = claims_page.cases_of([again]).sort_values("seen", ascending=False).itertuples()
    assert fitted.seen and not other.seen and fitted.error == pytest.approx(found.judged[0].off)
    assert claims_page.ends(found.judged[0], "×") in (tmp_path / "out/small/index.html").read_text()


def test_rows_of_a_function_are_claims_as_well(tmp_path):
    given = {"load": [3, 1, 1, 1], "gpus": 2, "slots": 2}
    table = {"function": "archsim.evidence.claim_tables:replicated_loads", "given": given}
    claim = {"what": "a", "run": "one", "quantity": "most", "unit": "", "within": 0, "guess": 1}
    paper = small() | {"runs": {"one": {"table": table}}, "rules": [], "answers": []}
    paper["claims"] = [claim | {"rows": [{"id": "h001", "published": 4.0}]}]
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(paper))
    assert ar.claims([tmp_path / "small.yaml"], tmp_path / "out")[0].judged[0].kind == "reproduced"


def test_pages_render_in_light_dark_and_on_narrow_screens(judged):
    text = (judged[1] / "out/small/index.html").read_text()
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text
    text = re.sub(r"(?s)<script.*?</script>", "", text)
    assert text.count("<table") == text.count('<div class="wide"><table')  # tables scroll in a box of their own


# ---- Rows of papers' numbers that no sweep gives.


def test_the_published_parts_cost_what_archsim_area_prints():
    parts = {each["part"]: each for each in claim_tables.decision_hardware("scaled")}
    assert parts["heatmap"]["mib"] == 50 and parts["heatmap cache"]["mib"] == 0.5
    rest = [each for name, each in parts.items() if name != "total"]
    assert parts["total"]["power_mw"] == pytest.approx(sum(each["power_mw"] for each in rest))
    dense = {each["part"]: each for each in claim_tables.decision_hardware()}
    assert parts["ATU"]["area_mm2"] < dense["ATU"]["area_mm2"] / 5  # cells shrunk by the node's name


def test_statistics_of_a_preset_are_shares_and_correlations():
    (row,) = claim_tables.routing_statistics(["deepseek-v3"], requests=20, layers=2)
    shares = [value for name, value in row.items() if name.startswith(("pairs", "following", "together", "prefill"))]
    assert len(shares) == 8 and all(0 < each <= 100 for each in shares)
    assert -1 <= row["heatmap_rank"] <= 1 and row["hottest_most"] >= row["hottest_least"] > 1 and row["bright"] > 1


def test_a_peak_is_that_of_one_task_as_papers_track_it_while_data_sets_run():
    (row,) = claim_tables.routing_statistics(["deepseek-v2-lite"], requests=100, layers=2)
    assert row["hottest_peak"] > 1.2 * row["hottest_most"]  # four tasks, each with hot experts of its own
    (single,) = claim_tables.routing_statistics(["olmoe-1b-7b"], requests=20, layers=1)
    assert single["hottest_peak"] == single["hottest_most"]


def test_heatmaps_of_prefill_and_decode_agree_as_far_as_halves_of_the_requests_do():
    traffic = load_traffic("deepseek-v3", load_model("deepseek-v3"))
    trace = collect(traffic_of(of_layers(traffic, traffic.layer_ids[4:6], "deepseek-v3"), 40, 1))
    agreed, most = statistics.heatmap_agreement(trace), statistics.heatmap_ceiling(trace)
    assert agreed["cross_layer"].shape == (1,) and agreed["cross_token"].shape == (2,)
    assert (most["cross_token"] > agreed["cross_token"] - 0.2).all()
    prompts = statistics.rows_of(trace, trace.iteration == 0)
    assert statistics.heatmap_agreement(prompts) == {}


def test_paths_tell_more_than_chance():
    (row,) = claim_tables.path_tables(["glm-4.5"], tokens=2000)
    assert 5 < row["accuracy"] < 50


def test_the_worst_placement_is_worse_than_the_default_which_is_worse_than_remap():
    rows = claim_tables.placed_by_load("qwen3-235b-a22b", 8, {"max_over_min": 1.3}, layers=2)
    found = {each["placement"]: each["max_over_mean"] for each in rows}
    assert found["worst"] > found["default"] > found["remap"] >= found["best"] == 1


def test_a_larger_skew_drops_more():
    small, large = claim_tables.skewed_loads("olmoe-1b-7b", [0.5, 1.0])
    assert all(small[each] < large[each] for each in ("hottest", "dropped", "two_most"))
    assert 100 * 2 / 64 < large["two_most"] <= 2 * 100 * large["hottest_most"] / 64  # of the most skewed layer


def test_lplb_balances_its_graphs_and_eplb_its_vector():
    for row in claim_tables.shared_by_graph(draws=3):
        assert 1 <= row["max_over_mean"] < row["before"]
    load = [600, 560, 120, 120, 20, 10, 10, 10]
    assert claim_tables.replicated_loads(load, 8, 2) == [{"most": 232.0, "mean": 181.25}]


def test_parts_of_a_layer_grow_with_tokens_and_stages_share_all_pairs():
    small, large = (
        {each["part"]: each["ns"] for each in claim_tables.parts_of_layer("qwen3-235b-a22b", "h200", tokens, 8)}
        for tokens in (4096, 32768)
    )
    assert all(large[part] > small[part] for part in ("dispatch", "combine", "broadcast", "predict", "to_host"))
    assert large["to_gpu"] == small["to_gpu"]  # tokens of every expert, however many there are

    def stages(load, **given):
        traffic = {"imbalance": {"max_over_mean": load, "ranks": 8}, "prompt_tokens": 256, "requests": 16}
        return claim_tables.two_stages("qwen3-235b-a22b", 8, traffic, 0.88, layers=1, **given)[0]

    even, skewed = stages(1.2), stages(1.7)
    # the replicas of every GPU are the experts that most tokens choose: the more skewed, the more of them stay
    assert 1 / 8 < even["local"] < skewed["local"] < 1
    assert 1 < even["imbalance"] < skewed["imbalance"]
    assert stages(1.2, slots=0)["local"] == pytest.approx(1 / 8, abs=0.03)  # nothing but its own experts
