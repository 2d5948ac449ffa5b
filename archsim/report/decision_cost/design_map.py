"""The co-design map: speed-up of a policy over base, decisions included, against the area it adds."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from archsim.report.data import Place, Report, RunRow
from archsim.report.decision_cost.deciders import Family, added_mm2, words
from archsim.report.draw.svg import Axis, element, linear_axis, number, picture, text, title
from archsim.report.figures import Panel, policy_class
from archsim.report.units import factor, plain, plain_factor, significant

WIDTH, HEIGHT = 460.0, 260.0
LEFT, RIGHT, TOP, BOTTOM = 40.0, 16.0, 14.0, 36.0
SIZE = 4.2  # half of a mark, px
MARGIN = 1.15  # area axis beyond the outermost points


@dataclass(frozen=True)
class Point:
    """One configuration: a system and a policy. ``mm2``: added area, ``speedup``: over base on the family's first
    system.
    """

    run: RunRow
    who: str
    executor: str
    mm2: float
    speedup: float


def map_of(report: Report, family: Family) -> Iterator[Panel]:
    """A map for every assumption set and model, at the largest batch, if the family has several systems."""
    if len(family.systems) < 2:
        return
    for label in report.compared():
        for model in report.models:
            place = Place(label, family.lead, model)
            points = points_of(report, family, place)
            if len({point.mm2 for point in points}) > 1:
                best = front(points)
                steps = "; ".join(
                    f"{point.run.policy} on {point.run.place.system} {factor(point.speedup)}" for point in best
                )
                yield Panel(place, draw(points, best, report.policies, f"Speed-up over added area, {model}"), steps)


def points_of(report: Report, family: Family, place: Place) -> list[Point]:
    """Every configuration at the largest batch at which the family's first system ran base."""
    runs = [run for run in report.at(place) if run.policy == "base" and run.get("throughput_tokens_per_s")]
    if not runs:
        return []
    base = max(runs, key=lambda run: run.batch)
    policies = {each["name"]: each for each in report.experiment["policies"]}
    points = []
    for name, system in family.systems.items():
        for run in report.at(replace(place, system=name)):
            rate = run.get("throughput_tokens_per_s")
            if run.batch == base.batch and run.policy != "base" and rate:
                mm2, decision = added_mm2(system, policies[run.policy]), system.decision
                points.append(
                    Point(run, words(decision), decision.executor, mm2, rate / base["throughput_tokens_per_s"])
                )
    return points


def front(points: list[Point]) -> list[Point]:
    """The Pareto-optimal points, sorted by area."""
    best: list[Point] = []
    for point in sorted(points, key=lambda each: (each.mm2, -each.speedup)):
        if not best or point.speedup > best[-1].speedup:
            best.append(point)
    return best


def draw(points: list[Point], best: list[Point], policies: list[str], spoken: str) -> str:
    """An SVG: area on a logarithmic axis, speed-up on a linear one, both limited to the points; the front as steps."""
    areas, speedups = [point.mm2 for point in points if point.mm2], [point.speedup for point in points]
    frame = _Frame(_area_axis(min(areas) / MARGIN, max(areas) * MARGIN), _speedup_axis(min(speedups), max(speedups)))
    parts = [*frame.grid(), _steps(frame, best)]
    parts += [_mark(frame, point, policy_class(point.run.policy, policies), point in best) for point in points]
    return picture(WIDTH, HEIGHT, spoken, parts)


def _area_axis(low: float, high: float) -> Axis:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**power for power in decades for digit in (1, 2, 5)]
    return Axis(low, high, tuple(tick for tick in ticks if low <= tick <= high), plain, log=True)


def _speedup_axis(low: float, high: float) -> Axis:
    margin = max(high - low, 0.02 * high) / 10
    low, high = low - margin, high + margin
    step = linear_axis(high - low, plain_factor).ticks[1]
    ticks = tuple(step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1))
    return Axis(low, high, ticks, plain_factor)


@dataclass(frozen=True)
class _Frame:
    across: Axis
    up: Axis

    def x(self, mm2: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * self.across.share(mm2)

    def y(self, speedup: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * self.up.share(speedup)

    def grid(self) -> list[str]:
        bottom, parts = HEIGHT - BOTTOM, []
        for tick in self.across.ticks:
            x = self.x(tick)
            parts.append(element("path", class_="grid", d=f"M{number(x)} {number(TOP)}V{number(bottom)}"))
            parts.append(text(x, bottom + 13, self.across.label(tick), "m", "middle"))
        for tick in self.up.ticks:
            y = self.y(tick)
            parts.append(element("path", class_="grid", d=f"M{number(LEFT)} {number(y)}H{number(WIDTH - RIGHT)}"))
            parts.append(text(LEFT - 5, y + 3.5, self.up.label(tick), "m", "end"))
        unit = "added area, mm² (logarithmic)"
        parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, unit, "m", "middle"))
        parts.append(text(0.0, TOP - 4, "speed-up over base", "m"))
        return parts


def _steps(frame: _Frame, best: list[Point]) -> str:
    first = best[0]
    line = f"M{number(frame.x(first.mm2))} {number(frame.y(first.speedup))}"
    for point in best[1:]:
        line += f"H{number(frame.x(point.mm2))}V{number(frame.y(point.speedup))}"
    return element("path", class_="ref", d=f"{line}H{number(WIDTH - RIGHT)}")


def _mark(frame: _Frame, point: Point, kind: str, best: bool) -> str:
    """A circle (state machine), a square (firmware) or a triangle (host); outlined if on the front."""
    x, y = frame.x(point.mm2), frame.y(point.speedup)
    area = f"{significant(point.mm2)} mm²" if point.mm2 else "nothing"
    tip = title(f"{point.run.label}: {factor(point.speedup)}, adds {area}; {point.who}")
    kind = f"{kind} front" if best else kind
    if point.executor == "fsm":
        return element("circle", tip, class_=kind, cx=x, cy=y, r=SIZE)
    if point.executor == "firmware":
        return element("rect", tip, class_=kind, x=x - SIZE, y=y - SIZE, width=2 * SIZE, height=2 * SIZE)
    left, right, top, bottom = map(number, (x - SIZE, x + SIZE, y - SIZE, y + SIZE))
    return element("polygon", tip, class_=kind, points=f"{left},{bottom} {right},{bottom} {number(x)},{top}")
