"""Hints at the name that was meant: near ones, or those of which it is a part; none where nothing is like it."""

import pytest

from archsim.base.errors import nearest


@pytest.mark.parametrize(("name", "valid", "meant"), [
    ("alo", ["allo", "base"], "allo"), ("h200", ["dojo", "h200_node"], "h200_node"),
    ("Hop-Latency", ["hop_latency"], "hop_latency"), ("lanes", ["atu_entries", "executor"], None),
    ("serving", ["numbering", "name"], None), ("qwen3-235b", ["qwen3-32b", "qwen3-235b-a22b"], "qwen3-235b-a22b"),
])
def test_the_nearest_name(name, valid, meant):
    assert nearest(name, valid) == meant
