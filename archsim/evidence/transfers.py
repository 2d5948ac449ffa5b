"""Errors of transfer laws on sizes left out of their fit, per set, next to the repeatability of the measurements.

``python -m archsim.evidence.transfers measurements/ h100 [h100.yaml]`` prints the table: errors of the
given calibration on these measurements, or without one, of laws fitted to them with sizes left out in turn.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from archsim.evidence.choosing import all_series, law_for, name_of
from archsim.laws import tables, transfers
from archsim.specs.calibration_files import load_calibration
from calibration.fit import segments
from calibration.fit.transfers import Series
from calibration.measurements.reading import Measurements, read_measurements

FOLDS_OF_SPARSE, FOLDS_OF_DENSE = 2, 5  # every second size is left out at a time; for dense sizes, every fifth
DENSE_SIZES = 64
ROUNDING_NS = 500.0  # largest rounding error of times in whole microseconds
POOLED = ("hidden", "top_k", "experts", "sms", "concurrent_pairs")  # series that differ only in these form one set

COUNTED = MappingProxyType({"num_gpus": "GPUs", "nodes": "nodes"})
ONE_NODE = ("nodes", "1")  # omitted from names of sets


@dataclass(frozen=True)
class SetErrors:
    """Relative errors of one set."""

    name: str  # of the set
    series: int  # how many
    points: int  # of all series
    mean: float  # of |error|
    p95: float  # of |error|
    max: float  # of |error|
    under_5_percent: int  # points
    binned_mean: float  # of errors of medians per half octave of sizes, over the series
    binned_max: float  # the largest of these
    binned_max_unrounded: float  # times in whole µs against the nearest that rounds to the measured one
    floor: float | None  # deviation of points from others of their size, or the rounding error; None: unknown
    table: str = ""  # of a calibration that judges, if any
    extrapolated: int = 0  # points at sizes outside its measured range


def transfer_errors(measurements: Measurements, gpu: str) -> list[SetErrors]:
    """Errors of every set of P2P, collective and host path sweeps and memory curves of a GPU, with
    sizes left out in turn.
    """
    series = [item for item in all_series(measurements, gpu) if len(np.unique(item.size_bytes)) > 2]
    return [set_errors(name, items, map(_held_out, items)) for name, items in _sets(series).items()]


def errors_with(calibration: tables.CalibrationSpec, measurements: Measurements) -> list[SetErrors]:
    """Errors of the laws of a calibration, on the series of its GPU for which it has a law (of the same library)."""
    judged = [(item, law_for(calibration, item)) for item in all_series(measurements, calibration.gpu)]
    laws = {item.name: transfers.law_of(table) for item, table in judged if table is not None}
    judges = {item.name: name_of(table) for item, table in judged if table is not None}
    series = [item for item, table in judged if table is not None]
    return [
        replace(
            set_errors(name, items, (laws[item.name].time_ns(item.size_bytes) / item.time_ns for item in items)),
            table=", ".join(sorted({judges[item.name] for item in items})),
            extrapolated=sum(int(laws[item.name].extrapolates(item.size_bytes).sum()) for item in items),
        )
        for name, items in _sets(series).items()
    ]


def _sets(series: Iterable[Series]) -> dict[str, list[Series]]:
    sets: dict[str, list[Series]] = {}
    for item in series:
        sets.setdefault(_set_name(item), []).append(item)
    return sets


def _held_out(item: Series) -> np.ndarray:
    folds = FOLDS_OF_DENSE if len(np.unique(item.size_bytes)) > DENSE_SIZES else FOLDS_OF_SPARSE
    return segments.held_out_ratios(item.size_bytes, item.time_ns, folds)


def set_errors(name: str, items: Iterable[Series], ratios: Iterable[np.ndarray]) -> SetErrors:
    """Errors of some series, from law / measured of each (float64[point]; nan is ignored)."""
    items, ratios = list(items), list(ratios)
    binned = [segments.binned_errors(item.size_bytes, ratio) for item, ratio in zip(items, ratios, strict=True)]
    errors = np.abs(np.concatenate(ratios) - 1)
    errors, binned_error = errors[~np.isnan(errors)], np.concatenate(binned)
    unrounded = [
        segments.binned_errors(item.size_bytes, _within_rounding(item, ratio))
        for item, ratio in zip(items, ratios, strict=True)
    ]
    floors = [floor for floor in map(_floor, items) if floor is not None]
    return SetErrors(
        name=name, series=len(items), points=len(errors), mean=float(errors.mean()),
        p95=float(np.quantile(errors, 0.95)), max=float(errors.max()), under_5_percent=int(np.sum(errors < 0.05)),
        binned_mean=float(binned_error.mean()), binned_max=float(binned_error.max()),
        binned_max_unrounded=float(np.concatenate(unrounded).max()), floor=float(np.mean(floors)) if floors else None,
    )  # fmt: skip


def table_of(errors: Iterable[SetErrors]) -> str:
    """The errors as a Markdown table, in percent."""
    head = "set | series | points | mean | p95 | max | < 5 % | half octaves mean / max / beyond rounding | floor"
    lines = [f"| {head} |", f"|{' --- |' * 9}"]
    for row in errors:
        floor = "-" if row.floor is None else f"{row.floor * 100:.2f}"
        figures = f"{row.mean * 100:.2f} | {row.p95 * 100:.1f} | {row.max * 100:.1f} | {row.under_5_percent}"
        binned = f"{row.binned_mean * 100:.2f} / {row.binned_max * 100:.1f} / {row.binned_max_unrounded * 100:.1f}"
        lines.append(f"| {row.name} | {row.series} | {row.points} | {figures} | {binned} | {floor} |")
    return "\n".join(lines)


def _set_name(item: Series) -> str:
    of = {key: value for key, value in item.of.items() if key not in POOLED and (key, value) != ONE_NODE}
    words = [f"{value} {COUNTED[key]}" if key in COUNTED else value for key, value in of.items()]
    return " ".join([item.kind, item.library, item.version, *words])


def _floor(item: Series) -> float | None:
    """From points of one size; else from rounding, which is a quarter of a microsecond on average."""
    sizes, which, count = np.unique(item.size_bytes, return_inverse=True, return_counts=True)
    if (count > 1).any():
        medians = np.array([np.median(item.time_ns[which == i]) for i in range(len(sizes))])
        return float(np.mean(np.abs(item.time_ns / medians[which] - 1)[count[which] > 1]))
    if _is_rounded(item):
        return float(np.mean(ROUNDING_NS / 2 / item.time_ns))
    return None


def _is_rounded(item: Series) -> bool:
    return bool(np.all(item.time_ns % 1000 == 0))


def _within_rounding(item: Series, ratio: np.ndarray) -> np.ndarray:
    """law / measured, with the measured time shifted towards the law by up to half a microsecond."""
    if not _is_rounded(item):
        return ratio
    law = ratio * item.time_ns
    return law / np.clip(law, item.time_ns - ROUNDING_NS, item.time_ns + ROUNDING_NS)


def main(arguments: list[str]) -> None:
    """Print the table for a folder, a GPU, and optionally a calibration."""
    folder, gpu, *calibrations = arguments
    found = read_measurements(folder)
    print(
        table_of(errors_with(load_calibration(calibrations[0]), found) if calibrations else transfer_errors(found, gpu))
    )


if __name__ == "__main__":
    main(sys.argv[1:])
