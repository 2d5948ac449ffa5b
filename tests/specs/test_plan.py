"""Expands a sweep to its points, one at a time."""

from support.sweeps import one_of_everything, points_of

from archsim.runs.point_measures import PartMeasures
from archsim.specs.plan import CONSTRAINT_MEASURES


def test_measures_are_those_of_the_machine(tmp_path):
    plan = one_of_everything(
        tmp_path, "  grid: {mesh: [2x2, 8x8], hbm.capacity: [4 MB, 4 GB], decision.fsm.lanes: [1, 4096]}\n"
    )
    points, _ = points_of(plan)
    ask = PartMeasures().functions()
    assert set(ask) == set(CONSTRAINT_MEASURES)
    assert [ask["dies"](p) for p in points] == [4] * 4 + [64] * 4
    for name in ("area_mm2", "silicon_mm2", "cost_usd"):
        assert ask[name](points[0]) < ask[name](points[4]), name
    assert ask["area_mm2"](points[0]) < ask["area_mm2"](points[1]), "lanes take silicon"
    # 16 experts of 3 × 512 × 256 × 2 B in 2 layers on 4 dies, and the shared one on each: 7.9 MB a die.
    assert [ask["hbm_capacity"](p) for p in points] == [False, False, True, True] + [True] * 4
    weights = 3 * 512 * 256 * 2 * 2
    assert 0.9 * 4e6 > weights * (16 / 64 + 1) and 0.9 * 4e6 < weights * (16 / 4 + 1)
