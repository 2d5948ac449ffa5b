"""Scenarios: DeepSeek-V3 on H20s as an experiment, and a model on a machine with all of its memory counted."""

from archsim.policies.registry import place_experts
from archsim.specs.deployment import DeploymentSpec, PrecisionSpec
from archsim.specs.library import load_assumptions, load_model, load_system
from archsim.specs.scenario import Scenario
from archsim.specs.workload import WorkloadSpec
from support.small_runs import policy

ALL = load_assumptions("physical", memory="all")


def scenario(system="dojo", model="qwen3-235b-a22b", batch=16384, prompt_tokens=0, assumptions=ALL, kv=None, **keys):
    spec = WorkloadSpec(trace={"synthetic": {"prompt_tokens": prompt_tokens}}, batch=batch, **keys)
    system = load_system(system) if isinstance(system, str) else system
    model = load_model(model) if isinstance(model, str) else model
    deployment = DeploymentSpec(precision=PrecisionSpec(kv=kv))
    return Scenario(system, model, assumptions, policy("ep"), spec, batch, deployment=deployment)


def placed(of):
    return place_experts(of.policy, of.model, of.system.dies)


SCENARIO = {
    "name": "laws",
    "systems": [{"like": "h20_cluster", "name": "h20"}],
    "models": ["deepseek-v3"],
    "workload": {
        "trace": {"synthetic": {"prompt_tokens": 0}}, "batch": 4096, "decode_steps": 2, "layers": 2, "context": 900,
    },
    "policies": ["ep"],
    "assumptions": {
        "set": "physical", "execution": "expert_parallel", "gemm": "grouped", "dispatch": "per_rank", "combine": "bf16",
        "transfer_software": "charged", "migration": "free", "capacity": "unbounded",
    },
    "engine": "analytical",
}  # fmt: skip
