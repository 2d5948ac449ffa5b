"""What a step is asked for: prompts, origins and predictions."""

import numpy as np
from support.small_runs import demand_of, policy, small_model, small_system


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
        assert (step.prefill_tokens == (step.tokens if step.step == 0 else 0)).all()
        assert (step.predicted.rows == demand.predicted_rows[step.step, layer]).all()
        assert step.predicted.rows.any() == (step.step > 0)
