"""Of archsim.runs.policy_notes."""

import pytest

from archsim.runs.plan import prepare
from archsim.runs.policy_notes import LUCK, policy_notes
from archsim.runs.simulator import Simulator
from archsim.specs.library import load_experiment

TOY = {
    "name": "toy", "source": "made up", "layers": 2, "moe_layers": {"first": 1, "last": 1}, "hidden": 1024,
    "expert_ffn": 2048, "experts": 24, "top_k": 2, "shared_experts": 1,
}  # fmt: skip


SYSTEM = {
    "name": "small", "source": "made up", "mesh": {"x": 3, "y": 2}, "hbm": {"bandwidth": "2 TB/s", "capacity": "4 GB"},
    "d2d": {"bandwidth": "1 TB/s"}, "compute": {"peak": "50 TFLOP/s", "dtype": "fp16"},
}  # fmt: skip


ROOFLINE = {"set": "physical", "gemm": "roofline", "memory": "experts"}


SPEEDS = {"name": "fast", "allocation": {"name": "isca26", "needs": "speeds"}}


def experiment_of(policies=("ep",), engine="analytical", assumptions=ROOFLINE, **keys):
    return {
        "name": "as_built", "systems": [SYSTEM | keys], "models": [TOY], "policies": list(policies),
        "workload": {"trace": {"synthetic": {"prompt_tokens": 0}}, "batch": [600], "decode_steps": 2},
        "assumptions": [assumptions], "engine": engine,
    }  # fmt: skip


def rows(policies=("ep",), engine="analytical", assumptions=ROOFLINE, **keys):
    """Results of every policy: row, and columns of dies."""
    found = prepare(load_experiment(experiment_of(policies, engine, assumptions, **keys)))
    simulator = Simulator(found.traces)
    return [simulator.record(run) for run in found.runs]


def decode_ns(**keys):
    return [each["row"]["decode_ns"] for each in rows(**keys)]


def table(*speeds):
    return {"dies_as_built": {"speed": {"table": [list(each) for each in speeds]}}}


@pytest.mark.parametrize("part", ["array", "hbm"])
def test_a_rule_that_sees_a_faster_die_loses_no_more_than_luck(part):
    times = []
    for speed in (0.8, 1.0, 1.2):
        factors = [[1.0, 1.0] for _ in range(6)]
        factors[4][part == "hbm"] = speed
        times += decode_ns(policies=(SPEEDS,), **table(*factors))
    assert times[1] <= times[0] * (1 + LUCK) and times[2] <= times[1] * (1 + LUCK)


def test_what_luck_may_cost_a_rule_that_sees_speeds_is_said_where_dies_differ():
    unequal = [each["row"] for each in rows(policies=("allo", SPEEDS), **table((0.8, 1.0)))]
    (note,) = [each for each in policy_notes(unequal) if "By luck" in each]
    assert "(fast)" in note and "up to 3%" in note
    assert not [each for each in policy_notes([each["row"] for each in rows(policies=(SPEEDS,))]) if "By luck" in each]
