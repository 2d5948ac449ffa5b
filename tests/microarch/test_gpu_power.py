"""Energy of whole chips: power that the coefficients give for H100, H200 and Tesla's D1, beside what they draw.

Chips are given by what they do in a second. The coefficients follow from three works of the H100; its others and all
of the H200's were not used.
"""

import csv
import io

import pandas as pd
import pytest

from archsim.studies.validation.cases import gpu_power_w, power_cases
from calibration.measurements.reading import Measurements
from microarch.silicon.energy import EnergyEstimates

H100_MM2, D1_MM2 = 814.0, 645.0
# Measured by ``python -m calibration.measure power`` on one H100 SXM and one H200: PyTorch 2.11, driver 580
MEASURED = """gpu,work,dtype,m,flop,hbm_bytes,latency_us_median,power_w
h100,idle,bf16,1,0,0,1e6,125.08
h100,read,bf16,1,0,1073741824,354.064,392.04
h100,read_and_wait,bf16,1,0,1073741824,713.464,262.58
h100,product,bf16,1,134217728,134250496,47.5956,485.90
h100,product,bf16,32,4294967296,135266304,49.1024,549.46
h100,product,bf16,128,17179869184,138412032,51.0552,694.70
h100,product,bf16,512,68719476736,150994944,103.365,692.45
h100,product,bf16,8192,1099511627776,402653184,1642.93,690.44
h100,product,fp8,1,134217728,67133440,25.4203,479.77
h100,product,fp8,32,4294967296,67895296,26.3339,553.21
h100,product,fp8,128,17179869184,70254592,28.1911,694.12
h100,product,fp8,512,68719476736,79691776,54.8968,688.68
h100,product,fp8,8192,1099511627776,268435456,859.371,689.88
h200,idle,bf16,1,0,0,1e6,119.39
h200,read,bf16,1,0,1073741824,249.728,479.26
h200,read_and_wait,bf16,1,0,1073741824,508.792,293.94
h200,product,bf16,1,134217728,134250496,34.9406,572.51
h200,product,bf16,32,4294967296,135266304,34.2613,693.35
h200,product,bf16,128,17179869184,138412032,39.8326,692.32
h200,product,bf16,512,68719476736,150994944,102.859,691.26
h200,product,bf16,8192,1099511627776,402653184,1649.47,691.55
h200,product,fp8,1,134217728,67133440,18.8681,566.91
h200,product,fp8,32,4294967296,67895296,19.6247,663.41
h200,product,fp8,128,17179869184,70254592,21.7707,692.86
h200,product,fp8,512,68719476736,79691776,55.96,690.34
h200,product,fp8,8192,1099511627776,268435456,858.965,686.71
"""


@pytest.fixture(scope="module")
def cases():
    rows = pd.read_csv(io.StringIO(MEASURED))
    found = Measurements(tables={"power": rows})
    return pd.concat([power_cases(gpu, found).assign(gpu=gpu) for gpu in ("h100", "h200")], ignore_index=True)


def power_w(hbm_bytes, flop, dtype_bytes=2, die_mm2=H100_MM2):
    return gpu_power_w(hbm_bytes, flop, dtype_bytes, die_mm2, EnergyEstimates())


def test_what_the_coefficients_follow_from_is_met(cases):
    h100 = cases[cases["gpu"] == "h100"].set_index(["work", "dtype", "m"])["error"]
    fitted = [("idle", "bf16", 1), ("read", "bf16", 1), ("product", "bf16", 8192)]
    assert h100[fitted].abs().max() < 0.005


def test_reading_and_prefill_on_another_gpu_and_in_fp8(cases):
    others = cases[cases["work"].isin(["idle", "read", "read_and_wait"]) | (cases["m"] == 8192)]
    assert len(others) == 10 and others["error"].abs().max() < 0.065


def test_decode_is_within_the_range_but_a_quarter_low(cases):
    """Products of few rows: the tensor cores multiply whole tiles, most of them empty, and the SMs wait busily."""
    decode = cases[(cases["work"] == "product") & (cases["m"] <= 32)]
    assert len(decode) == 8 and decode["error"].between(-0.26, -0.15).all()
    assert (decode["low_w"] < decode["measured_w"]).all() and (decode["measured_w"] < decode["high_w"]).all()


def test_a_gpu_at_its_limit_lowers_its_clock(cases):
    """Products that use HBM and tensor cores at once: voltage falls with the clock, which is not modelled."""
    limited = cases[(cases["work"] == "product") & cases["m"].isin([128, 512])]
    assert len(limited) == 8 and limited["error"].between(-0.16, 0.16).all()


def test_fp8_at_its_fastest_measured_rate_draws_the_limit_too(shared):
    """DeepGEMM's dense and grouped products on an H800, which has an H100's die and limit."""
    with (shared / "data" / "calibration" / "gemm" / "deepgemm_readme_h800.csv").open() as file:
        best = max(csv.DictReader(file), key=lambda row: float(row["tflops"]))
    rate, read = float(best["tflops"]) * 1e12, float(best["gbytes_per_s"]) * 1e9
    assert rate > 1.2e15 and power_w(read, rate, dtype_bytes=1) == pytest.approx(700, rel=0.07)


def test_teslas_die_at_its_peak():
    """D1: 400 W at 362 TFLOP/s in BF16 (Tesla, AI Day 2021), though in 7 nm."""
    assert power_w(0.0, 362e12, die_mm2=D1_MM2) == pytest.approx(400, rel=0.05)
