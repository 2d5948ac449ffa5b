"""A case of evidence, and the one table of errors: measured beside predicted, by group, seen or not. A source yields
cases, or a frame with these columns and some of its own. ``error`` is predicted / measured - 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import nan
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from archsim.base import tables

if TYPE_CHECKING:
    import pandas

UNDER, WITHIN = 0.05, 0.25  # errors whose shares the table has


class Case(NamedTuple):
    """One measured value beside the predicted one."""

    source: str  # of the evidence: GEMM, copies, serving, papers …
    group: str  # of cases whose errors are looked at together
    what: str  # was measured: one case of the group
    unit: str  # of both values and of the range
    measured: float
    predicted: float
    seen: bool | None = None  # whether a fit saw the measurement; None: nothing was fitted
    low: float = nan  # of the range that is printed with the prediction; nan: none
    high: float = nan


def frame_of(cases: Iterable[Case], **columns: Sequence | np.ndarray) -> pandas.DataFrame:
    """A row a case, with ``error``. ``columns``: a value for each case."""
    found = tables.frame_of(cases, Case._fields).assign(**columns)
    return found.assign(error=found["predicted"] / found["measured"] - 1)


COUNTS = ("cases", "extrapolated", "under_5")
# Statistic of a group → its heading. Those that are no count are shares; all but the bias have no sign.
HEADINGS: Mapping[str, str] = MappingProxyType({
    "cases": "cases", "extrapolated": "extrapolated", "under_5": "under 5 %", "bias": "bias (median)",
    "median": "median", "mean": "mean", "p90": "90 %", "p95": "p95", "worst": "max", "within_25": "within 25 %",
    "in_range": "in range", "floor": "floor (mean)",
})  # fmt: skip


def errors(cases: pandas.DataFrame, by: Sequence[str], sort: bool = True) -> pandas.DataFrame:
    """A row a group of ``by``, of cases whose error is known, with the statistics of `HEADINGS`; ``extrapolated``
    are those beyond what the predicting table measured. ``in_range``: share of the measured values inside the
    printed range. ``floor``: mean distance of a measurement from its repetitions. nan: nothing is known.
    """
    import pandas

    rows = []
    known = cases[cases["error"].notna()] if len(cases) else cases
    for key, mine in known.groupby(list(by), sort=sort) if len(known) else ():
        signed = mine["error"].to_numpy(float)
        size = np.abs(signed)
        ranged = mine[mine["low"].notna()] if "low" in mine else mine[:0]
        inside = (ranged["measured"] >= ranged["low"]) & (ranged["measured"] <= ranged["high"]) if len(ranged) else None
        rows.append({
            **dict(zip(by, key, strict=True)), "cases": len(mine),
            "extrapolated": int(mine["extrapolated"].sum()) if "extrapolated" in mine else 0,
            "under_5": int((size < UNDER).sum()), "bias": float(np.median(signed)), "median": float(np.median(size)),
            "mean": float(size.mean()), "p90": float(np.quantile(size, 0.9)), "p95": float(np.quantile(size, 0.95)),
            "worst": float(size.max()), "within_25": float((size <= WITHIN).mean()),
            "in_range": nan if inside is None else float(inside.mean()),
            "floor": float(mine["floor"].mean()) if "floor" in mine else nan,
        })  # fmt: skip
    return pandas.DataFrame(rows, columns=[*by, *HEADINGS])
