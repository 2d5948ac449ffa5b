"""Routing: which of the router's choices are executed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from archsim.policies import routing
from archsim.policies.routing import Pass


@given(seed=st.integers(0, 2**16), tokens=st.integers(1, 60), gamma=st.floats(0.3, 2.0))
@settings(max_examples=examples(40))
def test_no_rule_executes_more_than_was_chosen_or_a_worse_pair_first(seed, tokens, gamma):
    rng = np.random.default_rng(seed)
    experts = rng.random((tokens, 8)).argsort(axis=1)[:, :3].astype(np.int16)
    scores = rng.random((tokens, 3))
    batch = Pass(experts, 8, (0, 0, seed), scores)
    dropped = routing.drop_rule(batch, gamma)
    assert dropped.chosen_mass == pytest.approx(scores.sum())
    assert dropped.executed_mass == pytest.approx(scores[dropped.experts >= 0].sum())
    for expert in range(8):
        chosen, kept = experts == expert, dropped.experts == expert
        lost = chosen & ~kept
        assert not lost.any() or scores[kept].min(initial=np.inf) >= scores[lost].max()
    again = routing.reroute_rule(batch, gamma, rounds=2)
    assert again.executed_mass <= again.chosen_mass * (1 + 1e-12)
    ids = np.sort(again.experts, axis=1)
    assert not ((ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] >= 0)).any()
