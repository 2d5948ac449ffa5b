"""Clusters of GPUs, demands on them, and engines that run single steps."""

import numpy as np

from archsim.engine.engine import EventEngine
from archsim.machine.system import SystemSpec
from archsim.specs.library import load_assumptions, load_model, load_system
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.scenario import Scenario
from archsim.specs.workload import WorkloadSpec
from archsim.traffic.step_demand import StepDemand

VALUES = {
    "execution": "expert_parallel", "gemm": "grouped", "dispatch": "per_rank", "combine": "bf16",
    "transfer_software": "charged", "memory": "experts", "capacity": "unbounded", "decision_cost": "free",
}  # fmt: skip
KERNELS = {"per_rank": "normal", "per_token_expert": "low_latency"}


def assumptions_of(**changes):
    return load_assumptions("physical", **(VALUES | changes))


def cluster(nodes=None, per="gpu", nic="50 GB/s", law="h100/inter_node", name="h100_node", **changes):
    """Nodes of a shipped system behind one more level; None: the node alone."""
    given = load_system(name).model_dump(mode="json", by_alias=True) | changes
    if nodes is not None:
        outer = {"switch": nodes, "per": per, "bandwidth": nic, "hop_latency": "2 us"}
        given["fabric"]["levels"].append(outer | ({"law": law} if law else {}))
    return SystemSpec.model_validate(given)


def engine_of(system, model="deepseek-v3", engine=EventEngine, policy="ep", **changes):
    model = load_model(model) if isinstance(model, str) else model
    workload = WorkloadSpec(trace={"synthetic": {}}, batch=system.dies)
    spec = PolicySpec(name="p", **(PRESETS[policy] if isinstance(policy, str) else policy))
    return engine(Scenario(system, model, assumptions_of(**changes), spec, workload, system.dies))


def demand_of(model, dies, tokens, skew=0.0, seed=None):
    """``tokens`` of every GPU. Without a seed all experts are equally popular, what is left over in turn; ``skew``:
    standard deviation of the logarithm of an expert's popularity.
    """
    if seed is None:
        each, over = divmod(tokens * model.top_k, model.experts)
        origins = np.full((dies, model.experts), each)
        turn = 101 * (np.arange(dies)[:, None] * over + np.arange(over)) % model.experts  # spread over ranks
        np.put_along_axis(origins, turn, each + 1, axis=1)
    else:
        rng = np.random.default_rng(seed)
        popularity = np.exp(skew * rng.standard_normal(model.experts))
        origins = rng.multinomial(tokens * model.top_k, popularity / popularity.sum(), size=dies)
    total = origins.sum(axis=0).astype(np.int32)
    order = np.where(total > 0, np.arange(model.experts), -1).astype(np.int16)
    return StepDemand(0, total, np.zeros_like(total), order, model.top_k, origins.astype(np.int32))


def step(run, demand):
    """(ns, ns of dispatch, shared experts, experts and combine) of one step."""
    before = run.tally.part_ns.copy()
    ns = run.step(0, demand, 0.0).step_ns
    return ns, run.tally.part_ns - before
