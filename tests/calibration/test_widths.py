"""Widths of laws are learned from points that no fit saw, and cover what they say they do."""

from functools import lru_cache

import numpy as np
import pytest
from support.examples import sampled

from archsim.base.validation import validate as yaml_validate
from archsim.base.yaml import read_yaml
from archsim.specs.uncertainty import UncertaintySpec, load_widths
from calibration.fit.coverage import BEGIN, END, LEVELS, by_way, coverage_of, with_table, with_widths
from calibration.fit.residuals import TableResiduals
from calibration.fit.widths import bounds, levels_of


def tables(common, own, tails=0.0, count=60, points=40, seed=0):
    """Residuals of two levels; ``tails``: share of points whose own part is five times as wide."""
    rng = np.random.default_rng(seed)
    wide = np.where(rng.random((count, points)) < tails, 5.0, 1.0)
    of = rng.normal(0.1, common, (count, 1)) + own * wide * rng.normal(size=(count, points))
    return [TableResiduals("moe", "scaled", f"table {at}", row) for at, row in enumerate(of)]


@lru_cache
def covered(*widths):
    return coverage_of(tables(*widths))


@pytest.mark.parametrize(
    ("common", "own", "tails"),
    sampled([(0.2, 0.05, 0.0), (0.02, 0.2, 0.0), (0.1, 0.1, 0.15)], lambda case: case[2] > 0),
)
def test_learned_intervals_cover_other_tables(common, own, tails):
    found = covered(common, own, tails)
    assert found.within == pytest.approx(LEVELS, abs=0.08)
    low, high = bounds(*levels_of(tables(common, own, tails, seed=1)), 0.9)
    assert low < 0.1 < high and np.exp(high - low) == pytest.approx(found.width, rel=0.3)


def test_what_tables_have_in_common_is_told_from_what_points_have():
    wide, narrow = levels_of(tables(0.3, 0.03))
    assert np.ptp(np.log(wide)) > 3 * np.ptp(np.log(narrow))
    narrow, wide = levels_of(tables(0.03, 0.3))
    assert np.ptp(np.log(wide)) > 3 * np.ptp(np.log(narrow))


def test_widths_are_put_into_the_file_that_runs_read(tmp_path):
    file = tmp_path / "widths.yaml"
    text = (load_file()).read_text(encoding="utf-8")
    file.write_text(with_widths(text, {("moe", "scaled"): tables(0.2, 0.05)}), encoding="utf-8")
    found, before = yaml_validate(UncertaintySpec, read_yaml(file, "widths.yaml")), load_widths()
    levels = found.measured["moe"]["scaled"]
    assert levels.points == 2400
    assert levels.level("common").at(np.array([0.5]))[0] == pytest.approx(1.105, rel=0.1)
    assert found.measured["gemm"] == before.measured["gemm"] and found.defaults == before.defaults


def test_kinds_leave_gpus_out_and_refuse_one_alone():
    """A kind of kernel leaves whole GPUs out; collectives of all kinds are pooled, too; quantiles are no points."""
    of = [each._replace(section="dispatch", how="fit") for each in tables(0.1, 0.1, count=8, points=10)]
    with pytest.raises(ValueError, match="one GPU"):
        coverage_of(of)
    assert coverage_of([each._replace(table=f"gpu{at % 2} x") for at, each in enumerate(of)]).tables == 8
    assert set(by_way(of)) == {("dispatch", "fit"), ("collectives", "fit")}
    text = load_file().read_text(encoding="utf-8")
    sparse = [each._replace(section="sparse", how="nearest_shape") for each in of]
    (line,) = set(with_widths(text, by_way(sparse)).splitlines()) - set(text.splitlines())
    assert "points: 0" in line and "8 tables, by their 5, 50 and 95 % quantiles" in line


def test_a_page_keeps_what_is_around_its_table():
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    found = with_table(page, [covered(0.1, 0.1, 0.15)])
    assert found.startswith("before") and found.endswith("after\n")
    assert "| moe | scaled |" in found and "old" not in found


def load_file():
    from archsim.base.config_files import search_folders

    return search_folders("uncertainty", None)[0] / "widths.yaml"
