"""Power that the energy coefficients give for a whole GPU, beside what it draws at steady work."""

from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from archsim.base.case import Case, frame_of
from archsim.base.sums import sum
from archsim.base.units import WEIGHT_BYTES
from calibration.measurements import reading, schema
from microarch.silicon import energy
from microarch.silicon.die_area import GH100_MM2
from microarch.silicon.heat import voltage

# Heading → column of `power_cases`, and how a value is written.
POWER_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "work": ("what", str), "TFLOP/s": ("tflop_per_s", "{:.1f}".format),
    "HBM TB/s": ("hbm_tbytes_per_s", "{:.2f}".format), "measured W": ("measured", "{:.0f}".format),
    "computed W": ("predicted", "{:.0f}".format),
    "low W": ("low", "{:.0f}".format), "high W": ("high", "{:.0f}".format),
    "error %": ("error", lambda share: f"{100 * share:+.0f}"), "clock MHz": ("clock_mhz", "{:,.0f}".format),
}  # fmt: skip
# Of one die, in mm2; NVIDIA's white papers on Hopper (H100, 2022), whose die the H200, H800 and H20 have, and Ampere
DIE_MM2 = {"h100": GH100_MM2, "h200": GH100_MM2, "h800": GH100_MM2, "h20": GH100_MM2, "a100": 826.0}
# What a GPU may draw, as these were measured; their highest clock is BOOST times CLOCK_MHZ, that of the coefficients
LIMIT_W = {"h100": 700.0, "h200": 700.0}
US_PER_S, TERA = 1e6, 1e12
PEAK_16_BIT_PER_MM2 = 989 * TERA / GH100_MM2  # FLOP/s of an H100, whose rates all of these have by area


def power_cases(gpu: str, measurements: reading.Measurements) -> pd.DataFrame:
    """A row for each work of the table ``power``, medians over runs; none for a GPU that is not in DIE_MM2."""
    rows = measurements.table(schema.POWER.kind, gpu)
    rows = rows[rows["power_w"].notna()]
    if gpu not in DIE_MM2 or not len(rows):
        return frame_of([])
    of = rows.groupby(["work", "dtype", "m"], sort=False)[["flop", "hbm_bytes", "latency_us_median", "power_w"]]
    found = of.median().reset_index()
    seconds = found["latency_us_median"] / US_PER_S
    found["tflop_per_s"] = found["flop"] / seconds / TERA
    found["hbm_tbytes_per_s"] = found["hbm_bytes"] / seconds / TERA
    found["measured_w"] = found["power_w"]
    took = found.groupby("work")["latency_us_median"].first()
    kernels = dict.fromkeys(took.index, 1.0)  # share of the time in which they run
    if {"read", "read_and_wait"} <= {*kernels}:
        kernels["read_and_wait"] = took["read"] / took["read_and_wait"]
    for name, bound in (("computed_w", "value"), ("low_w", "low"), ("high_w", "high")):
        estimates = energy.EnergyEstimates().at(bound)
        powers = [
            gpu_power_w(
                row.hbm_tbytes_per_s * TERA, row.tflop_per_s * TERA, WEIGHT_BYTES[row.dtype], DIE_MM2[gpu], estimates,
                row.m, LIMIT_W.get(gpu, np.inf), energy.BOOST, kernels[row.work],
            )
            for row in found.itertuples()
        ]  # fmt: skip
        found[name] = [power_w for power_w, _ in powers]
        if bound == "value":
            found["clock_mhz"] = [clock * energy.CLOCK_MHZ for _, clock in powers]
    cases = [
        Case("power", gpu, f"{row.work.replace('_', ' ')} {row.dtype} {row.m}", "W", row.measured_w, row.computed_w,
             low=row.low_w, high=row.high_w)
        for row in found.itertuples()
    ]  # fmt: skip
    own = ("work", "dtype", "m", "tflop_per_s", "hbm_tbytes_per_s", "clock_mhz")
    return frame_of(cases, **{name: found[name].to_numpy() for name in own})


def gpu_power_w(
    hbm_bytes_per_s: float,
    flop_per_s: float,
    dtype_bytes: float,
    die_mm2: float,
    estimates: energy.EnergyEstimates,
    rows: int = energy.TILE_ROWS,
    limit_w: float = np.inf,
    boost: float = 1.0,
    kernels: float = 1.0,
) -> tuple[float, float]:
    """Power of one chip at steady work, W, and its clock over that at which the energy of a FLOP was measured:
    ``boost``, or the one at ``limit_w`` (`microarch.silicon.heat`). What it reads from HBM passes its cache once.
    ``rows``: of products, multiplied in whole tiles; ``kernels``: share of the time in which any runs.
    """
    busy_s = kernels - float(
        energy.multiplying(flop_per_s * dtype_bytes / energy.SIXTEEN_BIT, PEAK_16_BIT_PER_MM2 * die_mm2)
    )
    padded = flop_per_s * (ceil(rows / energy.TILE_ROWS) * energy.TILE_ROWS / rows - 1)
    second = energy.Activity(
        time_s=1.0, hbm_bytes=hbm_bytes_per_s, d2d_byte_hops=0.0, llc_bytes=2 * hbm_bytes_per_s, flop=flop_per_s,
        decision_s=0.0, tokens=1.0, padded_flop=padded, kernel_s=busy_s if flop_per_s or hbm_bytes_per_s else 0.0,
        crowded_s=busy_s * rows / (rows + energy.CROWDED_ROWS) if flop_per_s else 0.0,
    )  # fmt: skip
    joule = energy.run_energy(
        second, dtype_bytes=dtype_bytes, die_mm2=die_mm2, dies=1, decision_w=0.0, estimates=estimates
    )
    others = sum(each for block, each in joule.items() if block not in ("compute", "busy"))

    def watt(clock: float) -> float:
        """At a clock over that at which the energy of a FLOP was measured; that of kernels, at the highest."""
        volt, highest = (voltage(each / energy.BOOST, energy.HOPPER_AT_NO_CLOCK) for each in (clock, boost))
        return (
            others + joule["compute"] * energy.BOOSTED * volt**2 + joule["busy"] * clock / boost * (volt / highest) ** 2
        )

    if watt(boost) <= limit_w or not joule["compute"]:
        return watt(boost), boost
    clock = brentq(lambda each: watt(each) - limit_w, 0.0, boost) if watt(0.0) < limit_w else 0.0
    return watt(clock), clock
