"""Fits fused MoE layers: a law of one rank's pairs and active experts, and measured corrections."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pandas as pd

from archsim.base.units import NS_PER_US
from archsim.laws.gemm import CORRECTION_UNIT
from archsim.laws.moe import (
    EPLB,
    LEAST_RANKS_TO_LEAVE_OUT,
    POINT,
    SIZES,
    law_ns,
    moe_ns,
    named_of,
    off_the_others,
    outside_ranks,
    ranks_of,
    time_of_load,
)
from archsim.laws.rank_load import BALANCED, DRAWS_OF_POINT, LAUNCHED_ONE_BY_ONE, load_draws, routing_of
from archsim.laws.tables import Kriging, MoeTable
from calibration.fit.gemm import quantiles
from calibration.fit.isolated import LEAST_OF_ROW, apart, spread_of
from calibration.fit.moe_law import NO_CEILING, Ceiling, Set, axes, fit_law
from calibration.measurements.consensus import consensus, note_of, repeatability
from calibration.measurements.fingerprints import fingerprints
from calibration.measurements.sweeps import SAME, pools

# How corrections are interpolated between EP and TP sizes is chosen for each table, by leaving out EP sizes in turn:
# correlation length in octaves of ep and tp, and of tokens; relative noise; outlier threshold; or no corrections.
CHOICES = (
    Kriging(reach=(4, 4, 2), noise=0.02),
    Kriging(reach=(16, 16, 2), noise=0.02),
    Kriging(reach=(4, 4, 2), noise=0.05, outlier=0.1),
    Kriging(reach=(16, 16, 2), noise=0.05, outlier=0.1),
    Kriging(reach=(4, 4, 2), noise=0.5, outlier=0.1),
    Kriging(reach=(16, 16, 2), noise=0.5, outlier=0.1),
    None,
)


def choose(points: tuple, corrections: np.ndarray) -> tuple[Kriging | None, np.ndarray]:
    """(the choice that best predicts left-out EP sizes, its errors, float64[point of tp = 1]); too few: first, none."""
    if sum(tp == 1 for _, tp in ranks_of(points)) < LEAST_RANKS_TO_LEAVE_OUT:
        return CHOICES[0], np.zeros(0)
    some = _every_second_size(points[2])
    thinned = tuple(axis[some] for axis in points)
    means = [np.abs(np.expm1(_errors(kriging, thinned, corrections[some]))).mean() for kriging in CHOICES]
    kriging = CHOICES[int(np.argmin(means))]
    return kriging, _errors(kriging, points, corrections)


def _every_second_size(tokens: np.ndarray) -> np.ndarray:
    """bool[point]: half of the token counts lead to the same choice in an eighth of the time."""
    return np.isin(tokens, np.unique(tokens)[::2])


def _errors(kriging: Kriging | None, points: tuple, corrections: np.ndarray) -> np.ndarray:
    """Predicted - measured corrections of every EP size (tp = 1), left out in turn."""
    off = off_the_others(kriging, points, corrections)
    return -np.concatenate([distance for (_, tp), distance in off.items() if tp == 1])


SEEN, GROUP = "tokens_seen", "group"  # column of the schema, and its default
KEYS = ["model", "library", "kernel", "dtype", "distribution", "seen", EPLB, *SIZES]


Peak = Callable[[str], float | None]
ALONE: Mapping[float, pd.DataFrame] = MappingProxyType({})


def no_peak(dtype: str) -> None:
    """The message for a GPU whose peaks are not known."""


def moe_pools(rows: pd.DataFrame) -> Iterator[tuple[dict, pd.DataFrame]]:
    """(configuration, sweeps of ln us by ep, tp, tokens_total) of a GPU's MoE rows; separate where routing differed."""
    rows = with_defaults(rows)
    for values, mine in rows.groupby(KEYS, sort=True):
        named = dict(zip(KEYS, values, strict=True))
        named |= {key: int(named[key]) for key in (EPLB, *SIZES)}
        for version, sweeps in pools(mine, POINT, "latency_us_median"):
            for name, pool in _by_routing(sweeps, version, named):
                yield {**named, "version": name, "source": _source(mine, pool)}, pool


def _source(rows: pd.DataFrame, sweeps: pd.DataFrame) -> str:
    named = {name for column in sweeps for name in column.split(SAME)}
    return ", ".join(sorted(set(rows["file"][(rows["library_version"] + "/" + rows["run_id"]).isin(named)])))


def with_defaults(rows: pd.DataFrame) -> pd.DataFrame:
    """MoE rows with defaults for optional columns that identify tables: no kernel, no EPLB, all tokens seen."""
    slots = rows[EPLB] if EPLB in rows else pd.Series(0.0, index=rows.index)
    seen = rows[SEEN] if SEEN in rows else pd.Series("", index=rows.index)
    seen = seen.fillna("").astype(str).replace("", GROUP)
    kernel = rows["kernel"].fillna("").astype(str)
    return rows.assign(kernel=kernel, seen=seen, **{EPLB: slots.astype(float).fillna(0.0)})


def _by_routing(sweeps: pd.DataFrame, version: str, named: dict) -> list[tuple[str, pd.DataFrame]]:
    if named["distribution"] == BALANCED or sweeps.shape[1] == 1:
        return [(version, sweeps)]
    first = {name.partition("/")[0]: name for name in reversed(sweeps.columns)}  # repeats are of one collector
    of_version = {version: fit_law([Set(_logs(sweeps[[name]]))], named)[1] for version, name in first.items()}
    routings = {name: of_version[name.partition("/")[0]] for name in sweeps}
    found = []
    for routing in dict.fromkeys(routings.values()):
        names = [name for name in sweeps if routings[name] == routing]
        found.append((names[0].partition("/")[0], sweeps[names].dropna(how="all")))
    return found if len(found) > 1 else [(version, sweeps)]


def _logs(sweeps: pd.DataFrame) -> pd.Series:
    return consensus(sweeps) + np.log(NS_PER_US)


def fit_moe(
    rows: pd.DataFrame,
    hbm_bytes_per_s: float = np.inf,
    peaks: Peak = no_peak,
    like: Mapping[float, pd.DataFrame] = ALONE,
) -> tuple[MoeTable, ...]:
    """Tables of one GPU's MoE rows (of the schema), sorted.

    ``hbm_bytes_per_s``, ``peaks`` (dtype → FLOP/s or None): what no law exceeds. ``like``: HBM bandwidth → rows of GPUs
    that differ in nothing else: a table that both measured has one law, scaled by the bandwidth.
    """
    others = [(hbm, named, sweeps) for hbm, theirs in like.items() for named, sweeps in moe_pools(theirs)]
    tables = []
    for named, sweeps in moe_pools(rows):
        siblings = [
            (hbm, logs) for hbm, other, logs in others if all(other[key] == named[key] for key in (*KEYS, "version"))
        ]
        tables.append(fit_table(sweeps, named, Ceiling(peaks(named["dtype"]), hbm_bytes_per_s), siblings))
    return tuple(
        sorted(tables, key=lambda t: (t.model, t.library, t.version, t.kernel, t.dtype, t.distribution, t.eplb_slots))
    )


def fit_table(
    sweeps: pd.DataFrame,
    named: dict,
    ceiling: Ceiling = NO_CEILING,
    siblings: Sequence[tuple[float, pd.DataFrame]] = (),
) -> MoeTable:
    """The table of sweeps (ln us by ep, tp, tokens_total); ``siblings``: HBM bandwidth and sweeps of its law's GPUs."""
    of_sweeps = {"sweeps": tuple(sorted(sweeps.columns)), "note": note_of(sweeps), "prints": fingerprints(sweeps)}
    hosted = named["kernel"] in LAUNCHED_ONE_BY_ONE  # hosts differ between machines
    others = [] if hosted else [Set(_logs(theirs), hbm) for hbm, theirs in siblings]
    drawn = named["distribution"] != BALANCED
    alone = [] if drawn else sweeps.index[sweeps.notna().sum(axis=1) == 1]
    return _table(_logs(sweeps), named | of_sweeps, ceiling, others, alone)


def left_out_errors(sweeps: pd.DataFrame, named: dict, ceiling: Ceiling = NO_CEILING) -> pd.DataFrame:
    """``error`` = predicted / measured - 1 of every EP size (tp = 1) by law, routing and kriging without it; ``floor``:
    spread of sweeps or draws, else nan; ``extrapolated``. Index ep, tp, tokens_total.
    """
    logs = _logs(sweeps)
    spread = repeatability(sweeps).reindex(logs.index)
    found = [pd.DataFrame(columns=["error", "floor", "extrapolated"], dtype=float)]
    for out in _sizes_to_leave_out(logs):
        table = _table(logs[~out], named, ceiling)
        error = moe_ns(table, *axes(logs[out])) / np.exp(logs[out]) - 1
        floor = spread[out].fillna(pd.Series(draw_noise(table, *axes(logs[out])), index=error.index))
        found.append(
            pd.DataFrame({"error": error, "floor": floor, "extrapolated": outside_ranks(table, *axes(logs[out]))})
        )
    return pd.concat(found[1:] or found)


def draw_noise(table: MoeTable, ep: np.ndarray, tp: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """float64[point]: mean deviation of a collector's samples from their median, by the law; nan: none sampled."""
    named, found = named_of(table), np.full(len(ep), np.nan)
    for at, (e, p, t) in enumerate(zip(ep, tp, tokens, strict=True)):
        draws = load_draws(named, routing_of(table), e, t)
        if draws is not None:
            pairs, active = draws
            times = time_of_load(table.law, named, pairs, active, e, p, t)
            together = DRAWS_OF_POINT.get(table.library, 1)
            times = times[: len(times) // together * together].reshape(-1, together).mean(axis=1)
            found[at] = np.abs(times / np.median(times) - 1).mean()
    return found


def _sizes_to_leave_out(logs: pd.Series) -> list[np.ndarray]:
    """A mask of points for every EP size at tp = 1; empty if there are too few sizes."""
    ep, tp, _ = axes(logs)
    sizes = np.unique(ep[tp == 1])
    return [(ep == size) & (tp == 1) for size in sizes] if len(sizes) >= LEAST_RANKS_TO_LEAVE_OUT else []


def _table(
    logs: pd.Series, named: dict, ceiling: Ceiling, others: Sequence[Set] = (), alone: Collection = ()
) -> MoeTable:
    """``alone``: points of one sweep, which are left out where they stand apart from those beside them."""
    law, routing = fit_law([Set(logs, ceiling.hbm_bytes_per_s), *others], named, ceiling)
    corrections = logs - np.log(law_ns(law, named, routing, *axes(logs)))
    corrections = _without_isolated(corrections, alone)
    kriging, errors = choose(axes(corrections), corrections.to_numpy())
    tokens, ranks = _fill_gaps(corrections)
    return MoeTable(
        **named, law=law, routing=routing, tokens=tokens, ranks=ranks, kriging=kriging,
        unseen=quantiles(np.expm1(-errors)),
    )  # fmt: skip


def _without_isolated(corrections: pd.Series, alone: Collection) -> pd.Series:
    rows = [row.sort_index() for _, row in corrections.groupby(["ep", "tp"]) if len(row) >= LEAST_OF_ROW]
    spread = spread_of([row.to_numpy() for row in rows])
    found = [point for row in rows for point in row.index[apart(row.to_numpy(), spread)]]
    return corrections.drop([point for point in found if point in alone])


def _fill_gaps(corrections: pd.Series) -> tuple[tuple[float, ...], dict[str, tuple[float, ...]]]:
    """Token counts, and the corrections of each (ep, tp) at all of them; gaps are filled along ln tokens."""
    table = corrections.unstack("tokens_total").sort_index()
    axis = np.sort(table.columns.to_numpy(float))
    ranks = {}
    for (ep, tp), row in table[axis].iterrows():
        known = np.isfinite(row.to_numpy())
        filled = np.interp(np.log(axis), np.log(axis[known]), row.to_numpy()[known])
        ranks[f"{int(ep)}x{int(tp)}"] = tuple(np.rint(filled / CORRECTION_UNIT))
    return tuple(axis), ranks
