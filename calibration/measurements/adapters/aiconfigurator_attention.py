"""Attention sweeps of ai-dynamo/aiconfigurator (Apache-2.0), as tidy CSV: grouped queries, and latent KV (MLA).

Times are of one rank's kernels, KV write included and projections excluded; TensorRT-LLM fuses RoPE. Heads are those of
a rank, after tensor parallelism.
"""

from __future__ import annotations

import pandas as pd

from calibration.measurements.adapters.aiconfigurator_gemm import DTYPES
from calibration.measurements.layouts import UNKNOWN_VERSION, Layout

# No column names the version of a library; the README of the tidy set does.
VERSIONS = {"trtllm": "1.3.0rc20", "vllm": "0.24.0", "sglang": "0.5.14"}
VERSIONS_A100 = {"trtllm": "1.0.0", "vllm": "0.14.0", "sglang": "0.5.10"}
MLA_HEAD = 576  # DeepSeek-V3: kv_lora_rank 512 + qk_rope_head_dim 64
PHASES = {"context": "prefill", "generation": "decode"}


def _sweeps(rows: pd.DataFrame, library: pd.Series, dtype: str, kv_dtype: str) -> pd.DataFrame:
    old = rows["gpu"].str.startswith("A100")
    version = library.map(VERSIONS_A100).where(old, library.map(VERSIONS)).fillna(UNKNOWN_VERSION)
    return pd.DataFrame(
        {
            "run_id": version,
            "gpu_name": rows["gpu"],
            "library": library,
            "library_version": version,
            "dtype": rows[dtype].map(DTYPES).fillna(rows[dtype]),
            "kv_dtype": rows[kv_dtype].map(DTYPES).fillna(rows[kv_dtype]),
            "latency_us_median": rows["latency_us"],
        },
        index=rows.index,
    )


def _grouped(rows: pd.DataFrame, phase: str, tokens: str) -> pd.DataFrame:
    return _sweeps(rows, rows["framework"], "attn_dtype", "kv_dtype").assign(
        phase=phase,
        kind="gqa",
        heads=rows["q_heads"],
        kv_heads=rows["kv_heads"],
        head_dim=rows["head_dim"],
        window=rows["window"],
        batch=rows["batch"],
        tokens=rows[tokens],
    )


def _context(rows: pd.DataFrame) -> pd.DataFrame:
    return _grouped(rows, "prefill", "input_tokens")


def _generation(rows: pd.DataFrame) -> pd.DataFrame:
    return _grouped(rows, "decode", "context_tokens")


def _latent(rows: pd.DataFrame) -> pd.DataFrame:
    """``isl`` new tokens of each request after ``step`` cached ones; prompts have no cached ones."""
    return _sweeps(rows, pd.Series("trtllm", index=rows.index), "mla_dtype", "kv_cache_dtype").assign(
        phase=rows["phase"].map(PHASES).fillna(rows["phase"]),
        kind="mla",
        heads=rows["num_heads"],
        kv_heads=1.0,
        head_dim=float(MLA_HEAD),
        window=0.0,
        batch=rows["batch_size"],
        tokens=rows["isl"] + rows["step"],
    )


_HEADS = ("q_heads", "kv_heads", "head_dim", "window", "batch")
_LATENT = ("num_heads", "batch_size", "isl", "step", "latency_us")
LAYOUTS = (
    Layout(
        "aiconfigurator GQA prefill",
        "attention",
        ("gpu", "framework", "attn_dtype", "kv_dtype", *_HEADS, "input_tokens", "latency_us"),
        (*_HEADS, "input_tokens", "latency_us"),
        _context,
    ),
    Layout(
        "aiconfigurator GQA decode",
        "attention",
        ("gpu", "framework", "attn_dtype", "kv_dtype", *_HEADS, "context_tokens", "latency_us"),
        (*_HEADS, "context_tokens", "latency_us"),
        _generation,
    ),
    Layout(
        "aiconfigurator MLA",
        "attention",
        ("gpu", "phase", "mla_dtype", "kv_cache_dtype", *_LATENT),
        _LATENT,
        _latent,
    ),
)
