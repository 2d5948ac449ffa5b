"""Prompts that ranks share, and experts in memory of the host: cases derived by hand."""

import numpy as np
import pytest

from archsim.base.errors import SpecError
from archsim.iteration import memory
from archsim.iteration.attention import PREFILL
from archsim.iteration.layers import EXPERTS, PROJECTIONS
from archsim.iteration.times import gathered_ns
from archsim.laws.laws import Laws
from archsim.serving.clock import OCTAVE
from archsim.serving.deployment import LOCAL, kept, laws_of, missing_of, offloaded_ns
from archsim.serving.serving import _built, deploy, engine_of, host_for, serve
from archsim.serving.simulate import Scheduler
from archsim.serving.traffic import TokenPool
from archsim.specs.library import load_model
from archsim.specs.serving_files import load_serving

GIVEN = {
    "system": "h200_node", "model": "qwen3-235b-a22b", "engine": "none", "parallel": {"attention": {"dp": 8}},
    "precision": {"products": "fp8_block", "experts": "fp8_block"},
    "requests": {"concurrency": 4, "input": {"fixed": 512}, "output": {"fixed": 4}, "count": 8},
    "scheduler": {"name": "vllm_v1", "max_num_seqs": 16, "max_num_batched_tokens": 2048},
}  # fmt: skip
SIDES = {
    "prefill": {"parallel": {"attention": {"tp": 1, "dp": 4, "prompts": "shared"}}},
    "decode": {"parallel": {"attention": {"tp": 4}}},
}


def apart(prompts, **changes):
    attention = {"tp": 1, "dp": 4, "prompts": prompts}
    sides = {**SIDES, "prefill": {"parallel": {"attention": attention}}}
    given = {key: value for key, value in GIVEN.items() if key != "parallel"}
    return load_serving({**given, "disaggregated": sides, **changes})


@pytest.fixture(scope="module")
def engines():
    """Of four groups that prefill: with prompts of their own, and with shared ones."""
    found = []
    for prompts in ("own", "shared"):
        serving = apart(prompts).on("prefill")
        found.append(_built(serving, serving.spec.pools[0], Scheduler.of(serving.spec.scheduler), host_for(serving)))
    return found


def test_every_group_has_its_part_of_the_tokens_of_a_prompt(engines):
    own, shared = engines
    assert (own.pool.ranks, shared.pool.ranks) == (4, 1)
    one, all_ = own.pool.table, shared.pool.table
    for tokens in (1, 4, 1000, 2000):
        part = -(-tokens // 4)
        assert all_.local[tokens] == one.local[part]
        assert all_.experts[tokens] == one.experts[part]
        assert all_.dispatch[tokens] == one.dispatch[part]
    # Keys and values of 4 heads of 128 in each of 94 layers, in BF16, gathered by four ranks.
    engine = engine_of(apart("shared").on("prefill"), apart("shared").spec.pools[0].parallel)
    size = np.array([2000 * 2 * 4 * 128 * 2.0])
    gather = 94 * gathered_ns(Laws(engine.calibration), "all_gather", size, 4)[0]
    assert all_.prefill_up[2000] == pytest.approx(one.prefill_up[500] + gather, rel=1e-9)


def test_attention_of_a_shared_prompt_is_a_quarter_of_its_pairs(engines):
    own, shared = engines
    # 8192 queries from the beginning on see 4096 keys each in the mean: so do 2048 at the end of 4096 + 1024.
    times = own.laws.attention[PREFILL]
    part = sum(layers * each.ns(1, 2048, 5120) for each, layers in times)
    assert np.exp(shared.pool.table.prefill[0, 13 * OCTAVE, 0]) == pytest.approx(float(part), rel=1e-6)
    long = 16 * OCTAVE  # a prompt of 65,536 tokens
    assert 3.2 < np.exp(own.pool.table.prefill[0, long, 0] - shared.pool.table.prefill[0, long, 0]) < 4.8


def test_kv_of_a_shared_prompt_is_on_every_group(engines):
    own, shared = engines
    assert own.pool.kv_blocks == shared.pool.kv_blocks
    moved = [deploy(apart(prompts)).transfer.ns_per_token for prompts in ("own", "shared")]
    assert moved[0] == pytest.approx(4 * moved[1])


def test_a_prompt_comes_sooner_where_ranks_share_it():
    lengths = {"concurrency": 1, "input": {"fixed": 2048}, "output": {"fixed": 4}, "count": 4}
    own, shared = (serve(apart(prompts, requests=lengths)).measures.ttft.mean for prompts in ("own", "shared"))
    assert shared < 0.75 * own


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"parallel": {"attention": {"dp": 8, "prompts": "shared"}}}, "only prefill"),
        ({"disaggregated": SIDES, "speculation": {"draft_tokens": 1, "acceptance": 0.5}}, "speculation are not"),
        ({"expert_offload": {"resident": 0.5}, "routing": {"like": "model"}}, "policies that move experts"),
        ({"expert_offload": {"resident": 0.5}, "speculation": {"draft_tokens": 1, "acceptance": 0.5}}, "speculation"),
        ({"expert_offload": {"resident": 0.5, "popularity": {"trace": "x"}}}, "generated traffic"),
    ],
)
def test_what_nobody_runs_is_refused_by_name(change, said):
    given = {key: value for key, value in GIVEN.items() if not (key == "parallel" and "disaggregated" in change)}
    with pytest.raises(SpecError, match=said):
        load_serving({**given, **change})


def test_experts_that_one_token_lacks_are_those_that_hbm_has_not():
    model = load_model("qwen3-235b-a22b")  # 8 of 128 experts
    missing = missing_of(model, 8, 12, None)  # 16 experts a rank, of which 12 stay
    assert missing(np.array([0, 1])).tolist() == pytest.approx([0, 4 * 8 / 128])
    assert missing(np.array([10**6]))[0] == pytest.approx(4)
    assert missing_of(model, 8, 16, None)(np.array([5]))[0] == 0


def test_residents_are_the_popular_experts_of_the_traffic_before():
    model = load_model("qwen3-235b-a22b")
    # All tokens choose experts 0 to 7: the first rank of 16 has them, and eight residents hold all.
    decodes = np.tile(np.arange(8, dtype=np.int16), (40, 1, 1))
    pool = TokenPool(decodes, decodes, np.zeros(1, np.int64), np.zeros(1, np.int32), "hand")
    assert missing_of(model, 8, 8, pool)(np.array([64]))[0] == 0
    assert missing_of(model, 8, 6, pool)(np.array([1, 64])).tolist() == [2, 2]


def offloaded(**given):
    serving = load_serving({**GIVEN, "expert_offload": {"bandwidth": "50 GB/s", **given}})
    engine = engine_of(serving, serving.spec.parallel)
    return serving, engine, laws_of(engine, Scheduler.of(serving.spec.scheduler))[0]


def test_loads_that_nobody_names_wait_for_the_router():
    _, engine, laws = offloaded(resident=0.5)
    expert = 3 * 4096 * 1536  # bytes in FP8
    assert memory.expert_bytes(engine.model, engine.precision) == expert
    found = offloaded_ns(engine, laws)
    lacking = 8 * (1 - (1 - 8 / 128) ** 80)  # of 16 experts a rank, 8 of which stay; 10 tokens on each of 8 ranks
    assert found[10] == pytest.approx(94 * lacking * expert / 50e9 * 1e9, rel=1e-9) and found[0] == 0


def test_loads_that_are_named_before_pass_beside_a_layer():
    _, engine, laws = offloaded(resident=0.5)
    _, named, _ = offloaded(resident=0.5, prefetch=1.0)
    _, partly, _ = offloaded(resident=0.5, prefetch=0.75)
    alone, beside, some = (offloaded_ns(each, laws) for each in (engine, named, partly))
    layer = laws.ns(*LOCAL)[1:] / 94 + (laws.ns(EXPERTS) + laws.ns("dispatch") + laws.ns("combine"))[1:] / 94
    assert beside[1:] == pytest.approx(np.maximum(alone[1:] - 94 * layer, 0))
    assert some == pytest.approx(beside + 0.25 * alone)
    assert laws.ns(PROJECTIONS)[1] > 0


def test_memory_has_residents_and_room_for_two_layers_that_are_loaded():
    serving, engine, _ = offloaded(resident=0.5)
    scheduler = Scheduler.of(serving.spec.scheduler)
    whole = kept(engine_of(load_serving(GIVEN), serving.spec.parallel), scheduler)
    less = sum(whole.values()) - sum(kept(engine, scheduler).values())
    expert = memory.expert_bytes(engine.model, engine.precision)
    assert less == pytest.approx((16 * 94 - (8 * 94 + 2 * 8)) * expert, rel=1e-6)
    assert deploy(serving).prefill.pool.kv_blocks > deploy(load_serving(GIVEN)).prefill.pool.kv_blocks


def test_experts_of_ranks_that_may_fail_have_spare_slots():
    faults = [{"at": "1 s", "rank": rank, "recovery": "5 s", "elastic": True} for rank in (1, 5)]
    serving = load_serving({**GIVEN, "faults": faults})
    engine = engine_of(serving, serving.spec.parallel)
    assert engine.expert_slots == 94 * 22  # 16 experts a rank on eight; 128 / 6 = 21.3 on six
