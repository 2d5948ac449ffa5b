"""One account of memory: runs, serving and checks count the same bytes of a deployment, and say what would fit."""

import pytest

from archsim.base.errors import CapacityError
from archsim.cli.main import main
from archsim.iteration import memory
from archsim.iteration.layers import SHARED, Product, program
from archsim.iteration.memory import memory_fit
from archsim.policies.registry import place_experts
from archsim.serving.deployment import Engine, kv_blocks, kv_room
from archsim.serving.simulate import Scheduler
from archsim.specs.calibration_files import calibration_named
from archsim.specs.deployment import BF16, AttentionRanks, DeploymentSpec, Parallelism, ParallelSpec, Precision
from archsim.specs.library import load_assumptions, load_model, load_system
from archsim.specs.model import ModelSpec
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.workload import WorkloadSpec

NODE, BATCH = load_system("h200_node"), 256


def sizes(tp):
    """Of eight devices."""
    return ParallelSpec(attention=AttentionRanks(tp=tp, dp=8 // tp))


def room_of_run(model, parallel, weights):
    """As `archsim run` counts it."""
    workload = WorkloadSpec(trace={"synthetic": {"prompt_tokens": 64}}, batch=BATCH, context=1000)
    placement = place_experts(PolicySpec(name="ep", **PRESETS["ep"]), model, 8)
    physical = load_assumptions("physical").model_copy(update={"weights": weights})
    return memory_fit(NODE, model, physical, placement, workload, BATCH, DeploymentSpec(parallel=parallel)).kv_room


def room_of_serving(model, parallel):
    """As `archsim serve` counts it."""
    engine = Engine(
        model, calibration_named("h200"), NODE.hbm.capacity_bytes, parallel.sizes(),
        DeploymentSpec().dtypes(NODE.compute.dtype), utilisation=1 - NODE.hbm.reserved_fraction,
    )  # fmt: skip
    return kv_room(engine, Scheduler(max_num_seqs=BATCH // parallel.attention.dp, max_num_batched_tokens=8192))


@pytest.mark.parametrize("name", ["qwen3-235b-a22b", "deepseek-v3", "olmoe-1b-7b", "qwen3-next-80b-a3b"])
@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("weights", ["all", "routed"])
def test_a_deployment_has_one_room_for_kv(name, tp, weights):
    model = load_model(name)
    run, served = room_of_run(model, sizes(tp), weights), room_of_serving(model, sizes(tp))
    assert run.free_bytes == pytest.approx(served.free_bytes, abs=64)
    assert run.tokens == pytest.approx(served.tokens, abs=2) and run.tokens > 0


KEPT = {  # on one rank in BF16: bytes of a token, of windows and of states
    "gpt-oss-120b": (18 * 2048, 18 * 2048 * 128, 0),
    "llama-4-maverick": (12 * 4096, 36 * 4096 * 8192, 0),
    "qwen3-next-80b-a3b": (24_576, 0, 39_518_208),
    "deepseek-v3.2": (78_324, 0, 0),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_request_keeps_what_its_model_says(name):
    model, (of_token, of_windows, states) = load_model(name), KEPT[name]
    kv = memory.request_kv(model, Parallelism(), BF16)
    assert (kv.token_bytes, kv.filled_bytes) == (of_token, of_windows + states)
    for context in (0, 1, 100, 5_000, 100_000):
        assert kv.held_bytes(context) == model.kv_bytes(context) + states


@pytest.mark.parametrize(("context", "tp"), [(100, 1), (100_000, 8)])
def test_compressed_entries_and_windows_of_deepseek_v4(context, tp):
    kv = memory.request_kv(deepseek_v4(), Parallelism(tp=tp), BF16)
    assert kv.token_bytes == pytest.approx(21 * (1024 + 132) / 4 + 20 * 1024 / 128) == 6229
    assert kv.held_bytes(context) == pytest.approx(6229 * context + 43 * min(context, 128) * 1024)
    fp8 = memory.request_kv(deepseek_v4(), Parallelism(tp=tp), BF16._replace(kv="fp8"))
    assert fp8.windows == ((128, 43 * 584),)  # 448 of FP8, 64 of BF16, 7 scales and a byte more
    assert fp8.token_bytes == pytest.approx(21 * (584 + 132) / 4 + 20 * 584 / 128)


def deepseek_v4():
    base = {"kind": "compressed", "heads": 64, "head_dim": 512, "q_lora_rank": 1024, "o_lora_rank": 1024}
    base |= {"o_groups": 8, "window": 128}
    index = {"overlapping": True, "index_heads": 64, "index_head_dim": 128, "index_topk": 512, "ratio": 4}
    dense = [base | {"layers": [0, 1]}, base | index | {"layers": list(range(2, 43, 2))}, base | {"ratio": 128}]
    return ModelSpec(
        name="v4", source="config.json", layers=43, moe_layers=list(range(43)), hidden=4096, expert_ffn=2048,
        experts=256, top_k=6, shared_experts=1, attention=dense, vocabulary=129280,
    )  # fmt: skip


def test_sparse_caches_in_8_bits_hold_their_scales():
    """48,072 B a token of DeepSeek-V3.2 were measured in SGLang (sgl-project/sglang#11309)."""
    kv = memory.request_kv(load_model("deepseek-v3.2"), Parallelism(tp=8), BF16._replace(kv="fp8"))
    assert kv.token_bytes == 61 * (512 + 16 + 128 + 132) == 48_068


def test_drafts_of_mtp_take_a_layer_of_weights_and_kv():
    model, parallel = load_model("deepseek-v3"), Parallelism(8, 1, 8, 1)
    fp8 = Precision("fp8_block", "bf16", "bf16", "fp8_block")
    without, drafting = (memory.weights_by_kind(model, parallel, fp8, 58 * 32, layers) for layers in (0, 1))
    more = sum(drafting.values()) - sum(without.values())
    assert more == pytest.approx(11_610_068_224 / 8, rel=1e-3)  # DeepSeek-V3's, without copies of its embeddings
    assert memory.request_kv(model, parallel, fp8, 1).token_bytes == 62 * 1152


@pytest.mark.parametrize(("tp", "divided"), [(1, 1), (2, 1), (4, 1), (8, 8)])
def test_ranks_with_all_tokens_divide_shared_experts_and_others_have_them_whole(tp, divided):
    model, parallel = load_model("deepseek-v3"), sizes(tp).sizes()
    assert memory.shared_ranks(parallel) == divided
    held = [
        each for layers in program(model, parallel) for each in layers.operators
        if isinstance(each, Product) and each.cause == SHARED
    ]  # fmt: skip
    assert {each.n * each.k for each in held} == {
        size * model.hidden * model.shared_experts * model.shared_ffn // divided for size in (1, 2)
    }
    assert {each.sharing * divided for each in held} == {tp}  # the work of a rank is its share either way


@pytest.mark.parametrize("attention", ["{tp: 8}", "{tp: 2, dp: 4}", "{dp: 8}"])
def test_check_run_and_serve_print_one_room(tmp_path, capsys, attention):
    parallel = f"parallel: {{attention: {attention}}}\nprecision: {{products: bf16, experts: fp8_block}}\n"
    seqs = 64 if "tp: 8" in attention else 16 if "tp: 2" in attention else 8
    experiment, serve = tmp_path / "experiment.yaml", tmp_path / "serve.yaml"
    traffic = "workload: {trace: {synthetic: {prompt_tokens: 32, decode_steps: 2}}, batch: 64, layers: 1}\n"
    names = "name: room\nsystems: [h200_node]\nmodels: [deepseek-v2-lite]\npolicies: [ep]\n"
    experiment.write_text(f"{names}{parallel}{traffic}")
    requests = "requests: {concurrency: 2, input: {fixed: 32}, output: {fixed: 2}, count: 4}\n"
    serve.write_text(
        f"system: h200_node\nmodel: deepseek-v2-lite\n{parallel}{requests}scheduler: {{max_num_seqs: {seqs}}}\n"
    )
    rooms = []
    for command, file in (("check", experiment), ("check", serve), ("run", experiment), ("serve", serve)):
        assert main([command, str(file)]) == 0
        rooms += [line.strip() for line in capsys.readouterr().out.splitlines() if "tokens of KV a device" in line]
    assert len(rooms) == 4 and len(set(rooms)) == 1


def test_a_deployment_without_room_says_what_would_fit():
    model, calibration = load_model("deepseek-v3"), calibration_named("h200")
    engine = Engine(model, calibration, 80e9, ParallelSpec(attention=AttentionRanks(dp=8)).sizes())
    said = r"no room for KV.*need .* GB, HBM has .* too little; it would fit with attention dp 64 and experts ep 64"
    with pytest.raises(CapacityError, match=said):
        kv_blocks(engine, Scheduler())
