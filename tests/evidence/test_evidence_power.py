"""Power that the energy coefficients give for a whole GPU, beside what it draws at steady work."""

import csv
import io

import pandas as pd
import pytest
from scipy.optimize import brentq

from archsim.evidence.power import gpu_power_w, power_cases
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
    return gpu_power_w(hbm_bytes, flop, dtype_bytes, die_mm2, EnergyEstimates())[0]


def test_what_the_coefficients_follow_from_is_met(cases):
    h100 = cases[cases["gpu"] == "h100"].set_index(["work", "dtype", "m"])["error"]
    fitted = [("idle", "bf16", 1), ("read", "bf16", 1), ("product", "bf16", 1)]
    assert h100[fitted].abs().max() < 0.001
    assert abs(h100["product", "bf16", 8192]) < 0.015  # which the limit, 700 W, holds at 690


def test_every_work_is_within_a_tenth_and_within_its_range(cases):
    assert len(cases) == 26 and cases["error"].abs().max() < 0.08
    assert (cases["low"] < cases["measured"] + 1).all() and (cases["measured"] < cases["high"]).all()


def test_few_rows_are_multiplied_in_whole_tiles():
    """An empty row takes energy, less than a full one; 64 rows fill a tile, and 65 begin another."""
    powers = [gpu_power_w(0.0, 1e12 * rows, 2, H100_MM2, EnergyEstimates(), rows)[0] for rows in (1, 32, 64, 65, 128)]
    assert powers == sorted(powers) and powers[3] - powers[2] > 10 * (powers[2] - powers[1]) / 32
    full = gpu_power_w(0.0, 1e12 * 64, 2, H100_MM2, EnergyEstimates())
    assert full[0] == pytest.approx(powers[2])


def test_the_energy_of_empty_rows_predicts_what_it_was_not_fitted_on(cases):
    """Fitted on any one work with one row, of any GPU and dtype, it holds works with few rows within an eighth."""
    few = cases[(cases["work"] == "product") & (cases["m"] <= 32)]

    def error(row, share):
        estimates = EnergyEstimates().change({"padding_pj": share})
        rates = row.hbm_tbytes_per_s * 1e12, row.tflop_per_s * 1e12, 1 + (row.dtype == "bf16")
        return gpu_power_w(*rates, H100_MM2, estimates, row.m, 700.0, 1.32)[0] / row.measured - 1

    known = EnergyEstimates().padding_pj
    for fitted in few[few["m"] == 1].itertuples():
        own = brentq(lambda share, row=fitted: error(row, share), 0.01, 1.0)
        assert known.low <= own <= known.high
        assert max(abs(error(row, own)) for row in few.itertuples() if row.Index != fitted.Index) < 0.125


def test_a_gpu_at_its_limit_lowers_its_clock(cases):
    """1,500 MHz as the driver says of products of many rows, 1,980 MHz at those of one, which no limit holds."""
    products = cases[(cases["work"] == "product") & (cases["gpu"] == "h100")].set_index(["dtype", "m"])["clock_mhz"]
    assert products["bf16", 8192] == pytest.approx(1500, rel=0.02)
    assert products["fp8", 8192] == pytest.approx(1500, rel=0.1)
    assert products["bf16", 1] == products["fp8", 1] == pytest.approx(1980) and products["bf16", 512] < 1500
    rates = 1e12, 800e12, 2, H100_MM2, EnergyEstimates(), 64
    clocks = [gpu_power_w(*rates, limit_w, 1.32)[1] for limit_w in (300, 500, 700, 900, 5000)]
    assert clocks == sorted(clocks) and clocks[-1] == 1.32


def test_fp8_at_its_fastest_measured_rate_draws_the_limit_too(shared):
    """DeepGEMM's dense and grouped products on an H800, which has an H100's die and limit."""
    with (shared / "data" / "calibration" / "gemm" / "deepgemm_readme_h800.csv").open() as file:
        best = max(csv.DictReader(file), key=lambda row: float(row["tflops"]))
    rate, read = float(best["tflops"]) * 1e12, float(best["gbytes_per_s"]) * 1e9
    assert rate > 1.2e15 and power_w(read, rate, dtype_bytes=1) == pytest.approx(700, rel=0.07)


def test_teslas_die_at_its_peak():
    """D1: 400 W at 362 TFLOP/s in BF16 (Tesla, AI Day 2021), though in 7 nm."""
    assert power_w(0.0, 362e12, die_mm2=D1_MM2) == pytest.approx(400, rel=0.05)


def test_busy_kernels_draw_more_with_their_rows_and_nothing_where_all_multiply():
    known = EnergyEstimates()
    watts = [gpu_power_w(1e12, 1e13, 2, 814.0, known, rows)[0] for rows in (64, 512, 4096)]
    assert watts == sorted(watts) and watts[2] - watts[0] > 50
    none = known.change({"busy_w_per_mm2": 0.0, "crowded_w_per_mm2": 0.0})
    full = 0.68 * 989e12
    assert gpu_power_w(1e11, full, 2, 814.0, known)[0] == pytest.approx(gpu_power_w(1e11, full, 2, 814.0, none)[0])
    work = [
        [gpu_power_w(1e12, 1e13, 2, 814.0, each, 64, boost=boost)[0] for each in (known, none)] for boost in (1, 1.32)
    ]
    assert work[0][0] - work[0][1] == pytest.approx(work[1][0] - work[1][1])  # at the highest clock, whichever it is
