"""How a model is spread over devices, and which number formats it computes in."""

import copy

import pytest

from archsim.base.yaml import Place, Tree, parse_value
from archsim.specs.deployment import fitting
from archsim.specs.serving_keys import put_key


def test_sizes_that_fit_are_named():
    assert fitting(128, 72) == "64 or 32 fit"
    assert fitting(7, 4) == "1 fits"


@pytest.mark.parametrize(
    ("change", "key", "expected"),
    [
        ("gpu=h100", "system", "h100_node"), ("system=H100", "system", "h100_node"),
        ("gpu=dojo", "system", "dojo"), ("input=900", "requests.input", {"fixed": 900}),
        ("output.mean=90", "requests.output", {"mean": 90}),
    ],
)  # fmt: skip
def test_a_gpu_or_a_number_stands_for_its_machine_or_length(change, key, expected):
    served = {
        "system": "h200_node", "model": "olmoe-1b-7b", "parallel": {"attention": {"tp": 8}},
        "requests": {"arrivals": {"rate": "40/s"}, "input": {"fixed": 512}, "output": {"fixed": 32}, "count": 100},
    }  # fmt: skip
    tree = Tree(copy.deepcopy(served), {(): Place("file")})
    name, _, value = change.partition("=")
    put_key(tree, tuple(name.split(".")), parse_value(value, "x"), "x", lambda *given: None)
    assert tree.find(tuple(key.split("."))) == expected
    many = Tree(served | {"instances": 3}, {(): Place("file")})
    put_key(many, ("gpu",), "h100", "x", lambda *given: None)
    assert many.find(("system",)) == "h100_cluster"
