"""Energy of whole chips: power that the coefficients give for H100, H200 and Tesla's D1, beside what they draw.

Chips are given by what they do in a second; the sources of the powers are beside the coefficients in
``microarch.silicon.energy`` but where named here.
"""

import csv

import pytest

from microarch.silicon.energy import Activity, EnergyEstimates, run_energy

H100_MM2, D1_MM2 = 814.0, 645.0
H200_BYTES_PER_S = 4.8e12


def power_w(hbm_bytes, flop, dtype_bytes=2, die_mm2=H100_MM2, bound="value"):
    """Power of one chip that does this in a second; weights pass the LLC once."""
    second = Activity(1.0, hbm_bytes, 0.0, 2 * hbm_bytes, flop, 0.0, 1.0)
    estimates = EnergyEstimates().at(bound)
    return sum(
        run_energy(
            second, dtype_bytes=dtype_bytes, die_mm2=die_mm2, dies=1, decision_w=0.0, estimates=estimates
        ).values()
    )


def ends_w(*activity, **chip):
    return power_w(*activity, bound="low", **chip), power_w(*activity, bound="high", **chip)


def test_an_h100_in_prefill_draws_its_limit():
    """700 TFLOP/s in BF16; large products read 0.5 TB/s, a seventh of the bandwidth."""
    assert power_w(0.5e12, 700e12) == pytest.approx(700, rel=0.06)
    low, high = ends_w(0.5e12, 700e12)
    assert low < 700 < high


def test_fp8_at_its_fastest_measured_rate_draws_the_limit_too(shared):
    """DeepGEMM's dense and grouped products on an H800, which has an H100's die and limit."""
    with (shared / "data" / "calibration" / "gemm" / "deepgemm_readme_h800.csv").open() as file:
        best = max(csv.DictReader(file), key=lambda row: float(row["tflops"]))
    rate, read = float(best["tflops"]) * 1e12, float(best["gbytes_per_s"]) * 1e9
    assert rate > 1.2e15 and power_w(read, rate, dtype_bytes=1) == pytest.approx(700, rel=0.06)


@pytest.mark.parametrize(("share", "batch", "drawn_w"), [(0.1, 1, 137), (0.6, 1, 300)])
def test_an_h200_in_decode_draws_137_to_300_w(share, batch, drawn_w):
    """The range of arXiv 2605.11999, at a tenth and at three fifths of the bandwidth; BF16 weights, 2 FLOP each."""
    read = share * H200_BYTES_PER_S
    assert power_w(read, read * batch) == pytest.approx(drawn_w, rel=0.06)
    low, high = ends_w(read, read * batch)
    assert low < drawn_w < high


def test_decode_that_saturates_hbm_is_a_third_above_what_was_measured():
    """300 W is the most that was measured. Nine tenths of the bandwidth give 398 W: within the range, and too high."""
    read = 0.9 * H200_BYTES_PER_S
    assert power_w(read, read) == pytest.approx(1.33 * 300, rel=0.02)
    low, high = ends_w(read, read)
    assert low < 300 < high


def test_teslas_die_at_its_peak():
    """D1: 400 W at 362 TFLOP/s in BF16 (Tesla, AI Day 2021), though in 7 nm."""
    assert power_w(0.0, 362e12, die_mm2=D1_MM2) == pytest.approx(400, rel=0.05)


def test_an_idle_h100_is_the_low_bound():
    assert ends_w(0.0, 0.0) == pytest.approx((70, 137))
