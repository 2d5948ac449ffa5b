"""The figures of a sweep: on its page, in notebooks (`Results.plot`) and in print.

Every function takes the rows of the table of runs and returns a `Figure`, or None where the rows have nothing to show.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from archsim.base import causes, errors, sums, tables, units
from archsim.report.die_map import DieMap
from archsim.report.maps import Idle, MapMoment, MappedRun, die_map, ends_told, map_width, nodes_of
from archsim.report.plots import KINDS, Bars, Colours, Figure, MatrixFigure, PlotAxis, Points
from archsim.report.tables import BOUNDS, Panel, Report, bound_shares
from archsim.report.units import (
    BYTE_UNITS,
    TIME_UNITS,
    factor,
    interval,
    percent,
    scaled,
    significant,
    unit_of,
)
from archsim.runs import notes, plan
from archsim.runs.results import PARQUET, Results, Row
from archsim.specs.built import AsBuilt, places_of
from archsim.specs.library import MANIFEST
from archsim.specs.system import SystemSpec

# ---- names and colours

COLOURED = ("base", "ep", "allo", "pred", "allo+pred")
MORE_COLOURS = 4
TRAFFIC = {
    "local_hbm_read_bytes": ("--hbm", "reads by the die itself"),
    "remote_hbm_read_bytes": ("--from-link", "reads for other dies"),
    "local_hbm_write_bytes": ("--copy", "writes of cached copies"),
    "activation_bytes": ("--act", "activations"),
}
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
LEAST = 3  # percent of a step from which a cause is told


def policy_colours(policies: Iterable[str]) -> Colours:
    """A colour of its own for each of the five known policies, one of a few for others."""
    names = list(dict.fromkeys(policies))
    known = {name: f"--p{at}" for at, name in enumerate(COLOURED)}
    others = [name for name in names if name not in COLOURED]
    more = {name: f"--p{len(COLOURED) + at % MORE_COLOURS}" for at, name in enumerate(others)}
    return Colours("policy", {name: (known | more)[name] for name in names})


def cause_colours(field: str = "cause") -> Colours:
    """The colours of causes, by their names on pages."""
    return Colours(field, {about.label: about.colour for about in causes.CAUSES.values()})


# ---- runs


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
    """Bars of a column for every run, with whiskers where the rows have ``COLUMN_low`` and ``COLUMN_high``. ``worth``:
    of the unit of the title. None where no run has a value.
    """
    known = [row for row in rows if row.get(column) is not None]
    if not known:
        return None
    low, high = f"{column}_low", f"{column}_high"
    spread = all(row.get(low) is not None and row.get(high) is not None for row in known)
    several = len({row["batch"] for row in known}) > 1
    shown = []
    for row in known:
        label = write(row[column])
        more = {"low": row[low] / worth, "high": row[high] / worth} if spread else {}
        more |= {"begin": 1.0} if log else {}
        shown.append(_named(row, several) | {"value": row[column] / worth, "label": label} | more)
    return Bars(
        question=question,
        rows=shown,
        x=PlotAxis("value", title, log=log),
        y="name",
        panel="place",
        colours=policy_colours(row["policy"] for row in rows),
        filters=_filters(known),
        reference=reference,
        begin="begin" if log else "",
        low="low" if spread else "",
        high="high" if spread else "",
        tips=(*_RUN_TIPS, ("label", title)),
    )


_RUN_TIPS = (
    ("policy", "policy"),
    ("batch", "batch"),
    ("model", "model"),
    ("system", "system"),
    ("assumptions", "assumptions"),
)


def _named(row: Row, several: bool) -> dict[str, Any]:
    """The fields that choose and name a run. ``several``: batches, which the name of a bar tells."""
    own = {name: row[name] for name in ("assumptions", "system", "model", "batch", "policy")}
    name = f"{row['policy']} · {row['batch']:,}" if several else row["policy"]
    return own | {"place": f"{row['model']} on {row['system']}, {row['assumptions']}", "name": name}


def _filters(rows: Sequence[Row], one: bool = False, policy: bool = False) -> dict[str, Any]:
    """Fields in which runs differ; ``one``: a value of each is chosen, of batches the largest."""
    names = ("assumptions", "system", "model", "batch", *(("policy",) if policy else ()))
    several = [name for name in names if len({row[name] for row in rows}) > 1]
    if not one:
        labels = dict.fromkeys(row["assumptions"] for row in rows)
        first = next((label for label in labels if label.startswith(FIRST)), list(labels)[-1])
        return {name: first if name == "assumptions" else None for name in several}
    first = _filters(rows)
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
        _named(row, several) | {"value": ns / worth, "part": name, "told": scaled(ns, TIME_UNITS), "label": ""}
        for row in known
        for part, (_, name) in ITERATION.items()
        if (ns := row[f"iteration_{part}_ns"])
    ]
    return Bars(
        question="How long does a whole decode iteration take, and what takes it?",
        rows=parts,
        y="name",
        panel="place",
        x=PlotAxis("value", f"time of a whole decode iteration, {unit}"),
        colours=Colours("part", {name: colour for colour, name in ITERATION.values()}),
        filters=_filters(known),
        tips=(*_RUN_TIPS, ("part", "part"), ("told", "time")),
    )


def gains(rows: Sequence[Row]) -> Bars | None:
    """Decode throughput relative to ``ep``; None if no run has an ``ep`` beside it."""
    if not any(row.get("speedup_vs_ep") for row in rows):
        return None
    title = "decode throughput relative to ep, ×"
    return of_column(
        rows, "speedup_vs_ep", "How much faster than expert parallelism is each policy?", title, reference=1.0
    )


def speedups(rows: Sequence[Row]) -> Bars | None:
    """Decode throughput relative to ``base``."""
    title = "decode throughput relative to base, ×"
    return of_column(rows, "speedup_vs_base", "How much faster than base is each policy?", title, reference=1.0)


def throughput(rows: Sequence[Row]) -> Bars | None:
    """Tokens a second of every run."""
    values = [row["tokens_per_s"] for row in rows if row.get("tokens_per_s")]
    worth, unit = unit_of(values, ((1e6, "M tokens/s"), (1e3, "k tokens/s"), (1.0, "tokens/s")))
    question = "How many tokens a second does each run decode?"
    return of_column(
        rows,
        "tokens_per_s",
        question,
        f"decode throughput, {unit}",
        lambda value: significant(value / worth),
        worth=worth,
    )


def hops(rows: Sequence[Row]) -> Bars | None:
    """Hops of ``base`` over hops of the policy, on a logarithmic axis."""
    place = ("assumptions", "system", "model", "batch")
    base = {tuple(row[name] for name in place): row.get("hop_messages") for row in rows if row["policy"] == "base"}
    found = []
    for row in rows:
        of_base, own = base.get(tuple(row[name] for name in place)), row.get("hop_messages")
        found.append({**row, "hop_reduction": of_base / own if of_base and own else None})
    return of_column(
        found,
        "hop_reduction",
        "How much less far does traffic travel than under base?",
        "hops of base ÷ hops, ×",
        reference=1.0,
        log=True,
    )


def imbalance(rows: Sequence[Row]) -> Bars | None:
    """Tokens of the most loaded die over the mean."""
    question = "How evenly are the dies loaded?"
    return of_column(
        rows, "load_max_over_mean", question, "tokens of the most loaded die over the mean, ×", reference=1.0
    )


def replicas(rows: Sequence[Row]) -> Bars | None:
    """Peak bytes of copies on a die; None if no run created any."""
    values = [row.get("replicas_max_bytes_per_die") or 0 for row in rows]
    if not any(values):
        return None
    worth, unit = unit_of(values, BYTE_UNITS)
    return of_column(
        rows,
        "replicas_max_bytes_per_die",
        "How much memory do copies of experts take?",
        f"copies on the most filled die, {unit}",
        lambda value: scaled(value, BYTE_UNITS) if value else "none",
        worth=worth,
    )


def energy(rows: Sequence[Row]) -> Bars | None:
    """Energy a token, with its range."""
    return of_column(rows, "energy_per_token_j", "How much energy does a token take?", "energy a token, J", significant)


def limits(rows: Sequence[Row]) -> Bars | None:
    """Share of a step for which each cause is on the critical path."""
    parts, known = [], [row for row in rows if any(bound_shares(row).values())]
    several = len({row["batch"] for row in known}) > 1
    for row in known:
        shares = bound_shares(row)
        longest = max(shares, key=shares.__getitem__)
        parts += [
            _named(row, several) | {"value": 100 * share, "cause": name, "label": longest, "told": percent(share, 1)}
            for name, share in shares.items()
            if share
        ]
    if not parts:
        return None
    return Bars(
        question="What does a step spend its time on?",
        rows=parts,
        y="name",
        panel="place",
        x=PlotAxis("value", "share of the critical path, %", high=125.0, ticks=(0, 25, 50, 75, 100)),
        colours=cause_colours(),
        filters=_filters(known),
        tips=(*_RUN_TIPS, ("cause", "cause"), ("told", "share")),
    )


def critical_path(rows: Sequence[Row]) -> Bars | None:
    """The time of a decode step, cause after cause: a waterfall for every policy."""
    known = [row for row in rows if row.get("decode_step_ns") and any(bound_shares(row).values())]
    if not known:
        return None
    worth, unit = unit_of([row["decode_step_ns"] for row in known], TIME_UNITS)
    parts = []
    for row in known:
        at, step = 0.0, row["decode_step_ns"]
        of_run = _named(row, several=False) | {"panel": row["policy"]}
        shares = bound_shares(row)
        total = sums.sum(shares.values())
        for name, share in shares.items():
            ns = step * share / total
            if ns:
                ends = {"begin": at / worth, "value": (at + ns) / worth}
                parts.append(
                    of_run | ends | {"cause": name, "label": scaled(ns, TIME_UNITS), "share": percent(ns / step, 1)}
                )
                at += ns
    return Bars(
        question="Where does the time of a decode step go?",
        rows=parts,
        y="cause",
        begin="begin",
        panel="panel",
        x=PlotAxis("value", f"time since the step began, along the critical path, {unit}"),
        colours=cause_colours(),
        filters=_filters(known, one=True),
        tips=(*_RUN_TIPS, ("cause", "cause"), ("label", "time"), ("share", "share")),
    )


def traffic(rows: Sequence[Row]) -> Bars | None:
    """HBM bytes read and written, by kind."""
    known = [row for row in rows if any(row.get(column) for column in TRAFFIC)]
    if not known:
        return None
    totals = [sums.sum(row.get(column) or 0.0 for column in TRAFFIC) for row in known]
    worth, unit = unit_of(totals, BYTE_UNITS)
    several = len({row["batch"] for row in known}) > 1
    parts = [
        _named(row, several)
        | {
            "value": (row.get(column) or 0.0) / worth,
            "kind": name,
            "label": scaled(total, BYTE_UNITS),
            "told": scaled(row[column], BYTE_UNITS),
        }
        for row, total in zip(known, totals, strict=True)
        for column, (_, name) in TRAFFIC.items()
        if row.get(column)
    ]
    return Bars(
        question="What does HBM read and write?",
        rows=parts,
        x=PlotAxis("value", f"HBM traffic of the run, {unit}"),
        y="name",
        panel="place",
        colours=Colours("kind", {name: colour for colour, name in TRAFFIC.values()}),
        filters=_filters(known),
        tips=(*_RUN_TIPS, ("kind", "kind"), ("told", "bytes")),
    )


OF_RUNS: Mapping[str, Callable[[Sequence[Row]], Figure | None]] = MappingProxyType({
    "iteration": iterations, "gain": gains, "speedup": speedups, "throughput": throughput, "limits": limits,
    "critical_path": critical_path,
    "load": imbalance, "traffic": traffic, "hops": hops, "copies": replicas, "energy": energy,
})  # fmt: skip
"""The figures that the table of runs suffices for, by their names in print and notebooks."""

# ---- samples


def option_times(place: str, options: Sequence[tuple[str, tuple[float, float, float]]]) -> Bars:
    """Time of decode of every option (name, (5th percentile, median, 95th) in ns): bars with whiskers."""
    worth, unit = unit_of([ends[2] for _, ends in options], TIME_UNITS)
    rows = []
    for name, (low, middle, high) in options:
        told, *ends = interval(middle, low, high, TIME_UNITS)
        rows.append((name, (low / worth, middle / worth, high / worth), told, " to ".join(ends)))
    question = f"How long does decoding take, and how sure is that?{f' ({place})' if place else ''}"
    return intervals(question, f"time of decode, {unit}: the median, and the central 90 % as a line", rows)


def intervals(question: str, title: str, options: Sequence[tuple[str, tuple[float, float, float], str, str]]) -> Bars:
    """Options (name, (low, middle, high), label, range in words): bars with whiskers."""
    rows = [
        {"name": name, "low": low, "value": middle, "high": high, "label": label, "told": told}
        for name, (low, middle, high), label, told in options
    ]
    return Bars(
        question=question,
        rows=rows,
        x=PlotAxis("value", title),
        y="name",
        low="low",
        high="high",
        tips=(("name", "option"), ("label", "median"), ("told", "90 %")),
    )


def variance_shares(place: str, draws: Sequence[tuple[str, float, float, float, float]]) -> Bars | None:
    """The draws on which an answer depends. Each is (name, share alone, low, share with others, high), all from 0 to 1.
    None without draws.
    """
    rows = [
        {
            "name": name,
            "value": 100 * total,
            "low": 100 * low,
            "high": 100 * high,
            "label": percent(total),
            "told": f"alone {percent(first)}, with others {percent(total)}",
        }
        for name, first, low, total, high in draws
    ]
    return (
        Bars(
            question=f"Which numbers does the answer hang on?{f' ({place})' if place else ''}",
            rows=rows,
            y="name",
            x=PlotAxis(
                "value",
                "share of the variance of the answer, %, with two standard errors",
                high=118.0,
                ticks=(0, 25, 50, 75, 100),
            ),
            low="low",
            high="high",
            tips=(("name", "number"), ("told", "share")),
        )
        if rows
        else None
    )


# ---- lines

CURVE = 200  # points of a distribution


class Line(NamedTuple):
    """``points``: (x, y)."""

    name: str
    points: Sequence[tuple[float, float]]


def lines_of(question: str, lines: Sequence[Line], x: str, y: str, dots: bool = False) -> Points:
    """Lines over one axis, each with its colour; points whose value is not finite are left out."""
    rows = [
        {"line": line.name, "x": float(at), "y": float(value), "told": f"{value:,.4g}"}
        for line in lines for at, value in line.points if isfinite(value)
    ]  # fmt: skip
    colours = {line.name: KINDS[(at + 2) % len(KINDS)] for at, line in enumerate(lines)}
    return Points(
        question=question, rows=rows, x=PlotAxis("x", x), y=PlotAxis("y", y), lines=True, dots=dots,
        colours=Colours("line", colours), tips=(("line", "line"), ("x", x), ("told", y)),
    )  # fmt: skip


def shares_below(question: str, title: str, times_ms: Mapping[str, Sequence[float] | np.ndarray]) -> Points:
    """The share of requests whose time is below a value, by that value: a line for each name."""
    share = np.linspace(0, 100, CURVE)
    values = {name: np.percentile(np.asarray(ms, float), share) for name, ms in times_ms.items()}
    lines = [Line(name, tuple(zip(each, share, strict=True))) for name, each in values.items()]
    return lines_of(question, lines, title, "share of requests below, %")


# ---- dies and steps


def maps(report: Report) -> list[DieMap]:
    """A map of every system, of its runs at the largest batch of their place."""
    found = []
    for name, system in report.systems.items():
        runs = [run for place in report.places() if place.system == name for run in _largest(report, place)]
        if not runs:
            continue
        built = plan.with_areas(system).built
        placed = []
        for run in runs:
            dies = report.dies[run["run"]].rows
            idle: list[Idle] = []
            if built is not None and len(dies) == len(built.living):
                idle = idle_sites(system, built)
            else:
                dies = tuple({**die, "site": None} for die in dies)
            chosen = {name: run[name] for name in ("assumptions", "model", "batch", "policy")}
            kept, frames = report.steps.get(run["run"]), report.frames.get(run["run"], {})
            moments = _moments(kept, len(dies), frames.get("last")) if kept is not None else []
            shown = frames if moments and len(runs) * len(moments) * len(dies) <= MOST_SHOWN_IN_FRAMES else {}
            placed.append(MappedRun(chosen, dies, report.links_of(run), moments, shown))
        placed.sort(key=lambda run: not run.chosen["assumptions"].startswith(FIRST))
        found.append(die_map(f"Where is {name} busy?", placed, map_width(system), nodes_of(system), idle))
    return found


def _moments(kept: tables.Table, dies: int, ends: Sequence[int] | None) -> list[MapMoment]:
    """The slowest step of every iteration, or of some together. ends: the last iteration of each moment, if known."""
    step, time_ns = kept.column("step"), kept.column("time_ns")
    if ends is None:
        iterations = np.unique(step)
        ends = [int(each[-1]) for each in np.array_split(iterations, min(len(iterations), MOST_MOMENTS))]
    found, first = [], 0
    for last in ends:
        own = np.flatnonzero((step >= first) & (step <= last))
        first = last + 1
        if not len(own):
            return []  # frames of other steps than these
        at = int(own[np.argmax(time_ns[own])])
        cell = {"layer": int(kept.column("layer")[at])} | _told(kept, at, dies)
        more = "".join(f"; {name} {cell[name]}" for name in ("die", "link") if name in cell)
        src, dst = (_known(kept, name, at) for name in ("link_src", "link_dst"))
        die = _known(kept, "die", at) if "die" in cell else None
        link = None if src is None or dst is None else (int(src), int(dst))
        told = f"{cell['told']} in layer {cell['layer']}, {cell['cause']}{more}"
        found.append(MapMoment(told, None if die is None else int(die), link))
    return found


def busiest(report: Report, assumptions: str) -> list[tuple[str, str]]:
    """(Policy, its busiest die and link in words) of the first place of an assumption set, at the largest batch."""
    place = next((each for each in report.places() if each.assumptions == assumptions), None)
    found = []
    for run in _largest(report, place) if place else ():
        hot = max(report.dies[run["run"]], key=lambda die: max(die["hbm_utilisation"], die["compute_utilisation"]))
        hbm, compute = percent(hot["hbm_utilisation"]), percent(hot["compute_utilisation"])
        words = f"die {hot['die']}: HBM {hbm}, compute {compute}"
        if links := report.links_of(run):
            link = max(links, key=lambda each: each["utilisation"])
            words += f"; link {ends_told(link)}: {percent(link['utilisation'])}"
        found.append((run["policy"], words))
    return found


def idle_sites(system: SystemSpec, built: AsBuilt) -> list[Idle]:
    """Dies of a wafer that the machine does not use."""
    places = places_of(system)
    if places is None:
        return []
    at = [(int(x), int(y)) for x, y in zip(*places, strict=True)]
    named = ((built.dead, "dead"), (built.idle, "spare"))
    return [Idle(site, *at[site], why) for sites, why in named for site in sites]


def pairs(report: Report) -> MatrixFigure | None:
    """Bytes between pairs of dies, by class, of runs at the largest batch."""
    runs = [run for place in report.places() for run in _largest(report, place) if run["run"] in report.pairs]
    cells: list[dict[str, Any]] = []
    for run in runs:
        rows, of_run = report.pairs[run["run"]].rows, _named(run, several=False)
        first = {name: next((at for at, row in enumerate(rows) if row[name]), len(rows)) for name in MOVED}
        own = [
            of_run | {"src": row["src"], "dst": row["dst"], "bytes": float(row[name]), "kind": kind}
            | {"told": scaled(row[name], BYTE_UNITS)}
            for name, kind in sorted(MOVED.items(), key=lambda each: first[each[0]])
            for row in rows
            if row[name]
        ]  # fmt: skip
        if cells and len(cells) + len(own) > MOST_CELLS:
            break
        cells += own
    if not cells:
        return None
    return MatrixFigure(
        question="What moved between which dies?",
        rows=cells,
        x=PlotAxis("dst", "to die"),
        y=PlotAxis("src", "from die"),
        value=PlotAxis("bytes", "bytes over the run", ".2s", log=True),
        panel="kind",
        square=True,
        filters=_filters(cells, one=True, policy=True),
        tips=(("kind", "what"), ("src", "from die"), ("dst", "to die"), ("told", "bytes"), ("policy", "policy")),
    )


def roofline(report: Report) -> Points | None:
    """Dies by phase under the roof of their system, at the largest batch."""
    marks: list[dict[str, Any]] = []
    roofs: list[dict[str, Any]] = []
    for place in report.places():
        own = [mark for run in _largest(report, place) for mark in _marks(report, run)]
        if not own:
            continue
        die = notes.die_of(report.systems[place.system])
        ridge = die.peak_flop_per_s / die.hbm_bytes_per_s
        xs = [ridge, *(mark["flop_per_byte"] for mark in own)]
        ends = min(xs) / 1.5, max(xs) * 1.5
        of_place = {name: own[0][name] for name in ("assumptions", "system", "model", "batch", "place")}
        line = f"{len(roofs)}"
        for x in (ends[0], ridge, ends[1]):
            tflop = min(x * die.hbm_bytes_per_s, die.peak_flop_per_s) / 1e12
            roofs.append(of_place | {"line": line, "flop_per_byte": x, "tflop_per_s": tflop})
        marks += own
    if not marks:
        return None
    return Points(
        question="How near do dies come to what their HBM and compute array allow?",
        rows=marks,
        curves=roofs,
        panel="place",
        x=PlotAxis("flop_per_byte", "FLOP per byte of HBM", "~s", log=True),
        y=PlotAxis("tflop_per_s", "TFLOP/s of a die", "~s", log=True),
        shape="phase",
        colours=policy_colours(report.policies),
        size=28,
        filters=_filters(marks),
        zero=False,
        tips=(
            ("policy", "policy"),
            ("phase", "phase"),
            ("die", "die"),
            ("told", "TFLOP/s"),
            ("intensity", "FLOP/byte"),
        ),
    )


def _marks(report: Report, run: Row) -> list[dict[str, Any]]:
    if not run["expert_tokens"] or not run["flop"]:
        return []
    marks = []
    for phase in ("prefill", "decode"):
        took_s = run[f"{phase}_ns"] / units.NS_PER_S
        for die in report.dies[run["run"]] if took_s else ():
            done = die[f"{phase}_tokens"] * (run["flop"] / run["expert_tokens"])
            if done and (n_bytes := die[f"{phase}_hbm_bytes"]):
                rate, per_byte = done / took_s / 1e12, done / n_bytes
                told = {"told": significant(rate), "intensity": significant(per_byte)}
                mark = {"phase": phase, "die": die["die"], "flop_per_byte": per_byte, "tflop_per_s": rate} | told
                marks.append(_named(run, several=False) | mark)
    return marks


def steps(report: Report) -> MatrixFigure | None:
    """Time of every layer in every iteration, of runs at the largest batch whose steps were kept; the slowest step of
    a cell tells why it takes its time.
    """
    runs = [run for place in report.places() for run in _largest(report, place) if run["run"] in report.steps]
    layers = sums.sum(len(np.unique(report.steps[run["run"]].column("layer"))) for run in runs)
    cells: list[dict[str, Any]] = []
    for run in runs:
        of_run = _named(run, several=False) | {"place": run["policy"]}
        kept, most_columns = report.steps[run["run"]], max(4, MOST_CELLS // layers)
        cells += [of_run | cell for cell in _cells(kept, len(report.dies[run["run"]]), most_columns)]
    if not cells:
        return None
    worth, unit = unit_of([cell["ns"] for cell in cells], TIME_UNITS)
    cells = [cell | {"time": cell["ns"] / worth} for cell in cells]
    for cell in cells:
        del cell["ns"]
    return MatrixFigure(
        question="Which layer-steps are slow, and why?",
        rows=cells,
        x=PlotAxis("iteration", "iteration"),
        y=PlotAxis("layer", "layer"),
        value=PlotAxis("time", f"time of the layer-step, {unit}", low=0.0, high=max(cell["time"] for cell in cells)),
        panel="place",
        filters=_filters(cells, one=True),
        tall_px=min(240, 26 + 12 * len({cell["layer"] for cell in cells})),
        tips=(
            ("policy", "policy"),
            ("iteration", "iteration"),
            ("layer", "layer"),
            ("told", "slowest layer-step"),
            ("cause", "cause"),
            ("link", "busiest link"),
            ("die", "most loaded die"),
            ("expert", "most loaded expert"),
        ),
    )


def _cells(kept: tables.Table, dies: int, most_columns: int) -> list[dict[str, Any]]:
    """A cell for each layer and iteration. Where some iterations share a cell, it is the slowest of them."""
    iterations, column = np.unique(kept.column("step"), return_inverse=True)
    layers, time_ns = kept.column("layer"), kept.column("time_ns")
    shared = -(-len(iterations) // min(most_columns, 40))
    slowest: dict[tuple[int, int], int] = {}
    for at in np.argsort(time_ns, kind="stable"):
        slowest[int(layers[at]), int(column[at]) // shared] = int(at)
    return [
        {"layer": layer, "iteration": int(iterations[group * shared]), "ns": float(time_ns[at])} | _told(kept, at, dies)
        for (layer, group), at in sorted(slowest.items())
    ]


def _known(kept: tables.Table, name: str, at: int) -> float | None:
    """A value of one step, where it is known."""
    value = kept.column(name)[at]
    return None if np.isnan(value) else float(value)


def _told(kept: tables.Table, at: int, dies: int) -> dict[str, str]:
    """One step in words: its time, causes, link, die and expert, where they are known."""
    of = partial(_known, kept, at=at)
    ns = of("time_ns") or 0.0
    shares = sorted(
        ((round(100 * (of(f"{column}_ns") or 0.0) / ns) if ns else 0, name) for column, name in BOUNDS.items()),
        reverse=True,
    )
    told = {"told": f"iteration {of('step'):.0f}: {scaled(ns, TIME_UNITS)}"}
    told["cause"] = ", ".join(f"{name} {share} %" for share, name in shares if share >= LEAST) or "not recorded"
    src, dst, tokens, most = of("link_src"), of("link_dst"), of("tokens"), of("die_tokens")
    if src is not None and dst is not None:
        told["link"] = (
            f"{src:.0f} → {dst:.0f}, busy {100 * (of('link_busy_ns') or 0.0) / ns:.0f} %, "
            f"{scaled(of('link_bytes') or 0.0, BYTE_UNITS)}"
        )
    if tokens and most is not None and of("die") is not None:
        told["die"] = f"{of('die'):.0f}, {factor(most * dies / tokens)} the mean load"
        if of("expert") is not None:
            told["expert"] = f"{of('expert'):.0f}, {100 * (of('expert_tokens') or 0.0) / tokens:.0f} % of all tokens"
    return told


def _largest(report: Report, place: Panel) -> list[Row]:
    """The runs of a place at its largest batch."""
    runs = report.at(place)
    most = max(run["batch"] for run in runs)
    return [run for run in runs if run["batch"] == most]


# ---- notebooks


class Plots:
    """``results.plot``: the figures of some results. In a notebook each shows itself; ``.save("x.pdf")`` is for print,
    and ``.vega()`` is its specification in Vega-Lite.
    """

    def __init__(self, results: Results) -> None:
        self._results = results

    def __repr__(self) -> str:
        return f"Plots({', '.join(self.names())})"

    def names(self) -> list[str]:
        """The figures that these results have."""
        rows = self._results.runs.rows
        return [*(name for name, drawn in OF_RUNS.items() if drawn(rows) is not None), "dies"]

    def __getattr__(self, name: str) -> Callable[[], Figure]:
        if name not in OF_RUNS:
            raise AttributeError(f"there is no figure {name!r}; there are {', '.join((*OF_RUNS, 'dies'))}")

        def drawn() -> Figure:
            found = OF_RUNS[name](self._results.runs.rows)
            if found is None:
                raise errors.ArchsimError(
                    f"these results have nothing to show as {name!r}; they have {', '.join(self.names())}"
                )
            return found

        drawn.__doc__ = OF_RUNS[name].__doc__
        return drawn

    def __dir__(self) -> list[str]:
        return [*OF_RUNS, "dies", "names"]

    def dies(self) -> DieMap:
        """Every die and link of the first system; in a report's folder, of that system as it is built."""
        folder = self._results.folder
        if folder is not None and (Path(folder) / MANIFEST).is_file():
            return maps(Report(Path(folder)))[0]
        first = self._results.runs.rows[0]["system"]
        dies, links = self._results.dies.by("run"), self._results.links.by("run")
        placed = []
        for run in self._results.runs.where(system=first):
            chosen = {name: run[name] for name in ("assumptions", "model", "batch", "policy")}
            own = [{**die, "site": None} for die in dies[run["run"]]]
            placed.append(MappedRun(chosen, own, links[run["run"]].rows if run["run"] in links else ()))
        return die_map(f"Where is {first} busy?", placed)


# ---- printed
# Figures of a report for print: which ones the files of its folder allow, drawn by `archsim.report.plots`.

MOST_BARS = 120  # of a panel that can be read in print


ABOUT: Mapping[str, str] = MappingProxyType({
    "iteration": "time of a whole decode iteration, part after part",
    "gain": "decode throughput over ep",
    "speedup": "decode throughput over base",
    "throughput": "tokens a second",
    "limits": "share of time by cause",
    "critical_path": "time of a decode step, cause after cause",
    "load": "tokens of the busiest die over the mean",
    "traffic": "bytes that HBM reads and writes",
    "hops": "hops of base over those of each policy",
    "copies": "bytes of copies on the die with most of them",
    "energy": "energy a token, estimated, with its range",
})  # fmt: skip
"""What the figures of OF_RUNS show, for lists."""


class Printed(NamedTuple):
    """A figure of a study: ``about``: one line for lists; ``file`` of its folder that it is drawn from, and a
    ``column`` that it must have.
    """

    about: str
    file: str
    column: str
    draw: Callable[[Path], Figure]


def write_figure(folder: Path, name: str, out: Path) -> Path:
    """Draw a figure of the report in ``folder``. Raises ArchsimError for a name or a format that is not there, with
    those that are, and where matplotlib is missing.
    """
    known = names_of(folder)
    if not known:
        raise errors.ArchsimError(
            f"{folder}: there is nothing to draw. Figures are drawn of the folder of a sweep, an exploration, a "
            "comparison or a serve run"
        )
    if name not in known:
        listed = "\n".join(f"  {each:<12} {about}" for each, about in known.items())
        raise errors.ArchsimError(f"{folder}: no figure {name!r}{errors.did_you_mean(name, known)}; it has:\n{listed}")
    return (_of_runs(name, folder) if name in OF_RUNS else OF_STUDIES[name].draw(folder)).save(out)


def names_of(folder: Path) -> dict[str, str]:
    """Name → what it shows, of the figures that a report's files allow."""
    found: dict[str, str] = {}
    if (folder / PARQUET).is_file():
        rows = Results.load(folder).runs.rows
        found = {name: ABOUT[name] for name, drawn in OF_RUNS.items() if drawn(rows) is not None}
    for name, each in OF_STUDIES.items():
        if (folder / each.file).is_file():
            with (folder / each.file).open(encoding="utf-8", newline="") as stream:
                found |= {name: each.about} if each.column in next(csv.reader(stream), []) else {}
    return found


def _of_runs(name: str, folder: Path) -> Figure:
    drawn = OF_RUNS[name](Results.load(folder).runs.rows)
    assert drawn is not None, "is one of names_of"
    if isinstance(drawn, Bars) and not drawn.begin:
        panels = Counter(place for place, _ in {(row["place"], row["name"]) for row in drawn.rows})
        if max(panels.values()) > MOST_BARS:
            raise errors.ArchsimError(
                f"{folder}: {max(panels.values())} runs in one panel, of which up to {MOST_BARS} can be read. Of a "
                "`sweep:` take its front, or draw results.parquet yourself"
            )
    return drawn


def _front(folder: Path) -> Figure:
    """Every design that the event engine ran by the first two objectives of the front."""
    rows = _csv(folder / "front.csv")
    names = [name for name in rows[0] if name.endswith(")") and " (" in name]
    up = names[0]
    across = next((name for name in names if name.startswith("cost")), names[1])
    kinds = {"0": "dominated", "1": "on the front"}
    return Points(
        question="Which designs are on the front?", x=PlotAxis("x", across, log=True), y=PlotAxis("y", up, log=True),
        rows=[{"x": float(row[across]), "y": float(row[up]), "kind": kinds[row["front"]]} for row in rows],
        colours=Colours("kind", {"dominated": "--p0", "on the front": "--p4"}), zero=False,
    )  # fmt: skip


def _requests(column: str, title: str, folder: Path) -> Figure:
    """The shares of requests below a time of ``requests.csv``; a line for each policy's folder."""
    times_ms: dict[str, list[float]] = {}
    for file in [folder / "requests.csv", *sorted(folder.glob("*/requests.csv"))]:
        name = file.parent.name if file.parent != folder else "first"
        if values := [float(row[column]) / units.NS_PER_MS for row in _csv(file) if row[column]]:
            times_ms[name] = values
    if not times_ms:
        raise errors.ArchsimError(f"{folder}: no request has a {title.partition(',')[0]}; nothing to draw")
    return shares_below(f"How many requests are below a {title}?", title, times_ms)


def _comparison(folder: Path) -> Figure:
    """How much more of each quantity the second design has."""
    rows = [
        {"name": f"{row['name']} ({row['group']})", "begin": 1.0, "value": ratio, "label": f"{ratio:.3g}×"}
        for row in _csv(folder / "comparison.csv")
        if row["ratio"] and (ratio := float(row["ratio"])) > 0
    ]
    if not rows:
        raise errors.ArchsimError(
            f"{folder / 'comparison.csv'}: no quantity has a value of both designs; nothing to draw"
        )
    return Bars(
        question="How much more of each quantity has the second design?", rows=rows, y="name", begin="begin",
        x=PlotAxis("value", "B over A, ×", log=True), reference=1.0,
    )  # fmt: skip


def _csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    if not rows:
        raise errors.ArchsimError(f"{path}: no rows; nothing to draw")
    return rows


OF_STUDIES: Mapping[str, Printed] = MappingProxyType({
    "front": Printed(
        "designs by throughput and price: the front, and what it dominates", "front.csv", "front", _front
    ),
    "ratios": Printed("the second design over the first, by quantity", "comparison.csv", "ratio", _comparison),
    "ttft": Printed(
        "time to first token", "requests.csv", "ttft_ns", partial(_requests, "ttft_ns", "time to first token, ms")
    ),
    "tpot": Printed(
        "time per output token", "requests.csv", "tpot_ns", partial(_requests, "tpot_ns", "time per output token, ms")
    ),
})  # fmt: skip
"""The figures of studies, by their names in print."""
