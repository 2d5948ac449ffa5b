"""Copies between two dies on the event engine, against the fitted law and measurements: the only expert has its home on
the first die and executes on the second, which reads three slices in turn. HBM, LLC and compute add no time, so a third
of the step is one copy, and must equal the law at its size.
"""

from math import gcd

import numpy as np
import pandas as pd

from archsim.base.case import Case, frame_of
from archsim.base.units import NS_PER_US
from archsim.evidence.engine_experts import steps_ns
from archsim.laws import tables, transfers
from archsim.machine.measured import link_measured
from calibration.measurements import reading
from microarch.blocks.hbm import SLICES

COPY_SIZES = tuple(2**octave for octave in range(12, 33))  # 4 KiB to 4 GiB, as figure 12 of Yu et al., ISCA 2026
SMALL_BYTES = 2**10  # LLC capacity: less than a slice, so that one is in flight
WIDEST = 1_000_000  # of a model


def copy_cases(calibration: tables.CalibrationSpec, measurements: reading.Measurements) -> pd.DataFrame:
    """A row for each of COPY_SIZES and each measured size, with ``bytes``, ``law_us``, ``law_error``, ``extrapolated``;
    none without links in the calibration. Measured: the median of that size in the law's series, or nan.
    """
    law = transfers.link_table(calibration)
    if law is None:
        return frame_of([])
    measured = _copy_medians(measurements.table("p2p", calibration.gpu), law)
    sizes = np.unique(np.concatenate([np.array(COPY_SIZES), measured.index.to_numpy(np.int64)]))
    sizes = np.array([size for size in sizes if size >= SMALL_BYTES and size // _width(size) <= WIDEST])
    engine_us = np.array([copy_ns(calibration, int(size)) for size in sizes]) / NS_PER_US
    law_us = transfers.law_of(law).time_ns(sizes) / NS_PER_US
    measured_us = measured.reindex(sizes).to_numpy(float)
    name = f"{law.library} {law.version}"
    cases = [
        Case(
            "event engine, copies between two dies",
            f"{_range_of(size)}, {name}",
            f"{size:,} bytes",
            "us",
            us,
            simulated,
        )
        for size, us, simulated in zip(sizes, measured_us, engine_us, strict=True)
    ]
    outside = transfers.law_of(law).extrapolates(sizes)
    return frame_of(cases, bytes=sizes, law_us=law_us, law_error=engine_us / law_us - 1, extrapolated=outside)


def _range_of(size_bytes: int) -> str:
    return "below 1 MiB" if size_bytes < 2**20 else "1 to 64 MiB" if size_bytes <= 2**26 else "above 64 MiB"


def copy_ns(calibration: tables.CalibrationSpec, size_bytes: int) -> float:
    """Time of one copy of ``size_bytes`` from die to die on the event engine."""
    fitted = link_measured(calibration).values
    hbm = {"bandwidth_bytes_per_s": calibration.reference.hbm_bytes_per_s, "capacity_bytes": 10**12, "latency_ns": 0.0}
    machine = {
        "mesh": {"x": 2, "y": 1},
        "hbm": hbm,
        "d2d": {"bandwidth_bytes_per_s": fitted["copies"]["bandwidth"], **fitted},
        "llc": dict.fromkeys(("capacity_bytes", "segment_bytes"), SMALL_BYTES)
        | dict.fromkeys(("hit_ns", "miss_ns", "write_ns"), 0.0),
        "compute": {"peak_flop_per_s": 1e18, "dtype": "fp8"},
    }
    width = _width(size_bytes)
    sizes = {"hidden": width, "expert_ffn": size_bytes // width, "top_k": 1}
    free = {"activations": "replicated", "decision_cost": "free", "gemm": "roofline", "reads": "together"}
    free["carriers"] = "one"  # the dies are stand-ins of GPUs, without an area
    one = np.ones((1, 1), np.int64)
    return float(steps_ns(machine, sizes, "base", one, **free, memory="experts")[0]) / SLICES


def _text(value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _width(size_bytes: int) -> int:
    return gcd(int(size_bytes), 2**16)


def _copy_medians(rows: pd.DataFrame, law: tables.TransferTable) -> pd.Series:
    """bytes → measured us of the points in the law's fit."""
    same = rows[(rows["library"] == law.library) & (rows["library_version"] == law.version)]
    for key, value in law.of.items():
        same = same[same[key].map(_text) == value]
    return same.groupby(same["bytes"].astype(np.int64))["latency_us_median"].median().astype(float)
