"""Several holders of an expert in the engine, and placements that change while it runs."""

import numpy as np
import pytest
from support.small_runs import CASES, IDS, demand_of, engine_of, policy, replay, small_model, small_system

from archsim.base.errors import ArchsimError
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.state import UNITS
from archsim.policies.placement import Placement
from archsim.specs.library import load_assumptions, load_experiment
from archsim.specs.policies import PolicySpec
from archsim.studies.optimum import Bounds, distances

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
    return policy("ep", rebalancing={"name": f"test_replicas:{rule}", "params": {"every_steps": every} | changes})


@pytest.mark.parametrize(("name", "changes"), CASES, ids=IDS)
def test_every_run_conserves_bytes_with_replicas(name, changes):
    run = engine_of(
        small_system(), small_model(), policy(name, placement="support.placements:replicated"),
        load_assumptions("physical", **changes),
    )
    outcome = run.run()
    tally, machine = outcome.tally, run.engine.machine
    assert (outcome.load.sum(axis=2) == run.demands.tokens.sum(axis=2)).all()
    assert tally.resources[UNITS * machine.dies :]["bytes"].sum() == tally.hops[:, 1].sum()


@pytest.mark.parametrize("engine", [None, AnalyticalEngine])
@pytest.mark.parametrize("contention", ["shared", "reserved"])
def test_a_die_that_holds_a_replica_reads_it_itself(contention, engine):
    """``base`` runs experts anywhere: with all weights everywhere nothing crosses the mesh."""
    system, model = small_system(hbm={"capacity_bytes": 10**12}), small_model()
    options = {"engine": engine} if engine else {}
    assumptions = load_assumptions("physical", contention=contention, **NO_MOVES)
    runs = []
    for rule in ("once", "everywhere"):
        spec = policy("base", placement=f"test_replicas:{rule}")
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
    for rebalancing in ("none", {"name": "test_replicas:stays", "params": {"every_steps": 1}}):
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
    spec = policy("pred", rebalancing={"name": "test_replicas:far_corner", "params": {"every_steps": 3, "log": False}})
    run = engine_of(system, model, spec, load_assumptions("physical", memory="experts", migration="free"))
    room = run.run().memory.copies.room
    assert run.engine.fit.room_bytes[-1] == room["limit_bytes"][-1] == 3 * 2**20 < room["peak_bytes"][-1]
    assert room["evictions"][-1] > 0 and (room["used_bytes"] <= room["limit_bytes"]).all()


def test_what_is_no_placement_is_told():
    with pytest.raises(ArchsimError, match="test_replicas:wrong: returns ndarray; expected archsim.policies.placement"):
        engine_of(small_system(), small_model(), rebalanced("wrong"), load_assumptions("physical")).run()


def test_every_steps_is_asked_for():
    with pytest.raises(ValueError, match="number of iterations between two calls"):
        PolicySpec(name="x", allocation={"name": "home"}, rebalancing={"name": "test_replicas:stays", "params": {}})


def test_bounds_are_refused_where_experts_have_several_holders():
    run = engine_of(
        small_system(), small_model(), policy("ep", placement="support.placements:replicated"),
        load_assumptions("physical"),
    )
    with pytest.raises(ArchsimError, match="one holder"):
        list(distances(run, 2, Bounds()))


def test_a_file_names_a_rebalancing(tmp_path):
    from support.tiny import TINY

    file = tmp_path / "mine.yaml"
    own = "policies: [{name: mine, preset: ep, rebalancing: {name: 'test_replicas:stays', every_steps: 2}}]"
    file.write_text(TINY.replace("policies: [base, ep, allo, pred, allo+pred]", own), encoding="utf-8")
    (spec,) = load_experiment(file).policies
    assert spec.rebalancing.params == {"every_steps": 2}
