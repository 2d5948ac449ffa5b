"""The values of a sweep axis: a list, or a range with a count or to be sampled."""

import pytest

from archsim.specs.axis_values import counted_values


@pytest.mark.parametrize(("given", "values"), [
    ({"from": "1 TB/s", "to": "4 TB/s", "step": "1 TB/s"}, ("1 TB/s", "2 TB/s", "3 TB/s", "4 TB/s")),
    ({"from": "0.1 TB/s", "to": "0.35 TB/s", "step": "0.1 TB/s"}, ("100 GB/s", "200 GB/s", "300 GB/s")),
    ({"from": "1 TB/s", "to": "8 TB/s", "log": 3}, ("1 TB/s", "2.82843 TB/s", "8 TB/s")),
    ({"from": "32 MiB", "to": "128 MiB", "factor": 2}, ("32 MiB", "64 MiB", "128 MiB")),
    ({"from": 1, "to": 64, "factor": 4}, (1, 4, 16, 64)),
    ({"from": 1, "to": 4, "linear": 7}, (1, 2, 3, 4)),
    ({"from": 0.0, "to": 1.0, "linear": 3}, (0.0, 0.5, 1.0)),
    ({"from": "10 %", "to": "30 %", "step": "10 %"}, ("10 %", "20 %", "30 %")),
])  # fmt: skip
def test_ranges_are_counted_out(given, values):
    assert counted_values(given) == values


@pytest.mark.parametrize("given", [
    {"from": "100 TFLOP/s", "to": "1000 TFLOP/s", "log": 1500},
    {"from": "50 ns", "to": "240 ns", "linear": 1500},
    {"from": 1, "to": 1200, "linear": 1500},
    {"from": 0.1, "to": 0.2, "linear": 1500},
    {"from": "1 KiB", "to": "3 MiB", "step": "1 KiB"},
])  # fmt: skip
def test_many_values_of_a_range_are_those_of_few_and_are_checked_at_the_ends(given, monkeypatch):
    many = counted_values(given)
    monkeypatch.setattr("archsim.specs.axis_values._MANY", 10_000)
    assert list(many) == list(counted_values(given)) and many.telling == [0, len(many) - 1]
