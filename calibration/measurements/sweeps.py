"""Finds repetitions among runs: sweeps are pooled, duplicates counted once, versions that disagree kept separate."""

import re

import numpy as np
import pandas as pd

from archsim.laws.tables import newest_first

MOST_DISAGREEMENT = 0.05  # median |log ratio| of two release candidates that still count as one version
SAME = " = "  # between the names of duplicate sweeps
LEAST_COMMON_POINTS = 20  # points, before two sweeps are compared
MOST_APART = 1.5  # ratio of the times of two sweeps at a point that are still averaged
# Of two sweeps of one version, the newer counts unless it is slower by more: two public ones are up to 1.52 apart
PLAINLY_SLOWER = 2.0


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
            alike = [
                column for column in left if _version(column) == _version(first) or _agree(left[first], left[column])
            ]
            pools.append(left[alike].dropna(how="all"))
            left = left.drop(columns=alike)
        found += [(name if len(pools) == 1 else _version(sweeps.columns[0]), sweeps) for sweeps in pools]
    return found


def _version(sweep: str) -> str:
    return sweep.partition("/")[0]


def _agree(a: pd.Series, b: pd.Series) -> bool:
    both = (a - b).dropna().abs()
    return len(both) < LEAST_COMMON_POINTS or float(both.median()) <= MOST_DISAGREEMENT


def off_the_others(sweeps: pd.DataFrame) -> pd.DataFrame:
    """Measured / median of the other sweeps - 1, by sweep; nan if there is no other."""
    found = {name: sweeps[name] - sweeps.drop(columns=name).median(axis=1) for name in sweeps}
    return np.expm1(pd.DataFrame(found, index=sweeps.index))


def repeatability(sweeps: pd.DataFrame) -> pd.Series:
    """Distance of a sweep from the median of the others, mean over sweeps; nan for a single sweep."""
    return off_the_others(sweeps).abs().mean(axis=1)


def consensus(sweeps: pd.DataFrame) -> pd.Series:
    """ln of the time at each point: the median over the sweeps that measured it.

    Sweeps that are over MOST_APART apart at a point are not averaged: the median is over those that agree with most
    others, of two that disagree the newer, or the faster one of a version if the newer is over PLAINLY_SLOWER: a
    throttled GPU is only slower. Columns are sweeps, the newest first.
    """
    found = sweeps.median(axis=1)
    kept = _kept(sweeps)
    found[kept.index] = sweeps.loc[kept.index].where(kept).median(axis=1)
    return found.dropna()


def note_of(sweeps: pd.DataFrame) -> str:
    """Where sweeps disagree, and which ones count there; '' if they agree everywhere."""
    kept = _kept(sweeps)
    if not len(kept):
        return ""
    apart = sweeps.loc[kept.index]
    times = np.exp((apart.max(axis=1) - apart.min(axis=1)).max())
    shared = int((sweeps.notna().sum(axis=1) > 1).sum())
    names = ", ".join(name for name in sweeps if kept[name].any())
    return (
        f"sweeps are over {MOST_APART:g} times apart at {len(kept)} of {shared} points ({times:.1f} times at most): "
        f"not averaged there, but as in {names}"
    )


def _kept(sweeps: pd.DataFrame) -> pd.DataFrame:
    """bool: which sweeps count, for each of the points at which sweeps are too far apart."""
    apart = sweeps[sweeps.max(axis=1) - sweeps.min(axis=1) > np.log(MOST_APART)]
    times = apart.to_numpy()
    near = np.abs(times[:, :, None] - times[:, None, :]) <= np.log(MOST_APART)  # point, sweep, other sweep
    others, point = near.sum(axis=2), np.arange(len(apart))
    most = others == others.max(axis=1, keepdims=True)
    newest = most.argmax(axis=1)  # the first, of those with most others
    version = np.array([name.partition("/")[0] for name in apart])
    fastest = np.where(most & (version == version[newest][:, None]), times, np.inf).argmin(axis=1)
    throttled = times[point, newest] - times[point, fastest] > np.log(PLAINLY_SLOWER)
    best = np.where(throttled, fastest, newest)
    return pd.DataFrame(near[point, best], index=apart.index, columns=apart.columns)
