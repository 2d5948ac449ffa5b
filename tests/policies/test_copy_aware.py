"""The allocation that uses copies, and the rates from which admission expects reads."""

import numpy as np
import pytest
from support.small_runs import step_view

from archsim.policies.allocation import Costs, copy_aware, home
from archsim.policies.prediction import rates
from archsim.specs.policies import PolicySpec

DIES, EXPERTS = 6, 18
COSTS = Costs(2**20, 6e6, 1000.0, 2000.0, 1000.0, 300.0, 200.0)
HOPS = np.abs(np.arange(DIES)[:, None] - np.arange(DIES)).astype(np.int32)
HOME = (np.arange(EXPERTS) % DIES).astype(np.int32)


def view(tokens, copied=None):
    copied = np.zeros((EXPERTS, DIES), np.int8) if copied is None else copied
    return step_view(np.asarray(tokens, np.int32), np.arange(EXPERTS, dtype=np.int16), HOME, copied, HOPS, COSTS)


def remote(step, plan):
    """Entries whose die neither holds the expert by placement nor has a complete copy."""
    whole = step.holders | (step.copied_slices == 3)
    return int(np.count_nonzero(~whole[plan.expert, plan.die]))


def test_balanced_experts_stay_at_home():
    step = view(np.full(EXPERTS, 40))
    plan, at_home = copy_aware(step), home(step)
    assert (plan.die == at_home.die).all() and (plan.tokens == at_home.tokens).all()
    assert len(plan.effort.blocks) == EXPERTS and remote(step, plan) == 0


@pytest.mark.parametrize("seed", range(5))
def test_every_token_is_given_out_once_and_the_fullest_die_is_not_fuller_than_at_home(seed):
    rng = np.random.default_rng(seed)
    step = view(rng.integers(0, 2000, EXPERTS) * (rng.random(EXPERTS) < 0.8))
    plan = copy_aware(step)
    assert (np.bincount(plan.expert, plan.tokens, EXPERTS) == step.tokens).all() and (plan.tokens > 0).all()
    assert (np.diff(plan.expert) >= 0).all()
    loads = [np.bincount(each.die, each.tokens, DIES).max() for each in (plan, home(step))]
    assert loads[0] <= loads[1]


def test_a_hot_expert_runs_where_its_copies_are():
    """Without copies its tokens are fetched elsewhere; dies with a complete copy take them without a fetch."""
    tokens = np.full(EXPERTS, 20)
    tokens[7] = 4000
    bare = view(tokens)
    copied = np.zeros((EXPERTS, DIES), np.int8)
    copied[7, 3:] = 3
    held = view(tokens, copied)
    assert remote(bare, copy_aware(bare)) > 0
    plan = copy_aware(held)
    assert set(plan.die[plan.expert == 7]) >= {3, 4, 5} and remote(held, plan) < remote(bare, copy_aware(bare))


def test_where_every_die_holds_everything_nothing_is_fetched():
    step = view(np.arange(EXPERTS) * 100, np.full((EXPERTS, DIES), 3, np.int8))
    assert remote(step, copy_aware(step)) == 0


def test_rates_are_drawn_to_the_mean_as_far_as_chance_explains_differences():
    same = np.random.default_rng(0).binomial(32, 0.2, (40, 10)).astype(float)
    alike = rates(same, 32.0)
    mean = same.mean(axis=1, keepdims=True) / 32
    assert np.ptp(alike - mean) < np.ptp(same / 32 - mean) / 10
    apart = np.zeros((40, 10))
    apart[:, 0] = 32
    assert rates(apart, 32.0)[:, 0] == pytest.approx(1.0, abs=0.15) and rates(apart, 32.0)[:, 1:].max() < 0.05
    for ran in (same, apart):
        assert (rates(ran, 32.0) >= 0).all() and (rates(ran, 32.0) <= 1).all()


def test_an_unknown_admission_is_refused_with_the_known_ones():
    spec = {"name": "x", "allocation": "first_seen", "prediction": {"name": "heatmap", "admission": "rereads"}}
    with pytest.raises(ValueError, match=r"expected reread, not the text 'rereads'; did you mean 'reread'\?"):
        PolicySpec.model_validate(spec)
    with pytest.raises(ValueError, match="expected reread, not the number 3"):
        PolicySpec.model_validate(spec | {"prediction": {"name": "heatmap", "admission": 3}})
