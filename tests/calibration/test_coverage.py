"""Widths of laws are learned from points that no fit saw, and cover what they say they do."""

import numpy as np
import pytest

from archsim.base.yaml import read_yaml, validate
from archsim.specs.uncertainty import UncertaintySpec, load_widths
from archsim.uncertainty.quantities import KNOTS, Quantiles
from calibration.fit.coverage import BEGIN, END, LEVELS, Residuals, bounds, judged, levels_of, with_table, with_widths


def tables(common, own, tails=0.0, count=60, points=40, seed=0):
    """Residuals of two levels; ``tails``: share of points whose own part is five times as wide."""
    rng = np.random.default_rng(seed)
    wide = np.where(rng.random((count, points)) < tails, 5.0, 1.0)
    of = rng.normal(0.1, common, (count, 1)) + own * wide * rng.normal(size=(count, points))
    return [Residuals("moe", "scaled", f"table {at}", row) for at, row in enumerate(of)]


@pytest.mark.parametrize(("common", "own", "tails"), [(0.2, 0.05, 0.0), (0.02, 0.2, 0.0), (0.1, 0.1, 0.15)])
def test_learned_intervals_cover_other_tables(common, own, tails):
    found = judged(tables(common, own, tails))
    assert found.within == pytest.approx(LEVELS, abs=0.08)
    low, high = bounds(*levels_of(tables(common, own, tails, seed=1)), 0.9)
    assert low < 0.1 < high and np.exp(high - low) == pytest.approx(found.width, rel=0.3)


def test_what_tables_have_in_common_is_told_from_what_points_have():
    wide, narrow = levels_of(tables(0.3, 0.03))
    assert np.ptp(np.log(wide)) > 3 * np.ptp(np.log(narrow))
    narrow, wide = levels_of(tables(0.03, 0.3))
    assert np.ptp(np.log(wide)) > 3 * np.ptp(np.log(narrow))


def test_quantiles_are_those_given_and_draws_ascend():
    found = Quantiles.of([0.7, 0.9, 1.1, 1.2, 1.9])
    assert found.at(np.array(KNOTS)) == pytest.approx([0.7, 0.9, 1.1, 1.2, 1.9])
    assert (np.diff(found.at(np.linspace(0, 1, 99))) >= 0).all()
    assert found.times(2).at(np.array([0.5]))[0] == pytest.approx(2.2)
    with pytest.raises(ValueError, match="ascending"):
        Quantiles.of([0.7, 0.9, 0.8, 1.2, 1.9])


def test_widths_are_put_into_the_file_that_runs_read(tmp_path):
    file = tmp_path / "widths.yaml"
    text = (load_file()).read_text(encoding="utf-8")
    file.write_text(with_widths(text, {("moe", "scaled"): tables(0.2, 0.05)}), encoding="utf-8")
    found, before = validate(UncertaintySpec, read_yaml(file, "widths.yaml")), load_widths()
    levels = found.measured["moe"]["scaled"]
    assert levels.points == 2400
    assert levels.level("common").at(np.array([0.5]))[0] == pytest.approx(1.105, rel=0.1)
    assert found.measured["gemm"] == before.measured["gemm"] and found.defaults == before.defaults


def test_a_page_keeps_what_is_around_its_table():
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    found = with_table(page, [judged(tables(0.1, 0.1))])
    assert found.startswith("before") and found.endswith("after\n")
    assert "| moe | scaled |" in found and "old" not in found


def load_file():
    from archsim.specs.config_files import search_folders

    return search_folders("uncertainty", None)[0] / "widths.yaml"
