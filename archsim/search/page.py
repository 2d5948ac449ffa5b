"""The page of a comparison of options: its sentence, its frontiers, and how each side is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from archsim.base import files, yaml
from archsim.search.compare import UNITS, OptionComparison
from archsim.search.machines import re_named
from archsim.show import plots, rendering, units
from archsim.uncertainty.estimate import interval

_COLOURS = ("--p1", "--p2", "--p3", "--p4", "--p5")


def write_options(found: OptionComparison, folder: Path) -> Path:
    """Write ``index.html``, ``frontier.csv`` and a file for each side that `archsim sweep` runs; returns the page."""
    files.own_folder(folder)
    found.table.write_csv(folder / "frontier.csv")
    named = {}
    for at, each in enumerate(found.sides):
        name = f"{'ABCDEFGHIJKLMNOP'[at % 16]}-{re_named(each.side.name)}.yaml"
        named[each.side.label] = name
        files.write_text(folder / name, f"# {each.chosen.way.label}\n{yaml.dump_yaml(each.file.resolved())}")
    figures = [
        figure for equal in dict.fromkeys((found.equal, "machines", "usd", "w")) if (figure := frontier(found, equal))
    ]
    context: dict[str, Any] = {
        "found": found, "answer": found.sentence, "why": found.reasons, "figures": figures[:1], "files": named,
        "others": figures[1:], "rows": list(rows_of(found)), "parts": list(_parts(found)),
    }  # fmt: skip
    files.write_text(folder / "index.html", rendering.render("options.html.j2", context))
    return folder / "index.html"


def frontier(found: OptionComparison, equal: str) -> plots.Points:
    """Tokens/s over tokens/s of a user, a line with whiskers of 90 % for each side; the limit as a line."""
    rows: list[dict[str, Any]] = []
    shown = np.unique(np.linspace(0, len(found.grid) - 1, 28).astype(int))
    for each, rates in zip(found.sides, found.over_grid, strict=True):
        amount = each.amount(equal)
        values = rates / (amount[:, None] if isinstance(amount, np.ndarray) else amount)
        for at in shown:
            spread = interval(values[1:, at] if found.samples else values[:1, at])
            if spread.p50 <= 0:
                continue
            rows.append({
                "side": each.side.label, "user": float(1e9 / found.grid[at]), "rate": spread.p50,
                "low": max(spread.p05, spread.p50 / 100), "high": spread.p95,
            })  # fmt: skip
    curves = []
    if found.limits.tpot_ns < np.inf and rows:
        ends = min(row["low"] for row in rows), max(row["high"] for row in rows)
        curves = [{"user": 1e9 / found.limits.tpot_ns, "rate": end, "line": "limit"} for end in ends]
    unit = f"tokens per second{f' {UNITS[equal]}' if UNITS[equal] else ''}"
    return plots.Points(
        question=f"How many {unit} does each side serve?", rows=rows, curves=curves, lines=True, dots=True, low="low",
        high="high", zero=False, x=plots.PlotAxis("user", "tokens/s per user (1 / time per token)", log=True),
        y=plots.PlotAxis("rate", unit, log=True),
        colours=plots.Colours("side", {each.side.label: _COLOURS[at % 5] for at, each in enumerate(found.sides)}),
        tips=(("side", "side"), ("user", "tokens/s per user"), ("rate", unit), ("low", "5 %"), ("high", "95 %")),
    )  # fmt: skip


def rows_of(found: OptionComparison):
    """A row of every side: how it is used, what it serves, costs and draws."""
    for each in found.sides:
        batch, count, ends = each.batch, each.side.machines, each.range
        low, middle, high = (units.with_prefix(value) for value in (ends.p05, ends.p50, ends.p95))
        yield (
            each.side.label, each.chosen.way.label, f"{batch.batch:,}", units.with_unit(batch.ns, units.TIME_UNITS),
            f"{middle} ({low} to {high})",
            units.with_prefix(float(each.usd[0])),
            f"{units.with_prefix(count * each.chosen.way.engines * batch.watts)}W",
        )  # fmt: skip


def _parts(found: OptionComparison):
    for part in found.sides[0].batch.parts_ns:
        cells = [each.batch.parts_ns[part] for each in found.sides]
        if any(cells):
            yield part.replace("_", " "), [units.with_unit(ns, units.TIME_UNITS) if ns else "–" for ns in cells]
