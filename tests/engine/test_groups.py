"""The network of a large machine has the groups alone that a step can use; nothing else differs."""

import numpy as np
import pytest
from support.small_runs import demand_of, policy, replay, small_model, small_system

from archsim.engine.event import flows
from archsim.specs.library import load_assumptions

SYSTEM, MODEL = small_system(3, 2), small_model()


def ran(arbitration):
    demand = demand_of(MODEL, SYSTEM, policy("ep"), decode_steps=2, batch=8)
    assumptions = load_assumptions("physical", arbitration=arbitration, heatmap_update="free")
    replayed = replay(SYSTEM, MODEL, policy("ep"), assumptions, demand)
    return replayed.run(), replayed.engine.execution.kernel


@pytest.mark.parametrize("arbitration", ["fair", "round_robin"])
def test_a_network_of_the_groups_of_a_step_gives_the_same_bytes(arbitration, monkeypatch):
    whole, kernel = ran(arbitration)
    rows = len(kernel._groups.of(kernel._work).net.groups)
    monkeypatch.setattr(flows, "MOST_LINKS", 0)
    sparse, kernel = ran(arbitration)
    assert len(kernel._groups.of(kernel._work).net.groups) < rows
    assert np.array_equal(whole.step_ns, sparse.step_ns) and whole.step_ns.any()
    for one, other in zip(whole.tally, sparse.tally, strict=True):
        assert one.tobytes() == other.tobytes()
