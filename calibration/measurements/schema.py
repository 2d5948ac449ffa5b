"""The CSV layout of measurements: one kind of table per file, one row per measured point and repetition.

Units are in the column names (``_us`` microseconds, ``_bytes``, ``_bytes_per_s``); each repetition has a ``run_id``,
all of its rows on one GPU. ``python -m calibration.measure`` writes this layout; ``calibration.measurements.reading``
checks it, and reads public layouts into it (``calibration.measurements.adapters``). ``describe()`` documents the tables
below.
"""

import re
from dataclasses import dataclass, field

from archsim.base.units import DTYPES as KNOWN

# ruff: noqa: E501  (one row a column: a table is read across)


DTYPES = tuple(name for name in KNOWN if not name.endswith("_bf16"))  # weights alone are simulated from BF16's GEMMs
IDLE_US = 1e6  # written as the time of a GPU that does nothing
MOST_OF_NAME = 64  # characters of a GPU's name
FIGURES = {"count": "whole number >= 0", "size": "whole number >= 1", "time": "number > 0", "number": "number >= 0"}


@dataclass(frozen=True)
class MeasuredColumn:
    """``kind``: 'text', one of FIGURES, or a tuple of the accepted words. ``required``: the column must be present."""

    name: str
    kind: str | tuple[str, ...]
    meaning: str
    required: bool = True

    @property
    def is_figure(self) -> bool:
        return self.kind in FIGURES


@dataclass(frozen=True)
class MeasurementKind:
    """A kind of measurement."""

    kind: str  # name of its file, without .csv
    meaning: str  # in words
    columns: tuple[MeasuredColumn, ...]  # of a row, in order
    key: tuple[str, ...]  # columns that identify a point within a run
    value: str = "latency_us_median"  # the measured column
    not_above: tuple[tuple[str, str], ...] = ()  # pairs of columns (a, b) with a <= b
    figures: tuple[str, ...] = field(init=False)  # columns of numbers
    required: tuple[str, ...] = field(init=False)  # columns that must be there

    def __post_init__(self) -> None:
        object.__setattr__(self, "figures", tuple(column.name for column in self.columns if column.is_figure))
        object.__setattr__(self, "required", tuple(column.name for column in self.columns if column.required))


def _table(
    kind: str, meaning: str, columns: tuple[MeasuredColumn, ...], key: str, timed: bool = True
) -> MeasurementKind:
    return MeasurementKind(
        kind,
        meaning,
        (*_WHO, *columns, *(_TIMES if timed else ()), *_NOTES),
        ("run_id", "gpu_name", "library", "library_version", *key.split()),
        "latency_us_median" if timed else "value",
        tuple(
            pair
            for pair in _NOT_ABOVE
            if set(pair) <= {column.name for column in (*columns, *(_TIMES if timed else ()))}
        ),
    )


_WHO = (
    MeasuredColumn("run_id", "text", "the repetition, a separate process"),
    MeasuredColumn("gpu_name", "text", "as the driver reports it; one per file"),
    MeasuredColumn("library", "text", "the timed library: torch, trtllm, nccl, cuda, ..."),
    MeasuredColumn("library_version", "text", "its version; versions of a library are calibrated separately"),
)
_TIMES = (
    MeasuredColumn("latency_us_median", "time", "median of the repeats within the run, us"),
    MeasuredColumn("latency_us_p10", "time", "10th percentile, us", required=False),
    MeasuredColumn("latency_us_p90", "time", "90th percentile, us", required=False),
)
_NOTES = (
    MeasuredColumn("driver", "text", "version of the driver", required=False),
    MeasuredColumn("sm_clock_mhz", "number", "clock of the SMs while measuring", required=False),
    MeasuredColumn("mem_clock_mhz", "number", "clock of the memory while measuring", required=False),
    MeasuredColumn("power_w", "number", "power drawn while measuring", required=False),
    MeasuredColumn("iters", "size", "repeats behind the median", required=False),
)
_NOT_ABOVE = (
    ("top_k", "experts"),
    ("ep", "experts"),
    ("kv_heads", "heads"),
    ("latency_us_p10", "latency_us_median"),
    ("latency_us_median", "latency_us_p90"),
)
_DTYPE = MeasuredColumn("dtype", DTYPES, "of weights and activations; fp8: per-tensor scales, fp8_block: 128-blocks")

GEMM = _table(
    "gemm",
    "m x n x k GEMMs C[m,n] = A[m,k] B[k,n]; grouped: one such GEMM per group",
    (
        _DTYPE,
        MeasuredColumn("quant_included", ("0", "1"), "1: the time includes dynamic quantisation of the activation"),
        MeasuredColumn("groups", "size", "1: plain GEMM; above: grouped GEMM with m rows per group"),
        MeasuredColumn("m", "size", "rows (tokens)"),
        MeasuredColumn("n", "size", "output features"),
        MeasuredColumn("k", "size", "input features"),
        MeasuredColumn("kernel", "text", "kernel or back end", required=False),
        MeasuredColumn("weight_copies", "size", "weight copies that the benchmark rotates through", required=False),
    ),
    "dtype quant_included groups m n k",
)
MOE = _table(
    "moe",
    "a whole fused MoE layer of one rank: permute, two grouped GEMMs, activation, finalize; no network",
    (
        MeasuredColumn("model", "text", "name of the model"),
        _DTYPE,
        MeasuredColumn("hidden", "size", "hidden size"),
        MeasuredColumn("ffn", "size", "width of one expert's FFN, before tensor parallelism"),
        MeasuredColumn("experts", "size", "routed experts of the whole model"),
        MeasuredColumn("top_k", "size", "experts per token"),
        MeasuredColumn("ep", "size", "ranks that share the experts"),
        MeasuredColumn("tp", "size", "ranks that share each expert"),
        MeasuredColumn("distribution", "text", "balanced, or the skew of the routing"),
        MeasuredColumn("tokens_total", "size", "tokens of the whole EP group"),
        MeasuredColumn(
            "eplb_slots",
            "count",
            "slots over which EPLB spread replicas of experts by load; 0 or missing: no replicas",
            required=False,
        ),
        MeasuredColumn("kernel", "text", "kernel or back end", required=False),
        MeasuredColumn(
            "tokens_seen",
            ("group", "received"),
            "tokens that pass this rank: group: all of the group (the default); received: those that have an expert on it, as behind a dispatch",
            required=False,
        ),
        MeasuredColumn("tokens_rank", "count", "tokens that this rank computes", required=False),
        MeasuredColumn("active_experts_rank", "count", "its experts that have tokens", required=False),
        MeasuredColumn("max_tokens_per_expert", "count", "tokens of its most loaded expert", required=False),
    ),
    "model dtype ep tp distribution tokens_total tokens_seen eplb_slots kernel",
)
ATTENTION = _table(
    "attention",
    "attention of one rank, without its projections: whole prompts, or one new token of each request",
    (
        MeasuredColumn("phase", ("prefill", "decode"), "all tokens of each prompt, or one new token of each request"),
        MeasuredColumn(
            "kind",
            ("gqa", "mla", "mla_block", "mla_pre", "mla_post"),
            "grouped queries (multi-head and multi-query among them), latent KV, with its projections, or the GEMMs before and after it alone",
        ),
        _DTYPE,
        MeasuredColumn("kv_dtype", DTYPES, "of the KV cache"),
        MeasuredColumn("heads", "size", "query heads of the rank"),
        MeasuredColumn("kv_heads", "size", "KV heads of the rank; 1 for latent KV"),
        MeasuredColumn("head_dim", "size", "head size; for latent KV, of the latent vector with RoPE"),
        MeasuredColumn("window", "count", "of sliding-window attention; 0: none"),
        MeasuredColumn(
            "products", "text", "dtype of the projections of mla_block; empty: none in the time", required=False
        ),
        MeasuredColumn("batch", "size", "requests"),
        MeasuredColumn("tokens", "size", "context of each request, the new tokens included"),
    ),
    "phase kind dtype kv_dtype products heads kv_heads head_dim window batch tokens",
)
P2P = _table(
    "p2p",
    "copies from one GPU to another",
    (
        MeasuredColumn("placement", ("intra_node", "inter_node"), "both GPUs in one node, or in two"),
        MeasuredColumn("src", "text", "sending GPU"),
        MeasuredColumn("dst", "text", "receiving GPU"),
        MeasuredColumn(
            "method", ("ce", "sm", "nccl"), "ce: copy engine; sm: loads and stores of a kernel; nccl: send/recv"
        ),
        MeasuredColumn("direction", ("uni", "bi", "ring"), "one way, both ways at once, or all GPUs in a ring"),
        MeasuredColumn("concurrent_pairs", "size", "pairs that copy at the same time"),
        MeasuredColumn("bytes", "size", "sent in one direction of one pair"),
    ),
    "placement src dst method direction concurrent_pairs bytes",
)
COLLECTIVE = _table(
    "collective",
    "collectives, and dispatch and combine of MoE libraries",
    (
        MeasuredColumn(
            "op", "text", "all_to_all, all_gather, all_reduce, reduce_scatter, dispatch, combine, prepare, ..."
        ),
        MeasuredColumn("variant", "text", "mode of the library (normal, low_latency, ...)", required=False),
        MeasuredColumn("num_gpus", "size", "ranks"),
        MeasuredColumn(
            "nodes", "size", "server nodes (NVLink domains) that the ranks span; 1 if missing", required=False
        ),
        MeasuredColumn(
            "bytes", "size", "as the library counts the message; dispatch and combine: bytes that one rank sends"
        ),
        MeasuredColumn("dtype", "text", "element type (not limited to the GEMM dtypes)", required=False),
        MeasuredColumn("sms", "count", "SMs given to communication", required=False),
        MeasuredColumn("tokens_per_rank", "count", "of dispatch and combine", required=False),
        MeasuredColumn("hidden", "size", "hidden size, of dispatch and combine", required=False),
        MeasuredColumn("top_k", "size", "experts per token, of dispatch and combine", required=False),
        MeasuredColumn("experts", "size", "experts, of dispatch and combine", required=False),
    ),
    "op variant num_gpus nodes bytes dtype sms tokens_per_rank hidden top_k experts",
)
HOSTPATH = _table(
    "hostpath",
    "copies between host and device",
    (
        MeasuredColumn("direction", ("h2d", "d2h", "bi"), "to the device, to the host, or both at once"),
        MeasuredColumn("pinned", ("0", "1"), "1: page-locked host memory"),
        MeasuredColumn("method", ("ce", "sm"), "copy engine, or loads and stores of a kernel"),
        MeasuredColumn("bytes", "size", "in one direction"),
    ),
    "direction pinned method bytes",
)
LAUNCH = _table(
    "launch",
    "launch cost of a kernel",
    (
        MeasuredColumn(
            "kind",
            ("stream", "graph_node", "grid_sync", "launch_to_sync"),
            "back to back on a stream, as a graph node, a grid-wide sync, or launch and wait",
        ),
        MeasuredColumn("kernel_bytes", "count", "moved by the kernel; 0: an empty one"),
    ),
    "kind kernel_bytes",
)
MEMORY = _table(
    "memory",
    "bandwidth and latency of the memory hierarchy",
    (
        MeasuredColumn("level", ("l1", "l2", "hbm", "any"), "any: set by the working set"),
        MeasuredColumn("op", ("read", "write", "copy", "triad", "chase"), "chase: dependent loads"),
        MeasuredColumn("working_set_bytes", "size", "for the whole GPU"),
        MeasuredColumn("quantity", ("bytes_per_s", "latency_ns"), "what the value is"),
        MeasuredColumn("value", "time", "in the unit that the quantity names"),
    ),
    "level op working_set_bytes quantity",
    timed=False,
)
QUANTISATION = _table(
    "quantisation",
    "dynamic quantisation of m x k activations, which some GEMM times include",
    (
        _DTYPE,
        MeasuredColumn(
            "op", ("compute_scale", "scale_matrix"), "finding the scale, or scaling and writing the activation"
        ),
        MeasuredColumn("m", "size", "rows (tokens)"),
        MeasuredColumn("k", "size", "features"),
    ),
    "dtype op m k",
)
POWER = _table(
    "power",
    "power that a GPU draws at steady work; power_w is the measured column, and times are those at that power",
    (
        MeasuredColumn(
            "work", ("idle", "read", "read_and_wait", "product"), "read_and_wait: half of the time it waits"
        ),
        _DTYPE,
        MeasuredColumn("m", "size", "rows of a GEMM with square weights; 1 for other work"),
        MeasuredColumn("flop", "number", "of one operation"),
        MeasuredColumn("hbm_bytes", "number", "read and written by one operation"),
    ),
    "work dtype m",
)
_ALL = (GEMM, MOE, ATTENTION, P2P, COLLECTIVE, HOSTPATH, LAUNCH, MEMORY, QUANTISATION, POWER)
TABLES = {table.kind: table for table in _ALL}


def gpu_key(gpu_name: str) -> str:
    """The short name of a GPU, as used for calibrations: 'NVIDIA H100 80GB HBM3', 'H100 DGX', 'sm_90 (H100)' → 'h100'.

    PCIe and NVL cards differ from SXM modules in clocks and memory, so they keep '-pcie' and '-nvl'.
    """
    found = re.search(r"\b(GB|MI|[ABHLVT])(\d{2,4}[A-Z]?)", gpu_name, re.IGNORECASE)
    if not found:
        return re.sub(r"[^a-z0-9]+", "-", gpu_name.lower()).strip("-")[:MOST_OF_NAME].strip("-")
    form = re.search(r"pcie|\bnvl\b", gpu_name, re.IGNORECASE)
    return found[0].lower() + (f"-{form[0].lower()}" if form else "")


def describe() -> str:
    lines = []
    for table in TABLES.values():
        lines += [f"### {table.kind}.csv: {table.meaning}", "", "| column | values | meaning |", "| --- | --- | --- |"]
        for column in table.columns:
            values = FIGURES.get(column.kind, column.kind) if isinstance(column.kind, str) else " / ".join(column.kind)
            optional = "" if column.required else " (may be left out)"
            lines.append(f"| `{column.name}` | {values} | {column.meaning}{optional} |")
        lines.append("")
    return "\n".join(lines)


@dataclass(frozen=True)
class MeasurementProblem:
    """``kind``: 'refused' (the file is not used), 'quarantined' (the row is not used) or 'warning'."""

    file: str
    line: int
    reason: str
    kind: str = "quarantined"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}: {self.reason}"
