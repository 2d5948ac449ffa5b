"""One account of memory: runs and serving count the same bytes of a deployment, and say what would fit."""

import pytest

from archsim.base.errors import CapacityError
from archsim.iteration.memory import KV, memory_fit
from archsim.policies.registry import place_experts
from archsim.serving.deployment import Engine, activation_bytes, kv_blocks, weight_bytes
from archsim.serving.simulate import Scheduler
from archsim.specs.deployment import AttentionRanks, DeploymentSpec, ParallelSpec
from archsim.specs.loading.calibrations import calibration_named
from archsim.specs.loading.library import load_assumptions, load_model, load_system
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.workload import WorkloadSpec

NODE, BATCH = load_system("h200_node"), 256


@pytest.mark.parametrize("name", ["qwen3-235b-a22b", "deepseek-v3", "olmoe-1b-7b"])
@pytest.mark.parametrize("tp", [1, 8])
def test_a_deployment_has_one_room_for_kv(name, tp):
    model, parallel = load_model(name), ParallelSpec(attention=AttentionRanks(tp=tp, dp=8 // tp))
    deployment = DeploymentSpec(parallel=parallel)
    workload = WorkloadSpec(trace={"synthetic": {"prompt_tokens": 64}}, batch=BATCH, context=1000)
    placement = place_experts(PolicySpec(name="ep", **PRESETS["ep"]), model, 8)
    fit = memory_fit(NODE, model, load_assumptions("physical"), placement, workload, BATCH, deployment)
    left = fit.bound_bytes - fit.demand_bytes + fit.parts[KV]

    engine = Engine(
        model, calibration_named("h200"), NODE.hbm.capacity_bytes, parallel.sizes(),
        deployment.dtypes(NODE.compute.dtype), utilisation=1 - NODE.hbm.reserved_fraction,
    )  # fmt: skip
    scheduler = Scheduler(max_num_seqs=BATCH // (8 // tp), max_num_batched_tokens=8192)
    room = engine.bound_bytes - weight_bytes(engine) - activation_bytes(engine, scheduler)
    shared = 0 if tp == 1 else int(model.shared_weights * (1 - 1 / tp))  # a run's dies have them whole
    assert left.min() == pytest.approx(room - shared, abs=64)


def test_a_deployment_without_room_says_what_would_fit():
    model, calibration = load_model("deepseek-v3"), calibration_named("h200")
    engine = Engine(model, calibration, 80e9, ParallelSpec(attention=AttentionRanks(dp=8)).sizes())
    said = r"no room for KV.*need .* GB, HBM has .* too little; it would fit with attention dp 64 and experts ep 64"
    with pytest.raises(CapacityError, match=said):
        kv_blocks(engine, Scheduler())
