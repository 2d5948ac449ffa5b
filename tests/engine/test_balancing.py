"""Balancers in the engines: every preset on a wafer and on switches, and what moving weights costs."""

import numpy as np
import pytest
from support.balancer_runs import BALANCERS, BATCH, MODEL, SWITCH, WAFER, run_of
from support.small_runs import policy, scenario_of, small_system

from archsim.base.errors import ArchsimError, CapacityError
from archsim.base.units import NS_PER_S
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.engine import Balancing, EventEngine, WeightMover, advance
from archsim.engine.network.flows import simulate_flows
from archsim.engine.state import UNITS, new_tally
from archsim.policies.placement import moves_between
from archsim.policies.replication import LayerView, libra, lina, table_of_paths
from archsim.specs.library import load_assumptions
from archsim.specs.policies import PRESETS


@pytest.mark.parametrize("engine", [EventEngine, AnalyticalEngine])
@pytest.mark.parametrize("system", [WAFER, SWITCH], ids=["mesh", "switch"])
@pytest.mark.parametrize("name", BALANCERS)
def test_every_preset_runs_everywhere_and_conserves(name, system, engine):
    run = run_of(name, system, engine, migration="overlapped")
    outcome = run.run()
    tally, dies = outcome.tally, run.engine.machine.dies
    assert (outcome.load.sum(axis=2) == run.demands.tokens.sum(axis=2)).all()
    perfect, slots, placed = np.moveaxis(outcome.ceilings, 2, 0)
    most = outcome.load.max(axis=2) * (1 + 1e-9)
    assert (perfect <= slots * (1 + 1e-9)).all() and (slots <= placed * (1 + 1e-9)).all() and (perfect <= most).all()
    if name != "harmoeny":
        assert (placed <= most).all()
    if system is WAFER:  # a message enters as many dies as it crosses links
        assert tally.resources[UNITS * dies :]["bytes"].sum() == tally.hops[:, 1].sum()
    moved = outcome.balancing.migrated_bytes
    assert moved == sum(int(each.moves["bytes"].sum()) for each in outcome.migrations)
    assert (outcome.balancing.replicated_bytes > 0) == (PRESETS[name]["replication"] != "none")


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
    assert migration.step == 1 and (free.tally.resources["bytes"] == blocking.tally.resources["bytes"]).all()


def test_an_overlapped_migration_holds_only_once_it_has_arrived():
    run = run_of("eplb", migration="overlapped")
    before, placements = run.engine.placement, []
    for result in run.steps():
        placements.append((result.step, run.engine.placement is before, run.engine.balancing.pending is None))
    during = {step: same for step, same, _ in placements}
    assert during[0] and during[1]  # begun before iteration 1, under way in it
    assert any(not settled for step, _, settled in placements if step == 1)


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
    with pytest.raises(ArchsimError, match="test_balancing:half_of_them: returns bool.3, 3.; expected bool.16, 6."):
        run_of("ep", parts=parts).run()


def test_lina_with_a_stated_accuracy_asks_no_paths():
    """All pairs predicted: the hottest expert gets the first replica; half of them: the total stays."""
    origins = np.array([[90, 1, 1, 1], [60, 2, 2, 2]], np.int32)
    holders = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], bool)
    view = LayerView(origins, np.zeros(4, np.float32), np.array([0, 0, 1, 1]), holders, 0, 0)
    holds = lina(view, slots=1, accuracy=1.0).holds
    assert holds[0].tolist() == [False, True] and not holds[:, 0][:2].any()
    assert not lina(view, slots=1).holds.any()
    assert lina(view, slots=1, accuracy=1.0, pair_ns=2.0).in_sight_ns == 2.0 * 93  # pairs of the busiest rank


def test_a_table_that_is_rarely_right_replicates_what_is_popular_elsewhere():
    """Of 64 experts the first eight are hot: a table that is always right copies them, one that hardly is copies eight
    others, the same in every step.
    """
    load = np.where(np.arange(64) < 8, 900, 20).astype(np.int32)
    home = np.arange(64) // 8
    holders = home[:, None] == np.arange(8)

    def copied(accuracy, step):
        view = LayerView(load[None].repeat(8, axis=0), np.zeros(64, np.float32), home, holders, 0, step)
        return lina(view, slots=1, accuracy=accuracy).holds.any(axis=1)

    assert copied(1.0, 0)[:8].sum() == 7 and copied(0.05, 0)[:8].sum() <= 3  # the eighth finds no room
    assert (copied(0.05, 0) == copied(0.05, 7)).all()
    predicted = table_of_paths(load, 0.3, np.random.default_rng(0))
    assert predicted.sum() == pytest.approx(load.sum()) and (predicted >= 0.3 * load).all()


def test_the_host_of_libra_is_hidden_behind_local_experts():
    """The die with the fewest pairs for its own experts hides the least; nothing below zero is left."""
    origins = np.array([[9, 1, 1, 1], [6, 2, 2, 2]], np.int32)
    holders = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], bool)
    view = LayerView(origins, np.zeros(4, np.float32), np.array([0, 0, 1, 1]), holders, 0, 0)
    found = libra(view, slots=1, host_ns=100.0, local_pair_ns=2.0)
    fewest = (origins * (found.holds | holders).T).sum(axis=1).min()
    assert found.in_sight_ns == 100 - 2 * fewest > 0
    assert libra(view, slots=1, host_ns=100.0, local_pair_ns=100.0).in_sight_ns == 0
    assert libra(view, slots=1).in_sight_ns == 0
