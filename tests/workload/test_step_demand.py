"""What a step is asked for: prompts and decoded tokens, origins, and vectors that are sent once."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_runs import demand_of, policy, small_model, small_system

from archsim.workload.step_demand import Routing


def test_a_run_is_a_stream_of_steps_with_tokens():
    model, system, spec = small_model(), small_system(), policy("allo+pred")
    demand = demand_of(model, system, spec)
    steps = list(demand)
    assert [(step.step, layer) for layer, step in steps] == [
        tuple(at) for at in np.argwhere(demand.tokens.any(axis=2)).tolist()
    ]
    assert len(steps) == demand.steps * demand.layers > 0
    for layer, step in steps:
        assert (step.tokens == demand.tokens[step.step, layer]).all()
        assert (step.origins.sum(axis=0) == step.tokens).all()
        assert (step.prefill_tokens + step.decode_tokens == step.tokens).all()
        assert step.prefill_tokens.any() == (step.step == 0) and step.decode_tokens.any() == (step.step > 0)
        assert (step.predicted.rows == demand.predicted_rows[step.step, layer]).all()
        assert step.predicted.rows.any() == (step.step > 0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 5), st.integers(1, 4))
def test_a_vector_is_sent_once_to_every_target(seed, tokens, top_k, targets):
    rng = np.random.default_rng(seed)
    experts = np.argsort(rng.random((tokens, 8)), axis=1)[:, :top_k].astype(np.int16)
    die, target = rng.integers(0, 3, tokens).astype(np.int32), rng.integers(0, targets, 8)
    expected = np.zeros((die.max() + 1, targets), np.int64)
    for token in range(tokens):
        for each in {int(target[expert]) for expert in experts[token]}:
            expected[die[token], each] += 1
    sent = Routing(experts, die).unique_pairs(target, targets)
    assert (sent == expected).all()
    assert tokens <= sent.sum() <= experts.size
