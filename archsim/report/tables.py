"""The tables of the page, as plain rows of text for the template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from archsim.report.units import (
    NO_BREAK,
    RATE_UNITS,
    TIME_UNITS,
    Unit,
    factor,
    percent,
    prefixed,
    scaled,
    signed_percent,
    significant,
    unit_of,
)
from archsim.runs.columns import Column, shown_columns
from archsim.specs.assumptions import ASSUMPTIONS, meaning_of, shipped_sets

if TYPE_CHECKING:
    from archsim.report.data import Report, RunRow

CLOSE = 0.01  # policies within this relative difference of throughput are listed together


@dataclass(frozen=True)
class Cell:
    """Text, and its sort key."""

    text: str
    order: float | str


@dataclass(frozen=True)
class ShownColumn:
    """A column of the results table; ``units``: one is chosen for the whole column and stated in its header."""

    header: str
    name: str
    meaning: str
    units: tuple[Unit, ...]
    write: Callable[[float], str]

    def shown(self, value: float) -> str:
        """One value with its unit."""
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
    "bytes": (((1.0, "B"),), prefixed),
    "byte hops": (((1.0, "B · hops"),), prefixed),
    "message hops": (_PLAIN, prefixed),
    "events": (_PLAIN, prefixed),
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
        if all(run.get(column.name) is None for run in report.runs):
            continue
        unit = unit_of([run.get(column.name) or 0.0 for run in report.runs], column.units)
        chosen.append((column, unit[0]))
        headers.append(
            {"text": f"{column.header} [{unit[1]}]" if unit[1] else column.header, "meaning": column.meaning}
        )
    rows = []
    for run in report.runs:
        place = run.place
        cells = [Cell(place.system, place.system), Cell(place.model, place.model), Cell(_count(run.batch), run.batch)]
        cells += [Cell(run.policy, run.policy), Cell(place.assumptions, place.assumptions)]
        cells += [_cell(run.get(column.name), column, worth) for column, worth in chosen]
        rows.append(cells)
    return headers, rows


def _cell(value: float | None, column: ShownColumn, worth: float) -> Cell:
    if value is None:
        return Cell("–", -1.0)
    return Cell(column.write(value / worth), value)


def overview(report: Report) -> list[dict[str, Any]]:
    """For every place, the fastest policies at the largest batch (all within CLOSE), and the bottleneck of the
    first.
    """
    rows = []
    for place in report.places():
        runs = [run for run in report.at(place) if run.get("throughput_tokens_per_s")]
        if not runs:
            continue
        batch = max(run.batch for run in runs)
        runs = [run for run in runs if run.batch == batch]
        highest = max(run["throughput_tokens_per_s"] for run in runs)
        fastest = [run for run in runs if run["throughput_tokens_per_s"] >= highest * (1 - CLOSE)]
        best = fastest[0]
        rows.append({
            "place": place, "batch": _count(batch),
            "policies": ", ".join(run.policy for run in fastest),
            "throughput": _shown(best, "tokens_per_s", RATE_UNITS),
            "step": _shown(best, "decode_step_ns", TIME_UNITS),
            "token": _shown(best, "decode_batch_token_ns", TIME_UNITS),
            "mfu": _used(best, "mfu"),
            "hbm": _used(best, "hbm_bandwidth_utilisation"),
            "over": _roofline(best), "gain": _over("ep", best), "distance": _distance(best),
            "speedup": _over("base", best), "bound": _bound(best),
        })
    return rows


def _shown(run: RunRow, column: str, units: tuple[Unit, ...]) -> str:
    value = run.get(column)
    return "not recorded" if value is None else scaled(value, units)


def _used(run: RunRow, column: str) -> str:
    share = run.get(column)
    return "not recorded" if share is None else percent(share, 1)


def _roofline(run: RunRow) -> str:
    over = run.get("over_roofline")
    return "not recorded" if over is None else factor(over)


def _distance(run: RunRow) -> str:
    """Load of the busiest die over its two bounds."""
    load, bounds = run.get("load_max_over_mean"), [run.get(f"load_ceiling_{name}") for name in ("placement", "slots")]
    if not load or not all(bounds):
        return "not recorded"
    return " / ".join(factor(load / bound) for bound in bounds if bound)


def _over(policy: str, run: RunRow) -> str:
    speedup = run.get(f"speedup_vs_{policy}")
    return f"no {policy} run" if speedup is None else factor(speedup)


def _bound(run: RunRow) -> str:
    from archsim.report.figures import BOUND_NAMES

    shares = {name: run.get(column) or 0.0 for column, (_, name) in BOUND_NAMES.items()}
    name = max(shares, key=shares.__getitem__)
    return f"{name}, {percent(shares[name])} of the time" if shares[name] else "not recorded"


def assumptions(report: Report) -> dict[str, list[dict[str, Any]]]:
    """Every field with its value in each set and the meaning; ``differ``: fields in which sets differ; ``same``: the
    others.
    """
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
    """Label of an assumption set → the origin of its values."""
    shipped = shipped_sets()
    return {
        label: shipped[spec.set].origin if spec.set in shipped else "defined by the experiment"
        for label, spec in report.assumptions.items()
    }


def ties(report: Report) -> list[dict[str, str]]:
    """Change of each run when events at equal times are processed in (time, sequence) order; empty without such
    runs.
    """
    rows = []
    for ordered, heaped in report.tie_pairs():
        for run in report.runs:
            if run.place.assumptions != heaped:
                continue
            other = report.find(replace(run.place, assumptions=ordered), run.batch, run.policy)
            if other is not None:
                rows.append(_tie_row(run, other))
    return rows


def _tie_row(run: RunRow, other: RunRow) -> dict[str, str]:
    return {
        "system": run.place.system,
        "model": run.place.model,
        "batch": _count(run.batch),
        "policy": run.policy,
        "heapq": scaled(run["decode_ns"], TIME_UNITS),
        "sequence": scaled(other["decode_ns"], TIME_UNITS),
        "change": signed_percent(other["decode_ns"] / run["decode_ns"] - 1),
    }
