"""Fronts, volumes and the search with two fidelities, checked against definitions and exhaustive answers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsim.studies.exploration.analysis import as_costs, fronts, hypervolume, pareto
from archsim.studies.exploration.search import search, search_each

POINTS = st.integers(1, 3).flatmap(lambda m: st.lists(st.tuples(*[st.integers(0, 6)] * m), min_size=1, max_size=40))


def dominates(one, other) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


@given(POINTS)
def test_front_is_what_nothing_dominates(points):
    costs = np.array(points, float)
    expected = [not any(dominates(other, point) for other in points) for point in points]
    assert pareto(costs).tolist() == expected


def test_blocks_of_points_change_nothing():
    costs = np.random.default_rng(3).random((1700, 2))
    order = np.lexsort(costs.T[::-1])
    best = np.minimum.accumulate(costs[order][:, 1])
    expected = np.zeros(1700, bool)
    expected[order] = np.append(True, costs[order][1:, 1] < best[:-1])
    assert (pareto(costs) == expected).all()


def test_unknown_and_failed_are_never_on_a_front():
    costs = as_costs(np.array([[1.0, 5.0], [np.nan, 9.0], [2.0, 4.0]]), ("min", "max"))
    assert costs[0].tolist() == [1.0, -5.0] and pareto(costs).tolist() == [True, False, False]


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=12))
def test_volume_is_the_number_of_unit_cubes_that_are_dominated(points):
    cubes = {(x, y, z) for px, py, pz in points for x in range(px, 5) for y in range(py, 5) for z in range(pz, 5)}
    assert hypervolume(np.array(points, float), np.full(3, 5.0)) == pytest.approx(len(cubes))


def test_volume_ignores_what_is_beyond_the_reference():
    assert hypervolume(np.array([[1.0, 9.0]]), np.array([5.0, 5.0])) == 0.0


def space(seed: int, points: int = 500):
    """Throughput (to maximise), energy and area; estimates have an error per family and noise; area is exact."""
    rng = np.random.default_rng(seed)
    families = rng.integers(0, 5, points)
    area = rng.lognormal(0, 0.6, points)
    speed = area**0.7 * rng.lognormal(0, 0.35, points)
    energy = speed**0.4 / area**0.2 * rng.lognormal(0, 0.25, points)
    true = np.stack([-speed, energy, area], axis=1)
    error = np.exp(rng.normal(0, 0.15, (5, 2))[families] + rng.normal(0, 0.05, (points, 2)))
    return true * np.concatenate([error, np.ones((points, 1))], axis=1), true, families


@pytest.mark.parametrize("seed", range(6))
def test_search_finds_the_front_with_few_runs(seed):
    """At least 99 % of the volume of the exhaustive front with 15 % of the runs, about the size of the front."""
    cheap, true, families = space(seed)
    asked = []

    def run(points):
        asked.extend(points)
        return true[points]

    found = search(cheap, families, run, budget=75)
    reference = true.max(axis=0) + 1e-9
    best, reached = hypervolume(true[pareto(true)], reference), hypervolume(true[found.front], reference)
    assert len(asked) == len(set(asked)) == found.known.sum() <= 75
    assert reached >= 0.99 * best
    assert (found.values[found.known] == true[found.known]).all() and found.known[found.front].all()


def test_an_exact_estimate_needs_its_front_and_samples_only():
    _, true, families = space(1)
    found = search(true, families, lambda points: true[points], budget=500)
    assert found.stable and (found.front == pareto(true)).all()
    assert found.known.sum() <= pareto(true).sum() + 2 * 5


def test_failed_runs_are_skipped():
    cheap, true, families = space(2)
    broken = true.copy()
    broken[::3] = np.nan
    found = search(cheap, families, lambda points: broken[points], budget=200)
    assert found.front.any() and not found.front[::3].any()


def test_budget_is_kept_and_reported():
    cheap, true, families = space(0)
    found = search(cheap, families, lambda points: true[points], budget=20)
    assert found.known.sum() == 20 and not found.stable


def test_every_model_has_its_own_front():
    """The points of one model never keep those of another off the front, and the budget holds for all together."""
    cheap, true, families = space(3)
    models = ["small" if at % 3 else "large" for at in range(len(true))]
    larger = np.array([model == "large" for model in models])
    true[larger], cheap[larger] = true[larger] + 100.0, cheap[larger] + 100.0  # dominated by every small one
    asked = []

    def run(points):
        asked.extend(points)
        return true[points]

    found = search_each(cheap, families + 5 * larger, models, run, budget=120)
    assert len(asked) == len(set(asked)) == found.known.sum() <= 120
    assert found.front[larger].any() and found.front[~larger].any() and found.known[found.front].all()
    best = fronts(true, models)
    assert best[larger].sum() == pareto(true[larger]).sum() and best[~larger].sum() == pareto(true[~larger]).sum()


def test_search_is_deterministic():
    cheap, true, families = space(4)
    one, other = (search(cheap, families, lambda points: true[points], budget=75, seed=9) for _ in range(2))
    assert (one.known == other.known).all() and (one.front == other.front).all()
