"""Attention sweeps of ai-dynamo/aiconfigurator (Apache-2.0), as tidy CSV: grouped queries, and latent KV (MLA).

Times are of one rank's kernels, KV write included and projections excluded; TensorRT-LLM fuses RoPE. Heads are those of
a rank, after tensor parallelism.
"""

import pandas as pd

from archsim.laws.attention import DECODE, MLA_BLOCK, MLA_POST, MLA_PRE, PREFILL
from calibration.measurements.adapters.aiconfigurator_gemm import DTYPES
from calibration.measurements.layouts import UNKNOWN_VERSION, Layout

# No column names the version of a library; the README of the tidy set does.
VERSIONS = {"trtllm": "1.3.0rc20", "vllm": "0.24.0", "sglang": "0.5.14"}
VERSIONS_A100 = {"trtllm": "1.0.0", "vllm": "0.14.0", "sglang": "0.5.10"}
MLA_HEAD = 576  # DeepSeek-V3: kv_lora_rank 512 + qk_rope_head_dim 64
PHASES = {"context": PREFILL, "generation": DECODE}
ABSORBED = {"mla_gen_pre": MLA_PRE, "mla_gen_post": MLA_POST}


def _sweeps(rows: pd.DataFrame, library: pd.Series, dtype: str, kv_dtype: str) -> pd.DataFrame:
    old = rows["gpu"].str.startswith("A100")
    version = library.map(VERSIONS_A100).where(old, library.map(VERSIONS)).fillna(UNKNOWN_VERSION)
    version = rows.get("framework_version", version)
    again = rows["repeat"] if "repeat" in rows else pd.Series("0", index=rows.index)
    return pd.DataFrame(
        {
            "run_id": version.where(again == "0", version + " run " + again),
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
        phase=phase, kind="gqa", heads=rows["q_heads"], kv_heads=rows["kv_heads"], head_dim=rows["head_dim"],
        window=rows["window"], batch=rows["batch"], tokens=rows[tokens],
    )


def _context(rows: pd.DataFrame) -> pd.DataFrame:
    return _grouped(rows, "prefill", "input_tokens")


def _generation(rows: pd.DataFrame) -> pd.DataFrame:
    return _grouped(rows, "decode", "context_tokens")


def _latent(rows: pd.DataFrame) -> pd.DataFrame:
    """``isl`` new tokens of each request after ``step`` cached ones; prompts have no cached ones."""
    library = rows.get("framework", pd.Series("trtllm", index=rows.index))
    return _sweeps(rows, library, "mla_dtype", "kv_cache_dtype").assign(
        phase=rows["phase"].map(PHASES).fillna(rows["phase"]),
        kind="mla",
        heads=rows["num_heads"],
        kv_heads=1.0,
        head_dim=float(MLA_HEAD),
        window=0.0,
        batch=rows["batch_size"],
        tokens=rows["isl"] + rows["step"],
    )


def _blocks(rows: pd.DataFrame) -> pd.DataFrame:
    """Latent attention with its projections; sglang's variant for wide EP is a library of its own."""
    wide = rows["scope"] == "wideep_module"
    return _latent(rows).assign(
        library=rows["framework"].where(~wide, rows["framework"] + "-wideep"),
        kind=MLA_BLOCK,
        products=rows["gemm_type"].map(DTYPES).fillna(rows["gemm_type"]),
    )


def _absorbed(rows: pd.DataFrame) -> pd.DataFrame:
    """The two batched products of a decode that absorbs the projections of keys and values: a token is a request."""
    return _sweeps(rows, rows["framework"], "dtype", "dtype").assign(
        phase=DECODE, kind=rows["op"].map(ABSORBED).fillna(rows["op"]), heads=rows["num_heads"], kv_heads=1.0,
        head_dim=float(MLA_HEAD), window=0.0, batch=rows["num_tokens"], tokens=1.0,
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
    Layout(
        "aiconfigurator MLA block",
        "attention",
        ("gpu", "framework", "scope", "phase", "mla_dtype", "kv_cache_dtype", "gemm_type", *_LATENT),
        _LATENT,
        _blocks,
    ),
    Layout(
        "aiconfigurator MLA products",
        "attention",
        ("gpu", "framework", "op", "dtype", "num_heads", "num_tokens", "latency_us"),
        ("num_heads", "num_tokens", "latency_us"),
        _absorbed,
    ),
)
