"""Transfers and curves of memory beside their laws: the calibration's, or fits to other sizes of the same series."""

from collections.abc import Callable, Iterator
from types import MappingProxyType

import numpy as np
import pandas as pd

from archsim.base.case import errors
from archsim.evidence.choosing import all_series, law_for, name_of
from archsim.evidence.page import join_frames
from archsim.laws import tables, transfers
from calibration.fit import segments
from calibration.fit.transfers import Series
from calibration.measurements.reading import Measurements

FOLDS_OF_SPARSE, FOLDS_OF_DENSE = 2, 5  # every second size is left out at a time; for dense sizes, every fifth
DENSE_SIZES = 64
ROUNDING_NS = 500.0  # largest rounding error of times in whole microseconds
POOLED = ("hidden", "top_k", "experts", "sms", "concurrent_pairs")  # series that differ only in these form one set

COUNTED = MappingProxyType({"num_gpus": "GPUs", "nodes": "nodes"})
ONE_NODE = ("nodes", "1")  # omitted from names of sets


def series_cases(
    measurements: Measurements, gpu: str, calibration: tables.CalibrationSpec | None = None
) -> pd.DataFrame:
    """A row a point of every P2P, collective and host path sweep and memory curve of a GPU, by the laws of a
    calibration (series without one are left out), or else with sizes left out in turn (error nan if never). Own
    columns: ``set`` of pooled series, ``series``, ``bytes``, ``table``, ``extrapolated``, and ``floor``, once a series:
    how far points of one size, or its rounding, are apart.
    """
    found = []
    for item in all_series(measurements, gpu):
        table = None if calibration is None else law_for(calibration, item)
        if table is not None:
            law = transfers.law_of(table)
            ratio, outside = law.time_ns(item.size_bytes) / item.time_ns, law.extrapolates(item.size_bytes)
        elif calibration is None and len(np.unique(item.size_bytes)) > 2:
            ratio, outside = _held_out(item), np.zeros(len(item.time_ns), bool)
        else:
            continue
        known = np.flatnonzero(~np.isnan(ratio))
        floors = np.full(len(ratio), np.nan)
        floors[known[:1]] = _floor(item)
        law_name, of = names_of(item)
        found.append(pd.DataFrame({
            "source": "transfers and memory", "group": _set_name(item),
            "what": [f"{size:,.0f} bytes" for size in item.size_bytes],
            "unit": "ns", "measured": item.time_ns, "predicted": ratio * item.time_ns,
            "seen": None if table is not None else False, "error": ratio - 1, "set": _set_name(item),
            "series": item.name, "bytes": item.size_bytes, "table": name_of(table) if table is not None else "",
            "extrapolated": outside, "floor": floors, "law": law_name if table is not None else None, "of": of,
            "library": item.library,
        }))  # fmt: skip
    cases = join_frames(found)
    if len(found):  # of all tables of a set
        cases["table"] = cases.groupby("set")["table"].transform(lambda of: ", ".join(sorted(set(of))))
    return cases


def names_of(item: Series) -> tuple[str, str]:
    """(law, what it is of), as the error table of all laws has them."""
    of = item.of
    law = f"{of['op']}, own table" if of.get("op") in transfers.PAYLOAD_OF else of.get("op", item.kind)
    where = of.get("variant") or of.get("direction") or ""
    return law, " ".join(filter(None, [where, f"{of['num_gpus']} GPUs" if "num_gpus" in of else ""]))


def set_errors(cases: pd.DataFrame) -> pd.DataFrame:
    """A row a set of `series_cases`: the columns of ``errors``; ``series``, how many; and of errors of medians per half
    octave of sizes ``binned_mean``, ``binned_max`` and ``binned_max_unrounded``: times in whole µs count as the nearest
    that rounds to the measured one.
    """
    rows = []
    for name, mine in cases.groupby("set", sort=False) if len(cases) else ():
        of = [each for _, each in mine.groupby("series", sort=False)]
        binned, unrounded = (np.concatenate(list(_bins(of, ratio))) for ratio in (_ratio, _within_rounding))
        rows.append({"set": name, "series": len(of), "binned_mean": float(binned.mean()),
                     "binned_max": float(binned.max()), "binned_max_unrounded": float(unrounded.max())})  # fmt: skip
    named = pd.DataFrame(rows, columns=["set", "series", "binned_mean", "binned_max", "binned_max_unrounded"])
    return named.merge(errors(cases, ["set", "table"], sort=False), on="set") if rows else named.assign(cases=0, mean=0)


def _bins(of: list[pd.DataFrame], ratio: Callable[[pd.DataFrame], np.ndarray]) -> Iterator[np.ndarray]:
    return (segments.binned_errors(each["bytes"].to_numpy(float), ratio(each)) for each in of)


def _ratio(points: pd.DataFrame) -> np.ndarray:
    return points["error"].to_numpy(float) + 1


def _within_rounding(points: pd.DataFrame) -> np.ndarray:
    """law / measured, with the measured time shifted towards the law by up to half a microsecond."""
    law, time_ns = points["predicted"].to_numpy(float), points["measured"].to_numpy(float)
    if not _is_rounded(time_ns):
        return _ratio(points)
    return law / np.clip(law, time_ns - ROUNDING_NS, time_ns + ROUNDING_NS)


def _held_out(item: Series) -> np.ndarray:
    folds = FOLDS_OF_DENSE if len(np.unique(item.size_bytes)) > DENSE_SIZES else FOLDS_OF_SPARSE
    return segments.held_out_ratios(item.size_bytes, item.time_ns, folds)


def _set_name(item: Series) -> str:
    of = {key: value for key, value in item.of.items() if key not in POOLED and (key, value) != ONE_NODE}
    words = [f"{value} {COUNTED[key]}" if key in COUNTED else value for key, value in of.items()]
    return " ".join([item.kind, item.library, item.version, *words])


def _floor(item: Series) -> float:
    """From points of one size; else from rounding, which is a quarter of a microsecond on average; nan: unknown."""
    sizes, which, count = np.unique(item.size_bytes, return_inverse=True, return_counts=True)
    if (count > 1).any():
        medians = np.array([np.median(item.time_ns[which == i]) for i in range(len(sizes))])
        return float(np.mean(np.abs(item.time_ns / medians[which] - 1)[count[which] > 1]))
    return float(np.mean(ROUNDING_NS / 2 / item.time_ns)) if _is_rounded(item.time_ns) else np.nan


def _is_rounded(time_ns: np.ndarray) -> bool:
    return bool(np.all(time_ns % 1000 == 0))
