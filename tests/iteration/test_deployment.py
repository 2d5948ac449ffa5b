"""How an experiment says how its model is spread over devices, and what it refuses."""

import pytest

import archsim
from archsim.base.errors import SpecError
from archsim.iteration.layers import ELSEWHERE, count_operators, program
from archsim.runs.plan import prepare
from archsim.specs.deployment import Parallelism, Precision, refuse_cut_blocks
from archsim.specs.library import load_experiment, load_model

EXPERIMENT = {
    "name": "deployed",
    "systems": ["h100_node"],
    "models": ["qwen3-235b-a22b"],
    "workload": {
        "trace": {"synthetic": {"prompt_tokens": 0}}, "batch": 64, "decode_steps": 2, "layers": 2, "context": 2000,
    },
    "policies": ["ep"],
    "assumptions": {
        "set": "physical", "execution": "expert_parallel", "gemm": "grouped", "dispatch": "all_gather",
        "combine": "bf16", "transfer_software": "charged", "memory": "all",
    },
    "engine": "analytical",
}  # fmt: skip


def iteration_of(*overrides):
    (row,) = archsim.run(load_experiment(EXPERIMENT, overrides)).runs.rows
    return {name: value for name, value in row.items() if name.startswith("iteration_")}


def test_the_way_to_dispatch_does_not_choose_the_parallelism_of_attention():
    gathered, sent = iteration_of(), iteration_of("assumptions.dispatch=per_token_expert")
    assert gathered["iteration_all_reduce_ns"] == sent["iteration_all_reduce_ns"] == 0
    for cause in ("attention", "projections", "dense", "head"):
        assert gathered[f"iteration_{cause}_ns"] == sent[f"iteration_{cause}_ns"]
    assert gathered["iteration_transfers_ns"] != sent["iteration_transfers_ns"]


def test_tensor_parallel_attention_is_asked_for_by_name():
    alone, shared = iteration_of(), iteration_of("parallel.attention.tp=4", "parallel.attention.dp=2")
    assert shared["iteration_all_reduce_ns"] > 0
    assert shared["iteration_experts_ns"] == alone["iteration_experts_ns"]
    assert shared["iteration_projections_ns"] < alone["iteration_projections_ns"]


def test_transfers_take_the_place_of_the_all_reduce_after_experts():
    model = load_model("qwen3-235b-a22b")
    for moves, times in ((None, 2 * 94), (ELSEWHERE, 94)):
        operators = count_operators(program(model, Parallelism(tp=8, ep=8), moves=moves))
        assert [count for each, count in operators.items() if each.cause == "all_reduce"] == [times]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["parallel.pp=2"], "pipeline"),
        (["parallel.attention.context=2"], "context"),
        (["parallel.disaggregated=attention_ffn"], "disaggregated"),
        (["parallel.attention.dp=4"], "4 ranks.*h100_node.* 8 dies.*dp: 8"),
        (["parallel.attention.tp=8", "parallel.experts.ep=4", "parallel.experts.tp=2"], "parallel.experts: tp 2"),
        (["precision.experts=bf16"], "dtype.* fp8"),
        (["models=[deepseek-v3]", "precision.bf16=[shared_experts]"], "precision.bf16: shared_experts.* dtype .* fp8"),
        (["workload.context=200000"], "workload.context: 200,000 .* positions"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_refused_by_name(overrides, said):
    with pytest.raises(SpecError, match=said):
        prepare(load_experiment(EXPERIMENT, overrides))


def test_parallel_sizes_and_precision_are_axes_of_a_sweep():
    linked = {"parallel.attention.tp": [1, 4], "parallel.attention.dp": [8, 2]}
    swept = EXPERIMENT | {"sweep": {"grid": {"precision.kv": ["bf16", "fp8"]}, "zip": linked}}
    rows = archsim.sweep(swept).runs.rows
    assert len(rows) == 4 and [row["axis.parallel.attention.tp"] for row in rows] == [1, 4, 1, 4]
    assert rows[0]["hbm_kv_bytes"] == 2 * rows[2]["hbm_kv_bytes"]
    assert [row["iteration_all_reduce_ns"] > 0 for row in rows] == [False, True, False, True]


def test_sizes_of_an_axis_that_do_not_go_together_are_refused():
    swept = EXPERIMENT | {"parallel": {"attention": {"tp": 8}, "experts": {"ep": 8}}}
    with pytest.raises(SpecError, match="ep 8 x tp 1 .*4 ranks"):
        archsim.sweep(swept | {"sweep": {"grid": {"parallel.attention.tp": [8, 4]}}})


@pytest.mark.parametrize(("model", "parallel", "told"), [
    ("qwen3-235b-a22b", (8, 1, 1, 8), " 1,536 .* 192.* 128.*experts: {ep: 2, tp: 4}"),
    ("qwen3-30b-a3b", (4, 1, 1, 4), " 768 .* 192.* experts: {ep: 2, tp: 2}"),
    ("glm-4.5-air", (1, 8, 2, 4), " 1,408 .* 352.* experts: {ep: 8, tp: 1}"),
    ("glm-4.5", (8, 1, 8, 1), "shared experts.* 1,536 .* 192.* 128.*tp 4"),
    ("glm-4.5-air", (4, 1, 4, 1), "dense_ffn.* 10,944 .* 2736.* 128.*tp 1"),
    ("gpt-oss-120b", (64, 1, 64, 1), "queries.*4,096.* 64"), ("gpt-oss-120b", (8, 1, 8, 1), ""),
    ("qwen3-235b-a22b", (4, 1, 1, 4), ""), ("qwen3-235b-a22b", (8, 1, 2, 4), ""), ("deepseek-v3", (8, 1, 1, 8), ""),
    ("glm-4.5-air", (1, 8, 8, 1), ""), ("glm-4.5", (2, 4, 8, 1), ""), ("qwen3-32b", (8, 1, 1, 1), ""),
])  # fmt: skip
def test_ranks_that_cut_blocks_of_fp8_weights_are_refused(model, parallel, told):
    blocks, plain = Precision("fp8_block", experts="fp8_block"), Precision("fp8", experts="fp8")
    refuse_cut_blocks(load_model(model), Parallelism(*parallel), plain)
    if not told:
        return refuse_cut_blocks(load_model(model), Parallelism(*parallel), blocks)
    with pytest.raises(SpecError, match=told):
        refuse_cut_blocks(load_model(model), Parallelism(*parallel), blocks)
