"""Batched and grouped products of public sets, as tidy CSV.

DeepGEMM's README (deepseek-ai/DeepGEMM, MIT): dense and grouped FP8 products on H800. The matmul interpolator of
openxla/xla (Apache-2.0): a batch is a grouped GEMM, in BF16 only, as FP8 rows exceed the tensor core peak (2.4 PFLOP/s
at 4096^3 on an H100); weights may stay in the L2.
"""

import pandas as pd

from calibration.measurements.layouts import frame, layout


def _deepgemm_products(rows: pd.DataFrame) -> pd.DataFrame:
    return frame(
        rows, "dtype groups m=m_per_group n k kernel=kind latency_us_median=latency_us_derived", run_id="readme",
        gpu_name="H800", library="deepgemm-" + rows["kind"].str.replace("_", "-"), library_version="readme",
        quant_included="0",
    )  # fmt: skip


DEEPGEMM_LAYOUTS = (
    layout("DeepGEMM README", "gemm", _deepgemm_products, "kind dtype", "groups m_per_group n k latency_us_derived"),
)


DTYPES = {"bfloat16": "bf16"}


def _xla_products(rows: pd.DataFrame) -> pd.DataFrame:
    """Batches of two or more; other sources measure single products better, with weights from memory."""
    rows = rows[rows["dtype"].isin(DTYPES) & (rows["batch"] > 1)]
    return frame(
        rows, "gpu_name=gpu groups=batch m n k latency_us_median=latency_us_derived", run_id="xla", library="xla",
        library_version="xla", dtype=rows["dtype"].map(DTYPES), quant_included="0",
    )  # fmt: skip


XLA_LAYOUTS = (
    layout(
        "xla matmul",
        "gemm",
        _xla_products,
        "gpu dtype",
        "batch m n k flop_per_s latency_us_derived",
        leaves_out="FP8 rows (above the tensor core peak) and batches of one",
    ),
)
