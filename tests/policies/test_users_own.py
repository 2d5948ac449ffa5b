"""A user's own functions: what they get is theirs, what they return is checked, and messages name them."""

import re

import numpy as np
import pytest
from support.small_runs import engine_of, policy, small_model, small_system

from archsim.base.errors import ArchsimError
from archsim.policies.allocation.rules import Plan, home
from archsim.specs.loading.library import load_assumptions

DIES = 6


def wide(experts, dies):
    return np.arange(experts)


def negative(experts, dies):
    return np.full(experts, -1)


def short(experts, dies):
    return np.zeros(3, np.int32)


def fractions(experts, dies):
    return np.full(experts, 0.5)


def nothing(*_):
    return None


def fails(*_, **__):
    raise RuntimeError("no idea")


def lists(step):
    plan = home(step)
    return Plan(plan.expert.tolist(), plan.die.tolist(), plan.tokens.tolist())


def uneven(step):
    plan = home(step)
    return Plan(plan.expert, plan.die[1:], plan.tokens)


def unknown_expert(step):
    plan = home(step)
    return Plan(plan.expert + 100, plan.die, plan.tokens)


def halves(step):
    plan = home(step)
    return Plan(plan.expert, plan.die + 0.5, plan.tokens)


def empties_the_demand(step):
    step.tokens[:] = 0
    return home(step)


def sums(heat, changed, out):
    out[:] = heat.sum() % 251


def sums_and_empties(heat, changed, out):
    sums(heat, changed, out)
    heat[:] = 0


def simulate(**parts):
    system, model, spec = small_system(), small_model(), policy("ep", **parts)
    engine = engine_of(system, model, spec, load_assumptions("physical"))
    return engine.demands, engine.run()


@pytest.mark.parametrize(
    ("part", "function", "message"),
    [
        ("placement", wide, "the home of expert 6 is die 6; the system has 0 to 5"),
        ("placement", negative, "the home of expert 0 is die -1; the system has 0 to 5"),
        ("placement", short, "returns 3 homes for 20 experts"),
        ("placement", fractions, "the homes must be a row of integers, got float64 of shape (20,)"),
        ("placement", nothing, "the homes must be a row of integers, got object of shape ()"),
        ("placement", fails, "RuntimeError: no idea (.*test_users_own.py:[0-9]+)"),
        ("allocation", nothing, "returns NoneType; expected archsim.policies.allocation.rules.Plan"),
        ("allocation", fails, "RuntimeError: no idea (.*test_users_own.py:[0-9]+)"),
        ("allocation", uneven, "the columns of the plan differ in length: 20 of expert, 19 of die, 20 of tokens"),
        ("allocation", unknown_expert, "the plan names expert 100; the model has 0 to 19"),
        ("allocation", halves, "die of the plan must be a row of integers, got float64 of shape (20,)"),
        ("prediction", fails, "RuntimeError: no idea (.*test_users_own.py:[0-9]+)"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_wrong_is_told_with_the_function(part, function, message):
    target = f"test_users_own:{function.__name__}"
    with pytest.raises(ArchsimError) as refused:
        simulate(**{part: target})
    pattern = f"{target}: {message}".replace("(", r"\(").replace(")", r"\)")
    assert re.fullmatch(pattern, str(refused.value))


def test_rows_of_any_kind_of_integers_are_a_plan():
    one, other = simulate()[1], simulate(allocation="test_users_own:lists")[1]
    assert (one.step_ns == other.step_ns).all()


def test_an_allocation_cannot_change_the_demand():
    """Which other policies share."""
    with pytest.raises(ArchsimError, match="has .* tokens, the plan assigns 0"):
        simulate(allocation="test_users_own:empties_the_demand")


def test_a_predictor_cannot_change_the_heatmap():
    one, other = (
        simulate(prediction=f"test_users_own:{name}")[0].predicted_rows for name in ("sums", "sums_and_empties")
    )
    assert one[-1].any() and (one == other).all()
