"""The page on speed is what `benchmarks/speed.py` makes of its table."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "speed.py"


@pytest.fixture(scope="module")
def speed():
    spec = importlib.util.spec_from_file_location("benchmark_speed", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_made_of_the_table(speed):
    machine, table = speed.kept()
    assert speed.PAGE.read_text() == speed.page(table, machine)
    assert {speed.kind_of(point) for point in table} == {*speed.SIZES, *speed.RATIOS, "commands"}
    assert all(point.value > 0 for point in table if point.axis in speed.SIZES)


def test_exponents_are_those_of_the_points(speed):
    sizes = [4, 16, 64]
    assert speed.fitted(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx((3, 1.5))
    rows = [speed.Point("layers", "an engine", size, 3 * size**1.5) for size in sizes]
    page = speed.page([*rows, speed.Point("ratio", "one over another", 0, 7.0)], "a machine")
    assert "| an engine | 24 | 192 | 1,536 | layers^1.50 |" in page and "| one over another | 7 |" in page


def test_figures_are_given_in_reference_kernels_that_were_timed_beside_them(speed, monkeypatch):
    times = iter([0.02, 0.04, 0.06])
    monkeypatch.setattr(speed, "reference_s", lambda: next(times))
    points = speed.Point("layers", "an engine", 4, 0.6), speed.Point("ratio", "steps/s of an engine", 0, 100.0)
    slow, fast = speed.referenced(iter(points))
    assert slow.in_references == pytest.approx(20) and fast.in_references == pytest.approx(5)
    assert (speed.both(slow), speed.both(fast)) == ("0.6 (20 ref)", "100 (5 ref)")
    assert speed.Point("ratio", "one over another", 0, 7.0, 0.03).in_references is None
