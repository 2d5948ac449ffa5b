"""GEMMs that are faster than their GPU can be: a wrong unit, dtype or shape, or a wrong peak."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from archsim.specs.text.quantities import COMPUTE, format_quantity
from calibration.measurements.datasheets import DATASHEETS, SAME_PEAK, Nominal

TOLERANCE = 1.05  # boost clocks above those of the datasheet's peak


def beyond_peaks(gemm: pd.DataFrame, nominal: Nominal) -> Iterator[str]:
    """A line for each GPU and dtype with rows above the peak: the user's, else the datasheet's; none without a peak.

    gemm: rows of the schema's table, with ``gpu``, its short name.
    """
    for (gpu, dtype), rows in gemm.groupby(["gpu", "dtype"], sort=True):
        sheet = DATASHEETS[gpu].peak_flop_per_s if gpu in DATASHEETS else {}
        peaks = {**sheet, **nominal.peak_flop_per_s}
        peak = peaks.get(dtype) or peaks.get(SAME_PEAK.get(dtype, ""))
        if not peak:
            continue
        groups, m, n, k, us = (
            rows[name].to_numpy(np.float64) for name in ("groups", "m", "n", "k", "latency_us_median")
        )
        over = 2e6 * groups * m * n * k / us / peak
        if (over > TOLERANCE).any():
            yield (
                f"gemm: {(over > TOLERANCE).sum():,} of {len(over):,} rows of {gpu} in {dtype} are faster than its "
                f"peak of {format_quantity(peak, COMPUTE)}, up to {over.max():.1f} times: are their unit, dtype and "
                f"shape right, and the peak?"
            )
