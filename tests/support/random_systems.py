"""Random small systems that the interpreter takes a fraction of a second for, and ones with as many experts as models
have, on the decision hardware as shipped: system ``i`` is a function of ``i``.
"""

import numpy as np

from archsim.engine.engine import EventEngine
from archsim.engine.interpreted.blocks import ReturnPath
from archsim.engine.interpreted.engine import InterpretedEngine
from archsim.machine.decision import DecisionSpec
from archsim.machine.fabric import TopologySpec
from archsim.model.attention import LayerSet
from archsim.specs.assumptions import ASSUMPTIONS, ONLY_OF_GROUPS
from archsim.specs.library import load_assumptions
from archsim.specs.policies import PRESETS
from archsim.traffic.trace import draw_requests
from support.small_runs import demand_of, policy, replay, small_model, small_system, traffic

CHOICES = {
    "contention": ("shared", "shared", "reserved"), "arbitration": ("fair", "fair", "round_robin"),
    "reads": ("in_order", "together"), "activations": ("dispatched", "dispatched", "ignored"),
    "dispatch": ("per_rank", "per_token_expert"), "combine": ("bf16", "weights_dtype"),
    "transfer_software": ("charged", "free"), "decision_cost": ("charged", "free"),
    "heatmap_update": ("limited", "free"), "weights": ("all", "routed"), "llc": ("segments", "slices"),
    "source": ("interleaved", "queued"), "gemm": ("roofline", "calibrated"),
    "numbering": ("row_major", "column_major"), "order": ("local_first", "as_created"),
    "tables": ("finite", "unbounded"), "copy_writes": ("barrier", "background"), "ties": ("sequence", "heapq"),
    "rate_updates": ("instant", "instant", "per_round_trip"),
}  # fmt: skip
POLICIES = ("base", "ep", "allo", "allo-paper", "pred", "allo+pred")
TOPOLOGIES = ("mesh", "mesh", "torus", "ring", "fully_connected", "switch")
STEPS = 2


def random_system(number):
    """(system, model, policy, assumptions, batch)."""
    rng = np.random.default_rng([number, 24])
    published = rng.random() < 0.15
    changes = {name: str(rng.choice(values)) for name, values in CHOICES.items()}
    if changes["contention"] == "reserved":
        changes |= {"arbitration": "fair", "reads": "together"}
    if changes["arbitration"] == "round_robin":
        changes["ties"] = "sequence"
    assumptions = load_assumptions("published") if published else load_assumptions("physical", **changes)
    experts = int(rng.integers(2, 9))
    first = int(rng.integers(0, 2))
    model = small_model(
        experts=experts,
        top_k=int(rng.integers(1, min(4, experts) + 1)),
        hidden=int(rng.choice([256, 512, 1024])),
        expert_ffn=int(rng.choice([256, 384, 640])),
        shared_ffn=384,
        shared_experts=int(rng.integers(0, 2)),
        moe_layers=LayerSet(first=first, last=first + 1),
    )
    slice_bytes = model.hidden * model.expert_ffn
    x, y = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    system = small_system(
        x,
        y,
        hbm={"bandwidth_bytes_per_s": rng.uniform(0.2, 4) * 1e12, "latency_ns": float(rng.integers(50, 500))},
        d2d={"bandwidth_bytes_per_s": rng.uniform(0.1, 3) * 1e12, "hop_latency_ns": float(rng.integers(20, 400))},
        llc={
            "capacity_bytes": int(slice_bytes * rng.uniform(1.5, 12)),
            "segment_bytes": 2 ** int(rng.integers(15, 19)),
        },
        decision={"atu_entries": int(rng.integers(1, 8))},
    )
    name = TOPOLOGIES[rng.integers(len(TOPOLOGIES))]
    if changes["arbitration"] == "round_robin" and name in ("torus", "ring"):
        name = "mesh"  # no steady state on these
    launch = str(rng.choice(["local_cp", "gpu"]))
    system = system.model_copy(update={"topology": TopologySpec(name=name), "launch": launch})
    return system, model, policy(str(rng.choice(POLICIES))), assumptions, int(rng.integers(2, 24))


# Values of assumptions that the interpreted engine or a model without attention refuses; all others are drawn.
REFUSED = {
    "execution": ("expert_parallel",), "arbitration": ("head_of_line",), "dispatch": ONLY_OF_GROUPS, "memory": ("all",),
}  # fmt: skip
LARGE = (  # (mesh, experts)
    ((2, 2), 64), ((3, 2), 64), ((3, 3), 64), ((4, 3), 64), ((5, 5), 64), ((3, 3), 128), ((5, 5), 128), ((4, 3), 256),
)  # fmt: skip
OVERTAKEN = (10, 14, 16, 18, 30, 39, 41, 45)  # large systems whose bits come before slices that left earlier
READERS = ("first_seen", "isca26", "paper", "lp", "copy_aware")  # allocations that read weights from other dies
PREDICTIONS = (
    "heatmap", "heatmap", {"name": "heatmap", "top_fraction": 0.6}, {"name": "heatmap", "top_n": 16},
    {"name": "heatmap", "admission": "reread"},
)  # fmt: skip


def random_large_system(number):
    """The same with 64 to 256 experts and the decision hardware as shipped, whose bits come while slices are under way:
    every policy, most with a predictor, and every value of every assumption.
    """
    rng = np.random.default_rng([number, 53])
    changes = {"contention": ("shared", "reserved")[number % 2], "memory": "experts"}
    for field, values in ASSUMPTIONS.items():
        if field not in changes and rng.random() < 0.2:
            changes[field] = str(rng.choice([each for each in values if each not in REFUSED.get(field, ())]))
    named = str(rng.choice(["physical", "physical", "published"]))
    if named == "published" and rng.random() < 0.8:
        changes |= {"decision_cost": "charged", "heatmap_update": "limited"}
    assumptions = load_assumptions(named, **changes)
    (x, y), experts = LARGE[rng.integers(len(LARGE))]
    model = small_model(
        experts=experts, top_k=int(rng.integers(2, 9)), hidden=int(rng.choice([512, 1024, 2048])),
        expert_ffn=int(rng.choice([384, 768, 1536])), shared_ffn=384, shared_experts=int(rng.integers(0, 2)),
        layers=5, moe_layers=LayerSet(first=4, last=4),
    )  # fmt: skip
    slice_bytes = model.hidden * model.expert_ffn
    system = small_system(
        x,
        y,
        hbm={"bandwidth_bytes_per_s": rng.uniform(0.5, 4) * 1e12},
        d2d={"bandwidth_bytes_per_s": rng.uniform(0.2, 2) * 1e12},
        llc={"capacity_bytes": int(slice_bytes * rng.uniform(1.5, 12)), "segment_bytes": 2**17},
    )
    name = TOPOLOGIES[rng.integers(len(TOPOLOGIES))]
    if assumptions.arbitration == "round_robin" and name in ("torus", "ring"):
        name = "mesh"  # no steady state on these
    decision = DecisionSpec(executor=str(rng.choice(["fsm", "fsm", "fsm", "firmware"])))
    system = system.model_copy(update={"topology": TopologySpec(name=name), "decision": decision})
    parts = {"prediction": PREDICTIONS[rng.integers(len(PREDICTIONS))]} if rng.random() < 0.9 else {}
    if number // 2 % 3:
        preset, parts = "base", parts | {"allocation": READERS[rng.integers(len(READERS))]}
    else:
        preset = tuple(PRESETS)[number // 6 % len(PRESETS)]
    return system, model, policy(preset, **parts), assumptions, int(rng.integers(8, experts))


def in_rtl(number):
    """A large system whose state machine is in RTL."""
    system, *others = random_large_system(number)
    fsm = system.decision.fsm.model_copy(update={"implementation": "rtl"})
    return system.model_copy(update={"decision": DecisionSpec(fsm=fsm)}), *others


def run_system(number, engine, drawn=random_system, **options):
    """The outcome of a random system on an engine."""
    system, model, spec, assumptions, batch = drawn(number)
    demand = demand_of(model, system, spec, seed=number, decode_steps=STEPS, batch=batch)
    routing = traffic(model, number, STEPS, batch).steps(draw_requests(batch, batch, 0), STEPS)
    return replay(system, model, spec, assumptions, demand, routing, engine, **options).run()


def assert_kernels_equal_interpreter(number, drawn=random_system):
    """Every column of a random system, the tables that its steps leave and its decisions: compiled and interpreted."""
    exact = drawn(number)[3].contention == "reserved"
    compiled, interpreted = (run_system(number, engine, drawn) for engine in (EventEngine, InterpretedEngine))
    assert_equal_runs(compiled, interpreted, exact)


class WatchedPath(ReturnPath):
    """Counts the predicted slices that left their home before the bits were there and arrived after."""

    overtaken = 0

    def serve(self, request, now):
        self.asked = getattr(self, "asked", {}) | {(request.die, request.key): now}
        return super().serve(request, now)

    def finish(self, request, now):
        is_late = self.asked.pop((request.die, request.key)) < self.memory.bits_ready_ns <= now
        WatchedPath.overtaken += is_late and bool(self.memory.cp_en[request.die, request.expert])
        return super().finish(request, now)


def assert_equal_runs(compiled, interpreted, exact):
    close = np.testing.assert_array_equal if exact else near
    sums = nearly if exact else near  # of floats, in another order
    assert compiled.step_ns.sum() > 0
    close(interpreted.step_ns, compiled.step_ns, "step_ns")
    np.testing.assert_array_equal(interpreted.load, compiled.load)
    for name in compiled.tally._fields:
        if name == "events":
            continue
        of_compiled, of_interpreted = getattr(compiled.tally, name), getattr(interpreted.tally, name)
        for column in of_compiled.dtype.names or (None,):
            message = f"{name}.{column}" if column else name
            one, other = (of if column is None else of[column] for of in (of_interpreted, of_compiled))
            (sums if one.dtype.kind == "f" else close)(one, other, message)
    for name in ("present", "was_read", "slices", "room"):
        np.testing.assert_array_equal(
            getattr(interpreted.memory.copies, name), getattr(compiled.memory.copies, name), name
        )
    np.testing.assert_array_equal(interpreted.memory.llc_tags, compiled.memory.llc_tags)
    np.testing.assert_array_equal(interpreted.memory.atu.misses, compiled.memory.atu.misses)
    close(np.array(interpreted.decision.by_step), np.array(compiled.decision.by_step), "decision")


def nearly(one, other, message):
    np.testing.assert_allclose(one, other, rtol=1e-14, err_msg=message)


def near(one, other, message):
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-3, err_msg=message)
