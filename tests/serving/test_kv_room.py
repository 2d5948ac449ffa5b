"""The room for KV of served engines: one with runs and checks, and as servers logged it."""

import pytest

from archsim.base.errors import CapacityError
from archsim.iteration.memory import memory_fit
from archsim.laws.calibration_files import calibration_named
from archsim.policies.registry import place_experts
from archsim.serving.engine import ServingEngine
from archsim.serving.file_engines import engine_of
from archsim.serving.kv_room import kept, kv_blocks, kv_room
from archsim.serving.simulate import Scheduler
from archsim.specs.deployment import (
    AttentionRanks,
    DeploymentSpec,
    ParallelSpec,
)
from archsim.specs.library import load_assumptions, load_model, load_system
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.serving_files import load_serving
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
    engine = ServingEngine(
        model, calibration_named("h200"), NODE.hbm.capacity_bytes, parallel.sizes(),
        DeploymentSpec().dtypes(NODE.compute.dtype, model), utilisation=1 - NODE.hbm.reserved_fraction,
    )  # fmt: skip
    return kv_room(engine, Scheduler(max_num_seqs=BATCH // parallel.attention.dp, max_num_batched_tokens=8192))


@pytest.mark.parametrize("name", ["qwen3-235b-a22b", "deepseek-v3", "olmoe-1b-7b", "qwen3-next-80b-a3b"])
@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("weights", ["all", "routed"])
def test_a_deployment_has_one_room_for_kv(name, tp, weights):
    model = load_model(name)
    run, served = room_of_run(model, sizes(tp), weights), room_of_serving(model, sizes(tp))
    assert run.free_bytes == pytest.approx(served.free_bytes, abs=64)
    assert run.samples == pytest.approx(served.samples, abs=64)
    assert run.tokens == pytest.approx(served.tokens, abs=2) and run.tokens > 0


def test_a_deployment_without_room_says_what_would_fit():
    model, calibration = load_model("deepseek-v3"), calibration_named("h200")
    engine = ServingEngine(model, calibration, 80e9, ParallelSpec(attention=AttentionRanks(dp=8)).sizes())
    said = r"KV.* GB.*dp 64.*ep 64"
    with pytest.raises(CapacityError, match=said):
        kv_blocks(engine, Scheduler())


GIB = 2**30


def deployment(model, system, tp, experts, engine="vllm", utilisation=0.9, **more):
    products = "bf16" if experts == "mxfp4" else experts
    return load_serving({
        "system": system, "model": model, "parallel": {"attention": {"tp": tp}, "experts": {"tp": tp, "ep": 1}},
        "precision": {"products": products, "experts": experts, "kv": "bf16"},
        "engine": engine, "utilisation": utilisation,
        "requests": {"concurrency": 2, "input": {"fixed": 32}, "output": {"fixed": 2}, "count": 4}, **more,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        (deployment("qwen3-235b-a22b", "h100_node", 4, "fp8_block"), 178_880),  # vllm-project/vllm#21348, vLLM
        (deployment("qwen3-235b-a22b", "h100_node", 4, "fp8_block", "sglang", 0.93), 367_404),  # and SGLang
    ],
)
def test_tokens_of_kv_are_those_that_servers_logged(given, tokens):
    engine = engine_of(given, given.spec.parallel)
    assert kv_room(engine, Scheduler.of(given.spec.scheduler)).tokens == pytest.approx(tokens, rel=0.05)


def test_gpt_oss_120b_loads_padded_weights_and_leaves_nothing_on_one_h100():
    """65.97 GiB were loaded, and -2.14 GiB were left (vllm-project/vllm#23278); fewer requests leave some."""
    given = deployment("gpt-oss-120b", "h100_node", 1, "mxfp4")
    few = deployment("gpt-oss-120b", "h100_node", 1, "mxfp4", scheduler={"max_num_seqs": 128})
    engine, left = engine_of(given, given.spec.parallel), []
    for each in (given, few):
        left.append(kv_room(engine_of(each, each.spec.parallel), Scheduler.of(each.spec.scheduler)).free_bytes)
    weights = kept(engine, Scheduler()) | {"activations": 0}
    assert sum(weights.values()) / GIB == pytest.approx(65.97, rel=0.005)
    assert left[0] / GIB == pytest.approx(-2.14, abs=0.2) and left[1] > 3e9


# Deployments that others have measured, and one of whose weights the GPUs have no room.
MEASURED = [
    ({"system": "h100_node", "model": "gpt-oss-120b", "tp": 1, "experts": "mxfp4"}, True),  # GPUStack's, vLLM 0.11
    ({"system": "b200_node", "tp": 4, "ep": 4, "engine": "trtllm"}, True),  # InferenceX, TensorRT-LLM 1.2.0rc6
    ({"system": "b200_node", "tp": 4, "ep": 4, "engine": "vllm"}, True),
    ({"system": "h20_cluster", "tp": 8, "ep": 8, "engine": "sglang"}, True),  # Ant Group, SGLang 0.5.2
    ({"system": "h20_cluster", "tp": 8, "ep": 8, "engine": "vllm"}, True),
    ({"system": "gb200_nvl72", "dp": 4, "ep": 4, "engine": "sglang"}, True),  # LMSYS, GB200 part 2
    ({"system": "h100_node", "model": "glm-4.5-air", "tp": 2, "ep": 1, "experts": "bf16"}, False),
    ({"system": "h100_node", "tp": 8, "ep": 8}, False),
]


@pytest.mark.parametrize(("keys", "fits"), MEASURED)
def test_no_deployment_that_was_measured_is_refused(keys, fits):
    tp, dp = keys.get("tp", 1), keys.get("dp", 1)
    ep, experts = keys.get("ep", 1), keys.get("experts", "fp8_block")
    given = load_serving({
        "system": keys["system"], "model": keys.get("model", "deepseek-v3"), "engine": keys.get("engine", "vllm"),
        "parallel": {"attention": {"tp": tp, "dp": dp}, "experts": {"ep": ep, "tp": tp * dp // ep}},
        "precision": {"products": "bf16" if experts == "mxfp4" else experts, "experts": experts},
        "requests": {"concurrency": 2, "input": {"fixed": 32}, "output": {"fixed": 2}, "count": 4},
    })  # fmt: skip
    engine, scheduler = engine_of(given, given.spec.parallel), Scheduler.of(given.spec.scheduler)
    if fits:
        assert kv_blocks(engine, scheduler) > 0
    else:
        with pytest.raises(CapacityError, match=r"1% of \d+ "):
            kv_blocks(engine, scheduler)


def test_chunks_keep_all_tokens_in_vllm():
    """8,253 blocks of Llama-4-Scout on two H100 in FP8, where layers with chunks as windows would leave 45,589."""
    chunks = {"kind": "grouped", "heads": 40, "kv_heads": 8, "head_dim": 128}
    model = {
        "name": "scout", "source": "config.json", "layers": 48, "moe_layers": list(range(48)), "hidden": 5120,
        "expert_ffn": 8192, "experts": 16, "top_k": 1, "shared_experts": 1, "vocabulary": 202048,
        "attention": [chunks | {"window": 8192, "chunked": True}, chunks | {"layers": list(range(3, 48, 4))}],
    }  # fmt: skip
    requests = {"max_num_seqs": 128, "max_num_batched_tokens": 2048}
    given = deployment(model, "h100_node", 2, "fp8", scheduler=requests)
    engine, scheduler = engine_of(given, given.spec.parallel), Scheduler.of(given.spec.scheduler)
    room = kv_room(engine, scheduler)
    low, high = (each / (98_304 * 16) for each in room.likely_bytes)
    assert low <= 8_253 <= high and room.kv.windows == () and room.tokens // 16 < 12_000
    elsewhere = kv_room(engine._replace(library="sglang"), scheduler)
    assert elsewhere.kv.windows == ((8192, 36 * 2048),)


def test_run_and_serve_refuse_the_same_and_say_the_same():
    """Of machines with more and more memory: none, some and all samples leave the KV of a request."""
    model, parallel, shares = load_model("qwen3-235b-a22b"), sizes(8), []
    for gb in range(30, 50, 2):
        node = NODE.model_copy(update={"hbm": NODE.hbm.model_copy(update={"capacity_bytes": gb * 10**9})})
        workload = WorkloadSpec(trace={"synthetic": {"prompt_tokens": 64}}, batch=8, context=1000)
        placement = place_experts(PolicySpec(name="ep", **PRESETS["ep"]), model, 8)
        assumptions = load_assumptions("physical")
        fit = memory_fit(node, model, assumptions, placement, workload, 8, DeploymentSpec(parallel=parallel))
        engine = ServingEngine(
            model, calibration_named("h200"), node.hbm.capacity_bytes, parallel.sizes(),
            DeploymentSpec().dtypes(node.compute.dtype, model), utilisation=1 - node.hbm.reserved_fraction,
        )  # fmt: skip
        served, needed = kv_room(engine, Scheduler(max_num_seqs=8, max_num_batched_tokens=8192)), fit.needed_bytes
        assert fit.fits == served.fits(needed) and fit.kv_room.share(needed) == served.share(needed)
        said = fit.doubtful("it")
        assert said == served.doubtful(needed, "it") and bool(said) == (served.share(needed) < 0.9)
        assert (fit.room_bytes >= 0).all()
        shares.append(served.share(needed))
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] == 1 and any(0.05 < each < 0.9 for each in shares)
