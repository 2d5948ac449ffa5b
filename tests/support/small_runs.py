"""Small systems, models and traffic, and engines over them."""

import itertools

import numpy as np

from archsim.engine.demand import build_run_demand
from archsim.engine.engine import EventEngine
from archsim.engine.loop import Replay
from archsim.engine.machine import policy_costs
from archsim.iteration.memory import memory_fit
from archsim.policies.allocation import StepView
from archsim.policies.placement import Placement
from archsim.policies.registry import build_policy, place_experts
from archsim.specs.library import load_assumptions, load_model, load_system
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.scenario import Scenario
from archsim.specs.workload import SyntheticSpec, WorkloadSpec
from archsim.traffic.synthetic import SyntheticTraffic
from support.examples import sampled

STRATEGIES = ("base", "ep", "allo", "allo-paper", "pred", "allo+pred")


BATCH = 600


def small_model(**changes):
    """Without attention, so that its experts alone take HBM; three dense layers, then twelve of experts."""
    whole = load_model("deepseek-v3")
    shape = {"experts": 20, "top_k": 4, "hidden": 1024, "expert_ffn": 512, "shared_ffn": 512, "layers": 15}
    shape |= {"attention": None, "moe_layers": whole.moe_layers.model_copy(update={"last": 14})}
    return whole.model_copy(update=shape | changes)


def small_system(x=3, y=2, **changes):
    system = load_system("dojo")
    update = {"mesh": system.mesh.model_copy(update={"x": x, "y": y})}
    for block, fields in changes.items():
        update[block] = getattr(system, block).model_copy(update=fields)
    return system.model_copy(update=update)


def system_with_room(slices, spec, model):
    """A 3 × 2 mesh whose fullest die has room for that many slices of copies."""
    weights = memory_fit(
        small_system(), model, load_assumptions("physical"), place_experts(spec, model, 6)
    ).demand_bytes
    room_bytes = int(slices * model.hidden * model.expert_ffn)
    return small_system(hbm={"capacity_bytes": int(weights.max()) + room_bytes, "reserved_fraction": 0.0})


# What allocations see of a machine.
SMALL_COSTS = policy_costs(small_system(), small_model())
DOJO_COSTS = policy_costs(load_system("dojo"), load_model("deepseek-v3"))


def policy(name, **parts):
    return PolicySpec(name=name, **(dict(PRESETS[name]) | parts))


def traffic(model, seed=1, decode_steps=3, batch=BATCH):
    return SyntheticTraffic(model, SyntheticSpec(prompt_tokens=2, decode_steps=decode_steps, seed=seed), batch)


def demand_of(model, system, policy_spec, seed=1, decode_steps=3, batch=BATCH, routing=True):
    """``routing``: whether it says which tokens choose which experts, beside how many."""
    source = traffic(model, seed, decode_steps, batch)
    predictor = build_policy(policy_spec).predictor
    return build_run_demand(
        source, batch, decode_steps, 0, origin_dies=system.dies, predictor=predictor, routing=routing,
        shaped_by=policy_spec if policy_spec.shapes_demand else None,
    )  # fmt: skip


def step_view(tokens, first_seen, home, copied_slices, hops, costs, placement=None):
    """What an allocation sees of one layer, each expert at its home or as ``placement`` has it; pairs as hops at the
    costs of a link.
    """
    placement = placement or Placement.of_homes(home, 1, len(hops))
    pair_bytes_per_ns = np.full(hops.shape, costs.link_bytes_per_ns)
    return StepView(
        tokens,
        first_seen,
        placement.home[0],
        copied_slices,
        hops,
        costs,
        0,
        1,
        placement.holds[0],
        hops * costs.hop_ns,
        pair_bytes_per_ns,
    )


def scenario_of(system, model, spec, assumptions, batch=BATCH):
    """The scenario of generated traffic; tests build their own demand."""
    return Scenario(system, model, assumptions, spec, workload_of(batch), batch)


def workload_of(batch):
    return WorkloadSpec(trace={"synthetic": {}}, batch=batch)


def replay(system, model, spec, assumptions, demand, routing=None, engine=EventEngine, **options):
    """A run of ``demand``, at its start."""
    scenario = scenario_of(system, model, spec, assumptions, demand.batch)
    return Replay(engine(scenario, demand.layer_ids, **options), demand, routing)


def engine_of(system, model, spec, assumptions, seed=1):
    """A run of generated traffic, with the routing that a limited heatmap reads."""
    source = traffic(model, seed)
    routing = source.steps(np.arange(BATCH), 3)
    return replay(system, model, spec, assumptions, demand_of(model, system, spec, seed), routing)


CASES = [
    (name, changes)
    for name, changes in itertools.product(
        STRATEGIES,
        (
            {},
            {"contention": "reserved"},
            {"decision_cost": "free", "heatmap_update": "free", "tables": "unbounded"},
            {"llc": "slices"},
            {"activations": "ignored"},
            {"source": "queued"},
            {"reads": "together", "gemm": "calibrated", "copy_writes": "barrier"},
            {"dispatch": "per_token_expert", "combine": "weights_dtype", "transfer_software": "free"},
            {"arbitration": "round_robin"},
            {"rate_updates": "per_round_trip"},
            {"contention": "reserved", "llc": "slices", "activations": "ignored"},
        ),
    )
]


def at_each_commit(case):
    """All strategies once, the one that has all parts under all assumptions, and a few of the other pairs."""
    name, changes = case
    at = CASES.index(case)
    return not changes or name == "allo+pred" or (at % 11 + at // 11) % 6 == 0


SAMPLED = sampled(CASES, at_each_commit)
IDS = [f"{name}-{'+'.join(f'{k}={v}' for k, v in changes.items()) or 'physical'}" for name, changes in CASES]
