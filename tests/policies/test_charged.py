"""Laws of what the engine tells allocations: a plan takes what was told, asking changes nothing, and a rule that weighs
plans by it is never dearer than the plan of ``home``.
"""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.small_runs import (
    BATCH,
    demand_of,
    engine_of,
    policy,
    replay,
    small_model,
    small_system,
    step_view,
    traffic,
)

from archsim.base.errors import ArchsimError
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.machine import policy_costs
from archsim.policies.allocation import Rates, home
from archsim.policies.linear_programme import lp
from archsim.policies.placement_rules import linear
from archsim.specs.library import load_assumptions, load_model, load_system
from microarch.fabric.topology import build_mesh


class Fixed:
    """Charges ``row_ns`` for a token, and ``hop_ns`` for a token and hop."""

    rates = Rates(10.0, 100.0, 200.0)

    def __init__(self, step, hop_ns=0.0):
        self._step, self._hop_ns = step, hop_ns

    def plan_ns(self, plan):
        compute_ns = np.bincount(plan.die, self.rates.row_ns * plan.tokens + self.rates.expert_ns, len(self._step.hops))
        away = self._step.hops[self._step.home[plan.expert], plan.die]
        return compute_ns.max() + self._hop_ns * float((away * plan.tokens).sum())

    def decision_ns(self, plan):
        return 0.0


def step_of(seed, mesh=(3, 3), experts=40, most=400, **charges):
    rng = np.random.default_rng(seed)
    dies = mesh[0] * mesh[1]
    tokens = (rng.pareto(1.0, experts) * most / 8).astype(np.int32).clip(0, most * 8)
    costs = policy_costs(load_system("dojo"), load_model("deepseek-v3"))
    seen, copied = np.full(experts, -1, np.int16), np.zeros((experts, dies), np.int8)
    step = step_view(tokens, seen, linear(experts, dies), copied, build_mesh(*mesh).hops, costs)
    return step._replace(charged=Fixed(step, **charges))


@settings(max_examples=examples(40), derandomize=True)
@given(
    st.integers(0, 999),
    st.sampled_from([(1, 1), (2, 1), (3, 3), (5, 5)]),
    st.integers(1, 60),
    st.sampled_from([0.0, 0.01, 10.0]),
)
def test_every_token_is_given_out_once_at_no_more_than_home_costs(seed, mesh, experts, hop_ns):
    step = step_of(seed, mesh, experts, hop_ns=hop_ns)
    plan = lp(step)
    assert (np.bincount(plan.expert, plan.tokens, experts) == step.tokens).all()
    assert (plan.tokens > 0).all() and (np.diff(plan.expert) >= 0).all()
    assert step.charged.plan_ns(plan) <= step.charged.plan_ns(home(step))


def watch_plans(engine, see):
    """Call ``see(view)`` with what the policy sees of every step."""
    decide = engine.decision.decide

    def seen(allocate, view):
        see(view)
        return decide(allocate, view)

    engine.decision.decide = seen


@pytest.mark.parametrize(
    ("known", "changes"),
    [
        (False, {}),
        (False, {"contention": "reserved"}),
        (False, {"execution": "expert_parallel"}),
        (False, {"dispatch": "per_token_expert"}),
        (True, {"dispatch": "per_token_expert", "reads": "together", "gemm": "calibrated"}),
    ],
    ids=str,
)
def test_a_plan_takes_what_the_policy_was_told_and_telling_changes_nothing(known, changes):
    """Where counts say all: only they are known, or every vector is sent by itself and no product depends on how many
    distinct tokens a die receives.
    """
    assumptions = load_assumptions("physical", decision_cost="free", **changes)
    system, model, spec = small_system(), small_model(), policy("ep")
    demand, routing = demand_of(model, system, spec, routing=known), traffic(model).steps(np.arange(BATCH), 3)
    run = replay(system, model, spec, assumptions, demand, routing, AnalyticalEngine)
    told, engine = [], run.engine

    def state():
        return [*engine.memory, *engine.tally, engine.execution.gemm_time()]

    def ask(view):
        before = pickle.dumps(state())
        told.append(view.charged.plan_ns(home(view)))
        assert view.charged.plan_ns(home(view)) == told[-1] and view.charged.rates.row_ns >= 0
        assert before == pickle.dumps(state()) and told[-1] > 0

    watch_plans(engine, ask)
    step_ns = run.run().step_ns
    assert told == pytest.approx(step_ns[step_ns > 0], rel=1e-9)


def test_copies_of_a_die_are_read_there_and_stay_as_they_are():
    run = engine_of(small_system(), small_model(), policy("pred"), load_assumptions("physical", decision_cost="free"))
    found = []

    def ask(view):
        copies = run.engine.memory.copies
        order = copies.ring.tobytes(), copies.room.tobytes()
        plan = home(view)
        there = np.argwhere(view.copied_slices[plan.expert] == 3)
        if len(there):
            entry, die = there[0]
            moved = plan._replace(die=np.where(np.arange(len(plan.die)) == entry, die, plan.die).astype(np.int32))
            found.append(view.charged.plan_ns(moved))
        assert (copies.ring.tobytes(), copies.room.tobytes()) == order

    watch_plans(run.engine, ask)
    run.run()
    assert found and min(found) > 0


class Silent:
    """An execution that cannot say what a plan takes."""

    def __init__(self, setup):
        self._setup = setup

    def step(self, order, now_ns):
        return now_ns + 1.0


def test_an_execution_that_cannot_tell_is_named():
    assumptions = load_assumptions("physical", execution=f"{__name__}:Silent")
    run = engine_of(small_system(), small_model(), policy("allo-lp"), assumptions)
    with pytest.raises(ArchsimError, match="execution Silent has no method 'time_of'.*weighs plans"):
        run.run()
