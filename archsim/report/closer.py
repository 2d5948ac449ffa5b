"""Figures that look into runs at the largest batch of a place: the roofline of its dies, the time of its steps."""

from __future__ import annotations

from archsim.report.data import Place, Report, RunRow
from archsim.report.draw.roofline import Mark, roofline
from archsim.report.draw.steps import step_chart
from archsim.report.figures import BOUND_NAMES, Panel, policy_class
from archsim.report.units import TIME_UNITS, percent, scaled, significant
from archsim.runs.calibration_notes import written_die

PHASES = ("prefill", "decode")
NS_PER_S, TERA = 1e9, 1e12


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


def step_panels(report: Report, place: Place) -> list[tuple[RunRow, str, str]]:
    """(Run, its chart, its slowest step in words) of every policy whose steps were kept."""
    runs = [run for run in _largest(report, place) if report.steps.get(run.key)]
    longest_ns = max((report.steps[run.key].slowest.time_ns for run in runs), default=0.0)
    if not longest_ns:
        return []
    return [
        (run, step_chart(report.steps[run.key], longest_ns, f"Time of steps: {run.label}"), _slowest(report, run))
        for run in runs
    ]


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
