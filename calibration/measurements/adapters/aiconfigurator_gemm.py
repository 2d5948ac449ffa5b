"""GEMM, fused MoE and quantisation sweeps of ai-dynamo/aiconfigurator (Apache-2.0), as tidy CSV.

Times are means of replays of a CUDA graph, weights rotated past the L2. FP8 rows hold the dynamic quantisation of the
activation, BF16 rows the GEMM alone. A version of a framework is one sweep.
"""

from __future__ import annotations

import pandas as pd

from calibration.measurements.layouts import Layout

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "fp8_block": "fp8_block"}
# hidden, FFN width, experts, top-k: from the models' public configurations.
MODELS = {
    "DeepSeek-V3": (7168, 2048, 256, 8),
    "Kimi-K2": (7168, 2048, 384, 8),
    "Qwen3-235B-A22B": (4096, 1536, 128, 8),
    "Qwen3-30B-A3B": (2048, 768, 128, 8),
    "Llama4-Maverick": (5120, 8192, 128, 1),
    "Mixtral-8x7B": (4096, 14336, 8, 2),
    "Mixtral-8x22B": (6144, 16384, 8, 2),
}
UNKNOWN_MODELS = f"models whose sizes this layout does not tell (known: {', '.join(MODELS)}); use the schema's moe.csv"
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
    """One row per GPU, framework, version, dtype and shape. Rows for m = 0 are the collector's; they time nothing."""
    rows = rows[rows["m"] > 0]
    return _products(rows, rows["dtype"], rows["latency_us"]).assign(
        run_id=rows["framework_version"],
        gpu_name=rows["gpu"],
        library=rows["framework"],
        library_version=rows["framework_version"],
        kernel=rows["kernel_source"],
    )


def _grid(rows: pd.DataFrame) -> pd.DataFrame:
    """Two sweeps of TRT-LLM 1.3.0 release candidates side by side; which ones is not said."""
    runs = [
        _products(rows, rows["dtype"], rows[f"latency_us_{run}"]).assign(
            run_id=f"grid-{run}", gpu_name=GRID_GPU, library="trtllm", library_version="1.3.0", kernel="torch_flow"
        )
        for run in ("run1", "run2")
    ]
    return pd.concat(runs)


def _layers(rows: pd.DataFrame) -> pd.DataFrame:
    """Fused MoE layers of models whose sizes are known here; rows of others are left out."""
    return _layers_of(rows, rows["framework"], rows["framework_version"], rows["kernel_source"])


def _after_dispatch(rows: pd.DataFrame) -> pd.DataFrame:
    """One rank's experts after DeepEP's dispatch, masked (generation) or contiguous (context) grouped GEMM, in sglang.

    The version is that of the source (README of the tidy set); uniform routing fills experts as balanced does.
    """
    version = pd.Series("0.5.10", index=rows.index)
    library = pd.Series("sglang-deepep", index=rows.index)
    rows = rows.assign(tp=1.0, distribution=rows["distribution"].replace("uniform", "balanced"))
    return _layers_of(rows, library, version, rows["kernel_source"] + "-" + rows["phase"])


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


def _layers_of(rows: pd.DataFrame, library: pd.Series, version: pd.Series, kernel: pd.Series) -> pd.DataFrame:
    rows = rows[rows["model"].isin(MODELS)]
    library, version, kernel = (names.loc[rows.index] for names in (library, version, kernel))
    sizes = pd.DataFrame([MODELS[model] for model in rows["model"]], index=rows.index).astype(float)
    hidden, ffn, experts, top_k = (sizes[column] for column in range(4)) if len(rows) else [rows["ep"]] * 4
    return pd.DataFrame(
        {
            "run_id": version,
            "gpu_name": rows["gpu"],
            "library": library,
            "library_version": version,
            "model": rows["model"],
            "dtype": rows["dtype"].map(DTYPES).fillna(rows["dtype"]),
            "hidden": hidden,
            "ffn": ffn,
            "experts": experts,
            "top_k": top_k,
            "ep": rows["ep"],
            "tp": rows["tp"],
            "distribution": rows["distribution"],
            "tokens_total": rows["num_tokens"],
            "kernel": kernel,
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
        "aiconfigurator moe",
        "moe",
        (*_SWEEP, "model", "distribution", "tp", "ep", "num_tokens", "latency_us"),
        ("tp", "ep", "num_tokens", "latency_us"),
        _layers,
        leaves_out=UNKNOWN_MODELS,
    ),
    Layout(
        "aiconfigurator grouped GEMM after DeepEP",
        "moe",
        ("gpu", "model", "phase", "dtype", "kernel_source", "distribution", "ep", "num_tokens", "latency_us"),
        ("ep", "num_tokens", "latency_us"),
        _after_dispatch,
        leaves_out=UNKNOWN_MODELS,
    ),
    Layout(
        "aiconfigurator quantisation",
        "quantisation",
        ("gpu", "op", "framework", "framework_version", "m", "k", "latency_us"),
        ("m", "k", "latency_us"),
        _quantisations,
    ),
)
