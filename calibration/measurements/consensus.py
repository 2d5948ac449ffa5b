"""What sweeps of a table say together: the time of each point, where they disagree, how far one is off the others."""

import numpy as np
import pandas as pd

MOST_APART = 1.5  # ratio of the times of two sweeps at a point that are still averaged
# Of two sweeps of one version, the newer counts unless it is slower by more: two public ones are up to 1.52 apart
PLAINLY_SLOWER = 2.0


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
