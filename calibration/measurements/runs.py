"""Runs that are off the other runs of the same way of measuring: in another unit, or throttled."""

from collections.abc import Iterator
from itertools import permutations

import numpy as np
import pandas as pd

from calibration.measurements.plausible import APART, WAYS, off_rough
from calibration.measurements.schema import Table

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


def throttled_runs(rows: pd.DataFrame, table: Table) -> Iterator[tuple[np.ndarray, str]]:
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


def _times(rows: pd.DataFrame, point: list[str], table: Table) -> pd.DataFrame:
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
