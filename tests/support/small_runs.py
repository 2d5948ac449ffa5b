"""Small systems, models and traffic, and engines over them."""

import itertools

import numpy as np

from archsim.engine.loop import EventEngine
from archsim.policies.registry import build_policy
from archsim.specs.loading.library import load_model, load_system
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.scenario import Scenario
from archsim.specs.workload import SyntheticSpec, WorkloadSpec
from archsim.workload.demand import build_demand
from archsim.workload.generated.synthetic import SyntheticTraffic

STRATEGIES = ("base", "ep", "allo", "allo-paper", "pred", "allo+pred")


BATCH = 600


def small_model(**changes):
    shape = {"experts": 20, "top_k": 4, "hidden": 1024, "expert_ffn": 512, "shared_ffn": 512, "layers": 5}
    return load_model("deepseek-v3").model_copy(update=shape | changes)


def small_system(x=3, y=2, **changes):
    system = load_system("dojo")
    update = {"mesh": system.mesh.model_copy(update={"x": x, "y": y})}
    for block, fields in changes.items():
        update[block] = getattr(system, block).model_copy(update=fields)
    return system.model_copy(update=update)


def policy(name, **parts):
    return PolicySpec(name=name, **(dict(PRESETS[name]) | parts))


def traffic(model, seed=1, decode_steps=3, batch=BATCH):
    return SyntheticTraffic(model, SyntheticSpec(prompt_tokens=2, decode_steps=decode_steps, seed=seed), batch)


def demand_of(model, system, policy_spec, seed=1, decode_steps=3, batch=BATCH):
    source = traffic(model, seed, decode_steps, batch)
    predictor = build_policy(policy_spec).predictor
    return build_demand(source, batch, decode_steps, 0, origin_dies=system.dies, predictor=predictor)


def scenario_of(system, model, spec, assumptions, batch=BATCH):
    """The scenario of generated traffic; demands of tests come from elsewhere."""
    workload = WorkloadSpec(trace={"synthetic": {}}, batch=batch)
    return Scenario(system, model, assumptions, spec, workload, batch)


def replay(system, model, spec, assumptions, demand, routing=None, engine=EventEngine, **options):
    """An engine at the beginning of a run of ``demand``."""
    return engine(scenario_of(system, model, spec, assumptions, demand.batch), demand, routing, **options)


def engine_of(system, model, spec, assumptions, seed=1):
    """The engine on generated traffic, with the routing that a limited heatmap reads."""
    source = traffic(model, seed)
    routing = source.steps(np.arange(BATCH), 3)
    return replay(system, model, spec, assumptions, demand_of(model, system, spec, seed), routing)


CASES = [
    (name, changes)
    for name, changes in itertools.product(
        STRATEGIES,
        ({}, {"contention": "reserved"}, {"decision_cost": "free", "heatmap_update": "free", "tables": "unbounded"}, {"llc": "slices"}, {"activations": "ignored"}, {"source": "queued"},
         {"arbitration": "round_robin"}, {"contention": "reserved", "llc": "slices", "activations": "ignored"}),
    )
]


IDS = [f"{name}-{'+'.join(f'{k}={v}' for k, v in changes.items()) or 'physical'}" for name, changes in CASES]
