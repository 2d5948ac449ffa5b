"""Figures that look into runs at the largest batch of a place: the roofline of its dies, the time of its steps."""

import json
from typing import Any

import numpy as np

from archsim.base.units import NS_PER_S
from archsim.report.data import Place, Report, RunRow, Steps
from archsim.report.draw.roofline import Mark, roofline
from archsim.report.draw.steps import LEFT, TOP, grid_of, step_chart
from archsim.report.figures import BOUND_NAMES, Panel, policy_class
from archsim.report.units import TIME_UNITS, percent, scaled, significant
from archsim.runs.calibration_notes import written_die

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
                    "label": run.label, "chosen": f"{chosen} --assumptions {place.assumptions}", "left": LEFT,
                    "top": TOP, "width": round(grid.width, 3), "height": round(grid.height, 3),
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
