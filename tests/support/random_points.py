"""Random small experiments: machines, models, batches, policies and assumptions that an event run takes milliseconds
for.

Point ``i`` is a function of ``i`` alone. Those below ``HELD_OUT`` are for choosing coefficients of the analytical
engine, those from ``HELD_OUT`` on were not looked at for that and are what its errors are stated on.
"""

from typing import Any, NamedTuple

import numpy as np

from archsim.engine.demand import RunDemand, build_run_demand
from archsim.engine.engine import EventEngine
from archsim.iteration.memory import memory_fit
from archsim.machine.fabric import TopologySpec
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.policies.registry import build_policy, place_experts
from archsim.specs.assumptions import AssumptionsSpec
from archsim.specs.library import load_assumptions, load_model, load_system
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.workload import SyntheticSpec
from archsim.traffic.synthetic import SyntheticTraffic
from support.small_runs import replay, workload_of

HELD_OUT = 100_000
POLICIES = ("base", "ep", "allo", "allo-paper", "pred", "allo+pred")
MESHES = ((1, 1), (2, 1), (2, 2), (3, 2), (4, 1), (3, 3), (4, 3), (4, 4), (5, 5), (3, 8))
TOPOLOGIES = ("mesh", "mesh", "mesh", "torus", "ring", "fully_connected", "switch")
STEPS = 3  # decode steps
# Changes to the two named sets, drawn uniformly, so repetition is weight; empty: the named set itself.
VARIANTS = {
    "shared": ({}, {}, {}, {}, {"activations": "ignored"}, {"weights": "routed"}, {"order": "as_created"},
               {"gemm": "tables"},
               {"decision_cost": "free", "heatmap_update": "free", "tables": "unbounded"}),
    "reserved": ({}, {}, {}, {"llc": "segments"}, {"activations": "dispatched", "weights": "all"}),
}  # fmt: skip


class Point(NamedTuple):
    """One run: all inputs of an engine."""

    number: int
    system: SystemSpec
    model: ModelSpec
    policy: PolicySpec
    assumptions: AssumptionsSpec
    demand: RunDemand
    traffic: SyntheticTraffic

    def run(self, engine: type = EventEngine):
        """The outcome of the run on an engine."""
        routing = self.traffic.steps(np.arange(self.demand.batch), STEPS)
        return replay(self.system, self.model, self.policy, self.assumptions, self.demand, routing, engine).run()

    @property
    def name(self) -> str:
        mesh = self.system.mesh
        return (
            f"#{self.number} {mesh.x}x{mesh.y} {self.system.topology.name} {self.model.experts}/{self.model.top_k} "
            f"experts batch {self.demand.batch} "
            f"{self.policy.name} {self.assumptions.label}"
        )


def random_point(number: int, contention: str) -> Point:
    """Point ``number`` under ``contention: shared`` (from ``physical``) or ``reserved`` (from ``published``)."""
    rng = np.random.default_rng([number, len(contention)])
    model = _model(rng)
    batch = int(log_uniform(rng, 4, 4096))
    variants = VARIANTS[contention]
    named = "physical" if contention == "shared" else "published"
    assumptions = load_assumptions(named, **variants[rng.integers(len(variants))])
    name = POLICIES[rng.integers(len(POLICIES))]
    policy = PolicySpec(name=name, **PRESETS[name])
    system = _system(rng, model, assumptions, policy, batch)
    # Drawn separately, so that points are otherwise as before topologies were added.
    topology = TOPOLOGIES[np.random.default_rng([number, len(contention), 1]).integers(len(TOPOLOGIES))]
    system = system.model_copy(update={"topology": TopologySpec(name=topology)})
    spec = SyntheticSpec(
        prompt_tokens=int(rng.integers(0, 3)),
        decode_steps=STEPS,
        seed=number,
        popularity_skew=float(rng.uniform(0, 1.2)),
    )
    traffic = SyntheticTraffic(model, spec, batch)
    return Point(number, system, model, policy, assumptions, routed_demand(traffic, policy, system, STEPS), traffic)


def routed_demand(traffic: SyntheticTraffic, policy: PolicySpec, system: SystemSpec, steps: int) -> RunDemand:
    """The demand of generated traffic, with the routing of single tokens."""
    predictor = build_policy(policy).predictor
    return build_run_demand(
        traffic, traffic.requests, steps, 0, origin_dies=system.dies, predictor=predictor, routing=True, threads=1
    )


def log_uniform(rng, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _model(rng) -> ModelSpec:
    experts = int(rng.choice([8, 16, 32, 48, 64, 128]))
    shape: dict[str, Any] = {
        "experts": experts,
        "top_k": int(rng.integers(1, min(9, experts))),
        "hidden": int(rng.choice([512, 1024, 2048, 4096, 7168])),
        "expert_ffn": int(rng.choice([256, 512, 1024, 2048, 4096])),
        "shared_experts": int(rng.integers(0, 3)),
    }
    layers = 3 + int(rng.integers(1, 4))  # the first three are dense
    deepseek = load_model("deepseek-v3")
    shape |= {"layers": layers, "moe_layers": deepseek.moe_layers.model_copy(update={"last": layers - 1})}
    shape["shared_ffn"] = shape["expert_ffn"] * int(rng.integers(1, 3))
    return deepseek.model_copy(update=shape)


def _system(rng, model, assumptions, policy, batch) -> SystemSpec:
    """A system that fits the model, with room for some cached copies."""
    system = load_system("dojo")
    x, y = MESHES[rng.integers(len(MESHES))]
    changes = {
        "mesh": {"x": x, "y": y},
        "hbm": {"bandwidth_bytes_per_s": log_uniform(rng, 0.5e12, 8e12), "latency_ns": log_uniform(rng, 100, 600)},
        "d2d": {"bandwidth_bytes_per_s": log_uniform(rng, 0.1e12, 4e12), "hop_latency_ns": log_uniform(rng, 20, 400)},
        "llc": {"capacity_bytes": 2 ** int(rng.integers(22, 28))},
        "compute": {"peak_flop_per_s": log_uniform(rng, 1e14, 5e15), "dtype": str(rng.choice(["fp8", "fp16"]))},
    }
    system = changed(system, changes)
    return with_room(rng, system, model, assumptions, policy, batch)


def with_room(rng, system, model, assumptions, policy, batch) -> SystemSpec:
    """The system with HBM for the model, and for some copies beside it."""
    placement = place_experts(policy, model, system.dies)
    needed = int(memory_fit(system, model, assumptions, placement, workload_of(batch), batch).demand_bytes.max())
    capacity = int(max(needed, 10**6) / (1 - system.hbm.reserved_fraction) * rng.uniform(1.01, 3))
    return changed(system, {"hbm": {"capacity_bytes": capacity}})


def changed(system: SystemSpec, changes: dict[str, dict[str, Any]]) -> SystemSpec:
    return system.model_copy(
        update={block: getattr(system, block).model_copy(update=of) for block, of in changes.items()}
    )
