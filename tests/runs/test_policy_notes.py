"""Of archsim.runs.policy_notes."""

import pytest
from support.as_built import decode_ns, rows, table

from archsim.runs.policy_notes import LUCK, policy_notes

SPEEDS = {"name": "fast", "allocation": {"name": "isca26", "needs": "speeds"}}


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
