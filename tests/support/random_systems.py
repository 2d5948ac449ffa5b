"""Random small systems that the interpreter takes a fraction of a second for: system ``i`` is a function of ``i``."""

import numpy as np

from archsim.engine.engine import EventEngine
from archsim.engine.interpreted.engine import InterpretedEngine
from archsim.specs.fabric import TopologySpec
from archsim.specs.library import load_assumptions
from archsim.specs.model import LayerSet
from archsim.workload.trace import draw_requests
from support.small_runs import demand_of, policy, replay, small_model, small_system, traffic

CHOICES = {
    "contention": ("shared", "shared", "reserved"), "arbitration": ("fair", "fair", "round_robin"),
    "reads": ("in_order", "together"), "activations": ("dispatched", "dispatched", "ignored"),
    "dispatch": ("per_rank", "per_token_expert"), "combine": ("bf16", "weights_dtype"),
    "transfer_software": ("charged", "free"), "decision_cost": ("charged", "free"),
    "heatmap_update": ("limited", "free"), "weights": ("all", "routed"), "llc": ("segments", "slices"),
    "source": ("interleaved", "queued"), "gemm": ("roofline", "calibrated"), "numbering": ("row_major", "column_major"),
    "order": ("local_first", "as_created"), "tables": ("finite", "unbounded"), "copy_writes": ("barrier", "background"),
    "ties": ("sequence", "heapq"), "rate_updates": ("instant", "instant", "per_round_trip"),
}
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
        experts=experts, top_k=int(rng.integers(1, min(4, experts) + 1)), hidden=int(rng.choice([256, 512, 1024])),
        expert_ffn=int(rng.choice([256, 384, 640])), shared_ffn=384, shared_experts=int(rng.integers(0, 2)),
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
            "capacity_bytes": int(slice_bytes * rng.uniform(1.5, 12)), "segment_bytes": 2 ** int(rng.integers(15, 19))
        },
        decision={"atu_entries": int(rng.integers(1, 8))},
    )
    name = TOPOLOGIES[rng.integers(len(TOPOLOGIES))]
    if changes["arbitration"] == "round_robin" and name in ("torus", "ring"):
        name = "mesh"  # no steady state on these
    launch = str(rng.choice(["local_cp", "gpu"]))
    system = system.model_copy(update={"topology": TopologySpec(name=name), "launch": launch})
    return system, model, policy(str(rng.choice(POLICIES))), assumptions, int(rng.integers(2, 24))


def run_system(number, engine, **options):
    """The outcome of a random system on an engine."""
    system, model, spec, assumptions, batch = random_system(number)
    demand = demand_of(model, system, spec, seed=number, decode_steps=STEPS, batch=batch)
    routing = traffic(model, number, STEPS, batch).steps(draw_requests(batch, batch, 0), STEPS)
    return replay(system, model, spec, assumptions, demand, routing, engine, **options).run()


def assert_kernels_equal_interpreter(number):
    """Every column of a random system, the tables that its steps leave and its decisions: compiled and interpreted."""
    exact = random_system(number)[3].contention == "reserved"
    compiled, interpreted = (run_system(number, engine) for engine in (EventEngine, InterpretedEngine))
    assert_equal_runs(compiled, interpreted, exact)


def assert_equal_runs(compiled, interpreted, exact):
    close = np.testing.assert_array_equal if exact else near
    assert compiled.step_ns.sum() > 0
    close(interpreted.step_ns, compiled.step_ns, "step_ns")
    np.testing.assert_array_equal(interpreted.load, compiled.load)
    for name in compiled.tally._fields:
        if name == "events":
            continue
        of_compiled, of_interpreted = getattr(compiled.tally, name), getattr(interpreted.tally, name)
        for column in of_compiled.dtype.names or (None,):
            told = f"{name}.{column}" if column else name
            one, other = (of if column is None else of[column] for of in (of_interpreted, of_compiled))
            close(one, other, told)
    for name in ("present", "was_read", "slices", "room"):
        np.testing.assert_array_equal(
            getattr(interpreted.memory.copies, name), getattr(compiled.memory.copies, name), name
        )
    np.testing.assert_array_equal(interpreted.memory.llc_tags, compiled.memory.llc_tags)
    np.testing.assert_array_equal(interpreted.memory.atu.misses, compiled.memory.atu.misses)
    close(np.array(interpreted.decision.by_step), np.array(compiled.decision.by_step), "decision")


def near(one, other, told):
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-3, err_msg=told)
