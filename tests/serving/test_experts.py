"""Experts from traffic while serving: times by the engine, policies, migrations, wafers, timelines."""

import json

import numpy as np
import pytest

import archsim as ar
from archsim.base.errors import ArchsimError
from archsim.iteration.times import batches_of, iteration_times
from archsim.serving.serving import decodes_alone, deploy
from archsim.specs.deployment import ParallelSpec
from archsim.specs.serving_files import load_serving

EVEN = {"synthetic": {"popularity_skew": 0, "request_taste": 0, "stickiness": 0}, "layers": 2}
SKEWED = {"synthetic": {"popularity_skew": 1.5}, "layers": 2, "every": 40}
FILE = {
    "system": "h200_node",
    "model": "qwen3-235b-a22b",
    "parallel": {"attention": {"tp": 8}, "experts": {"ep": 8}},
    "engine": "none",
    "routing": SKEWED,
    "requests": {"concurrency": 8, "input": {"fixed": 300}, "output": {"fixed": 100}, "count": 16},
    "scheduler": {"max_num_seqs": 32, "max_num_batched_tokens": 1024},
}
EPLB = {
    "name": "eplb",
    "preset": "eplb",
    "rebalancing": {"name": "eplb", "first_steps": 50, "every_steps": 100, "window_steps": 100},
}


@pytest.fixture(scope="module")
def outcomes():
    """By policy, and EPLB also by ``migration``."""
    found = {"ep": ar.serve(FILE)}
    for how in ("free", "overlapped", "blocking"):
        found[how] = ar.serve(FILE | {"policies": [EPLB], "assumptions": {"migration": how}})
    return found


def test_even_traffic_takes_what_the_law_of_even_traffic_says():
    """But for chance: the fullest of eight ranks has up to a tenth more than the mean."""
    law = deploy(load_serving(FILE | {"routing": "uniform"})).prefill.pool.table
    group = deploy(load_serving(FILE | {"routing": EVEN})).prefill.pool.experts(0)
    for point in (7, 9, 10):
        ns = np.exp(group.table["ln_ns"][:, point])
        assert ns == pytest.approx(law.experts[1 << point], rel=0.12)
        assert np.all(group.table["balance"][:, point] > 0.8)


def test_one_request_takes_what_the_engine_says():
    given = {"concurrency": 1, "input": {"fixed": 512}, "output": {"fixed": 2}, "count": 1}
    alone = ar.serve(FILE | {"requests": given})
    group = alone.deployment.prefill.pool.experts(0)
    moe = np.exp([group.table["ln_ns"][1, 9], group.table["ln_ns"][0, 0]])
    laws, request = alone.deployment.prefill.laws, alone.served.requests[0]
    ns = [
        float(iteration_times(laws, batches_of(*step), experts_ns=each).total_ns[0])
        for step, each in zip(((512, 512), (1, 513)), moe, strict=True)
    ]
    assert request["first_ns"] - request["arrival_ns"] == pytest.approx(ns[0], rel=0.01)
    assert request["last_ns"] - request["first_ns"] == pytest.approx(ns[1], rel=0.01)


def test_skewed_traffic_takes_longer_and_replicas_even_it_out(outcomes):
    even = ar.serve(FILE | {"routing": EVEN})
    ep, eplb = outcomes["ep"].measures, outcomes["free"].measures
    assert 0 < ep.balancedness < even.measures.balancedness <= 1
    assert ep.balancedness < eplb.balancedness
    assert eplb.migrations >= 1 and eplb.moved_bytes > 0 and ep.migrations == 0
    assert len(outcomes["ep"].served.balance) >= 2


def test_replicas_cost_kv(outcomes):
    blocks = {name: outcome.deployment.prefill.pool.kv_blocks for name, outcome in outcomes.items()}
    model = outcomes["ep"].serving.model
    replica = model.routed_weights / model.experts / len(model.moe_layer_ids)  # FP8: a byte each
    lost = (blocks["ep"] - blocks["free"]) * 16 * model.kv_bytes_per_token() / 4  # a KV head a rank
    assert lost == pytest.approx(replica * len(model.moe_layer_ids), rel=0.01)


def test_a_migration_is_free_hidden_or_a_spike(outcomes):
    free, blocking = outcomes["free"].measures, outcomes["blocking"].measures
    assert free.stalled_ns == outcomes["overlapped"].measures.stalled_ns == 0 < blocking.stalled_ns
    assert blocking.itl.percentiles[-1] > 1.5 * free.itl.percentiles[-1]
    assert blocking.e2e.mean > free.e2e.mean
    first = {how: outcomes[how].served.moves[0] for how in ("free", "overlapped", "blocking")}
    assert first["free"].n_bytes == first["overlapped"].n_bytes == first["blocking"].n_bytes
    assert first["overlapped"].later_ns > 0 == first["free"].later_ns
    assert first["overlapped"].later_ns == pytest.approx(first["blocking"].stall_ns)  # links are idle


def test_tokens_are_conserved_and_equal_runs_are_equal(outcomes):
    requests = outcomes["blocking"].served.requests
    assert np.array_equal(requests["made"], requests["output"]) and requests["blocks"].sum() == 0
    assert np.all(requests["first_ns"] > requests["scheduled_ns"])
    again = ar.serve(FILE | {"policies": [EPLB], "assumptions": {"migration": "blocking"}})
    assert again.served.requests.tobytes() == outcomes["blocking"].served.requests.tobytes()
    assert again.served.moves == outcomes["blocking"].served.moves


def test_policies_serve_the_same_requests_and_are_compared(tmp_path):
    found = ar.serve_policies(FILE | {"policies": ["ep", "craft"]}, out=tmp_path, around=False)
    assert [each.serving.policy.name for each in found] == ["ep", "craft"]
    assert np.array_equal(found[0].served.requests["input"], found[1].served.requests["input"])
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'href="craft/index.html"' in page and "How evenly are ranks loaded?" in page
    assert (tmp_path / "craft" / "bench.json").is_file()


def test_engines_have_experts_of_their_own():
    part = FILE | {"parallel": {"attention": {"dp": 4}, "experts": {"ep": 4}}, "instances": 2}
    found = ar.serve(part | {"requests": FILE["requests"] | {"concurrency": 16, "count": 32}})
    assert found.deployment.devices == 8 and found.deployment.prefill.pool.ranks == 4
    assert np.all(found.served.requests["made"] == 100)


def test_a_wafer_serves():
    parallel = {"attention": {"dp": 25}, "experts": {"ep": 25}}
    given = {"concurrency": 2, "input": {"fixed": 64}, "output": {"fixed": 4}, "count": 3}
    small = {"max_num_seqs": 2, "max_num_batched_tokens": 64}
    routing = {"synthetic": {}, "layers": 1, "requests": 8, "steps": 8, "every": 100_000}
    wafer = FILE | {"system": "dojo", "parallel": parallel, "requests": given, "scheduler": small, "routing": routing}
    found = ar.serve(wafer)
    assert found.deployment.devices == 25 and 0 < found.measures.balancedness < 1
    assert found.measures.ttft.mean > found.measures.tpot.mean > 0


def test_a_timeline_shows_iterations_requests_and_kv(tmp_path):
    path = tmp_path / "served.json"
    given = FILE | {"policies": [EPLB], "assumptions": {"migration": "blocking"}}
    found = ar.serve(given, timeline=path)
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == found.measures.iterations
    ends = np.array([event["ts"] + event["dur"] for event in slices])
    assert np.all(np.array([event["ts"] for event in slices[1:]]) >= ends[:-1] - 1e-3)
    assert sum("weights_moved_us" in event["args"] for event in slices) == found.measures.migrations
    kv = [event["args"]["in use"] for event in events if event["ph"] == "C" and "in use" in event["args"]]
    assert len(kv) == len(slices) and 0 < max(kv) <= 100
    assert sum(event["ph"] == "b" for event in events) == sum(event["ph"] == "e" for event in events) == 3 * 16


def test_a_search_charges_experts_from_traffic_under_each_policy():
    sizes = {"devices": 4, "max_num_seqs": [32], "max_num_batched_tokens": [1024]}
    even, skewed = (
        {each.choice: each for each in ar.search_serving(FILE | {"routing": routing, "search": sizes, **more})}
        for routing, more in ((EVEN, {}), (SKEWED, {"policies": ["ep", EPLB]}))
    )
    served = [choice for choice in even if even[choice].measures]
    assert served and all(each.refused for choice, each in even.items() if choice.parallel.experts.tp > 1)
    ratios = [skewed[choice].measures.tpot.mean / even[choice].measures.tpot.mean for choice in served]
    assert all(abs(ratio - 1) > 0.02 for ratio in ratios)  # few tokens take fewer experts where some are popular
    assert {choice.policy for choice, each in skewed.items() if each.measures} == {"ep", "eplb"}
    alone = next(choice for choice in served if choice.instances == 1)
    ranks = {"parallel": alone.parallel.model_dump(), "routing": SKEWED | {"every": 10_000_000}}
    assert ar.serve(FILE | ranks).measures.tpot == skewed[alone].measures.tpot


def test_files_are_checked(capsys):
    from archsim.cli.main import main

    assert main(["check", "serve_h200", "--set", "routing={like: model}"]) == 0
    said = capsys.readouterr().out
    assert "a valid deployment of qwen3-235b-a22b on h200_node" in said and "experts from traffic under ep" in said


@pytest.mark.parametrize(("change", "told"), [
    ({"routing": "uniform", "policies": ["eplb"]}, "eplb need routing from traffic"),
    ({"routing": "uniform", "assumptions": {"migration": "free"}}, "are of routing from traffic"),
    ({"scheduler": {"poll_every": 9}}, "unknown key 'poll_every' of scheduler vllm_v1: it is one of sglang"),
    ({"model": "llama-3.1-70b"}, "has no experts"),
    ({"policies": ["ep", "ep"]}, "two have the same name"),
    ({"policies": ["epbl"]}, "unknown policy 'epbl'"),
    ({"policies": ["lina"]}, "replication: lina follows the paths of tokens"),
    ({"policies": ["waterfill"]}, "shared: waterfill moves shared experts"),
    ({"routing": {}}, "expected one of like, synthetic and trace, not none"),
    ({"routing": {"like": "qwen3"}}, "unknown traffic preset 'qwen3'"),
    ({"routing": {"trace": "nowhere.npz"}}, "no such file: 'nowhere.npz'"),
    ({"parallel": {"attention": {"tp": 8}, "experts": {"ep": 4, "tp": 2}}}, "places whole experts"),
    ({"parallel": {"attention": {"tp": 8}, "pp": 2}}, "h200_node has 8 devices, but 16 are asked for"),
    ({"precision": {"experts": "int4"}}, "calibration h200 has no peak of it beside fp8_block"),
    ({"assumptions": {"migration": "sometimes"}}, "unknown value 'sometimes'"),
    ({"system": "dojo", "parallel": {"attention": {"tp": 5}}}, "collectives were measured on GPUs, not on dojo"),
    ({"system": "dojo", "parallel": {"attention": {"dp": 25}}, "routing": "uniform"}, "runs experts by the engine"),
    ({"system": "dojo", "parallel": {"attention": {"dp": 5}}}, "5 ranks are no part of dojo"),
])
def test_bad_files_are_refused(change, told):
    with pytest.raises(ArchsimError, match=told):
        ar.serve(FILE | change)


def test_tokens_are_drawn_anew_when_their_file_changes(tmp_path):
    from archsim.serving.deployment import pool_of
    from archsim.workload.traffic_presets import traffic_file

    shipped = traffic_file("deepseek-v3")
    mine = tmp_path / shipped.name
    for suffix in (".yaml", ".npz"):
        if shipped.with_suffix(suffix).exists():
            mine.with_suffix(suffix).write_bytes(shipped.with_suffix(suffix).read_bytes())
    routing = {"like": str(mine), "layers": 1, "requests": 2, "steps": 2}
    serving = load_serving(FILE | {"model": "deepseek-v3", "routing": routing})
    first = pool_of(serving)
    assert pool_of(serving) is first
    mine.write_text(mine.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
    assert pool_of(serving) is not first


def test_engines_that_only_decode_take_low_latency_kernels_between_nodes():
    """Unless the file names a dispatch; on one node hidden vectors are gathered, as without DeepEP."""
    serving = load_serving("configs/serve_wide_ep_decode.yaml")
    wide, node = serving.spec.disaggregated.decode.parallel, ParallelSpec(attention={"dp": 8})
    assert decodes_alone(serving, wide).assumptions.dispatch == "per_token_expert"
    assert decodes_alone(serving, node) is serving
    named = load_serving("configs/serve_wide_ep_decode.yaml", ["assumptions={dispatch: per_rank}"])
    assert decodes_alone(named, wide) is named
    assert decodes_alone(serving, wide).spec.assumptions["overlap"] == "two_batch"
