"""``archsim serve`` end to end: files, the engine's times, disaggregation, comparison, search."""

import csv
import json
import tracemalloc
from copy import deepcopy

import numpy as np
import pytest
from support.examples import sampled

import archsim as ar
from archsim.base.errors import SpecError
from archsim.cli.main import main
from archsim.evidence.serving.calibrate import MOST_SIMULATIONS
from archsim.iteration.times import batches_of, iteration_times
from archsim.serving.answers.configuration import Configuration
from archsim.serving.answers.results import EqualConfigurations, best_sentences, equal_groups, on_front, table_of
from archsim.serving.answers.runs import serve_plan
from archsim.serving.answers.search import search
from archsim.serving.file_engines import host_for
from archsim.serving.measures import measure, times_ns
from archsim.show.units import significant
from archsim.specs.deployment import ParallelSpec
from archsim.specs.serving_files import load_serving
from archsim.specs.unread import keys_of

FILE = {
    "system": "h200_node",
    "model": "qwen3-235b-a22b",
    "parallel": {"attention": {"tp": 8}, "experts": {"ep": 8}},
    "precision": {"products": "fp8_block", "experts": "fp8_block"},
    "engine": "none",
    "requests": {"concurrency": 4, "start": "together", "input": {"fixed": 700}, "output": {"fixed": 20}, "count": 12},
    "scheduler": {"max_num_seqs": 64},
    "slo": {"ttft": "2 s", "tpot": "50 ms"},
}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    return ar.serve(FILE, out=folder), folder


def test_one_request_takes_what_the_engine_says():
    alone = ar.serve(
        FILE
        | {
            "host": {"decodes": 1, "prompts": 1},
            "requests": {"concurrency": 1, "input": {"fixed": 700}, "output": {"fixed": 3}, "count": 1},
        }
    )
    laws, request = alone.deployment.prefill.laws, alone.served.requests[0]
    steps = [(700, 700), (1, 701), (1, 702)]
    ns = [float(iteration_times(laws, batches_of(*step)).total_ns[0]) for step in steps]
    off = alone.deployment.prefill.errors[1]
    assert request["first_ns"] - request["arrival_ns"] == pytest.approx(ns[0], rel=max(off, 1e-4))
    assert request["last_ns"] - request["first_ns"] == pytest.approx(sum(ns[1:]), rel=max(off, 1e-4))
    assert off < 0.02  # error of the interpolated table


def test_files_hold_the_run(outcome):
    found, folder = outcome
    bench = json.loads((folder / "bench.json").read_text(encoding="utf-8"))
    assert bench["completed"] == 12 and bench["total_output_tokens"] == 240
    assert bench["mean_ttft_ms"] == pytest.approx(1e3 * np.mean(bench["ttfts"]))
    assert bench["max_concurrency"] == 4 and bench["p99_e2el_ms"] >= bench["median_e2el_ms"]
    assert len((folder / "requests.csv").read_text(encoding="utf-8").splitlines()) == 13
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert "qwen3-235b-a22b" in page and page.count('class="plot"') >= 5
    assert found.measures.goodput_per_s == found.measures.requests_per_s


def test_measures_take_less_memory_than_the_requests(outcome):
    many = np.tile(outcome[0].served.requests, 10_000)
    served = outcome[0].served._replace(requests=many)
    tracemalloc.start()
    measured = measure(served, devices=8)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert measured.requests == len(many) and most < many.nbytes / 2


def test_every_door_says_what_is_rejected(tmp_path, capsys):
    """Some of these are longer than the model's positions: terminal, page, JSON and columns say how many."""
    drawn = {"input": {"mean": 100_000, "cv": 0.6}, "output": {"fixed": 2}}
    long = FILE | {"requests": {"arrivals": {"rate": "40/s"}, "count": 30, **drawn}}
    (tmp_path / "long.json").write_text(json.dumps(long))
    assert (
        main(["serve", str(tmp_path / "long.json"), "--out", str(tmp_path / "out"), "--jobs", "1", "--samples", "0"])
        == 0
    )
    told = "".join(capsys.readouterr()).replace("\n", " ")
    bench = json.loads((tmp_path / "out" / "bench.json").read_text())
    rejected = bench["failed"]
    assert 0 < rejected < 15 and bench["num_prompts"] == 30 == bench["completed"] + rejected
    assert f"{rejected} more are rejected" in told and f"{rejected} of 30 requests" in told
    assert f"{rejected} of 30 requests" in (tmp_path / "out" / "index.html").read_text()
    (row,) = csv.DictReader((tmp_path / "out" / "results.csv").open())
    assert int(row["rejected"]) == rejected and int(row["requests"]) == 30 - rejected


def test_goodput_counts_requests_within_all_limits(outcome):
    tight = ar.serve(FILE | {"slo": {"ttft": "1 us"}})
    assert tight.measures.goodput_per_s == 0 < tight.measures.requests_per_s
    assert tight.measures.requests_per_s == outcome[0].measures.requests_per_s


def test_kv_is_what_weights_leave():
    narrow, wide = (
        ar.serve(FILE | {"precision": {"products": dtype, "experts": dtype}}).deployment.prefill.pool.kv_blocks
        for dtype in ("fp8_block", "bf16")
    )
    assert narrow > wide > 1000


def test_a_decode_pool_waits_for_its_kv():
    side = {"parallel": {"attention": {"tp": 4}, "experts": {"ep": 4}}}
    given = {"prefill": side, "decode": side, "transfer": {"bandwidth": "1 GB/s", "latency": "0 ns"}}
    slow = ar.serve(FILE | {"disaggregated": given})
    given = given | {"transfer": {"bandwidth": "400 GB/s", "latency": "0 ns"}}
    fast = ar.serve(FILE | {"disaggregated": given})
    assert slow.deployment.devices == 8
    assert slow.measures.ttft.mean > fast.measures.ttft.mean + 10


def test_requests_beyond_a_decode_batch_wait_for_their_first_token():
    side = {"parallel": {"attention": {"tp": 4}, "experts": {"ep": 4}}}
    free = ar.serve(FILE | {"disaggregated": {"prefill": side, "decode": side}})
    bound = ar.serve(FILE | {"disaggregated": {"prefill": side, "decode": side | {"max_num_seqs": 2}}})
    assert bound.measures.ttft.mean > free.measures.ttft.mean + 5 * bound.measures.tpot.mean  # of 20 tokens
    assert bound.measures.tpot.mean < 1.01 * free.measures.tpot.mean


def test_a_run_agrees_with_itself(outcome):
    compared = ar.compare_serving(FILE, outcome[1] / "bench.json")
    assert {row.error for row in compared.rows} == {0.0} and compared.advice == ()


OPEN = FILE | {
    "requests": {"arrivals": {"rate": "6/s"}, "input": {"mean": 900, "cv": 0.8}, "output": {"mean": 60, "cv": 0.5},
                 "count": 120},
}  # fmt: skip
SLOW = {"iteration": "3 ms", "sequence": "40 us", "prompt": "8 ms", "request": "20 ms"}


def factors_of(host):
    return host.decodes, host.prompts


def test_the_host_of_a_measurement_is_found(tmp_path):
    """All four constants, from the first half of the requests with their own lengths; the other half says how well."""
    ar.serve(OPEN | {"host": SLOW}, out=tmp_path, around=False)
    other = OPEN | {"requests": OPEN["requests"] | {"seed": 5}}  # other lengths: those measured count
    said = []
    found = ar.calibrate_serving(other, tmp_path / "bench.json", report=said.append)
    assert said[0] == f"simulation 1 of the measured run, of at most {MOST_SIMULATIONS}"
    assert 1 < len(said) <= MOST_SIMULATIONS
    host = found.host
    assert host.iteration_ns == pytest.approx(3e6, rel=0.25) and host.request_ns == pytest.approx(20e6, rel=0.35)
    assert host.sequence_ns > 0 and host.prompt_ns > 0 and factors_of(host) == factors_of(host_for(load_serving(OPEN)))
    outcome, measured = found.compared.outcome, json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert outcome.measures.input_tokens == measured["total_input_tokens"]
    unseen = times_ns(outcome.served)["tpot"][60:] / 1e9
    assert unseen.mean() == pytest.approx(np.mean(measured["tpots"][60:]), rel=0.03)
    assert len(found.halves) == 2 and "not fitted, 60 requests" in found.halves[1]
    bad = ar.compare_serving(OPEN, tmp_path / "bench.json")
    assert any("host.iteration" in each for each in bad.advice)


@pytest.mark.nightly
def test_factors_on_laws_are_fitted_where_no_constant_would_do(tmp_path):
    """A machine faster than its laws: no host time of 0 or more gives its times."""
    factors = {"decodes": 0.75, "prompts": 1.4}
    ar.serve(OPEN | {"host": factors}, out=tmp_path, around=False)
    found = ar.calibrate_serving(OPEN, tmp_path / "bench.json")
    assert found.host.decodes == pytest.approx(factors["decodes"], rel=0.1) and found.host.prompts != 1
    rows = {row.key: row.error for row in found.compared.rows}
    assert rows["mean_ttft_ms"] == pytest.approx(0, abs=0.04) and rows["mean_tpot_ms"] == pytest.approx(0, abs=0.02)


@pytest.mark.nightly
def test_the_iteration_that_shows_a_first_token_is_told_by_the_measurement(tmp_path):
    """Requests whose times are unknown load the engine, and are in no half."""
    ar.serve(OPEN | {"host": SLOW}, out=tmp_path, around=False)
    measured = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    measured |= {name: measured[name][:80] + [None] * 40 for name in ("ttfts", "tpots")} | {"itls": None}
    (tmp_path / "bench.json").write_text(json.dumps(measured))
    found = ar.calibrate_serving(OPEN | {"engine": "vllm"}, tmp_path / "bench.json")
    assert found.host.first_after == 1
    assert [", 40 requests: TTFT" in each for each in found.halves] == [True, True]


@pytest.mark.parametrize("kind", ["aiperf", "inferencex"])
def test_measurements_of_other_tools_are_read(tmp_path, kind, outcome):
    """Means alone: nothing is left to test on, which is said."""
    bench = json.loads((outcome[1] / "bench.json").read_text(encoding="utf-8"))
    if kind == "aiperf":
        given = {
            name: {"unit": "ms", "avg": bench[f"mean_{short}_ms"], "p50": bench[f"median_{short}_ms"]}
            for name, short in (("time_to_first_token", "ttft"), ("inter_token_latency", "tpot"))
        } | {"request_count": {"unit": "requests", "avg": 12}}
    else:
        given = {key[:-3]: value / 1e3 for key, value in bench.items() if key.endswith("_ms")}
        given |= {"conc": 4, "hw": "h200", "tp": 8}
    (tmp_path / "other.json").write_text(json.dumps(given))
    rows = {row.key: row.error for row in ar.compare_serving(FILE, tmp_path / "other.json").rows}
    assert rows["mean_ttft_ms"] == pytest.approx(0, abs=1e-9) and rows["median_tpot_ms"] == pytest.approx(0, abs=1e-9)
    found = ar.calibrate_serving(FILE, tmp_path / "other.json")
    assert "nothing is left to test on" in found.halves[0]
    assert repr(found).startswith("FittedConstants(") and found._repr_html_().count("<tr") > 5
    assert found.compared.outcome._repr_html_().count("<tr") == 5


def test_a_search_tries_engines_that_prefill_unlike_those_that_decode():
    sizes = {"devices": 4, "max_num_seqs": [8], "max_num_batched_tokens": [1024], "pools": ["unlike"]}
    found = [each.choice for each in ar.search_serving(FILE | {"model": "llama-3.1-8b", "search": sizes})]
    kinds = {(one.prefill, one.parallel.ranks, one.instances - one.prefill, one.decode.ranks) for one in found}
    assert kinds == {(1, 2, 2, 1), (2, 1, 1, 2)} and all(one.devices == 4 for one in found)
    assert "1 x tp 2 dp 1 prefill, 2 x tp 1 dp 1 decode" in {one.ranks for one in found}


def test_a_search_puts_most_goodput_first_over_pools_and_precisions():
    """Engines together and apart, under every precision; a configuration of the front beats all others in something."""
    sizes = {
        "devices": 2, "max_num_seqs": [8], "max_num_batched_tokens": [1024], "pools": ["colocated", "disaggregated"],
        "precision": [{"products": "bf16"}, {"products": "fp8"}],
    }  # fmt: skip
    found = ar.search_serving(FILE | {"model": "llama-3.1-8b", "search": sizes})
    served = [each.measures.goodput_per_s for each in found if each.measures]
    assert served == sorted(served, reverse=True) and len(served) >= 4
    apart = [each.choice for each in found if each.choice.prefill]
    assert {choice.precision.products for choice in apart} == {"bf16", "fp8"}
    assert "(1 prefill, 1 decode), products" in apart[0].name
    best, rows = on_front(found), table_of(found).rows
    assert sum(row["front"] for row in rows) == len(best) >= 1
    speeds = [(each.measures.tokens_per_s_user, each.measures.output_tokens_per_s_device) for each in best]
    assert speeds == sorted(speeds) and [-out for _, out in speeds] == sorted(-out for _, out in speeds)
    assert repr(found).startswith(f"Searched({len(found)} configurations\n") and "<table" in found._repr_html_()


def test_a_search_refuses_pools_apart():
    side = {"parallel": {"attention": {"tp": 4}, "experts": {"ep": 4}}}
    with pytest.raises(SpecError, match="disaggregated: a search varies engines that prefill and decode"):
        ar.search_serving(FILE | {"disaggregated": {"prefill": side, "decode": side}})


@pytest.fixture
def few_requests(monkeypatch):
    """A highest rate is held to few requests: `test_the_highest_rate_is_within_the_limits` has as many as users get."""
    monkeypatch.setattr("archsim.serving.serving.ENOUGH", 60)
    monkeypatch.setattr("archsim.serving.answers.highest_rate.ENOUGH", 60)
    monkeypatch.setattr("archsim.serving.answers.highest_rate.SUSTAINED", 120)
    monkeypatch.setattr("archsim.serving.answers.sure.FEWEST_REQUESTS", 30)


@pytest.mark.nightly
def test_configurations_that_tie_at_one_rate_are_told_apart_by_their_highest_one(few_requests):
    sizes = {"devices": 2, "max_num_seqs": [2, 64], "max_num_batched_tokens": [2048]}
    requests = {"arrivals": {"rate": "0.5/s"}, "input": {"fixed": 700}, "output": {"fixed": 20}, "count": 8}
    found = ar.search_serving(FILE | {"model": "qwen3-30b-a3b", "requests": requests, "search": sizes})
    rated = [each for each in found if each.highest_rate is not None]
    assert len(rated) >= 2 and found[: len(rated)] == rated
    rates = [each.highest_rate for each in rated]
    assert rates == sorted(rates, reverse=True) and rates[0] > 1.1 * rates[-1]
    best = max(each.measures.goodput_per_s for each in found if each.measures)
    assert all(each.measures.goodput_per_s >= 0.99 * best for each in rated)


def test_a_search_says_the_best_first_and_groups_equal_configurations(tmp_path, capsys, monkeypatch, few_requests):
    monkeypatch.chdir(tmp_path)
    sizes = {"devices": 2, "max_num_seqs": [64, 2], "max_num_batched_tokens": [512, 1024]}
    requests = {"arrivals": {"rate": "1/s"}, "input": {"fixed": 175}, "output": {"fixed": 20}, "count": 12}
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(FILE | {"model": "qwen3-30b-a3b", "requests": requests, "search": sizes}))
    serving = load_serving(file)
    said = []
    monkeypatch.setattr("archsim.serving.answers.search.RATED", 3)
    found = search(serving, said.append)
    sizes = [text for text in said if text.endswith(" sizes of engines are served")]
    assert sizes[0] == f"1 of the {len(sizes)} sizes of engines are served"
    assert len(said) > len(sizes)
    served, groups = [each for each in found if each.measures], equal_groups(found)
    assert len(groups) < len(served) and max(len(each.choices) for each in groups) > 1
    members = [choice for each in groups for choice in each.choices]
    assert len(members) == len(served) and set(members) == {each.choice for each in served}
    assert members[0] == found[0].choice
    best = next(best_sentences(serving, found))
    assert best.startswith("Serve qwen3-30b-a3b with ") and " engines on 2 devices (2 x TP 1)" in best
    assert f": it answers up to {found[0].highest_rate:.0f} requests per second (" in best
    assert ", of which 90\xa0% stay within TTFT 2 s and TPOT 50 ms." in best
    monkeypatch.setattr("archsim.serving.answers.search.search", lambda *given, **more: found)  # once is enough
    assert main(["serve", str(file), "--search"]) == 0
    said = capsys.readouterr().out
    assert said.count(significant(found[0].highest_rate)) > 1, "in the table, too"
    assert said.startswith(best) and "2 or 64 seqs, 512 or 1024 tokens" in said and "requests.arrivals.rate" in said


def test_configurations_that_are_no_product_are_counted():
    choices = tuple(Configuration(ParallelSpec(attention={"tp": 1}), 1, *each) for each in ((8, 16), (8, 32), (4, 16)))
    assert EqualConfigurations(choices[:2], None).name == "1 x tp 1 dp 1, 8 seqs, 16 or 32 tokens"
    assert EqualConfigurations(choices, None).name == "1 x tp 1 dp 1, 8 seqs, 16 tokens and 2 more"


def test_what_a_file_changes_of_a_system_keeps_its_place(tmp_path, capsys):
    levels = [{"switch": 8, "bandwidth": "450 GB/s", "hop_latency": "0.3 us"}, {"switch": 9.5, "per": "gpu"}]
    system = {"like": "h100_cluster", "name": "mine", "fabric": {"levels": levels}}
    (tmp_path / "mine.yaml").write_text(json.dumps(FILE | {"system": system}))
    assert main(["check", str(tmp_path / "mine.yaml")]) == 2
    assert "mine.yaml:1: system.fabric.levels.1.switch: expected an integer" in capsys.readouterr().err


def test_check_names_the_file_that_cannot_run(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(json.dumps(FILE | {"parallel": {"attention": {"tp": 1}}}))
    assert main(["check", str(tmp_path / "mine.yaml")]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"{tmp_path / 'mine.yaml'}: ")


def test_the_highest_rate_is_within_the_limits_and_a_higher_one_is_not():
    from archsim.serving.answers.highest_rate import CLOSE, SUSTAINED, WITHIN, highest_rate
    from archsim.serving.file_requests import requests_of
    from archsim.serving.requests import scale_rate
    from archsim.serving.serving import deploy, serve_requests

    drawn = {"arrivals": {"rate": "4/s"}, "input": {"fixed": 200}, "output": {"fixed": 20}, "count": 60}
    serving = load_serving(FILE | {"requests": drawn, "slo": {"ttft": "400 ms", "tpot": "40 ms"}})
    deployment, requests = deploy(serving), requests_of(serving)
    rate = highest_rate(serving, deployment, requests)
    requests = requests_of(load_serving(FILE | {"requests": drawn | {"count": SUSTAINED}}))
    below, above = (
        serve_requests(serving, deployment, scale_rate(requests, factor * rate / requests.offered_per_s)).measures
        for factor in (1.0, 1 + 2 * CLOSE)
    )
    assert below.within_slo >= WITHIN and not below.saturated
    assert above.within_slo < WITHIN or above.saturated


def test_a_run_is_judged_by_more_requests_at_the_rate_of_its_own():
    """Few requests come at another rate than was asked for. Were more of them to come faster, a deployment that is
    judged by these would show more goodput than one that is not.
    """
    drawn = {"arrivals": {"rate": "20/s"}, "input": {"fixed": 50}, "output": {"fixed": 4}, "count": 40}
    outcome = ar.serve(FILE | {"requests": drawn})
    own, longer = outcome.requests.offered_per_s, outcome.longer.requests["arrival_ns"]
    assert abs(own / 20 - 1) > 0.02
    assert (len(longer) - 1) / (longer.max() - longer.min()) * 1e9 == pytest.approx(own, rel=1e-9)


def test_check_says_what_a_file_of_loads_is_for(tmp_path, capsys):
    (tmp_path / "loads.csv").write_text("1,2\n3,4\n")
    assert main(["check", "serve_h200", "--set", f"routing={{trace: {tmp_path / 'loads.csv'}}}"]) != 0
    assert "the file holds loads of experts and no tokens" in capsys.readouterr().err


# ---- Keys that a file of ``archsim serve`` gives and does not read: all changed at once, they change no measure.

DRAWN = {"concurrency": 4, "input": {"fixed": 256}, "output": {"fixed": 16}, "count": 12}
NODE = {"like": "h100_node", "name": "node"}
PLAIN = {"system": NODE, "model": "qwen3-30b-a3b", "parallel": {"attention": {"tp": 2}}, "requests": DRAWN,
         "scheduler": {"max_num_seqs": 16, "max_num_batched_tokens": 1024}}  # fmt: skip
SIDE = {"parallel": {"attention": {"tp": 2}}}
OF_MACHINE = {
    "system.llc.hit": "9 ns", "system.decision.fsm.lanes": 4, "system.compute.efficiency": 0.3,
    "system.compute.library": "vllm", "system.hbm.latency": "900 ns", "system.d2d.hop_latency": "9 us",
    "system.d2d.request": "64 B",
}  # fmt: skip
OF_REQUESTS = {
    "requests.input.cv": 0.5, "requests.output.cv": 0.5, "requests.seed": 5, "scheduler.prefill_every": 3,
    "scheduler.prefix_caching": False,
}  # fmt: skip
CASES = {
    "uniform": (
        PLAIN,
        OF_MACHINE | OF_REQUESTS | {"scheduler.balance": "round_robin", "system.d2d.bandwidth": "9 GB/s"},
    ),
    "given utilisation": (PLAIN | {"utilisation": 0.8}, {"system.hbm.reserved": 0.3}),
    "whole prompts": (
        PLAIN | {"scheduler": {**PLAIN["scheduler"], "chunked_prefill": False}}, {"scheduler.reserve_full_isl": 0}
    ),
    "disaggregated": (
        PLAIN | {"disaggregated": {"prefill": SIDE, "decode": SIDE}},
        {"parallel.attention.tp": 4, "instances": 2},
    ),
    "decodes": (
        {key: each for key, each in PLAIN.items() if key != "parallel"}
        | {"disaggregated": {"prefill": "none", "decode": SIDE}},
        {"disaggregated.transfer.bandwidth": "1 GB/s", "disaggregated.transfer.latency": "1 ms"},
    ),
    "sessions": (
        PLAIN | {"requests": DRAWN | {"sessions": {"turns": {"fixed": 2}}}, "kv_store": {"capacity": "9 GB"}},
        {"requests.sessions.think_cv": 1, "requests.seed": 5, "kv_store.shared": "all", "scheduler.prefill_every": 3},
    ),
    "dense": (PLAIN | {"model": "llama-3.1-8b"}, {"routing": "power_law_1.2"}),
    "traffic": (
        PLAIN | {"model": "olmoe-1b-7b", "routing": {"like": "model", "layers": 1}},
        {f"assumptions.{key}": value for key, value in (
            ("hops", "requests"), ("throughput", "nominal"), ("memory", "experts"), ("weights", "all"),
            ("llc", "slices"), ("reads", "together"), ("source", "queued"), ("order", "as_created"))}
        | {"system.compute.efficiency": 0.3, "system.llc.hit": "900 ns"},
    ),
}  # fmt: skip


def changed(given, changes):
    found = deepcopy(given)
    for key, value in changes.items():
        *above, last = key.split(".")
        at = found
        for name in above:
            at = at.setdefault(name, {})
        at[last] = value
    return found


@pytest.mark.parametrize("name", sampled(CASES, lambda name: list(CASES).index(name) % 3 == 0))
def test_keys_that_are_told_as_unread_change_no_measure(name):
    given, changes = CASES[name]
    other = changed(given, changes)
    assert keys_of(load_serving(other).unread) == set(changes)
    before, after = ar.serve(given), ar.serve(other)
    assert before.measures == after.measures
    assert any(" no effect: " in note for note in after.notes)


def test_a_file_with_axes_tells_its_trace_its_machine_and_axes_that_do_nothing(tmp_path):
    trace = tmp_path / "trace.jsonl"
    line = '{{"timestamp": {}, "input_length": 9, "output_length": 4, "hash_ids": [1]}}\n'
    trace.write_text(line.format(0) + line.format(900), encoding="utf-8")
    axes = {"scheduler.prefill_every": [4, 8], "requests.speed": [1, 2], "slo.ttft": ["8 s", "9 s"]}
    odd = {"system": NODE | {"hbm": {"capacity": "8 TB"}}, "requests": {"trace": str(trace)}, "sweep": {"grid": axes}}
    plan = serve_plan(PLAIN | odd)
    rows = [{"policy": "ep", "goodput_per_s": cell["requests.speed"]} | cell for cell in plan.cells]
    notes = plan.notes(rows)
    assert [note for note in notes if "hbm.capacity: 8 TB is taken as given" in note]
    assert [note for note in notes if "is read as mooncake: times are in ms" in note]
    assert [note for note in notes if note.startswith("scheduler.prefill_every has no effect: ")]
    idle = [note.partition(" has no effect here: ") for note in notes]
    assert [name for name, found, _ in idle if found] == ["slo.ttft"]
