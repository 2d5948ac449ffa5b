"""MoE layers, and parts of them, of ai-dynamo/aiconfigurator (Apache-2.0), as tidy CSV: fused layers, grouped GEMMs
after DeepEP's dispatch, and the experts of wide-EP deployments with and without EPLB.

Times are means over replays of a CUDA graph on one rank, without transfers.
"""

import re

import pandas as pd

from archsim.laws.tables import newest_first
from calibration.measurements.adapters.aiconfigurator_gemm import DTYPES
from calibration.measurements.layouts import frame, layout, translate

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
        dtype=translate(rows["dtype"], DTYPES),
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
        dtype=translate(rows["dtype"], DTYPES),
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
