"""What decisions cost, and that nothing else changes."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples, sampled
from support.small_runs import (
    BATCH,
    demand_of,
    engine_of,
    policy,
    replay,
    scenario_of,
    small_model,
    small_system,
    step_view,
    traffic,
)

from archsim.base.compiled import kernel
from archsim.engine.decision import ALLOCATION, REPEATS, ChargedDecision, Charges, time_call
from archsim.engine.execution import Order
from archsim.engine.machine import build_machine, policy_costs
from archsim.engine.state import ENTRY, new_tally
from archsim.machine.decision import DecisionSpec, FsmSpec, HostSpec
from archsim.policies.allocation import NO_EFFORT, estimating, home, isca26, paper
from archsim.policies.heatmap import TopPositive, copy_bits
from archsim.policies.placement import Placement
from archsim.policies.ported_heatmap import PortedHeatmap, cycles_per_transition
from archsim.specs.library import load_assumptions
from microarch.blocks import atu, global_cp
from microarch.blocks.global_cp import State
from microarch.silicon.decision_area import decision_parts, design_of

EXECUTORS = ("fsm", "firmware", "host")
EXPERTS, DIES = 40, 6


def system_deciding(executor, **host):
    decision = DecisionSpec(executor=executor, host=HostSpec(**host)) if host else DecisionSpec(executor=executor)
    return small_system().model_copy(update={"decision": decision})


def view_of(rng):
    system, model = small_system(), small_model(experts=EXPERTS)
    machine, mesh = build_machine(scenario_of(system, model, policy("ep"), load_assumptions("physical")))
    tokens = rng.integers(0, 3000, EXPERTS) * (rng.random(EXPERTS) < 0.8)
    home = rng.integers(0, DIES, EXPERTS)
    copied = (rng.integers(0, 4, (EXPERTS, DIES)) * (rng.random((EXPERTS, DIES)) < 0.1)).astype(np.int8)
    first = np.argsort(rng.random(EXPERTS)).astype(np.int16)
    view = step_view(
        tokens.astype(np.int32), first, home.astype(np.int32), copied, mesh.hops, policy_costs(system, model)
    )
    return view, machine, mesh


@settings(max_examples=examples(1000))
@given(seed=st.integers(0, 2**32 - 1), rule=st.sampled_from([isca26, paper]))
def test_every_executor_makes_the_same_plan_and_bits(seed, rule):
    """Three executors on each demand: 3000 decisions."""
    rng = np.random.default_rng(seed)
    view, machine, mesh = view_of(rng)
    heat = rng.integers(0, 4, (1, EXPERTS, EXPERTS)).astype(np.uint32)
    made = []
    for executor in EXECUTORS:
        tally = new_tally(machine)
        decision = ChargedDecision(DecisionSpec(executor=executor), machine, mesh, EXPERTS, tally)
        plan = decision.decide(rule, view)
        hot = np.zeros((1, EXPERTS, EXPERTS // 8), np.uint8)
        TopPositive(3)(heat, np.ones((1, EXPERTS), np.bool_), hot)
        bits = copy_bits(plan.expert, plan.die, hot[0], DIES, EXPERTS, False)
        exposed_ns = decision.after_step(plan, len(np.unique(plan.expert)), 0, 1e5, 1e5)
        made.append((plan, bits, exposed_ns))
    assert len(made) == 3
    for plan, bits, _ in made[1:]:
        assert all((ours == theirs).all() for ours, theirs in zip(plan[:3], made[0][0][:3], strict=True))
        assert (bits == made[0][1]).all()
    if view.tokens.any():
        assert len({exposed for _, _, exposed in made}) == 3


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", sampled(["base", "ep", "allo", "allo-paper"], lambda name: name == "allo"))
@pytest.mark.parametrize("contention", ["shared", "reserved"])
def test_a_charged_run_takes_the_exposed_time_longer(name, executor, contention):
    system = system_deciding(executor, time_ns=20_000.0) if executor == "host" else system_deciding(executor)
    model = small_model()
    replays = {
        cost: engine_of(
            system, model, policy(name), load_assumptions("physical", contention=contention, decision_cost=cost)
        )
        for cost in ("free", "charged")
    }
    replays["free"].engine.costs = replays["charged"].engine.costs  # in quanta, where a state machine compares them
    free, charged = (replays[cost].run() for cost in ("free", "charged"))
    assert (charged.load == free.load).all()
    assert charged.tally.resources.tobytes() == free.tally.resources.tobytes()
    exposed = np.array(charged.decision.by_step)
    prefill = int((free.step_ns[0] > 0).sum())
    assert charged.prefill_ns == free.prefill_ns + sum(charged.decision.by_step[:prefill])
    assert charged.decode_ns == pytest.approx(free.decode_ns + exposed[prefill:].sum(), rel=1e-14)
    assert exposed.min() > 0
    assert charged.decision.exposed_ns.sum() == pytest.approx(exposed.sum(), rel=1e-12)


@pytest.mark.parametrize("name", ["base", "allo", "allo+pred"])
def test_a_host_that_is_timed_keeps_what_every_call_took(name):
    engine = engine_of(
        system_deciding("host"), small_model(), policy(name), load_assumptions("physical", decision_cost="charged")
    )
    decision = engine.run().decision
    assert len(decision.called_ns) == REPEATS * len(decision.by_step) > 0
    medians = np.median(np.reshape(decision.called_ns, (-1, REPEATS)), axis=1)
    assert decision.states_ns[State.EVALUATE] == pytest.approx(medians.sum(), rel=1e-12)


STATES = {
    "nothing": NO_EFFORT,
    "operations": NO_EFFORT._replace(operations=9),
    "demand": NO_EFFORT._replace(global_demand=True),
}
CALLS = []


def calls(step, states="nothing"):
    """Allocates as `home` does, and keeps which steps it was called for."""
    CALLS.append((step.step, step.layer))
    return home(step)._replace(effort=STATES[states])


def decided(states, executor, **host):
    """The outcome of a run whose allocation is a user's own, of the system that decides by ``executor``."""
    own = {"name": f"{__name__}:calls", "states": states}
    CALLS.clear()
    return (
        engine_of(
            system_deciding(executor, **host),
            small_model(),
            policy("ep", allocation=own),
            load_assumptions("physical", decision_cost="charged"),
        )
        .run()
        .decision
    )


EVERY_EXECUTOR = [("fsm", {}), ("firmware", {}), ("gpu", {}), ("host", {}), ("host", {"time_ns": 20_000.0})]


@pytest.mark.parametrize(("executor", "host"), EVERY_EXECUTOR)
def test_an_own_allocation_that_states_no_effort_takes_no_time_and_is_told(executor, host):
    decision = decided("nothing", executor, **host)
    assert decision.uncharged == {ALLOCATION} and decision.exposed_ns[[State.RECEIVE, State.EVALUATE]].sum() == 0
    assert not decided("operations", executor, **host).uncharged


@pytest.mark.parametrize(("executor", "host"), EVERY_EXECUTOR)
def test_an_own_allocation_is_charged_what_it_states_whether_or_not_it_reads_all_demand(executor, host):
    decision = decided("operations", executor, **host)
    assert decision.states_ns[State.EVALUATE] > 0
    if host:
        assert decision.states_ns[State.EVALUATE] == 20_000.0 * len(decision.by_step)


@pytest.mark.parametrize(("executor", "host"), EVERY_EXECUTOR)
def test_an_own_allocation_which_may_keep_a_state_is_called_once_a_step(executor, host):
    decision = decided("demand", executor, **host)
    assert len(CALLS) == len(set(CALLS)) == len(decision.by_step)
    assert len(decision.called_ns) == (len(CALLS) if executor == "host" and not host else 0)


def asks(view):
    """Allocates as `home` does, and asks what the plan takes."""
    plan = home(view)
    view.charged.plan_ns(plan)
    return plan


class SlowExecution:
    def __init__(self):
        self.now_ns = 0

    def time_of(self, order):
        self.now_ns += 10**9
        return 1.0

    kernel_ns = None


def test_what_the_simulator_takes_to_tell_charges_is_not_the_policys_time(monkeypatch):
    view, machine, _ = view_of(np.random.default_rng(1))
    slow, placement = SlowExecution(), Placement.of_homes(view.home, 1, DIES)
    charges = Charges(slow, machine, None, None, Order(0, 0, None, None, None, 0.0, None, placement))
    monkeypatch.setattr(time, "perf_counter_ns", lambda: slow.now_ns)
    plan, took_ns = time_call(asks, view._replace(charged=charges))
    operations = estimating(plan, view.home, view.hops)
    assert slow.now_ns == 10**9 and took_ns == operations * global_cp.HOST_OPERATION_NS > 0


@pytest.mark.parametrize("host", [{}, {"time_ns": 20_000.0}])
def test_no_clock_reaches_what_a_decision_will_take(host):
    _, machine, mesh = view_of(np.random.default_rng(1))
    spec = system_deciding("host", **host).decision
    decision = ChargedDecision(spec, machine, mesh, EXPERTS, new_tally(machine))
    view, _, _ = view_of(np.random.default_rng(2))
    plan = isca26(view)
    before_ns = decision.takes_ns(plan)
    decision.decide(isca26, view)
    state = dict(vars(decision))
    assert decision.takes_ns(plan) == before_ns > 0 and vars(decision) == state


def test_a_host_whose_time_is_given_does_the_same_every_time():
    def run():
        system = system_deciding("host", time_ns=20_000.0)
        return engine_of(
            system, small_model(), policy("allo"), load_assumptions("physical", decision_cost="charged")
        ).run()

    first, second = run(), run()
    assert first.decision.called_ns == [] and first.decision.by_step == second.decision.by_step


def test_only_an_allocation_takes_the_time_that_is_given_for_it():
    for name, times in (("base", 0), ("ep", 0), ("allo", 1)):
        engine = engine_of(
            system_deciding("host", time_ns=20_000.0),
            small_model(),
            policy(name),
            load_assumptions("physical", decision_cost="charged"),
        )
        decision = engine.run().decision
        assert decision.states_ns[State.EVALUATE] == 20_000.0 * times * len(decision.by_step)


def test_what_a_calibration_gives_of_the_path_is_what_a_step_pays():
    """The same plan over another path: every step differs by the difference of latencies, launch and noticing alone."""
    cited = {"time_ns": 20e3, "pcie_bandwidth_bytes_per_s": 50e9}
    fitted = HostSpec(calibration="h100", pcie_latency_ns=5000.0, **cited)
    assert (fitted.launch_ns, fitted.sync_ns) == (2534.0, 2534.0) and fitted.source.startswith("calibration h100: ")
    steps = []
    for host in (HostSpec(**cited), fitted):
        system = small_system().model_copy(update={"decision": DecisionSpec(executor="host", host=host)})
        run = engine_of(
            system, small_model(), policy("allo"), load_assumptions("physical", decision_cost="charged")
        ).run()
        steps.append(np.array(run.decision.by_step))
    plain = HostSpec()
    more_ns = 2 * (5000 - plain.pcie_latency_ns) + (2534 - plain.launch_ns) + (2534 - plain.sync_ns)
    assert steps[1] - steps[0] == pytest.approx(np.full(len(steps[0]), more_ns), abs=1e-6)


@pytest.mark.parametrize("name", ["pred", "allo+pred"])
def test_late_bits_make_fewer_copies_and_the_results_count_them(name):
    slow = small_system().model_copy(update={"decision": DecisionSpec(fsm=FsmSpec(clock_hz=1e6))})
    free, charged = (
        engine_of(
            slow,
            small_model(),
            policy(name),
            load_assumptions("physical", decision_cost=cost, heatmap_update="free", tables="unbounded"),
        ).run()
        for cost in ("free", "charged")
    )
    made, late = free.tally.dies["write_bytes"].sum(), charged.tally.dies["write_bytes"].sum()
    assert late <= made
    if name == "pred":
        assert late < made


def test_what_overlaps_is_exposed_only_where_it_does_not_fit():
    states_ns = np.arange(len(State), dtype=float) * 100
    exposed = global_cp.exposed_ns(states_ns, previous_ns=150.0, step_ns=1e6)
    assert exposed[State.READ] == states_ns[State.READ] - 150.0
    assert exposed[State.UPDATE] == 0 and not exposed[[State.ROWS, State.SELECT, State.WRITE]].any()
    assert exposed[State.DISPATCH] == states_ns[State.DISPATCH]


@kernel
def ask_atu(table, entry, experts, known):
    for i in range(len(experts)):
        known[i] = atu.knows(table, entry[0], experts[i])


def test_a_finite_atu_forgets_the_least_recently_used():
    table = atu.no_translations(1, entries=2, ways=8)
    entry = np.zeros(1, ENTRY)
    entry["home"], entry["look_here"] = 1, 1
    known = np.zeros(6, np.bool_)
    ask_atu(table, entry, np.array([3, 4, 3, 5, 4, 3]), known)
    assert known.tolist() == [False, False, True, False, False, False]
    assert table.misses[0] == 5 and sorted(table.tags[0, 0]) == [3, 4]


def test_sets_of_an_atu_evict_among_themselves():
    table = atu.no_translations(1, entries=4, ways=2)
    entry = np.zeros(1, ENTRY)
    entry["home"], entry["look_here"] = 1, 1
    known = np.zeros(6, np.bool_)
    ask_atu(table, entry, np.array([0, 2, 1, 4, 1, 0]), known)  # even experts share a set
    assert known.tolist() == [False, False, False, False, True, False]
    assert table.tags[0].tolist() == [[4, 0], [1, -1]]


def test_an_atu_has_whole_sets():
    with pytest.raises(ValueError, match=r"\b12\b.*\b8\b.*atu_ways: 12"):
        DecisionSpec(atu_entries=12)


@pytest.mark.parametrize("entries", sampled([1, 8, 512], (8).__eq__))
def test_more_atu_entries_miss_less(entries):
    def misses(n):
        system = small_system().model_copy(update={"decision": DecisionSpec(atu_entries=n)})
        return int(
            engine_of(system, small_model(), policy("pred"), load_assumptions("physical")).run().memory.atu.misses.sum()
        )

    assert misses(entries) >= misses(2 * entries) > 0


def test_heatmap_drops_what_its_port_has_no_time_for_and_counts_it():
    model = small_model()
    system = small_system().model_copy(
        update={"decision": DecisionSpec(fsm=FsmSpec(clock_hz=2e8, heatmap_port_bits=16))}
    )
    narrow = engine_of(system, model, policy("pred"), load_assumptions("physical")).run()
    wide = engine_of(small_system(), model, policy("pred"), load_assumptions("physical")).run()
    assert narrow.heatmap_dropped > wide.heatmap_dropped
    transitions = 3 * BATCH * len(model.moe_layer_ids)  # one within the prompt, two between decode steps
    assert 0 < narrow.heatmap_dropped < transitions
    assert cycles_per_transition(256, 8, 512) < cycles_per_transition(256, 8, 256)


def test_limited_updates_with_time_to_spare_see_all_pairs_one_iteration_later():
    """With a port that is never full the map equals the free one of the iteration before."""
    model, spec = small_model(), policy("pred")
    predictor = TopPositive(4)
    demand = demand_of(model, small_system(), spec)
    seen = []

    def remember(heat, changed, out):
        seen.append(heat.copy())
        predictor(heat, changed, out)

    heatmap = PortedHeatmap(
        traffic(model).steps(np.arange(BATCH), 3), BATCH, demand.layers, model.experts, model.top_k, remember
    )
    for step in range(demand.steps):
        heatmap.begin(step)
        for layer in range(demand.layers):
            heatmap.hot(layer)
            assert heatmap.take_in(layer, 10**9) == 0
    prompt_pairs, between = BATCH * model.top_k**2, BATCH * model.top_k**2
    totals = [int(heat.sum()) for heat in seen[:: demand.layers]]
    assert totals == [prompt_pairs, prompt_pairs, prompt_pairs + between]


def test_routing_is_asked_for_where_the_heatmap_needs_it():
    model, system, spec = small_model(), small_system(), policy("pred")
    with pytest.raises(ValueError, match="routing"):
        replay(system, model, spec, load_assumptions("physical"), demand_of(model, system, spec))


def test_tables_in_dram_are_slower_and_spare_their_sram():
    on_chip = system_deciding("fsm")
    dram = on_chip.model_copy(update={"decision": DecisionSpec(fsm=FsmSpec(tables="dram"))})
    assumptions = load_assumptions("physical", decision_cost="charged", heatmap_update="free")
    near, far = (
        engine_of(system, small_model(), policy("allo+pred"), assumptions).run().decision.states_ns
        for system in (on_chip, dram)
    )
    waits = [State.READ, State.ROWS, State.UPDATE]
    # there may be no copies to enter
    assert (far[waits] > near[waits]).tolist() == [True, True, bool(near[State.UPDATE])]
    assert np.delete(far, waits) == pytest.approx(np.delete(near, waits))
    names = [{part.name for part in decision_parts(system.decision, design_of(system))} for system in (on_chip, dram)]
    assert names[0] - names[1] == {"expert distribution table", "heatmap cache"} and not names[1] - names[0]
