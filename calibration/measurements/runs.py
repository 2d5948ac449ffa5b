"""Runs that are off the other runs of the same way of measuring: in another unit, or throttled."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from calibration.measurements.plausible import APART, WAYS, off_rough
from calibration.measurements.schema import Table

LEAST_COMMON = 20  # points that two runs share, before they are compared
LEAST_OTHERS = 2  # runs that agree, before another one is judged by them
MOST_DISAGREEMENT = 0.05  # median ln ratio of runs that agree


def runs_in_another_unit(kind: str, rows: pd.DataFrame, value: str) -> np.ndarray:
    """bool[row]: the row's run differs from the most plausible run of its way by a factor that only units explain."""
    ways = _ways(kind, rows)
    run = off_rough(kind, rows, value).groupby([*ways, rows["run_id"]], dropna=False).transform("median")
    nearest = run.abs().groupby(ways, dropna=False).transform("min")
    most_plausible = run.where(run.abs() == nearest).groupby(ways, dropna=False).transform("first")
    return ((run - most_plausible).abs() > np.log(APART)).to_numpy()


def throttled_runs(rows: pd.DataFrame, table: Table) -> Iterator[tuple[np.ndarray, str]]:
    """(bool[row], reason) of every run that is slower than the others of its way and version, where those agree."""
    point = [name for name in table.key if name not in ("run_id", "gpu_name")]
    ways = [*_ways(table.kind, rows), rows["library"], rows["library_version"]]
    for _, at in rows.groupby(ways, dropna=False, sort=False).indices.items():
        mine = rows.iloc[at]
        if mine["run_id"].nunique() <= LEAST_OTHERS:
            continue
        logs = np.log(mine[table.value].astype(float))
        times = logs.groupby([*(mine[name] for name in point), mine["run_id"]], dropna=False).median().unstack("run_id")
        for run, off in _off(times).items():
            there = np.zeros(len(rows), bool)
            there[at] = (mine["run_id"] == run).to_numpy()
            others = times.shape[1] - 1
            yield (
                there,
                f"run {run!r} takes {np.exp(off):.2f} times as long as the {others} others of its kind, which agree: "
                "not used (throttled, or measured beside other work?)",
            )


def _off(times: pd.DataFrame) -> dict[str, float]:
    """Run → median ln ratio to the others, of runs slower than the others, if all others agree with each other."""
    found = {}
    for run in times:
        others = times.drop(columns=run)
        usual = others.median(axis=1)
        apart = {name: (others[name] - usual).dropna() for name in others}
        mine = (times[run] - usual).dropna()
        agree = all(len(each) >= LEAST_COMMON and each.abs().median() <= MOST_DISAGREEMENT for each in apart.values())
        if agree and len(mine) >= LEAST_COMMON and mine.median() > MOST_DISAGREEMENT:
            found[str(run)] = float(mine.median())
    return found


def _ways(kind: str, rows: pd.DataFrame) -> list[pd.Series]:
    return [rows["gpu_name"], *(rows[name] for name in WAYS[kind])]
