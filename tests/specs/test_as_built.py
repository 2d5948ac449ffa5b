"""What a system says of its dies and links as they are built: what counts, and what is refused, with its place."""

import numpy as np
import pytest

from archsim.base.errors import SpecError
from archsim.specs.library import load_experiment, load_planned

EXPERIMENT = {
    "name": "as_built",
    "models": ["deepseek-v3"],
    "workload": {"trace": {"synthetic": {}}, "batch": [64], "context": 376},
    "policies": ["ep"],
}


def system(**keys):
    return load_experiment(EXPERIMENT | {"systems": [{"like": "dojo", "name": "wafer"} | keys]}).systems[0]


def test_nothing_written_is_nothing_stored():
    perfect = system()
    assert perfect.built is None and perfect.dies == perfect.sites == 25
    assert not {"dies_as_built", "links_as_built", "spares", "drawn"} & set(perfect.model_dump(by_alias=True))


def test_dead_dies_are_none_of_the_machine():
    found = system(dies_as_built={"dead": [7, 12]})
    assert (found.dies, found.sites, found.shape) == (23, 25, "23 dies of 5 × 5 mesh")
    assert 7 not in found.built.living and 12 not in found.built.living


def test_spare_rows_keep_the_shape_of_the_mesh():
    found = system(dies_as_built={"dead": [7]}, spares={"rows": 1})
    assert found.shape == "5 × 4 of 5 × 5 mesh" and found.built.sides == (5, 4)
    assert [found.built.living[row * 5 + 2] for row in range(4)] == [2, 12, 17, 22]  # column 2 has moved up
    assert [found.built.living[row * 5 + 1] for row in range(4)] == [1, 6, 11, 16]


def test_spare_dies_are_the_slowest():
    table = [[1.0, 1.0]] * 3 + [[0.9, 1.0]]
    found = system(dies_as_built={"speed": {"table": table}}, spares={"dies": 1})
    assert found.built.idle == (3,) and found.dies == 24


def test_a_table_of_speeds_is_read_and_kept(tmp_path):
    (tmp_path / "speeds.csv").write_text("die,speed,hbm\n0,97 %,1\n24,1.05,0.9\n")
    file = tmp_path / "wafer.yaml"
    file.write_text(
        "name: w\nsystems: [{like: dojo, name: w, dies_as_built: {speed: {table: speeds.csv}}}]\n"
        "models: [deepseek-v3]\nworkload: {trace: {synthetic: {}}, batch: [64], context: 376}\npolicies: [ep]\n"
    )
    built = load_experiment(file).systems[0].built
    assert (built.array[0], built.array[1], built.array[24], built.hbm[24]) == (0.97, 1.0, 1.05, 0.9)


def test_wafers_are_an_axis_and_equal_numbers_draw_equal_wafers():
    drawn = {"link_failure": "1 %", "wafers": 3}
    plan = load_planned(
        EXPERIMENT | {"systems": ["dojo", {"like": "dojo", "name": "wafer", "drawn": drawn}]}
    )
    assert plan.combinations == 6
    assert [len({id(plan.point(at).system) for at in range(first, 6, 2)}) for first in (0, 1)] == [1, 3]


def test_more_defects_kill_more_dies_of_the_same_draw():
    def dead(density, **more):
        drawn = {"defects_per_cm2": density, "die_area": "600 mm2", "core_area": "400 mm2", "wafers": 2, "wafer": 1}
        return system(drawn=drawn, **more).built

    few, many = dead(0.1), dead(0.3)
    assert set(few.dead) < set(many.dead)
    harvested = dead(0.3, dies_as_built={"harvest": {"cores": 128, "needed": 112}})
    assert set(harvested.dead) < set(many.dead)
    assert min(harvested.array) < 1 and all(1 - 16 / 128 <= speed <= 1 for speed in harvested.array)


@pytest.mark.parametrize(
    ("keys", "at", "says"),
    [
        ({"links_as_built": {"dead": [[3, 25]]}}, "links_as_built.dead.0", "dies 0 to 24; the nearest link is [3, 8]"),
        ({"power": {"clocks": "each"}}, "power.clocks", "no limit lowers a clock; give power a limit"),
        ({"dies_as_built": {"dead": [25]}}, "dies_as_built.dead.0", "no die 25 in 5 × 5 mesh; expected 0 to 24"),
        ({"dies_as_built": {"dead": [7, 7]}}, "dies_as_built.dead.1", "die 7 is listed twice"),
        ({"dies_as_built": {"dead": [1, 5]}}, "dies_as_built.dead", "no route reaches die 0"),
        ({"dies_as_built": {"dead": list(range(25))}}, "dies_as_built", "every die is dead"),
        ({"links_as_built": {"dead": [[7, 9]]}}, "links_as_built.dead.0", "the nearest is [7, 8]"),
        ({"links_as_built": {"dead": [[7, 30]]}}, "links_as_built.dead.0", "there is no die 30"),
        (
            {"links_as_built": {"dead": [[7, 8]], "degraded": [{"link": [8, 7], "bandwidth": "50 %"}]}},
            "links_as_built.degraded.0.link", "listed already",
        ),
        ({"links_as_built": {"degraded": [{"link": [7, 8], "bandwidth": "150 %"}]}}, "bandwidth", "at most 1"),
        ({"spares": {"rows": 5}}, "spares.rows", "at most 4"),
        ({"spares": {"dies": 30}}, "spares.dies", "at most 24"),
        ({"spares": {"rows": 1, "dies": 1}}, "spares.dies", "expected one of rows, columns and dies"),
        ({"spares": {"rows": 1}, "dies_as_built": {"dead": [7, 12]}}, "spares", "column 2 has 2 dead dies"),
        ({"spares": {"rows": 1}, "topology": "ring"}, "spares.rows", "expected spares: {dies: 1}"),
        ({"dies_as_built": {"harvest": {"cores": 8, "needed": 9}}}, "harvest.needed", "at most 8"),
        ({"dies_as_built": {"speed": {"sigma": "30 %"}}}, "speed.sigma", "expected 0 to 15%"),
        ({"dies_as_built": {"speed": {"table": [[0.0, 1.0]]}}}, "speed.table", "out of range"),
        ({"dies_as_built": {"speed": {"table": [[1, 1]] * 26}}}, "speed.table", "has die 25"),
        ({"dies_as_built": {"speed": {"table": "none.csv"}}}, "speed.table", "no such file"),
        ({"drawn": {"wafers": 2, "wafer": 2}}, "drawn.wafer", "expected 0 to 1"),
    ],
)  # fmt: skip
def test_what_is_refused(keys, at, says):
    with pytest.raises(SpecError) as refused:
        system(**keys)
    assert at in str(refused.value) and says in str(refused.value)


def test_the_yield_of_draws_is_that_of_the_price():
    from archsim.laws.wafer import Defects, Draw, good_cores, harvested_yield, yield_of

    plain = Defects(0.2, 2.0, 600.0)
    alive = good_cores(Draw(1, 0), 20_000, plain) > 0
    assert alive.mean() == pytest.approx(yield_of(600.0, 0.2, 2.0), abs=0.01)
    cored = Defects(0.2, 2.0, 600.0, 400.0, 64, 62)
    share = harvested_yield(600.0, 400.0, 0.2, 2.0, 64, 62)
    good = good_cores(Draw(1, 0), 20_000, cored)
    assert (good > 0).mean() == pytest.approx(share, abs=0.01)
    assert np.all((good == 0) | (good >= 62 / 64))
    assert harvested_yield(600.0, 400.0, 0.2, 2.0, 1, 1) == pytest.approx(yield_of(600.0, 0.2, 2.0), rel=1e-9)
