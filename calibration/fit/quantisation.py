"""GEMM times without the dynamic quantisation of the activation, where quantisation was measured separately.

A product with static scales takes the measured time less ``compute_scale`` and ``scale_matrix`` at its (m, k), each
interpolated linearly in m and k, without extrapolation. As these are differences of two measurements, points
dominated by quantisation are left out.
"""

import numpy as np
import pandas as pd

from calibration.measurements.sweeps import release

OPERATIONS = ("compute_scale", "scale_matrix")
MOST_QUANTISATION = 0.8  # share of a time above which a difference is mostly noise (versions differ by 1 to 2 of 8 us)


def without_quantisation(gemm: pd.DataFrame, overhead: pd.DataFrame) -> pd.DataFrame:
    """Rows of the GEMM table with ``quant_included`` 0, derived from those that include a measured quantisation."""
    found = []
    rows = gemm[gemm["quant_included"] == "1"]
    for (library, version, dtype), mine in rows.groupby(["library", "library_version", "dtype"], sort=True):
        took = _overhead_us(overhead, library, version, dtype, mine["m"].to_numpy(float), mine["k"].to_numpy(float))
        measured = mine["latency_us_median"].to_numpy(float)
        good = took < MOST_QUANTISATION * measured
        files = " less ".join([" ".join(sorted(set(mine["file"]))), " ".join(sorted(set(overhead["file"])))])
        found.append(mine[good].assign(quant_included="0", latency_us_median=(measured - took)[good], file=files))
    return pd.concat(found, ignore_index=True) if found else rows


def _overhead_us(overhead: pd.DataFrame, library: str, version: str, dtype: str, m, k) -> np.ndarray:
    """float64[point], from the same version, else the same release; nan where not measured."""
    mine = overhead[(overhead["library"] == library) & (overhead["dtype"] == dtype)]
    exact = mine[mine["library_version"] == version]
    mine = exact if len(exact) else mine[mine["library_version"].map(release) == release(version)]
    total = np.zeros(len(m))
    for op in OPERATIONS:
        table = mine[mine["op"] == op].pivot_table(index="m", columns="k", values="latency_us_median", aggfunc="median")
        total += _between(table, m, k)
    return total


def _between(table: pd.DataFrame, m, k) -> np.ndarray:
    """Bilinear; nan outside the table and at its gaps."""
    from scipy.interpolate import RegularGridInterpolator

    if min(table.shape, default=0) < 2:
        return np.full(len(m), np.nan)
    table = table.sort_index().sort_index(axis=1)
    axes = (table.index.to_numpy(float), table.columns.to_numpy(float))
    return RegularGridInterpolator(axes, table.to_numpy(float), bounds_error=False)(np.stack([m, k], axis=1))
