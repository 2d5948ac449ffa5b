"""Checks rows of measurements: within the ranges of their columns, in one unit, of one GPU, without
points that disagree.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd

from archsim.base.fields import BANDWIDTH, COMPUTE, Dimension, format_quantity
from archsim.base.units import WEIGHT_BYTES
from archsim.laws.moe import BALANCED
from archsim.laws.transfers import (
    COMBINE,
    COMBINE_LOW_PRECISION,
    DISPATCH,
    NOTIFY_OF,
    NVLINK_BYTES_PER_S,
    nodes_away,
)
from calibration.measurements.schema import DATASHEETS, IDLE_US, TABLES, MeasurementKind, Nominal, gpu_key, peak_of

# ---- plausible
# Times in the wrong unit: rows, series and whole tables that are far from any plausible time.
#
# A rough time of each point (a launch, and work at the peaks of the GPU's datasheet; of a GPU without one at 200
# TFLOP/s and 1 TB/s of memory, from which figures of datasheets of 2020 to 2025 are within a factor of 10 or 20; 100
# GB/s between GPUs) accounts for sizes; the ratio measured / rough varies little among points measured in the same way,
# whatever the unit. A factor of 1000 stands out. A size in KiB does not: it shows in the rate at which time rises with
# size.

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
    flop, moved = np.array(of_row).reshape(-1, 2).T
    return flop, moved


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


# ---- runs
# Runs that are off the other runs of the same way of measuring: in another unit, or throttled.

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
    ways = _ways(kind, rows)
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


def _ways(kind: str, rows: pd.DataFrame) -> list[pd.Series]:
    return [rows["gpu_name"], *(rows[name] for name in WAYS[kind])]


# ---- checking

SIZES = {
    "gemm": "m",
    "moe": "tokens_total",
    "attention": "tokens",
    "p2p": "bytes",
    "collective": "bytes",
    "hostpath": "bytes",
    "quantisation": "m",
}
MOST_SPREAD_OF_COPIES = 1.2  # two rows for one point of one run may differ by this factor
# Smaller differences are not reported; repetitions differ by 1 to 3 % (docs/calibration.md, floors)
REPORTED_SPREAD_OF_COPIES = 1.03
MEASURED_BESIDE = ("latency_us_p10", "latency_us_p90")  # the value of a table
UNIT_SLIP = 100.0  # a time this many times off its neighbours in size is in another unit
MOST = 2.0**53  # largest whole number: all are exact as float64; no time or size comes near
CUT_OFF = 0.5  # a last series with less than this share of the usual sizes was truncated


@dataclass(frozen=True)
class MeasurementProblem:
    """``kind``: 'refused' (the file is not used), 'quarantined' (the row is not used) or 'warning'."""

    file: str
    line: int
    reason: str
    kind: str = "quarantined"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}: {self.reason}"


def checked(
    rows: pd.DataFrame,
    table: MeasurementKind,
    label: str,
    problems: list[MeasurementProblem],
    own: bool,
    peaks: "Peaks",
) -> pd.DataFrame:
    """Rows within the ranges of their columns and within what their GPU can do, each point once, with ``gpu``, ``file``
    and ``line``.

    Transfers that cannot be are removed first, and then whole series in another unit, so that single rows can be judged
    by the remaining ones.
    """
    bad = np.zeros(len(rows), bool)

    def quarantine(wrong: np.ndarray, reason) -> None:
        for at in np.flatnonzero(wrong & ~bad):
            problems.append(MeasurementProblem(label, int(rows.index[at]), reason(rows.iloc[at])))
        bad[wrong] = True

    for column in table.columns:
        if column.name not in rows:
            rows = rows.assign(**{column.name: np.nan if column.is_figure else ""})
        wrong = _outside(rows[column.name], column)
        known = f" (one of: {', '.join(column.kind)})" if isinstance(column.kind, tuple) else ""
        quarantine(
            wrong, lambda row, name=column.name, known=known: f"{name}: {_shown(row[name])} is out of range{known}"
        )
    for small, large in table.not_above:
        wrong = (rows[small].astype(float) > rows[large].astype(float)).to_numpy()
        quarantine(
            wrong,
            lambda row, names=(small, large): (
                f"{names[0]}: {row[names[0]]:g} is more than {names[1]}, {row[names[1]]:g}"
            ),
        )
    keys = {name: gpu_key(name) for name in rows["gpu_name"].unique()}
    nameless = rows["gpu_name"].map(keys).eq("").to_numpy(bool)
    quarantine(nameless, lambda row: f"gpu_name: {row['gpu_name']!r} has no letters or digits")
    rows = rows[~bad]
    rows = rows.assign(gpu=rows["gpu_name"].map(keys), file=label, line=rows.index)
    if table.kind in LINKS:
        rows = within_peaks(table.kind, rows, peaks, problems)
    bad = np.zeros(len(rows), bool)
    if own:
        _refuse_second_gpu(rows, label, problems)
    if len(rows):
        quarantine(runs_in_another_unit(table.kind, rows, table.value), lambda row: _other_run(table, row))
        rows, bad = rows[~bad], bad[~bad]
        quarantine(odd_sizes(table.kind, rows, table.value), _odd_size)
        rows, bad = rows[~bad], bad[~bad]
        quarantine(odd_units(table.kind, rows, table.value), lambda row: _odd(table, row))
        rows, bad = rows[~bad], bad[~bad]
    size = SIZES.get(table.kind)
    series = [name for name in table.key if name != size]
    if size and len(rows):
        quarantine(_unit_slips(rows, series, size, table.value), lambda row: _slip(table.value, row))
        rows, bad = rows[~bad], bad[~bad]
        if len(rows):
            _warn_cut_off(rows, series, size, label, problems)
    quarantine(_disagreeing(rows, table), lambda row: f"another row for the same point disagrees: {row[table.value]:g}")
    rows = rows[~bad]
    rows = rows[[*(column.name for column in table.columns), "gpu", "file", "line"]].reset_index(drop=True)
    rows, warnings = _each_point_once(rows, table)
    problems += warnings
    return rows if table.kind in LINKS else within_peaks(table.kind, rows, peaks, problems)


def _shown(cell) -> str:
    return f"{cell:g}" if isinstance(cell, float) else repr(cell)


def _slip(name: str, row: pd.Series) -> str:
    return f"{name}: {row[name]:g} differs from its neighbours by a factor above {UNIT_SLIP:g}: another unit?"


def _odd(table: MeasurementKind, row: pd.Series) -> str:
    return (
        f"{table.value}: {row[table.value]:g} is far from any plausible GPU time, or from other points of its kind: "
        f"another unit?"
    )


def _odd_size(row: pd.Series) -> str:
    return f"bytes: {row['bytes']:g} and others: time rises with size as on no link of a node: another unit?"


def _other_run(table: MeasurementKind, row: pd.Series) -> str:
    return (
        f"{table.value}: {row[table.value]:g}: run {row['run_id']!r} is far from the other runs of its kind: another "
        f"unit?"
    )


def without_contradictions(rows: pd.DataFrame, table: MeasurementKind) -> tuple[pd.DataFrame, list[MeasurementProblem]]:
    """(rows of several files, each point once, without points on which files disagree and without runs in another unit
    or throttled; those points and runs)
    """
    rows, problems = _without_odd_runs(rows, table)
    bad = _disagreeing(rows, table)
    problems += [
        MeasurementProblem(
            row["file"], int(row["line"]), f"a row of another file for the same point disagrees: {row[table.value]:g}"
        )
        for row in rows[bad].to_dict("records")
    ]
    rows, warnings = _each_point_once(rows[~bad], table)
    return rows, [*problems, *warnings]


def _without_odd_runs(rows: pd.DataFrame, table: MeasurementKind) -> tuple[pd.DataFrame, list[MeasurementProblem]]:
    problems: list[MeasurementProblem] = []
    odd = runs_in_another_unit(table.kind, rows, table.value)
    found = [(odd & (rows["run_id"] == run).to_numpy(), "") for run in rows["run_id"][odd].unique()]
    rest = np.flatnonzero(~odd)
    for there, why in throttled_runs(rows.iloc[rest].reset_index(drop=True), table):
        found.append((np.isin(np.arange(len(rows)), rest[there]), why))
    for there, why in found:
        first = rows[there].iloc[0]
        reason = f"{why or _other_run(table, first)} ({there.sum()} rows)"
        problems.append(MeasurementProblem(first["file"], int(first["line"]), reason))
        odd = odd | there
    return rows[~odd].reset_index(drop=True), problems


def _each_point_once(rows: pd.DataFrame, table: MeasurementKind) -> tuple[pd.DataFrame, list[MeasurementProblem]]:
    """(one row per point: the first one, with the median of the measured values; a warning if rows differ by more than
    REPORTED_SPREAD_OF_COPIES). ``rows``: with ``file`` and ``line``."""
    key = list(table.key)
    first = rows.drop_duplicates(key).reset_index(drop=True)
    if len(first) == len(rows):
        return first, []
    points = rows.groupby(key, dropna=False, sort=False)
    measured = [name for name in (table.value, *MEASURED_BESIDE) if name in rows]
    first[measured] = points[measured].median().to_numpy()  # groups are ordered by their first rows
    found = points[table.value].agg(["min", "max", "size"]).reset_index(drop=True)
    odd = found["max"] / found["min"] > REPORTED_SPREAD_OF_COPIES
    return first, [
        MeasurementProblem(
            row["file"],
            int(row["line"]),
            f"{of['size']:g} rows for this point, {of['min']:g} to {of['max']:g}: their median, {row[table.value]:g}, "
            f"is used",
            "warning",
        )
        for row, of in zip(first[odd].to_dict("records"), found[odd].to_dict("records"), strict=True)
    ]


def _outside(cells: pd.Series, column) -> np.ndarray:
    if isinstance(column.kind, tuple):
        return ~cells.isin(column.kind if column.required else (*column.kind, "")).to_numpy()
    if not column.is_figure:
        return np.zeros(len(cells), bool) if not column.required else (cells == "").to_numpy()
    values = cells.to_numpy(float)
    below = values < 0 if column.kind in ("count", "number") else values <= 0
    broken = (
        (values % 1 != 0) & np.isfinite(values) if column.kind in ("count", "size") else np.zeros(len(values), bool)
    )
    broken |= values > MOST
    return below | broken | (np.isnan(values) if column.required else False)


def _refuse_second_gpu(rows: pd.DataFrame, label: str, problems: list[MeasurementProblem]) -> None:
    other = rows["gpu_name"] != rows["gpu_name"].iloc[0] if len(rows) else pd.Series(dtype=bool)
    if other.any():
        line = int(other.idxmax())
        names = f"{rows['gpu_name'].iloc[0]!r} and {rows['gpu_name'][line]!r}"
        problems.append(MeasurementProblem(label, line, f"two GPUs in one file: {names}", "refused"))


def _unit_slips(rows: pd.DataFrame, series: list[str], size: str, value: str) -> np.ndarray:
    """Rows whose time and time per size are both far from the median of the five nearest sizes."""
    group = rows.groupby(series, dropna=False, sort=False).ngroup().to_numpy()
    sizes, times = rows[size].to_numpy(float), rows[value].to_numpy(float)
    order = np.lexsort((sizes, group))
    off = [_off_neighbours(np.log(figures)[order], group[order]) for figures in (times, times / sizes)]
    slips = np.empty(len(rows), bool)
    slips[order] = np.minimum(*off) > np.log(UNIT_SLIP)
    return slips


def _off_neighbours(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Distance of each value from the median of the five around it, fewer at the ends of its group."""
    window = np.full((5, len(values)), np.nan)
    place = np.arange(len(values))
    for row, shift in zip(window, range(-2, 3), strict=True):
        other = np.clip(place + shift, 0, len(values) - 1)
        there = (other == place + shift) & (group[other] == group)
        row[there] = values[other[there]]
    return np.abs(values - np.nanmedian(window, axis=0))


def _warn_cut_off(
    rows: pd.DataFrame, series: list[str], size: str, label: str, problems: list[MeasurementProblem]
) -> None:
    """A last series with only a fraction of the sizes of the other series of its run."""
    number = rows.groupby(series, dropna=False, sort=False).ngroup()
    last = number.iloc[-1]
    counts = number[rows["run_id"] == rows["run_id"].iloc[-1]].value_counts()
    mine = rows[number == last]
    largest = rows.loc[rows["run_id"] == rows["run_id"].iloc[-1], size].max()
    if len(counts) > 2 and len(mine) < CUT_OFF * counts.median() and mine[size].max() < largest:
        reason = f"the sweep seems truncated: {len(mine)} sizes in its last series, {counts.median():g} in others"
        problems.append(MeasurementProblem(label, int(rows.index[-1]), reason, "warning"))


def _disagreeing(rows: pd.DataFrame, table: MeasurementKind) -> np.ndarray:
    values = rows.reset_index(drop=True).groupby(list(table.key), dropna=False, sort=False)[table.value]
    spread = values.transform("max") / values.transform("min")
    return (spread > MOST_SPREAD_OF_COPIES).to_numpy(bool)


# ---- beyond_peaks
# Measurements that are faster than their GPU can be (a wrong unit, dtype, shape or column, a kernel that did nothing,
# or a wrong peak), and memory that is far slower. A bound is what every algorithm needs: products at the peak, bytes
# past the caches at the bandwidth of HBM, and the bytes that must leave or enter a GPU at the rate of its link.

TOLERANCE = 1.05  # boost clocks above those of the datasheet's peak
MOST_BEYOND = 0.05  # share of the rows with a known peak, above which a file is refused
LINKS = ("p2p", "collective", "hostpath")
MOST_BEYOND_LINKS = 0.5  # the same of transfers, of which only large ones could show a wrong unit
LEAST_OF_HBM = 1 / 3  # median share of the bandwidth; public sets reach 0.81 to 0.99
PAST_CACHES_BYTES = 2**30  # working sets of HBM on every known GPU
CACHE_BYTES = 2**28  # the largest last cache of a known GPU: MI300X's Infinity Cache
# What no GPU of 2026 exceeds, for one without a datasheet here: NVIDIA's Rubin (NVFP4, HBM4, NVLink 6, NVLink-C2C).
MOST_FLOP_PER_S, MOST_HBM_BYTES_PER_S, MOST_LINK_BYTES_PER_S, MOST_HOST_BYTES_PER_S = 50e15, 22e12, 1.8e12, 0.9e12
# One direction, of GPUs without NVLink: PCIe x16 (gen 4 has 31.5 GB/s, gen 5 63), the bridge of an H100 PCIe, and seven
# Infinity Fabric links of 64 GB/s (datasheets).
OTHER_LINKS = {"h100-pcie": 300e9, "h100-nvl": 300e9, "l40": 31.5e9, "rtx-pro-6000-server": 63e9, "mi300x": 448e9}
# To the host, one direction: PCIe x16, gen 6 of a B300, and NVLink-C2C of a Grace.
HOSTS = {
    **dict.fromkeys(("a100", "l40"), 31.5e9), "b300": 126e9, **dict.fromkeys(("gb200", "gb300"), 450e9),
    **dict.fromkeys(("h100", "h100-pcie", "h100-nvl", "h200", "h800", "h20", "b200", "mi300x"), 63e9),
    "rtx-pro-6000-server": 63e9,
}  # fmt: skip
# A GPU's port to other nodes: 400 Gb/s; of Blackwell, and of what has no datasheet here, 800 (ConnectX-7, ConnectX-8).
PORTS = dict.fromkeys(("a100", "h100", "h100-pcie", "h200", "h800", "h20", "l40", "mi300x"), 50e9)
MOST_PORT_BYTES_PER_S, PORTS_OF_NODE = 100e9, 8
# Operation -> bytes that leave or enter some GPU of n, as a share of the message. An all-reduce in a ring, or added up
# by the switch (NVLink SHARP: everything leaves a GPU once, and the sum comes back to it).
_SCATTERED = dict.fromkeys(("all_to_all", "all_gather", "reduce_scatter", "gather", "scatter"), lambda n: (n - 1) / n)
_WHOLE = dict.fromkeys(("broadcast", "reduce", "send_recv", "sendrecv"), lambda n: np.where(n > 1, 1.0, 0.0))
DISPATCHED = (DISPATCH, COMBINE, COMBINE_LOW_PRECISION)  # a token goes to every rank with one of its experts once
MUST_PASS = {**_SCATTERED, **_WHOLE, "all_reduce": lambda n: np.minimum(2 * (n - 1) / n, 1 + 1 / n)}


@dataclass(frozen=True)
class Peaks:
    """Peaks of the user (``named``) for a GPU, None: for all; of other GPUs those of the datasheets."""

    named: Nominal = Nominal()
    gpu: str | None = None

    def flop_per_s(self, gpu: str, dtype: str) -> float | None:
        """None if not known."""
        peaks = DATASHEETS[gpu].peak_flop_per_s if gpu in DATASHEETS else {}
        return peak_of({**peaks, **self._of(gpu).peak_flop_per_s}, dtype)

    def hbm_bytes_per_s(self, gpu: str) -> float | None:
        """None if not known."""
        return self._of(gpu).hbm_bytes_per_s or (DATASHEETS[gpu].hbm_bytes_per_s if gpu in DATASHEETS else None)

    def _of(self, gpu: str) -> Nominal:
        return self.named if self.gpu in (None, gpu) else Nominal()


class Bound(NamedTuple):
    """``needed_us``: float64[row], the least time, by the index of the rows; ``who`` in words is bound by ``what``, of
    which ``peak`` is the rate.
    """

    needed_us: pd.Series
    who: str
    what: str
    peak: float
    dimension: Dimension


def within_peaks(kind: str, rows: pd.DataFrame, peaks: Peaks, problems: list[MeasurementProblem]) -> pd.DataFrame:
    """The rows of one file that are not above the peaks; the others are problems, each for itself, or the file is
    refused if too many of its rows are (MOST_BEYOND).

    rows: of the schema's table, with ``gpu``, ``file``, ``line``. Other kinds than those of _BOUNDS have no peak here.
    """
    if kind not in _BOUNDS or not len(rows):
        return rows
    index, rows = rows.index, rows.reset_index(drop=True)
    share, found = pd.Series(np.nan, index=rows.index), []
    for bound in _BOUNDS[kind](rows, peaks, problems):
        taken = bound.needed_us / rows.loc[bound.needed_us.index, TABLES[kind].value].astype(float)
        share[taken.index] = np.fmax(share[taken.index], taken)
        over = taken[taken > TOLERANCE]
        if len(over):
            named = f"{len(over):,} of {len(taken):,} rows of {bound.who} are faster than its {bound.what} of "
            told = f"{format_quantity(bound.peak, bound.dimension)}, up to {over.max():.1f} times"
            found.append((over, bound, named + told))
    beyond = (share > TOLERANCE).to_numpy()
    if beyond.sum() > (MOST_BEYOND_LINKS if kind in LINKS else MOST_BEYOND) * share.notna().sum():
        first_row = rows[beyond].iloc[0]
        told = "; ".join(reason for _, _, reason in found)
        reason = f"{told}: {_ASKED[kind]}"
        problems.append(MeasurementProblem(first_row["file"], int(first_row["line"]), reason, "refused"))
        return rows.set_axis(index)
    for over, bound, reason in found:
        for at, times in over[over == share[over.index]].items():  # of two bounds of a row the stricter one
            rate = format_quantity(float(f"{times * bound.peak:.3g}"), bound.dimension)
            told = f"{rate}, {times:.1f} times its peak ({reason}): {_ASKED[kind]}"
            problems.append(MeasurementProblem(rows["file"][at], int(rows["line"][at]), told))
    return rows.set_axis(index)[~beyond]


_TRANSFERS = "are unit, bytes, operation and ranks right, and did it transfer anything?"
_ASKED = {
    "gemm": "are unit, dtype and shape right, and the peak (--peak, --hbm)?",
    "moe": "are unit, dtype and sizes right, and the peak (--peak, --hbm)?",
    "attention": "are unit, dtype and sizes right, and the peak (--peak, --hbm)?",
    "memory": "are unit and working set right, and the bandwidth (--hbm)?",
    **dict.fromkeys(LINKS, _TRANSFERS),
}


def _numbers(rows: pd.DataFrame, names: str) -> list[pd.Series]:
    return [rows[name].astype(float) for name in names.split()]


def _gemm_bounds(rows: pd.DataFrame, peaks: Peaks, problems: list[MeasurementProblem]) -> Iterator[Bound]:
    groups, m, n, k = _numbers(rows, "groups m n k")
    weights = groups * n * k * rows["dtype"].map(WEIGHT_BYTES)
    yield from _of_work(rows, 2 * groups * m * n * k, weights, peaks)


def _moe_bounds(rows: pd.DataFrame, peaks: Peaks, problems: list[MeasurementProblem]) -> Iterator[Bound]:
    """Of a rank with its equal part of the pairs; with skewed routing the slowest one has more, after EPLB as many."""
    tokens, top_k, hidden, ffn, ep, tp = _numbers(rows, "tokens_total top_k hidden ffn ep tp")
    yield from _of_work(rows, 6 * tokens * top_k / ep * hidden * ffn / tp, 0 * tokens, peaks)


def _attention_bounds(rows: pd.DataFrame, peaks: Peaks, problems: list[MeasurementProblem]) -> Iterator[Bound]:
    """Products of grouped queries in prompts; KV of decodes, once, past the caches."""
    batch, tokens, heads, kv_heads, size, window = _numbers(rows, "batch tokens heads kv_heads head_dim window")
    seen = tokens.where(~((window > 0) & (window < tokens)), window)
    pairs = seen * (seen + 1) / 2 + (tokens - seen) * seen
    grouped, decode = rows["kind"] == "gqa", rows["phase"] == "decode"
    flop = 4 * batch * heads * size * pairs * (grouped & ~decode)
    vectors = kv_heads * (1 + grouped) * (decode & (grouped | (rows["kind"] == "mla")))
    yield from _of_work(rows, flop, batch * seen * size * vectors * rows["kv_dtype"].map(WEIGHT_BYTES), peaks)


def _of_work(rows: pd.DataFrame, flop: pd.Series, read: pd.Series, peaks: Peaks) -> Iterator[Bound]:
    """Of products at the peak, and of bytes that are read from HBM, but for those that a cache may hold."""
    for (gpu, dtype), mine in rows.groupby(["gpu", "dtype"], sort=True):
        peak = peaks.flop_per_s(gpu, dtype) or MOST_FLOP_PER_S
        yield Bound(1e6 * flop[mine.index] / peak, f"{gpu} in {dtype}", "peak", peak, COMPUTE)
        rate = peaks.hbm_bytes_per_s(gpu) or MOST_HBM_BYTES_PER_S
        past = (read[mine.index] - CACHE_BYTES).clip(lower=0)
        yield Bound(1e6 * past[past > 0] / rate, f"{gpu} in {dtype}", "HBM", rate, BANDWIDTH)


def _memory_bounds(rows: pd.DataFrame, peaks: Peaks, problems: list[MeasurementProblem]) -> Iterator[Bound]:
    """The column is a rate: its share of the peak takes the place of a time."""
    of_hbm = (rows["level"] == "hbm") | (
        (rows["level"] == "any") & (rows["working_set_bytes"].astype(float) >= PAST_CACHES_BYTES)
    )
    for (gpu, op), mine in rows[of_hbm & (rows["quantity"] == "bytes_per_s")].groupby(["gpu", "op"], sort=True):
        known, value = peaks.hbm_bytes_per_s(gpu), mine["value"].astype(float)
        peak = known or MOST_HBM_BYTES_PER_S
        if known and value.median() < LEAST_OF_HBM * known:
            told = (
                f"HBM of {gpu}: {op} at {value.median() / peak:.0%} of its {format_quantity(peak, BANDWIDTH)}: was the "
                "whole GPU measured, and alone?"
            )
            problems.append(MeasurementProblem(mine["file"].iloc[0], int(mine["line"].iloc[0]), told, "warning"))
        yield Bound(value**2 / peak, f"{gpu}, {op},", "HBM", peak, BANDWIDTH)


def _copy_bounds(rows: pd.DataFrame, peaks: Peaks, problems: list[MeasurementProblem]) -> Iterator[Bound]:
    """Bytes of one direction of a pair."""
    for (gpu, placement), mine in rows.groupby(["gpu", "placement"], sort=True):
        (size,), rate = _numbers(mine, "bytes"), _link(gpu)
        if placement == "inter_node" and not gpu.startswith("gb"):
            rate = min(rate, PORTS_OF_NODE * PORTS.get(gpu, MOST_PORT_BYTES_PER_S))
        yield Bound(1e6 * size / rate, f"{gpu} ({placement})", "link", rate, BANDWIDTH)


def _collective_bounds(rows: pd.DataFrame, peaks: Peaks, problems: list[MeasurementProblem]) -> Iterator[Bound]:
    """Of every GPU's link, and of its node's ports where ranks span several nodes."""
    for (gpu, op, ranks, nodes), mine in rows.groupby(["gpu", "op", "num_gpus", "nodes"], dropna=False, sort=True):
        n, nodes = float(ranks), max(float(nodes), 1.0) if float(nodes) == float(nodes) else 1.0
        of_node = n / nodes if op in ("all_to_all", *DISPATCHED) else 1.0  # ranks whose messages leave a node
        if op in DISPATCHED:
            mine = mine[(mine["top_k"].astype(float) >= 1) & (mine["experts"].astype(float) >= n)]
            sizes = list(zip(*_numbers(mine, "top_k experts"), strict=True))
            out, across = (np.array([nodes_away(int(of), int(k), int(e)) / k for k, e in sizes]) for of in (n, nodes))
        elif op in MUST_PASS:
            out, across = MUST_PASS[op](n), MUST_PASS[op](nodes)
        else:
            continue
        (size,), who = _numbers(mine, "bytes"), f"{gpu}, {op} of {n:g} ranks,"
        rate, port = _link(gpu), PORTS.get(gpu, MOST_PORT_BYTES_PER_S)
        yield Bound(1e6 * size * out / rate, who, "link", rate, BANDWIDTH)
        if nodes > 1 and not gpu.startswith("gb"):
            us = 1e6 * size * across * of_node / max(n / nodes, PORTS_OF_NODE) / port
            yield Bound(us, who, "port to other nodes", port, BANDWIDTH)


def _host_bounds(rows: pd.DataFrame, peaks: Peaks, problems: list[MeasurementProblem]) -> Iterator[Bound]:
    for gpu, mine in rows.groupby("gpu", sort=True):
        (size,), rate = _numbers(mine, "bytes"), HOSTS.get(gpu, MOST_HOST_BYTES_PER_S)
        yield Bound(1e6 * size / rate, str(gpu), "path to the host", rate, BANDWIDTH)


def _link(gpu: str) -> float:
    return NVLINK_BYTES_PER_S.get(gpu) or OTHER_LINKS.get(gpu, MOST_LINK_BYTES_PER_S)


_BOUNDS = MappingProxyType({
    "gemm": _gemm_bounds, "moe": _moe_bounds, "attention": _attention_bounds, "memory": _memory_bounds,
    "p2p": _copy_bounds, "collective": _collective_bounds, "hostpath": _host_bounds,
})  # fmt: skip


# ---- congested
# DeepEP's normal kernels between nodes, where a network was congested: rows that contradict those of fewer nodes.
#
# A NIC passes the same bytes in about the same time whatever the number of nodes. DeepEP's own table
# (deepseek-ai/DeepEP, docs/legacy.md: 4,096 tokens a rank, one NIC of 400 Gb/s each, 58 GB/s on 4 nodes and 51 on 8,
# which count what stays in a node) comes to PUBLISHED_BYTES_PER_S past a NIC; public rows of 2 nodes reach 40 to 44
# GB/s, those of 8 nodes 16. A notify passes counts, whose number does not depend on the tokens: what takes longer waits
# for a rank that is late.

# 4,096 tokens x 2.70 nodes away x 7,392 B in 1.88 ms (4 nodes); 3.15 in 2.14 ms (8 nodes)
PUBLISHED_BYTES_PER_S = 44e9
MOST_SLOWER = 1.5  # than the fewest nodes at equal bytes of a NIC, and than the published rate
FEW_TOKENS = 8  # up to which a time is a fixed cost
MOST_NOTIFY = 2.0  # times the shortest of a number of nodes
_SERIES = ["gpu", "library", "library_version", "variant", "sms", "hidden", "top_k", "experts", "dtype"]


def without_congested(rows: pd.DataFrame, problems: list[MeasurementProblem]) -> pd.DataFrame:
    """Rows of collectives without those that a congested network slowed; each of these is a problem (quarantined)."""
    between = rows[(rows["variant"] == "normal") & (rows["nodes"].astype(float) > 1)]
    bad = np.zeros(len(rows), bool)
    for at, reason in [*_slow_vectors(between), *_late_notifies(between)]:
        problems.append(MeasurementProblem(rows["file"][at], int(rows["line"][at]), reason))
        bad[at] = True
    return rows[~bad].reset_index(drop=True)


def _slow_vectors(rows: pd.DataFrame) -> Iterator[tuple[int, str]]:
    """(row, why) of vectors that take longer than on the fewest nodes, at equal bytes of a NIC."""
    sent = rows[rows["op"].isin([DISPATCH, COMBINE])]
    for (op, *_), series in sent.groupby(["op", *_SERIES], dropna=False, sort=True):
        by_nodes = {nodes: _of_nodes(each) for nodes, each in series.groupby(series["nodes"].astype(float))}
        fewest = min(by_nodes)
        base_bytes, _, base_busy, _ = by_nodes.pop(fewest)
        for nodes, (n_bytes, fixed, busy, at) in by_nodes.items():
            usual = np.interp(n_bytes, base_bytes, base_busy)
            slow = busy > MOST_SLOWER * np.maximum(usual, n_bytes / PUBLISHED_BYTES_PER_S * 1e6)
            for row in np.flatnonzero(slow):
                yield (
                    int(at[row]),
                    f"{op} on {nodes:g} nodes: {busy[row]:,.0f} us beyond the {fixed:,.0f} us of few tokens, "
                    f"{n_bytes[row] / busy[row] / 1e3:.0f} GB/s a NIC, where {fewest:g} nodes take "
                    f"{usual[row]:,.0f} us for these bytes, and DeepEP's own table has "
                    f"{PUBLISHED_BYTES_PER_S / 1e9:g} GB/s: congested",
                )


def _of_nodes(rows: pd.DataFrame) -> tuple[np.ndarray, float, np.ndarray, np.ndarray]:
    """(bytes of a NIC, fixed us, us beyond it, rows), by rising bytes."""
    rows = rows.assign(tokens=rows["tokens_per_rank"].astype(float)).sort_values("tokens")
    nodes, top_k, experts = (int(rows[name].iloc[0]) for name in ("nodes", "top_k", "experts"))
    share = nodes_away(nodes, top_k, experts) / top_k
    us = rows["latency_us_median"].astype(float)
    fixed = float(us[rows["tokens"] <= FEW_TOKENS].median()) if (rows["tokens"] <= FEW_TOKENS).any() else us.iloc[0]
    return (rows["bytes"] * share).to_numpy(float), fixed, np.maximum(us - fixed, 0.0).to_numpy(), rows.index.to_numpy()


def _late_notifies(rows: pd.DataFrame) -> Iterator[tuple[int, str]]:
    """(row, why) of notifies that wait."""
    told = rows[rows["op"].isin(NOTIFY_OF.values())]
    for (op, nodes, *_), series in told.groupby(["op", "nodes", *_SERIES], dropna=False, sort=True):
        us = series["latency_us_median"].astype(float)
        for at, each in us[us > MOST_NOTIFY * us.min()].items():
            yield (
                int(at),
                f"{op} on {float(nodes):g} nodes: {each:,.0f} us, where the shortest takes {us.min():.0f}: it waits",
            )
