"""Batched products of openxla/xla's matmul interpolator (Apache-2.0), as tidy CSV: a batch is a grouped GEMM.

BF16 only: FP8 rows exceed the tensor core peak (2.4 PFLOP/s at 4096^3 on an H100). Weights may stay in the L2.
"""

import pandas as pd

from calibration.measurements.schema import frame, layout

DTYPES = {"bfloat16": "bf16"}


def _products(rows: pd.DataFrame) -> pd.DataFrame:
    """Batches of two or more; other sources measure single products better, with weights from memory."""
    rows = rows[rows["dtype"].isin(DTYPES) & (rows["batch"] > 1)]
    return frame(
        rows, "gpu_name=gpu groups=batch m n k latency_us_median=latency_us_derived", run_id="xla", library="xla",
        library_version="xla", dtype=rows["dtype"].map(DTYPES), quant_included="0",
    )


LAYOUTS = (
    layout(
        "xla matmul", "gemm", _products, "gpu dtype", "batch m n k flop_per_s latency_us_derived",
        leaves_out="FP8 rows (above the tensor core peak) and batches of one",
    ),
)
