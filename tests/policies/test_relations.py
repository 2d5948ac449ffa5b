"""Rules that see pairs, origins, subjects and phases of tokens: cases by hand, and what a run gives them."""

import numpy as np
import pytest
from support.small_runs import BATCH, replay, small_model, small_system, traffic

import archsim as ar
from archsim import extend
from archsim.base.errors import SpecError
from archsim.engine.demand import build_run_demand
from archsim.policies.affinity import gather
from archsim.policies.allocation import Costs, StepView, home, paper
from archsim.policies.async_eplb import async_eplb
from archsim.policies.craft import craft_replicas
from archsim.policies.metro import metro
from archsim.policies.placement import redundant
from archsim.policies.rebalancing import History, eplb
from archsim.policies.seen_routing import SeenRouting
from archsim.policies.separation import separate_experts
from archsim.policies.task_placement import place
from archsim.policies.waterfill import sent_pairs, waterfill_rule
from archsim.specs.library import load_assumptions
from archsim.specs.policies import NEUTRAL, PolicySpec
from archsim.traffic import statistics
from archsim.traffic.statistics import loads_of

FOUR = np.full(4, 10)
SLOTS = np.array([2, 2])


def pairs(*given):
    """int64[4, 4], symmetric: tokens of pairs of experts."""
    table = np.zeros((4, 4), np.int64)
    for one, other, tokens in given:
        table[one, other] = table[other, one] = tokens
    return table


def of(held):
    return [each.tolist() for each in held]


def test_experts_that_are_chosen_together_are_kept_apart():
    # 0 to die 0; 1 would find 10 + 8 there, and nothing on die 1; 2 finds 10 on either; 3 has die 1 left
    assert of(separate_experts(FOUR, pairs((0, 1, 8), (2, 3, 8)), SLOTS)) == [[0, 2], [1, 3]]
    # 2 shares tokens with 0, so it goes to 1
    assert of(separate_experts(FOUR, pairs((0, 1, 8), (0, 2, 8)), SLOTS)) == [[0, 3], [1, 2]]


def test_experts_lie_where_their_tokens_live_and_with_those_chosen_as_well():
    none = np.zeros((2, 4), np.int64)
    # 0 to die 0; 1 has 8 tokens there, by 0; 2 and 3 have die 1 left
    assert of(gather(FOUR, pairs((0, 1, 8), (2, 3, 8)), none, SLOTS)) == [[0, 1], [2, 3]]
    # tokens of 0 and 1 live on die 1, those of 2 and 3 on die 0
    assert of(gather(FOUR, pairs(), np.array([[0, 0, 9, 9], [9, 9, 0, 0]]), SLOTS)) == [[2, 3], [0, 1]]


def test_each_task_is_even_over_dies():
    # by the sum of loads 10 and 6 of task a would share die 0 (10, then 9 and 7 on the other, then 6)
    tasks = np.array([[10, 6, 0, 0], [0, 0, 9, 7]])
    assert of(place(tasks, SLOTS)) == [[0, 3], [2, 1]]


def view(tokens, holders, **more):
    dies = holders.shape[1]
    hops = np.abs(np.subtract.outer(np.arange(dies), np.arange(dies))).astype(np.int32)
    costs = Costs(1, 1.0, 1.0, 1e9, 1e9, 0.0, 0.0)
    return StepView(
        np.array(tokens, np.int32), np.arange(len(tokens), dtype=np.int16), holders.argmax(axis=1).astype(np.int32),
        np.zeros(holders.shape, np.int8), hops, costs, 0, 1, holders, hops * 0.0, np.full(hops.shape, 1e9), **more,
    )  # fmt: skip


def test_dies_run_equally_many_experts():
    """0 is on die 0 alone; of 1 to 3, on both, the fullest goes to die 1, the next to die 0 by its fewer tokens."""
    holders = np.array([[1, 0], [1, 1], [1, 1], [1, 1]], bool)
    plan = metro(view([5, 2, 9, 3], holders))
    assert plan.die.tolist() == [0, 0, 1, 0] or plan.die.tolist() == [0, 1, 1, 0]
    assert sorted(np.bincount(plan.die).tolist()) == [2, 2] and plan.tokens.tolist() == [5, 2, 9, 3]


def test_a_row_of_dies_keeps_as_many_as_there_are_blocks():
    """One expert at die 1 of three, 60 tokens of blocks of 50: both other dies are near; two blocks keep two dies."""
    holders = np.array([[0, 1, 0]], bool)
    every, two, one = (paper(view([120], holders), 50, 1, kept) for kept in (0, 2, 1))
    assert every.die.tolist() == [1, 0, 2] or sorted(every.die.tolist()) == [0, 1, 2]
    assert sorted(two.die.tolist()) == [0, 1] and one.die.tolist() == [1]
    blocks = paper(view([60], holders), 50, 1, "blocks")
    assert len(blocks.die) == 2 and blocks.effort.candidates.tolist() == [3]


def test_craft_takes_replicas_while_they_gain_a_twentieth_of_the_first():
    # 2 GPUs, 2 layers: 1, 2 and 4 replicas of all; gains a replica 0.1, 0.06, 0.002
    gain = {1: [0.1, 0.1], 2: [0.16, 0.16], 4: [0.164, 0.164]}
    assert craft_replicas(gain, 2, 2) == 2  # 0.2 with one a GPU (one a layer), 0.12 more with two, 0.008 more with four
    assert craft_replicas(gain, 2, 2, "literal") == 1
    assert craft_replicas({1: [0.0, 0.0], 2: [-0.1, 0.0]}, 2, 2) == 0


def test_a_die_that_knows_its_own_loads_alone_fills_what_they_leave():
    # die 0 sends 6 pairs to itself and 2 to die 1; 4 shared slots: waterline 6; slack 0 and 4. All go to die 1,
    # whether they visit it or not
    load = np.array([[6, 2], [0, 0]])
    sent = waterfill_rule(np.array([4, 0]), load, least_tokens=1, loads="own")
    assert sent.tolist() == [[0, 4], [0, 0]]
    # 64 tokens, 10 pairs at home and 2 on each of 127 dies: waterline 3, slack 1, 10/11 of it is 0. None stays
    load = np.where(np.eye(128), 10, 246 / 127)
    sent = waterfill_rule(np.full(128, 64), load, loads="own")
    assert not np.diag(sent).any() and (sent.max(axis=1) == 64).all()
    holders = np.array([[1, 0], [0, 1]], bool)
    plan = home(view([6, 2], holders))
    assert sent_pairs(plan, np.array([[4, 1], [2, 1]])).tolist() == [[4, 1], [2, 1]]


def test_layers_are_rebalanced_in_turn_as_eplb_places_them():
    """Five layers, two a call: 0 and 1, then 2 and 3, then 4 and 0; the others stay."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(1, 99, (2, 5, 6)).astype(np.int32)
    before = redundant(6, 3, 5, 1)
    history = History(np.arange(5), tokens, np.zeros((2, 5, 3), np.int64), np.zeros((2, 5)))
    whole = eplb(history, before).placement
    for call, turn in enumerate(([0, 1], [2, 3], [4, 0])):
        after = async_eplb(history._replace(call=call), before, 2).placement
        rest = np.setdiff1d(np.arange(5), turn)
        assert (after.holds[turn] == whole.holds[turn]).all() and (after.holds[rest] == before.holds[rest]).all()


EXPERTS = np.array([[[0, 1], [2, 3]], [[0, 2], [2, 3]], [[1, 0], [3, 0]]], np.int16)


def test_tables_of_tokens_are_those_of_a_trace():
    seen = SeenRouting(
        EXPERTS, np.array([0, 0, 1]), np.array([0, 1, 1], np.int32), np.array([0, 0, 1]), np.array([True, True, False]),
        2, 4, np.array([0, 1], np.int16), ("a", "b"),
    )  # fmt: skip
    assert seen.pairs[0, 0, 1] == seen.pairs[0, 1, 0] == 2 and seen.pairs[0].sum() == 6
    assert seen.transitions[0, 0, 2] == 2 and seen.transitions.sum() == 12  # of tokens 0 and 1; three tokens, 2 × 2
    assert seen.origins[1].tolist() == [[0, 0, 2, 2], [1, 0, 0, 1]]
    assert seen.subject_loads[1, 0].tolist() == [2, 1, 1, 0]
    assert {name: len(part) for name, part in seen.phases} == {"prefill": 2, "decode": 1}


KEPT = {}


def keeps(history, placement):
    KEPT.setdefault("history", []).append(history.seen)
    return placement


def looks(step):
    KEPT.setdefault("step", []).append((step.step, step.layer, step.tokens.copy(), step.seen, step.prompt))
    return home(step)


def own(**parts):
    return PolicySpec(**{"name": "own", **NEUTRAL} | parts)


@pytest.mark.parametrize("needs", ["routing", ["routing", "speeds"], None])
def test_a_rule_sees_the_tokens_of_its_steps_if_it_asks(needs):
    KEPT.clear()
    asked = {} if needs is None else {"needs": needs}
    spec = own(
        allocation={"name": f"{__name__}:looks", **asked},
        rebalancing={"name": f"{__name__}:keeps", "every_steps": 2, **asked},
    )
    model, system = small_model(), small_system()
    source = traffic(model)
    demand = build_run_demand(source, BATCH, 3, 0, origin_dies=system.dies, routing=True, seen=spec.sees_routing)
    replay(system, model, spec, load_assumptions("physical"), demand).run()
    assert spec.sees_routing == (needs is not None) and KEPT["step"] and KEPT["history"]
    if needs is None:
        assert all(each is None for each in KEPT["history"]) and all(of[3] is None for of in KEPT["step"])
        return
    for step, layer, tokens, seen, prompt in KEPT["step"]:
        assert (seen.step == step).all() and prompt == (step == 0)
        assert (loads_of(seen.experts[:, -1:], len(tokens))[0] == tokens).all()
        assert seen.experts.shape[1] == min(layer + 1, 2)
    first = KEPT["history"][0]
    assert sorted(set(first.step.tolist())) == [0, 1]
    assert (first.pairs == first.pairs.transpose(0, 2, 1)).all()
    assert first.origins.sum() == first.experts.size == statistics.loads_of(first.experts, model.experts).sum()


def test_every_type_that_a_rule_returns_or_gets_can_be_imported():
    wanted = ("Pass", "Executed", "History", "Rebalanced", "LayerView", "Replicas", "SeenRouting")
    assert all(name in extend.__all__ and getattr(extend, name) for name in wanted)


def experiment(policies):
    return {
        "name": "x", "systems": ["dojo"], "models": ["olmoe-1b-7b"], "policies": policies,
        "workload": {"trace": {"synthetic": {}}, "batch": 8, "decode_steps": 1},
    }  # fmt: skip


@pytest.mark.parametrize(("policies", "names"), [
    ({"name": "craft", "replicas": [1, 2, "auto"]}, ["craft-replicas-1", "craft-replicas-2", "craft-replicas-auto"]),
    (["ep", {"name": "libra", "epsilon": 0.1}], ["ep", "libra"]),
    ([{"name": "x", "preset": "eplb", "rebalancing": {"every_steps": [1, 2], "nodes": [1, 5]}}],
     [f"x-every_steps-{every}-nodes-{nodes}" for every in (1, 2) for nodes in (1, 5)]),
])  # fmt: skip
def test_a_parameter_of_a_policy_is_an_axis(policies, names):
    assert [each.name for each in ar.load(experiment(policies)).policies] == names


@pytest.mark.parametrize(("policies", "said"), [
    ({"name": "craft", "replica": [1]}, "policies.0?.?replica: unknown parameter of craft; did you mean 'replicas'"),
    ({"name": "libra", "rule": "restart"}, "rule: is a parameter of allocation and of replication"),
    ({"name": "craft", "replicas": []}, "replicas: needs at least one value"),
    ({"name": "craft", "replicas": [1, "lots"]},
     "replicas: expected an integer, or auto, or literal, not the text 'lots'"),
    ({"name": "lina", "phase": "prefill"}, "phase: expected prompts or decode or both"),
])  # fmt: skip
def test_wrong_parameters_are_refused_by_name(policies, said):
    with pytest.raises(SpecError, match=said):
        ar.load(experiment(policies))
