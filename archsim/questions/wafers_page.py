"""A distribution over wafers as a picture, as rows of a page, and as a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from archsim.base import files, tables
from archsim.questions.wafers import BIN, BINS, FILE, QUANTILES, Wafers, _Row, distributions, is_drawn
from archsim.show import plots, units
from archsim.specs.plan import SweepPlan

COLUMNS = (
    "machines made", "work", "dies", *(f"p{each} tokens/s" for each in QUANTILES), "best tokens/s",
    *(f"≥ {1 - BIN * (each + 1):.0%} of the best" for each in range(BINS)), "slower", "USD a machine",
    "USD per token/s",
)  # fmt: skip


def cells_of(each: Wafers) -> list[str]:
    """The cells of a row, in the order of `COLUMNS`."""
    low, high = each.dies
    rates = (*each.tokens_per_s, each.best)
    return [
        str(each.made), units.percent(each.working / each.made), str(low) if low == high else f"{low}–{high}",
        *(f"{rate:,.0f}" for rate in rates), *map(units.percent, each.bins), f"{each.usd:,.0f}",
        units.significant(each.usd_per_token_per_s),
    ]  # fmt: skip


def csv_of(found: Sequence[Wafers]) -> str:
    """One row for every distribution."""
    names = list(dict.fromkeys(name for each in found for name in each.shared))
    quantiles = [f"p{each}_tokens_per_s" for each in QUANTILES]
    bins = [f"share_from_{round(100 * (1 - BIN * (each + 1)))}_percent" for each in range(BINS)]
    rows: list[list[Any]] = [[
        *names, "made", "working", "least_dies", "most_dies", *quantiles, "best_tokens_per_s", "mean_tokens_per_s",
        *bins, "share_slower", "usd", "usd_per_token_per_s",
    ]]  # fmt: skip
    for each in found:
        numbers = (*each.tokens_per_s, each.best, each.mean, *each.bins, each.usd, each.usd_per_token_per_s)
        shared = [each.shared.get(name, "") for name in names]
        rows.append([*shared, each.made, each.working, *each.dies, *(f"{value:.6g}" for value in numbers)])
    return tables.csv_text(rows)


def write_distributions(plan: SweepPlan, rows: Iterable[_Row], folder: Path) -> list[Wafers]:
    """Write `FILE` of a sweep over drawn machines; nothing of another sweep."""
    if not is_drawn(plan):
        return []
    found = distributions(plan, rows)
    files.write_text(folder / FILE, csv_of(found))
    return found


def section_of(found: Sequence[Wafers]) -> dict[str, Any] | None:
    """What the section of a page shows; None without distributions."""
    if not found:
        return None
    return {"columns": COLUMNS, "rows": [(each.name, cells_of(each)) for each in found], "drawing": drawing(found)}


def drawing(found: Sequence[Wafers]) -> plots.Ranges:
    rows = []
    for each in found:
        low, middle, high = each.tokens_per_s
        text = f"{low:,.0f} to {high:,.0f}, median {middle:,.0f}, best {each.best:,.0f}"
        rows.append({"name": each.name, "low": low, "value": middle, "high": high, "best": each.best, "tip": text})
    return plots.Ranges(
        question="How much do machines differ that were built to the same design?", rows=rows, y="name",
        x=plots.PlotAxis(
            "value", "tokens/s of sampled machines: 5th to 95th percentile, median, and the best", ".3~s", low=0.0
        ),
        low="low", high="high", best="best", tips=(("name", "machine"), ("tip", "tokens/s")),
    )  # fmt: skip
