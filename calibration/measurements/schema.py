"""The CSV layout of measurements: one kind of table per file, one row per measured point and repetition.

Units are in the column names (``_us`` microseconds, ``_bytes``, ``_bytes_per_s``); each repetition has a ``run_id``,
all of its rows on one GPU. ``python -m calibration.measure`` writes this layout; ``calibration.measurements.reading``
checks it, and reads public layouts into it (``calibration.measurements.adapters``). ``describe()`` documents the tables
below.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from archsim.base.errors import did_you_mean
from archsim.base.fields import BANDWIDTH, COMPUTE, format_quantity, parse_quantity
from archsim.base.units import DTYPES as KNOWN
from archsim.base.units import DTYPES as KNOWN_DTYPES
from archsim.laws.tables import HBM, ReferenceRates, ScaledSections

# ---- schema

# ruff: noqa: E501  (one row a column: a table is read across)


DTYPES = tuple(KNOWN)
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
    """A kind of measurement. ``key``: columns that identify a point within a run; ``value``: the measured column;
    ``not_above``: pairs of columns (a, b) with a <= b.
    """

    kind: str
    meaning: str
    columns: tuple[MeasuredColumn, ...]
    key: tuple[str, ...]
    value: str = "latency_us_median"
    not_above: tuple[tuple[str, str], ...] = ()
    figures: tuple[str, ...] = field(init=False)
    required: tuple[str, ...] = field(init=False)

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
    "m x n x k products C[m,n] = A[m,k] B[k,n]; grouped: one such product per group",
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
            "grouped queries (multi-head and multi-query among them), latent KV, with its projections, or the products before and after it alone",
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
    "power that a GPU draws at steady work; power_w is the measured column, and times are those while it is drawn",
    (
        MeasuredColumn(
            "work", ("idle", "read", "read_and_wait", "product"), "read_and_wait: half of the time it waits"
        ),
        _DTYPE,
        MeasuredColumn("m", "size", "rows of a product with square weights; 1 for other work"),
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


# ---- layouts
# Adapters: the columns of one public file layout, and the conversion of its rows to the schema.

UNKNOWN_VERSION = "unknown"


@dataclass(frozen=True)
class FileLayout:
    """One public layout; it reads files whose header has all of ``required``.

    ``figures``: columns that must hold numbers > 0 (of ``required``, or left out of it if the file may lack them);
    ``may_be_empty``: those of the figures whose cells may be empty (they arrive as NaN). ``leaves_out``: the rows that
    ``convert`` does not use, reported if there are any. ``skip``: why files of this layout are recognised but not read;
    their ``kind`` is empty, and ``convert`` is never called. ``of_user``: measured by the user, with one GPU per file,
    whose name may come from the folder (``calibration.measurements.reading``). ``convert`` receives the valid rows (all
    columns as text, figures as float64; the index is the line number; ``file`` is the name of the file) and returns
    schema rows of the table ``kind`` with the same index (a line with two points appears twice).
    """

    name: str
    kind: str
    required: tuple[str, ...]
    figures: tuple[str, ...]
    convert: Callable[[DataFrame], DataFrame]
    may_be_empty: tuple[str, ...] = ()
    leaves_out: str = ""
    of_user: bool = False
    skip: str = ""


def layout(
    name: str, kind: str, convert: Callable[[DataFrame], DataFrame], texts: str, figures: str, **more: Any
) -> FileLayout:
    """A layout that needs all of its columns: ``texts`` and ``figures``, names with blanks between."""
    return FileLayout(name, kind, (*texts.split(), *figures.split()), tuple(figures.split()), convert, **more)


def frame(rows: DataFrame, of: str = "", **columns: Any) -> DataFrame:
    """Rows of the schema: ``columns``, and those taken from ``rows``, ``name`` or ``name=theirs``, blanks between."""
    taken = (pair.partition("=") for pair in of.split())
    return DataFrame({name: rows[theirs or name] for name, _, theirs in taken} | columns, index=rows.index)


def renamed(names, known: dict[str, str]):
    """A column of names in the words of the schema; unknown ones stay, for the reader to quarantine."""
    return names.map(known).fillna(names)


# ---- datasheets
# Peak rates of GPUs with known calibrations (vendors' datasheets, dense, without sparsity), and
# rates given by the user.
#
# They only scale a calibration to other dies; the fitted rates do not depend on them.

TERA = 1e12


def _tensor(
    bf16: float, fp8: float | None, hbm_tbytes_per_s: float, sms: int, nvfp4: float | None = None
) -> ReferenceRates:
    of_kind = {"bf16": bf16, "fp8": fp8, "nvfp4": nvfp4}
    peaks = {
        name: peak * TERA
        for name, dtype in KNOWN_DTYPES.items()
        if (nvfp4 or dtype.weight >= 1) and name != "fp16" and (peak := of_kind.get(dtype.computes)) is not None
    }
    return ReferenceRates(peak_flop_per_s=peaks, hbm_bytes_per_s=hbm_tbytes_per_s * TERA, sms=sms)


DATASHEETS = {
    "a100": _tensor(312, None, 2.039, 108),
    "h100": _tensor(989, 1979, 3.35, 132),
    "h100-pcie": _tensor(756, 1513, 2.0, 114),
    "h200": _tensor(989, 1979, 4.8, 132),
    "h800": _tensor(989, 1979, 3.35, 132),
    "h20": _tensor(148, 296, 4.0, 78),
    # NVIDIA Blackwell and Blackwell Ultra architecture briefs, HGX and NVL72 datasheets; FP4 dense
    "b200": _tensor(2250, 4500, 8.0, 148, 9000),
    "gb200": _tensor(2500, 5000, 8.0, 148, 10000),
    "b300": _tensor(2250, 4500, 8.0, 148, 14000),
    "gb300": _tensor(2500, 5000, 8.0, 148, 15000),
    "l40": _tensor(181, 362, 0.864, 142),
    # GDDR7; no dense peaks stated
    "rtx-pro-6000-server": ReferenceRates(peak_flop_per_s={}, hbm_bytes_per_s=1.597 * TERA, sms=188),
    "mi300x": _tensor(1307, 2615, 5.3, 304),
}
# What public measurements lack, and on which GPU it was measured; docs/calibration.md has the errors of scaling.
SCALED = {
    "h200": ScaledSections(gpu="h100", sections=("moe",)),
    "h800": ScaledSections(gpu="h100", sections=("gemm", "moe", "attention", "collectives")),
    "h20": ScaledSections(gpu="h100", sections=("gemm", "moe", "attention", "collectives")),
    # Kernels of Blackwell that were measured on a sibling alone: all-reduces of some libraries, operations of NCCL, and
    # layers in some dtypes
    "b200": ScaledSections(gpu="b300", sections=("moe", "collectives")),
    "b300": ScaledSections(gpu="b200", sections=("moe", "collectives")),
    "gb200": ScaledSections(gpu="b200", sections=("moe", "collectives")),
    "gb300": ScaledSections(gpu="b300", sections=("moe", "collectives")),
}
# GPUs that differ in their HBM alone: one law serves them, scaled by its bandwidth.
SAME_BUT_HBM = {"h100": ("h200",), "h200": ("h100",)}
UNKNOWN_SMS = 132
# Equal tensor core peaks on all of DATASHEETS
SAME_PEAK = {
    "fp16": "bf16",
    "bf16": "fp16",
    "fp8_block": "fp8",
    "fp8": "fp8_block",
    "mxfp4": "bf16",
    "int4": "bf16",
    "mxfp4_mxfp8": "fp8",
}


def peak_of(peaks: Mapping[str, float], dtype: str) -> float | None:
    """FLOP/s of a dtype, or of the one with the same peak; None if neither is known."""
    return peaks.get(dtype) or peaks.get(SAME_PEAK.get(dtype, ""))


@dataclass(frozen=True)
class Nominal:
    """Rates that a user gives for a GPU: ``peak_flop_per_s`` by dtype, and of its HBM; they override a datasheet's."""

    peak_flop_per_s: dict[str, float] = field(default_factory=dict)
    hbm_bytes_per_s: float | None = None

    def __bool__(self) -> bool:
        return bool(self.peak_flop_per_s) or self.hbm_bytes_per_s is not None


def peak_named(text: str) -> tuple[str, float]:
    """(dtype, FLOP/s) from text such as ``bf16=600TFLOP/s``. Raises ValueError."""
    dtype, equals, rate = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r}: expected a dtype and its peak, such as bf16=600TFLOP/s")
    if dtype not in KNOWN_DTYPES:
        raise ValueError(
            f"{text!r}: unknown dtype {dtype!r}{did_you_mean(dtype, KNOWN_DTYPES)} (known: {', '.join(KNOWN_DTYPES)})"
        )
    return dtype, _positive(float(parse_quantity(rate, COMPUTE)), text)


def hbm_named(text: str) -> float:
    """Bytes/s from text such as ``2.4TB/s``. Raises ValueError."""
    return _positive(float(parse_quantity(text, BANDWIDTH)), text)


def _positive(rate: float, text: str) -> float:
    if rate <= 0:
        raise ValueError(f"{text!r}: must be positive")
    return rate


def reference_of(
    gpu: str, fitted_flop_per_s: dict[str, float], fitted_bytes_per_s: float, named: Nominal | None = None
) -> ReferenceRates:
    """Given rates, else those of the GPU's datasheet, else the fitted ones.

    fp16 has the peak of bf16, fp8_block that of fp8, and vice versa.
    """
    named, sheet = named or Nominal(), DATASHEETS.get(gpu)
    peaks = (sheet.peak_flop_per_s if sheet else {}) | named.peak_flop_per_s
    same = {
        dtype: peaks[SAME_PEAK[dtype]]
        for dtype in fitted_flop_per_s
        if dtype not in peaks and SAME_PEAK[dtype] in peaks
    }
    fitted = {dtype: rate for dtype, rate in fitted_flop_per_s.items() if dtype not in peaks and dtype not in same}
    bandwidth = named.hbm_bytes_per_s or (sheet.hbm_bytes_per_s if sheet else None)
    return ReferenceRates(
        peak_flop_per_s=peaks | same | fitted,
        hbm_bytes_per_s=bandwidth or fitted_bytes_per_s,
        sms=sheet.sms if sheet else UNKNOWN_SMS,
        fitted=(*fitted, *([] if bandwidth else [HBM])),
    )


def fitted_note(gpu: str, reference: ReferenceRates) -> str:
    """States which rates of the reference are fitted, and which options to give; '' if all are nominal."""
    if not reference.fitted:
        return ""
    rates = {
        dtype: format_quantity(_short(reference.peak_flop_per_s[dtype]), COMPUTE)
        for dtype in reference.fitted
        if dtype != HBM
    }
    asked = [f"--peak {dtype}=..." for dtype in rates]
    if HBM in reference.fitted:
        rates[HBM] = format_quantity(_short(reference.hbm_bytes_per_s), BANDWIDTH)
        asked.append("--hbm ...")
    listed = ", ".join(f"{name} {rate}" for name, rate in rates.items())
    return (
        f"{gpu}: no nominal rate is known, so fitted rates stand in for the peaks ({listed}); a system with the "
        f"nominal "
        f"rates would be faster than measured: give them with {' '.join(asked)}, or use the fitted ones in systems"
    )


def _short(rate: float) -> float:
    return float(f"{rate:.4g}")


# ---- fingerprints
# Which measured times a table was fitted to: two characters a cell, kept with the table.
#
# The characters are a hash of the time. So a measurement that came in through another file is recognised, and neither
# another time at a fitted point nor a point that was only filled in is taken for one of the fit (1 in 4096 is).

ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
MISSING = ord(".")
DECIMALS = 7  # of ln time: within them CPUs agree
SPREADING = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio (Knuth, TAOCP 3, 6.4)


def fingerprints(sweeps: pd.DataFrame) -> tuple[str, ...]:
    """The cells of every sweep, by name of the sweep: a word for each row of the table, two characters a cell.

    sweeps: ln us, a column a sweep; the last level of the index runs along a row.
    """
    along = sweeps.index.names[-1]
    cells = (sweeps[name].unstack(along).sort_index().sort_index(axis=1) for name in sorted(sweeps.columns))
    return tuple(" ".join(row.tobytes().decode() for row in _hashes(each.to_numpy(float))) for each in cells)


def in_fit(prints: Sequence[str], row: np.ndarray, column: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """bool[point]: some sweep of the table has this time in this cell.

    row, column: int64[point], -1: not in the table. logs: ln us, float64[point].
    """
    found, hashes = np.zeros(len(logs), bool), _hashes(np.asarray(logs, float))
    there = (row >= 0) & (column >= 0)
    for text in prints:
        words = text.split()
        cells = np.frombuffer("".join(words).encode(), np.uint8).reshape(len(words), -1, 2)
        found[there] |= (cells[row[there], column[there]] == hashes[there]).all(axis=1)
    return found


def _hashes(logs: np.ndarray) -> np.ndarray:
    """uint8[..., 2]: characters of each time."""
    known = np.isfinite(logs)
    rounded = np.rint(np.where(known, logs, 0.0) * 10**DECIMALS).astype(np.int64).astype(np.uint64)
    code = (rounded * SPREADING) >> np.uint64(52)
    pair = np.stack([ALPHABET[code >> np.uint64(6)], ALPHABET[code & np.uint64(63)]], axis=-1)
    return np.where(known[..., None], pair, np.uint8(MISSING))
