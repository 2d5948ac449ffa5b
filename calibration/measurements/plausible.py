"""Times in the wrong unit: rows, series and whole tables that are far from any plausible time.

A rough time of each point (a launch, and work at rates of 200 TFLOP/s, 1 TB/s of memory and 100 GB/s between GPUs;
figures of datasheets of 2020 to 2025 are within a factor of 10 or 20) accounts for sizes; the ratio measured / rough
varies little among points measured in the same way, whatever the unit. A factor of 1000 stands out.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from calibration.laws.rank_load import BALANCED

LAUNCH_US = 3.0
FLOP_PER_US, BYTES_PER_US, LINK_BYTES_PER_US = 200e6, 1e6, 1e5
APART = 150.0  # factor from the median of rows measured in the same way; a wrong unit is off by 1000
FAR = 300.0  # factor for all rows measured in one way; some are slow, such as links of 1 GB/s
HEAD_US = 0.005  # of a request and head of attention, whose rows fill only a part of a tile
# Columns that identify a way of measuring.
WAYS = {
    "gemm": ["library", "dtype"],
    "moe": ["library", "dtype"],
    "attention": ["library", "phase", "kind"],
    "p2p": ["placement", "method"],
    "collective": ["op", "variant", "num_gpus"],
    "hostpath": ["direction", "pinned", "method"],
    "launch": ["kind"],
    "memory": ["level", "op", "quantity"],
    "quantisation": ["op"],
}


def odd_units(kind: str, rows: pd.DataFrame, value: str) -> np.ndarray:
    """bool[row]: the value must be in another unit. ``rows``: rows of a schema table, within the ranges of its
    columns.
    """
    off = pd.Series(np.log(rows[value].to_numpy(float) / _rough(kind, rows)), index=rows.index)
    usual = off.groupby([rows[name] for name in WAYS[kind]], dropna=False).transform("median")
    return (((off - usual).abs() > np.log(APART)) | (usual.abs() > np.log(FAR))).to_numpy()


def _rough(kind: str, rows: pd.DataFrame) -> np.ndarray:
    """float64[row], in the unit of the column."""
    if kind == "memory":
        return np.where(rows["quantity"] == "bytes_per_s", BYTES_PER_US * 1e6, 300.0)
    return LAUNCH_US + _WORK_US[kind](rows.astype(dict.fromkeys(_FIGURES[kind], float)))


def _gemm_us(rows) -> np.ndarray:
    m, n, k = (rows[name].to_numpy() for name in "mnk")
    return rows["groups"].to_numpy() * (2 * m * n * k / FLOP_PER_US + 2 * (n * k + m * k + m * n) / BYTES_PER_US)


def _moe_us(rows) -> np.ndarray:
    """With skewed routing, the slowest rank has between its equal share of the pairs and all that
    its experts can receive.
    """
    local = rows["experts"] / rows["ep"]
    share = rows["tokens_total"] * rows["top_k"] / rows["ep"]
    most = rows["tokens_total"] * np.minimum(rows["top_k"], local)
    pairs = np.maximum(share.where(rows["distribution"] == BALANCED, np.sqrt(share * most)), 1.0)  # at least one pair

    expert = 3 * rows["hidden"] * rows["ffn"] / rows["tp"]
    active = np.minimum(local, pairs)
    return (2 * pairs * expert / FLOP_PER_US + 2 * active * expert / BYTES_PER_US).to_numpy()


def _attention_us(rows) -> np.ndarray:
    """A part for each request and head, and the context (or its window) read once, with keys and values."""
    queries = np.where(rows["phase"] == "prefill", rows["tokens"] / 2, 1.0)
    seen = np.minimum(rows["tokens"], rows["window"].where(rows["window"] > 0, np.inf))
    read = 2 * rows["batch"] * seen * rows["head_dim"]
    work_us = 2 * read * rows["heads"] * queries / FLOP_PER_US + 2 * read * rows["kv_heads"] / BYTES_PER_US
    return (work_us + HEAD_US * rows["batch"] * rows["heads"]).to_numpy()


def _link_us(rows) -> np.ndarray:
    return (rows["bytes"] / LINK_BYTES_PER_US).to_numpy()


_WORK_US = {
    "gemm": _gemm_us,
    "moe": _moe_us,
    "attention": _attention_us,
    "p2p": _link_us,
    "collective": _link_us,
    "hostpath": _link_us,
    "launch": lambda rows: (rows["kernel_bytes"] / BYTES_PER_US).to_numpy(),
    "quantisation": lambda rows: (4 * rows["m"] * rows["k"] / BYTES_PER_US).to_numpy(),
}
_FIGURES = {
    "gemm": ["groups", "m", "n", "k"],
    "moe": ["tokens_total", "top_k", "ep", "tp", "hidden", "ffn", "experts"],
    "attention": ["tokens", "window", "batch", "head_dim", "heads", "kv_heads"],
    "p2p": ["bytes"],
    "collective": ["bytes"],
    "hostpath": ["bytes"],
    "launch": ["kernel_bytes"],
    "quantisation": ["m", "k"],
}
