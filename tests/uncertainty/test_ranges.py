"""Numbers with a range in YAML: the value is read as ever, the range beside it, and what is wrong is said with its
place.
"""

import pytest

import archsim as ar
from archsim.base.errors import SpecError
from archsim.base.yaml import dump_yaml, parse_yaml, validate
from archsim.runs.run import plain_text
from archsim.specs.system import SystemSpec

SYSTEM = """name: small
source: a test
mesh: {{x: 2, y: 2}}
hbm: {{bandwidth: {bandwidth}, capacity: 80 GB}}
d2d: {{bandwidth: 1.5 TB/s, hop_latency: 200 ns}}
compute: {{peak: 1000 TFLOP/s, dtype: fp8}}
"""


def system(bandwidth):
    return validate(SystemSpec, parse_yaml(SYSTEM.format(bandwidth=bandwidth), "small.yaml"))


def test_the_value_is_read_as_if_it_stood_alone():
    plain, ranged = system("2 TB/s"), system("{value: 2 TB/s, range: [1.8, 2.1], distribution: triangular}")
    assert ranged.model_dump() == plain.model_dump() and plain_text(ranged) == plain_text(plain)
    assert ranged != plain and hash(ranged) == hash(plain)  # a cache must not give one for the other
    found = ranged.hbm.ranges["bandwidth_bytes_per_s"].distribution
    assert (found.shape, found.low, found.centre, found.high) == ("triangular", 1.8e12, 2e12, 2.1e12)
    assert plain.hbm.ranges == {}


def test_bounds_may_have_units_of_their_own():
    found = system("{value: 2 TB/s, range: [1800 GB/s, 2.1 TB/s]}").hbm.ranges["bandwidth_bytes_per_s"]
    assert (found.distribution.low, found.distribution.high) == (1.8e12, 2.1e12)


@pytest.mark.parametrize(
    ("written", "key", "problem"),
    [
        ("{range: [1.8, 2.1]}", "hbm.bandwidth.range", "a range stands beside its value"),
        ("{value: 2 TB/s, range: [2.1, 2.2]}", "hbm.bandwidth.range", "does not contain the value, 2 TB/s"),
        ("{value: 2 TB/s, range: [1.8, 2.1], distribution: trianglar}", "hbm.bandwidth.distribution",
         "unknown distribution 'trianglar'; did you mean 'triangular'?"),
        ("{value: 2 TB/s, range: [1.8, 2000]}", "hbm.bandwidth.range.1", "not plausible for a bandwidth here"),
        ("{value: 2 TB/s, range: [-1, 3]}", "hbm.bandwidth.range.0", "must be positive"),
        ("{value: 2 TB/s, range: 3}", "hbm.bandwidth.range", "expected two bounds such as [1.35, 1.5]"),
        ("{value: 2 TB/s, range: [0.1, 4], distribution: normal}", "hbm.bandwidth.range", "tails"),
        ("{value: 2 TB/s, rnge: [1, 3]}", "hbm.bandwidth.rnge", "unknown key; did you mean 'range'?"),
        ("{value: 2 TB/s, range: [1, 3], group: 7}", "hbm.bandwidth.group", "expected text"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_file_line_and_key(written, key, problem):
    with pytest.raises(SpecError) as caught:
        system(written)
    assert str(caught.value).startswith(f"small.yaml:4: {key}: ") and problem in str(caught.value)


def test_ranges_survive_a_manifest():
    ranged = parse_yaml(SYSTEM.format(bandwidth="{value: 2 TB/s, range: [1.8, 2.1], source: a sheet}"), "x").data
    made = ar.load({
        "name": "one", "systems": [ranged], "models": ["mixtral-8x7b"], "policies": ["base"],
        "workload": {"trace": {"synthetic": {}}, "batch": 4, "decode_steps": 1}, "assumptions": ["physical"],
    })  # fmt: skip
    again = ar.load(parse_yaml(dump_yaml(made.resolved()), "manifest").data)
    assert again.systems[0].hbm.ranges == made.systems[0].hbm.ranges
    assert again.resolved() == made.resolved()


def test_an_axis_replaces_a_value_with_its_range():
    ranged = parse_yaml(SYSTEM.format(bandwidth="{value: 2 TB/s, range: [1.8, 2.1]}"), "x").data
    plan = ar.load({
        "name": "one", "systems": [ranged], "models": ["mixtral-8x7b"], "policies": ["base"],
        "workload": {"trace": {"synthetic": {}}, "batch": 4, "decode_steps": 1}, "assumptions": ["physical"],
        "sweep": {"grid": {"system.hbm.bandwidth": ["1 TB/s", "3 TB/s"]}},
    })  # fmt: skip
    assert [plan.point(at).system.hbm.bandwidth_bytes_per_s for at in (0, 1)] == [1e12, 3e12]
    assert plan.point(0).system.hbm.ranges == {}


def test_a_value_is_set_by_its_path_and_checked():
    changed = system("2 TB/s").with_value(("hbm", "bandwidth_bytes_per_s"), 1e12)
    assert changed.hbm.bandwidth_bytes_per_s == 1e12 and changed.d2d == system("2 TB/s").d2d
    with pytest.raises(ValueError, match="plausible"):
        changed.with_value(("hbm", "bandwidth_bytes_per_s"), 1e30)
