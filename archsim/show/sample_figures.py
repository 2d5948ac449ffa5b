"""Figures of samples: intervals, shares of a variance."""

from __future__ import annotations

from collections.abc import Sequence

from archsim.show.plots import Bars, PlotAxis
from archsim.show.units import TIME_UNITS, interval, percent, unit_of


def option_times(place: str, options: Sequence[tuple[str, tuple[float, float, float]]]) -> Bars:
    """Time of decode of every option (name, (5th percentile, median, 95th) in ns): bars with whiskers."""
    worth, unit = unit_of([ends[2] for _, ends in options], TIME_UNITS)
    rows = []
    for name, (low, middle, high) in options:
        text, *ends = interval(middle, low, high, TIME_UNITS)
        rows.append((name, (low / worth, middle / worth, high / worth), text, " to ".join(ends)))
    question = f"How long does decoding take, and how sure is that?{f' ({place})' if place else ''}"
    return intervals(question, f"time of decode, {unit}: the median, and the central 90 % as a line", rows)


def intervals(question: str, title: str, options: Sequence[tuple[str, tuple[float, float, float], str, str]]) -> Bars:
    """Options (name, (low, middle, high), label, range in words): bars with whiskers."""
    rows = [
        {"name": name, "low": low, "value": middle, "high": high, "label": label, "tip": text}
        for name, (low, middle, high), label, text in options
    ]
    tips = (("name", "option"), ("label", "median"), ("tip", "90 %"))
    return Bars(question=question, rows=rows, x=PlotAxis("value", title), y="name", low="low", high="high", tips=tips)


def variance_shares(place: str, draws: Sequence[tuple[str, float, float, float, float]]) -> Bars | None:
    """Draws an answer depends on: (name, share alone, low, share with others, high), 0 to 1. None without draws."""
    rows = [
        {"name": name, "value": 100 * total, "low": 100 * low, "high": 100 * high, "label": percent(total),
         "tip": f"alone {percent(first)}, with others {percent(total)}"}
        for name, first, low, total, high in draws
    ]  # fmt: skip
    title = "share of the variance of the answer, %; lines: ± 2 standard errors"
    return Bars(
        question=f"Which numbers does the answer depend on?{f' ({place})' if place else ''}", rows=rows, y="name",
        x=PlotAxis("value", title, high=118.0, ticks=(0, 25, 50, 75, 100)), low="low", high="high",
        tips=(("name", "number"), ("tip", "share")),
    ) if rows else None  # fmt: skip
