"""Copies between two dies on the event engine, against the fitted law and measurements.

Two dies with calibrated links: the only expert of a model has its home on the first die and executes on the second,
which reads its three slices one after the other. HBM and LLC add no time, as the measured time of a copy includes
them, and compute time is negligible. A third of the step is one copy, and must equal the law at its size.
"""

from math import gcd

import numpy as np
import pandas as pd

from archsim.base.units import NS_PER_US
from archsim.evidence.engine_experts import steps_ns
from archsim.laws import tables, transfers
from archsim.specs.measured import link_measured
from calibration.measurements import reading
from microarch.blocks.hbm import SLICES

COPY_SIZES = tuple(2**octave for octave in range(12, 33))  # 4 KiB to 4 GiB, as figure 12 of Yu et al., ISCA 2026
COPY_COLUMNS = [
    "library", "version", "method", "bytes", "engine_us", "law_us", "measured_us", "law_error", "error", "extrapolated",
]  # fmt: skip
SMALL_BYTES = 2**10  # LLC capacity: less than a slice, so that one is in flight
WIDEST = 1_000_000  # of a model


def copy_cases(calibration: tables.CalibrationSpec, measurements: reading.Measurements) -> pd.DataFrame:
    """One row for each of SIZES and each measured size; columns COLUMNS. None if the calibration provides no links.

    Measured: the median of the measurements of that size in the law's series; nan if there are none.
    """
    law = transfers.link_table(calibration)
    if law is None:
        return pd.DataFrame(columns=COPY_COLUMNS)
    measured = _copy_medians(measurements.table("p2p", calibration.gpu), law)
    sizes = np.unique(np.concatenate([np.array(COPY_SIZES), measured.index.to_numpy(np.int64)]))
    sizes = np.array([size for size in sizes if size >= SMALL_BYTES and size // _width(size) <= WIDEST])
    engine_us = np.array([copy_ns(calibration, int(size)) for size in sizes]) / NS_PER_US
    law_us = transfers.law_of(law).time_ns(sizes) / NS_PER_US
    measured_us = measured.reindex(sizes).to_numpy(float)
    return pd.DataFrame(
        {
            "library": law.library,
            "version": law.version,
            "method": law.of.get("method", ""),
            "bytes": sizes,
            "engine_us": engine_us,
            "law_us": law_us,
            "measured_us": measured_us,
            "law_error": engine_us / law_us - 1,
            "error": engine_us / measured_us - 1,
            "extrapolated": transfers.law_of(law).extrapolates(sizes),
        }
    )[COPY_COLUMNS]


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


def copies_table(cases: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """(column names, rows of text): errors of the engine against the law and measurements, by size."""
    names = [
        "copies", "by", "sizes", "engine from curve, max %", "measured sizes", "from measured: <5 %", "mean %", "p95 %",
        "max %",
    ]  # fmt: skip
    rows = []
    edges = (0, 2**20, 2**26 + 1, 2**63)
    for name, low, high in zip(("below 1 MiB", "1 to 64 MiB", "above 64 MiB"), edges, edges[1:], strict=False):
        group = cases[(cases["bytes"] >= low) & (cases["bytes"] < high)]
        if not len(group):
            continue
        errors = group["error"].abs().dropna().to_numpy(float)
        figures = (errors.mean(), np.quantile(errors, 0.95), errors.max()) if len(errors) else (np.nan,) * 3
        errors_shown = ["–" if np.isnan(figure) else f"{100 * figure:.2f}" for figure in figures]
        law = f"{100 * group['law_error'].abs().max():.2f}"
        rows.append(
            [
                name,
                f"{group['library'].iloc[0]} {group['version'].iloc[0]}",
                str(len(group)),
                law,
                str(len(errors)),
                str(int((errors < 0.05).sum())),
                *errors_shown,
            ]
        )
    return names, rows
