"""Laws of fused MoE layers: loads of ranks are conserved, what layers were made of is found, outliers stay alone."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import sampled
from support.made_up_layers import LAW, MODEL, layers

from archsim.evidence import products
from archsim.evidence import products as validate
from archsim.evidence.engine_layers import calibrations_shipped
from archsim.laws import rank_load
from archsim.laws.calibration_files import calibration_named
from archsim.laws.moe import POINT, law_ns, named_of, time_of_load
from archsim.laws.scaling import MeasuredLayer, Scale, pair_bytes, scaled_law, token_bytes
from archsim.laws.tables import CalibrationSpec, MoeLaw, ReferenceRates
from calibration.fit import moe
from calibration.fit.fit import fit_measurements
from calibration.fit.moe import draw_noise, fit_moe, left_out_errors, moe_ns, moe_pools
from calibration.measurements.reading import Measurements

SKEWED = "power_law_1.2"
ROUTINGS = [("balanced", name) for name in (rank_load.BALANCED, rank_load.GROUPED)] + [
    (SKEWED, name) for name in (rank_load.RANK_BY_RANK, rank_load.SMALLEST_FIRST, rank_load.GROUPED_DRAWS)
]


def loads(how, ep, tokens, distribution=SKEWED):
    return rank_load.rank_loads({**MODEL, "distribution": distribution}, how, LAW, np.array([ep]), np.array([tokens]))


class TestLoads:
    @settings(max_examples=25)
    @given(st.sampled_from(ROUTINGS), st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128]), st.integers(1, 3000))
    def test_a_rank_has_at_least_its_share_and_at_most_all(self, of, ep, tokens):
        distribution, how = of
        (pairs,), (active,) = loads(how, ep, tokens, distribution)
        total = tokens * MODEL["top_k"]
        assert total / ep * 0.99 - 1 <= pairs <= total * 1.01 + 1
        assert 1 <= active <= 128 / ep
        assert active <= max(pairs, 1) + 1e-9

    @pytest.mark.parametrize("distribution, how", ROUTINGS)
    def test_one_rank_computes_all(self, distribution, how):
        assert loads(how, 1, 512, distribution)[0] == pytest.approx(512 * 8, rel=0.01)

    @pytest.mark.parametrize("how", [rank_load.RANK_BY_RANK, rank_load.SMALLEST_FIRST])
    def test_more_ranks_have_less_each(self, how):
        pairs = [loads(how, ep, 512)[0][0] for ep in (1, 2, 4, 8, 16, 32, 64, 128)]
        assert pairs == sorted(set(pairs), reverse=True)

    def test_few_tokens_smallest_first_are_on_one_rank_and_rank_by_rank_on_all(self):
        assert loads(rank_load.SMALLEST_FIRST, 16, 1)[1] > 0.9 * 8
        assert loads(rank_load.RANK_BY_RANK, 8, 1)[1] < 2

    def test_groups_send_half_of_each_token_to_the_first_experts(self):
        pairs, active = loads(rank_load.GROUPED, 32, 1600, "balanced")
        assert active == 4 and pairs[0] == pytest.approx(1600 * (4 + 4 * 4 / 64), rel=0.1)

    def test_what_a_distribution_may_stand_for(self):
        assert rank_load.candidates("qwen", "balanced") == (rank_load.BALANCED,)
        assert rank_load.candidates("qwen", "measured") == (rank_load.BY_CHANCE,)
        assert rank_load.GROUPED_DRAWS in rank_load.candidates("DeepSeek-V3", "power_law_0.6")
        assert rank_load.candidates("DeepSeek-V3", "balanced", "deepepmoe-context") == (rank_load.TILED,)

    @given(st.sampled_from([1, 2, 4, 16, 128]), st.integers(1, 100_000))
    def test_with_an_expert_a_tile_weights_are_read_for_every_tile_at_most(self, ep, tokens):
        (pairs,), (active,) = loads(rank_load.TILED, ep, tokens, "balanced")
        assert pairs == tokens * 8 / ep
        assert (
            active
            == min(max(pairs / rank_load.ROWS_OF_TILE, 1), 128 / ep)
            <= loads(rank_load.BALANCED, ep, tokens, "balanced")[1]
        )


class TestFit:
    @pytest.mark.parametrize("distribution, how", ROUTINGS)
    def test_routing_is_found_and_layers_again(self, distribution, how):
        rows = layers(distribution, how)
        (table,) = fit_moe(rows)
        assert table.routing == how
        times = moe_ns(table, *(rows[name].to_numpy() for name in POINT))
        assert times == pytest.approx(rows["latency_us_median"] * 1e3, rel=0.001)

    def test_what_the_host_takes_to_launch_is_a_floor_and_is_found(self):
        floored = LAW.model_copy(update={"floor_ns": 400_000.0})
        rows = layers(how=rank_load.TILED, law=floored, powers=10).assign(kernel="deepepmoe-context")
        (table,) = fit_moe(rows)
        assert table.law.floor_ns == pytest.approx(400_000, rel=0.01)
        ((named, sweeps),) = moe_pools(rows)
        assert left_out_errors(sweeps, named)["error"].abs().mean() < 0.03
        assert fit_moe(layers())[0].law.floor_ns == 0

    def test_ranks_left_out(self):
        ((named, sweeps),) = moe_pools(layers())
        products = left_out_errors(sweeps, named)
        assert len(products) == 5 * 14 and products["error"].abs().mean() < 0.03
        assert products["floor"].isna().all()

    def test_a_rank_with_another_kernel_says_little_about_its_neighbours(self):
        rows = layers()
        rows.loc[(rows["ep"] == 8), "latency_us_median"] *= 3
        ((named, sweeps),) = moe_pools(rows)
        products = left_out_errors(sweeps, named)["error"].abs().groupby("ep").mean()
        assert products[[1, 2, 4]].max() < 0.01 and products[16] < 0.25 and products[8] > 0.5

    def test_repeats_of_one_version_are_one_table_though_they_disagree(self):
        again = layers().assign(run_id="again")
        again["latency_us_median"] *= 1.2
        (table,) = fit_moe(pd.concat([layers(), again]))
        assert len(table.sweeps) == 2 and {name.partition("/")[2] for name in table.sweeps} >= {"again"}

    def test_releases_that_route_differently_are_apart(self):
        rows = pd.concat(
            [layers(SKEWED, rank_load.SMALLEST_FIRST, "1.0rc1"), layers(SKEWED, rank_load.RANK_BY_RANK, "1.0rc2")]
        )
        assert {(t.version, t.routing) for t in fit_moe(rows)} == {
            ("1.0rc1", rank_load.SMALLEST_FIRST),
            ("1.0rc2", rank_load.RANK_BY_RANK),
        }

    def test_kernels_are_apart(self):
        rows = pd.concat([layers().assign(kernel="a"), layers().assign(kernel="b")])
        rows.loc[rows["kernel"] == "b", "latency_us_median"] *= 2
        slow, fast = (moe_ns(table, [4.0], [1.0], [64.0])[0] for table in reversed(fit_moe(rows)))
        assert slow == pytest.approx(2 * fast, rel=0.01)

    def test_draws_scatter_only_where_something_is_drawn(self):
        (drawn,), (balanced,) = fit_moe(layers(SKEWED, rank_load.RANK_BY_RANK)), fit_moe(layers())
        at = np.array([16.0]), np.array([1.0]), np.array([4096.0])
        assert 0.02 < draw_noise(drawn, *at)[0] < 0.5
        assert np.isnan(draw_noise(balanced, *at)[0])

    def test_equal_measurements_equal_bytes(self):
        rows = layers(SKEWED, rank_load.RANK_BY_RANK, powers=8)
        first = fit_measurements(Measurements({"moe": rows}), "h100")
        rank_load._rank_draws.cache_clear()
        rank_load._counts.cache_clear()
        assert fit_measurements(Measurements({"moe": rows.iloc[::-1]}), "h100") == first


def test_of_noise_between_ranks_none_is_carried():
    """Corrections drawn again at every rank: interpolating them must not be worse than the law alone."""
    generator = np.random.default_rng(3)
    points = tuple(np.array([(ep, 1, 2.0**p) for ep in (1, 2, 4, 8, 16, 32) for p in range(10)], float).T)
    corrections = np.repeat(generator.standard_normal(6) * 0.3, 10)
    _, products = moe.choose(points, corrections)
    assert np.abs(np.expm1(products)).mean() <= np.abs(np.expm1(-corrections)).mean() + 1e-9


def test_rows_are_judged_by_the_table_of_their_kernel():
    rows = pd.concat([layers().assign(kernel="a"), layers().assign(kernel="b")], ignore_index=True)
    rows.loc[rows["kernel"] == "b", "latency_us_median"] *= 2
    reference = ReferenceRates(peak_flop_per_s={"bf16": 1e15}, hbm_bytes_per_s=3e12, sms=132)
    calibration = CalibrationSpec(gpu="h100", reference=reference, moe=fit_moe(rows))
    cases = validate.moe_cases(calibration, Measurements({"moe": rows}))
    assert len(cases) == len(rows) and cases["error"].abs().max() < 0.01


def test_groups_say_what_is_met():
    cases = validate.rank_out_cases(Measurements({"moe": layers()}), "h100")
    (group,) = products.layer_groups(cases).to_dict("records")
    assert (group["met"], group["aim"], group["cases"]) == ("yes", products.AIM_OF["DeepSeek-V3"], 70)
    far = products.layer_groups(cases.assign(error=0.5)).to_dict("records")[0]
    near = products.layer_groups(cases.assign(error=0.07, floor=0.08)).to_dict("records")[0]
    assert (far["met"], near["met"]) == ("no", "floor")
    assert not len(products.layer_groups(cases.iloc[:0]))


def test_the_stricter_aim_is_for_a_model_however_its_name_is_written():
    cases = validate.rank_out_cases(Measurements({"moe": layers()}), "h100")
    two = pd.concat(
        [cases.assign(model=name) for name in ("deepseek-v3", "DeepSeek-V3", "Own", "own")], ignore_index=True
    )
    found = products.layer_groups(two).set_index("model")
    assert list(found["cases"]) == [140, 140]
    assert dict(found["aim"]) == {"DeepSeek-V3": products.AIM_OF["DeepSeek-V3"], "Own": products.AIM}


# Laws of fused MoE layers on other dies, and what bounds their fits.

H100_HBM, H200_HBM, PEAK = 3.35e12, 4.8e12, 989e12
LAYER = MeasuredLayer(4096, 1536, "fp8", H100_HBM)
BASE = MoeLaw(launch_ns=1e4, ns_per_token=0, flop_per_s=1e15, bytes_per_s=3e12, order=2)


@pytest.mark.parametrize("gpu", sampled(sorted(calibrations_shipped()), lambda gpu: gpu in ("h100", "gb200")))
def test_no_law_of_moe_layers_is_faster_than_its_gpu(gpu):
    calibration = calibration_named(gpu)
    peaks, hbm = calibration.reference.peak_flop_per_s, calibration.reference.hbm_bytes_per_s
    for table in calibration.moe:
        assert table.law.flop_per_s <= peaks.get(table.dtype, np.inf), table.model
        assert table.law.bytes_per_s <= hbm, table.model


def test_only_bytes_gain_by_a_faster_hbm():
    n_bytes = token_bytes(LAYER), pair_bytes(LAYER)
    assert n_bytes == (4096 * 5, 4096 * 4 + 1536 * 5)
    of_bytes_ns = np.array(n_bytes) / H100_HBM * 1e9
    law = BASE.model_copy(update={"ns_per_token": of_bytes_ns[0] + 5, "ns_per_pair": 1.0})
    twice = scaled_law(law, LAYER, Scale(1.0, 2.0))
    assert twice.ns_per_token == pytest.approx(of_bytes_ns[0] / 2 + 5)
    assert twice.ns_per_pair == 0.5  # cheaper than its bytes: all of it is bytes
    assert (twice.bytes_per_s, twice.flop_per_s, twice.launch_ns) == (6e12, 1e15, 1e4)
    assert scaled_law(law, LAYER, Scale(1.0, 1.0)) == law


@pytest.mark.parametrize("faster", [Scale(2.0, 1.0), Scale(1.0, 3.0), Scale(4.0, 4.0)])
def test_a_faster_die_is_never_slower(faster):
    law = BASE.model_copy(update={"ns_per_token": 9.0, "ns_per_pair": 20.0, "ns_per_expert": 99.0})
    named = named_of(calibration_named("h100").moe[0])
    pairs = np.geomspace(1, 1e6, 50)
    at = (pairs, np.minimum(pairs, 8), np.full(50, 8.0), np.ones(50), pairs)
    assert (time_of_load(scaled_law(law, LAYER, faster), named, *at) <= time_of_load(law, named, *at)).all()


def test_the_gain_of_an_h200_over_an_h100_at_many_tokens_is_as_measured():
    """1.084 above 256 tokens an expert, over TensorRT-LLM's layers (H200 measurements are not in the shared data)."""
    h100, h200 = calibration_named("h100"), calibration_named("h200")
    gains = []
    for table in h100.moe:
        (scaled,) = [each for each in h200.moe if _key(each) == _key(table) and each.scaled_from] or [None]
        if table.library != "trtllm" or table.distribution != "balanced" or scaled is None:
            continue
        ep = np.array([1.0, 4.0, 16.0])
        tokens = 1024 * table.experts / table.top_k * np.ones(3)
        times = [law_ns(each.law, named_of(each), each.routing, ep, np.ones(3), tokens) for each in (table, scaled)]
        gains.append(times[0] / times[1])
    assert np.mean(gains) == pytest.approx(1.084, rel=0.05)


def _key(table):
    return table.model, table.library, table.version, table.kernel, table.dtype, table.distribution, table.eplb_slots


def test_gpus_that_differ_in_their_hbm_share_a_law_below_the_peak():
    """Compute that hides in the cost of a pair: the fit alone may call it faster than the peak."""
    truth = LAW.model_copy(update={"flop_per_s": 0.8 * PEAK, "ns_per_pair": 12.0, "bytes_per_s": 3e12})
    layer = MeasuredLayer(MODEL["hidden"], MODEL["ffn"], "bf16", H100_HBM)
    slow = layers(law=truth)
    fast = layers(law=scaled_law(truth, layer, Scale(1.0, H200_HBM / H100_HBM)))
    known = {"peaks": lambda dtype: PEAK}
    (one,) = fit_moe(slow, H100_HBM, like={H200_HBM: fast}, **known)
    (other,) = fit_moe(fast, H200_HBM, like={H100_HBM: slow}, **known)
    assert one.law.flop_per_s == pytest.approx(0.8 * PEAK, rel=0.02) == other.law.flop_per_s
    assert other.law.bytes_per_s / one.law.bytes_per_s == pytest.approx(H200_HBM / H100_HBM, rel=1e-3)
    assert one.law.launch_ns == other.law.launch_ns
    (capped,) = fit_moe(layers(law=truth.model_copy(update={"flop_per_s": 3 * PEAK})), H100_HBM, **known)
    assert capped.law.flop_per_s <= PEAK


def test_tokens_that_a_rank_received_are_those_with_a_pair():
    named = {**MODEL, "distribution": "balanced", "seen": "received"}
    points = np.array([(ep, 1, 2.0**power) for ep in (1, 4, 16, 64) for power in range(12)])
    ns = law_ns(LAW, named, "balanced", *points.T)
    all_ns = law_ns(LAW, named | {"seen": "group"}, "balanced", *points.T)
    few = points[:, 0] > MODEL["top_k"]
    assert (ns[few] < all_ns[few]).all() and (ns[~few] == all_ns[~few]).all()
    rows = pd.DataFrame(points, columns=POINT).assign(
        **{key: float(value) if isinstance(value, int) else value for key, value in MODEL.items()},
        distribution="balanced", latency_us_median=ns / 1e3, run_id="1", gpu_name="H100", library="lib",
        library_version="1", kernel="", file="moe.csv", gpu="h100", tokens_seen="received",
    )  # fmt: skip
    (table,) = fit_moe(rows)
    assert table.seen == "received" and table.law.ns_per_token + table.law.ns_per_pair == pytest.approx(8, rel=0.1)
