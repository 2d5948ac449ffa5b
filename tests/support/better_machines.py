"""Random runs and better machines for them: what the law of monotonicity holds on.

Case ``n`` and the ``k``-th better machine of it are functions of the numbers alone. The plans of a case, its
predictions and its traffic are those of the machine as drawn; a better machine has one or more of them improved:
bandwidths (HBM, D2D, levels), peak, capacities (HBM, LLC), latencies, efficiencies, launch.
"""

from typing import NamedTuple

import numpy as np

from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.demand import RunDemand
from archsim.engine.engine import EventEngine
from archsim.machine.fabric import FabricSpec, MeshSpec, TopologySpec
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.specs.assumptions import AssumptionsSpec
from archsim.specs.library import load_assumptions, load_model, load_system
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.workload import SyntheticSpec
from archsim.traffic.synthetic import SyntheticTraffic
from support.random_points import changed, log_uniform, routed_demand, with_room
from support.small_runs import replay

STEPS = 2  # decode steps
POLICIES = ("base", "base", "ep", "ep", "allo", "allo-paper", "pred", "allo+pred")
MESHES = ((1, 1), (2, 1), (2, 2), (3, 2), (4, 1), (3, 3), (4, 3), (4, 4))
TOPOLOGIES = ("mesh", "mesh", "mesh", "torus", "ring", "fully_connected", "switch")
SHAPES = (  # (hidden, expert FFN, experts, top-k, shared FFN)
    (1024, 512, 16, 4, 512), (2048, 768, 128, 8, 0), (2048, 1024, 64, 8, 0), (4096, 1536, 128, 8, 0),
    (4096, 14336, 8, 2, 0), (5120, 8192, 16, 1, 8192), (7168, 2048, 64, 8, 2048), (2880, 2880, 32, 4, 0),
)  # fmt: skip
# Drawn uniformly; repetition is weight.
STREAMING = (
    {}, {}, {}, {"activations": "ignored"}, {"weights": "routed"}, {"order": "as_created"}, {"tables": "unbounded"},
    {"dispatch": "per_token_expert", "combine": "weights_dtype"}, {"transfer_software": "free"}, {"source": "queued"},
    {"source": "queued", "activations": "ignored"}, {"copy_writes": "barrier"}, {"capacity": "unbounded"},
    {"reads": "together"}, {"llc": "slices"},
)  # fmt: skip
GROUPS = ({}, {}, {"dispatch": "per_token_expert"}, {"overlap": "shared_expert"}, {"overlap": "two_batch"},
          {"transfer_software": "free"})  # fmt: skip
GEMM = ("roofline", "calibrated", "grouped", "tables")
NODES = ("h100_node", "h200_node", "b200_node", "h100_cluster", "h200_cluster")


class Case(NamedTuple):
    """One run, and what its better machines keep."""

    number: int
    system: SystemSpec
    model: ModelSpec
    policy: PolicySpec
    assumptions: AssumptionsSpec
    demand: RunDemand
    traffic: SyntheticTraffic

    @property
    def name(self) -> str:
        system, model = self.system, self.model
        return (
            f"#{self.number} {system.shape} {system.compute.dtype} {system.launch} {model.hidden}x{model.expert_ffn} "
            f"{model.experts}/{model.top_k} batch {self.demand.batch} {self.policy.name} {self.assumptions.label}"
        )

    def run(self, engine: type = EventEngine, system: SystemSpec | None = None, plans: list | None = None) -> float:
        """Nanoseconds of prefill and decode. ``plans``: taken from it, or, where empty, written to it."""
        routing = self.traffic.steps(np.arange(self.demand.batch), STEPS)
        run = replay(system or self.system, self.model, self.policy, self.assumptions, self.demand, routing, engine)
        if plans:
            given = iter(plans)
            run.engine.plan = lambda *_: next(given)
        elif plans is not None:
            decide = run.engine.plan

            def remember(*asked):
                plans.append(decide(*asked))
                return plans[-1]

            run.engine.plan = remember
        outcome = run.run()
        return outcome.prefill_ns + outcome.decode_ns


def random_case(number: int, execution: str = "weight_streaming", gemm: str | None = None) -> Case:
    """Case ``number``; ``gemm``: None for any."""
    rng = np.random.default_rng([number, len(execution)])
    streaming = execution == "weight_streaming"
    gemm = (gemm or str(rng.choice(GEMM))) if streaming else "grouped"
    variant = dict(_one(rng, STREAMING if streaming else GROUPS))
    free = {"decision_cost": "free", "heatmap_update": "free", "execution": execution, "memory": "experts"}
    # One carrier: with more HBM or LLC a machine may need a second, whose links are slower, and is another machine.
    assumptions = load_assumptions("physical", **({"carriers": "one"} | free | {"gemm": gemm} | variant))
    hidden, ffn, experts, top_k, shared = _one(rng, SHAPES)
    if rng.random() < 0.5:
        experts = int(_one(rng, [each for each in (8, 16, 32, 64) if each > top_k]))
    model = _model(rng, hidden, ffn, experts, top_k, shared)
    name = str(_one(rng, POLICIES if streaming else ("ep", "ep", "base")))
    policy = PolicySpec(name=name, **PRESETS[name])
    batch = int(log_uniform(rng, 1, 4096))
    system = _system(rng, model) if streaming or rng.random() < 0.4 else _node(rng)
    if not streaming and system.fabric is None:
        system = system.model_copy(update={"launch": "local_cp"})
    system = with_room(rng, system, model, assumptions, policy, batch)
    prompt_tokens, skew = int(rng.integers(0, 3)), float(rng.uniform(0, 1.2))
    spec = SyntheticSpec(prompt_tokens=prompt_tokens, decode_steps=STEPS, seed=number, popularity_skew=skew)
    traffic = SyntheticTraffic(model, spec, batch)
    demand = routed_demand(traffic, policy, system, STEPS)
    return Case(number, system, model, policy, assumptions, demand, traffic)


def better(case: Case, k: int) -> tuple[str, SystemSpec]:
    """The ``k``-th better machine of a case, and what is better."""
    rng = np.random.default_rng([case.number, k, 7])
    system, listed = case.system, []
    ways = list(IMPROVEMENTS)
    for _ in range(1 if rng.random() < 0.85 else 3):
        what = ways[rng.integers(len(ways))]
        factor = float(_one(rng, (1.05, 1.3, 2.0, 4.0, 20.0, 1000.0)))
        system = improved(system, what, factor)
        listed.append(f"{what} x{factor:g}")
    return ", ".join(listed), system


def slower_runs(case: Case, machines: int, slower: float) -> list[tuple[float, str, str]]:
    """(by how much, engine and what is better, case) of the first better machines on which it is slower by more."""
    found = []
    for engine in (EventEngine, AnalyticalEngine):
        plans: list = []
        before = case.run(engine, None, plans)
        for k in range(machines):
            what, system = better(case, k)
            after = before if system == case.system else case.run(engine, system, plans)
            if after > before * (1 + slower):
                found.append((after / before - 1, f"{engine.__name__}: {what}", case.name))
    return found


def improved(system: SystemSpec, what: str, factor: float) -> SystemSpec:
    """A system with one property better by ``factor`` or as far as it goes."""
    if what == "launch":
        return system.model_copy(update={"launch": "local_cp"}) if system.fabric is None else system
    if what == "clock":
        fsm = system.decision.fsm.model_copy(update={"clock_hz": system.decision.fsm.clock_hz * factor})
        return changed(system, {"decision": {"fsm": fsm, "local_clock_hz": system.decision.local_clock_hz * factor}})
    if what == "levels":
        if system.fabric is None:
            return system
        levels = [
            level.model_copy(update={field: getattr(level, field) and getattr(level, field) * factor})
            for level in system.fabric.levels
            for field in ("bandwidth_bytes_per_s",)
        ]
        return system.model_copy(update={"fabric": system.fabric.model_copy(update={"levels": tuple(levels)})})
    block, field = what.split(".")
    value = getattr(getattr(system, block), field)
    if what in LATENCIES:
        found = value / factor
    elif field == "efficiency":
        found = min(1.0, value * factor)
    else:
        found = type(value)(value * factor)
    return changed(system, {block: {field: found}})


LATENCIES = ("hbm.latency_ns", "d2d.hop_latency_ns", "llc.hit_ns", "llc.miss_ns", "llc.write_ns")
IMPROVEMENTS = (
    "hbm.bandwidth_bytes_per_s", "hbm.bandwidth_bytes_per_s", "hbm.efficiency", "hbm.capacity_bytes",
    "d2d.bandwidth_bytes_per_s", "d2d.bandwidth_bytes_per_s", "d2d.efficiency", "levels", "launch", "clock",
    "compute.peak_flop_per_s", "compute.peak_flop_per_s", "compute.efficiency", "llc.capacity_bytes",
    "llc.capacity_bytes", "hbm.latency_ns", "d2d.hop_latency_ns", "llc.hit_ns", "llc.miss_ns", "llc.write_ns",
)  # fmt: skip


def _one(rng, of):
    return of[rng.integers(len(of))]


def _model(rng, hidden, ffn, experts, top_k, shared) -> ModelSpec:
    layers = 3 + int(rng.integers(1, 3))  # the first three are dense
    deepseek = load_model("deepseek-v3")
    return deepseek.model_copy(
        update={
            "hidden": hidden, "expert_ffn": ffn, "experts": experts, "top_k": top_k, "layers": layers,
            "shared_experts": int(shared > 0), "shared_ffn": shared or ffn, "attention": None,
            "expert_groups": 1, "top_groups": 1,
            "moe_layers": deepseek.moe_layers.model_copy(update={"last": layers - 1}),
        }
    )  # fmt: skip


def _system(rng, model) -> SystemSpec:
    system = load_system("dojo")
    x, y = _one(rng, MESHES)
    dtype = str(_one(rng, ("fp8", "fp8_block", "bf16")))
    slice_bytes = model.hidden * model.expert_ffn * (2 if dtype == "bf16" else 1)
    segment = 2 ** int(rng.integers(16, 23))
    llc = max(segment, int(slice_bytes * log_uniform(rng, 0.2, 6 * model.experts / (x * y) + 2)))
    changes = {
        "hbm": {
            "bandwidth_bytes_per_s": log_uniform(rng, 0.5e12, 8e12), "latency_ns": log_uniform(rng, 1, 2000),
            "efficiency": float(rng.uniform(0.5, 1)),
        },
        "d2d": {
            "bandwidth_bytes_per_s": log_uniform(rng, 0.1e12, 4e12), "hop_latency_ns": log_uniform(rng, 1, 1000),
            "efficiency": float(rng.uniform(0.5, 1)),
        },
        "llc": {
            "capacity_bytes": llc, "segment_bytes": segment, "hit_ns": log_uniform(rng, 1, 300),
            "miss_ns": log_uniform(rng, 1, 300), "write_ns": log_uniform(rng, 1, 300),
        },
        "compute": {
            "peak_flop_per_s": log_uniform(rng, 1e14, 5e15), "dtype": dtype, "efficiency": float(rng.uniform(0.3, 1)),
        },
    }  # fmt: skip
    system = changed(system, changes)
    launch = str(_one(rng, ("local_cp", "local_cp", "gpu")))
    topology = str(_one(rng, TOPOLOGIES))
    update = {"mesh": MeshSpec(x=x, y=y), "topology": TopologySpec(name=topology), "launch": launch}
    if rng.random() < 0.15:
        levels = [{"switch": x * y}, {_one(rng, ("switch", "ring")): 2, "bandwidth": "100 GB/s", "hop_latency": "2 us"}]
        update |= {"mesh": None, "topology": TopologySpec(), "fabric": FabricSpec.model_validate({"levels": levels})}
        update["launch"] = "local_cp"
    return system.model_copy(update=update)


def _node(rng) -> SystemSpec:
    system = load_system(str(_one(rng, NODES)))
    return changed(
        system,
        {"hbm": {"bandwidth_bytes_per_s": system.hbm.bandwidth_bytes_per_s * log_uniform(rng, 0.5, 2)},
         "compute": {"peak_flop_per_s": system.compute.peak_flop_per_s * log_uniform(rng, 0.5, 2)}},
    )  # fmt: skip
