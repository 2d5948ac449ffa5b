"""Times in the wrong unit: rows, series and whole tables that are far from any plausible time.

A rough time of each point (a launch, and work at the peaks of the GPU's datasheet; of a GPU without one at 200 TFLOP/s
and 1 TB/s of memory, from which figures of datasheets of 2020 to 2025 are within a factor of 10 or 20; 100 GB/s between
GPUs) accounts for sizes; the ratio measured / rough varies little among points measured in the same way, whatever the
unit. A factor of 1000 stands out. A size in KiB does not: it shows in the rate at which time rises with size.
"""

import numpy as np
import pandas as pd

from archsim.laws.collective import NOTIFY_OF
from archsim.laws.copy import NVLINK_BYTES_PER_S
from archsim.laws.rank_load import BALANCED
from calibration.measurements.datasheets import DATASHEETS, peak_of
from calibration.measurements.schema import IDLE_US, gpu_key

LAUNCH_US = 3.0
FLOP_PER_US, BYTES_PER_US, LINK_BYTES_PER_US = 200e6, 1e6, 1e5
APART = 150.0  # factor from the median of rows measured in the same way; a wrong unit is off by 1000
FAR = 300.0  # factor for all rows measured in one way; some are slow, such as links of 1 GB/s
FAR_OF_PEAKS = 30.0  # the same where the rough time is that of a datasheet; measured medians are 0.5 to 5 times it
COMPUTED = ("gemm", "moe", "attention")  # kinds whose rough time is that of a datasheet
LEAST_BYTES_PER_S = 0.5e9  # at which the time of copies rises with size; PCIe 1.0 with four lanes has 1e9
LEAST_SHARE_OF_LINK = 0.01  # the same, of a known link
RISE = 1.5  # of the time over the largest sizes, before it shows a rate
LARGEST = 8.0  # sizes from this part of the largest on
BLOCK_US = 50.0  # of the projections around latent attention: a dozen kernels, and 30 to 370 MB of weights
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
    "power": ["work"],
}


def odd_units(kind: str, rows: pd.DataFrame, value: str) -> np.ndarray:
    """bool[row]: the value must be in another unit. ``rows``: rows of a schema table, within the ranges of its
    columns.
    """
    off = off_rough(kind, rows, value)
    usual = off.groupby([rows[name] for name in WAYS[kind]], dropna=False).transform("median")
    known = rows["gpu_name"].map({name: gpu_key(name) in DATASHEETS for name in rows["gpu_name"].unique()})
    far = np.where(known.to_numpy(bool) & (kind in COMPUTED), FAR_OF_PEAKS, FAR)
    return (((off - usual).abs() > np.log(APART)) | (usual.abs() > np.log(far))).to_numpy()


def off_rough(kind: str, rows: pd.DataFrame, value: str) -> pd.Series:
    """ln(measured / rough) of every row."""
    return pd.Series(np.log(rows[value].to_numpy(float) / _rough(kind, rows)), index=rows.index)


def odd_sizes(kind: str, rows: pd.DataFrame, value: str) -> np.ndarray:
    """bool[row]: the sizes of its copies must be in another unit, as their time rises too fast with them."""
    odd = np.zeros(len(rows), bool)
    if kind not in ("p2p", "hostpath"):
        return odd
    groups = rows.groupby([rows["gpu_name"], rows["run_id"], *(rows[name] for name in WAYS[kind])], dropna=False)
    for (gpu, *_), at in groups.indices.items():
        mine = rows.iloc[at]
        times = mine[value].astype(float).groupby(mine["bytes"].astype(float)).median()
        large = times[times.index >= times.index[-1] / LARGEST]
        if large.iloc[-1] < RISE * large.iloc[0]:
            continue
        rate = (large.index[-1] - large.index[0]) / (large.iloc[-1] - large.iloc[0]) * 1e6
        of_node = kind == "p2p" and (mine["placement"] == "intra_node").all()
        link = NVLINK_BYTES_PER_S.get(gpu_key(gpu), 0.0) if of_node else 0.0
        odd[at] = rate < max(LEAST_BYTES_PER_S, LEAST_SHARE_OF_LINK * link) and (of_node or kind == "hostpath")
    return odd


def _rough(kind: str, rows: pd.DataFrame) -> np.ndarray:
    """float64[row], in the unit of the column."""
    if kind == "memory":
        return np.where(rows["quantity"] == "bytes_per_s", BYTES_PER_US * 1e6, 300.0)
    return LAUNCH_US + _WORK_US[kind](rows.astype(dict.fromkeys(_FIGURES[kind], float)))


def _rates(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """(FLOP, bytes) per us of each row: of the GPU's datasheet, else of no GPU in particular."""
    found = {}
    for name, dtype in rows[["gpu_name", "dtype"]].drop_duplicates().itertuples(index=False):
        sheet = DATASHEETS.get(gpu_key(name))
        peaks = sheet.peak_flop_per_s if sheet else {}
        peak = peak_of(peaks, dtype) or peaks.get("bf16")
        memory = sheet.hbm_bytes_per_s / 1e6 if sheet else BYTES_PER_US
        found[name, dtype] = peak / 1e6 if peak else FLOP_PER_US, memory
    of_row = [found[key] for key in zip(rows["gpu_name"], rows["dtype"], strict=True)]
    flop, memory = np.array(of_row).reshape(-1, 2).T
    return flop, memory


def _gemm_us(rows) -> np.ndarray:
    m, n, k = (rows[name].to_numpy() for name in "mnk")
    flop, memory = _rates(rows)
    return rows["groups"].to_numpy() * (2 * m * n * k / flop + 2 * (n * k + m * k + m * n) / memory)


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
    flop, memory = _rates(rows)
    return (2 * pairs * expert / flop + 2 * active * expert / memory).to_numpy()


def _attention_us(rows) -> np.ndarray:
    """A part for each request and head, and the context (or its window) read once, with keys and values."""
    queries = np.where(rows["phase"] == "prefill", rows["tokens"] / 2, 1.0)
    seen = np.minimum(rows["tokens"], rows["window"].where(rows["window"] > 0, np.inf))
    read = 2 * rows["batch"] * seen * rows["head_dim"]
    flop, memory = _rates(rows)
    work_us = 2 * read * rows["heads"] * queries / flop + 2 * read * rows["kv_heads"] / memory
    block_us = BLOCK_US * (rows["kind"] == "mla_block")
    return (work_us + HEAD_US * rows["batch"] * rows["heads"] + block_us).to_numpy()


def _power_us(rows) -> np.ndarray:
    work_us = rows["flop"] / FLOP_PER_US + rows["hbm_bytes"] / BYTES_PER_US
    return work_us.where(rows["work"] != "idle", IDLE_US).to_numpy()


def _link_us(rows) -> np.ndarray:
    return (rows["bytes"] / LINK_BYTES_PER_US).to_numpy()


def _collective_us(rows) -> np.ndarray:
    """A notify passes counts alone."""
    return np.where(rows["op"].isin(NOTIFY_OF.values()), 0.0, _link_us(rows))


_WORK_US = {
    "gemm": _gemm_us,
    "moe": _moe_us,
    "attention": _attention_us,
    "p2p": _link_us,
    "collective": _collective_us,
    "hostpath": _link_us,
    "launch": lambda rows: (rows["kernel_bytes"] / BYTES_PER_US).to_numpy(),
    "quantisation": lambda rows: (4 * rows["m"] * rows["k"] / BYTES_PER_US).to_numpy(),
    "power": _power_us,
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
    "power": ["flop", "hbm_bytes"],
}
