"""Batched products of openxla/xla's matmul interpolator (Apache-2.0), as tidy CSV: a batch is a grouped GEMM.

BF16 only: FP8 rows exceed the tensor core peak (2.4 PFLOP/s at 4096^3 on an H100). Weights may stay in the L2.
"""

import pandas as pd

from calibration.measurements.layouts import Layout

DTYPES = {"bfloat16": "bf16"}


def _products(rows: pd.DataFrame) -> pd.DataFrame:
    """Batches of two or more; other sources measure single products better, with weights from memory."""
    rows = rows[rows["dtype"].isin(DTYPES) & (rows["batch"] > 1)]
    return pd.DataFrame(
        {
            "run_id": "xla", "gpu_name": rows["gpu"], "library": "xla", "library_version": "xla",
            "dtype": rows["dtype"].map(DTYPES), "quant_included": "0", "groups": rows["batch"], "m": rows["m"],
            "n": rows["n"], "k": rows["k"], "latency_us_median": rows["latency_us_derived"],
        },
        index=rows.index,
    )


LAYOUTS = (
    Layout(
        "xla matmul",
        "gemm",
        ("gpu", "dtype", "batch", "m", "n", "k", "flop_per_s", "latency_us_derived"),
        ("batch", "m", "n", "k", "flop_per_s", "latency_us_derived"),
        _products,
        leaves_out="FP8 rows (above the tensor core peak) and batches of one",
    ),
)
