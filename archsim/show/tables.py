"""The results in a report's folder as its pages show them, and the tables of the page, as plain rows of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from archsim.base.causes import CAUSES
from archsim.runs.columns import shown_columns
from archsim.runs.finished import Column
from archsim.runs.results import Row
from archsim.show.report import Report
from archsim.show.units import (
    NO_BREAK,
    RATE_UNITS,
    TIME_UNITS,
    Unit,
    factor,
    percent,
    signed_percent,
    significant,
    unit_of,
    with_prefix,
    with_unit,
)
from archsim.specs.assumptions import ASSUMPTIONS, meaning_of, shipped_sets

CLOSE = 0.01  # policies within this relative difference of throughput are listed together
BOUNDS = {f"bound_{cause.column}": about.label for cause, about in CAUSES.items()}  # column → cause, as pages call it


def bound_shares(run: Row) -> dict[str, float]:
    """Cause, as pages call it → its share of the critical path; 0 where it is not known."""
    return {name: run.get(column) or 0.0 for column, name in BOUNDS.items()}


class Cell(NamedTuple):
    """Text, and its sort key."""

    text: str
    order: float | str


class ShownColumn(NamedTuple):
    """A column of the results table; ``units``: one is chosen for the whole column and stated in its header."""

    header: str
    name: str
    meaning: str
    units: tuple[Unit, ...]
    write: Callable[[float], str]

    def shown(self, value: float) -> str:
        worth, unit = unit_of([value], self.units)
        written = self.write(value / worth)
        return f"{written}{'' if not unit or written[-1:].isalpha() or unit == '×' else NO_BREAK}{unit}"


def _count(value: float) -> str:
    return f"{value:,.0f}"


_PLAIN = ((1.0, ""),)
# Unit of a results column → how its values are written.
_WRITTEN: dict[str, tuple[tuple[Unit, ...], Callable[[float], str]]] = {
    "ns": (TIME_UNITS, significant),
    "tokens/s": (RATE_UNITS, significant),
    "bytes": (((1.0, "B"),), with_prefix),
    "byte hops": (((1.0, "B · hops"),), with_prefix),
    "message hops": (_PLAIN, with_prefix),
    "events": (_PLAIN, with_prefix),
    "share": (((0.01, "%"),), significant),
    "percent": (((1.0, "%"),), significant),
    "W": (((1e6, "MW"), (1e3, "kW"), (1.0, "W")), significant),
    "C": (((1.0, "C"),), significant),
    "×": (((1.0, "×"),), significant),
    "steps": (_PLAIN, _count),
}


def _as_shown(column: Column, header: str) -> ShownColumn:
    return ShownColumn(header, column.name, column.meaning, *_WRITTEN.get(column.unit, (_PLAIN, significant)))


COLUMNS = tuple(_as_shown(each, each.header) for each in shown_columns())


def results(report: Report) -> tuple[list[dict[str, str]], list[list[Cell]]]:
    """(headers with units and meanings, rows) of every run; columns empty in all runs are left out."""
    headers = [{"text": name, "meaning": ""} for name in ("system", "model", "batch", "policy", "assumptions")]
    chosen = []
    for column in (*COLUMNS, *(_as_shown(each, each.name) for each in report.own)):
        if all(run[column.name] is None for run in report.runs):
            continue
        unit = unit_of([run[column.name] or 0.0 for run in report.runs], column.units)
        chosen.append((column, unit[0]))
        headers.append(
            {"text": f"{column.header} [{unit[1]}]" if unit[1] else column.header, "meaning": column.meaning}
        )
    rows = []
    for run in report.runs:
        cells = [Cell(run["system"], run["system"]), Cell(run["model"], run["model"])]
        cells += [Cell(_count(run["batch"]), run["batch"]), Cell(run["policy"], run["policy"])]
        cells += [Cell(run["assumptions"], run["assumptions"])]
        for column, worth in chosen:
            value = run[column.name]
            cells.append(Cell("–", -1.0) if value is None else Cell(column.write(value / worth), float(value)))
        rows.append(cells)
    return headers, rows


def fastest(runs: Iterable[Row]) -> list[Row]:
    """Of runs that decoded, those within CLOSE of the highest throughput, in their order."""
    rates = [(run["throughput_tokens_per_s"], run) for run in runs if run["throughput_tokens_per_s"]]
    highest = max((rate for rate, _ in rates), default=0.0)
    return [run for rate, run in rates if rate >= highest * (1 - CLOSE)]


def overview(report: Report) -> list[dict[str, Any]]:
    """For every place, policies within CLOSE of the fastest at the largest batch, and the first's bottleneck."""
    rows = []
    for place in report.places():
        runs = report.at(place)
        decoded = [run["batch"] for run in runs if run["throughput_tokens_per_s"]]
        if not decoded:
            continue
        batch = max(decoded)
        close = fastest(run for run in runs if run["batch"] == batch)
        best = close[0]
        shares = bound_shares(best)
        longest = max(shares, key=lambda name: shares[name])
        rows.append(
            {
                "place": place,
                "batch": _count(batch),
                "policies": ", ".join(run["policy"] for run in close),
                "throughput": _known(best["tokens_per_s"], lambda rate: with_unit(rate, RATE_UNITS)),
                "step": _known(best["decode_step_ns"], lambda ns: with_unit(ns, TIME_UNITS)),
                "over": _known(best["over_roofline"], factor),
                "gain": _known(best["speedup_vs_ep"], factor, "no ep run"),
                "speedup": _known(best["speedup_vs_base"], factor, "no base run"),
                "bound": f"{longest}, {percent(shares[longest])} of the time" if shares[longest] else "not recorded",
            }
        )
    return rows


def _known(value: float | None, write: Callable[[float], str], unknown: str = "not recorded") -> str:
    return unknown if value is None else write(value)


def assumptions(report: Report) -> dict[str, list[dict[str, Any]]]:
    """Fields with values in each set and meaning, by ``differ`` and ``same``."""
    split: dict[str, list[dict[str, Any]]] = {"differ": [], "same": []}
    specs = list(report.assumptions.values())
    for field, meanings in ASSUMPTIONS.items():
        values = [getattr(spec, field) for spec in specs]
        row = {
            "field": field,
            "values": values,
            "meanings": {value: meanings.get(value) or meaning_of(value) for value in dict.fromkeys(values)},
        }
        split["differ" if len(set(values)) > 1 else "same"].append(row)
    return split


def origins(report: Report) -> dict[str, str]:
    shipped = shipped_sets()
    return {
        label: shipped[spec.set].origin if spec.set in shipped else "defined by the experiment"
        for label, spec in report.assumptions.items()
    }


def ties(report: Report) -> list[dict[str, str]]:
    """Change of each run when events at equal times are taken in (time, sequence) order; empty without such runs."""
    rows = []
    for ordered, heaped in report.tie_pairs():
        for run in report.runs:
            if run["assumptions"] != heaped:
                continue
            if (other := report.beside(run, assumptions=ordered)) is not None:
                change = other["decode_ns"] / run["decode_ns"] - 1
                rows.append({name: run[name] for name in ("system", "model", "policy")} | {
                    "batch": _count(run["batch"]), "heapq": with_unit(run["decode_ns"], TIME_UNITS),
                    "sequence": with_unit(other["decode_ns"], TIME_UNITS), "change": signed_percent(change),
                })  # fmt: skip
    return rows
