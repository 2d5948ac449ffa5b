"""Laws of intervals, indices and two fidelities, on functions whose answers are known."""

import numpy as np
import pytest

import archsim as ar
from archsim.base.errors import ArchsimError
from archsim.base.uncertain import SHAPES, Distribution
from archsim.base.validation import validate
from archsim.base.yaml import dump_yaml, parse_yaml
from archsim.machine.system import SystemSpec
from archsim.runs.run import plain_text
from archsim.uncertainty.correction import correct
from archsim.uncertainty.estimate import (
    expand,
    fastest_shares,
    indices,
    interval,
    narrow,
    order,
    pair,
    refuse_shares,
    worth_knowing,
)
from archsim.uncertainty.plateau import best_value, ratio_of
from archsim.uncertainty.worlds import draws_of


def by_name(draws, values):
    return {each.name: each for each in indices(expand(draws, values), draws, values)}


def test_ishigamis_function_has_its_known_indices():
    draws = draws_of(["a", "b", "c", "unread"], 512)
    a, b, c = (np.pi * (2 * draws[name] - 1) for name in "abc")
    found = by_name(draws, np.sin(a) + 7 * np.sin(b) ** 2 + 0.1 * c**4 * np.sin(a))
    assert [found[name].first for name in "abc"] == pytest.approx([0.3139, 0.4424, 0.0], abs=0.03)
    assert [found[name].total for name in "abc"] == pytest.approx([0.5576, 0.4424, 0.2437], abs=0.03)
    assert (found["unread"].first, found["unread"].total) == (0, 0)
    assert all(each.total_error < 0.05 for each in found.values())


def test_a_linear_case_has_the_closed_form():
    weights = {"a": 3.0, "b": 2.0, "c": 1.0, "d": 0.0}
    draws = draws_of(list(weights), 256)
    values = 10 + sum(weight * draws[name] for name, weight in weights.items())
    found = by_name(draws, values)
    for name, weight in weights.items():
        assert found[name].first == pytest.approx(weight**2 / 14, abs=1e-3)
        assert found[name].total == pytest.approx(weight**2 / 14, abs=1e-3)
    assert values.var() == pytest.approx(14 / 12, rel=0.02)
    # knowing a and b leaves c: 90 % of an even draw of width 1
    known = narrow(expand(draws, values), draws, values, ["a", "b"])
    assert known.width == pytest.approx(0.9, rel=0.03) and known.p50 == pytest.approx(13, abs=0.05)


@pytest.mark.parametrize("draws", [12, 20])
def test_two_worlds_a_draw_tell_shares(draws):
    assert refuse_shares(draws, 2 * draws) == ""
    assert f"Use --samples {2 * draws} or more" in refuse_shares(draws, 2 * draws - 1)
    weights = np.array([1.0, 0.5, 0.3] + [0.1] * (draws - 3))
    for seed in range(2):
        drawn = draws_of([str(at) for at in range(draws)], 2 * draws, seed)
        values = sum(weight * drawn[str(at)] for at, weight in enumerate(weights))
        found = by_name(drawn, values)
        assert sum(each.first for each in found.values()) <= 1 + 1e-9
        for at, share in enumerate(weights[:3] ** 2 / (weights**2).sum()):
            assert found[str(at)].total == pytest.approx(share, abs=0.16)


def test_noise_has_no_index():
    draws, rng = draws_of(list("abcdefgh"), 128), np.random.default_rng(0)
    found = by_name(draws, draws["a"] + 0.05 * rng.normal(size=128))
    assert found["a"].first > 0.9 and sum(found[name].total for name in "bcdefgh") < 0.02


def test_without_spread_the_interval_is_the_value_to_the_bit():
    value = 182_053_000.1234567
    same = np.full(64, value)
    assert set(interval(same)) == {value}
    assert set(correct(np.full(64, 3.7), np.full(16, value))) == {value}
    assert all(each.total == 0 for each in indices(expand(draws_of(["a"], 64), same), draws_of(["a"], 64), same))


def test_common_draws_narrow_a_ratio():
    draws = draws_of(["shared", "own"], 256)
    one = 1 + draws["shared"]
    other = one * (1.1 + 0.05 * draws["own"])
    together, apart = interval(other / one), interval(np.roll(other, 7) / one)
    assert together.width < 0.2 * apart.width


def test_two_fidelities_have_the_mean_of_the_better_one():
    draws = draws_of(["a", "b"], 1024)
    better = 3 + 2 * draws["a"] + 0.1 * np.sin(9 * draws["b"])
    fast = 1 + 0.5 * draws["a"]
    found = correct(fast, better[:16])
    error = 0.1 / np.sqrt(2) / np.sqrt(16)
    assert found.mean() == pytest.approx(better.mean(), abs=3 * error)
    assert np.array_equal(found[:16], better[:16])
    assert interval(found).width == pytest.approx(interval(better).width, rel=0.05)


def test_an_order_is_sure_or_a_tie():
    draws = draws_of(["a", "b"], 256)
    ns = {"one": 1 + draws["a"], "two": (1 + draws["a"]) * 1.2, "three": 0.9 + draws["b"] * 1.2}
    assert pair("one", "two", ns).sure and pair("one", "two", ns).ratio.p50 == pytest.approx(1.2)
    coin = pair("one", "three", ns)
    assert not coin.sure and coin.probability + coin.reverse == pytest.approx(1, abs=0.01)
    assert order(ns)[-1] == "two" and sum(fastest_shares(ns).values()) == pytest.approx(1)
    same = pair("one", "same", {"one": ns["one"], "same": ns["one"] * 1.0005})
    assert not same.sure and same.probability == 0  # faster by less than can be told
    equal = fastest_shares({"a": ns["one"], "b": ns["one"] * 0.9999, "slow": ns["two"]})
    assert equal == {"a": 0.5, "b": 0.5, "slow": 0.0}  # no order where there is a tie


def test_knowing_what_decides_is_worth_something_and_the_rest_nothing():
    draws = draws_of(["decides", "same"], 256)
    rates = {"a": 1 + draws["decides"] + draws["same"], "b": 1.5 + draws["same"]}
    expansions = {name: expand(draws, values) for name, values in rates.items()}
    assert worth_knowing(expansions, draws, ["same"]) == pytest.approx(0, abs=1e-3)
    # the mean of max(decides, 1/2) is 5/8, in place of 1/2, of a rate of 2
    assert worth_knowing(expansions, draws, ["decides"]) == pytest.approx(0.125 / 2, rel=0.05)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_range_means_what_its_shape_says(shape):
    made = Distribution(shape, 1.0, 2.0, 4.0)
    found = interval(made.at(draws_of(["a"], 1024)["a"]))
    if shape in ("normal", "lognormal"):
        assert found == pytest.approx((1, 2, 4), rel=0.02)
    else:
        assert 1 <= made.ends[0] < found.p05 < found.p95 < made.ends[1] <= 4


def test_draws_are_the_same_for_the_same_names_and_few_are_refused():
    one, two = draws_of(["a", "b"], 32), draws_of(["a", "b"], 32)
    assert all(np.array_equal(one[name], two[name]) for name in one)
    with pytest.raises(ArchsimError, match="at least 16"):
        draws_of(["a"], 15)


# ---- Numbers with a range in YAML: the value is read as ever, the range beside it, and what is wrong is said with
# its place.

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


@pytest.mark.parametrize("written", ["{value: 2 TB/s, range: [1.8, 2.1], source: a sheet}",
                                     "{value: 2000 GB/s, range: [1800, 2100]}"])  # fmt: skip
def test_ranges_survive_a_manifest(written):
    ranged = parse_yaml(SYSTEM.format(bandwidth=written), "x").data
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


def test_the_cheapest_of_equal_values_is_named_and_an_end_is_said():
    noise = np.random.default_rng(0).lognormal(0, 0.3, 64)  # common to all values
    rates = [each * noise for each in (1.0, 1.2, 1.201, 1.202)]
    found = best_value(rates, [1.0, 2.0, 3.0, 4.0], [1, 2, 4, 8])
    assert found == (3, (1, 2, 3), 1, 0, "") and not found.flat  # from the second on nothing is gained
    assert best_value([each * noise for each in (1.0, 1.2, 1.4)], numbers=[1, 2, 4]).end == "largest"
    own = np.random.default_rng(1).lognormal(0, 0.3, 64)
    assert best_value([noise, 1.02 * own]).flat  # ahead in about half of the samples: a tie
    assert best_value([noise, noise]).flat
    assert ratio_of(np.array([0.0, 1.0]), np.zeros(2)) == (1.0, 1.0, np.inf)
