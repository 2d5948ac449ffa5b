"""Fits of fused MoE layers: what layers were made of is found, and outliers stay alone."""

import numpy as np
import pandas as pd
import pytest
from support.examples import sampled
from support.made_up_layers import LAW, MODEL, layers

from archsim.evidence.engine_layers import calibrations_shipped
from archsim.laws.calibration_files import calibration_named
from archsim.laws.moe import POINT, law_ns
from archsim.laws.rank_load import TILED, candidates
from archsim.laws.scaling import MeasuredLayer, Scale, scaled_law
from calibration.fit import moe
from calibration.fit.fit import fit_measurements
from calibration.fit.moe import draw_noise, fit_moe, left_out_errors, moe_ns, moe_pools
from calibration.measurements.reading import Measurements

SKEWED = "power_law_1.2"
RANK_BY_RANK, SMALLEST_FIRST, _ = candidates(MODEL["model"], SKEWED)
ROUTINGS = [(given, name) for given in ("balanced", SKEWED) for name in candidates(MODEL["model"], given)]


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
        rows = layers(how=TILED, law=floored, powers=10).assign(kernel="deepepmoe-context")
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
        rows = pd.concat([layers(SKEWED, SMALLEST_FIRST, "1.0rc1"), layers(SKEWED, RANK_BY_RANK, "1.0rc2")])
        assert {(t.version, t.routing) for t in fit_moe(rows)} == {
            ("1.0rc1", SMALLEST_FIRST),
            ("1.0rc2", RANK_BY_RANK),
        }

    def test_kernels_are_apart(self):
        rows = pd.concat([layers().assign(kernel="a"), layers().assign(kernel="b")])
        rows.loc[rows["kernel"] == "b", "latency_us_median"] *= 2
        slow, fast = (moe_ns(table, [4.0], [1.0], [64.0])[0] for table in reversed(fit_moe(rows)))
        assert slow == pytest.approx(2 * fast, rel=0.01)

    def test_draws_scatter_only_where_something_is_drawn(self):
        (drawn,), (balanced,) = fit_moe(layers(SKEWED, RANK_BY_RANK)), fit_moe(layers())
        at = np.array([16.0]), np.array([1.0]), np.array([4096.0])
        assert 0.02 < draw_noise(drawn, *at)[0] < 0.5
        assert np.isnan(draw_noise(balanced, *at)[0])

    def test_equal_measurements_equal_bytes(self):
        rows = layers(SKEWED, RANK_BY_RANK, powers=8)
        first = fit_measurements(Measurements({"moe": rows}), "h100")
        assert fit_measurements(Measurements({"moe": rows.iloc[::-1]}), "h100") == first


def test_of_noise_between_ranks_none_is_carried():
    """Corrections drawn again at every rank: interpolating them must not be worse than the law alone."""
    generator = np.random.default_rng(3)
    points = tuple(np.array([(ep, 1, 2.0**p) for ep in (1, 2, 4, 8, 16, 32) for p in range(10)], float).T)
    corrections = np.repeat(generator.standard_normal(6) * 0.3, 10)
    _, products = moe.choose(points, corrections)
    assert np.abs(np.expm1(products)).mean() <= np.abs(np.expm1(-corrections)).mean() + 1e-9


# Laws of fused MoE layers on other dies, and what bounds their fits.

H100_HBM, H200_HBM, PEAK = 3.35e12, 4.8e12, 989e12


@pytest.mark.parametrize("gpu", sampled(sorted(calibrations_shipped()), lambda gpu: gpu == "h100"))
def test_no_law_of_moe_layers_is_faster_than_its_gpu(gpu):
    calibration = calibration_named(gpu)
    peaks, hbm = calibration.reference.peak_flop_per_s, calibration.reference.hbm_bytes_per_s
    for table in calibration.moe:
        assert table.law.flop_per_s <= peaks.get(table.dtype, np.inf), table.model
        assert table.law.bytes_per_s <= hbm, table.model


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
