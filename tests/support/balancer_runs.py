"""Small runs of every balancer, on a mesh and on a switch."""

import numpy as np

from archsim.engine.demand import build_run_demand
from archsim.engine.engine import EventEngine
from archsim.machine.fabric import TopologySpec
from archsim.specs.library import load_assumptions
from archsim.specs.policies import PRESETS
from support.small_runs import policy, replay, small_model, small_system, traffic

BATCH, STEPS = 48, 2
MODEL = small_model(layers=5, experts=16)
MODEL = MODEL.model_copy(update={"moe_layers": MODEL.moe_layers.model_copy(update={"last": 4})})  # two of them
WAFER = small_system(hbm={"capacity_bytes": 10**12})
SWITCH = WAFER.model_copy(update={"topology": TopologySpec(name="switch")})
OTHERS = ("base", "allo", "allo-paper", "allo-lp", "pred", "allo+pred")
# Not rules that see single tokens, which `replay` does not keep (tests/policies/test_relations.py has their cases).
BALANCERS = [name for name in PRESETS if name not in OTHERS and not policy(name).needs_routing("rebalancing")]


def run_of(name, system=WAFER, engine=EventEngine, parts=None, **assumptions):
    spec = policy(name, **(parts or {}))
    source = traffic(MODEL, decode_steps=STEPS, batch=BATCH)
    shaped_by = spec if spec.shapes_demand else None
    demand = build_run_demand(source, BATCH, STEPS, 0, origin_dies=system.dies, shaped_by=shaped_by)
    chosen = load_assumptions("physical", **assumptions)
    routing = source.steps(np.arange(BATCH), STEPS)
    return replay(system, MODEL, spec, chosen, demand, routing, engine)
