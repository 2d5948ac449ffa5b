"""Attention sweeps of ai-dynamo/aiconfigurator (Apache-2.0), as tidy CSV: grouped queries, and latent KV (MLA).

Times are of one rank's kernels, KV write included and projections excluded; TensorRT-LLM fuses RoPE. Heads are those of
a rank, after tensor parallelism.
"""

import re

import pandas as pd

from archsim.laws.attention import DECODE, MLA_BLOCK, MLA_POST, MLA_PRE, PREFILL
from archsim.laws.tables import newest_first
from archsim.laws.transfers import COMBINE, COMBINE_LOW_PRECISION, DISPATCH, NOTIFY_OF, PAYLOAD_OF, PREPARE, sent_bytes
from calibration.measurements.adapters.public import repetition
from calibration.measurements.layouts import UNKNOWN_VERSION, frame, layout, renamed

# ---- aiconfigurator_gemm
# GEMM and quantisation sweeps of ai-dynamo/aiconfigurator (Apache-2.0), as tidy CSV.
#
# Times are means over replays of a CUDA graph, with weights rotated past the L2. FP8 rows include the dynamic
# quantisation of the activation, as do NVFP4 ones (512 x 512 weights take TensorRT-LLM 7.5 us for one row, and 2.6 in
# BF16); BF16 rows are the GEMM alone. Each framework version is one sweep.

DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8",
    "int4_wo": "int4",
}
QUANTISED = ("fp8", "fp8_block", "nvfp4")
DENSE = "trtllm-dense"
TIMES = "latency_us_"  # of a sweep: latency_us_trtllm_1_3_0rc20
GRID_GPU = "H100-SXM5-80GB"  # the grid of the layout without a GPU column


def _products(rows: pd.DataFrame, dtype: pd.Series, latency_us: pd.Series) -> pd.DataFrame:
    included = dtype.isin(QUANTISED).map({True: "1", False: "0"})
    return frame(
        rows, "m n k", dtype=renamed(dtype, DTYPES), quant_included=included, groups=1.0, latency_us_median=latency_us
    )


def _gemm_sweeps(rows: pd.DataFrame) -> pd.DataFrame:
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


def _engines(rows: pd.DataFrame) -> pd.DataFrame:
    """Sweeps side by side, a column each, named after library and version; empty: not measured. Of every library and
    dtype the newest version: four GPUs of 322 shapes and all versions would be 1.6 million points.
    """
    versions = {name: name.removeprefix(TIMES).partition("_") for name in rows if name.startswith(TIMES)}
    newest = sorted(versions, key=lambda name: newest_first(versions[name][2].replace("_", ".")), reverse=True)
    found, taken = [], set()
    for name in newest:
        library, _, version = versions[name]
        version = version.replace("_", ".")
        times = pd.to_numeric(rows[name], errors="coerce").dropna()
        for dtype, latency_us in times.groupby(rows["dtype"]):
            if (library, dtype) in taken:
                continue
            taken.add((library, dtype))
            mine = rows.loc[latency_us.index]
            found.append(
                _products(mine, mine["dtype"], latency_us).assign(
                    run_id=version, gpu_name=mine["gpu"], library=library, library_version=version
                )
            )
    return pd.concat(found)


def _dense_projections(rows: pd.DataFrame) -> pd.DataFrame:
    """Products of attention, dense FFN, router and LM head of TRT-LLM, kept as a separate library.

    A table has one law, and widths of 32 to 65536 would bias it for the shapes of experts.
    """
    return _products(rows, rows["dtype"], rows["latency_us"]).assign(
        run_id=rows["framework_version"], gpu_name=rows["gpu"], library=DENSE, library_version=rows["framework_version"]
    )


def _quantisations(rows: pd.DataFrame) -> pd.DataFrame:
    """Per-tensor scales of FP8 activations."""
    who = "run_id=framework_version gpu_name=gpu library=framework library_version=framework_version"
    return frame(rows, f"{who} op m k latency_us_median=latency_us", dtype="fp8")


_ENGINES = "gpu dtype latency_us_trtllm_1_3_0rc20 latency_us_vllm_0_24_0"
GEMM_LAYOUTS = (
    layout(
        "aiconfigurator gemm",
        "gemm",
        _gemm_sweeps,
        "gpu dtype framework framework_version kernel_source",
        "m n k latency_us",
    ),
    layout("aiconfigurator gemm grid", "gemm", _grid, "dtype", "n k m latency_us_run1 latency_us_run2"),
    layout("aiconfigurator gemm of engines", "gemm", _engines, _ENGINES, "m n k"),
    layout(
        "aiconfigurator dense projections",
        "gemm",
        _dense_projections,
        "gpu framework_version dtype",
        "n k m latency_us",
    ),
    layout(
        "aiconfigurator quantisation",
        "quantisation",
        _quantisations,
        "gpu op framework framework_version",
        "m k latency_us",
    ),
)


# ---- aiconfigurator_attention

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
        rows,
        "gpu_name=gpu latency_us_median=latency_us",
        library=library,
        library_version=version,
        run_id=version.where(again == "0", version + " run " + again),
        dtype=renamed(rows[dtype], DTYPES),
        kv_dtype=renamed(rows[kv_dtype], DTYPES),
    )


def _grouped(rows: pd.DataFrame, phase: str, tokens: str) -> pd.DataFrame:
    heads = frame(rows, f"heads=q_heads kv_heads head_dim window batch tokens={tokens}", phase=phase, kind="gqa")
    return _sweeps(rows, rows["framework"], "attn_dtype", "kv_dtype").join(heads)


def _context(rows: pd.DataFrame) -> pd.DataFrame:
    return _grouped(rows, "prefill", "input_tokens")


def _generation(rows: pd.DataFrame) -> pd.DataFrame:
    return _grouped(rows, "decode", "context_tokens")


def _latent(rows: pd.DataFrame) -> pd.DataFrame:
    """``isl`` new tokens of each request after ``step`` cached ones; prompts have no cached ones."""
    library = rows.get("framework", pd.Series("trtllm", index=rows.index))
    return _sweeps(rows, library, "mla_dtype", "kv_cache_dtype").assign(
        phase=renamed(rows["phase"], PHASES),
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
        products=renamed(rows["gemm_type"], DTYPES),
    )


def _absorbed(rows: pd.DataFrame) -> pd.DataFrame:
    """The two batched products of a decode that absorbs the projections of keys and values: a token is a request."""
    return _sweeps(rows, rows["framework"], "dtype", "dtype").assign(
        phase=DECODE,
        kind=renamed(rows["op"], ABSORBED),
        heads=rows["num_heads"],
        kv_heads=1.0,
        head_dim=float(MLA_HEAD),
        window=0.0,
        batch=rows["num_tokens"],
        tokens=1.0,
    )


_HEADS, _WHO = "q_heads kv_heads head_dim window batch", "gpu framework attn_dtype kv_dtype"
_LATENT, _MLA = "num_heads batch_size isl step latency_us", "gpu phase mla_dtype kv_cache_dtype"
ATTENTION_LAYOUTS = (
    layout("aiconfigurator GQA prefill", "attention", _context, _WHO, f"{_HEADS} input_tokens latency_us"),
    layout("aiconfigurator GQA decode", "attention", _generation, _WHO, f"{_HEADS} context_tokens latency_us"),
    layout("aiconfigurator MLA", "attention", _latent, _MLA, _LATENT),
    layout("aiconfigurator MLA block", "attention", _blocks, f"framework scope gemm_type {_MLA}", _LATENT),
    layout(
        "aiconfigurator MLA products",
        "attention",
        _absorbed,
        "gpu framework op dtype",
        "num_heads num_tokens latency_us",
    ),
)


# ---- aiconfigurator_moe
# MoE layers, and parts of them, of ai-dynamo/aiconfigurator (Apache-2.0), as tidy CSV: fused layers, grouped GEMMs
# after DeepEP's dispatch, and the experts of wide-EP deployments with and without EPLB.
#
# Times are means over replays of a CUDA graph on one rank, without transfers.

# hidden, FFN width, experts, top-k: from the models' public configurations.
MODELS = {
    "DeepSeek-V3": (7168, 2048, 256, 8),
    "Kimi-K2": (7168, 2048, 384, 8),
    "Qwen3-235B-A22B": (4096, 1536, 128, 8),
    "Qwen3-30B-A3B": (2048, 768, 128, 8),
    "Llama4-Maverick": (5120, 8192, 128, 1),
    "Mixtral-8x7B": (4096, 14336, 8, 2),
    "Mixtral-8x22B": (6144, 16384, 8, 2),
    "GLM-5": (6144, 2048, 256, 8),
    "MiniMax-M2": (3072, 1536, 256, 8),
    "MiniMax-M3": (6144, 3072, 128, 4),
    "Kimi-K3": (3584, 3072, 896, 16),
    "Qwen3.5-397B-A17B": (4096, 1024, 512, 10),
    "Qwen3.5-35B-A3B": (2048, 512, 256, 8),
    "MiMo-V2-Flash": (4096, 2048, 256, 8),
    "gpt-oss-120b": (2880, 2880, 128, 4),
    "Gemma-4-26B-A4B": (2816, 704, 128, 8),
    "Nemotron-3-Nano-30B": (2688, 1856, 128, 6),
    "Nemotron-3-Super-120B": (4096, 2688, 512, 22),
    "Nemotron-3-Super-120B-latent": (1024, 2688, 512, 22),
    "Nemotron-3-Ultra-550B": (8192, 5120, 512, 22),
    "Nemotron-3-Ultra-550B-latent": (2048, 5120, 512, 22),
}
UNKNOWN_MODELS = (
    "marked suspect, of older versions, or of models of unknown sizes, which this layout does not state (known: "
    f"{', '.join(MODELS)}); use the schema's moe.csv"
)
# Versions of files without a version column: by suffix of the file name, and the default (README of the tidy set).
VERSION_OF_ENDING = {"sglang056": "0.5.6.post2"}
VERSION = "0.5.10"
WIDE_EP, WIDE_EP_VERSION = "trtllm-wideep", "1.3.0rc10"  # from the source's folder; not in a column


def _layers(rows: pd.DataFrame) -> pd.DataFrame:
    """Fused MoE layers of models whose sizes are known here; other rows are left out, and those that their set marks
    as ``suspect`` (faster than HBM can read the experts). Of such a set, a library's older version counts only for
    models and dtypes that its newer one lacks: versions changed kernels. A repeated point is another run.
    """
    if "suspect" in rows:
        rows = _newest(rows[rows["suspect"] != "1"])
    return _layers_of(rows, rows["framework"], rows["framework_version"], rows["kernel_source"])


def _newest(rows: pd.DataFrame) -> pd.DataFrame:
    order = sorted(rows["framework_version"].unique(), key=newest_first)
    age = rows["framework_version"].map({version: at for at, version in enumerate(order)})
    layer = [rows[name] for name in ("gpu", "framework", "model", "dtype", "distribution")]
    return rows[age == age.groupby(layer).transform("max")]


def _after_dispatch(rows: pd.DataFrame) -> pd.DataFrame:
    """One rank's experts after DeepEP's dispatch, masked (generation) or contiguous (context) grouped GEMM, in sglang.

    The version comes from the file name, as there is no column; uniform routing loads experts as balanced routing does.
    Masked rows hold received tokens alone. The contiguous ones carry all tokens of the group: 8 ns each at any EP size
    (their law is 2 % off with tokens of the group, 12 % with received ones).
    """
    version = rows["file"].map(_version_of_file)
    library = pd.Series("sglang-deepep", index=rows.index)
    rows = rows.assign(tp=1.0, distribution=rows["distribution"].replace("uniform", "balanced"))
    kernel = rows["kernel_source"] + "-" + rows["phase"]
    seen = rows["phase"].map({"generation": "received"}).fillna("group")
    return _layers_of(rows.assign(seen=seen), library, version, kernel)


def _layers_of(rows: pd.DataFrame, library: pd.Series, version: pd.Series, kernel: pd.Series) -> pd.DataFrame:
    sizes = {model: _sizes(model) for model in rows["model"].unique()}
    rows = rows[rows["model"].map(sizes).notna()]
    point = [name for name in rows if name not in ("latency_us", "repeat")]
    again = rows.groupby(point, dropna=False, sort=False).cumcount()
    library, version, kernel = (names.loc[rows.index] for names in (library, version, kernel))
    found = pd.DataFrame(
        [sizes[model] for model in rows["model"]], index=rows.index, columns=["hidden", "ffn", "experts", "top_k"]
    )
    return frame(
        rows,
        "gpu_name=gpu model ep tp distribution tokens_total=num_tokens latency_us_median=latency_us",
        run_id=version + again.map(lambda number: f" run {number + 1}" if number else ""),
        library=library,
        library_version=version,
        dtype=renamed(rows["dtype"], DTYPES),
        kernel=kernel,
        tokens_seen=rows["seen"] if "seen" in rows else "group",
    ).join(found.astype(float))


def _version_of_file(name: str) -> str:
    stem = name.partition(".")[0]
    return next((version for ending, version in VERSION_OF_ENDING.items() if stem.endswith(ending)), VERSION)


def _sizes(model: str) -> tuple[int, int, int, int] | None:
    """Hidden size, FFN width, experts and top-k of a model, by its name or parsed from it: 'h6144_i2560_k8_e160'."""
    written = re.fullmatch(r"h(\d+)_i(\d+)_k(\d+)_e(\d+)", model)
    if written:
        hidden, ffn, top_k, experts = map(int, written.groups())
        return hidden, ffn, experts, top_k
    return MODELS.get(model)


def _wide_ep(rows: pd.DataFrame) -> pd.DataFrame:
    """The grouped GEMMs of the most loaded rank, with EPLB (slots of all ranks) and without."""
    return frame(
        rows,
        "gpu_name=gpu model hidden=hidden_size ffn=inter_size experts=num_experts top_k=topk ep distribution "
        "tokens_total=num_tokens tokens_rank=tokens_on_measured_rank kernel=kernel_source latency_us_median=latency_us",
        run_id=WIDE_EP_VERSION,
        library=WIDE_EP,
        library_version=WIDE_EP_VERSION,
        dtype=renamed(rows["dtype"], DTYPES),
        tp=1.0,
        eplb_slots=rows["num_slots"].where(rows["eplb"] == 1, 0.0),
    )


MOE_LAYOUTS = (
    layout(
        "aiconfigurator moe",
        "moe",
        _layers,
        "gpu dtype framework framework_version kernel_source model distribution",
        "tp ep num_tokens latency_us",
        leaves_out=UNKNOWN_MODELS,
    ),
    layout(
        "aiconfigurator grouped GEMM after DeepEP",
        "moe",
        _after_dispatch,
        "gpu model phase dtype kernel_source distribution",
        "ep num_tokens latency_us",
        leaves_out=UNKNOWN_MODELS,
    ),
    layout(
        "aiconfigurator wide EP",
        "moe",
        _wide_ep,
        "gpu model dtype kernel_source distribution",
        "hidden_size inter_size topk num_experts num_slots ep eplb num_tokens tokens_on_measured_rank latency_us",
    ),
)


# ---- dispatches
# Dispatch and combine of MoE libraries in ai-dynamo/aiconfigurator (Apache-2.0), as tidy CSV: DeepEP within a node and
# between nodes, and TensorRT-LLM's all-to-all within an NVL72.
#
# ``bytes`` is what one rank sends if every expert of a token is on another rank
# (``archsim.laws.transfers.sent_bytes``).

# DeepEP builds that sglang ships; not in a column (README of the tidy set).
WITHIN_A_NODE, BETWEEN_NODES = "sglang-0.5.12", "sglang-0.5.6.post2"
ALL_TO_ALL_VERSION = "1.3.0rc10"  # TensorRT-LLM, likewise
ALL_TO_ALL = {
    "alltoall_prepare": PREPARE,
    "alltoall_dispatch": DISPATCH,
    "alltoall_combine": COMBINE,
    "alltoall_combine_low_precision": COMBINE_LOW_PRECISION,
}
KERNELS = {"NVLinkOneSided": "nvlink_one_sided", "NVLinkTwoSided": "nvlink_two_sided"}
DISPATCH_DTYPES = {"bfloat16": "bf16"}


def _phases(rows: pd.DataFrame, version: str, variant: str, latency_us: dict[str, pd.Series]) -> pd.DataFrame:
    """Rows of every operation; ``latency_us``: operation → its times."""
    sms = rows["comm_sms"] if "comm_sms" in rows else float("nan")
    found = [
        frame(
            rows,
            f"{_ROWS} num_gpus tokens_per_rank",
            run_id=repetition(rows),
            library="deepep",
            library_version=version,
            op=op,
            variant=variant,
            nodes=rows["nodes"] if "nodes" in rows else 1.0,
            bytes=sent_bytes(PAYLOAD_OF[op], rows["tokens_per_rank"], rows["topk"], rows["hidden_size"]).round(),
            dtype=PAYLOAD_OF[op],
            sms=sms,
            latency_us_median=times,
        )
        for op, times in latency_us.items()
    ]
    return pd.concat(found)


def _within_a_node(rows: pd.DataFrame) -> pd.DataFrame:
    variant = "normal" if "comm_sms" in rows else "low_latency"
    return _phases(rows, WITHIN_A_NODE, variant, {op: rows[f"{op}_us"] for op in (DISPATCH, COMBINE)})


def _low_latency_between(rows: pd.DataFrame) -> pd.DataFrame:
    return _phases(rows, BETWEEN_NODES, "low_latency", {op: rows[f"{op}_us"] for op in (DISPATCH, COMBINE)})


def _normal_between(rows: pd.DataFrame) -> pd.DataFrame:
    """Exchange of hidden vectors (transmit) and, apart from it, of counts (notify), which one node does not have."""
    sent = _phases(rows, BETWEEN_NODES, "normal", {op: rows[f"{op}_transmit_us"] for op in (DISPATCH, COMBINE)})
    several = rows[rows["nodes"] > 1]
    told = {NOTIFY_OF[op]: several[f"{op}_notify_us"] for op in (DISPATCH, COMBINE)}
    return pd.concat([sent, _phases(several, BETWEEN_NODES, "normal", told)])


def _all_to_all(rows: pd.DataFrame) -> pd.DataFrame:
    """Tokens are per rank. Only dispatch and the low-precision combine send the dtype of the layer, so prepare and
    combine of layers with other dtypes are repetitions.
    """
    op = rows["op"].map(ALL_TO_ALL).fillna(rows["op"])
    layer = rows["dtype"].replace(DISPATCH_DTYPES)
    sent = layer.where(op.isin([DISPATCH, COMBINE_LOW_PRECISION]), PAYLOAD_OF[COMBINE])
    sizes = [
        sent_bytes(dtype, *row)
        for dtype, row in zip(sent, rows[["num_tokens", "topk", "hidden_size"]].to_numpy(), strict=True)
    ]
    return frame(
        rows,
        f"{_ROWS} num_gpus=ep tokens_per_rank=num_tokens latency_us_median=latency_us",
        run_id=layer,
        library="trtllm",
        library_version=ALL_TO_ALL_VERSION,
        op=op,
        variant=rows["kernel_source"].replace(KERNELS),
        nodes=1.0,
        bytes=pd.Series(sizes, index=rows.index, dtype=float).round(),
        dtype=sent,
    )


_ROWS = "gpu_name=gpu hidden=hidden_size top_k=topk experts=num_experts"
_LAYER = "num_gpus hidden_size topk num_experts tokens_per_rank"
_WHOLE = f"{_LAYER} dispatch_us combine_us"
_PARTS = "nodes comm_sms dispatch_transmit_us dispatch_notify_us combine_transmit_us combine_notify_us"
DISPATCH_LAYOUTS = (
    layout("DeepEP low latency", "collective", _within_a_node, "gpu", _WHOLE),
    layout("DeepEP normal", "collective", _within_a_node, "gpu", f"comm_sms {_WHOLE}"),
    layout("DeepEP low latency between nodes", "collective", _low_latency_between, "gpu", f"nodes {_WHOLE}"),
    layout("DeepEP normal between nodes", "collective", _normal_between, "gpu", f"{_LAYER} {_PARTS}"),
    layout(
        "TensorRT-LLM all-to-all",
        "collective",
        _all_to_all,
        "gpu op kernel_source dtype distribution",
        "hidden_size topk num_experts ep num_tokens latency_us",
    ),
)
