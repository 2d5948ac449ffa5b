"""GEMM and quantisation sweeps of ai-dynamo/aiconfigurator (Apache-2.0), as tidy CSV.

Times are means over replays of a CUDA graph, with weights rotated past the L2. FP8 rows include the dynamic
quantisation of the activation, BF16 rows only the GEMM. Each framework version is one sweep.
"""

from __future__ import annotations

import pandas as pd

from calibration.measurements.layouts import Layout

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "fp8_block": "fp8_block"}
DENSE = "trtllm-dense"
GRID_GPU = "H100-SXM5-80GB"  # the grid of the layout without a GPU column


def _products(rows: pd.DataFrame, dtype: pd.Series, latency_us: pd.Series) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "dtype": dtype.map(DTYPES).fillna(dtype),
            "quant_included": dtype.str.startswith("fp8").map({True: "1", False: "0"}),
            "groups": 1.0,
            "m": rows["m"],
            "n": rows["n"],
            "k": rows["k"],
            "latency_us_median": latency_us,
        },
        index=rows.index,
    )


def _sweeps(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per GPU, framework, version, dtype and shape. Rows with m = 0 are collector
    placeholders without a timing.
    """
    rows = rows[rows["m"] > 0]
    return _products(rows, rows["dtype"], rows["latency_us"]).assign(
        run_id=rows["framework_version"],
        gpu_name=rows["gpu"],
        library=rows["framework"],
        library_version=rows["framework_version"],
        kernel=rows["kernel_source"],
    )


def _grid(rows: pd.DataFrame) -> pd.DataFrame:
    """Two sweeps of unspecified TRT-LLM 1.3.0 release candidates, side by side."""
    runs = [
        _products(rows, rows["dtype"], rows[f"latency_us_{run}"]).assign(
            run_id=f"grid-{run}", gpu_name=GRID_GPU, library="trtllm", library_version="1.3.0", kernel="torch_flow"
        )
        for run in ("run1", "run2")
    ]
    return pd.concat(runs)


def _dense_projections(rows: pd.DataFrame) -> pd.DataFrame:
    """Products of attention, dense FFN, router and LM head of TRT-LLM, kept as a separate library.

    A table has one law, and widths of 32 to 65536 would bias it for the shapes of experts.
    """
    return _products(rows, rows["dtype"], rows["latency_us"]).assign(
        run_id=rows["framework_version"], gpu_name=rows["gpu"], library=DENSE, library_version=rows["framework_version"]
    )


def _quantisations(rows: pd.DataFrame) -> pd.DataFrame:
    """Per-tensor scales of FP8 activations."""
    return pd.DataFrame(
        {
            "run_id": rows["framework_version"],
            "gpu_name": rows["gpu"],
            "library": rows["framework"],
            "library_version": rows["framework_version"],
            "dtype": "fp8",
            "op": rows["op"],
            "m": rows["m"],
            "k": rows["k"],
            "latency_us_median": rows["latency_us"],
        },
        index=rows.index,
    )


_SWEEP = ("gpu", "dtype", "framework", "framework_version", "kernel_source")
LAYOUTS = (
    Layout(
        "aiconfigurator gemm", "gemm", (*_SWEEP, "m", "n", "k", "latency_us"), ("m", "n", "k", "latency_us"), _sweeps
    ),
    Layout(
        "aiconfigurator gemm grid",
        "gemm",
        ("dtype", "n", "k", "m", "latency_us_run1", "latency_us_run2"),
        ("n", "k", "m", "latency_us_run1", "latency_us_run2"),
        _grid,
    ),
    Layout(
        "aiconfigurator dense projections",
        "gemm",
        ("gpu", "framework_version", "dtype", "n", "k", "m", "latency_us"),
        ("n", "k", "m", "latency_us"),
        _dense_projections,
    ),
    Layout(
        "aiconfigurator quantisation",
        "quantisation",
        ("gpu", "op", "framework", "framework_version", "m", "k", "latency_us"),
        ("m", "k", "latency_us"),
        _quantisations,
    ),
)
