# ruff: noqa: E501  (one row a case: a table is read across)
"""What balancers refuse, with what is wrong and what would fit; and the least inputs that they take."""

import numpy as np
import pytest

from archsim import balancers

REFUSED = {
    "eplb: slots do not divide": (lambda: balancers.eplb(np.ones((1, 6)), 7, 1, 1, 4), "7 replicas do not divide among 4 GPUs; 8 would"),
    "eplb: fewer slots than experts": (lambda: balancers.eplb(np.ones((1, 6)), 4, 1, 1, 4), "4 replicas cannot hold 6 experts; the smallest number for 4 GPUs is 8"),
    "eplb: GPUs and nodes": (lambda: balancers.eplb(np.ones((1, 6)), 8, 3, 3, 4), "4 GPUs do not divide among 3 nodes"),
    "eplb: experts and groups": (lambda: balancers.eplb(np.ones((1, 6)), 8, 4, 2, 4), "6 experts do not divide among 4 groups"),
    "eplb: groups and nodes": (lambda: balancers.eplb(np.ones((1, 6)), 8, 3, 2, 4, True), "3 groups do not divide among 2 nodes.*hierarchical=False"),
    "eplb: one dimension": (lambda: balancers.eplb(np.ones(6), 8, 1, 1, 4), r"load has 1 dimensions \(6,\); expected load\[layer, expert\]"),
    "eplb: negative": (lambda: balancers.eplb(-np.ones((1, 6)), 8, 1, 1, 4), "negative or non-finite"),
    "eplb: not a number": (lambda: balancers.eplb(np.full((1, 6), np.nan), 8, 1, 1, 4), "negative or non-finite"),
    "eplb: no GPU": (lambda: balancers.eplb(np.ones((1, 6)), 8, 1, 1, 0), "gpus is 0; expected a whole number >= 1"),
    "eplb: no expert": (lambda: balancers.eplb(np.ones((1, 0)), 8, 1, 1, 4), "no experts"),
    "lplb: no holder": (lambda: balancers.lplb([1, 1], [[0], []], 1), "expert 1 has no holder"),
    "lplb: unknown GPU": (lambda: balancers.lplb([1, 1], [[0], [2]], 2), r"holders name GPUs 0..2; expected 0..1"),
    "lplb: other experts": (lambda: balancers.lplb([1, 1], [[0]], 2), "holders of 1 experts, load of 2"),
    "craft_balancedness: layers": (lambda: balancers.craft_balancedness(np.ones((1, 2, 2)), [[[0, 1]]]), "plan has 1 layers, loads 2"),
    "craft_balancedness: no copy": (lambda: balancers.craft_balancedness(np.ones((1, 1, 2)), [[[0], [0]]]), "no instance of expert 1"),
    "craft_balancedness: unknown": (lambda: balancers.craft_balancedness(np.ones((1, 1, 2)), [[[0], [1, 2]]]), r"expert ids outside 0..1"),
    "craft_budget: objective": (lambda: balancers.craft_budget({1: [1.0]}, 1, "sum"), "expected one of gain, replicas_times_gain"),
    "craft_budget: budget": (lambda: balancers.craft_budget({1: [1.0]}, 1, budget="least"), "expected one of at_most, exactly"),
    "craft_budget: lengths": (lambda: balancers.craft_budget({1: [1.0], 2: [1.0, 2.0]}, 1), "of one length"),
    "craft_budget: nothing": (lambda: balancers.craft_budget({}, 1), "of one length"),
    "craft_budget: unreachable": (lambda: balancers.craft_budget({2: [1.0, 1.0]}, 5, budget="exactly"), "exactly 5 replicas; the closest below is 4"),
    "craft_budget: negative": (lambda: balancers.craft_budget({1: [1.0]}, -1), "capacity is -1"),
    "craft_assign: fractions": (lambda: balancers.craft_assign([1.5], 2, 1), "whole numbers >= 0"),
    "craft_assign: nodes": (lambda: balancers.craft_assign([4], 5, 2), "5 GPUs do not divide among 2 nodes"),
    "greedy_placement: too small": (lambda: balancers.greedy_placement([1, 2, 3], 2, 0, [1, 1]), "3 slots or more"),
    "greedy_placement: GPUs": (lambda: balancers.greedy_placement([1, 2, 3], 2, 0, [3]), "each of 2 GPUs"),
    "waterfill: sources": (lambda: balancers.waterfill([[[0]]], 2, 1), "1 sources; expected one for each of 2 ranks"),
    "waterfill: ids": (lambda: balancers.waterfill([[[4]], []], 2, 2), r"ids 4..4; expected 0..3"),
    "waterfill: k": (lambda: balancers.waterfill([[[0]], [[0, 1]]], 2, 2), "one k for all sources"),
    "waterfill: candidates": (lambda: balancers.waterfill([[]], 1, 1, candidates="near"), "expected one of visited, all"),
    "expert_capacity: gamma": (lambda: balancers.expert_capacity(-1.0, 1, 1, 1), "gamma is -1.0"),
    "expert_capacity: rounding": (lambda: balancers.expert_capacity(1.0, 1, 1, 1, "up"), "expected one of ceil, floor"),
    "drop: keep": (lambda: balancers.drop([[1.0]], 1, 1, "best"), "expected one of score, order"),
    "drop: capacity": (lambda: balancers.drop([[1.0]], 1, -1), "capacity is -1"),
    "drop: top_k": (lambda: balancers.drop([[1.0]], 0, 1), "top_k is 0"),
    "reroute: rounds": (lambda: balancers.reroute([[1.0]], 1, 1, 0), "rounds is 0"),
    "drop_experts: count": (lambda: balancers.drop_experts([1, 2], 3), "at most 2, the number of experts"),
    "libra_plan: local": (lambda: balancers.libra_plan([[1, 2]], [0, 0], 1, 2), "local is 2; expected at most 1, the slots of a GPU"),
    "libra_plan: home": (lambda: balancers.libra_plan([[1, 2]], [0, 1], 1, 1), r"home GPU 0..0 of each of 2 experts"),
    "libra_shard: shapes": (lambda: balancers.libra_shard([[1]], [1, 1], [[1], [1]], 1), r"expected both \[gpu, expert\]"),
    "libra_shard: bound": (lambda: balancers.libra_shard([[1]], [1], [[1]], float("nan")), "bound is nan"),
    "libra_shard: rule": (lambda: balancers.libra_shard([[1]], [1], [[1]], 1, rule="best"), "expected one of literal, restart"),
    "lina_fit: expert": (lambda: balancers.lina_fit([[4]], 1, 4), r"top1 has expert 4; expected 0..3"),
    "lina_fit: no token": (lambda: balancers.lina_fit(np.zeros((2, 0), int), 1, 4), "no token"),
    "predict: layers": (lambda: balancers.lina_fit([[0], [1]], 1, 2).predict([[0]], 1), "1 layers; the table was fitted to 2"),
    "predict: top_k": (lambda: balancers.lina_fit([[0], [1]], 1, 2).predict([[0], [0]], 3), "at most 2, the number of experts"),
    "device_share: devices": (lambda: balancers.device_share([0.5], 0), "devices is 0"),
    "prediction_accuracy: tokens": (lambda: balancers.prediction_accuracy([[1], [2]], [[1]]), "predicted has 2 tokens"),
    "uniform_split: copies": (lambda: balancers.uniform_split(5, 0), "copies is 0"),
    "harmoeny: GPUs": (lambda: balancers.harmoeny([[1, 2, 3]], 2, 1), "3 experts do not divide among 2 GPUs"),
    "harmoeny: fractions": (lambda: balancers.harmoeny([[1.5, 2]], 2, 1), "whole tokens"),
    "remap: cost": (lambda: balancers.remap([[1.0]], 1), r"expected cost\[expert\]"),
    "dup: cost": (lambda: balancers.dup([1.0], 1, 1, lambda tokens: -tokens), "cost of tokens has negative"),
    "balancedness: no GPU": (lambda: balancers.balancedness([]), "it has no GPU"),
    "imbalance: negative": (lambda: balancers.imbalance([1, -1]), "negative or non-finite"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name):
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_one_gpu_and_one_expert_are_enough():
    assert balancers.eplb([[5.0]], 1, 1, 1, 1).physical_to_logical.tolist() == [[0]]
    assert balancers.eplb([[5.0]], 3, 1, 1, 1).logical_to_physical.tolist() == [[[0, 1, 2]]]
    assert balancers.lplb([5.0], [[0, 0]]).max_load == 5.0
    assert balancers.greedy_placement([5.0], 1, 0, [1]).experts[0].tolist() == [0]
    assert balancers.remap([5.0], 1).load.tolist() == [5.0]
    assert balancers.dup([5.0], 1, 2, float).steps.shape == (0, 4)
    assert balancers.harmoeny([[5]], 1, 1).load.tolist() == [5]
    assert balancers.libra_plan([[5]], [0], 2, 1).load.tolist() == [5]
    assert balancers.waterfill([[[0]]], 1, 1).destination[0].tolist() == [0]


def test_more_gpus_than_experts():
    """Every slot is filled; nobody's share is lost."""
    assert np.bincount(balancers.eplb([[3.0, 1.0]], 4, 1, 1, 4).physical_to_logical[0]).tolist() == [3, 1]
    assert [held.tolist() for held in balancers.dup([4.0, 2.0], 3, 1, float).experts] == [[0, 1], [0, 1], [0]]
    assert [held.tolist() for held in balancers.remap([1.0, 2.0], 3).experts] == [[1], [0], []]


def test_nothing_to_do():
    assert balancers.eplb(np.zeros((0, 4)), 4, 1, 1, 2).logical_to_physical.shape == (0, 4, 1)
    assert balancers.lplb([], []).split == []
    assert balancers.lplb([0.0, 0.0], [[0, 1], [1]], 2).max_load == 0.0
    assert balancers.craft_balancedness(np.zeros((2, 1, 2)), [[[0], [1]]]).tolist() == [[1.0], [1.0]]
    assert balancers.craft_budget({1: [1.0]}, 0).tolist() == [0]
    assert balancers.waterfill([[], []], 2, 2).waterline == 0
    assert balancers.drop(np.zeros((0, 4)), 2, 1).shape == (0, 4)
    assert balancers.reroute(np.zeros((0, 4)), 2, 1, 3).shape == (0, 4)
    assert balancers.drop_experts([1.0], 0).tolist() == []
    assert balancers.libra_shard([[1], [0]], [0, 0], [[0], [0]], 0).moves.shape == (0, 4)
    assert balancers.harmoeny([[0, 0]], 2, 1).moves.shape == (0, 5)
    assert balancers.uniform_split(0, 3).tolist() == [0, 0, 0]
    assert balancers.expert_capacity(1.0, 0, 2, 4) == 1


def test_padding_takes_no_shared_slot():
    plan = balancers.waterfill([[[-1, -1], [0, -1]], [[2, 3]]], 2, 2)
    assert plan.routed_load.tolist() == [1, 2]
    assert plan.destination[0][0] == -1 and plan.destination[0][1] >= 0
