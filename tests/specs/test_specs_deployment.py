"""How a model is spread over devices, and which number formats it computes in."""

import copy
from itertools import permutations

import pytest

from archsim.base.errors import SpecError
from archsim.base.yaml import Place, Tree, parse_value
from archsim.serving.answers.runs import serve_plan
from archsim.specs.deployment import fitting
from archsim.specs.serving_files import load_serving
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


@pytest.mark.parametrize("there", [900, "900", [900], None, {"fixed": 900}])
def test_a_length_takes_the_place_of_anything_and_is_a_number(there):
    tree = Tree({"requests": {"input": there}}, {(): Place("file")})
    put_key(tree, ("input",), 800, "x", lambda *given: None)
    assert tree.find(("requests", "input")) in ({"fixed": 800}, {"mean": 800})
    for value in (None, [1, 2], True):
        put_key(tree, ("input",), value, "x", lambda *given: None)
        assert tree.find(("requests", "input")) == value


def test_the_machine_of_a_gpu_does_not_depend_on_the_order_of_keys():
    sizes = ["parallel.attention={dp: 2, tp: 8}", "parallel.experts={ep: 16}"]
    for texts in permutations(["gpu=h200", *sizes]):
        assert load_serving("serve_h200", texts).system.name == "h200_cluster"
    axes = ["gpu=h200", "sweep={grid: {parallel: [{attention: {tp: 8}}, {attention: {tp: 16}}]}}"]
    assert [each.system.name for each in serve_plan("serve_h200", axes).points] == ["h200_node", "h200_cluster"]
    axes = ["parallel={attention: {tp: 16}}", "gpu=h200", "sweep={grid: {system: [h200, b200]}}"]
    assert [each.system.name for each in serve_plan("serve_h200", axes).points] == ["h200_cluster", "b200_cluster"]


def test_a_key_of_the_machine_that_is_named_replaces_that_key_alone():
    """Also of a list, and of the machine that an axis names."""
    served = {
        "system": "h200_node", "model": "olmoe-1b-7b", "parallel": {"attention": {"tp": 8}},
        "requests": {"concurrency": 4, "input": {"fixed": 512}, "output": {"fixed": 32}, "count": 100},
    }  # fmt: skip
    changes = ["system.hbm.bandwidth=1 TB/s", "system.fabric.levels.0.bandwidth=50 GB/s"]
    before, after = (load_serving(served, given).system for given in ((), changes))
    assert after.hbm.bandwidth_bytes_per_s == 1e12 and after.fabric.levels[0].bandwidth_bytes_per_s == 50e9
    assert after.hbm.capacity_bytes == before.hbm.capacity_bytes and after.compute == before.compute
    swept = served | {"sweep": {"grid": {"system": ["b200_node"]}}}
    assert (found := load_serving(swept, changes).system).name == "b200_node" and found.hbm == found.hbm.model_copy(
        update={"bandwidth_bytes_per_s": 1e12}
    )
    with pytest.raises(SpecError, match="^--set system.hbm.bandwith=1: .*did you mean 'bandwidth'"):
        load_serving(served, ["system.hbm.bandwith=1"])


def test_each_side_has_its_machine_where_routing_is_from_traffic():
    side = {"parallel": {"attention": {"tp": 8}}}
    found = load_serving({
        "system": "h200_node", "model": "olmoe-1b-7b", "routing": {"like": "model"}, "policies": ["ep"],
        "requests": {"arrivals": {"rate": "4/s"}, "input": {"fixed": 512}, "output": {"fixed": 32}, "count": 100},
        "disaggregated": {"prefill": side | {"system": "b200_node"}, "decode": side},
    })  # fmt: skip
    assert found.machines["prefill"].system.name == "b200_node"
