"""Laws of placements: who holds what, what it takes of memory, and what turns one into another."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.small_runs import SMALL_COSTS, policy, scenario_of, small_model, small_system, step_view
from support.tiny import tiny

from archsim.base.errors import ArchsimError, CapacityError, PlacementError
from archsim.engine.engine import EventEngine
from archsim.iteration.memory import memory_fit
from archsim.policies.allocation import home, isca26
from archsim.policies.linear_programme import lp
from archsim.policies.placement import Placement, moves_between
from archsim.policies.registry import build_policy, place_experts
from archsim.runs.plan import prepare
from archsim.specs.library import load_assumptions
from archsim.traffic.placements import ENGINES, PhysicalMap, write_placement
from microarch.fabric.grid import build_mesh

MESH = build_mesh(3, 2)


def random_placement(rng, layers=3, experts=7, dies=6):
    return Placement.of_holders(
        [[rng.permutation(dies)[: rng.integers(1, dies)].tolist() for _ in range(experts)] for _ in range(layers)], dies
    )


placements = st.integers(0, 10**6).map(lambda seed: random_placement(np.random.default_rng(seed)))


def of_two_layers(experts, dies):
    return Placement.of_homes(np.zeros(experts, np.int32), 2, dies)


def test_homes_are_broadcast_over_layers():
    placement = Placement.of_homes(np.array([2, 0, 2]), 4, 3)
    assert placement.home.tolist() == [[2, 0, 2]] * 4
    assert placement.slots.tolist() == [4, 0, 8]
    assert not placement.has_replicas


def test_the_first_holder_is_the_home():
    placement = Placement.of_holders([[[2, 0], [1]]], 3)
    assert placement.home.tolist() == [[2, 1]]
    assert placement.has_replicas and placement.slots.tolist() == [1, 1, 1]


@settings(max_examples=examples(50))
@given(placements)
def test_slots_count_every_holder(placement):
    assert placement.slots.tolist() == placement.holds.sum(axis=(0, 1)).tolist()


@settings(max_examples=examples(50))
@given(placements)
def test_a_die_reads_from_itself_or_the_nearest_holder(placement):
    expert, die = (grid.ravel() for grid in np.meshgrid(np.arange(placement.experts), np.arange(placement.dies)))
    assert placement.layers * len(expert) > 0
    for layer in range(placement.layers):
        sources = placement.sources(layer, expert, die, MESH.hops)
        for e, reader, source in zip(expert.tolist(), die.tolist(), sources.tolist(), strict=True):
            holders = np.flatnonzero(placement.holds[layer, e])
            assert source == min(holders, key=lambda each: (MESH.hops[reader, each], each))


@settings(max_examples=examples(50))
@given(placements, placements)
def test_moves_turn_one_placement_into_another(old, new):
    moves = moves_between(old, new, 7, MESH.hops)
    assert (moves["bytes"] == 7).all()
    assert old.holds[moves["layer"], moves["expert"], moves["src"]].all()
    assert not old.holds[moves["layer"], moves["expert"], moves["dst"]].any()
    reached = old.holds & new.holds  # what is no longer held is dropped
    reached[moves["layer"], moves["expert"], moves["dst"]] = True
    assert (reached == new.holds).all()
    assert moves["bytes"].sum() == 7 * (np.count_nonzero(new.holds) - np.count_nonzero(old.holds & new.holds))


def test_nothing_moves_between_equal_placements():
    placement = random_placement(np.random.default_rng(1))
    assert len(moves_between(placement, placement, 7, MESH.hops)) == 0


@pytest.mark.parametrize(("home", "holds", "problem"), [
    (np.zeros((1, 2), np.int32), np.ones((1, 3, 4), bool), "expected .layer, expert. and .layer, expert, die."),
    (np.full((1, 2), 4, np.int32), np.ones((1, 2, 4), bool), "there are dies 0 to 3"),
    (np.zeros((1, 2), np.int32), np.zeros((1, 2, 4), bool), "the home of an expert must hold it"),
])  # fmt: skip
def test_what_is_no_placement_is_refused(home, holds, problem):
    with pytest.raises(ValueError, match=problem):
        Placement(home, holds)


def test_a_users_rule_may_replicate_and_know_the_layers():
    model, system = small_model(), small_system()
    spec = policy("ep", placement="support.placements:replicated")
    placement = place_experts(spec, model, system.dies)
    layers = len(model.moe_layer_ids)
    assert placement.holds.shape == (layers, model.experts, system.dies)
    assert [np.count_nonzero(layer) for layer in placement.holds] == [
        model.experts * (1 + layer % 2) for layer in range(layers)
    ]
    plain, more = (
        memory_fit(system, model, load_assumptions("physical", weights="routed"), each)
        for each in (place_experts(policy("ep"), model, system.dies), placement)
    )
    slots = more.demand_bytes.sum() / plain.demand_bytes.sum() * layers
    assert slots == sum(1 + layer % 2 for layer in range(layers))


def test_replicas_that_do_not_fit_are_refused():
    model, assumptions = small_model(), load_assumptions("physical")
    needed = memory_fit(
        small_system(), model, assumptions, place_experts(policy("ep", placement="balanced"), model, 6)
    ).demand_bytes.max()
    system = small_system(hbm={"capacity_bytes": int(needed), "reserved_fraction": 0.0})
    EventEngine(scenario_of(system, model, policy("ep", placement="balanced"), assumptions))
    with pytest.raises(CapacityError, match="fit"):
        EventEngine(scenario_of(system, model, policy("ep", placement="support.placements:replicated"), assumptions))


def test_a_placement_of_another_shape_is_refused():
    place = build_policy(policy("ep", placement="test_placement:of_two_layers")).place
    with pytest.raises(
        ArchsimError,
        match="2 layers, 5 experts and 3 dies.* 4 layers, 5 experts and 3 dies",
    ):
        place(4, 5, 3)


def view(holders, tokens):
    hops, experts = MESH.hops, len(holders)
    copied = np.zeros((experts, len(hops)), np.int8)
    first = np.arange(experts, dtype=np.int16)
    return step_view(
        np.array(tokens, np.int32), first, None, copied, hops, SMALL_COSTS, Placement.of_holders([holders], len(hops))
    )


def test_home_is_the_first_holder():
    step = view([[0], [5, 0], [4, 2, 1], [3]], [1, 1, 1, 1])
    assert home(step).die.tolist() == [0, 5, 4, 3]


@pytest.mark.parametrize("rule", [isca26, lp])
def test_balancers_use_replicas_that_are_far(rule):
    """Two heavy experts of the same home: the one with a replica elsewhere runs there, too. Dies 0 and 5 are the
    corners.
    """
    step = view([[0], [0, 5]], [4000, 4000])
    plan = rule(step)
    assert 5 in plan.die[plan.expert == 1] and 5 not in plan.die[plan.expert == 0]


# ---- A placement from a file: what an engine would load is what runs.

SYSTEM, MODEL = small_system(), small_model(experts=20)
MODEL = MODEL.model_copy(update={"moe_layers": MODEL.moe_layers.model_copy(update={"last": 4})})
SLOTS = 24


def placed(seed=0):
    rng = np.random.default_rng(seed)
    layers = len(MODEL.moe_layer_ids)
    rows = [rng.permutation(np.r_[np.arange(20), rng.integers(0, 20, SLOTS - 20)]) for _ in range(layers)]
    return PhysicalMap(np.array(rows, np.int32), 20, SYSTEM.dies)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_every_engine_s_file_and_that_of_place_give_the_same_placement(engine, tmp_path):
    made = placed()
    write_placement(made, MODEL, tmp_path)
    (tmp_path / "placement.json").write_text("{}")
    for file in (engine.file, "placement.json", "."):
        spec = policy("ep", placement={"name": "from_file", "file": str(tmp_path / file)}, allocation="even")
        found = place_experts(spec, MODEL, SYSTEM.dies)
        assert (found.holds == (made.copies() > 0)).all()
        assert (found.layer_slots == SLOTS // SYSTEM.dies).all()
        first = [row.tolist().index(3) // made.slots_per_rank for row in made.experts]
        assert found.home[:, 3].tolist() == first


def test_a_file_that_is_missing_or_does_not_fit_is_refused(tmp_path):
    def place(dies=SYSTEM.dies, **params):
        return place_experts(policy("ep", placement={"name": "from_file", **params}), MODEL, dies)

    with pytest.raises(PlacementError, match="`file`"):
        place()
    with pytest.raises(PlacementError, match="cannot be read"):
        place(file=str(tmp_path / "none.json"))
    write_placement(placed(), MODEL, tmp_path)
    with pytest.raises(PlacementError, match=r"\b7 ranks\b"):
        place(dies=7, file=str(tmp_path / ENGINES[0].file))


def test_a_run_is_another_when_the_content_of_its_file_changes(tmp_path):
    keys = []
    for text in ("one", "other"):
        (tmp_path / "map.json").write_text(text)
        rule = f"{{name: mine, placement: {{name: from_file, file: {tmp_path / 'map.json'}}}, allocation: even}}"
        keys.append([run.key for run in prepare(tiny(tmp_path, f"policies=[{rule}]")).runs])
    assert keys[0] and not set(keys[0]) & set(keys[1])
