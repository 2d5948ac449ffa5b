"""The memory of a GPU: bandwidth and latency of L2 and HBM, how they change with the working set, and the share of the
HBM bandwidth of the reference (the datasheet's, if there is one) that is reached.

A curve over the working set S is also a law of ``archsim.laws.transfers``: for bandwidth, of the time of one pass
over S; for latency, of the time of one dependent load, the line being over S.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from archsim.laws.tables import ScalarTable, TransferTable
from archsim.laws.transfers import preferred_number
from calibration.fit import launch, transfers

# Working sets that are within one level on every known GPU: beyond any L1 and within the near half of any L2; beyond
# any L2.
L2_BYTES = (2 * 2**20, 8 * 2**20)
HBM_FROM_BYTES = 2**28
UNITS = {"bytes_per_s": "bytes_per_s", "latency_ns": "ns"}
LEAST_SIZES_OF_CURVE = 8


def fit_memory(rows: pd.DataFrame, peak_bytes_per_s: float | None) -> tuple[TransferTable | ScalarTable, ...]:
    """Numbers per level, operation and library, then curves. ``peak_bytes_per_s``: of HBM, for efficiencies."""
    rows = rows.astype({"working_set_bytes": float, "value": float})
    scalars = [*_scalars(rows)]
    if peak_bytes_per_s:
        scalars += [
            scalar.model_copy(
                update={"unit": "ratio", "of": scalar.of | {"quantity": "efficiency"}}
                | {name: getattr(scalar, name) / peak_bytes_per_s for name in ("value", "low", "high")}
            )
            for scalar in scalars
            if scalar.of["level"] == "hbm" and scalar.unit == "bytes_per_s"
        ]
    return (*scalars, *(transfers.transfer_table(series) for series in curves_of(rows)))


def hbm_read_bytes_per_s(rows: pd.DataFrame) -> float | None:
    """Bandwidth of streaming reads, the number that systems use; None if not measured."""
    of = {"level": "hbm", "op": "read", "quantity": "bytes_per_s"}
    scalars = _scalars(rows.astype({"working_set_bytes": float, "value": float}))
    reads = [scalar for scalar in scalars if scalar.of == of]
    return preferred_number(reads).value if reads else None


def _scalars(rows: pd.DataFrame) -> Iterator[ScalarTable]:
    level = np.where(rows["working_set_bytes"].between(*L2_BYTES), "l2", "")
    level = np.where(rows["working_set_bytes"] >= HBM_FROM_BYTES, "hbm", level)
    level = np.where(rows["level"] == "any", level, rows["level"])
    rows = rows.assign(level=level)[level != ""]
    names = ["level", "op", "quantity"]
    for key, points in rows.groupby([*names, "library", "library_version"], sort=True):
        yield launch.scalar_table(points, points["value"], UNITS[key[2]], dict(zip(names, key[:3], strict=True)))


def curves_of(rows: pd.DataFrame) -> Iterator[transfers.Series]:
    """Series over the working set, if there are enough points."""
    rows = rows[rows["level"] == "any"]
    for key, points in rows.groupby(["gpu", "library", "library_version", "op", "quantity"], sort=True):
        gpu, library, version, op, quantity = key
        size, value = points["working_set_bytes"].to_numpy(np.float64), points["value"].to_numpy(np.float64)
        if len(np.unique(size)) < LEAST_SIZES_OF_CURVE:
            continue
        time_ns = size / value * 1e9 if quantity == "bytes_per_s" else value
        of = {"op": op, "quantity": "pass_ns" if quantity == "bytes_per_s" else "load_ns"}
        source, sweeps = " ".join(sorted(set(points["file"]))), tuple(sorted(set(points["run_id"])))
        yield transfers.Series(
            kind="memory", gpu=gpu, library=library, version=version, of=of, source=source, sweeps=sweeps,
            size_bytes=size, time_ns=time_ns,
        )  # fmt: skip
