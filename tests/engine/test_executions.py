"""Executions: chosen by name, and added from outside the package."""

import gc
import sys
import weakref
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
from support.small_runs import engine_of, policy, small_model, small_system

from archsim.base.errors import SpecError
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.executions.execution import GemmTime
from archsim.engine.executions.weight_streaming import WeightStreaming
from archsim.runs.plan import prepare
from archsim.runs.simulator import Simulator
from archsim.specs.assumptions import ASSUMPTIONS
from archsim.specs.library import load_assumptions

TOKEN_NS = 3.0


class Toy:
    """Every token takes its die 3 ns; nothing moves."""

    def __init__(self, setup):
        self._dies, self.steps = setup.machine.dies, 0

    def step(self, order, now_ns):
        self.steps += 1
        return now_ns + TOKEN_NS * np.bincount(order.plan.die, order.plan.tokens, self._dies).max()

    def log(self, begin_ns):
        return {}

    def gemm_time(self):
        return GemmTime(0.0, 0.0)


def check(outcome, run):
    assert (outcome.step_ns == TOKEN_NS * outcome.load.max(axis=2)).all()
    assert (outcome.load.sum(axis=2) == run.demands.tokens.sum(axis=2)).all()
    assert outcome.tally.hops.sum() == 0


@pytest.mark.parametrize(("name", "set_name"), [("allo+pred", "published"), ("allo-paper", "physical")])
def test_a_run_that_is_over_leaves_no_memory(name, set_name):
    """Memories are large: several would stand beside each other if they waited for the collector of cycles."""
    run = engine_of(small_system(), small_model(), policy(name), load_assumptions(set_name))
    run.run()
    left = [weakref.ref(each) for each in (run.engine, run.engine.execution)]
    gc.disable()
    try:
        del run
        assert [each() for each in left] == [None, None]
    finally:
        gc.enable()


def test_every_value_of_the_assumption_has_a_module():
    assert list(ASSUMPTIONS["execution"])
    for name in ASSUMPTIONS["execution"]:
        assert callable(import_module(f"archsim.engine.executions.{name}").build)
    for name in ("physical", "published"):
        assert load_assumptions(name).execution == "weight_streaming"


def test_the_default_streams_weights():
    assert isinstance(
        engine_of(small_system(), small_model(), policy("ep"), load_assumptions("physical")).engine.execution,
        WeightStreaming,
    )


def test_an_execution_of_a_user_runs():
    run = engine_of(
        small_system(),
        small_model(),
        policy("ep"),
        load_assumptions("physical", execution="test_executions:Toy", decision_cost="free"),
    )
    check(run.run(), run)
    assert run.engine.execution.steps == np.count_nonzero(run.demands.tokens.any(axis=2))


def test_a_module_and_a_value_are_an_execution(monkeypatch):
    monkeypatch.setitem(sys.modules, "archsim.engine.executions.toy", SimpleNamespace(build=Toy))
    assumptions = load_assumptions("physical", decision_cost="free").model_copy(update={"execution": "toy"})
    run = engine_of(small_system(), small_model(), policy("ep"), assumptions)
    check(run.run(), run)


def test_the_analytical_engine_asks_the_same_execution():
    from support.small_runs import demand_of, replay

    system, model, spec = small_system(), small_model(), policy("ep")
    assumptions = load_assumptions("physical", execution="test_executions:Toy", decision_cost="free")
    run = replay(system, model, spec, assumptions, demand_of(model, system, spec), engine=AnalyticalEngine)
    check(run.run(), run)


def test_unknown_executions_are_told():
    with pytest.raises(SpecError, match="did you mean 'weight_streaming'"):
        load_assumptions("physical", execution="weight_streamin")


def test_a_sweep_runs_it_and_its_code_is_part_of_the_run(tmp_path):
    from support.tiny import tiny

    own = tiny(
        tmp_path, "assumptions={set: physical, execution: 'test_executions:Toy'}", "policies=[ep]",
        "workload.batch=[12]",
    )
    run = prepare(own).runs[0]
    assert run.scenario.own_functions == ("test_executions:Toy",)
    assert Simulator().record(run)["row"]["hop_messages"] == 0
    plain = prepare(tiny(tmp_path, "assumptions=physical", "policies=[ep]", "workload.batch=[12]")).runs[0]
    assert run.code != plain.code and run.key != plain.key
