"""Laws of the allocation by linear programming: every token once, the same plan again, no worse than home, an honest
price.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.small_runs import step_view

from archsim.engine.machine import policy_costs
from archsim.policies.allocation import home
from archsim.policies.linear_programme import lp
from archsim.policies.placement_rules import linear
from archsim.specs.decision import FirmwareSpec, FsmSpec
from archsim.specs.library import load_model, load_system
from microarch.blocks.global_cp import Counts, State, firmware_ns, fsm_ns
from microarch.fabric.topology import build_mesh

COSTS = policy_costs(load_system("dojo"), load_model("deepseek-v3"))


def step_of(seed, mesh, experts, most, copies):
    rng = np.random.default_rng(seed)
    dies = mesh[0] * mesh[1]
    tokens = rng.integers(0, most + 1, experts).astype(np.int32)
    copied = (rng.integers(0, 4, (experts, dies)) * (rng.random((experts, dies)) < 0.2) * copies).astype(np.int8)
    seen = np.full(experts, -1, np.int16)
    return step_view(tokens, seen, linear(experts, dies), copied, build_mesh(*mesh).hops, COSTS)


def arrays_ns(step, plan):
    """Compute time of every die."""
    return np.bincount(plan.die, plan.tokens, len(step.hops)) * COSTS.flop_per_token / COSTS.flop_per_ns


@settings(max_examples=examples(40), derandomize=True)
@given(
    st.integers(0, 999), st.sampled_from([(1, 1), (2, 1), (3, 3), (5, 5)]), st.integers(1, 40),
    st.sampled_from([0, 1, 7, 3000]), st.booleans(),
)
def test_every_token_is_given_out_once_to_a_candidate_in_order(seed, mesh, experts, most, copies):
    step = step_of(seed, mesh, experts, most, copies)
    plan = lp(step)
    assert (np.bincount(plan.expert, plan.tokens, experts) == step.tokens).all()
    assert (plan.tokens > 0).all()
    assert (np.diff(plan.expert) >= 0).all()
    assert len(set(zip(plan.expert.tolist(), plan.die.tolist(), strict=True))) == len(plan.expert)
    near = step.hops[step.home[plan.expert], plan.die] <= 1
    assert (near | (step.copied_slices[plan.expert, plan.die] == 3)).all()
    again = lp(step)
    assert all((a == b).all() for a, b in zip(plan[:3], again[:3], strict=True))
    assert plan.effort.operations == again.effort.operations


@pytest.mark.parametrize("seed", range(3))
def test_where_compute_decides_the_fullest_die_has_less_to_do_than_at_home(seed):
    step = step_of(seed, (5, 5), 256, 1200, False)
    at_home, planned = arrays_ns(step, home(step)), arrays_ns(step, lp(step))
    assert planned.max() < at_home.max() * 0.9
    assert planned.max() >= planned.mean()


def test_light_steps_stay_at_home():
    """HBM reads of the homes bound the step whatever is done: nothing is fetched for nothing."""
    step = step_of(1, (5, 5), 250, 8, False)
    assert (lp(step).die == home(step).die).all()


def test_the_solver_is_charged():
    effort = lp(step_of(1, (5, 5), 256, 1200, False)).effort
    counts = Counts(25, 256, True, 256, 256, effort.candidates, effort.blocks, 256, 0, 0)
    solved = counts._replace(operations=effort.operations)
    fsm, firmware = FsmSpec(), FirmwareSpec.model_validate({})
    assert effort.operations > 1_000_000
    more_ns = fsm_ns(solved, fsm) - fsm_ns(counts, fsm)
    assert more_ns[State.EVALUATE] == pytest.approx(effort.operations / fsm.lanes / fsm.clock_hz * 1e9, rel=1e-6)
    more_ns = firmware_ns(solved, firmware) - firmware_ns(counts, firmware)
    assert more_ns[State.EVALUATE] == pytest.approx(
        effort.operations * firmware.per_operation / (firmware.ipc * firmware.clock_hz) * 1e9
    )
