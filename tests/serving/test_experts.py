"""Experts from traffic while serving: times by the engine, policies, migrations, wafers, timelines."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import archsim as ar
from archsim.base.errors import CapacityError, SpecError, TraceError
from archsim.cli.main import main
from archsim.iteration.overlap import micro_batched
from archsim.iteration.times import batches_of, iteration_times
from archsim.policies.registry import place_experts
from archsim.serving.expert_groups import busy_of
from archsim.serving.file_engines import decodes_alone, machines_of
from archsim.serving.serving import deploy, room_notes, serve
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
BRIEF = FILE["requests"] | {"output": {"fixed": 20}, "count": 8}
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
    alone = ar.serve(FILE | {"requests": given, "host": {"decodes": 1, "prompts": 1}})
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
    found = ar.serve(part | {"requests": BRIEF})
    assert found.deployment.devices == 8 and found.deployment.prefill.pool.ranks == 4
    assert np.all(found.served.requests["made"] == 20)


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
    few, sizes = FILE | {"requests": BRIEF}, {"devices": 2, "max_num_seqs": [32], "max_num_batched_tokens": [1024]}
    even, skewed = (
        {each.choice: each for each in ar.search_serving(few | {"routing": routing, "search": sizes, **more})}
        for routing, more in ((EVEN, {}), (SKEWED, {"policies": ["ep", EPLB]}))
    )
    served = [choice for choice in even if even[choice].measures]
    assert served and all(each.refused for choice, each in even.items() if choice.parallel.experts.tp > 1)
    ratios = [skewed[choice].measures.tpot.mean / even[choice].measures.tpot.mean for choice in served]
    assert all(abs(ratio - 1) > 0.02 for ratio in ratios)  # few tokens take fewer experts where some are popular
    assert {choice.policy for choice, each in skewed.items() if each.measures} == {"ep", "eplb"}
    alone = next(choice for choice in served if choice.instances == 1)
    ranks = {"parallel": alone.parallel.model_dump(), "routing": SKEWED | {"every": 10_000_000}}
    assert ar.serve(few | ranks).measures.tpot == skewed[alone].measures.tpot


def test_files_are_checked(capsys):

    assert main(["check", "serve_h200", "--set", "routing={like: model}"]) == 0
    said = capsys.readouterr().out
    assert "a valid deployment of qwen3-235b-a22b on h200_node" in said and "experts from traffic under ep" in said


def test_tokens_are_drawn_anew_when_their_file_changes(tmp_path):
    from archsim.serving.expert_groups import pool_of
    from archsim.traffic.traffic_presets import traffic_file

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


# ---- Attention–FFN disaggregation: experts on devices of their own, and pools on machines of different kinds.

APART_FILE = {
    "system": "h200_node",
    "model": "olmoe-1b-7b",
    "engine": "none",
    "disaggregated": {
        "prefill": "none",
        "decode": {
            "parallel": {"attention": {"dp": 2}},
            "experts_on": {"system": "dojo", "micro_batches": 3, "links": {"bandwidth": "50 GB/s", "latency": "2 us"}},
        },
    },
    "routing": {"like": "model", "layers": 1, "requests": 8, "steps": 4},
    "requests": {"concurrency": 32, "input": {"fixed": 1000}, "output": {"fixed": 4}, "count": 32},
    "scheduler": {"max_num_seqs": 16, "max_num_batched_tokens": 16},
}
APART = "disaggregated.decode.experts_on"


def served(*overrides):
    return serve(load_serving(APART_FILE, overrides))


def scheduled_ns(parts, layers, stages):
    """When the last micro-batch ends, of a list schedule: every stage serves one at a time, in order of arrival."""
    free, at = np.zeros(len(stages)), np.zeros(parts)
    for _ in range(layers):
        for part in range(parts):
            for stage, ns in enumerate(stages):
                at[part] = free[stage] = max(at[part], free[stage]) + ns
    return at.max()


@pytest.mark.parametrize("seed", range(5))
def test_the_closed_form_is_the_longest_path_of_the_schedule(seed):
    """Own stages and links differ; with alike micro-batches the order of arrival is that of the batch."""
    draw = np.random.default_rng(seed)
    for _ in range(40):
        parts, layers, stages = int(draw.integers(1, 9)), int(draw.integers(1, 30)), draw.exponential(100.0, 4)
        found = micro_batched.py_func(parts, layers, *(layers * stages))
        assert found == pytest.approx(scheduled_ns(parts, layers, stages), rel=1e-12)


def test_by_hand():
    """Two layers of three micro-batches; attention 4, there 1, experts 5, back 2 ns: the experts set the pace. The
    first vectors arrive at 5, six turns of 5 ns end at 35, the last goes back until 37.
    """
    assert micro_batched.py_func(3, 2, 8.0, 2.0, 10.0, 4.0) == 37.0
    assert micro_batched.py_func(1, 2, 8.0, 2.0, 10.0, 4.0) == 24.0  # nothing overlaps


@pytest.mark.parametrize(
    ("attention_ns", "experts_ns", "fixed_ns", "there_ns"),
    [(400.0, 0.10, 20.0, 0.01), (900.0, 0.20, 100.0, 0.02), (100.0, 0.05, 600.0, 0.01), (500.0, 0.05, 10.0, 0.20)],
)
def test_the_best_ratio_is_that_of_the_published_analysis(attention_ns, experts_ns, fixed_ns, there_ns):
    """arXiv 2601.21351: of r attention devices to one with experts, the best r for throughput a device is the largest
    of where experts, or the link, take as long as attention, and sqrt(fixed / (slope x batch)).
    """
    batch, parts, layers = 100, 4, 1000
    ratios = np.arange(1, 200)
    throughput = [
        ratio * batch * parts / (ratio + 1)
        / micro_batched.py_func(parts, layers, attention_ns, there_ns * ratio * batch,
                                experts_ns * ratio * batch + fixed_ns, there_ns * ratio * batch)
        for ratio in ratios
    ]  # fmt: skip
    best = ratios[int(np.argmax(throughput))]
    by_experts = (attention_ns - fixed_ns) / (experts_ns * batch)
    by_link = attention_ns / (there_ns * batch)
    peak = np.sqrt(fixed_ns / (experts_ns * batch))
    # A stage that is shorter than attention at some ratio bounds it from there on: the least of those that bind.
    published = max(min(by_experts, by_link), peak)
    assert abs(best - published) <= max(0.1 * published, 1)


@pytest.fixture(scope="module")
def outcome():
    return served()


def test_what_is_printed_is_the_longest_path(outcome):
    """Every token takes an iteration; its layers are those of the closed form, once the head is taken off."""
    built = outcome.deployment.prefill
    busy = busy_of(built, outcome.served.experts[-1], 16, 1002.0)
    assert max(busy) == pytest.approx(1.0, abs=0.15) and min(busy) > 0
    assert outcome.deployment.summary == "2 devices of h200_node and 25 of dojo"
    assert any("a rank decodes 3 micro-batches of 16 requests" in note for note in outcome.notes)


def test_a_side_has_its_own_memory(outcome):
    """The attention side gains exactly what the experts took: 16 layers of 64 experts, on two ranks."""
    beside = {"prefill": "none", "decode": {"parallel": {"attention": {"dp": 2}}}}
    together = load_serving(APART_FILE | {"disaggregated": beside, "system": "h200_node"})
    apart, model = load_serving(APART_FILE), together.model
    told = [re.search(r"room for ([\d,]+) tokens", room_notes(each)[0]) for each in (together, apart)]
    rooms = [int(each[1].replace(",", "")) for each in told]
    experts = 64 * 16 * 3 * model.hidden * model.expert_ffn / 2
    assert rooms[1] - rooms[0] == pytest.approx(experts / (16 * 2 * 16 * 128 * 2), rel=1e-3)
    assert machines_of(together) == (("h200_node", 2),)


def test_nothing_made_better_is_slower(outcome):
    """Nor faster than the slowest stage allows: the dead zone, where attention grows with context and experts idle."""
    tpot = outcome.measures.tpot.mean
    for better in (f"{APART}.links.bandwidth=100 TB/s", f"{APART}.links.latency=0 us"):
        assert served(better).measures.tpot.mean <= tpot
    assert served(f"{APART}.links.bandwidth=50 MB/s").measures.tpot.mean > 1.5 * tpot
    shares = []
    for context in (500, 4_000):
        found = served(f"requests.input.fixed={context}", "precision={kv: bf16}")
        shares.append(busy_of(found.deployment.prefill, found.served.experts[-1], 16, float(context)))
    assert shares[1].attention > shares[0].attention and shares[1].experts < shares[0].experts


def test_experts_that_do_not_fit_say_what_would():
    small = {"like": "dojo", "name": "small", "hbm": {"capacity": "1 GB"}}
    overrides = [f"{APART}.system={small}", "model=deepseek-v3", "disaggregated.decode.parallel.attention.dp=8"]
    with pytest.raises(CapacityError, match=r"does not fit on small: its experts need .* or more instead of 25"):
        deploy(load_serving(APART_FILE, overrides))


def test_an_axis_compares_places_of_experts():
    """The shipped question: experts on the same devices, or on others."""
    places = [None, APART_FILE["disaggregated"]["decode"]["experts_on"]]
    file = APART_FILE | {"sweep": {"grid": {APART: places}}}
    file["disaggregated"] = {"prefill": "none", "decode": {"parallel": {"attention": {"dp": 2}}}}
    apart = [load_serving(file, cell={APART: place}).spec.experts_on for place in places]
    assert apart[0] is None and apart[1].system == "dojo"
    assert [machines_of(load_serving(file, cell={APART: place})) for place in places] == [
        (("h200_node", 2),), (("h200_node", 2), ("dojo", 25)),
    ]  # fmt: skip


def test_pools_of_two_kinds(capsys):
    """Prompts on H200, decodes on a wafer: each with its own memory, and the KV over the links between them."""
    pools = {
        "prefill": {"parallel": {"attention": {"dp": 2}}},
        "decode": {"system": "dojo", "parallel": {"attention": {"dp": 25}}},
        "transfer": {"bandwidth": "50 GB/s"},
    }
    serving = load_serving(APART_FILE | {"disaggregated": pools, "scheduler": {"max_num_seqs": 16}})
    assert machines_of(serving) == (("h200_node", 2), ("dojo", 25))
    deployment = deploy(serving)
    assert deployment.decode is not None and deployment.decode.pool.ranks == 25
    assert [each.partition(":")[0] for each in room_notes(serving)] == ["prefill", "decode"]
    with pytest.raises(SpecError, match="dojo has 25 devices"):
        machines_of(
            load_serving(
                APART_FILE
                | {
                    "disaggregated": pools
                    | {"decode": {"system": "dojo", "instances": 2, "parallel": {"attention": {"dp": 25}}}}
                }
            )
        )


# ---- Wide expert parallelism as it is deployed, against published tokens a second and node.

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
# SGLang, large-scale EP on 96 H100 (LMSYS, May 2025): EP72 at 256 requests a GPU with 2,000 tokens; EP32, 16,384 a GPU.
DECODES = {"two_batch": 22_310, "none": 22_310 / 1.255}
PREFILLS = {1024: 57_674, 4096: 50_302}
FEW = "routing={like: model, layers: 1, requests: 64, steps: 128, every: 100000}"


def wide_served(name, *changes):
    """The one row of the run, without the loads of its page."""
    (row,) = ar.serve_plan(CONFIGS / f"{name}.yaml", changes, samples=0).table.rows
    return row


@pytest.mark.parametrize("overlap", DECODES)
def test_decode_on_9_nodes(overlap):
    changes = f"assumptions.overlap={overlap}", "requests.output.fixed=8", FEW
    row = wide_served("serve_wide_ep_decode", *changes)
    assert row["output_tokens_per_s"] / 9 == pytest.approx(DECODES[overlap], rel=0.2)


@pytest.mark.parametrize("prompt", PREFILLS)
def test_prefill_on_4_nodes(prompt):
    fewer = "requests.count=1024", "requests.concurrency=1024"
    row = wide_served("serve_wide_ep_prefill", f"requests.input.fixed={prompt}", *fewer)
    assert row["total_tokens_per_s"] / 4 == pytest.approx(PREFILLS[prompt], rel=0.2)


def test_ranks_that_do_not_divide_the_experts_leave_slots_empty():
    """256 experts on 24 ranks took EPLB's replicas for `ep`, so that its balance rose from 16 ranks to 24."""
    draw, balance = np.random.default_rng(1), {}
    loads = draw.permuted(np.arange(1, 257) ** -0.8 * np.ones((50, 1)), axis=1)
    for ranks in (8, 16, 24, 32, 48, 64, 72):
        file = {
            "system": "gb200_nvl72", "model": "deepseek-v3", "routing": {"like": "model"}, "engine": "sglang",
            "parallel": {"attention": {"dp": ranks}},
            "requests": {"concurrency": 1, "input": {"fixed": 8}, "output": {"fixed": 2}},
        }  # fmt: skip
        serving = load_serving(file)
        placed = place_experts(serving.policy, serving.model, ranks)
        assert serving.policy.name == "ep" and (placed.holds.sum(axis=2) == 1).all()  # no replicas
        assert (placed.layer_slots == -(-256 // ranks)).all()  # as many slots on every rank, in memory too
        on_ranks = loads @ placed.holds[0]
        balance[ranks] = float((on_ranks.mean(axis=1) / on_ranks.max(axis=1)).mean())
    assert list(balance.values()) == sorted(balance.values(), reverse=True)


def test_what_comes_with_its_kv_needs_a_token_to_decode():
    with pytest.raises(TraceError, match="one token"):
        serve(load_serving(CONFIGS / "serve_wide_ep_decode.yaml", ["requests.output.fixed=1", FEW]))


def decodes_on(system, ranks, **changes):
    """Decodes of engines of their own, whose requests come with their KV."""
    return {
        "system": system, "model": "deepseek-v3", "engine": "sglang",
        "precision": {"products": "fp8_block", "experts": "fp8_block", "kv": "fp8"},
        "disaggregated": {"prefill": "none", "decode": {"parallel": {"attention": {"dp": ranks}}}},
        "requests": {"concurrency": 64 * ranks, "input": {"fixed": 1024}, "output": {"fixed": 8}, "count": 64 * ranks},
    } | changes  # fmt: skip


def moved_ns(file, tokens=64):
    """Dispatch and combine of all layers, of so many tokens of a rank, and the notes."""
    found = deploy(load_serving(file))
    table = found.prefill.pool.table
    return float(table.dispatch[tokens] + table.combine[tokens]), " ".join(found.notes)


@pytest.mark.nightly
def test_wide_groups_dispatch_between_and_beyond_measured_ranks():
    """16 and 64 ranks of an NVL72 were measured; 32 lie between, and nobody gathers the tokens of all of them."""
    times = {ranks: moved_ns(decodes_on("gb200_nvl72", ranks)) for ranks in (16, 32, 64)}
    assert times[16][0] < times[32][0] < times[64][0] < 1.2 * times[16][0]
    assert times[32][0] / 58 == pytest.approx(60e3, rel=0.1)  # one layer
    assert "not measured on 32 ranks of gb200; 16 ranks left out, " in times[32][1]
    assert "not measured on" not in times[64][1].split("combine of 64 ranks")[1]


@pytest.mark.nightly
def test_wide_groups_between_nodes_of_gpus_without_kernels_take_those_of_another():
    ns, told = moved_ns(decodes_on("b200_cluster", 16))
    assert "h100 deepep low_latency on 2 nodes" in told and 58 * 100e3 < ns < 58 * 300e3


@pytest.mark.parametrize("experts", ["fp8_block", "nvfp4"])
def test_traffic_and_chance_compose_dispatch_alike(experts):
    """Experts that all are equally popular: traffic takes as long as chance, in any dtype of the GPU."""
    even = {"synthetic": {"popularity_skew": 0}, "layers": 1, "requests": 64, "steps": 64, "every": 100000}
    file = decodes_on("gb200_nvl72", 32, precision={"products": "fp8_block", "experts": experts, "kv": "fp8"})
    tpot = [serve(load_serving(file | each)).measures.tpot.mean for each in ({}, {"routing": even})]
    assert tpot[1] == pytest.approx(tpot[0], rel=0.35)
