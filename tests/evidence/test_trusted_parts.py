"""What time rests on: shares add up, errors are those of the widths, and a measured machine is known better."""

import numpy as np
import pytest

from archsim.evidence.trust import trust
from archsim.search.options import experiment_with
from archsim.specs.uncertainty import load_widths


@pytest.fixture(scope="module")
def of():
    known = {}

    def find(name):
        if name not in known:
            trace = {"synthetic": {"like": "model", "prompt_tokens": 0}}
            workload = {"trace": trace, "batch": 512, "context": 1024}
            known[name] = trust(experiment_with(systems=[name], models=["qwen3-30b-a3b"], workload=workload), {})
        return known[name]

    return find


@pytest.mark.parametrize("name", ["dojo", "h100_node"])
def test_the_parts_are_all_of_the_time(of, name):
    assert sum(each.share for each in of(name).parts) == pytest.approx(1, abs=1e-6)
    assert of(name).sentence.partition(" ")[0] == "A" and of(name).system in of(name).sentence


def test_errors_are_those_of_points_that_no_fit_saw(of):
    kernels = next(each for each in of("dojo").parts if each.name == "kernels of experts")
    levels = load_widths().measured["moe"]["scaled"]
    assert "h100" in kernels.source and f"{levels.points:,}" in kernels.source
    assert kernels.off.p05 < levels.common[0] - 1 and kernels.off.p95 > levels.common[-1] - 1  # shapes add to them


def test_a_measured_machine_is_known_better_than_a_wafer(of):
    wafer, rack = of("dojo"), of("h100_node")
    assert rack.measured and not wafer.measured and rack.off.width < wafer.off.width / 3
    whole = sum(each.share * each.factors for each in wafer.parts)
    assert np.allclose(whole - 1, wafer.factors)
