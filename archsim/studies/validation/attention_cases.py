"""Attention of a calibration file against every measured row of the same library."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from archsim.laws.attention import DECODE, AttentionSizes, attention_grid, choose_attention, grid_ns
from archsim.laws.choosing import LawMissing
from archsim.laws.tables import AttentionTable, CalibrationSpec
from calibration.measurements.reading import Measurements
from calibration.measurements.sweeps import release

WAY = ["library", "library_version", "phase", "kind", "dtype", "kv_dtype"]
SIZES = ["heads", "kv_heads", "head_dim", "window"]
US = 1e-3  # per ns


def attention_groups(measurements: Measurements, gpu: str) -> Iterator[tuple[tuple, pd.DataFrame]]:
    """((*WAY), rows) judged by tables of one library."""
    return iter(measurements.table("attention", gpu).groupby(WAY, sort=True))


def attention_errors(calibration: CalibrationSpec, way: tuple, rows: pd.DataFrame) -> np.ndarray | None:
    """Predicted / measured - 1, float64[row]; None where the library has no table of this phase and kind."""
    library, version, phase, kind, dtype, kv_dtype = way
    errors = []
    for shape, mine in rows.groupby(SIZES, sort=True):
        heads, kv_heads, head_dim, window = (int(size) for size in shape)
        sizes = AttentionSizes(heads, kv_heads, head_dim, window, kind)
        table = _table(calibration, phase, sizes, dtype, kv_dtype, library, version)
        if table is None:
            return None
        batch, context = (mine[name].to_numpy(float) for name in ("batch", "tokens"))
        new = np.ones_like(context) if phase == DECODE else context
        found = grid_ns(attention_grid(table, sizes), batch, new, context) * US
        errors.append(found / mine["latency_us_median"].to_numpy(float) - 1)
    return np.concatenate(errors)


def _table(calibration, phase, sizes, dtype, kv_dtype, library, version) -> AttentionTable | None:
    """Of the same version or its release, else the newest of the library."""
    for wanted in (version, release(version), None):
        try:
            return choose_attention(calibration, phase, sizes, dtype, kv_dtype or None, library, wanted)
        except LawMissing:
            continue
    return None
