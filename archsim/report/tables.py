"""The tables of the page, as plain rows of text for the template."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from archsim.report.data import Report, Run
from archsim.report.figures import BOUND_NAMES
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
from archsim.specs.assumptions import ASSUMPTIONS, shipped_sets

CLOSE = 0.01  # relative difference of throughput below which strategies are named together


@dataclass(frozen=True)
class Cell:
    """Text, and the value that it is sorted by."""

    text: str
    order: float | str


@dataclass(frozen=True)
class Column:
    """A column of the results table; ``units``: one is chosen for the whole column and named in its header."""

    header: str
    name: str
    units: tuple[Unit, ...] = ((1.0, ""),)
    meaning: str = ""
    write: Callable[[float], str] = significant

    def shown(self, value: float) -> str:
        """One value with its unit."""
        worth, unit = unit_of([value], self.units)
        written = self.write(value / worth)
        return f"{written}{'' if not unit or written[-1:].isalpha() or unit == '×' else NO_BREAK}{unit}"


def _count(value: float) -> str:
    return f"{value:,.0f}"


_PERCENT = ((0.01, "%"),)
_BYTES = ((1.0, "B"),)
COLUMNS = (
    Column("decode steps", "decode_steps", write=_count),
    Column("prefill", "prefill_ns", TIME_UNITS, "0 where no prefill ran"),
    Column("decode", "decode_ns", TIME_UNITS),
    Column("decode, low", "decode_ns_low", TIME_UNITS, "GEMMs at the 5 % residual of their calibration"),
    Column("decode, high", "decode_ns_high", TIME_UNITS, "GEMMs at the 95 % residual of their calibration"),
    Column("GEMMs extrapolated", "gemm_extrapolated", _PERCENT, "share of GEMM time at sizes that were not measured"),
    Column("copies extrapolated", "copies_extrapolated", _PERCENT, "share of slices of a size whose copies were not measured"),
    Column("throughput", "throughput_tokens_per_s", RATE_UNITS),
    Column("speed-up over base", "speedup_vs_base", ((1.0, "×"),)),
    Column("hops, messages", "hop_messages", meaning="sum of Manhattan distances", write=prefixed),
    Column("hops, bytes", "hop_bytes", ((1.0, "B · hops"),), "sum of sizes times Manhattan distances", prefixed),
    Column("local HBM reads", "local_hbm_read_bytes", _BYTES, write=prefixed),
    Column("remote HBM reads", "remote_hbm_read_bytes", _BYTES, write=prefixed),
    Column("HBM writes of copies", "local_hbm_write_bytes", _BYTES, write=prefixed),
    Column("activations between dies", "activation_bytes", _BYTES, write=prefixed),
    Column("die utilisation", "die_utilisation", _PERCENT, "compute array, mean over dies"),
    Column("load, max over mean", "load_max_over_mean", ((1.0, "×"),), "tokens of dies"),
    Column("copies on the fullest die", "replicas_max_bytes_per_die", _BYTES, write=prefixed),
    Column("overhead of decisions", "decision_overhead_percent", ((1.0, "%"),), "exposed time over the rest of each step, mean"),
    Column("events", "events", write=prefixed),
)


def results(report: Report) -> tuple[list[dict[str, str]], list[list[Cell]]]:
    """(headers with units and meanings, rows) of every run; columns that no run has are left out."""
    headers = [{"text": name, "meaning": ""} for name in ("system", "model", "batch", "policy", "assumptions")]
    chosen = []
    for column in COLUMNS:
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


def _cell(value: float | None, column: Column, worth: float) -> Cell:
    if value is None:
        return Cell("–", -1.0)
    return Cell(column.write(value / worth), value)


def overview(report: Report) -> list[dict[str, Any]]:
    """For every place, the fastest strategies at the largest batch (all within CLOSE), and what bounds the first of them."""
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
        speedup = best.get("speedup_vs_base")
        rows.append(
            {
                "place": place,
                "batch": _count(batch),
                "policies": ", ".join(run.policy for run in fastest),
                "throughput": scaled(best["throughput_tokens_per_s"], RATE_UNITS),
                "speedup": "no base run" if speedup is None else factor(speedup),
                "bound": _bound(best),
            }
        )
    return rows


def _bound(run: Run) -> str:
    shares = {name: run.get(column) or 0.0 for column, (_, name) in BOUND_NAMES.items()}
    name = max(shares, key=shares.__getitem__)
    return f"{name}, {percent(shares[name])} of the time" if shares[name] else "not measured"


def assumptions(report: Report) -> dict[str, list[dict[str, Any]]]:
    """Every field with its value in each set and what that means; ``differ`` where sets differ, ``same`` the others."""
    split: dict[str, list[dict[str, Any]]] = {"differ": [], "same": []}
    specs = list(report.assumptions.values())
    for field, meanings in ASSUMPTIONS.items():
        values = [getattr(spec, field) for spec in specs]
        row = {
            "field": field,
            "values": values,
            "meanings": {value: meanings[value] for value in dict.fromkeys(values)},
        }
        split["differ" if len(set(values)) > 1 else "same"].append(row)
    return split


def origins(report: Report) -> dict[str, str]:
    """Label of an assumption set → where its values come from."""
    shipped = shipped_sets()
    return {
        label: shipped[spec.set].origin if spec.set in shipped else "the experiment's own"
        for label, spec in report.assumptions.items()
    }


def ties(report: Report) -> list[dict[str, str]]:
    """How far runs move when events at equal times are taken in (time, sequence) order; empty if that was not tried."""
    rows = []
    for ordered, heaped in report.tie_pairs():
        for run in report.runs:
            if run.place.assumptions != heaped:
                continue
            other = report.find(replace(run.place, assumptions=ordered), run.batch, run.policy)
            if other is not None:
                rows.append(_tie_row(run, other))
    return rows


def _tie_row(run: Run, other: Run) -> dict[str, str]:
    return {
        "system": run.place.system,
        "model": run.place.model,
        "batch": _count(run.batch),
        "policy": run.policy,
        "heapq": scaled(run["decode_ns"], TIME_UNITS),
        "sequence": scaled(other["decode_ns"], TIME_UNITS),
        "change": signed_percent(other["decode_ns"] / run["decode_ns"] - 1),
    }
