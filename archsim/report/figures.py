"""The figures of the page: one panel for each assumption set, system and model."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from archsim.base.causes import CAUSES
from archsim.base.units import NS_PER_S
from archsim.report.charts import Axis, Bar, Group, Mark, Segment, bar_panel, linear_axis, log_axis, roofline
from archsim.report.data import Place, Report, RunRow, Steps, built_of, map_width, nodes_of
from archsim.report.maps import (
    STEPS_LEFT,
    STEPS_TOP,
    Idle,
    cluster_map,
    fabric_map,
    grid_of,
    heat_map,
    step_chart,
    traffic_matrix,
)
from archsim.report.units import (
    BYTE_UNITS,
    TIME_UNITS,
    factor,
    percent,
    plain,
    plain_factor,
    scaled,
    significant,
    unit_of,
)
from archsim.runs.notes import written_die
from archsim.specs.as_built import AsBuilt, places_of
from archsim.specs.system import SystemSpec

# ---- figures

COLOURED = ("base", "ep", "allo", "pred", "allo+pred")
MORE_COLOURS = 4
TRAFFIC = {
    "local_hbm_read_bytes": ("k-hbm", "reads by the die itself"),
    "remote_hbm_read_bytes": ("k-link", "reads for other dies"),
    "local_hbm_write_bytes": ("k-copy", "writes of cached copies"),
    "hidden": ("k-act", "activations"),
}
MOVED = {
    "weight": "streamed weights",
    "dispatch": "dispatch",
    "combine": "combine",
    "replica": "moved and fetched replicas",
    "statistics": "statistics",
}  # classes of pairs.csv that matrices show; requests are as streamed weights, and small
BOUND_NAMES = {f"bound_{cause.column}": (about.colour, about.label) for cause, about in CAUSES.items()}


@dataclass(frozen=True)
class Panel:
    """One drawing of a figure."""

    place: Place
    svg: str
    note: str = ""


def policy_class(policy: str, policies: list[str]) -> str:
    """The CSS class of a policy's colour: a fixed one for the five known policies, one of a few for others."""
    if policy in COLOURED:
        return f"p{COLOURED.index(policy)}"
    others = [name for name in policies if name not in COLOURED]
    return f"p{len(COLOURED) + others.index(policy) % MORE_COLOURS}"


def gain_panels(report: Report) -> list[Panel]:
    """Decode throughput relative to ep; empty if no run has an ep beside it."""
    values = [run.get("speedup_vs_ep") or 0.0 for run in report.runs]
    if not any(values):
        return []
    axis = linear_axis(1.02 * max(values), plain_factor)
    return _plain_panels(report, axis, "speedup_vs_ep", "decode throughput relative to ep, ×", factor, reference=1.0)


def speedup_panels(report: Report) -> list[Panel]:
    """Decode throughput relative to base."""
    values = [run.get("speedup_vs_base") or 0.0 for run in report.runs]
    axis = linear_axis(1.02 * max(values), plain_factor)

    def bar(run: RunRow) -> tuple[float | None, str]:
        value = run.get("speedup_vs_base")
        return (None, "no base") if value is None else (value, factor(value))

    return _ratio_panels(report, axis, "decode throughput relative to base, ×", bar)


def hop_panels(report: Report) -> list[Panel]:
    """Hops of base over hops of the policy, on a logarithmic axis."""

    def reduction(run: RunRow) -> float | None:
        base = report.find(run.place, run.batch, "base")
        hops = base["hop_messages"] if base else 0
        return hops / run["hop_messages"] if hops and run["hop_messages"] else None

    values = {run: reduction(run) for run in report.runs}
    drawn = [value for value in values.values() if value]
    axis = log_axis(min(drawn, default=1.0), max(drawn, default=10.0), plain_factor)

    def bar(run: RunRow) -> tuple[float | None, str]:
        if not run["hop_messages"]:
            return None, "no hops"
        value = values[run]
        return (None, "no base hops") if value is None else (value, factor(value))

    return _ratio_panels(report, axis, "hops of base ÷ hops, × (logarithmic)", bar)


def traffic_panels(report: Report) -> list[Panel]:
    """HBM bytes read and written, by kind."""

    def amounts(run: RunRow) -> dict[str, float]:
        hidden = sum(die.activation_bytes for die in report.dies[run.key])
        return {column: hidden if column == "hidden" else run[column] for column in TRAFFIC}

    def panel(place: Place) -> str:
        totals = [sum(amounts(run).values()) for run in report.at(place)]
        worth, name = unit_of(totals, BYTE_UNITS)
        axis = linear_axis(1.02 * max(totals), lambda value: plain(value / worth))

        def bar(run: RunRow) -> Bar:
            parts = amounts(run)
            total = sum(parts.values())
            segments = tuple(
                Segment(TRAFFIC[column][0], value, f"{run.label}: {scaled(value, BYTE_UNITS)} {TRAFFIC[column][1]}")
                for column, value in parts.items()
                if value
            )
            return Bar(run.policy, segments, scaled(total, BYTE_UNITS))

        spoken = f"HBM traffic of {place.model} on {place.system}, {place.assumptions}"
        return bar_panel(_groups(report, place, bar), axis, f"HBM traffic of the run, {name}", spoken)

    return [Panel(place, panel(place)) for place in report.places()]


def bound_panels(report: Report) -> list[Panel]:
    """Share of time by resource on the critical path."""
    axis = Axis(0.0, 1.0, (0.0, 0.25, 0.5, 0.75, 1.0), percent)

    def bar(run: RunRow) -> Bar:
        shares = {column: run.get(column) or 0.0 for column in BOUND_NAMES}
        segments = tuple(
            Segment(kind, shares[column], f"{run.label}: {percent(shares[column], 1)} {name}", percent(shares[column]))
            for column, (kind, name) in BOUND_NAMES.items()
            if shares[column]
        )
        if not segments:
            return Bar(run.policy, (), "not recorded")
        longest = max(BOUND_NAMES, key=lambda column: shares[column])
        return Bar(run.policy, segments, BOUND_NAMES[longest][1])

    def panel(place: Place) -> str:
        spoken = f"Bottlenecks of the policies, {place.model} on {place.system}, {place.assumptions}"
        return bar_panel(_groups(report, place, bar), axis, "share of time on the critical path", spoken)

    return [Panel(place, panel(place)) for place in report.places()]


def imbalance_panels(report: Report) -> list[Panel]:
    """Tokens of the most loaded die over the mean."""
    axis = linear_axis(1.02 * max(run.get("load_max_over_mean") or 0.0 for run in report.runs), plain_factor)
    return _plain_panels(
        report, axis, "load_max_over_mean", "tokens of the most loaded die over the mean, ×", factor, reference=1.0
    )


def idle_sites(system: Mapping[str, Any], built: AsBuilt) -> list[Idle]:
    """Dies of a wafer that the machine does not use."""
    places = places_of(SystemSpec.model_validate(system))
    if places is None:
        return []
    at = [(int(x), int(y)) for x, y in zip(*places, strict=True)]
    named = ((built.dead, "dead"), (built.idle, "spare"))
    return [Idle(site, *at[site], why) for sites, why in named for site in sites]


def replica_panels(report: Report) -> list[Panel]:
    """Peak bytes of copies on a die; empty if no run created any."""
    column = "replicas_max_bytes_per_die"
    largest = max(run[column] for run in report.runs)
    if not largest:
        return []
    worth, name = unit_of([largest], BYTE_UNITS)
    axis = linear_axis(1.02 * largest, lambda value: plain(value / worth))

    def write(value: float) -> str:
        return scaled(value, BYTE_UNITS) if value else "none"

    return _plain_panels(report, axis, column, f"copies on the fullest die, {name}", write)


def map_panels(report: Report, place: Place) -> list[tuple[RunRow, str]]:
    """A map of every policy at the largest simulated batch."""
    runs = report.at(place)
    largest, system = max(run.batch for run in runs), report.systems[place.system]
    nodes, width, built = nodes_of(system), map_width(system), built_of(system)

    def drawn(run: RunRow) -> str:
        dies, links = report.dies[run.key], report.links.get(run.key, ())
        spoken = f"Utilisation of dies and links: {run.label}"
        if built is not None and len(dies) == len(built.living):
            speeds = zip(built.array, built.hbm, strict=True)
            known = zip(dies, built.living, speeds, strict=True)
            dies = tuple(replace(die, site=site, speeds=own) for die, site, own in known)
            return fabric_map(dies, links, spoken, width, idle_sites(system, built))
        return cluster_map(dies, links, nodes, spoken) if nodes else fabric_map(dies, links, spoken, width)

    return [(run, drawn(run)) for run in runs if run.batch == largest]


def heat_panels(report: Report, place: Place) -> list[tuple[RunRow, str, str]]:
    """(run, map of power and temperature, clock in words) of every policy at the largest batch; none without limits."""
    runs = [run for run in report.at(place) if any(die.power_w is not None for die in report.dies[run.key])]
    largest, system = max((run.batch for run in runs), default=0), report.systems[place.system]
    limit = (system.get("cooling") or {}).get("limit")
    limit_c = None if limit is None else float(limit.split()[0])
    panels = []
    for run in (each for each in runs if each.batch == largest):
        clocks = (("clock", "decode"), ("prefill_clock", "the prefill"))
        known = [f"{percent(run[name])} in {phase}" for name, phase in clocks if run.get(name) is not None]
        clock = f"clock {', '.join(known)}"
        spoken = f"Power and temperature of dies: {run.label}"
        panels.append((run, heat_map(report.dies[run.key], spoken, clock, limit_c, map_width(system)), clock))
    return panels


def matrix_panels(report: Report, place: Place) -> list[tuple[RunRow, list[tuple[str, str]]]]:
    """Of every policy at the largest batch that moved anything: (class and its bytes, matrix of pairs of dies), with
    one scale for the place.
    """
    largest = max(run.batch for run in report.at(place))
    runs = [run for run in report.at(place) if run.batch == largest and run.key in report.pairs]
    most = max((max(sent.values()) for run in runs for sent in report.pairs[run.key].values()), default=0.0)
    dies = report.dies_of(runs[0]) if runs else 0
    return [
        (
            run,
            [
                (
                    f"{MOVED[name]}, {scaled(sum(sent.values()), BYTE_UNITS)}",
                    traffic_matrix(sent, dies, most, f"{MOVED[name]} between dies: {run.label}"),
                )
                for name, sent in report.pairs[run.key].items()
                if name in MOVED
            ],
        )
        for run in runs
    ]


def busiest(report: Report, run: RunRow) -> str:
    """The busiest die and link of a run, in words."""
    dies, links = report.dies[run.key], report.links.get(run.key, ())
    hot = max(dies, key=lambda die: die.use)
    words = [f"die {hot.die}: HBM {percent(hot.hbm)}, compute {percent(hot.compute)}"]
    if links:
        link = max(links, key=lambda each: each.utilisation)
        arrow = "↔" if link.both_ways else "→"
        words.append(f"link {link.src} {arrow} {link.dst}: {percent(link.utilisation)}")
    return "; ".join(words)


def _groups(report: Report, place: Place, bar: Callable[[RunRow], Bar]) -> list[Group]:
    """A group for every batch of a place; policies without a run are marked ``no run``."""
    runs = {(run.batch, run.policy): run for run in report.at(place)}
    batches = [batch for batch in report.batches if any(batch == known for known, _ in runs)]
    present = [policy for policy in report.policies if any(policy == known for _, known in runs)]
    return [
        Group(
            f"batch {batch:,}",
            tuple(
                bar(runs[batch, policy]) if (batch, policy) in runs else Bar(policy, (), "no run") for policy in present
            ),
        )
        for batch in batches
    ]


def _ratio_panels(
    report: Report, axis: Axis, unit: str, value_and_label: Callable[[RunRow], tuple[float | None, str]]
) -> list[Panel]:
    def bar(run: RunRow) -> Bar:
        value, label = value_and_label(run)
        kind = policy_class(run.policy, report.policies)
        return Bar(run.policy, () if value is None else (Segment(kind, value, f"{run.label}: {label}"),), label)

    def panel(place: Place) -> Panel:
        spoken = f"{unit}: {place.model} on {place.system}, {place.assumptions}"
        return Panel(place, bar_panel(_groups(report, place, bar), axis, unit, spoken, reference=1.0))

    return [panel(place) for place in report.places()]


def _plain_panels(
    report: Report, axis: Axis, column: str, unit: str, write: Callable[[float], str], reference: float | None = None
) -> list[Panel]:
    def bar(run: RunRow) -> Bar:
        kind, value = policy_class(run.policy, report.policies), run.get(column)
        if value is None:
            return Bar(run.policy, (), "not recorded")
        return Bar(run.policy, (Segment(kind, value, f"{run.label}: {write(value)}"),), write(value))

    def panel(place: Place) -> str:
        spoken = f"{unit}: {place.model} on {place.system}, {place.assumptions}"
        return bar_panel(_groups(report, place, bar), axis, unit, spoken, reference)

    return [Panel(place, panel(place)) for place in report.places()]


# ---- closer
# Figures that look into runs at the largest batch of a place: the roofline of its dies, the time of its steps.

PHASES = ("prefill", "decode")
TERA = 1e12
LEAST = 3  # percent of a step from which a cause is told


def roofline_panels(report: Report) -> list[Panel]:
    """Dies by phase under the roof of their system; empty for folders of older versions."""
    panels = []
    for place in report.places():
        marks = [mark for run in _largest(report, place) for mark in _marks(report, run)]
        if marks:
            die = written_die(report.systems[place.system])
            spoken = f"Roofline of dies: {place.model} on {place.system}, {place.assumptions}"
            panels.append(Panel(place, roofline(marks, die.peak_flop_per_s, die.hbm_bytes_per_s, spoken)))
    return panels


def _marks(report: Report, run: RunRow) -> list[Mark]:
    pairs, flop = run.get("expert_tokens"), run.get("flop")
    if not pairs or not flop:
        return []
    kind, marks = policy_class(run.policy, report.policies), []
    for phase in PHASES:
        took_s = run[f"{phase}_ns"] / NS_PER_S
        for die in report.dies[run.key] if took_s else ():
            done, n_bytes = die.phases.get(phase, (0.0, 0.0))
            done *= flop / pairs
            if done and n_bytes:
                rate, per_byte = done / took_s, done / n_bytes
                tip = f"{run.policy}, {phase}, die {die.die}: {significant(rate / TERA)} TFLOP/s"
                tip += f", {significant(per_byte)} FLOP/byte"
                marks.append(Mark(per_byte, rate, kind, phase == "prefill", tip))
    return marks


def step_panels(report: Report, place: Place) -> list[tuple[RunRow, str, str, str]]:
    """(Run, its chart, its slowest step in words, its key in `step_data`) of every policy whose steps were kept."""
    runs = [run for run in _largest(report, place) if report.steps.get(run.key)]
    longest_ns = max((report.steps[run.key].slowest.time_ns for run in runs), default=0.0)
    if not longest_ns:
        return []
    return [
        (run, step_chart(steps, longest_ns, f"Time of steps: {run.label}"), _slowest(report, run), run.key)
        for run, steps in ((run, report.steps[run.key]) for run in runs)
    ]


def step_data(report: Report) -> str:
    """JSON for clicks on charts of steps: of every cell the slowest step, with what ``archsim why`` says of it."""
    charts = {}
    for place in report.places():
        for run in _largest(report, place):
            if (steps := report.steps.get(run.key)) is not None and "tokens" in steps.more:
                grid = grid_of(steps)
                cells = [None if at < 0 else _told(steps, int(at)) for at in grid.slowest(steps.time_ns)]
                chosen = f"--policy {run.policy} --batch {run.batch} --model {place.model} --system {place.system}"
                charts[run.key] = {
                    "label": run.label, "chosen": f"{chosen} --assumptions {place.assumptions}", "left": STEPS_LEFT,
                    "top": STEPS_TOP, "width": round(grid.width, 3), "height": round(grid.height, 3),
                    "columns": grid.columns, "dies": report.dies_of(run), "cells": cells,
                }  # fmt: skip
    names = [name for _, name in BOUND_NAMES.values()]
    return json.dumps({"causes": names, "charts": charts}, separators=(",", ":")).replace("<", "\\u003c")


def _told(steps: Steps, at: int) -> list[Any]:
    """Of one step: iteration, layer, ns, causes and their percent, link, die and tokens, expert and its tokens."""

    def of(name: str) -> int | None:
        value = steps.more[name][at] if name in steps.more else None
        return None if value is None or np.isnan(value) else int(value)

    ns = float(steps.time_ns[at])
    names = [f"{column}_ns" for column in BOUND_NAMES]
    percents = [round(100 * float(steps.more[name][at]) / ns) if name in steps.more else 0 for name in names]
    causes = sorted(enumerate(percents), key=lambda each: -each[1])
    link = None if of("link_src") is None else [of("link_src"), of("link_dst"), of("link_bytes"), _busy(steps, at)]
    die = [of("die"), of("die_tokens"), of("tokens")]
    causes = [each for each in causes if each[1] >= LEAST]
    return [int(steps.step[at]), int(steps.layer[at]), round(ns), causes, link, die, of("expert"), of("expert_tokens")]


def _busy(steps: Steps, at: int) -> int:
    return round(100 * float(steps.more["link_busy_ns"][at]) / float(steps.time_ns[at]))


def _slowest(report: Report, run: RunRow) -> str:
    slow = report.steps[run.key].slowest
    words = f"slowest: iteration {slow.step}, layer {slow.layer}, {scaled(slow.time_ns, TIME_UNITS)}"
    if slow.bounds:
        name = max(slow.bounds, key=slow.bounds.__getitem__)
        words += f", {percent(slow.bounds[name] / slow.time_ns)} {BOUND_NAMES[f'bound_{name}'][1]}"
    return words + (f", hottest link {slow.link[0]} → {slow.link[1]}" if slow.link else "")


def _largest(report: Report, place: Place) -> list[RunRow]:
    runs = report.at(place)
    most = max(run.batch for run in runs)
    return [run for run in runs if run.batch == most]
