"""Times of whole iterations: causes add up, more work is never faster, rates scale, what does not fit is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from archsim.base.errors import SpecError
from archsim.iteration.layers import CAUSES, Product, counted, program
from archsim.iteration.times import all_reduce_ns, batches_of, fastest_all_reduce_ns, iteration_laws, iteration_times
from archsim.laws.gemm import Rates
from archsim.laws.laws import Laws
from archsim.specs.calibration_files import calibration_named
from archsim.specs.deployment import Parallelism, Precision
from archsim.specs.library import load_model
from archsim.specs.model import LayerSet, ModelSpec

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
@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(0, 4000)), min_size=1, max_size=20),
    st.integers(1, 4000),
)
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


def test_weights_of_products_are_those_of_the_model():
    model = load_model("deepseek-v3")
    found = dict.fromkeys(("projections", "dense_ffn", "router", "shared", "lm_head"), 0)
    for each, count in counted(program(model, Parallelism())).items():
        if isinstance(each, Product):
            found[each.cause] += count * each.weights
    assert found["projections"] == model.attention_weights and found["lm_head"] == model.output_weights
    assert found["dense_ffn"] + found["router"] == model.dense_weights and found["shared"] == model.shared_weights


def test_experts_under_data_parallelism_combine_by_transfers_of_their_own():
    model = load_model("deepseek-v3")

    def counts(parallel):
        found = dict.fromkeys(("all_reduce", "dispatch", "combine"), 0)
        operators = counted(program(model, parallel)).items()
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
        (Parallelism(tp=3), "tp 3 does not divide 64 heads: 2 or 1 fit"),
        (Parallelism(tp=8, ep=4), "ep 4 x expert_tp 1 is not the 8 ranks"),
        (Parallelism(dp=3, ep=3), "128 experts are not divided by ep 3: 2 or 1 fit"),
        (Parallelism(tp=0), "1 or more"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(parallel, told):
    with pytest.raises(SpecError, match=told):
        iteration_laws(load_model("qwen3-235b-a22b"), calibration_named("h100"), parallel)
    bare = load_model("qwen3-235b-a22b").model_copy(update={"attention": None})
    with pytest.raises(SpecError, match="need attention"):
        iteration_laws(bare, calibration_named("h100"))
