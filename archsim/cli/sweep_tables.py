"""The tables that ``archsim sweep`` prints: runs and points before they run, speed-ups and best points after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archsim.base.answer import Grid
from archsim.base.errors import ArchsimError
from archsim.show.units import significant
from archsim.specs.plan import SweepPlan

if TYPE_CHECKING:
    from archsim.runs.plan import Selection
    from archsim.runs.results import Results
    from archsim.runs.run import Run
    from archsim.specs.plan import Point
from archsim.cli.printing import console, grid, natural_width, print_parts

_LISTED, _BEST = 20, 10
_OF_RUNS = ("system", "model", "batch", "assumptions")
_OWN_COLUMN = ("model", "workload.batch", "policy")  # axes that tables of points have a column for anyway
_GB = 1e9


def print_rooms(runs: Sequence[Run]) -> None:
    """Runs with their fullest die's memory, then what is not counted. ArchsimError if any does not fit."""
    from archsim.runs.feasibility import rooms, uncounted_notes

    every, rows = list(rooms(runs)), []
    for room in every:
        run, bound = room.run, room.fit.bound_bytes
        parts = (room.experts_bytes, room.attention_bytes, room.kv_bytes, bound, bound - room.demand_bytes)
        sizes = ("–" if size is None else f"{size / _GB:.1f}" for size in parts)
        fits = "no" if room.problem else "yes" if room.bounded else "not limited"
        names = (run.system.name, run.model.name, str(run.batch), run.policy.name, run.assumptions.label)
        rows.append((*names, str(room.fullest_die), *sizes, fits))
    heads = ("fullest die", "experts GB", "attention GB", "KV GB, activations", "bound GB", "left GB", "fits")
    table = Grid(("system", "model", "batch", "policy", "assumptions"), rows, heads)
    print_parts([table, *uncounted_notes(every)])
    problems = dict.fromkeys(room.problem for room in every if room.problem)
    if problems:
        raise ArchsimError("\n".join(problems))


def print_points(selection: Selection) -> None:
    """The first points that run."""
    plan = selection.plan
    shown, rows = selection.kept[:_LISTED], []
    for number in shown:
        point = plan.point(number)
        model, policy, system = (point.variants[name].name for name in ("model", "policy", "system"))
        names = (str(number), model, str(point.batch), policy, system, point.assumptions.label)
        rows.append((*names, *_cells(plan, point)))
    heads = ("point", "model", "batch", "policy", "system", "assumptions", *_heads(plan))
    print_parts([Grid(heads, rows, least=4)])
    if len(shown) < len(selection.kept):
        left = len(selection.kept) - len(shown)
        print(f"{left:,} more points follow. `--point N` prints point N as an experiment.")


def print_dropped(selection: Selection, verb: str = "run") -> None:
    """How many points run (``verb``: ran, or would), and how many each constraint dropped."""
    kept, every = len(selection.kept), selection.plan.combinations
    asked = kept + selection.dropped.total
    if asked < every:
        error = (kept * (asked - kept) / asked) ** 0.5 / asked
        print(
            f"{asked:,} points were sampled and checked. Of these, {kept / asked:.0%} ± {2 * error:.0%} {verb}, and so "
            f"does about the same share of all {every:,}."
        )
    print(f"{kept:,} of {asked:,} points {verb}.")
    for text, count in selection.dropped.by_constraint.items():
        print(f"  {count:,} are dropped by `{text}`")
    if selection.dropped.repeats:
        print(f"  {selection.dropped.repeats:,} repeat another point")


def print_speedups(results: Results, policies: Iterable[str]) -> None:
    """Decode throughput of every policy over ep, or base; in tokens/s of one policy, or without either."""
    from archsim.runs.results import REFERENCES

    rows = results.runs.rows
    ran = {row["policy"] for row in rows}
    reference = next((name for name in REFERENCES if name in ran and len(ran) > 1), None)
    table = _speedups(rows, _OF_RUNS, policies, reference)
    if natural_width(table) > console().width:
        varying = [name for name in _OF_RUNS if len({row[name] for row in rows}) > 1]
        table = _speedups(rows, varying or ["model"], policies, reference)
    if reference:
        print(f"Decode throughput of MoE layers relative to {reference}:")
    console().print(table)


def _speedups(rows: Iterable[Mapping[str, Any]], names: Sequence[str], policies: Iterable[str], reference: str | None):
    table = grid(*names, numbers=tuple(policies))
    cells: dict[tuple, dict[str, str]] = {}
    for row in rows:
        throughput = row["tokens_per_s"]
        speedup = row[f"speedup_vs_{reference}"] if reference else None
        low, high = (row.get(f"speedup_vs_{reference}_{end}") for end in ("p05", "p95"))
        spread = f" ({low:.2f}–{high:.2f})" if low and high and low != high else ""
        shown = f"{speedup:.2f}×{spread}" if speedup else f"{throughput:,.0f} tokens/s" if throughput else "–"
        cells.setdefault(tuple(str(row[name]) for name in names), {})[row["policy"]] = shown
    for combination, by_policy in cells.items():
        table.add_row(*combination, *by_policy.values())
    return table


def print_best(plan: SweepPlan, folder: Path) -> None:
    from pyarrow import parquet

    names = ["point", "model", "batch", "policy", "tokens_per_s", "decode_step_ns", "die_utilisation"]
    table = parquet.read_table(folder / "results.parquet", columns=names)
    table = table.sort_by([("tokens_per_s", "descending"), ("point", "ascending")])
    rows = []
    for row in table.slice(0, _BEST).to_pylist():
        point = plan.point(row["point"])
        rate, step_ns = row["tokens_per_s"], row["decode_step_ns"]
        numbers = ("–", "–") if rate is None else (f"{rate:,.0f}", significant(step_ns / 1e6))
        parts = str(point.index), point.variants["model"].name, str(point.batch), point.variants["policy"].name
        rows.append((*parts, *numbers, f"{row['die_utilisation']:.0%}", *_cells(plan, point)))
    heads, numbered = ("point", "model", "batch", "policy"), ("tokens/s", "ms per decode step", "die use")
    said = "The points with the highest decode throughput, scaled to all MoE layers of the model:"
    print_parts([said, Grid(heads, rows, numbered, more=_heads(plan), least=7)])


def print_wafers(plan: SweepPlan, folder: Path) -> None:
    from pyarrow import parquet

    from archsim.questions.wafers import distributions
    from archsim.questions.wafers_page import COLUMNS, cells_of

    rows = parquet.read_table(folder / "results.parquet", columns=["point", "tokens_per_s", "cost_usd"]).to_pylist()
    found = [(each.name, *cells_of(each)) for each in distributions(plan, rows)]
    print_parts([Grid(("sampled machines",), found, COLUMNS, least=6)])


def _heads(plan: SweepPlan) -> list[str]:
    """The axes without their roots, to keep columns narrow; without those that have a column of their own."""
    return [".".join(axis.path[1:]) or axis.name for axis in plan.sweep.axes if axis.name not in _OWN_COLUMN]


def _cells(plan: SweepPlan, point: Point) -> list[str]:
    """The values of the axes in `_heads`."""
    return [value for name, value in plan.shown(point).items() if name not in _OWN_COLUMN]
