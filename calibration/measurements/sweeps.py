"""Finds repetitions among runs: sweeps are pooled, duplicates counted once, versions that disagree kept separate."""

import re

import numpy as np
import pandas as pd

from archsim.laws.tables import newest_first

MOST_DISAGREEMENT = 0.05  # median |log ratio| of two release candidates that still count as one version
SAME = " = "  # between the names of duplicate sweeps
LEAST_COMMON_POINTS = 20  # points, before two sweeps are compared


def release(version: str) -> str:
    """The release of a release candidate: '1.3.0rc10' → '1.3.0'."""
    found = re.match(r"(.*?\d)[.-]?rc\d", version)
    return found[1] if found else version


def table_of_sweeps(rows: pd.DataFrame, point: list[str], value: str) -> pd.DataFrame:
    """ln of the measured times: one column per sweep ('version/run'), one row per point; NaN where not measured.

    A sweep that equals another on all their common points is merged into it; the column is named 'one = other'.
    """
    names = rows["library_version"] + "/" + rows["run_id"]
    logs = np.log(rows[value].astype(float)).groupby([*(rows[name] for name in point), names.rename("sweep")]).median()
    sweeps = logs.unstack("sweep")
    order = sorted(sorted(sweeps.columns), key=lambda name: newest_first(name.partition("/")[0]), reverse=True)
    merged = pd.DataFrame(index=sweeps.index)
    for name in order:
        same = [kept for kept in merged if _is_copy(merged[kept], sweeps[name])]
        if same:
            merged[same[0]] = merged[same[0]].fillna(sweeps[name])
            merged = merged.rename(columns={same[0]: f"{same[0]}{SAME}{name}"})
        else:
            merged[name] = sweeps[name]
    return merged


def _is_copy(a: pd.Series, b: pd.Series) -> bool:
    both = (a - b).dropna()
    return len(both) >= LEAST_COMMON_POINTS and bool((both == 0).all())


def pools(rows: pd.DataFrame, point: list[str], value: str) -> list[tuple[str, pd.DataFrame]]:
    """(version, table of sweeps) for the rows of one library: sweeps of a release together, unless versions
    disagree. Repeats of one version stay together, as nothing names them apart: `consensus` is for those.
    """
    found = []
    for name, mine in rows.groupby(rows["library_version"].map(release), sort=True):
        left = table_of_sweeps(mine, point, value)
        pools = []
        while left.shape[1]:
            first = left.columns[0]
            agreeing = [
                column for column in left if _version(column) == _version(first) or _agree(left[first], left[column])
            ]
            pools.append(left[agreeing].dropna(how="all"))
            left = left.drop(columns=agreeing)
        found += [(name if len(pools) == 1 else _version(sweeps.columns[0]), sweeps) for sweeps in pools]
    return found


def _version(sweep: str) -> str:
    return sweep.partition("/")[0]


def _agree(a: pd.Series, b: pd.Series) -> bool:
    both = (a - b).dropna().abs()
    return len(both) < LEAST_COMMON_POINTS or float(both.median()) <= MOST_DISAGREEMENT
