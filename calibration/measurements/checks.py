"""Checks rows of measurements: within their ranges, in one unit, of one GPU, without contradictions."""

import numpy as np
import pandas as pd

from calibration.measurements.peaks import LINKS, Peaks, within_peaks
from calibration.measurements.plausible import odd_sizes, odd_units, runs_in_another_unit, throttled_runs
from calibration.measurements.schema import MeasurementKind, MeasurementProblem, gpu_key

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


def check_rows(
    rows: pd.DataFrame,
    table: MeasurementKind,
    label: str,
    problems: list[MeasurementProblem],
    own: bool,
    peaks: Peaks,
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
    """(rows of several files, each point once, without contradictions, other units or throttling; the rest)."""
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
