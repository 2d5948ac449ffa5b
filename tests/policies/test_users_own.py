"""A user's own functions: what they get is theirs, what they return is checked, and messages name them."""

import re
from pathlib import Path

import numpy as np
import pytest
from support.html_page import text_of_report
from support.small_runs import engine_of, policy, small_model, small_system
from support.tables import table_of
from support.tiny import TINY

from archsim.base.compiled import kernel
from archsim.base.errors import ArchsimError
from archsim.cli.main import main
from archsim.engine.decision import ALLOCATION, ASIDE
from archsim.policies.allocation import NO_EFFORT, Effort, Plan, home
from archsim.policies.rebalancing import Rebalanced
from archsim.policies.replication import Replicas
from archsim.specs.library import load_assumptions

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


@kernel
def first_die(step):
    return step.home[0]


def compiled_with_step(step):
    first_die(step)
    return home(step)


def compiled_as_it_should_be(step):
    first_die(step.compiled)
    return home(step)


def lists(step):
    plan = home(step)
    return Plan(plan.expert.tolist(), plan.die.tolist(), plan.tokens.tolist())


def uneven(step):
    plan = home(step)
    return Plan(plan.expert, plan.die[1:], plan.tokens)


def unknown_expert(step):
    plan = home(step)
    return Plan(plan.expert + 100, plan.die, plan.tokens)


def limited(step, limit=3):
    return home(step)


def states_no_effort(step, limit):
    return limited(step, limit)._replace(effort=NO_EFFORT)


def states_its_effort(step):
    return home(step)._replace(effort=Effort(True, 3, np.ones(3, np.int64), np.ones(3, np.int64)))


STATED = {}  # by `told`, as the test of efforts sets it


def told(*seen):
    """Any rule, by its first argument; what it does is that of expert parallelism, its effort what a test states."""
    first, effort = seen[0], STATED["effort"]
    if hasattr(first, "tokens") and hasattr(first, "home"):
        return home(first)._replace(effort=effort)
    if len(seen) == 2:
        return Rebalanced(seen[1], effort)
    return Replicas(np.zeros(first.holders.shape, bool), effort, STATED.get("in_sight_ns", 0.0))


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


@table_of(__file__, "own_functions")
def test_what_is_wrong_is_told_with_the_function(part, function, said):
    target = f"test_users_own:{function}"
    with pytest.raises(ArchsimError) as refused:
        simulate(**{part: target})
    pattern = f"{target}: {said}".replace("(", r"\(").replace(")", r"\)")
    assert re.fullmatch(pattern, str(refused.value))


# ---- The effort that any of them returns. `small_model` has 20 experts, and its batch uses all of them.

ACTIVE = 20
TOLD = "test_users_own:told"
DOORS = {
    "allocation": TOLD,
    "rebalancing": {"name": TOLD, "every_steps": 1},
    "replication": {"name": TOLD, "slots": 1},
}
EACH = "at most 20 entries (one for each active expert that it places), each a whole number from 0 to 2^24"
WHOLE = "a whole number ≥ 0 (at most 2^53)"
NOTHING = "no counts: a decision beside the steps is charged by operations and statistics_bytes"


def efforts(field, value):
    """An effort that is right but for one field."""
    return Effort(True, 3, np.ones(ACTIVE), np.ones(ACTIVE))._replace(**{field: value})


def run_told(door, effort, **more):
    STATED.clear()
    STATED.update(effort=effort, **more)
    spec = policy("ep", **{door: DOORS[door]})
    return engine_of(small_system(), small_model(), spec, load_assumptions("physical", decision_cost="charged")).run()


@pytest.mark.parametrize(("effort", "said"), [
    (efforts("candidates", np.ones(3)), "effort.blocks has 20 entries, expected 3, as many as candidates has"),
    (efforts("blocks", np.ones(50 * ACTIVE, int)), f"effort.blocks has 1000 entries, expected {EACH}"),
    (efforts("candidates", np.full(ACTIVE, -5)), f"effort.candidates is -5 at entry 0, expected {EACH}"),
    (efforts("blocks", np.full(ACTIVE, np.nan)), f"effort.blocks is nan at entry 0, expected {EACH}"),
    (efforts("blocks", [1] * 19 + [0.5]), f"effort.blocks is 0.5 at entry 19, expected {EACH}"),
    (efforts("blocks", np.full(ACTIVE, 2**60)), f"effort.blocks is {2**60} at entry 0, expected {EACH}"),
    (efforts("candidates", 2), f"effort.candidates is 2, expected {EACH}"),
    (efforts("candidates", None), f"effort.candidates is None, expected {EACH}"),
    (efforts("candidates", ["a"] * ACTIVE), f"effort.candidates is {str(['a'] * ACTIVE)[:60]}…, expected {EACH}"),
    (efforts("candidates", np.ones((ACTIVE, 2))), f"effort.candidates has the shape [20, 2], expected {EACH}"),
    (efforts("candidates", [[1], [1, 2]]), f"effort.candidates is [[1], [1, 2]], expected {EACH}"),
    (efforts("candidates", []), "effort.blocks has 20 entries, expected 0, as many as candidates has"),
    (efforts("candidates", np.ones(21)), f"effort.candidates has 21 entries, expected {EACH}"),
    (efforts("sorted_experts", -1), f"effort.sorted_experts is -1, expected {WHOLE}"),
    (efforts("operations", float("nan")), f"effort.operations is nan, expected {WHOLE}"),
    (efforts("operations", 10**30), f"effort.operations is {10**30}, expected {WHOLE}"),
    (efforts("operations", np.ones(2)), f"effort.operations has 2 entries, expected {WHOLE}"),
    (efforts("statistics_bytes", None), f"effort.statistics_bytes is None, expected {WHOLE}"),
    (efforts("global_demand", 115), "effort.global_demand is 115, expected True or False"),
    (efforts("speeds", None), "effort.speeds is None, expected True or False"),
    (7, "effort is int; expected archsim.extend.Effort, or None where none is stated"),
], ids=lambda each: each.partition(",")[0] if isinstance(each, str) else "")  # fmt: skip
def test_an_effort_that_cannot_be_is_told_with_the_field(effort, said):
    with pytest.raises(ArchsimError) as refused:
        run_told("allocation", effort)
    assert str(refused.value) == f"allocation {TOLD}: {said}"


@pytest.mark.parametrize("door", ["rebalancing", "replication"])
def test_efforts_beside_the_steps_are_checked_too(door):
    for effort, said in (
        (NO_EFFORT._replace(operations=-5), f"effort.operations is -5, expected {WHOLE}"),
        (NO_EFFORT._replace(statistics_bytes=np.nan), f"effort.statistics_bytes is nan, expected {WHOLE}"),
        (NO_EFFORT._replace(blocks=np.ones(3)), f"effort.blocks has 3 entries, expected {NOTHING}"),
        (NO_EFFORT._replace(sorted_experts=2), f"effort.sorted_experts is 2, expected {NOTHING}"),
    ):
        with pytest.raises(ArchsimError) as refused:
            run_told(door, effort)
        assert str(refused.value) == f"{door} {TOLD}: {said}"
    assert not run_told(door, NO_EFFORT._replace(global_demand=True, operations=9)).decision.uncharged - {ALLOCATION}


def test_replicas_cannot_take_negative_time():
    for given in (-1.0, np.nan, np.inf, None):
        with pytest.raises(ArchsimError, match=f"in_sight_ns is {given}, expected a finite number of ns ≥ 0"):
            run_told("replication", NO_EFFORT, in_sight_ns=given)


@pytest.mark.parametrize(("door", "part"), [("allocation", ALLOCATION), ("rebalancing", ASIDE), ("replication", ASIDE)])
def test_no_effort_is_one_that_is_not_stated(door, part):
    missing, left_out = run_told(door, None), run_told(door, NO_EFFORT)
    assert part in missing.decision.uncharged and missing.decision.uncharged == left_out.decision.uncharged
    assert (missing.step_ns == left_out.step_ns).all()


def test_whole_numbers_of_any_kind_are_an_effort():
    kinds = (list, np.array, lambda ones: np.array(ones, np.uint8), lambda ones: np.array(ones, np.float32))
    one, *others = (run_told("allocation", Effort(np.bool_(True), 3.0, kind([1] * ACTIVE), kind([1] * ACTIVE)))
                    for kind in kinds)  # fmt: skip
    assert one.decision.states_ns.sum() > 0
    assert all((each.decision.states_ns == one.decision.states_ns).all() for each in others)


def test_rows_of_any_kind_of_integers_are_a_plan():
    one, other = simulate()[1], simulate(allocation="test_users_own:lists")[1]
    assert (one.step_ns == other.step_ns).all()


def test_a_compiled_function_takes_the_compiled_view():
    one, other = simulate()[1], simulate(allocation="test_users_own:compiled_as_it_should_be")[1]
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


@table_of(__file__, "own_parameters")
def test_check_compares_parameters_with_the_function(tmp_path, monkeypatch, capsys, rule, said):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    file = tmp_path / "tiny.yaml"
    file.write_text(re.sub("policies: .*", f"policies: [{{name: mine, allocation: {rule}}}]", TINY))
    assert main(["check", str(file)]) == (2 if said else 0)
    assert (said or "") in capsys.readouterr().err


def test_own_functions_without_effort_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.chdir(tmp_path)
    mine = "[ep, {name: silent, allocation: {name: 'test_users_own:states_no_effort', limit: 1}}, "
    mine += "{name: told, allocation: 'test_users_own:states_its_effort'}]"
    text = re.sub("policies: .*", f"policies: {mine}", TINY).replace("assumptions: published", "assumptions: physical")
    (tmp_path / "tiny.yaml").write_text(text.replace("[12, 40]", "12"))
    assert main(["sweep", "tiny.yaml", "--jobs", "1", "--samples", "0"]) == 0
    note = "Decisions of policy silent take no time, because test_users_own:states_no_effort returns no Effort"
    said, page = capsys.readouterr().err, text_of_report(tmp_path / "reports/tiny")
    assert note in said and note in page and "Decisions of policy told" not in said + page
