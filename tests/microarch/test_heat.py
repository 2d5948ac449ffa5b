"""Laws of the heat grid: conservation, closed forms, symmetry, and that more cooling never heats anything."""

import numpy as np
import pytest
from scipy.special import k1

from microarch.silicon.heat import Heat, plane

AREA = {"compute": 200.0, "llc": 80.0, "hbm": 70.0, "d2d": 50.0, "decision": 1.0}
MESH = [(x, y) for y in range(3) for x in range(4)]


def heat(cells=1, lateral=True, resistance=0.05, stacks=4, coolant=25.0, places=MESH):
    return Heat(places, [0] * len(places), AREA, stacks, resistance, coolant, cells, lateral)


def drawn(dies=12, seed=0):
    watt = np.random.default_rng(seed).uniform(5.0, 400.0, (3, dies))
    return {"compute": watt[0], "llc": watt[1] / 4, "": watt[2] / 8}, watt[1] / 3


@pytest.mark.parametrize(("cells", "lateral"), [(1, True), (3, True), (2, False)])
def test_heat_that_comes_in_leaves(cells, lateral):
    machine, (blocks, stacks) = heat(cells, lateral), drawn()
    found = machine.of(blocks, stacks, np.full(12, 30.0))
    every = np.concatenate([found.cells_c.ravel(), found.hbm_c]) - 25.0
    put_in = sum(each.sum() for each in blocks.values()) + stacks.sum() + found.leakage_w.sum()
    assert machine._grid.out_w(every) == pytest.approx(put_in, rel=1e-9)


def test_a_slab_of_uniform_power_is_at_its_resistance_times_power():
    even = plane(7, 5, 0.09, 0.25).above_k(np.full(35, 3.0))
    assert even == pytest.approx(np.full(35, 12.0), rel=1e-12)
    found = heat(cells=4, stacks=0).of({"": np.full(12, 100.0)}, 0.0, np.zeros(12))
    assert found.die_c == pytest.approx(25.0 + 100.0 * 0.05, rel=1e-9)


def test_a_symmetric_map_has_a_symmetric_field():
    watt = np.arange(12.0).reshape(3, 4)
    watt = watt + watt[::-1] + (watt + watt[::-1])[:, ::-1]
    found = heat(cells=3).of({"compute": watt.ravel() * 5}, watt.ravel(), np.full(12, 10.0))
    field = found.cells_c.reshape(3, 4, 3, 3).transpose(0, 2, 1, 3).reshape(9, 12)
    assert field == pytest.approx(field[::-1], rel=1e-9) and field == pytest.approx(field[:, ::-1], rel=1e-9)
    assert found.hbm_c.reshape(3, 4) == pytest.approx(found.hbm_c.reshape(3, 4)[::-1, ::-1], rel=1e-9)


def test_a_hot_strip_is_that_of_a_fin_as_the_grid_is_refined():
    """A strip of half-width a on a long plate: q / h (1 - exp(-a / l)), l = sqrt(k t / h) (Incropera, 3.6)."""
    errors = []
    for n in (10, 20, 40):
        cell, sheet, h, a = 1 / n, 0.09, 0.01, 2.0
        columns = 60 * n + 1
        x = (np.arange(columns) - columns // 2) * cell
        inside = np.clip((a - np.abs(x)) / cell + 0.5, 0, 1)
        found = plane(columns, 1, sheet, h * cell**2).above_k(inside * 0.5 * cell**2)
        exact = 0.5 / h * (1 - np.exp(-a / np.sqrt(sheet / h)))
        errors.append(abs(found[columns // 2] / exact - 1))
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.001


def test_a_hot_disc_is_as_its_closed_form_within_a_percent():
    """A disc of radius a on a wide plate: q / h (1 - a / l K1(a / l)) in its middle."""
    for n, most in ((4, 0.03), (10, 0.01)):
        cell, sheet, h, a = 1 / n, 0.09, 0.01, 2.0
        side = 40 * n + 1
        x = (np.arange(side) - side // 2) * cell
        fine = (np.arange(8) - 3.5) / 8 * cell
        inside = (np.hypot.outer(x[:, None] + fine, x[:, None] + fine) < a).mean(axis=(1, 3))
        found = plane(side, side, sheet, h * cell**2).above_k(inside.ravel() * 0.5 * cell**2)
        length = np.sqrt(sheet / h)
        exact = 0.5 / h * (1 - a / length * k1(a / length))
        assert found[len(found) // 2] == pytest.approx(exact, rel=most)


def test_more_cooling_heats_nothing_and_leakage_cools_nothing():
    blocks, stacks = drawn(seed=3)
    hot, cool, colder = (
        heat(2, resistance=resistance, coolant=coolant).of(blocks, stacks, np.full(12, 40.0))
        for resistance, coolant in ((0.06, 25.0), (0.04, 25.0), (0.04, 15.0))
    )
    assert (hot.die_c > cool.die_c).all() and (cool.die_c > colder.die_c).all()
    assert (hot.hbm_c > cool.hbm_c).all() and (hot.leakage_w > cool.leakage_w).all()
    less = heat(2, resistance=0.04).of(blocks, stacks, np.full(12, 20.0))
    assert (less.die_c < cool.die_c).all()


def test_a_hot_die_warms_its_neighbours_only_through_the_carrier():
    watt = np.zeros(12)
    watt[5] = 300.0
    joined, apart = (heat(lateral=lateral).of({"compute": watt}, 0.0, np.zeros(12)) for lateral in (True, False))
    assert (joined.die_c > 25.0).all() and joined.die_c[5] < apart.die_c[5]
    assert apart.die_c == pytest.approx(25.0 + 0.05 * watt)
    assert joined.die_c[5] > joined.die_c[4] > joined.die_c[0]


def test_leakage_that_runs_away_is_infinite():
    found = heat(resistance=2.0).of({"": np.full(12, 60.0)}, 0.0, np.full(12, 40.0))
    assert np.isinf(found.die_c).all()
