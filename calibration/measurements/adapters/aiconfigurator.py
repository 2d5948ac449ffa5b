"""Attention sweeps of ai-dynamo/aiconfigurator (Apache-2.0), as tidy CSV: grouped queries, and latent KV (MLA).

Times are of one rank's kernels, KV write included and projections excluded; TensorRT-LLM fuses RoPE. Heads are those of
a rank, after tensor parallelism.
"""

import pandas as pd

from archsim.laws.attention import DECODE, MLA_BLOCK, MLA_POST, MLA_PRE, PREFILL
from calibration.measurements.adapters.aiconfigurator_gemm import DTYPES
from calibration.measurements.layouts import UNKNOWN_VERSION, frame, layout, translate

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
    return frame(
        rows, "gpu_name=gpu latency_us_median=latency_us", library=library, library_version=version,
        run_id=version.where(again == "0", version + " run " + again), dtype=translate(rows[dtype], DTYPES),
        kv_dtype=translate(rows[kv_dtype], DTYPES),
    )  # fmt: skip


def _grouped_queries(rows: pd.DataFrame, phase: str, tokens: str) -> pd.DataFrame:
    heads = frame(rows, f"heads=q_heads kv_heads head_dim window batch tokens={tokens}", phase=phase, kind="gqa")
    return _sweeps(rows, rows["framework"], "attn_dtype", "kv_dtype").join(heads)


def _context(rows: pd.DataFrame) -> pd.DataFrame:
    return _grouped_queries(rows, "prefill", "input_tokens")


def _generation(rows: pd.DataFrame) -> pd.DataFrame:
    return _grouped_queries(rows, "decode", "context_tokens")


def _latent(rows: pd.DataFrame) -> pd.DataFrame:
    """``isl`` new tokens of each request after ``step`` cached ones; prompts have no cached ones."""
    library = rows.get("framework", pd.Series("trtllm", index=rows.index))
    return _sweeps(rows, library, "mla_dtype", "kv_cache_dtype").assign(
        phase=translate(rows["phase"], PHASES), kind="mla", heads=rows["num_heads"], kv_heads=1.0,
        head_dim=float(MLA_HEAD), window=0.0, batch=rows["batch_size"], tokens=rows["isl"] + rows["step"],
    )  # fmt: skip


def _blocks(rows: pd.DataFrame) -> pd.DataFrame:
    """Latent attention with its projections; sglang's variant for wide EP is a library of its own."""
    wide = rows["scope"] == "wideep_module"
    return _latent(rows).assign(
        library=rows["framework"].where(~wide, rows["framework"] + "-wideep"),
        kind=MLA_BLOCK,
        products=translate(rows["gemm_type"], DTYPES),
    )


def _absorbed_products(rows: pd.DataFrame) -> pd.DataFrame:
    """The two batched products of a decode that absorbs the projections of keys and values: a token is a request."""
    return _sweeps(rows, rows["framework"], "dtype", "dtype").assign(
        phase=DECODE, kind=translate(rows["op"], ABSORBED), heads=rows["num_heads"], kv_heads=1.0,
        head_dim=float(MLA_HEAD), window=0.0, batch=rows["num_tokens"], tokens=1.0,
    )  # fmt: skip


_HEADS, _WHO = "q_heads kv_heads head_dim window batch", "gpu framework attn_dtype kv_dtype"
_LATENT, _MLA = "num_heads batch_size isl step latency_us", "gpu phase mla_dtype kv_cache_dtype"
ATTENTION_LAYOUTS = (
    layout("aiconfigurator GQA prefill", "attention", _context, _WHO, f"{_HEADS} input_tokens latency_us"),
    layout("aiconfigurator GQA decode", "attention", _generation, _WHO, f"{_HEADS} context_tokens latency_us"),
    layout("aiconfigurator MLA", "attention", _latent, _MLA, _LATENT),
    layout("aiconfigurator MLA block", "attention", _blocks, f"framework scope gemm_type {_MLA}", _LATENT),
    layout(
        "aiconfigurator MLA GEMMs",
        "attention",
        _absorbed_products,
        "gpu framework op dtype",
        "num_heads num_tokens latency_us",
    ),
)
