"""What the GPUs of an expert-parallel group compute in one step: a grouped kernel each, and the shared experts."""

import numpy as np
import pytest

from archsim.specs.library import load_system


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("power")


def test_grouped_kernels_of_an_expert_parallel_group_follow_the_clock(folder):
    from support.small_runs import policy, scenario_of

    from archsim.engine.machine import build_machine
    from archsim.engine.ranks import OF_ARRAYS, Ranks
    from archsim.policies.allocation import Plan
    from archsim.specs.library import load_assumptions, load_model

    assumptions = load_assumptions("physical", execution="expert_parallel", gemm="grouped")
    scenario = scenario_of(load_system("h100_node"), load_model("deepseek-v3"), policy("ep"), assumptions)
    ranks = Ranks(scenario, build_machine(scenario)[0])
    plan = Plan(np.arange(8, dtype=np.int32), np.arange(8, dtype=np.int32), np.full(8, 64, np.int32))
    found = {}
    for clock in (1.0, 0.5):
        ranks.clock = clock
        found[clock] = ranks.times(plan, np.full(8, 64.0), np.full(8, 64.0))
    for cause, ns in found[0.5].causes.items():
        assert ns == pytest.approx(found[1.0].causes[cause] * (2 if cause in OF_ARRAYS else 1))
    assert (found[0.5].shared_ns >= found[1.0].shared_ns).all()
