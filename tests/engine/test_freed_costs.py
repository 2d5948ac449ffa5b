"""An assumption that frees a cost never lengthens a step: random cases, plans held fixed.

Cases whose policy keeps copies are left out: which slices a die copies follows from when they arrive, so that another
timing is another plan.
"""

import pytest
from support.better_machines import GEMM, random_case
from support.small_runs import demand_of, policy, replay, small_model, small_system

from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.engine import EventEngine
from archsim.specs.library import load_assumptions

ENGINES = (EventEngine, AnalyticalEngine)
SLOWER = 0.005
FREED = {
    "activations": "ignored", "transfer_software": "free", "weights": "routed", "decision_cost": "free",
    "tables": "unbounded", "migration": "free",
}  # fmt: skip


def longer(case):
    """(field, engine, by how much) of every freed cost with which the case takes longer."""
    charged = case.assumptions.model_copy(update={"decision_cost": "charged", "heatmap_update": "limited"})
    found = []
    for engine in ENGINES:
        plans: list = []
        before = case._replace(assumptions=charged).run(engine, None, plans)
        for field, value in FREED.items():
            if getattr(charged, field) != value:
                freed = case._replace(assumptions=charged.model_copy(update={field: value}))
                after = freed.run(engine, None, plans)
                if after > before * (1 + SLOWER):
                    found.append((field, engine.__name__, after / before - 1, case.name))
    return found


def cases(count, execution, gemm):
    every = (random_case(number, execution, gemm) for number in range(count))
    return [case for case in every if not case.policy.predicts]


@pytest.mark.parametrize("gemm", GEMM)
def test_freeing_a_cost_lengthens_no_run(gemm):
    assert [each for case in cases(8, "weight_streaming", gemm) for each in longer(case)] == []


def test_nor_one_of_an_expert_parallel_group():
    assert [each for case in cases(12, "expert_parallel", "grouped") for each in longer(case)] == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("execution", ["weight_streaming", "expert_parallel"])
@pytest.mark.parametrize("name", ["base", "ep"])
def test_a_free_transfer_leaves_kernels_that_permute_what_they_receive(name, execution, engine):
    """Many tokens on many dies: a kernel over the tokens of the whole group once took longer than the transfers."""
    system, model, took_ns = small_system(4, 4), small_model(experts=64, top_k=8, shared_experts=0), {}
    for activations in ("dispatched", "ignored", "replicated"):
        assumptions = load_assumptions(
            "physical", execution=execution, activations=activations, decision_cost="free", memory="experts"
        )
        demand = demand_of(model, system, policy(name), batch=1024)
        run = replay(system, model, policy(name), assumptions, demand, engine=engine)
        took_ns[activations] = run.run().decode_ns
    assert took_ns["ignored"] < took_ns["dispatched"]
    assert took_ns["ignored"] < 0.95 * took_ns["replicated"]
