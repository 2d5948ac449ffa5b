"""Figures of an exploration: scatter plot with front, small multiples over the axes, tornado plot."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from archsim.questions.exploration.candidates import Candidate, Exploration
from archsim.questions.exploration.levels import MODEL, MOST_LEVELS, as_quantities, effects, levels_of_axis
from archsim.show import plots
from archsim.show.figures import policy_colours
from archsim.show.units import amount, objective_unit, percent, scales_of, unit_of_objective
from archsim.show.units import unit_of as unit_shown
from archsim.specs import explore

MOST_DOTS = 3000  # of designs off the front; of more, every n-th


def _axis(field: str, objective: str, values: Sequence[float] | np.ndarray) -> tuple[plots.PlotAxis, float]:
    worth, prefix = unit_shown(values, scales_of(unit_of_objective(objective)))
    return plots.PlotAxis(field, f"{objective}, {objective_unit(objective, prefix)}", "~g", log=True), worth


def scatter(found: Exploration, across: str, up: str, model: str) -> plots.Points | None:
    """All allowed designs of a model by two objectives; the front with its bands. None where there are none."""
    shown = [
        point
        for point in found.points
        if point.model == model and point.allowed and all(0 < point.values[name] < math.inf for name in (across, up))
    ]
    if not shown or any(len({point.values[name] for point in shown}) == 1 < len(shown) for name in (across, up)):
        return None  # nothing, or all on one line, as the cost of samples of one design
    off = [point for point in shown if not point.front]
    every = max(1, math.ceil(len(off) / MOST_DOTS))
    front = sorted((point for point in shown if point.front), key=lambda point: point.values[across])
    axes = (("x", across), ("y", up))
    (x, x_worth), (y, y_worth) = (_axis(name, of, [point.values[of] for point in shown]) for name, of in axes)
    bands = up == "throughput" and any(point.band for point in front)
    rows = []
    for point in [*off[::every], *front]:
        row: dict[str, Any] = {"x": point.values[across] / x_worth, "y": point.values[up] / y_worth}
        row |= {"kind": "on the front" if point.front else "dominated", "point": point.index, "engine": point.engine}
        row |= {"limit": f"{point.limit[0]} ({percent(point.limit[1])})"}
        row["design"] = ", ".join(f"{axis} {level}" for axis, level in point.axes.items())
        row["values"] = ", ".join(f"{name} {amount(name, point.values[name])}" for name in found.spec.objectives)
        if bands:
            ends = point.band if point.front and point.band else (point.values[up],) * 2
            row |= {"low": ends[0] / y_worth, "high": ends[1] / y_worth}
        rows.append(row)
    of_model = f" ({model})" if len(found.models) > 1 else ""
    drawn = f"; one in {every} of the others is shown" if every > 1 else ""
    return plots.Points(
        name="front",
        question=f"Which designs are best by {up} and {across}?{of_model} "
        f"{len(front)} of {len(shown)} are on the front{drawn}",
        rows=rows, x=x, y=y, zero=False, low="low" if bands else "", high="high" if bands else "",
        curves=[  # of more objectives, neighbours by two of them are none on the front
            {"line": "front", "x": p.values[across] / x_worth, "y": p.values[up] / y_worth} for p in front
        ] if len(found.spec.objectives) == 2 else [],
        colours=plots.Colours("kind", {"dominated": "--p0", "on the front": "--p4"}), size=34,
        tips=(("design", "design"), ("values", "values"), ("limit", "limited by"), ("point", "point"),
              ("engine", "engine")),
    )  # fmt: skip


def axis_label(axis: str) -> str:
    """The axis without its root, which most share."""
    return axis.removeprefix("system.")


def strips(points: Sequence[Candidate], axes: Sequence[str], objective: str, model: str) -> plots.Ranges | None:
    """For every level of an axis, or bin of its values: 10th to 90th percentile of an objective, median and best."""
    usable = [point for point in points if point.allowed and 0 < point.values[objective] < math.inf]
    if not usable:
        return None
    of_all, rows = np.array([point.values[objective] for point in usable]), []
    x, worth = _axis("value", objective, of_all)
    for axis in axes:
        levels = levels_of_axis(usable, axis)
        for level, members in levels[:: math.ceil(len(levels) / MOST_LEVELS)]:
            values = of_all[members]
            low, middle, high = np.percentile(values, [10, 50, 90])
            best = values.max() if explore.sense_of(objective) == "max" else values.min()
            text = f"median {amount(objective, middle)}, best {amount(objective, best)}"
            rows.append({
                "level": str(level), "axis": axis_label(axis), "low": low / worth, "value": middle / worth,
                "high": high / worth, "best": best / worth, "tip": text, "designs": len(values),
            })  # fmt: skip
    return plots.Ranges(
        question=f"How does each axis change {objective}?{f' ({model})' if model else ''}", rows=rows, x=x, y="level",
        low="low", high="high", best="best", panel="axis",
        tips=(("axis", "axis"), ("level", "value"), ("tip", objective), ("designs", "designs")),
    ) if rows else None  # fmt: skip


def over_key(found: Exploration, objective: str) -> plots.Points | None:
    """An objective over the one key that was varied, a line for each policy; None without one key of quantities."""
    usable = [point for point in found.points if point.allowed and 0 < point.values[objective] < math.inf]
    varied = [axis for axis in found.axes if axis not in (MODEL, "policy")]
    if len(varied) != 1 or len(found.models) > 1 or not usable:
        return None
    (key,) = varied
    numbers = as_quantities(list(dict.fromkeys(point.axes[key] for point in usable)))
    if numbers is None or len(numbers) < 2:
        return None
    unit = max(numbers.values(), key=lambda each: each.number * each.worth)
    y, worth = _axis("y", objective, [point.values[objective] for point in usable])
    bands = objective == "throughput" and all(point.band for point in usable)
    rows = []
    for point in usable:
        number = numbers[point.axes[key]]
        policy, text = point.axes.get("policy", objective), amount(objective, point.values[objective])
        row: dict[str, Any] = {"x": number.number * number.worth / unit.worth, "y": point.values[objective] / worth}
        row |= {"policy": policy, "key": point.axes[key], "value": text, "point": point.index}
        if bands and point.band:
            row |= {"low": point.band[0] / worth, "high": point.band[1] / worth}
        rows.append(row)
    return plots.Points(
        question=f"How does {axis_label(key)} change {objective}?", rows=sorted(rows, key=lambda row: row["x"]),
        x=plots.PlotAxis("x", f"{axis_label(key)}, {unit.unit}".rstrip(", "), ",.4~r"),
        y=y._replace(log=False, format=",.4~r"),
        lines=True, dots=True, low="low" if bands else "", high="high" if bands else "",
        colours=policy_colours(row["policy"] for row in rows),
        tips=(("policy", "policy"), ("key", axis_label(key)), ("value", objective), ("point", "point")),
    )  # fmt: skip


def tornado(points: Sequence[Candidate], objective: str) -> plots.Bars | None:
    """Axes by their effect on an objective, levels over the mean of all points, marked within twice their error."""
    rows = []
    for each in effects([point for point in points if point.allowed], objective):
        known = math.isfinite(each.error)
        error = (
            f"standard error of their ratio {percent(each.error, 1)}"
            if known
            else "one design per value: error unknown"
        )
        higher = explore.sense_of(objective) == "max"
        for begin, end, better in ((each.below, 1.0, not higher), (1.0, each.above, higher)):
            kind = ("better" if better else "worse") if each.shown else "within its error"
            label = f"{each.least} to {each.most}" if end > 1 or each.above == 1 else ""  # once, at the right end
            rows.append({
                "axis": axis_label(each.axis), "begin": begin, "value": end, "kind": kind, "error": error,
                "label": label, "least": f"{each.least}: {each.below:.3g}×",
                "most": f"{each.most}: {each.above:.3g}×",
            })  # fmt: skip
    return plots.Bars(
        question=f"Which axis matters most for {objective}?", rows=rows, y="axis", begin="begin", reference=1.0,
        x=plots.PlotAxis("value", f"mean {objective} of a value, over the mean of all designs, ×", log=True),
        colours=plots.Colours("kind", {"better": "--p4", "worse": "--p7", "within its error": "--p0"}),
        tips=(("axis", "axis"), ("least", "lowest"), ("most", "highest"), ("error", "error")),
    ) if rows else None  # fmt: skip
