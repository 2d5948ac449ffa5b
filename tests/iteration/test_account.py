"""One account of memory: runs, serving and checks count the same bytes of a deployment, and say what would fit."""

import pytest

from archsim.base.errors import CapacityError
from archsim.cli.main import main
from archsim.iteration import account
from archsim.iteration.layers import SHARED, Product, program
from archsim.iteration.memory import memory_fit
from archsim.policies.registry import place_experts
from archsim.serving.deployment import Engine, kv_blocks, kv_room
from archsim.serving.simulate import Scheduler
from archsim.specs.deployment import AttentionRanks, DeploymentSpec, ParallelSpec
from archsim.specs.loading.calibrations import calibration_named
from archsim.specs.loading.library import load_assumptions, load_model, load_system
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


@pytest.mark.parametrize(("tp", "divided"), [(1, 1), (2, 1), (4, 1), (8, 8)])
def test_ranks_with_all_tokens_divide_shared_experts_and_others_have_them_whole(tp, divided):
    model, parallel = load_model("deepseek-v3"), sizes(tp).sizes()
    assert account.shared_ranks(parallel) == divided
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
    parallel = f"parallel: {{attention: {attention}}}\n"
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
