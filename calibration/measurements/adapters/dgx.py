"""Sweeps of a user's own server node (such as a DGX): six tables of the schema, with columns that users leave out.

Differences from the schema: ``dtype_a`` and ``scaling`` instead of ``dtype``; no ``library_version`` (it may be part of
``library``: 'cublas 12.4'); only ``gemm.csv`` has ``gpu_name`` and ``driver`` (``calibration.measurements.reading``);
``bytes_per_rank``; models by name.
"""

import re
from collections.abc import Callable

import pandas as pd

from archsim.traffic.trace_checks import shipped_models
from calibration.measurements import layouts, schema
from calibration.measurements.adapters import aiconfigurator_moe, transfers

ELEMENTS = {
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "half"), "fp16"),
    **dict.fromkeys(("fp8", "fp8e4m3", "e4m3", "float8e4m3fn", "fp8e4m3fn"), "fp8"),
}
# Letters and digits of ``scaling``; FP8 without scales means per-tensor scales.
PER_TENSOR = ("", "none", "tensor", "pertensor", "tensorwise", "static", "dynamic", "statictensor", "dynamictensor")
BLOCKS = (
    "block",
    "blockwise",
    "perblock",
    "block128",
    "128block",
    "blocks128",
    "128x128",
    "1x128",
    "1x128128x128",
    "block128x128",
)
WORDS = {"true": "1", "yes": "1", "false": "0", "no": "0"}
# Library by method: the driver's copy engine or a kernel, or NCCL
METHOD_OF = {"ce": "cuda", "sm": "cuda", "nccl": "nccl"}
GATHERED = "all_gather"  # nccl-tests count the gathered buffer (all ranks); for other operations the buffer of one rank
OTHER_OPERATIONS = {"allgather": GATHERED, "allreduce": "all_reduce", "reducescatter": "reduce_scatter"}
UNKNOWN_MODELS = "models neither shipped nor in a public set, so their sizes are not known; use the schema's moe.csv"


def library_and_version(name: str) -> tuple[str, str]:
    """'cublas 12.4.5' → ('cublas', '12.4.5'); 'deepgemm' → ('deepgemm', 'unknown')."""
    found = re.fullmatch(r"(.*?[A-Za-z].*?)[\s/=_-]+v?(\d+(?:\.\d+)+.*|\d+)", name.strip())
    return (found[1], found[2]) if found else (name.strip(), layouts.UNKNOWN_VERSION)


def dtype_of(element: str, scaling: str) -> str:
    """The dtype of the schema; an unknown one is returned unchanged, for the reader to quarantine."""
    plain, scales = (re.sub(r"[^a-z0-9]", "", cell.lower()) for cell in (element, scaling))
    dtype = ELEMENTS.get(plain, "fp8_block" if plain == "fp8block" else "")
    if dtype in ("bf16", "fp16") or dtype and scales in PER_TENSOR:
        return dtype
    return "fp8_block" if dtype and scales in BLOCKS else f"{element} {scaling}".strip()


def _with_library(rows: pd.DataFrame, library: pd.Series) -> pd.DataFrame:
    """Rows with ``library`` and ``library_version``, which apply only if the file lacks these columns.

    The library 'cuda', the driver itself, has the driver's version.
    """
    named = library.map(library_and_version)
    version = named.str[1]
    if "driver" in rows:
        version = version.mask((library == "cuda") & (rows["driver"] != ""), rows["driver"])
    found = {"library": named.str[0], "library_version": version}
    if "library_version" in rows:
        found = {"library": library}
    return rows.assign(**found)


def _library(rows: pd.DataFrame, otherwise: str) -> pd.Series:
    return rows["library"] if "library" in rows else pd.Series(otherwise, index=rows.index, dtype=object)


def _products(rows: pd.DataFrame) -> pd.DataFrame:
    first = [dtype_of(*cells) for cells in zip(rows["dtype_a"], rows["scaling"], strict=True)]
    second = [dtype_of(*cells) for cells in zip(rows.get("dtype_b", rows["dtype_a"]), rows["scaling"], strict=True)]
    both = [a if a == b else f"{a} x {b}" for a, b in zip(first, second, strict=True)]
    return _with_library(rows, rows["library"]).assign(
        dtype=pd.Series(both, index=rows.index, dtype=object),
        quant_included=rows["quant_included"].str.lower().replace(WORDS),
    )


def _copies(rows: pd.DataFrame) -> pd.DataFrame:
    """Between GPUs of one server node unless a placement is given."""
    library = rows["library"] if "library" in rows else rows["method"].map(METHOD_OF).fillna("cuda")
    return _with_library(rows, library).assign(placement=rows.get("placement", "intra_node"))


def _collectives(rows: pd.DataFrame) -> pd.DataFrame:
    op = rows["op"].str.lower().str.replace("-", "_").replace(transfers.OPERATIONS | OTHER_OPERATIONS)
    ranks = rows["num_gpus"].where(op == GATHERED, 1.0)
    return _with_library(rows, rows["library"]).assign(op=op, bytes=rows["bytes_per_rank"] * ranks)


def _host_copies(rows: pd.DataFrame) -> pd.DataFrame:
    return _with_library(rows, _library(rows, "cuda")).assign(pinned=rows["pinned"].str.lower().replace(WORDS))


def _launches(rows: pd.DataFrame) -> pd.DataFrame:
    return _with_library(rows, _library(rows, "cuda"))


def _layers(rows: pd.DataFrame) -> pd.DataFrame:
    """Fused MoE layers; the library is that of the kernel, without its version."""
    sizes = {name: sizes_of(name) for name in rows["model"].unique()}
    rows = rows[rows["model"].map(sizes).notna()]
    names = ("model", "hidden", "ffn", "experts", "top_k")
    found = pd.DataFrame([sizes[model] for model in rows["model"]], index=rows.index, columns=names)
    dtype = [dtype_of(cell, "") for cell in rows["dtype"]]
    library = rows["library"] if "library" in rows else rows["kernel"].replace("", "unknown")
    return _with_library(rows, library).assign(
        **found.astype(dict.fromkeys(names[1:], float)), dtype=pd.Series(dtype, rows.index, dtype=object)
    )


def sizes_of(model: str) -> tuple[str, int, int, int, int] | None:
    """(name, hidden, FFN width, experts, top-k) of a model, shipped (or an alias) or of a public set."""
    wanted = _plain(model)
    for spec in shipped_models():
        if wanted in map(_plain, (spec.name, *spec.aliases)):
            return spec.name, spec.hidden, spec.expert_ffn, spec.experts, spec.top_k
    return next(((name, *sizes) for name, sizes in aiconfigurator_moe.MODELS.items() if _plain(name) == wanted), None)


def _plain(name: str) -> str:
    """Letters and digits of the name after the organisation."""
    return re.sub(r"[^a-z0-9]", "", name.lower().rpartition("/")[2])


def _layout(
    kind: str, required: str, convert: Callable, more_figures: tuple[str, ...] = (), leaves_out: str = ""
) -> layouts.FileLayout:
    needed = ("run_id", *required.split(), "latency_us_median")
    figures = (*schema.TABLES[kind].figures, *more_figures)
    optional = tuple(name for name in figures if name not in needed or name == "sms")
    return layouts.FileLayout(f"DGX {kind}", kind, needed, figures, convert, optional, leaves_out, of_user=True)


LAYOUTS = (
    _layout("gemm", "library dtype_a scaling quant_included groups m n k", _products),
    _layout("p2p", "src dst method direction concurrent_pairs bytes", _copies),
    _layout("collective", "op library num_gpus bytes_per_rank dtype sms", _collectives, ("bytes_per_rank",)),
    _layout("moe", "model dtype kernel ep tp distribution tokens_total", _layers, leaves_out=UNKNOWN_MODELS),
    _layout("hostpath", "direction pinned method bytes", _host_copies),
    _layout("launch", "kind kernel_bytes", _launches),
)
