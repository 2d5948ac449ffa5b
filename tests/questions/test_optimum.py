"""The bound of a step: below every policy's time under all assumptions, and equal to brute force on small steps."""

import csv
import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.optimum_oracle import best_time
from support.examples import examples, sampled
from support.small_runs import engine_of, policy, scenario_of, small_model, small_system
from support.tiny import tiny_file

from archsim.base.errors import ArchsimError
from archsim.cli.main import main
from archsim.engine.machine import build_memory
from archsim.iteration.misfit import refuse_misfit
from archsim.machine.system import CoolingSpec, PowerSpec
from archsim.policies.placement import Placement
from archsim.questions.optimum_bounds import exact_bound, lower_bound, proved_by
from archsim.questions.optimum_distances import Bounds, distances
from archsim.questions.optimum_problem import MOST_DIES, ProblemBuilder, loads
from archsim.specs.library import load_assumptions
from archsim.traffic.step_demand import StepDemand

POLICIES = ("base", "allo", "allo-lp", "allo+pred")
ASSUMPTIONS = (
    ("physical", {}),
    ("published", {}),
    ("physical", {"activations": "ignored", "weights": "routed"}),
    ("physical", {"contention": "reserved"}),
    ("physical", {"arbitration": "round_robin"}),
    ("physical", {"source": "queued", "llc": "slices", "decision_cost": "free"}),
    ("published", {"contention": "shared", "capacity": "finite"}),
)
# what the oracle of small steps knows
PLAIN = {"reads": "together", "dispatch": "per_token_expert", "combine": "weights_dtype", "transfer_software": "free"}
LARGE_LLC = {"capacity_bytes": 2**30}  # slices stay from one iteration to the next


def run(name, system, model, assumptions, seed=1, **parts):
    spec = policy(name, **parts)
    engine = engine_of(system, model, spec, assumptions, seed)
    return distances(engine, None, Bounds())


def assert_bounds_hold(found):
    steps = list(found)
    assert len(steps) > 5
    for each in steps:
        assert each.bound.ns <= each.step_ns
        assert each.bound.ns <= each.plan_ns * (1 + 1e-9)
        assert each.plan_ns <= each.step_ns * (1 + 1e-6)  # the plan's own minimum is at most the engine's time
    return steps


# Two policies under each set of assumptions, all of them in turn; all others are for Hypothesis below
PAIRS = [(POLICIES[(2 * at + i) % len(POLICIES)], *chosen) for at, chosen in enumerate(ASSUMPTIONS) for i in range(2)]


@pytest.mark.parametrize(("name", "base", "changes"), sampled(PAIRS, lambda pair: PAIRS.index(pair) % 6 == 0), ids=str)
def test_no_step_is_shorter_than_its_bound(name, base, changes):
    system = small_system(llc=LARGE_LLC if name in ("base", "allo+pred") else {})
    assert_bounds_hold(run(name, system, small_model(), load_assumptions(base, **changes)))


@settings(max_examples=examples(8, 3), derandomize=True)
@given(
    name=st.sampled_from(POLICIES),
    chosen=st.sampled_from(ASSUMPTIONS),
    mesh=st.sampled_from([(1, 1), (2, 1), (4, 1), (2, 3), (3, 3)]),
    link=st.sampled_from([2e10, 3e11, 2e13]),
    llc=st.sampled_from([2**20, 2**26, 2**30]),
    capacity=st.sampled_from([2**27, 2**34]),
    hidden=st.sampled_from([256, 4096]),
    latency=st.sampled_from([0.0, 3000.0]),
    seed=st.integers(0, 99),
)
def test_no_step_of_any_machine_is_shorter_than_its_bound(
    name, chosen, mesh, link, llc, capacity, hidden, latency, seed
):
    system = small_system(
        *mesh,
        d2d={"bandwidth_bytes_per_s": link},
        llc={"capacity_bytes": llc},
        hbm={"capacity_bytes": capacity, "latency_ns": latency},
    )
    assumptions = load_assumptions(chosen[0], **chosen[1])
    if capacity < 2**30:
        assumptions = assumptions.model_copy(update={"capacity": "unbounded"})
    model = small_model(hidden=hidden, expert_ffn=256, experts=10, layers=4, shared_experts=seed % 2)
    assert_bounds_hold(run(name, system, model, assumptions, seed))


def test_bound_is_tight_where_nothing_can_be_gained():
    """Every expert at home, read by an HBM without other load: only latencies are missing."""
    system = small_system(1, 1, compute={"peak_flop_per_s": 1e18})
    steps = assert_bounds_hold(
        run(
            "ep",
            system,
            small_model(shared_experts=0),
            load_assumptions("physical", decision_cost="free", gemm="roofline", **PLAIN),
        )
    )
    assert max(each.distance for each in steps) < 0.02


def tiny_problem(rng, mesh, experts, tokens, dispatched, copies):
    """A random step of one layer, with some copies and cached slices, and the oracle's answer."""
    # Vectors, slices and GEMMs of similar cost, so that all kinds of resources matter.
    system = small_system(
        *mesh,
        compute={"peak_flop_per_s": 10.0 ** rng.uniform(11, 14)},
        d2d={"bandwidth_bytes_per_s": 10.0 ** rng.uniform(10, 13)},
        hbm={"bandwidth_bytes_per_s": 10.0 ** rng.uniform(10.5, 12.5)},
        llc={"segment_bytes": 2**20},
    )
    model = small_model(hidden=256, expert_ffn=16, experts=experts, layers=4, shared_experts=0)
    assumptions = load_assumptions(
        "physical", activations="dispatched" if dispatched else "ignored", gemm="roofline", **PLAIN
    )
    dies, home = system.dies, rng.integers(0, system.dies, experts).astype(np.int32)
    origins = np.zeros((dies, experts), np.int32)
    for expert, count in enumerate(tokens):
        np.add.at(origins[:, expert], rng.integers(0, dies, count), 1)
    scenario = scenario_of(system, model, policy("ep"), assumptions)
    placement = Placement.of_homes(home, 1, dies)
    memory = build_memory(scenario, 1, refuse_misfit(scenario, placement))
    copied, cached = [set() for _ in range(experts)], [set() for _ in range(experts)]
    for expert, die, part in itertools.product(range(experts), range(dies), range(3)):
        if copies and die != home[expert] and rng.random() < 0.2:
            memory.copies.present[die, 3 * expert + part] = 1
            copied[expert].add((die, part))
        free = np.flatnonzero(memory.llc_tags[die].ravel() < 0)
        if (die == home[expert] or copies) and len(free) and rng.random() < 0.1:
            memory.llc_tags[die].reshape(-1)[free[0]] = 3 * expert + part
            cached[expert].add((die, part))
    builder = ProblemBuilder(scenario, copies, max(tokens))
    total = origins.sum(axis=0, dtype=np.int32)
    demand = StepDemand(1, total, np.zeros_like(total), np.arange(experts, dtype=np.int16), 1, origins)
    problem = builder.build(demand, 0, 0, placement, memory)
    machine, fabric = builder._machine, builder._network
    rate = machine.hbm_bytes_per_ns, machine.link_bytes_per_ns
    weights, vector = 256 * 16, 256 * dispatched
    at = origins.T.tolist() if dispatched else [[count] + [0] * (dies - 1) for count in tokens]
    keep = [expert for expert in range(experts) if tokens[expert]]
    token_ns = 6 * 256 * 16 / (system.compute.peak_flop_per_s / 1e9 * system.compute.efficiency)
    least = best_time(
        [at[e] for e in keep],
        home[keep],
        [token_ns] * len(keep),
        weights / rate[0],
        weights / rate[1],
        vector / rate[0],
        vector / rate[1],
        fabric.route,
        dies,
        fabric.links,
        problem.base_ns + problem.start_ns,
        [copied[e] for e in keep],
        [cached[e] for e in keep],
    )
    return problem, least


STEPS = (
    ((2, 2), (1, 2, 1, 1)), ((2, 1), (3, 2, 4, 1, 2, 2)), ((3, 1), (1, 2, 3, 1, 1)), ((4, 1), (2, 1, 2, 1)),
    ((2, 2), (1, 1, 0, 1, 1, 1)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("mesh", "tokens", "dispatched", "copies"),
    sampled(
        [(*step, *each) for step in STEPS for each in itertools.product((False, True), repeat=2)],
        lambda each: each[2] == each[3],
    ),
)
def test_tiny_steps_equal_brute_force(mesh, tokens, dispatched, copies):
    for seed in range(examples(3, 1)):
        problem, least = tiny_problem(np.random.default_rng(seed), mesh, len(tokens), tokens, dispatched, copies)
        relaxed = lower_bound(problem)
        found = exact_bound(problem, relaxed, most_nodes=100_000)
        assert relaxed.ns <= least * (1 + 1e-9)
        assert found.ns == pytest.approx(max(least, problem.sure_ns), rel=1e-5)


@settings(max_examples=examples(40), derandomize=True)
@given(seed=st.integers(0, 10_000), dispatched=st.booleans(), copies=st.booleans())
def test_any_multipliers_prove_a_bound_of_any_plan(seed, dispatched, copies):
    rng = np.random.default_rng(seed)
    problem, _ = tiny_problem(rng, (2, 1), 4, (2, 1, 3, 1), dispatched, copies)
    weights = rng.exponential(size=problem.fabric.resources) * (rng.random(problem.fabric.resources) < 0.5) + 1e-9
    proved_ns = proved_by(problem, weights / weights.sum())
    lives = problem.tokens[:, None] if problem.origins is None else problem.origins
    split = np.array([[rng.multinomial(count, [0.5, 0.5]) for count in row] for row in lives])  # [row, lives, runs]
    share = split.sum(axis=1) / problem.tokens[:, None]
    flow = split.sum(axis=0) if problem.origins is not None else None
    assert proved_ns <= (loads(problem, share, share > 0, flow) + problem.start_ns).max() * (1 + 1e-9)


def test_page_and_command_say_what_an_allocation_could_gain(tmp_path, capsys):
    file, out = tiny_file(tmp_path), tmp_path / "out"
    overrides = ["--set", "policies=[base, ep]", "--set", "workload.layers=1"]
    assert main(["optimum", str(file), *overrides, "--out", str(out)]) == 0
    page = (out / "index.html").read_text(encoding="utf-8")
    with (out / "optimum.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert "Layer-steps of 1 of 2 MoE layers of toy" in page
    of = {
        policy: np.mean(
            [
                float(row["distance"])
                for row in rows
                if (row["system"], row["batch"], row["policy"]) == ("small", "40", policy)
            ]
        )
        for policy in ("base", "ep")
    }
    near, far = sorted(of, key=of.get)
    said = f"no allocation is more than {1 + of[near]:.3g}× as fast as {near}"
    assert f"For <b>toy on small, batch 40, under published</b>, {said}" in page
    assert f"For toy on small, batch 40, under published, {said}" in capsys.readouterr().out
    assert f"Farthest from the bound is {far}, {1 + of[far]:.3g}×" in page
    body = re.sub(r"<script.*?</script>", "", page.partition("<body>")[2], flags=re.S)
    assert "hbm" not in body


@pytest.mark.parametrize(("key", "limits"), [
    ("power", PowerSpec(limit="5 kW")), ("cooling", CoolingSpec(coolant="30 C", resistance="0.2 K/W per die")),
])  # fmt: skip
def test_bounds_refuse_limits_that_may_lower_the_clock(key, limits):
    system = small_system(2, 2).model_copy(update={key: limits})
    with pytest.raises(ArchsimError, match=key):
        ProblemBuilder(scenario_of(system, small_model(), policy("ep"), load_assumptions("physical")), False, 1)


def test_bounds_support_a_limited_number_of_dies():
    system = small_system(16, 9)
    with pytest.raises(ArchsimError, match=rf"\b144 dies\b.*\b{MOST_DIES}\b"):
        ProblemBuilder(scenario_of(system, small_model(), policy("ep"), load_assumptions("physical")), False, 1)
