"""The co-design map: speed-up of a policy over base, decisions included, against the area it adds."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from archsim.runs import results
from archsim.show.deciders import Family, added_mm2, words
from archsim.show.figures import policy_colours
from archsim.show.plots import PlotAxis, Points
from archsim.show.report import Panel, Report
from archsim.show.units import factor, significant

EXECUTORS = MappingProxyType({"fsm": "state machine", "firmware": "firmware", "host": "host", "gpu": "kernel"})


@dataclass(frozen=True)
class CostPoint:
    """A system and a policy. ``mm2``: added area, ``speedup``: over base on the family's first system."""

    run: results.Row
    who: str
    executor: str
    mm2: float
    speedup: float


@dataclass(frozen=True)
class Map:
    """The co-design maps of a family: ``fronts``: (place, its front in words)."""

    figure: Points
    fronts: tuple[tuple[str, str], ...]


def map_of(report: Report, family: Family) -> Map | None:
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    fronts = []
    for label in report.compared_sets() if len(family.systems) > 1 else ():
        for model in report.models:
            points = points_of(report, family, Panel(label, family.lead, model))
            areas = sorted({point.mm2 for point in points})
            if len(areas) < 2:
                continue
            least = min(area for area in areas if area) / 2  # where points that add nothing stand
            place, best = f"{model} on {family.lead} and its family, {label}", front(points)
            rows += [_shown(point, place, least, point in best) for point in points]
            ends = [*(max(point.mm2, least) for point in best), areas[-1]]
            for at, point in enumerate(best):
                curves += [
                    {"place": place, "line": place, "mm2": mm2, "speedup": point.speedup}
                    for mm2 in dict.fromkeys((ends[at], ends[at + 1]))
                ]
            sentences = (f"{point.run['policy']} on {point.run['system']} {factor(point.speedup)}" for point in best)
            fronts.append((place, "; ".join(sentences)))
    if not rows:
        return None
    figure = Points(
        question="Which way of deciding is worth its area?", rows=rows, curves=curves, panel="place", zero=False,
        x=PlotAxis("mm2", "added area, mm²", "~s", log=True),
        y=PlotAxis("speedup", "speed-up over base, ×"), shape="executor",
        colours=policy_colours(report.policies), tips=_MAP_TIPS,
    )  # fmt: skip
    return Map(figure, tuple(fronts))


_MAP_TIPS = (
    ("policy", "policy"), ("system", "system"), ("who", "decided by"), ("tip", "speed-up"), ("adds", "added area"),
    ("front", "on the front"),
)  # fmt: skip


def _shown(point: CostPoint, place: str, least: float, best: bool) -> dict[str, Any]:
    return {
        "place": place, "policy": point.run["policy"], "system": point.run["system"], "who": point.who,
        "mm2": max(point.mm2, least), "speedup": point.speedup, "tip": factor(point.speedup),
        "adds": f"{significant(point.mm2)} mm²" if point.mm2 else "nothing", "front": "yes" if best else "no",
        "executor": EXECUTORS.get(point.executor, point.executor),
    }  # fmt: skip


def points_of(report: Report, family: Family, place: Panel) -> list[CostPoint]:
    """Every configuration at the largest batch at which the family's first system ran base."""
    runs = [run for run in report.at(place) if run["policy"] == "base" and run["throughput_tokens_per_s"]]
    if not runs:
        return []
    base = max(runs, key=lambda run: run["batch"])
    policies = {each.name: each for each in report.experiment.policies}
    points = []
    for name, system in family.systems.items():
        for run in report.at(place._replace(system=name)):
            rate = run["throughput_tokens_per_s"]
            if run["batch"] == base["batch"] and run["policy"] != "base" and rate:
                mm2, decision = added_mm2(system, policies[run["policy"]]), system.decision
                points.append(
                    CostPoint(run, words(decision), decision.executor, mm2, rate / base["throughput_tokens_per_s"])
                )
    return points


def front(points: list[CostPoint]) -> list[CostPoint]:
    """The Pareto-optimal points, sorted by area."""
    best: list[CostPoint] = []
    for point in sorted(points, key=lambda each: (each.mm2, -each.speedup)):
        if not best or point.speedup > best[-1].speedup:
            best.append(point)
    return best
