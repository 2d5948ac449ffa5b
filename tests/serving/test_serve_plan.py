"""Serving is a plan as sweeps are: axes, kept runs, a manifest that reproduces, nothing half-written, progress."""

import json
import re
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
from support.tiny import archsim
from support.toy import SERVED as FILE

import archsim as ar
from archsim.base.errors import ArchsimError, SpecError
from archsim.cli.main import main
from archsim.iteration.constants import residual_of
from archsim.runs.sweep import Unwatched
from archsim.serving.answers.load_answer import SustainedRate, load_sentence, sustains
from archsim.serving.answers.page import intervals_in, load_sentences
from archsim.serving.answers.runs import OfferedLoad, serve_plan
from archsim.serving.answers.sure import FEWEST_REQUESTS, factors_of_laws, find_sure, off_of, shorten
from archsim.serving.file_engines import host_for
from archsim.show.units import interval
from archsim.specs.serving_files import load_serving
from archsim.specs.uncertainty import load_widths

GRID = {"requests.arrivals.rate": ["4/s", "8/s"], "parallel.attention.tp": [4, 3], "scheduler.name": ["sglang"]}
AXES = FILE | {"sweep": {"grid": GRID}}
LAST = ("results.csv", "results.parquet", "index.html", "manifest.yaml")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own."""
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def kept_samples(tmp_path_factory, monkeypatch):
    """A cache that tests of the same samples share, however fast the machine is."""
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path_factory.getbasetemp() / "samples"))
    monkeypatch.setattr("archsim.runs.store.WORTH_S", 0.0)


def read(folder, names=LAST):
    return {name: (folder / name).read_bytes() for name in names}


def test_axes_are_rows_and_what_cannot_run_says_why(tmp_path):
    served = ar.serve_plan(AXES, out=tmp_path, samples=0)
    rows = served.table.rows
    assert [row["point"] for row in rows] == [0, 1, 2, 3] and {row["scheduler.name"] for row in rows} == {"sglang"}
    assert ["tp 3 does not divide" in row["refused"] for row in rows] == [False, True, False, True]
    assert rows[0]["goodput_per_s"] < rows[2]["goodput_per_s"]
    page = (tmp_path / "index.html").read_text()
    assert "over requests.arrivals.rate" in page or "4 points" in page
    assert len(repr(served).splitlines()) <= 6


def test_points_have_ranges_and_the_best_is_told_as_compare_tells_it(tmp_path, monkeypatch, capsys, kept_samples):
    monkeypatch.chdir(tmp_path)
    grid = {"requests.arrivals.rate": ["4/s", "8/s"], "parallel.attention.tp": [4, 3]}
    (tmp_path / "axes.yaml").write_text(json.dumps(FILE | {"sweep": {"grid": grid}}))
    assert main(["serve", "axes.yaml", "--json", "--out", "out"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "4 requests per second" in found["answer"] and "tp 3 does not divide" in found["answer"]
    assert re.search(r"\((2\.0+|1\.99\d*)\s×", found["answer"])
    assert len(found["sure"]["options"]) == 2 and found["answer"] in (tmp_path / "out" / "index.html").read_text()
    assert main(["compare", "axes.yaml", "--json", "--out", "compared"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert compared["answer"] == found["answer"] and compared["options"] == found["sure"]["options"]
    plain = ar.serve_plan("axes.yaml", out=tmp_path / "plain", samples=0, around=False)
    assert not plain.answer and plain.sampled is None and not (tmp_path / "plain" / "sure.json").exists()


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


def test_one_deployment_says_its_p99_and_if_its_load_is_too_high_the_rate_that_it_sustains(tmp_path, capsys):
    few = SURE_FILE | {"slo": {"ttft": "1 s", "tpot": "10 ms"}}
    requests = {key: few["requests"][key] for key in ("input", "output")} | {"count": 100}
    for rate, is_kept in ((4, True), (4000, False)):
        arrivals = {"rate": f"{rate}/s"}
        given = few | {"requests": requests | {"arrivals": arrivals}, "loads": {"rates": [arrivals["rate"]]}}
        (tmp_path / "one.yaml").write_text(json.dumps(given))
        assert main(["serve", str(tmp_path / "one.yaml"), "--json", "--out", str(tmp_path / f"{rate}")]) == 0
        found = json.loads(capsys.readouterr().out)
        answer, (row,), (option,) = found["answer"], found["rows"], found["sure"]["options"]
        page = (tmp_path / f"{rate}" / "index.html").read_text()
        assert answer in page and '<p class="answer">Without samples: <b>' in page and "<th>ms, without samples" in page
        low, middle, high = (option[f"tpot_p99_ms{end}"] for end in ("_p05", "", "_p95"))
        assert middle == row["tpot_p99_ms"] and low < high
        said = interval(*(option[f"tpot_p99_ms_{end}"] for end in ("p50", "p05", "p95")))
        assert "p99 of TPOT is {} ms ({} to {})".format(*said) in answer  # the median, as in the table of samples
        assert ("does not sustain" in answer) != is_kept
    number = r"([\d.,]+)"
    ends = re.search(rf"and sustains {number} \({number} to {number}\)", answer).groups()
    rate, low, high = (float(each.replace(",", "")) for each in ends)
    assert 4 < rate < 4000 and low < high
    slower = given | {"requests": requests | {"arrivals": {"rate": f"{0.9 * rate}/s"}}}
    answer = ar.serve_plan(slower, samples=0, around=False).answer
    assert "does not sustain" not in answer and "samples" not in answer


@pytest.mark.parametrize(
    ("requests", "requests_per_s", "saturated", "expected"),
    [(200, 3.53, "", True), (20_000, 3.53, "", False), (200, 2.0, "", False), (200, 3.53, "grows", False)],
)
def test_a_rate_within_the_chance_of_few_requests_is_sustained(requests, requests_per_s, saturated, expected):
    serving = load_serving(FILE | {"requests": FILE["requests"] | {"arrivals": {"rate": "4/s"}}})
    row = {"requests": requests, "requests_per_s": requests_per_s, "saturated": saturated, "unsteady": "is short"}
    row |= {"within_slo": 1.0, "devices": 4, "goodput_per_s": 3.5, "ttft_p99_ms": 300.0, "tpot_p99_ms": 30.0}
    assert sustains(serving, row, 4.0) == expected
    for rate, is_kept in ((6.5, True), (3.0, False)):  # of a longer run, which decides
        said = load_sentence(serving, row, 4.0, {}, 0, SustainedRate(rate, None))
        assert ("does not sustain" not in said) == is_kept


def test_a_page_has_the_curves_over_the_load_and_links_every_other_file_once(tmp_path):
    ar.serve_plan(FILE, out=tmp_path / "whole", samples=0)
    page = (tmp_path / "whole" / "index.html").read_text()
    assert '"goodput"' in page and '"throughput"' in page  # lines of a figure
    assert "<code>loads: {rates: […]}</code> in the file asks for higher ones" in page
    (line,) = (line for line in page.splitlines() if 'class="files"' in line)
    there = {file.name for file in (tmp_path / "whole").iterdir() if file.is_file() and not file.name.startswith(".")}
    assert sorted(re.findall(r'href="([^"]+)"', line)) == sorted(there - {"index.html"})
    ar.serve_plan(FILE | {"slo": {"ttft": "1 ms"}}, out=tmp_path / "strict", samples=0)
    assert "asks for higher ones" not in (tmp_path / "strict" / "index.html").read_text()


def test_a_run_is_found_in_the_cache_with_all_that_happened(tmp_path, monkeypatch):
    monkeypatch.setattr("archsim.runs.store.WORTH_S", 0.0)  # however fast the machine is

    class Heard(Unwatched):
        def kept(self, runs):
            found.append(runs)

    found: list[int] = []
    faults = {"instances": 2, "faults": [{"at": "1 s", "engine": 1, "rank": 0, "recovery": "1 s"}]}
    first = ar.serve_plan(FILE | faults, out=tmp_path / "one", around=False, samples=0).outcomes[0]
    again = ar.serve_plan(FILE | faults, out=tmp_path / "two", around=False, samples=0, watcher=Heard()).outcomes[0]
    assert found == [1] and first.notes == again.notes and any("A fault after" in note for note in again.notes)
    names = (*LAST, "bench.json", "requests.csv")
    assert read(tmp_path / "one", names) == read(tmp_path / "two", names)


def test_half_a_file_is_not_taken_for_a_whole_one(tmp_path):
    ar.serve_plan(FILE, out=tmp_path, around=False, samples=0)
    before = read(tmp_path, ("requests.csv", "results.csv"))
    [row] = (tmp_path / "runs").glob("*.json")
    row.write_bytes(row.read_bytes()[: row.stat().st_size // 2])
    ar.serve_plan(FILE, out=tmp_path, around=False, samples=0)
    assert read(tmp_path, ("requests.csv", "results.csv")) == before


def test_other_requests_are_another_run(tmp_path):
    first = ar.serve_plan(FILE, out=tmp_path, around=False, samples=0).table.rows[0]
    second = ar.serve_plan(FILE, ["requests.seed=1"], out=tmp_path, around=False, samples=0).table.rows[0]
    assert first["run"] != second["run"] and first["ttft_mean_ms"] != second["ttft_mean_ms"]


def test_the_command_prints_points(tmp_path):
    (tmp_path / "mine.yaml").write_text(json.dumps(AXES))
    process = archsim(tmp_path, "serve", "mine.yaml", "--out", "out")
    assert process.returncode == 0, process.stderr
    assert "4 runs, most goodput first" in process.stdout and "2 runs were refused" in process.stdout
    assert process.stderr.startswith("reading mine.yaml")


# ---- Served requests in many worlds: laws of the draws, the words of the answer, its files, and resuming.

SURE_FILE = {
    "system": "h200_node", "model": "qwen3-30b-a3b", "parallel": {"attention": {"tp": 4}}, "engine": "vllm",
    "requests": {"concurrency": 4, "input": {"fixed": 200}, "output": {"fixed": 12}, "count": 12},
    "scheduler": {"max_num_batched_tokens": 512},
}  # fmt: skip
LAWS = SURE_FILE | {"engine": "none"}
TWO = {
    "system": "dojo", "model": "qwen3-30b-a3b", "engine": "none", "policies": ["ep", "allo"],
    "parallel": {"attention": {"tp": 1, "dp": 25}, "experts": {"ep": 25}},
    "routing": {"synthetic": {"popularity_skew": 0.5}, "requests": 4, "steps": 4, "layers": 1},
    "requests": {"concurrency": 25, "input": {"fixed": 100}, "output": {"fixed": 4}, "count": 50},
}  # fmt: skip


def test_a_measured_engine_has_the_residuals_of_its_measurements(tmp_path, kept_samples):
    found = ar.serve_sure(SURE_FILE, 16, out=tmp_path / "one")
    (option,) = found.options
    assert {each.key.rpartition(".")[2] for each in found.quantities} == {"tpot", "ttft"}
    low, high = residual_of("vllm", load_serving(SURE_FILE).model, "h200", "bf16", "bf16").tpot
    tpot = option.intervals["tpot_mean_ms"]
    value = option.values["tpot_mean_ms"]
    assert tpot.p05 < low * value * 1.1 and tpot.p95 > high * value * 0.9
    assert "TPOT" in found.sentence and "90\N{NO-BREAK SPACE}% of 16 samples" in found.sentence
    row = json.loads((tmp_path / "one" / "sure.json").read_text())["options"][0]
    assert row["tpot_mean_ms_p05"] == tpot.p05 <= row["tpot_mean_ms_p50"] <= row["tpot_mean_ms_p95"]
    assert found.sentence in (tmp_path / "one" / "sure.html").read_text()
    assert list(found.to_pandas().columns)[:3] == ["option", "ttft_mean_ms", "ttft_mean_ms_p05"]


@pytest.mark.usefixtures("few_samples")
def test_laws_without_a_measured_engine_are_drawn_table_by_table():
    found = ar.serve_sure(LAWS, 4)
    tables = {each.key.split(".")[1] for each in found.quantities if each.key.startswith("measured")}
    assert tables == {"gemm", "moe", "attention", "all_reduce"}
    assert found.options[0].intervals["tpot_mean_ms"].width > 0


def test_a_factor_of_one_gives_the_numbers_to_the_bit():
    serving = load_serving(LAWS)
    ones = {"": {name: 1.0 for name in ("products", "experts", "attention", "moves", "decodes", "iteration_ns")}}
    from archsim.serving.serving import serve

    assert serve(serving).measures == serve(serving._replace(off=ones)).measures
    assert host_for(serving._replace(off={"": {"products": 2.0}})).products == 2


@pytest.mark.nightly
@pytest.mark.usefixtures("few_samples")
def test_policies_on_a_wafer_share_their_worlds():
    found = ar.serve_sure(TWO, 4)
    (pair,) = found.pairs
    assert {each.key.split(".")[0] for each in found.quantities} >= {"system", "measured"}
    assert pair.probability + pair.reverse <= 1
    assert ("are a tie" in found.sentence) == (pair.probability < 0.9)
    widths = [interval.p95 / interval.p05 for interval in (each.intervals["tpot_mean_ms"] for each in found.options)]
    assert pair.ratio.p95 / pair.ratio.p05 < max(widths)


@pytest.mark.parametrize(("model", "gpu", "attention", "tables"), [
    ("qwen3-32b", "h200_node", {"tp": 4}, {"attention.nearest_shape", "all_reduce.fit"}),
    ("deepseek-v3.2", "h200_node", {"dp": 8}, {"sparse.nearest_shape", "collectives.fit"}),
    ("glm-4.5", "h100_cluster", {"dp": 16}, {"wide_ep.nearest_shape"}),
    ("qwen3-next-80b-a3b", "a100_cluster", {"tp": 2}, {"linear.scaled", "all_reduce.fit"}),
])  # fmt: skip
def test_widths_are_of_the_kind_of_kernel(model, gpu, attention, tables):
    """Those of a kind that was never had in a way are as of all kinds together, and no narrower than its own."""
    given = LAWS | {"model": model, "system": gpu, "parallel": {"attention": attention}, "precision": {"kv": "bf16"}}
    widths = load_widths()
    found = {each.key.removeprefix("measured.") for _, each in factors_of_laws(load_serving(given), widths)}
    assert tables <= {".".join(key.split(".")[:2]) for key in found}
    for kind, way in (each.split(".") for each in tables):
        levels, own = widths.levels(kind, way), widths.measured[kind]
        assert levels == own[way] if way in own else levels.spread >= max(each.spread for each in own.values())


@pytest.mark.nightly
@pytest.mark.usefixtures("few_samples")
def test_sides_apart_draw_what_is_known_of_each():
    apart = LAWS | {"disaggregated": {"prefill": {"parallel": {"attention": {"tp": 4}}},
                                      "decode": {"parallel": {"attention": {"tp": 4}}}}}  # fmt: skip
    del apart["parallel"]
    found = ar.serve_sure(apart, 4)
    assert found.options[0].intervals["ttft_mean_ms"].width > 0
    serving = load_serving(apart)
    sides = {side: off_of(serving.on(side), load_widths()).factors for side in ("prefill", "decode")}
    names = {side: {name for name, _ in factors} for side, factors in sides.items()}
    assert names == {"prefill": {"decodes", "prompts", "ttft"}, "decode": {"decodes", "prompts"}}  # ttft: once


def test_few_samples_are_refused_and_the_command_says_the_sentence(capsys, tmp_path, monkeypatch, kept_samples):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArchsimError, match="at least 16"):
        ar.serve_sure(SURE_FILE, 15)
    import yaml

    file = tmp_path / "one.yaml"
    file.write_text(yaml.safe_dump(SURE_FILE))
    assert main(["serve", str(file), "--samples", "16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "90\N{NO-BREAK SPACE}% of 16 samples" in found["sure"]["sentence"] and np.isfinite(
        found["sure"]["options"][0]["tpot_mean_ms_p95"]
    )
    page = next(tmp_path.rglob("index.html"))
    text = page.read_text(encoding="utf-8")
    assert found["sure"]["sentence"] in text and 'href="sure.html"' in text and (page.parent / "sure.html").is_file()
    beside = page.parent / "sure.json"  # of other numbers: the page does not show them
    kept = json.loads(beside.read_text(encoding="utf-8"))
    kept["options"][0]["tpot_mean_ms"] *= 2
    beside.write_text(json.dumps(kept), encoding="utf-8")
    assert intervals_in(page.parent, ar.serve_plan(SURE_FILE, samples=0).table) is None
    assert main(["serve", str(file), "--samples", "16", "--search"]) == 2


@pytest.mark.usefixtures("few_samples")
def test_ranges_of_the_first_requests_are_those_of_all_in_proportion():
    requests = {key: SURE_FILE["requests"][key] for key in ("input", "output")} | {"count": 200}
    plan = serve_plan(SURE_FILE | {"requests": requests | {"arrivals": {"rate": "4/s"}}})
    (run,) = plan.runs()
    few = shorten(run, 1.0)
    assert few.serving.spec.requests.total == FEWEST_REQUESTS < 200
    assert shorten(run, float("inf")) is run and shorten(run, 1e12) is run
    (closed,) = serve_plan(SURE_FILE).runs()
    assert shorten(closed, 1.0) is closed  # its clients wait for each other
    found, whole = find_sure(plan, 4, None, most_tokens=1.0), find_sure(plan, 4, None)
    (one,), (other,) = found.options, whole.options
    assert dict(one.values) == dict(other.values) and any("first 100 requests" in note for note in found.notes)
    for name in ("ttft_mean_ms", "tpot_p99_ms"):
        assert one.intervals[name].p95 == pytest.approx(other.intervals[name].p95, rel=0.2)


def test_where_goodput_is_the_same_in_all_worlds_a_time_that_varies_is_explained():
    found = ar.serve_sure(SURE_FILE | {
        "requests": {"arrivals": {"rate": "2/s"}, "input": {"fixed": 200}, "output": {"fixed": 12}, "count": 8},
        "slo": {"ttft": "60 s"},
    }, 16)  # fmt: skip
    (option,) = found.options
    assert found.judged == "goodput_per_s" and option.intervals["within_slo"].width == 0
    assert option.intervals[found.explained].width > 0 and sum(each.total for each in found.indices) > 0.5


# ---- What looks wrong in the curves over the load is explained beside them.


def loads_of(*points):
    """Loads of (offered, goodput, TPOT in ms)."""
    return [
        OfferedLoad(at, SimpleNamespace(goodput_per_s=good, tpot=SimpleNamespace(mean=tpot)))
        for at, good, tpot in points
    ]


def test_times_that_fall_and_goodput_that_zigzags_are_explained_by_prompts_that_meet():
    around = loads_of((8, 7.0, 25.0), (1, 1.0, 20.0), (2, 2.0, 30.0), (4, 1.5, 31.0))
    falls, zigzag, why = load_sentences(around, "requests/s offered", ranks=8)
    assert falls == "A token takes less time at the higher load: 31.0 ms at 4 requests/s offered, 25.0 ms at 8."
    assert "falls from 2 to 1.5 requests per second between 2 and 4 requests/s offered" in zigzag and "at 8." in zigzag
    assert "a prompt on one of them holds up the decodes of all" in why


@pytest.mark.parametrize(
    "around",
    [
        loads_of((1, 1.0, 20.0), (2, 2.0, 30.0), (4, 1.5, 40.0), (8, 0.2, 50.0)),  # beyond what it sustains
        loads_of((1, 1.0, 20.0), (2, 0.99, 19.9), (4, 1.0, 20.0)),  # noise
        [],
    ],
)
def test_monotone_curves_are_not_explained(around):
    assert load_sentences(around, "clients", ranks=1) == []


# ---- Keys by other names, and requests in another way than that of the file.

BY_NAME = {
    "rate=8": ("requests.arrivals.rate", 8.0),
    "requests.rate=8/s": ("requests.arrivals.rate", 8.0),
    "users=64": ("requests.concurrency", 64),
    "max_num_seqs=3": ("scheduler.max_num_seqs", 3),
    "enable-prefix-caching=false": ("scheduler.prefix_caching", False),
    "gpu_memory_utilization=0.5": ("utilisation", 0.5),
    "precision=nvfp4": ("precision.experts", "nvfp4"),
    "tpot=20ms": ("slo.tpot_ns", 20e6),
    "num_speculative_tokens=0": ("speculation", "none"),
    "ep_num_redundant_experts=16": ("policies.0.placement.slots", 2),
    "rebalance_interval=100": ("policies.0.rebalancing.every_steps", 100),
    "eplb-rebalance-num-iterations=100": ("policies.0.placement.slots", 1),
    "experts=tp": ("parallel.experts.tp", 8),
    "parallel=ep": ("parallel.attention.dp", 8),
    "attention=tp": ("parallel.attention.tp", 8),
    "kv_precision=fp8": ("precision.kv", "fp8"),
    "chunk_size=512": ("scheduler.max_num_batched_tokens", 512),
    "batch_size=32": ("scheduler.max_num_seqs", 32),
    "isl=77": ("requests.input.mean", 77),
    "qps=3": ("requests.arrivals.rate", 3.0),
    "gpu=h20_cluster": ("system", "h20_cluster"),
    "policy=ep": ("policies", ("ep",)),
    "parallel=dp": ("parallel.attention.dp", 8),
}


@pytest.mark.parametrize("text", BY_NAME)
def test_a_key_goes_by_its_last_part_and_by_the_flag_of_an_engine(text):
    path, value = BY_NAME[text]
    found = load_serving("serve_h200", [text]).spec
    for key in path.split("."):
        found = found[int(key)] if key.isdecimal() else found[key] if isinstance(found, dict) else getattr(found, key)
    assert found == value


def test_redundant_experts_are_shared_by_the_ranks_of_the_sides():
    given = load_serving("serve_h200").given
    four, eight = ({"parallel": {"attention": {"tp": ranks}}} for ranks in (4, 8))
    plain = {key: each for key, each in given.items() if key != "parallel"}

    def slots(prefill, decode):
        sides = {"disaggregated": {"prefill": prefill, "decode": decode}}
        return load_serving(plain | sides, ["redundant_experts=32"]).spec.policies[0]["placement"]["slots"]

    assert slots("none", eight) == 4 and slots(four, four) == 8
    with pytest.raises(SpecError, match="share experts differently"):
        slots(four, eight)


FOUR = "policies=[{name: mine, preset: eplb, slots: 4, window_steps: 9}, lplb]"


@pytest.mark.parametrize(("given", "slots", "every"), [
    (["redundant_experts=32", "rebalance_interval=500"], 4, 500),
    (["rebalance_interval=500", "redundant_experts=32"], 4, 500),
    (["rebalance_interval=500", "redundant_experts=0"], 0, 500),
    (["routing={like: model}", FOUR, "rebalance_interval=500"], 4, 500),
    (["routing={like: model}", FOUR, "redundant_experts=16", "rebalance_interval=500"], 2, 500),
    (["routing={like: model}", "policies=[eplb, ep]", "redundant_experts=16"], 2, 64),
])  # fmt: skip
def test_slots_and_interval_of_eplb_leave_each_other_as_they_are(given, slots, every):
    serving = load_serving("serve_h200", given)
    found = serving.policies[0]
    assert (found.placement.params["slots"], found.rebalancing.params.get("every_steps")) == (slots, every)
    assert len(serving.policies) == 1 + ("routing={like: model}" in given)
    assert FOUR not in given or (found.name, found.rebalancing.params["window_steps"]) == ("mine", 9)


def test_requests_come_in_one_way_and_the_order_of_overrides_has_no_effect(tmp_path):
    trace = tmp_path / "mine.csv"
    trace.write_text("timestamp,input_length,output_length\n0.5,10,5\n1.25,20,5\n")
    for given in (f"requests={trace}", f"requests.trace={trace}"):
        assert load_serving("serve_h200", [given]).spec.requests.model_dump(exclude_defaults=True) == {
            "trace": str(trace)
        }
    of_trace = f"requests={trace}"
    for both in (("users=8", "rate=3"), (of_trace, "rate=3"), (of_trace, "requests.input.mean=9")):
        for given in (both, both[::-1]):
            with pytest.raises(SpecError, match="expected one of trace|a trace has its lengths"):
                load_serving("serve_h200", given)
    for given in permutations((of_trace, "requests.count=1", "users=8")):
        found = load_serving("serve_h200", given).spec.requests
        assert (found.total, found.concurrency, found.trace) == (1, 8, str(trace))
    assert load_serving("serve_h200", ["precision=fp8"]).spec.precision.kv == "bf16"  # as the file says


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("redundant_experts=12", "8 ranks .* 0, 8, 16, 24"), ("seed=3", "requests.seed or speculation.seed"),
        ("max_num_sequences=3", "did you mean 'max_num_seqs'"), ("kv_offload=true", "its capacity"),
        ("precision=fp9", "unknown precision 'fp9'.*known: bf16, fp8"), ("drafts=2", "acceptance: how many drafts are"),
        ("speculative_num_steps=2", "acceptance: how many drafts are"),
        ("speculative-num-draft-tokens=3", "Give speculative_num_steps"), ("num_draft_tokens=3", "one less"),
        ("experts=dp", "parallel.experts .*tp, ep"), ("attention=ep", "parallel.attention .*tp, dp"),
        ("failures=1", r"faults=\[{at: "), ("pd=true", "disaggregated={prefill: "),
        ("rebalance_threshold=0.1", "did you mean 'rebalance_interval'"), ("threshold=0.1", "rebalance_interval"),
    ],
)  # fmt: skip
def test_a_name_of_no_key_or_of_several_is_refused(text, words):
    with pytest.raises(SpecError, match=words):
        load_serving("serve_h200", [text])


@pytest.mark.parametrize("text", ["experts=ep", "parallel=tp", "redundant_experts=8"])
def test_a_word_for_sizes_refuses_a_misspelt_key_of_the_file_with_its_place(text):
    given = load_serving("serve_h200").given | {"parallel": {"atention": {"tp": 8}}}
    with pytest.raises(SpecError, match="parallel.atention: unknown key; did you mean 'attention'"):
        load_serving(given, [text])


def test_a_word_for_the_sizes_of_experts_replaces_those_of_another_number_of_ranks():
    given = load_serving("serve_h200").given | {"parallel": {"attention": {"tp": 8}, "experts": {"ep": 8}}}
    for texts in (["tp=4", "experts=ep"], ["experts=ep", "tp=4"]):
        assert load_serving(given, texts).spec.parallel.experts.ep == 4
    swept = given | {"sweep": {"grid": {"experts": ["ep", "tp"], "tp": [2, 4]}}}
    assert load_serving(swept).spec.parallel.experts.ep == 2
