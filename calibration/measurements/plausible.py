"""Times in the wrong unit, and runs that are off the others: rows, series and tables far from any plausible time.

A rough time of each point (a launch, and work at the peaks of the GPU's datasheet; of a GPU without one at 200 TFLOP/s
and 1 TB/s of memory, from which figures of datasheets of 2020 to 2025 are within a factor of 10 or 20; 100 GB/s between
GPUs) accounts for sizes; the ratio measured / rough varies little among points measured in the same way, whatever the
unit. A factor of 1000 stands out. A size in KiB does not: it shows in the rate at which time rises with size.
"""

from collections.abc import Iterator
from itertools import permutations

import numpy as np
import pandas as pd

from archsim.laws.rank_load import BALANCED
from archsim.laws.transfers import NOTIFY_OF, NVLINK_BYTES_PER_S
from calibration.measurements.datasheets import DATASHEETS, peak_of
from calibration.measurements.schema import IDLE_US, MeasurementKind, gpu_key

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
    """bool[row]: the value must be in another unit. ``rows``: of a schema table, within their ranges."""
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
    flop, moved = np.array(of_row).reshape(-1, 2).T
    return flop, moved


def _gemm_us(rows) -> np.ndarray:
    m, n, k = (rows[name].to_numpy() for name in "mnk")
    flop, memory = _rates(rows)
    return rows["groups"].to_numpy() * (2 * m * n * k / flop + 2 * (n * k + m * k + m * n) / memory)


def _moe_us(rows) -> np.ndarray:
    """With skewed routing, the slowest rank has between its equal share and all that its experts can receive."""
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


LEAST_COMMON = 8  # points that two runs share, before they are compared
LEAST_RUNS = 2  # before they are compared
NOT_COMPARED = ("launch",)  # runs of public launches are block sizes; their median counts
MOST_DISAGREEMENT = 0.05  # median |ln ratio| of two runs that agree
# Columns by which a way of measuring becomes several tables, each fitted alone.
_APART_TABLES = {
    "gemm": ["quant_included", "groups"],
    "moe": ["model", "kernel", "distribution", "eplb_slots"],
    "attention": ["dtype", "kv_dtype", "head_dim", "window"],
}


def runs_in_another_unit(kind: str, rows: pd.DataFrame, value: str) -> np.ndarray:
    """bool[row]: the row's run differs from the most plausible run of its way by a factor that only units explain."""
    ways = [rows["gpu_name"], *(rows[name] for name in WAYS[kind])]
    run = off_rough(kind, rows, value).groupby([*ways, rows["run_id"]], dropna=False).transform("median")
    nearest = run.abs().groupby(ways, dropna=False).transform("min")
    most_plausible = run.where(run.abs() == nearest).groupby(ways, dropna=False).transform("first")
    return ((run - most_plausible).abs() > np.log(APART)).to_numpy()


def throttled_runs(rows: pd.DataFrame, table: MeasurementKind) -> Iterator[tuple[np.ndarray, str]]:
    """(bool[row], reason) of every run that is off the others of its GPU, library and version: over a whole way of
    measuring, and then over what would be a table of its own.

    Where most runs agree, these count. Else the fastest one counts, with those that agree with it: a GPU that is
    throttled or busy is only slower.
    """
    if table.kind in NOT_COMPARED:
        return
    left = np.ones(len(rows), bool)
    point = [name for name in table.key if name not in ("run_id", "gpu_name")]
    version = [rows["gpu_name"], rows["library"], rows["library_version"]]
    whole = [rows[name] for name in WAYS[table.kind]]
    for columns in (whole, [*whole, *(rows[name] for name in _APART_TABLES.get(table.kind, []))]):
        for _, at in rows.groupby([*version, *columns], dropna=False, sort=False).indices.items():
            mine = rows.iloc[at[left[at]]]
            for run, reason in _off(_times(mine, point, table), _name(mine)):
                there = np.zeros(len(rows), bool)
                there[at] = (rows["run_id"].iloc[at] == run).to_numpy() & left[at]
                left &= ~there
                yield there, reason


def _times(rows: pd.DataFrame, point: list[str], table: MeasurementKind) -> pd.DataFrame:
    """ln of the measured times (of the inverse of a bandwidth), a column a run; no column where there is one run."""
    if rows["run_id"].nunique() < LEAST_RUNS:
        return pd.DataFrame()
    logs = np.log(rows[table.value].astype(float))
    if table.kind == "memory":
        logs = logs.where(rows["quantity"] != "bytes_per_s", -logs)
    return logs.groupby([*(rows[name] for name in point), rows["run_id"]], dropna=False).median().unstack("run_id")


def _off(times: pd.DataFrame, named: str) -> Iterator[tuple[str, str]]:
    """(run, why it is not used) of the runs that do not count."""
    runs = list(times)
    slower = pd.DataFrame(0.0, index=runs, columns=runs)  # median ln ratio of the run of the row to that of the column
    agree, common = slower == 0, slower.astype(int)
    for a, b in permutations(runs, 2):
        both = (times[a] - times[b]).dropna()
        common.loc[a, b] = len(both)
        if len(both) >= LEAST_COMMON:
            slower.loc[a, b], agree.loc[a, b] = both.median(), both.abs().median() <= MOST_DISAGREEMENT
    if agree.to_numpy().all():
        return
    together = {run: [each for each in runs if agree.loc[each, run] and slower.loc[each, run] >= 0] for run in runs}
    by_speed = sorted(runs, key=lambda run: slower.loc[run].mean())  # the fastest first
    most = max(by_speed, key=lambda run: len(together[run]))
    first = most if 2 * len(together[most]) > len(runs) else by_speed[0]
    kept = together[first]
    for run in runs:
        if run not in kept:
            yield str(run), _why(times, run, kept, int(common.loc[run, first]), named)


def _why(times: pd.DataFrame, run: str, kept: list[str], common: int, named: str) -> str:
    ratio = np.exp((times[run] - times[kept].median(axis=1)).median())
    others = f"run {kept[0]!r}" if len(kept) == 1 else f"the {len(kept)} others of its kind, which agree"
    odd = "throttled, or measured beside other work?" if ratio > 1 else "another clock, or weights in the cache?"
    return f"{named}: run {run!r} takes {ratio:.2f} times as long as {others}, at {common} points: not used ({odd})"


def _name(rows: pd.DataFrame) -> str:
    first = rows.iloc[0] if len(rows) else None
    return "" if first is None else f"{first['gpu_name']}, {first['library']} {first['library_version']}"
