"""Figures of the validation page: measured against predicted times, and errors."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from archsim.evidence.products import UNDER
from archsim.report.plots import Colours, PlotAxis, Points

MOST_POINTS = 18_000  # of all scatters: of a set every n-th case by error, so that the worst are always drawn
MOST_ERROR = 0.2  # largest error on the axis of cumulative error charts
_NEAR_OR_FAR = {"error under 5 %": "--p4", "5 % or more": "--p7"}
COLOUR_OF = {"bf16": "--p2", "fp8": "--p3", "fp8_block": "--p5"}
OTHER_COLOUR = "--p0"
_TIPS = (("set", "set"), ("at", "at"), ("measured", "measured, µs"), ("predicted", "predicted, µs"), ("error", "error"))


def scatter(question: str, sets: dict[str, pd.DataFrame]) -> Points | None:
    """Predicted over measured time with the diagonal, one set at a time; the frames have measured_us, predicted_us and
    error. None without sets.
    """
    rows: list[dict[str, Any]] = []
    for name, cases in sets.items():
        order = np.argsort(-cases["error"].abs().to_numpy(), kind="stable")
        shown = cases.iloc[order[:: math.ceil(len(order) * len(sets) / MOST_POINTS)]]
        of_all = cases["error"].abs()
        text = f"{name} ({len(cases):,} cases, mean error {percent(of_all.mean())}, max {percent(of_all.max())})"
        rows += [
            {
                "set": text, "measured": float(row.measured_us), "predicted": float(row.predicted_us),
                "kind": _kind(row.error), "error": percent(row.error),
            }
            for row in shown.itertuples()
        ]  # fmt: skip
    ends = [end for row in rows for end in (row["measured"], row["predicted"])]
    return Points(
        question=question, rows=rows, x=PlotAxis("measured", "measured, µs", "~g", log=True), zero=False, size=16,
        y=PlotAxis("predicted", "predicted, µs", "~g", log=True), colours=Colours("kind", _NEAR_OR_FAR), tips=_TIPS,
        curves=[{"line": "equal", "measured": end, "predicted": end} for end in (min(ends), max(ends))],
        filters={"set": rows[0]["set"]},
    ) if rows else None  # fmt: skip


def _kind(error: float) -> str:
    """One of `_NEAR_OR_FAR`."""
    return "error under 5 %" if abs(error) < UNDER else "5 % or more"


def times_over(
    question: str, sets: dict[str, tuple[Sequence[tuple[float, float]], Sequence[tuple[float, float, float]]]], x: str
) -> Points | None:
    """Points: measured; line: predicted. ``sets``: name → (line of (x, µs), points of (x, µs, error)); None without."""
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for name, (line, points) in sets.items():
        curves += [{"set": name, "line": name, "at": float(at), "us": float(us)} for at, us in line]
        rows += [
            {"set": name, "at": float(at), "us": float(us), "error": percent(error), "kind": _kind(error)}
            for at, us, error in points
        ]
    return Points(
        question=question, rows=rows, curves=curves, x=PlotAxis("at", x, "~s", log=True),
        y=PlotAxis("us", "µs", "~g", log=True),
        colours=Colours("kind", _NEAR_OR_FAR), panel="set", own_scales=True, zero=False, size=22,
        tips=(("set", "set"), ("at", x), ("us", "measured, µs"), ("error", "error")),
    ) if rows else None  # fmt: skip


def shares_within(question: str, sets: dict[str, dict[str, np.ndarray]]) -> Points | None:
    """Share of cases (y) with at most a given error (x), a line for each dtype. ``sets``: name → dtype → errors,
    float64[case]; None without.
    """
    rows, at = [], np.linspace(0, MOST_ERROR, 41)
    for name, by_dtype in sets.items():
        for dtype, of in by_dtype.items():
            share = np.searchsorted(np.sort(np.abs(of)), at, side="right") / len(of)
            text = f"{percent(float(np.mean(np.abs(of) < UNDER)))} of {len(of):,} cases are under 5 %"
            rows += [
                {"set": name, "dtype": dtype, "error": 100 * float(x), "share": 100 * float(y), "tip": text}
                for x, y in zip(at, share, strict=True)
            ]
    dtypes = dict.fromkeys(str(row["dtype"]) for row in rows)
    return Points(
        question=question, rows=rows, x=PlotAxis("error", "error at most, %"),
        y=PlotAxis("share", "share of cases, %"), lines=True,
        colours=Colours("dtype", {dtype: COLOUR_OF.get(dtype, OTHER_COLOUR) for dtype in dtypes}), panel="set",
        tips=(("set", "set"), ("dtype", "dtype"), ("tip", "cases")),
    ) if rows else None  # fmt: skip


def percent(share: float) -> str:
    """``0.034`` → ``3.4 %``; nan (unknown) is a dash."""
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"
