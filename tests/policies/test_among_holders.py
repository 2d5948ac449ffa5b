"""Allocations among holders against the same rules token by token and expert by expert."""

import numpy as np
import pytest

from archsim.base.compiled import GOLDEN, mix_bits
from archsim.policies import allocation
from archsim.policies.allocation import NO_ORIGINS, StepView, plan_of
from archsim.policies.lina import uniform_split


def drawn_step(seed, experts=40, dies=12):
    """A step of random loads, some 0, on random holders, one or more."""
    rng = np.random.default_rng(seed)
    held = rng.random((experts, dies)) < 0.3
    held[np.arange(experts), rng.integers(dies, size=experts)] = True
    tokens = rng.integers(0, 50, experts) * (rng.random(experts) < 0.7)
    known = dict.fromkeys(StepView._fields) | {"layer": 3, "step": 5, "origins": NO_ORIGINS}
    return StepView(**known | {"tokens": tokens.astype(np.int32), "holders": held})


def evenly(step):
    given = np.zeros(step.holders.shape, np.int64)
    for expert in np.flatnonzero(step.tokens):
        dies = np.flatnonzero(step.holders[expert])
        given[expert, dies] = uniform_split(int(step.tokens[expert]), len(dies))
    return given


def by_hash(step):
    given, token = np.zeros(step.holders.shape, np.int64), 0
    place = mix_bits(np.array([step.step << 32 | step.layer], np.uint64))
    for expert, tokens in enumerate(step.tokens):
        dies = np.flatnonzero(step.holders[expert])
        for _ in range(tokens):
            drawn = mix_bits(np.array([token], np.uint64) * GOLDEN + place) >> np.uint64(32)
            given[expert, dies[int(drawn[0]) % len(dies)]] += 1
            token += 1
    return given


@pytest.mark.parametrize("rule, slowly", [(allocation.even, evenly), (allocation.hashed, by_hash)])
@pytest.mark.parametrize("seed", range(4))
def test_a_rule_is_that_of_single_experts(rule, slowly, seed):
    step = drawn_step(seed)
    expected, found = plan_of(slowly(step)), rule(step)
    assert len(found.expert) > 20
    for name in ("expert", "die", "tokens"):
        one, other = getattr(expected, name), getattr(found, name)
        assert one.dtype == other.dtype == np.int32 and one.tolist() == other.tolist()
