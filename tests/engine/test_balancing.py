"""Balancers in the engines: every preset on a wafer and on switches, and what moving weights costs."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from support.balancer_runs import BATCH, MODEL, WAFER, run_of
from support.examples import sampled
from support.small_runs import BATCH as OF_BATCH
from support.small_runs import (
    demand_of,
    engine_of,
    policy,
    replay,
    scenario_of,
    small_model,
    small_system,
    system_with_room,
)

from archsim.base.errors import ArchsimError, CapacityError
from archsim.base.units import NS_PER_S
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.balancing import Balancing
from archsim.engine.engine import EventEngine
from archsim.engine.flows.simulation import simulate_flows
from archsim.engine.loop import Replay
from archsim.engine.state import DATA_MESSAGES, REPLICAS, new_tally
from archsim.engine.weight_moves import WeightMover, advance
from archsim.model.attention import LayerSet
from archsim.policies.placement import Placement, moves_between
from archsim.specs.library import load_assumptions, load_experiment
from archsim.specs.policies import PolicySpec
from archsim.specs.workload import WorkloadSpec


def test_migrations_cost_what_the_assumption_says():
    """Free moves take no time; blocking ones add their time, decision included; overlapped ones none, later."""
    runs = {how: run_of("eplb", migration=how) for how in ("free", "blocking", "overlapped")}
    free, blocking, overlapped = (run.run() for run in runs.values())
    assert free.balancing.migrated_bytes == blocking.balancing.migrated_bytes == overlapped.balancing.migrated_bytes > 0
    assert free.balancing.migration_exposed_ns == overlapped.balancing.migration_exposed_ns == 0
    exposed = blocking.balancing.migration_exposed_ns
    assert exposed > 0 and blocking.decode_ns + blocking.prefill_ns == pytest.approx(
        free.decode_ns + free.prefill_ns + exposed, rel=1e-9
    )
    engine = runs["blocking"].engine
    (migration,) = blocking.migrations
    moves = migration.moves
    flows = {}
    for src, dst, size in zip(moves["src"].tolist(), moves["dst"].tolist(), moves["bytes"].tolist(), strict=True):
        flows[src, dst] = flows.get((src, dst), 0) + size
    port = engine.machine.hbm_bytes_per_ns * NS_PER_S
    rows = [(src, dst, size, 0.0) for (src, dst), size in flows.items()]
    assert exposed >= simulate_flows(engine.fabric, rows, die_port_bytes_per_s=port).max()
    assert migration.step == 1
    timed = free.tally.resources["bytes"] + free.balancing.untimed_bytes
    assert (timed == blocking.tally.resources["bytes"]).all() and free.balancing.untimed_bytes.any()


def test_an_overlapped_migration_holds_only_once_it_has_arrived():
    run = run_of("eplb", migration="overlapped")
    before, placements = run.engine.placement, []
    for result in run.steps():
        placements.append((result.step, run.engine.placement is before, run.engine.balancing.pending is None))
    during = {step: same for step, same, _ in placements}
    assert during[0] and during[1]  # begun before iteration 1, under way in it
    assert any(not settled for step, _, settled in placements if step == 1)


def test_weights_that_have_not_arrived_have_not_moved():
    """Nor is their placement used; what has moved is what the steps could spare."""
    slow = WAFER.model_copy(update={"d2d": WAFER.d2d.model_copy(update={"bandwidth_bytes_per_s": 2e10})})
    run = run_of("eplb", slow)
    before, outcome = run.engine.placement, run.run()
    moved = outcome.balancing
    assert run.engine.placement is before and 0 < moved.migrated_bytes
    assert moved.migrated_bytes + moved.under_way_bytes == sum(outcome.migrations[0].moves["bytes"])
    assert moved.under_way_bytes > moved.migrated_bytes == outcome.tally.pair_bytes[REPLICAS].sum()


def mover():
    engine = EventEngine(scenario_of(WAFER, MODEL, policy("ep"), load_assumptions("physical"), BATCH))
    return engine, WeightMover(engine.machine, engine.fabric, new_tally(engine.machine))


def test_moves_through_one_hbm_share_it():
    engine, moving = mover()
    machine, size = engine.machine, 10**9
    one = moving.transfer(np.array([0]), np.array([1]), size)
    assert one.total_bytes == size and one.resource_bytes[[6, 7]].tolist() == [size, size]
    slowest = min(machine.hbm_bytes_per_ns, float(machine.link_rates.min()))
    assert one.ns == pytest.approx(size / slowest + machine.hbm_latency_ns + machine.route_ns[0, 1])
    through = moving.transfer(np.array([0, 1]), np.array([1, 2]), size)  # die 1 writes one expert and reads another
    assert through.ns >= 2 * size / machine.hbm_bytes_per_ns and through.total_bytes == 2 * size


def test_moves_advance_by_what_the_scarcest_resource_spares():
    _, moving = mover()
    transfer = moving.transfer(np.array([0]), np.array([1]), 10**6)
    nothing = np.zeros(len(transfer.resource_bytes), np.int64)
    assert advance(transfer, moving.spare_bytes(0.0, nothing)) == 0.0
    assert advance(transfer, moving.spare_bytes(1e9, nothing)) == 1.0
    half = transfer.resource_bytes / 2.0
    half[6] *= 0.5
    assert advance(transfer, half) == 0.25


def test_a_migration_that_has_arrived_moves_no_more():
    """Bytes neither vanish nor come back."""
    run = run_of("eplb", migration="overlapped")
    next(result for result in run.steps() if run.engine.balancing.pending is not None)
    balancing = run.engine.balancing
    balancing.pending.left = 0.3
    counts = []
    for step_ns in (1e12, 2e12, 3e12):
        balancing.end_step(step_ns)
        counts.append((balancing.totals.migrated_bytes, balancing.totals.under_way_bytes, balancing.pending.left))
    assert counts[0][0] > 0 and counts[0][2] == 0 and counts[1:] == [counts[0]] * 2


def test_a_decision_waits_once_for_a_step_and_what_follows_it():
    run = run_of("eplb", migration="overlapped")
    found = next(result for result in run.steps() if run.engine.balancing.pending is not None)
    pending = run.engine.balancing.pending
    pending.decision_ns, left = 1e12, pending.left
    took_ns = run.engine.step(found.layer, found.demand, 0.0, rest_ns=5e5).end_ns + 5e5
    assert 1e12 - pending.decision_ns == pytest.approx(took_ns) and pending.left == left  # weights wait for it


def test_replicas_hide_behind_the_step_before():
    times = {how: run_of("lina", migration=how).run().balancing for how in ("free", "overlapped", "blocking")}
    assert times["free"].replication_exposed_ns == 0 < times["blocking"].replication_exposed_ns
    assert times["overlapped"].replication_exposed_ns < times["blocking"].replication_exposed_ns
    assert len({each.replicated_bytes for each in times.values()}) == 1
    assert isinstance(run_of("lina").engine.balancing, Balancing)


def test_replicas_and_slots_take_hbm():
    expert = 3 * MODEL.hidden * MODEL.expert_ffn * WAFER.compute.dtype_bytes
    layers, needed = len(MODEL.moe_layer_ids), {}
    for name in ("ep", "lplb", "libra"):
        engine = EventEngine(scenario_of(WAFER, MODEL, policy(name), load_assumptions("physical"), BATCH))
        needed[name] = engine.fit.demand_bytes
    assert (needed["libra"] - needed["ep"] == 2 * 8 * expert).all()
    assert needed["lplb"].min() >= (-(-16 // 6) + 1) * layers * expert
    small = small_system(hbm={"capacity_bytes": int(needed["ep"].max()), "reserved_fraction": 0.0})
    with pytest.raises(CapacityError, match="does not fit"):
        EventEngine(scenario_of(small, MODEL, policy("libra"), load_assumptions("physical"), BATCH))


@pytest.mark.parametrize("executor", ["fsm", "firmware", "host", "gpu"])
def test_every_executor_charges_for_what_balancers_do(executor):
    decision = WAFER.decision.model_copy(update={"executor": executor})
    host = decision.host.model_copy(update={"time_ns": 5000.0})
    system = WAFER.model_copy(update={"decision": decision.model_copy(update={"host": host})})
    charged = run_of("eplb+lplb", system, migration="blocking")
    free = run_of("eplb+lplb", system, migration="blocking", decision_cost="free").run()
    outcome = charged.run()
    assert outcome.decision.exposed_ns.sum() > 0 == free.decision.exposed_ns.sum()
    assert outcome.balancing.migration_exposed_ns > free.balancing.migration_exposed_ns > 0


def test_no_moves_between_equal_placements_cost_nothing():
    engine, _ = mover()
    moves = moves_between(engine.placement, engine.placement, 5, engine.fabric.hops)
    assert engine.migrate(engine.placement, moves, 7.0) == 7.0


def half_of_them(layer):
    return np.zeros((3, 3), bool)


def test_what_is_no_replication_is_told():
    parts = {"replication": {"name": "test_balancing:half_of_them", "params": {}}}
    with pytest.raises(ArchsimError, match=r"test_balancing:half_of_them.*\b3, 3\b.*\b16, 6\b"):
        run_of("ep", parts=parts).run()


# Several holders of an expert in the engine, and placements that change while it runs.

NO_MOVES = {"activations": "ignored", "decision_cost": "free", "gemm": "roofline", "migration": "free"}
CALLS = []


def everywhere(experts, dies, layers):
    return Placement.of_holders(
        [[[e % dies, *(die for die in range(dies) if die != e % dies)] for e in range(experts)] for _ in range(layers)],
        dies,
    )


def once(experts, dies, layers):
    """The same homes as `everywhere`, without replicas."""
    return np.arange(experts) % dies


def far_corner(history, placement, log=True):
    """A toy: every expert moves to the last die; keeps what it was called with."""
    if log:
        CALLS.append((history, placement))
    return Placement.of_homes(np.full(placement.experts, placement.dies - 1), placement.layers, placement.dies)


def stays(history, placement):
    return placement


def wrong(history, placement):
    return placement.home


def rebalanced(rule, every=1, **changes):
    return policy("ep", rebalancing={"name": f"test_balancing:{rule}", "params": {"every_steps": every} | changes})


@pytest.mark.parametrize("engine", [None, AnalyticalEngine])
@pytest.mark.parametrize("contention", ["shared", "reserved"])
def test_a_die_that_holds_a_replica_reads_it_itself(contention, engine):
    """``base`` runs experts anywhere: with all weights everywhere nothing crosses the mesh."""
    system, model = small_system(hbm={"capacity_bytes": 10**12}), small_model()
    options = {"engine": engine} if engine else {}
    assumptions = load_assumptions("physical", contention=contention, **NO_MOVES)
    runs = []
    for rule in ("once", "everywhere"):
        spec = policy("base", placement=f"test_balancing:{rule}")
        runs.append(replay(system, model, spec, assumptions, demand_of(model, system, spec), **options).run())
    one, all_of_them = (run.tally for run in runs)
    assert one.dies["remote_read_bytes"].sum() > 0 and one.hops.sum() > 0
    assert all_of_them.dies["remote_read_bytes"].sum() == 0 and all_of_them.hops.sum() == 0
    assert runs[1].fit.demand_bytes.sum() > runs[0].fit.demand_bytes.sum()


def test_the_engine_goes_on_with_the_new_placement():
    CALLS.clear()
    system, model = small_system(hbm={"capacity_bytes": 10**12}), small_model(shared_experts=0)
    spec, assumptions = rebalanced("far_corner", every=2), load_assumptions("physical", **NO_MOVES)
    demand = demand_of(model, system, spec)
    run = replay(system, model, spec, assumptions, demand)
    before = run.engine.placement
    outcome = run.run()
    assert demand.steps == 4 and len(CALLS) == len(outcome.migrations) == 1
    # Policy ``ep`` runs experts at home: until iteration 2 everywhere, then on the last die alone.
    last = system.dies - 1
    assert (outcome.load[:2, :, :last].sum(axis=2) > 0).all() and (outcome.load[2:, :, :last] == 0).all()
    assert (outcome.load[2:, :, last] == demand.tokens[2:].sum(axis=2)).all()
    history, placement = CALLS[0]
    assert placement is before
    assert (history.tokens == demand.tokens[:2]).all() and (history.load == outcome.load[:2]).all()
    assert (history.step_ns == outcome.step_ns[:2]).all() and history.rows.tolist() == list(range(demand.layers))
    (migration,) = outcome.migrations
    moved = np.count_nonzero(before.home != last)
    assert migration.step == 2 and len(migration.moves) == moved
    assert migration.moves["bytes"].sum() == moved * run.engine.expert_bytes
    assert outcome.fit.demand_bytes[last] == outcome.fit.demand_bytes.sum()


def test_the_rule_is_called_every_so_many_steps():
    CALLS.clear()
    system, model = small_system(hbm={"capacity_bytes": 10**12}), small_model()
    spec = rebalanced("far_corner")
    outcome = replay(
        system, model, spec, load_assumptions("physical", **NO_MOVES), demand_of(model, system, spec)
    ).run()
    assert [migration.step for migration in outcome.migrations] == [1, 2, 3]
    assert [len(history.tokens) for history, _ in CALLS] == [1, 1, 1]
    assert len(outcome.migrations[0].moves) > 0 and len(outcome.migrations[1].moves) == 0


@pytest.mark.parametrize("name", ["ep", "pred", "allo+pred"])
def test_a_rule_that_changes_nothing_changes_nothing(name):
    runs = []
    for rebalancing in ("none", {"name": "test_balancing:stays", "params": {"every_steps": 1}}):
        runs.append(
            engine_of(
                small_system(), small_model(), policy(name, rebalancing=rebalancing), load_assumptions("physical")
            ).run()
        )
    assert runs[0].step_ns.tobytes() == runs[1].step_ns.tobytes()
    assert runs[0].tally.resources.tobytes() == runs[1].tally.resources.tobytes()


def test_copies_leave_where_new_homes_need_the_room():
    model = small_model(shared_experts=0)
    every_layer = 3 * model.hidden * model.expert_ffn * len(model.moe_layer_ids)  # of one expert
    system = small_system(hbm={"capacity_bytes": 20 * every_layer + 3 * 2**20, "reserved_fraction": 0.0})
    spec = policy("pred", rebalancing={"name": "test_balancing:far_corner", "params": {"every_steps": 3, "log": False}})
    run = engine_of(system, model, spec, load_assumptions("physical", memory="experts", migration="free"))
    room = run.run().memory.copies.room
    assert run.engine.fit.room_bytes[-1] == room["limit_bytes"][-1] == 3 * 2**20 < room["peak_bytes"][-1]
    assert room["evictions"][-1] > 0 and (room["used_bytes"] <= room["limit_bytes"]).all()


def test_what_is_no_placement_is_told():
    with pytest.raises(ArchsimError, match=r"test_balancing:wrong.*\bndarray\b.*archsim\.policies"):
        engine_of(small_system(), small_model(), rebalanced("wrong"), load_assumptions("physical")).run()


def test_every_steps_is_asked_for():
    with pytest.raises(ValueError, match="rebalancing"):
        PolicySpec(name="x", allocation={"name": "home"}, rebalancing={"name": "test_balancing:stays", "params": {}})


def test_a_file_names_a_rebalancing(tmp_path):
    from support.tiny import TINY

    file = tmp_path / "mine.yaml"
    own = "policies: [{name: mine, preset: ep, rebalancing: {name: 'test_balancing:stays', every_steps: 2}}]"
    file.write_text(TINY.replace("policies: [base, ep, allo, pred, allo+pred]", own), encoding="utf-8")
    (spec,) = load_experiment(file).policies
    assert spec.rebalancing.params == {"every_steps": 2}


# Cached copies: what is written, saved, evicted and kept adds up; steps of the warm-up run and are not counted.

ENGINES = pytest.mark.parametrize("engine", [EventEngine, AnalyticalEngine])
PREDICTED = {"heatmap_update": "free", "decision_cost": "free"}
STEPS = 8


def replay_of(spec, room=None, engine=EventEngine, warmup=0, steps=STEPS, seed=1, **changes):
    """A run at its start. ``room``: slices of copies that fit; None: unbounded."""
    model = small_model(moe_layers=LayerSet(first=0, last=3))
    assumptions = load_assumptions(
        "physical", **PREDICTED, capacity="unbounded" if room is None else "finite", **changes
    )
    system = small_system() if room is None else system_with_room(room, spec, model)
    demand = demand_of(model, system, spec, seed, decode_steps=steps)
    workload = WorkloadSpec(trace={"synthetic": {}}, batch=OF_BATCH, decode_steps=steps, warmup_steps=warmup)
    scenario = replace(scenario_of(system, model, spec, assumptions), workload=workload)
    return Replay(engine(scenario, demand.layer_ids), demand)


def away_slices(run):
    """Slices of experts that dies run without holding them by placement; runs the run."""
    away = 0
    for result in run.steps():
        plan, holds = result.times.plan, run.engine.placement.holds[run.engine.rows[result.layer]]
        away += 3 * int(np.count_nonzero(~holds[plan.expert, plan.die]))
    return away


@ENGINES
@pytest.mark.parametrize("room", [None, 24, 40.5])
def test_what_is_written_saved_and_evicted_adds_up(room, engine):
    """Every slice of another home is either saved or crosses the fabric; kept less evicted is resident."""
    run = replay_of(policy("pred"), room, engine)
    away, engine = away_slices(run), run.engine
    copies, tally, size = engine.memory.copies, engine.tally, engine.machine.slice_bytes
    written = tally.dies["write_bytes"]
    moved = tally.dies["remote_read_bytes"].sum() // size + tally.llc_hits[1]
    assert copies.room["hits"].sum() + moved == away > 0
    assert copies.room["hits"].sum() > 0
    assert (written - copies.room["evictions"] * size == copies.room["used_bytes"]).all()
    assert (copies.present.sum(axis=1) * size == copies.room["used_bytes"]).all()
    assert (copies.room["unused"] <= copies.room["evictions"]).all()
    assert (copies.room["evictions"].sum() > 0) == (room is not None)


def test_copies_that_were_read_are_told_from_those_that_were_not():
    """A die that must evict at every write reads what it wrote rarely; one that never evicts has no unused ones."""
    tight, wide = (replay_of(policy("pred"), room).run().memory.copies.room for room in (24, None))
    assert 0 < tight["unused"].sum() <= tight["evictions"].sum()
    assert wide["unused"].sum() == wide["evictions"].sum() == 0 < wide["hits"].sum()


@ENGINES
@pytest.mark.parametrize("room", [None, 24.5])
def test_steps_of_the_warm_up_run_and_are_not_counted(engine, room):
    """Counted steps take the time that they take after the same steps of a run that counts all."""
    spec, warmup = policy("pred"), 3
    whole, warm = replay_of(spec, room, engine), replay_of(spec, room, engine, warmup)
    every, counted = whole.run(), warm.run()
    first = warmup + 1  # iteration 0 is the prefill
    assert not counted.step_ns[:first].any() and not counted.load[:first].any()
    assert (counted.step_ns[first:] == every.step_ns[first:]).all() and counted.step_ns[first:].all()
    assert counted.prefill_ns == 0.0 and counted.decode_ns == pytest.approx(counted.step_ns.sum(), rel=1e-12)
    assert (counted.memory.copies.present == every.memory.copies.present).all()
    before = replay_of(spec, room, engine)
    for result in before.steps():
        if (result.step, result.layer) == (warmup, before.engine.layers - 1):
            break
    for field in counted.tally.dies.dtype.names:
        assert (every.tally.dies[field] - before.engine.tally.dies[field] == counted.tally.dies[field]).all()
    room_of = [each.room for each in (every.memory.copies, before.engine.memory.copies, counted.memory.copies)]
    for field in ("evictions", "unused", "hits"):
        assert (room_of[0][field] - room_of[1][field] == room_of[2][field]).all()
    assert (counted.tally.hops == every.tally.hops - before.engine.tally.hops).all()
    assert counted.tally.hops[DATA_MESSAGES].any()


def test_a_run_that_ends_in_its_warm_up_counts_nothing():
    run = replay_of(policy("pred"), None, warmup=STEPS - 1, steps=STEPS)
    run.demands = [pair for pair in run.demands if pair[1].step < 4]
    outcome = run.run()
    assert outcome.decode_ns == outcome.prefill_ns == 0.0 and len(outcome.step_ns) == 0
    assert not outcome.tally.resources["bytes"].any() and not outcome.memory.copies.room["hits"].any()


def test_a_warm_up_leaves_a_step_to_count():
    with pytest.raises(ValueError, match=r"\b8\b.*\b7\b"):
        WorkloadSpec(trace={"synthetic": {}}, batch=1, decode_steps=8, warmup_steps=8)


ADMITTED = {"name": "heatmap", "admission": "reread"}


@pytest.mark.parametrize(("allocation", "room"), sampled(
    product(("first_seen", "copy_aware"), (None, 24, 40.5)), {("first_seen", 24), ("copy_aware", 40.5)}.__contains__
))  # fmt: skip
def test_admission_never_writes_more_than_the_papers_rule(allocation, room):
    """In every step its bits are among those of the paper's rule; over a run it writes no more."""
    paper, admitted = (
        replay_of(policy("pred", allocation=allocation, prediction=rule), room, steps=16)
        for rule in ("heatmap", ADMITTED)
    )
    seen = []
    admission = admitted.engine._admission
    judge = admission.admit

    def watched(layer, plan, holds, bits, copies):
        before = None if bits is None else bits.copy()
        judge(layer, plan, holds, bits, copies)
        seen.append(bits is None or bool((bits <= before).all()))

    admission.admit = watched
    outcomes = paper.run(), admitted.run()
    written = [outcome.tally.dies["write_bytes"].sum() for outcome in outcomes]
    assert len(seen) > 50 and all(seen)
    assert written[1] <= written[0]


def test_admission_saves_more_than_it_writes_where_the_papers_rule_thrashes():
    """The paper's rule evicts most of its copies unused; admission writes a fraction, and saves as much."""
    outcomes = [replay_of(policy("pred", prediction=rule), 24, steps=20).run() for rule in ("heatmap", ADMITTED)]
    size = outcomes[0].machine.slice_bytes
    written = [outcome.tally.dies["write_bytes"].sum() // size for outcome in outcomes]
    saved = [outcome.memory.copies.room["hits"].sum() for outcome in outcomes]
    unused = [outcome.memory.copies.room["unused"].sum() for outcome in outcomes]
    assert saved[0] < written[0] and unused[0] > written[0] / 2
    assert saved[1] > written[1] and saved[1] >= saved[0] and 4 * written[1] < written[0]


@pytest.mark.parametrize("seed", range(3))
def test_with_room_for_all_copy_aware_reads_no_more_remotely_than_first_seen(seed):
    """Not a theorem (an adversary may unbalance every step anew); holds wherever experts recur."""
    rows = [
        replay_of(policy("pred", allocation=allocation), None, steps=6 + seed)
        .run()
        .tally.dies["remote_read_bytes"]
        .sum()
        for allocation in ("first_seen", "copy_aware")
    ]
    assert rows[1] <= rows[0] and rows[0] > 0


@pytest.mark.parametrize("contention", ["shared", "reserved"])
@ENGINES
def test_background_writes_end_steps_earlier_and_lose_no_bytes(engine, contention):
    """The same slices are written; what is left at a step's end passes the HBM in the next."""
    quick = {"gemm": "roofline", "activations": "replicated", "contention": contention}
    spec = policy("pred", prediction={"name": "heatmap", "top_fraction": 1.0})
    runs = [replay_of(spec, None, engine, copy_writes=way, **quick) for way in ("barrier", "background")]
    left = [[], []]
    for run, seen in zip(runs, left, strict=True):
        seen += [
            (result.times.end_ns, run.engine.memory.copies.room["unwritten_bytes"].sum()) for result in run.steps()
        ]
    assert not any(unwritten for _, unwritten in left[0]) and any(unwritten for _, unwritten in left[1])
    assert left[1][-1][0] < left[0][-1][0]
    written, moved = (
        [each.engine.tally.dies["write_bytes"] for each in runs],
        [each.engine.tally.resources["bytes"][6:12] for each in runs],
    )
    assert (written[0] == written[1]).all() and written[0].any()
    unwritten = runs[1].engine.memory.copies.room["unwritten_bytes"]
    if engine is EventEngine and contention == "shared":
        assert (moved[1] + unwritten == moved[0]).all()
