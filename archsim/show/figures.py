"""Figures of a sweep, on pages, in notebooks and print: functions of rows of runs → `Figure`, None for nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base import causes, sums
from archsim.runs.results import Row
from archsim.show.plots import KINDS, Bars, Colours, Figure, Follows, PlotAxis, Points
from archsim.show.tables import bound_shares
from archsim.show.units import BYTE_UNITS, TIME_UNITS, factor, percent, significant, unit_of, with_unit

COLOURED = ("base", "ep", "allo", "pred", "allo+pred")
MORE_COLOURS = 4
TRAFFIC = {
    "local_hbm_read_bytes": ("--hbm", "reads by the die itself"),
    "remote_hbm_read_bytes": ("--from-link", "reads for other dies"),
    "local_hbm_write_bytes": ("--copy", "writes of cached copies"),
    "activation_bytes": ("--act", "activations"),
}
STEP_TRAFFIC = ("hbm_local_read_bytes", "hbm_remote_read_bytes", "hbm_write_bytes", "hbm_activation_bytes")  # of a step
MOVED = {
    "weight_bytes": "streamed weights",
    "dispatch_bytes": "dispatch",
    "combine_bytes": "combine",
    "replica_bytes": "moved and fetched replicas",
    "statistics_bytes": "statistics",
}  # classes of pairs.csv that matrices show; requests are as streamed weights, and small
MOST_MOMENTS = 40  # that the slider of a map goes through
MOST_SHOWN_IN_FRAMES = 10_000  # values of a metric of dies that a map has for its slider: half a MB with links
MOST_CELLS = 6000  # of all charts of steps, and of all matrices of pairs
FIRST = "physical"  # the set of assumptions that a figure begins with, where it was run
LEAST = 3  # percent of a step from which a cause is named


def policy_colours(policies: Iterable[str]) -> Colours:
    """A colour of its own for each of the five known policies, one of a few for others."""
    names = list(dict.fromkeys(policies))
    known = {name: f"--p{at}" for at, name in enumerate(COLOURED)}
    others = [name for name in names if name not in COLOURED]
    more = {name: f"--p{len(COLOURED) + at % MORE_COLOURS}" for at, name in enumerate(others)}
    return Colours("policy", {name: (known | more)[name] for name in names})


def cause_colours(field: str = "cause") -> Colours:
    return Colours(field, {about.label: about.colour for about in causes.CAUSES.values()})


def of_column(
    rows: Sequence[Row],
    column: str,
    question: str,
    title: str,
    write: Callable[[float], str] = factor,
    reference: float | None = None,
    worth: float = 1.0,
    log: bool = False,
) -> Bars | None:
    """Bars of a column for every run, with whiskers of ``COLUMN_low`` and ``COLUMN_high``, or the central 90 % of
    samples. ``worth``: of the unit of the title. None where no run has a value.
    """
    known = [row for row in rows if row.get(column) is not None]
    if not known:
        return None
    low, high = f"{column}_low", f"{column}_high"
    spread = all(row.get(low) is not None and row.get(high) is not None for row in known)
    if any(row.get(f"{column}_p05") is not None for row in known):
        low, high, spread = f"{column}_p05", f"{column}_p95", True
        title += " (line: central 90 % of samples)"
    several = len({row["batch"] for row in known}) > 1
    shown = []
    for row in known:
        label = write(row[column])
        ends = [row[column] if row[each] is None else row[each] for each in (low, high)] if spread else []
        more = {"low": ends[0] / worth, "high": ends[1] / worth} if spread else {}
        more |= {"begin": 1.0} if log else {}
        shown.append(run_names(row, several) | {"value": row[column] / worth, "label": label} | more)
    return Bars(
        question=question, rows=shown, x=PlotAxis("value", title, log=log), y="name", panel="place",
        colours=policy_colours(row["policy"] for row in rows), filters=filters_of(known), reference=reference,
        begin="begin" if log else "", low="low" if spread else "", high="high" if spread else "",
        tips=(*_RUN_TIPS, ("label", title)),
    )  # fmt: skip


_RUN_TIPS = (
    ("policy", "policy"),
    ("batch", "batch"),
    ("model", "model"),
    ("system", "system"),
    ("assumptions", "assumptions"),
)


def run_names(row: Row, several: bool) -> dict[str, Any]:
    """The fields that choose and name a run. ``several``: batches, each of which has a panel."""
    own = {name: row[name] for name in ("assumptions", "system", "model", "batch", "policy")}
    batch = f"batch {row['batch']:,}: " if several else ""
    return own | {"place": f"{batch}{row['model']} on {row['system']}, {row['assumptions']}", "name": row["policy"]}


def filters_of(rows: Sequence[Row], one: bool = False, policy: bool = False) -> dict[str, Any]:
    """Fields in which runs differ; ``one``: a value of each is chosen, of batches the largest."""
    names = ("assumptions", "system", "model", "batch", *(("policy",) if policy else ()))
    several = [name for name in names if len({row[name] for row in rows}) > 1]
    if not one:
        labels = dict.fromkeys(row["assumptions"] for row in rows)
        first = next((label for label in labels if label.startswith(FIRST)), list(labels)[-1])
        return {name: first if name == "assumptions" else None for name in several}
    first = filters_of(rows)
    return {
        name: max(row["batch"] for row in rows) if name == "batch" else first.get(name) or rows[0][name]
        for name in several
    }


# Part of a whole iteration → its colour and its name; columns iteration_PART_ns.
ITERATION = {
    "experts": ("--p2", "experts"), "transfers": ("--act", "dispatch and combine"), "attention": ("--hbm", "attention"),
    "projections": ("--p1", "projections of attention"), "dense": ("--p3", "dense layers, router, norms"),
    "all_reduce": ("--from-link", "all-reduces"), "head": ("--p4", "LM head and sampling"), "host": ("--copy", "host"),
}  # fmt: skip


def iterations(rows: Sequence[Row]) -> Bars | None:
    """The time of a whole decode iteration, part after part; None where no run has one."""
    known = [row for row in rows if row.get("iteration_ns")]
    if not known:
        return None
    several = len({row["batch"] for row in known}) > 1
    worth, unit = unit_of([row["iteration_ns"] for row in known], TIME_UNITS)
    parts = [
        run_names(row, several) | {"value": ns / worth, "part": name, "tip": with_unit(ns, TIME_UNITS), "label": ""}
        for row in known
        for part, (_, name) in ITERATION.items()
        if (ns := row[f"iteration_{part}_ns"])
    ]
    return Bars(
        question="How long does a whole decode iteration take, and what takes it?", rows=parts, y="name",
        panel="place", x=PlotAxis("value", f"time of a whole decode iteration, {unit}"),
        colours=Colours("part", {name: colour for colour, name in ITERATION.values()}), filters=filters_of(known),
        tips=(*_RUN_TIPS, ("part", "part"), ("tip", "time")),
    )  # fmt: skip


def gains(rows: Sequence[Row]) -> Bars | None:
    """Decode throughput relative to ``ep``; None if no run of another policy has an ``ep`` beside it."""
    if not _compares(rows, "speedup_vs_ep", "ep"):
        return None
    title = "decode throughput relative to ep, ×"
    return of_column(
        rows, "speedup_vs_ep", "How much faster than expert parallelism is each policy?", title, reference=1.0
    )


def _compares(rows: Sequence[Row], column: str, reference: str) -> bool:
    """Whether a run of another policy has a value: bars of 1.00× compare nothing."""
    return any(row.get(column) for row in rows if row["policy"] != reference)


def speedups(rows: Sequence[Row]) -> Bars | None:
    """Decode throughput relative to ``base``; None if no run of another policy has a ``base`` beside it."""
    if not _compares(rows, "speedup_vs_base", "base"):
        return None
    title = "decode throughput relative to base, ×"
    return of_column(rows, "speedup_vs_base", "How much faster than base is each policy?", title, reference=1.0)


def throughput(rows: Sequence[Row]) -> Bars | None:
    values = [row["tokens_per_s"] for row in rows if row.get("tokens_per_s")]
    worth, unit = unit_of(values, ((1e6, "M tokens/s"), (1e3, "k tokens/s"), (1.0, "tokens/s")))
    question = "How many tokens per second does each run decode?"
    return of_column(
        rows, "tokens_per_s", question, f"decode throughput, {unit}", lambda value: significant(value / worth),
        worth=worth,
    )  # fmt: skip


def hops(rows: Sequence[Row]) -> Bars | None:
    """Hops of ``base`` over hops of the policy, on a logarithmic axis."""
    place = ("assumptions", "system", "model", "batch")
    base = {tuple(row[name] for name in place): row.get("hop_messages") for row in rows if row["policy"] == "base"}
    found = []
    for row in rows:
        of_base, own = base.get(tuple(row[name] for name in place)), row.get("hop_messages")
        found.append({**row, "hop_reduction": of_base / own if of_base and own else None})
    return of_column(
        found, "hop_reduction", "How much less far does traffic travel than under base?", "hops of base ÷ hops, ×",
        reference=1.0, log=True,
    )  # fmt: skip


def imbalance(rows: Sequence[Row]) -> Bars | None:
    """Tokens of the most loaded die over the mean."""
    question = "How evenly are the dies loaded?"
    return of_column(
        rows, "load_max_over_mean", question, "tokens of the most loaded die over the mean, ×", reference=1.0
    )


def replicas(rows: Sequence[Row]) -> Bars | None:
    values = [row.get("replicas_max_bytes_per_die") or 0 for row in rows]
    if not any(values):
        return None
    worth, unit = unit_of(values, BYTE_UNITS)
    return of_column(
        rows, "replicas_max_bytes_per_die", "How much memory do copies of experts take?",
        f"copies on the most filled die, {unit}", lambda value: with_unit(value, BYTE_UNITS) if value else "none",
        worth=worth,
    )  # fmt: skip


def energy(rows: Sequence[Row]) -> Bars | None:
    return of_column(
        rows, "energy_per_token_j", "How much energy does a token take?", "energy per token, J", significant
    )


def limits(rows: Sequence[Row]) -> Bars | None:
    """Share of a step for which each cause is on the critical path."""
    parts, known = [], [row for row in rows if any(bound_shares(row).values())]
    several = len({row["batch"] for row in known}) > 1
    for row in known:
        shares = bound_shares(row)
        longest = max(shares, key=shares.__getitem__)
        parts += [
            run_names(row, several) | {"value": 100 * share, "cause": name, "label": longest, "tip": percent(share, 1)}
            for name, share in shares.items()
            if share
        ]
    if not parts:
        return None
    return Bars(
        question="What does a step spend its time on?", rows=parts, y="name", panel="place",
        x=PlotAxis("value", "share of the critical path, %", high=125.0, ticks=(0, 25, 50, 75, 100)),
        colours=cause_colours(), filters=filters_of(known), tips=(*_RUN_TIPS, ("cause", "cause"), ("tip", "share")),
    )  # fmt: skip


def critical_path(rows: Sequence[Row]) -> Bars | None:
    """The time of a decode step, cause after cause: a waterfall for every policy."""
    known = [row for row in rows if row.get("decode_step_ns") and any(bound_shares(row).values())]
    if not known:
        return None
    worth, unit = unit_of([row["decode_step_ns"] for row in known], TIME_UNITS)
    parts = []
    for row in known:
        at, step = 0.0, row["decode_step_ns"]
        of_run = run_names(row, several=False) | {"panel": row["policy"]}
        shares = bound_shares(row)
        total = sums.sum(shares.values())
        for name, share in shares.items():
            ns = step * share / total
            if ns:
                ends = {"begin": at / worth, "value": (at + ns) / worth}
                parts.append(
                    of_run | ends | {"cause": name, "label": with_unit(ns, TIME_UNITS), "share": percent(ns / step, 1)}
                )
                at += ns
    return Bars(
        question="Where does the time of a decode step go?", rows=parts, y="cause", begin="begin", panel="panel",
        x=PlotAxis("value", f"time since the step began, along the critical path, {unit}"), colours=cause_colours(),
        follows=Follows("cause", worth, TIME_UNITS, mean=True), filters=filters_of(known, one=True),
        tips=(*_RUN_TIPS, ("cause", "cause"), ("label", "time"), ("share", "share")),
    )  # fmt: skip


def traffic(rows: Sequence[Row]) -> Bars | None:
    known = [row for row in rows if any(row.get(column) for column in TRAFFIC)]
    if not known:
        return None
    totals = [sums.sum(row.get(column) or 0.0 for column in TRAFFIC) for row in known]
    worth, unit = unit_of(totals, BYTE_UNITS)
    several = len({row["batch"] for row in known}) > 1
    parts = [
        run_names(row, several)
        | {
            "value": (row.get(column) or 0.0) / worth,
            "kind": name,
            "label": with_unit(total, BYTE_UNITS),
            "tip": with_unit(row[column], BYTE_UNITS),
        }
        for row, total in zip(known, totals, strict=True)
        for column, (_, name) in TRAFFIC.items()
        if row.get(column)
    ]
    return Bars(
        question="What does HBM read and write?", rows=parts, x=PlotAxis("value", f"HBM traffic of the run, {unit}"),
        y="name", panel="place", colours=Colours("kind", {name: colour for colour, name in TRAFFIC.values()}),
        follows=Follows("kind", worth, BYTE_UNITS, mean=False), filters=filters_of(known),
        tips=(*_RUN_TIPS, ("kind", "kind"), ("tip", "bytes")),
    )  # fmt: skip


OF_RUNS: Mapping[str, Callable[[Sequence[Row]], Figure | None]] = MappingProxyType({
    "iteration": iterations, "gain": gains, "speedup": speedups, "throughput": throughput, "limits": limits,
    "critical_path": critical_path,
    "load": imbalance, "traffic": traffic, "hops": hops, "copies": replicas, "energy": energy,
})  # fmt: skip
"""The figures that the table of runs suffices for, by their names in print and notebooks."""


def of_runs(name: str, rows: Sequence[Row]) -> Figure | None:
    """One of OF_RUNS, which knows its name; None where the rows have nothing to show."""
    found = OF_RUNS[name](rows)
    return None if found is None else replace(found, name=name)


CURVE = 200  # points of a distribution


class Line(NamedTuple):
    """``points``: (x, y)."""

    name: str
    points: Sequence[tuple[float, float]]


def lines_of(question: str, lines: Sequence[Line], x: str, y: str, dots: bool = False) -> Points:
    """Lines over one axis, each with its colour; points whose value is not finite are left out."""
    rows = [
        {"line": line.name, "x": float(at), "y": float(value), "tip": f"{value:,.4g}"}
        for line in lines for at, value in line.points if isfinite(value)
    ]  # fmt: skip
    colours = {line.name: KINDS[(at + 2) % len(KINDS)] for at, line in enumerate(lines)}
    return Points(
        question=question, rows=rows, x=PlotAxis("x", x), y=PlotAxis("y", y), lines=True, dots=dots,
        colours=Colours("line", colours), tips=(("line", "line"), ("x", x), ("tip", y)),
    )  # fmt: skip


def shares_below(name: str, question: str, title: str, times_ms: Mapping[str, Sequence[float] | np.ndarray]) -> Points:
    """The share of requests whose time is below a value, by that value: a line for each name."""
    share = np.linspace(0, 100, CURVE)
    values = {line: np.percentile(np.asarray(ms, float), share) for line, ms in times_ms.items()}
    lines = [Line(line, tuple(zip(each, share, strict=True))) for line, each in values.items()]
    return replace(lines_of(question, lines, title, "share of requests below, %"), name=name)
