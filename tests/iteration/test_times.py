"""Times of whole iterations: causes add up, more work is never faster, rates scale, what does not fit is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples, sampled
from support.scenarios import SCENARIO

import archsim
from archsim.base.errors import SpecError
from archsim.engine.machine import links_of
from archsim.iteration.collectives import all_reduce_ns, describe_gathered, fastest_all_reduce_ns, gathered_ns
from archsim.iteration.experts import ByChance, FusedLaw
from archsim.iteration.layers import CAUSES, PROJECTIONS, ROUTER, LayerProduct, count_operators, program
from archsim.iteration.overlap import DECODES, HOW, NOTHING, PROMPTS, ExpertLayer, Rest, Sms, compose, of_halves
from archsim.iteration.stand_ins import with_stand_ins
from archsim.iteration.times import batches_of, iteration_laws, iteration_times
from archsim.laws.calibration_files import calibration_named
from archsim.laws.gemm import Rates
from archsim.laws.laws import Laws
from archsim.laws.transfers import NODE
from archsim.machine.system import SystemSpec
from archsim.model.attention import LayerSet
from archsim.model.spec import ModelSpec
from archsim.runs.plan import prepare
from archsim.runs.simulator import Simulator
from archsim.serving.serving import serve
from archsim.specs.deployment import ALONE, Parallelism, Precision
from archsim.specs.library import load_assumptions, load_experiment, load_model, load_system
from archsim.specs.serving_files import load_serving

FP8 = Precision("fp8_block", "bf16", "fp8", "fp8_block")
EIGHT = Parallelism(tp=8, ep=8)
SLACK = 0.98  # measured times fall by up to 2 % at the edges of tiles


@pytest.fixture(scope="module")
def qwen():
    return iteration_laws(load_model("qwen3-235b-a22b"), calibration_named("h100"), EIGHT)


@pytest.fixture(scope="module")
def deepseek():
    return iteration_laws(load_model("deepseek-v3"), calibration_named("h100"), Parallelism(dp=32, ep=32), FP8)


def llama(layers: int = 32) -> ModelSpec:
    """Llama-3-8B as a model of one expert."""
    return ModelSpec(
        name="llama-3-8b", source="meta-llama/Meta-Llama-3-8B, config.json", layers=layers, hidden=4096, experts=1,
        expert_ffn=14336, top_k=1, moe_layers=LayerSet(first=0, last=layers - 1), vocabulary=128256,
        attention={"heads": 32, "kv_heads": 8, "head_dim": 128},
    )  # fmt: skip


@pytest.mark.parametrize("laws", ["qwen", "deepseek"])
def test_causes_add_up(laws, request):
    times = iteration_times(request.getfixturevalue(laws), batches_of([1, 1, 700], [900, 2000, 700]), host_ns=5e5)
    assert tuple(times.ns) == CAUSES
    assert times.total_ns == pytest.approx(np.sum(list(times.ns.values()), axis=0))
    assert min(float(ns[0]) for ns in times.ns.values()) >= 0 and times.ns["host"] == 5e5
    assert times.ns["attention"] > 0 and times.ns["experts"] > 0 and times.ns["router"] > 0


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 4000)), min_size=1, max_size=20), st.integers(1, 4000))
def test_longer_contexts_and_more_requests_are_never_faster(qwen, requests, more):
    new, before = np.array(requests).T
    here = iteration_times(qwen, batches_of(1, before + 2)).total_ns
    assert iteration_times(qwen, batches_of(1, before + 2 + more)).total_ns >= SLACK * here
    chunked = batches_of(new + 1, before + new + 1)
    assert iteration_times(qwen, batches_of([*new + 1, 1], [*before + new + 1, more + 1])).total_ns >= (
        SLACK * iteration_times(qwen, chunked).total_ns
    )


def test_many_iterations_at_once_equal_each_alone(deepseek):
    together = batches_of([1, 1, 512, 1], [100, 900, 512, 4000], [0, 0, 1, 2], 4)
    times = iteration_times(deepseek, together)
    alone = [batches_of([1, 1], [100, 900]), batches_of(512, 512), batches_of(1, 4000)]
    assert times.total_ns[:3] == pytest.approx([iteration_times(deepseek, each).total_ns[0] for each in alone])
    assert times.total_ns[3] == 0 and times.extrapolated[3] == 0


def test_a_batch_keeps_tokens_and_attention_work():
    batch = batches_of([1, 1, 300, 100], [50, 150, 300, 1100])
    assert batch.decodes == 2 and batch.decode_context == 100 and batch.sampled == 4 and batch.tokens == 402
    work = 300 * 301 / 2 + 100 * 1000 + 100 * 101 / 2
    mean, seen = batch.chunk_tokens, batch.chunk_context
    assert batch.chunks * (mean * (seen - mean) + mean * (mean + 1) / 2) == pytest.approx(work)
    with pytest.raises(ValueError, match="at least one new token"):
        batches_of([2], [1])


def test_experts_may_be_timed_elsewhere(qwen):
    batch = batches_of(1, [100, 900])
    times = iteration_times(qwen, batch, experts_ns=7e6)
    assert times.ns["experts"] == 7e6
    assert iteration_times(qwen, batch).total_ns - times.total_ns == pytest.approx(
        iteration_times(qwen, batch).ns["experts"] - 7e6
    )


def test_twice_the_bandwidth_shortens_a_decode_that_is_bound_by_it():
    model, calibration = llama(), calibration_named("h100")
    rates = Rates(989e12, 3.35e12)
    here, fast = (
        iteration_laws(model, calibration, rates=each) for each in (rates, rates._replace(hbm_bytes_per_s=6.7e12))
    )
    batch = batches_of(1, np.full(64, 8000))
    before, after = iteration_times(here, batch), iteration_times(fast, batch)
    assert 0.45 < after.total_ns / before.total_ns < 0.75
    assert after.ns["lm_head"] < before.ns["lm_head"] and after.ns["attention"] < before.ns["attention"]


def test_a_dense_decode_takes_the_time_to_read_its_weights():
    times = iteration_times(iteration_laws(llama(), calibration_named("h100")), batches_of(1, 100))
    weights = 2 * (llama().all_weights - llama().hidden * 128256)  # without the embedding
    least = weights / 3.35e12 * 1e9
    assert least < times.total_ns < 1.6 * least
    assert times.ns["experts"] == 0 and times.ns["router"] == 0 and times.ns["all_reduce"] == 0


def test_ranks_share_products_and_pay_all_reduces():
    model, calibration = llama(), calibration_named("h100")
    batch = batches_of([2048], [2048])
    one, four = (iteration_times(iteration_laws(model, calibration, Parallelism(tp=tp)), batch) for tp in (1, 4))
    for cause in ("attention", "projections", "dense_ffn", "lm_head"):
        assert four.ns[cause] < 0.5 * one.ns[cause]
    assert one.ns["all_reduce"] == 0 < four.ns["all_reduce"]


@pytest.mark.parametrize("gpu", ["h100", "h200"])
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_every_tensor_parallel_size_has_its_laws(gpu, tp):
    """Of the products, collectives and attention that an iteration needs; what was not measured is flagged."""
    for model, precision in (("qwen3-235b-a22b", Precision()), ("deepseek-v3", FP8)):
        ranks = Parallelism(tp=tp, ep=tp)
        laws = iteration_laws(load_model(model), calibration_named(gpu), ranks, precision, experts=None)
        times = iteration_times(laws, batches_of([1] * 32 + [1024], [2000] * 32 + [1024]))
        assert 1e6 < times.total_ns < 1e9 and 0 <= times.extrapolated < 0.25


def test_layers_are_listed_with_their_operators():
    first, others, head = program(load_model("deepseek-v3"), Parallelism(tp=2, ep=2))
    assert (first.number, others.number, head.number) == (3, 58, 1)
    causes = list(dict.fromkeys(each.cause for each in others.operators))
    assert causes == ["elementwise", "projections", "attention", "all_reduce", "router", "shared", "experts"]
    assert "dense_ffn" in {each.cause for each in first.operators}


@pytest.mark.parametrize("gated", [True, False])
def test_weights_of_products_are_those_of_the_model(gated):
    model = load_model("deepseek-v3").model_copy(update={"gated": gated})
    found = dict.fromkeys(("projections", "dense_ffn", "router", "shared", "lm_head"), 0)
    for each, count in count_operators(program(model, Parallelism())).items():
        if isinstance(each, LayerProduct):
            found[each.cause] += count * each.weights
    assert found["projections"] == model.attention_weights and found["lm_head"] == model.output_weights
    assert found["dense_ffn"] + found["router"] == model.dense_weights and found["shared"] == model.shared_weights


def test_experts_under_data_parallelism_combine_by_transfers_of_their_own():
    model = load_model("deepseek-v3")

    def counts(parallel):
        found = dict.fromkeys(("all_reduce", "dispatch", "combine"), 0)
        operators = count_operators(program(model, parallel)).items()
        return found | {each.cause: count for each, count in operators if each.cause in found}

    assert counts(Parallelism()) == {"all_reduce": 0, "dispatch": 0, "combine": 0}
    assert counts(Parallelism(tp=8, ep=8)) == {"all_reduce": 2 * 61, "dispatch": 0, "combine": 0}
    assert counts(Parallelism(tp=8, dp=2, ep=16)) == {"all_reduce": 2 * 61 - 58, "dispatch": 58, "combine": 58}


def test_all_reduces_grow_with_their_size():
    sizes = np.geomspace(256, 2**28, 200)
    laws = Laws(calibration_named("h100"))
    ns = fastest_all_reduce_ns(laws, sizes, 8)
    assert np.all(np.diff(ns) >= 0)
    assert np.all(ns <= np.maximum.accumulate(laws.collective("all_reduce", sizes, ranks=8).ns))


def test_an_all_reduce_of_two_nodes_is_one_of_a_node_and_two_copies_between_them():
    laws, size = Laws(calibration_named("h100")), np.array([1e4, 1e6, 1e8])
    copies = laws.copy(size / 16, placement="inter_node").ns
    found = all_reduce_ns(laws, size, 16)
    inside = laws.collective("all_reduce", size, ranks=8).ns  # NCCL's: one-shot kernels of engines end at a node
    assert found == pytest.approx(inside + 2 * copies)
    assert np.all(inside >= fastest_all_reduce_ns(laws, size, 8))
    assert np.all(all_reduce_ns(laws, size, 24) > found)
    of_another = all_reduce_ns(Laws(calibration_named("h200")), size, 16)  # an H200's copies were not measured
    h200 = Laws(calibration_named("h200")).collective("all_reduce", size, ranks=8).ns
    assert of_another == pytest.approx(h200 + 2 * copies)


def test_an_all_reduce_of_numbers_of_ranks_that_were_not_measured_lies_between_and_beyond():
    laws, size = Laws(calibration_named("gb200")), np.array([1e4, 1e6, 1e8])
    times = np.array([all_reduce_ns(laws, size, ranks) for ranks in (8, 16, 32)])  # one domain of NVLink
    assert (np.diff(times, axis=0) > 0).all() and (times[2] < 4 * times[0] + 60e3).all()
    h100 = Laws(calibration_named("h100"))
    four, six, eight = (h100.collective("all_reduce", size, ranks=4).ns, all_reduce_ns(h100, size, 6),
                        h100.collective("all_reduce", size, ranks=8).ns)  # fmt: skip
    assert (np.minimum(four, eight) <= six).all() and (six <= np.maximum(four, eight)).all()


@pytest.mark.parametrize(
    ("parallel", "told"),
    [
        (Parallelism(tp=3), "tp 3 .*64 heads.*2 or 1"),
        (Parallelism(tp=8, ep=4), "ep 4 x expert_tp 1 .*8 ranks"),
        (Parallelism(dp=3, ep=3), "128 experts.*ep 3.*2 or 1"),
        (Parallelism(tp=0), "1 or more"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(parallel, told):
    with pytest.raises(SpecError, match=told):
        iteration_laws(load_model("qwen3-235b-a22b"), calibration_named("h100"), parallel)
    bare = load_model("qwen3-235b-a22b").model_copy(update={"attention": None})
    with pytest.raises(SpecError, match="attention"):
        iteration_laws(bare, calibration_named("h100"))


# ---- All-gathers of any number of ranks follow one law: measured times where there are some, no refusal beyond them.

SIZES = np.array([1e4, 1e6, 5e7])


@pytest.fixture(scope="module")
def laws():
    return Laws(calibration_named("h100"))


def of(laws, ranks, size=SIZES):
    return gathered_ns(laws, "all_gather", size, ranks)


def test_measured_numbers_of_ranks_keep_their_times(laws):
    for ranks in (2, 4, 8):
        assert np.array_equal(of(laws, ranks), laws.collective("all_gather", SIZES, ranks=ranks).ns)
        assert describe_gathered(laws, "all_gather", ranks) == ""


def test_between_two_measured_numbers_lies_their_geometric_mean(laws):
    share = np.log(6 / 4) / np.log(2)
    assert of(laws, 6) == pytest.approx(of(laws, 4) ** (1 - share) * of(laws, 8) ** share)


def test_between_nodes_each_rank_sends_its_part_around_the_nodes(laws):
    copies = laws.copy(SIZES / 16, placement="inter_node").ns
    assert of(laws, 16) == pytest.approx(of(laws, NODE) + copies)
    assert "by one curve through its 2, 4, 8 measured ranks, which is " in describe_gathered(laws, "all_gather", 16)
    assert "copies between nodes of 8 are those of h100" in describe_gathered(laws, "all_gather", 16)


def test_in_one_domain_latency_grows_and_bytes_follow_their_share():
    """GB200 was measured on 2, 4 and 8 of the 72 GPUs of its domain: no node lies between 32 of them."""
    laws = Laws(calibration_named("gb200"))
    eight, four = of(laws, 8, 1.0), of(laws, 4, 1.0)
    growth = float(np.clip(np.log(eight / four) / np.log(2), 0, 1))
    latency = float(eight) * 4**growth
    moved = (of(laws, 8) - float(eight)) * (31 / 32) / (7 / 8)
    assert of(laws, 32) == pytest.approx(latency + moved, rel=1e-6)
    assert "nodes" not in describe_gathered(laws, "all_gather", 32)


def test_times_grow_with_the_ranks(laws):
    times = np.array([of(laws, ranks) for ranks in (2, 3, 4, 6, 8, 16, 32, 64)])
    assert (np.diff(times, axis=0) >= 0).all()


# ---- Two batches never beat their kernels; whole iterations are the sum of their parts and of their layers.

FREE = Sms(), Sms()
NS = st.floats(0, 1e6, allow_subnormal=False)
PHASES = st.sampled_from([DECODES, PROMPTS])
PARTS = ("attention", "projections", "dense", "experts", "transfers", "all_reduce", "head", "host")


def two_batches(*parts):
    return compose(HOW["two_batch"], *parts)


@given(NS, NS, NS, NS, NS, NS, PHASES, st.floats(0, 0.5))
def test_two_batches_take_at_least_their_kernels_and_their_transfers(d, s, k, c, first, then, phase, share):
    half, rest, sms = ExpertLayer(d, s, k, c), Rest(first, then), (Sms(share=share), Sms(share=share))
    found = two_batches(ExpertLayer(2 * d, 2 * s, 2 * k, 2 * c), half, (s, k), rest, sms, phase)
    assert found.shared >= 2 * s and found.experts >= 2 * k and found.dispatch >= 0 and found.combine >= 0
    assert found.total + 2 * sum(rest) >= max(2 * (d + c), d + s + k + c + sum(rest)) * (1 - 1e-9)
    most = 2 * (d + c) + 2 * (s + k) / (1 - share)
    assert found.total <= most + 1e-9 * (most + sum(rest))


@given(NS, NS, PHASES)
def test_without_transfers_two_batches_are_their_kernels(s, k, phase):
    whole = ExpertLayer(0.0, s, k, 0.0)
    found = two_batches(whole, ExpertLayer(0.0, s / 2, k / 2, 0.0), (s, k), Rest(3.0, 5.0), FREE, phase)
    assert tuple(found) == pytest.approx(tuple(whole), abs=1e-6)


def test_kernels_that_hide_a_transfer_hide_all_of_it():
    half = ExpertLayer(10.0, 0.0, 100.0, 20.0)
    assert two_batches(half, half, (0.0, 0.0), Rest(100.0, 100.0), FREE, DECODES).total == pytest.approx(200)
    taking = two_batches(half, half, (0.0, 0.0), Rest(100.0, 100.0), (Sms(ns=4.0), Sms(ns=6.0)), DECODES)
    assert taking.dispatch + taking.combine == pytest.approx(2 * (4 + 6))  # SMs that send and receive compute nothing


def test_transfers_longer_than_all_kernels_are_what_counts():
    half = ExpertLayer(1000.0, 1.0, 2.0, 3000.0)
    assert two_batches(half, half, (0.0, 0.0), NOTHING, FREE, PROMPTS).total >= 2 * 4000


def test_halves_are_never_faster_than_the_whole():
    assert of_halves(100.0, 40.0) == 100
    assert of_halves(100.0, 60.0, 30.0, 0.25) == 120 + 2 * 10


def rows_of(*overrides):
    simulator = Simulator()
    return [simulator.record(run)["row"] for run in prepare(load_experiment(SCENARIO, overrides)).runs]


@pytest.fixture(scope="module")
def overlapped():
    """Row by overlap, of a decode."""
    return {each: rows_of(f"assumptions.overlap={each}")[0] for each in ("none", "shared_expert", "two_batch")}


@pytest.mark.parametrize("overlap", ["none", "shared_expert", "two_batch"])
def test_parts_sum_to_the_iteration_and_layers_to_their_part(overlapped, overlap):
    row = overlapped[overlap]
    assert sum(row[f"iteration_{part}_ns"] for part in PARTS) == pytest.approx(row["iteration_ns"])
    layers = row["decode_ns"] / 2 * 58 / 2  # two steps, two of 58 layers
    assert row["iteration_experts_ns"] + row["iteration_transfers_ns"] == pytest.approx(layers, rel=0.01)


@pytest.mark.parametrize("batch", [4, 16])  # of 16 GPUs
def test_a_request_a_rank_has_no_halves(batch):
    whole, halved = (
        rows_of(f"workload.batch={batch}", f"assumptions.overlap={each}")[0] for each in ("none", "two_batch")
    )
    times = [name for name in whole if name.startswith("iteration_") and name.endswith("_ns")] + ["decode_ns"]
    assert {name: halved[name] for name in times} == {name: whole[name] for name in times}


def test_no_part_is_below_what_its_kernels_take_undivided(overlapped):
    alone = overlapped["none"]
    for overlap in ("shared_expert", "two_batch"):
        for part in ("attention", "projections", "dense", "experts", "head"):
            assert overlapped[overlap][f"iteration_{part}_ns"] >= alone[f"iteration_{part}_ns"] * (1 - 1e-9)
        assert overlapped[overlap]["iteration_transfers_ns"] <= alone["iteration_transfers_ns"]


POLICIES = (
    "ep",
    {"name": "eplb", "placement": {"name": "redundant", "slots": 2}, "allocation": "even",
     "rebalancing": {"name": "eplb", "every_steps": 0}},
    {"name": "waterfill", "allocation": "even", "shared": "waterfill"},
    {"name": "fused", "allocation": "even", "shared": {"name": "waterfill", "kernel": "fused"}},
    {"name": "lplb", "allocation": "lplb"},
)  # fmt: skip


DRAWS, BATCHES = 12, examples(6, 3)  # of traffic; of batches under each, with every policy


def gains(rng, overlap):
    """[(layer, iteration)]: decode and iteration of `ep` over those of other policies, by batch, under one traffic."""
    batches = sorted({int(each) for each in 2 ** rng.uniform(6, 13, BATCHES)})
    traffic = f"{{prompt_tokens: 0, popularity_skew: {rng.uniform(0, 1.5):.2f}, seed: {rng.integers(1 << 20)}}}"
    overrides = (
        f"assumptions.overlap={overlap}", f"workload.batch={batches}", f"workload.trace.synthetic={traffic}",
        "workload.layers=1", "workload.decode_steps=1",
    )  # fmt: skip
    simulator = Simulator()
    runs = prepare(load_experiment(SCENARIO | {"policies": POLICIES}, overrides)).runs
    rows = [simulator.record(run)["row"] for run in runs]
    alone = {row["batch"]: row for row in rows if row["policy"] == "ep"}
    pairs = [(alone[row["batch"]], row) for row in rows if row["policy"] != "ep"]
    return [tuple(ep[name] / row[name] - 1 for name in ("decode_ns", "iteration_ns")) for ep, row in pairs]


@pytest.mark.parametrize("seed", sampled(range(DRAWS), lambda seed: seed < 1))
def test_layer_and_iteration_agree_on_who_gains(seed):
    overlap = ("none", "shared_expert", "two_batch")[seed % 3]
    found = np.array(gains(np.random.default_rng(seed), overlap))
    assert len(found) == BATCHES * (len(POLICIES) - 1)  # 288 draws in all
    large = np.abs(found).max(axis=1) >= 0.005
    assert np.array_equal(np.sign(found[large, 0]), np.sign(found[large, 1]))


def test_pages_show_the_prefill_as_the_decodes():
    row = archsim.run(
        load_experiment(SCENARIO, ["workload.trace.synthetic.prompt_tokens=64", "workload.batch=256"])
    ).runs.rows[0]
    assert row["prefill_iteration_ns"] > row["iteration_ns"] > 0


# ---- Experts that do nothing, experts on latent vectors, and experts without a gate: served by laws.

ODD_SIZES = 257


def changed(**fields):
    return load_model("olmoe-1b-7b").model_copy(update={"name": "odd", **fields})


def times(model):
    found = with_stand_ins(calibration_named("h200"), model, "bf16", "bf16")
    return ByChance().times(Laws(found.calibration), model, ALONE, "bf16", ODD_SIZES).ns, found.notes


@pytest.fixture(scope="module")
def usual():
    return times(changed())[0]


def test_experts_that_do_nothing_take_no_time(usual):
    """With as many of them, half of the pairs do nothing: what is left is between none and all of the time."""
    half, most = (times(changed(zero_experts=count))[0] for count in (64, 10_000))
    assert np.all(half[1:] <= usual[1:]) and np.all(most[1:] <= half[1:]) and half[256] > usual[256] / 3
    operators = count_operators(program(changed(zero_experts=64), ALONE))
    assert {each.n for each in operators if isinstance(each, LayerProduct) and each.cause == ROUTER} == {128}
    with pytest.raises(SpecError, match="odd: zero_experts: 64 "):
        FusedLaw().times(Laws(calibration_named("h200")), changed(zero_experts=64), ALONE, "bf16", ODD_SIZES)


def test_experts_without_a_gate_have_two_matrices(usual):
    model = changed(gated=False)
    found, notes = times(model)
    assert model.slices == 2 and any("without a gate" in note for note in notes)
    assert np.all(found[1:] <= usual[1:]) and found[256] >= usual[256] / 2


def test_experts_on_latent_vectors_are_narrower_and_have_products_around_them(usual):
    model = changed(expert_hidden=1024)
    latent = {
        (each.n, each.k): count for each, count in count_operators(program(model, ALONE)).items()
        if isinstance(each, LayerProduct) and each.cause == PROJECTIONS and 1024 in (each.n, each.k)
    }  # fmt: skip
    assert latent == {(1024, 2048): 16, (2048, 1024): 16}
    assert times(model)[0][256] < usual[256]


def test_they_are_served_and_not_run_by_the_engine():
    model = load_model("olmoe-1b-7b").model_dump(mode="json", by_alias=True, exclude_none=True)
    file = {
        "system": "h200_node", "model": model | {"name": "odd", "zero_experts": 64, "gated": False},
        "engine": "none", "precision": {"products": "bf16", "experts": "bf16"},
        "requests": {"concurrency": 4, "input": {"fixed": 100}, "output": {"fixed": 4}, "count": 8},
    }  # fmt: skip
    assert serve(load_serving(file)).measures.tpot.mean > 0
    with pytest.raises(SpecError, match=r"odd: zero_experts: .*routing: uniform"):
        serve(load_serving(file | {"routing": {"like": "olmoe-1b-7b", "layers": 1}, "precision": {}}))


# ---- A wafer's iteration is the sum of its parts; what its links and its host take of it follows from their rates.

WAFER = SCENARIO | {
    "systems": ["dojo"],
    "models": ["qwen3-235b-a22b"],
    "workload": SCENARIO["workload"] | {"batch": 400, "layers": 1, "decode_steps": 1},
    "assumptions": "physical",
    "parallel": {"attention": {"tp": 4, "dp": 6}},
}


def wafer(*overrides):
    scenario = WAFER | {"systems": [{"like": "dojo", "name": "w", "mesh": {"x": 6, "y": 4}}]}
    simulator = Simulator()
    [run] = prepare(load_experiment(scenario, overrides)).runs
    return simulator.record(run)["row"]


@pytest.fixture(scope="module")
def streamed():
    return wafer()


def test_an_iteration_of_a_wafer_that_streams_weights_is_the_sum_of_its_parts(streamed):
    assert sum(streamed[f"iteration_{part}_ns"] for part in PARTS) == pytest.approx(streamed["iteration_ns"])
    assert all(streamed[f"iteration_{part}_ns"] > 0 for part in PARTS if part != "transfers")
    assert streamed["iteration_experts_ns"] == pytest.approx(streamed["decode_step_ns"])


@pytest.mark.parametrize("prompt", sampled([0, 16], lambda prompt: prompt))
def test_the_iteration_of_fewer_requests_than_ranks_is_that_of_a_rank_with_one(prompt):
    """All wait for it, however many others have none."""
    few, one_each = ({**WAFER, "parallel": None, "workload": {
        "trace": {"synthetic": {"prompt_tokens": prompt}}, "batch": batch, "layers": 1, "context": 99,
    }} for batch in (2, 25))  # fmt: skip
    few, one_each = (Simulator().record(prepare(load_experiment(each)).runs[0])["row"] for each in (few, one_each))
    for part in ("attention", "projections", "dense", "head"):
        for name in (f"iteration_{part}_ns", f"prefill_iteration_{part}_ns")[: 2 if prompt else 1]:
            assert few[name] == pytest.approx(one_each[name]) and few[name] > 0, name


def test_twice_the_links_halve_what_bytes_take_of_an_all_reduce(streamed):
    """Latency of a step stays, and nothing else of the attention side changes."""
    faster, later = wafer("systems.0.d2d.bandwidth=3 TB/s"), wafer("systems.0.d2d.hop_latency=400 ns")
    both = wafer("systems.0.d2d.bandwidth=3 TB/s", "systems.0.d2d.hop_latency=400 ns")
    ns = [each["iteration_all_reduce_ns"] for each in (streamed, faster, later, both)]
    assert ns[1] < ns[0] < ns[2] <= 2 * ns[0] and ns[3] < ns[2]
    assert faster["iteration_attention_ns"] == streamed["iteration_attention_ns"]
    least = (
        94 * 2 * 3 / 4 * (400 / 6) * 4096 * 2 / 1350
    )  # each die sends 2 (n - 1) / n of the vectors, at 0.9 · 1.5 TB/s
    assert ns[0] >= least / 4  # over at most four links of a die


def test_a_wafer_waits_for_its_host_as_its_path_says(streamed):
    host = load_system("dojo").decision.host
    least = host.launch_ns + host.sync_ns + 2 * host.pcie_latency_ns
    assert least < streamed["iteration_host_ns"] < least + 2 * 10 * 200 + 400 * 8 / 55.3 + 1
    slower = wafer("systems.0.decision.host.pcie_latency=1 ms")
    assert slower["iteration_host_ns"] - streamed["iteration_host_ns"] == pytest.approx(2 * (1e6 - 2800))


LINES = {"mesh": {"x": 4, "y": 1}}


def links(changed, bandwidth=1e12, hop_ns=0.0):
    system = {
        "name": "m", "source": "made up", "launch": "local_cp",
        "hbm": {"bandwidth": "1 TB/s", "capacity": "80 GB"}, "compute": {"peak": "1 PFLOP/s", "dtype": "fp8"},
        "d2d": {"bandwidth": f"{bandwidth / 1e9} GB/s", "hop_latency": f"{hop_ns} ns", "efficiency": 1.0},
    }  # fmt: skip
    return links_of(SystemSpec.model_validate(system | changed), load_assumptions("physical"))


@pytest.mark.parametrize(
    ("machine", "ranks", "per_byte"),
    [
        # ns for each byte, at 1,000 bytes/ns: a ring of n passes (n - 1) / n, half of it each way
        ({"mesh": {"x": 4, "y": 1}, "topology": "ring"}, 4, 0.75 / 2),
        ({"mesh": {"x": 2, "y": 1}}, 2, 0.5),  # one link each way carries half
        (LINES, 4, 0.75),  # out by every second die and back: every link once each way
        ({"mesh": {"x": 2, "y": 2}}, 4, 0.75 / 2),  # the four dies are a ring
        ({"mesh": {"x": 4, "y": 1}, "topology": "fully_connected"}, 4, 0.25),  # a quarter to each of the others
    ],
)  # fmt: skip
def test_collectives_over_links_by_hand(machine, ranks, per_byte):
    made, sizes = links(machine), np.array([1e6, 4e6])
    one = made.collective_ns("reduce_scatter", sizes, ranks)
    assert one == pytest.approx(sizes * per_byte / 1000, rel=1e-9)
    assert np.array_equal(one, made.collective_ns("all_gather", sizes, ranks))
    assert made.collective_ns("all_reduce", sizes, ranks) == pytest.approx(2 * one)
    assert made.collective_ns("all_reduce", sizes, 1).max() == 0


def test_collectives_never_beat_latency_and_the_links_of_a_die():
    draw = np.random.default_rng(4)
    for _ in range(12):
        x, y = (int(each) for each in draw.integers(2, 7, 2))
        ranks = int(draw.choice([each for each in range(2, x * y + 1) if x * y % each == 0]))
        hop_ns, rate = float(draw.uniform(50, 500)), float(draw.uniform(2e11, 2e12))
        made, sizes = links({"mesh": {"x": x, "y": y}}, rate, hop_ns), np.geomspace(1, 1e9, 10)
        found = made.collective_ns("all_reduce", sizes, ranks)
        assert (np.diff(found) >= 0).all()
        assert (found >= 2 * hop_ns + 2 * (ranks - 1) / ranks * sizes / (4 * rate / 1e9) - 1e-6).all()
        whole, across = (links({"mesh": {"x": a, "y": b}}, rate, hop_ns) for a, b in ((x, y), (y, x)))
        both = (each.collective_ns("all_reduce", sizes, x * y) for each in (whole, across))
        assert next(both)[-1] == pytest.approx(next(both)[-1], rel=0.02)  # no axis is special
        faster = links({"mesh": {"x": x, "y": y}}, 2 * rate, hop_ns).collective_ns("all_reduce", sizes, ranks)
        turned = links({"mesh": {"x": x, "y": y}}, rate, 0.0).collective_ns("all_reduce", sizes, ranks)
        assert (faster <= found).all() and (turned <= found).all()
        assert faster[-1] - 0.5 * found[-1] <= 2 * (x * y) * hop_ns  # of large ones, all but latency halves
