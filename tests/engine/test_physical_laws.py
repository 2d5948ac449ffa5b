"""Laws of the event engine under the ``physical`` assumptions, and under each contention strategy."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples, sampled
from support.laws import Ran, an_hbm_moves_what_is_read_written_and_computed_with, copies_keep_within_their_room
from support.small_runs import (
    STRATEGIES,
    demand_of,
    engine_of,
    policy,
    replay,
    small_model,
    small_system,
    system_with_room,
)

from archsim.base.causes import Cause
from archsim.engine.state import UNITS
from archsim.policies.placement import linear
from archsim.specs.library import load_assumptions, load_model, load_system


def simulate(name="base", system=None, model=None, seed=1, spec=None, **assumptions):
    system, model, spec = system or small_system(), model or small_model(), spec or policy(name)
    run = engine_of(system, model, spec, load_assumptions("physical", **assumptions), seed)
    return run, run.run()


@pytest.mark.parametrize(
    ("name", "arbitration"),
    sampled(product(STRATEGIES, ("fair", "round_robin")), lambda each: each[1] == "fair" or each[0] == "allo+pred"),
)
def test_rates_times_c_and_latencies_over_c_divide_times_by_c(name, arbitration):
    c = 4.0
    system = small_system()
    fsm = system.decision.fsm
    quick = small_system(
        hbm={"bandwidth_bytes_per_s": system.hbm.bandwidth_bytes_per_s * c, "latency_ns": system.hbm.latency_ns / c},
        d2d={
            "bandwidth_bytes_per_s": system.d2d.bandwidth_bytes_per_s * c,
            "hop_latency_ns": system.d2d.hop_latency_ns / c,
        },
        llc={f: getattr(system.llc, f) / c for f in ("hit_ns", "miss_ns", "write_ns")},
        compute={"peak_flop_per_s": system.compute.peak_flop_per_s * c},
        # Costs that the state machine compares are integers of the quantum: a time, too.
        decision={
            "fsm": fsm.model_copy(update={"clock_hz": fsm.clock_hz * c, "cost_quantum_ns": fsm.cost_quantum_ns / c}),
            "local_clock_hz": system.decision.local_clock_hz * c,
        },
    )
    # isca26 rounds the compute time of a block up to whole ns (published rule), which has a unit of its own.
    spec = (
        policy(name, allocation={"name": "paper", "block_tokens": 50, "distance": 1})
        if "allo" in name
        else policy(name)
    )
    # What a measured GEMM spends on its launch has no rate.
    slow = simulate(spec=spec, system=system, arbitration=arbitration, gemm="roofline")[1]
    fast = simulate(spec=spec, system=quick, arbitration=arbitration, gemm="roofline")[1]
    assert (fast.step_ns * c == slow.step_ns).all()


@pytest.mark.parametrize(
    ("changes", "slices"),
    sampled(
        product(({}, {"contention": "reserved"}, {"arbitration": "round_robin"}), (0, 0.5, 1, 2.5)),
        lambda each: not each[0] or each[1] == 1,
    ),
    ids=str,
)
def test_copies_never_take_more_than_the_room_there_is(changes, slices):
    """And where none fits, none is written."""
    model, spec = small_model(), policy("pred")
    run, outcome = simulate(system=system_with_room(slices, spec, model), spec=spec, **changes)
    copies_keep_within_their_room(ran := Ran(run, outcome, np.zeros(6), np.zeros(2)))
    an_hbm_moves_what_is_read_written_and_computed_with(ran)
    weights, room = outcome.fit.demand_bytes, outcome.memory.copies.room
    fullest = weights == weights.max()
    assert (room["limit_bytes"][fullest] == int(slices * run.engine.machine.slice_bytes)).all()
    assert (room["evictions"][fullest] > 0).all() == (slices >= 1)
    assert (outcome.tally.dies["write_bytes"][fullest] > 0).all() == (slices >= 1)


def test_home_without_activations_moves_nothing_between_dies():
    run, outcome = simulate("ep", activations="ignored")
    assert outcome.tally.resources[UNITS * run.engine.machine.dies :]["bytes"].sum() == 0
    assert outcome.tally.hops.sum() == 0


SCHEDULING_ANOMALY = 0.005  # of a run of few steps: list scheduling on a faster machine may order work less luckily


@pytest.mark.parametrize("name", sampled(["base", "allo+pred", "ep", "pred"], {"allo+pred"}.__contains__))
def test_twice_the_bandwidth_slows_no_shipped_run(name, record_property):
    """Qwen3-235B on Dojo, two of its MoE layers; single steps that get slower are counted."""
    system, model = load_system("dojo"), load_model("qwen3-235b-a22b")
    few = model.model_copy(update={"layers": 5, "moe_layers": small_model().moe_layers})
    before = simulate(name, system=system, model=few)[1]
    anomalies = steps = 0
    for block, field in (
        ("hbm", "bandwidth_bytes_per_s"),
        ("d2d", "bandwidth_bytes_per_s"),
        ("compute", "peak_flop_per_s"),
    ):
        spec = getattr(system, block)
        faster = system.model_copy(update={block: spec.model_copy(update={field: 2 * getattr(spec, field)})})
        after = simulate(name, system=faster, model=few)[1]
        assert after.decode_ns <= before.decode_ns * (1 + SCHEDULING_ANOMALY), block
        anomalies += int((after.step_ns > before.step_ns * (1 + 1e-9)).sum())
        steps += after.step_ns.size
    record_property("steps that got slower", f"{anomalies} of {steps}")
    assert anomalies <= steps // 4


def mirrored_x(die, system):
    return die % system.mesh.x * -1 + system.mesh.x - 1 + die // system.mesh.x * system.mesh.x


def placed_mirrored(experts, dies):
    """The linear placement on a 3 × 2 mesh, mirrored along x; a user's own rule, named in a spec."""
    system = small_system()
    return np.array([mirrored_x(int(die), system) for die in linear(experts, dies)], np.int32)


def test_a_mirrored_placement_gives_mirrored_loads_and_the_same_time():
    system, model = small_system(), small_model()
    plain, mirrored = policy("ep"), policy("ep", placement="test_physical_laws:placed_mirrored")
    demand = demand_of(model, system, plain)
    flipped = [mirrored_x(die, system) for die in range(system.dies)]
    mirrored_demand = {"origins": demand.origins[:, :, flipped, :], "routed_die": np.int32(flipped)[demand.routed_die]}
    turned = type(demand)(**(vars(demand) | mirrored_demand))
    assumptions = load_assumptions("physical")
    one = replay(system, model, plain, assumptions, demand).run()
    other = replay(system, model, mirrored, assumptions, turned).run()
    assert (other.load[:, :, flipped] == one.load).all()
    assert other.step_ns == pytest.approx(one.step_ns, rel=1e-9)


@settings(max_examples=examples(30))
@given(tokens=st.integers(1, 5000), window=st.sampled_from([1, 3, 4]))
def test_one_expert_on_one_die_takes_what_the_formula_says(tokens, window):
    """Three slices of one expert on one die, fetched one after the other (window 1) or all together (3 or more)."""
    model = small_model(experts=1, top_k=1, shared_experts=0)
    slice_bytes = model.hidden * model.expert_ffn
    system = small_system(1, 1, llc={"capacity_bytes": window * slice_bytes, "segment_bytes": slice_bytes})
    demand = demand_of(model, system, policy("ep"), batch=tokens, decode_steps=1)
    older = {"activations": "replicated", "decision_cost": "free", "gemm": "roofline", "reads": "together"}
    assumptions = load_assumptions("physical", **older)
    run = replay(system, model, policy("ep"), assumptions, demand)
    outcome = run.run()
    n = int(demand.tokens[1, 0, 0])
    compute_ns = 2 * model.hidden * model.expert_ffn * n / (1e6 * 0.7)
    carried = n * (model.hidden + model.expert_ffn)
    read_ns = (slice_bytes + carried) / (2000 * 0.9)
    # The step ends with the last GEMM, or with the store of the last slice in the LLC if that is later.
    if window == 1:
        expected = 2 * (110 + read_ns + 300 + compute_ns) + 110 + read_ns + 300 + max(compute_ns, 30)
    else:  # they share the HBM and end together; then the array takes them one by one
        expected = 110 + 3 * read_ns + 300 + max(3 * compute_ns, 30)
    assert outcome.step_ns[1, 0] == pytest.approx(expected, rel=1e-12)


def test_critical_path_of_a_compute_bound_run_is_compute():
    slow = small_system(compute={"peak_flop_per_s": 1e12})
    _, outcome = simulate("ep", system=slow, gemm="roofline")
    bound = outcome.tally.bound_ns / outcome.tally.bound_ns.sum()
    assert bound[Cause.COMPUTE] > 0.95
