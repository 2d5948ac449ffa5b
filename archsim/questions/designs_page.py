"""The page of two designs side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from archsim.base import files, sums
from archsim.base.answer import Answer, Grid
from archsim.questions.designs import SAME, DesignComparison, DesignFigure
from archsim.show import figures, plots, rendering, tables, units
from archsim.uncertainty.estimate import interval, pair
from archsim.uncertainty.ranges import tie

_WORDS = {1: "better", -1: "worse", 0: ""}


def write_comparison_page(found: DesignComparison, folder: Path) -> Path:
    """Write ``index.html`` and ``comparison.csv``; returns the path of the page."""
    files.own_folder(folder)
    files.write_text(folder / "comparison.csv", found.to_pandas().to_csv(index=False, lineterminator="\n"))
    files.write_text(folder / "index.html", render(found))
    return folder / "index.html"


def render(found: DesignComparison) -> str:
    groups = list(dict.fromkeys(each.group for each in found.quantities))
    context = {
        "found": found,
        "answer": answer(found),
        "causes": _causes_shown(found),
        "of": found.causes[0].group if found.causes else "",
        "groups": [(name, [each for each in found.quantities if each.group == name]) for name in groups],
    }
    return rendering.render("compare.html.j2", context, {"cell": cell, "change": change})


def answer(found: DesignComparison) -> str:
    rate = next((each for each in found.quantities if each.unit == "tokens/s"), None)
    whole = [row["batch"] / ns if (ns := row.get("iteration_ns")) else None for row in found.rows]
    if rate is not None and all(whole):  # tokens a second of whole iterations
        rate = replace(rate, a=whole[0], b=whole[1])
    if rate is None or not rate.ratio:
        return "Neither design has decode steps to compare"
    second = rate.ratio >= 1  # whether B is the faster
    faster, slower, by = (found.b, found.a, rate.ratio) if second else (found.a, found.b, 1 / rate.ratio)
    ratio, tied = units.factor(by), not rate.better
    if found.rates is not None:
        first, other = found.rates[::-1] if second else found.rates
        ends, samples = interval(first / other), len(first)
        tied = tied or bool(tie(pair("first", "other", {"first": 1 / first, "other": 1 / other}), samples))
        within = f" in {units.percent(0.9)} of {samples} samples{', a tie' if tied else ''}"
        ratio = units.times_text(by, min(ends.p05, by), max(ends.p95, by), within)
    elif tied:
        return f"{found.a} and {found.b} have the same throughput within {SAME:.1%}"
    said = f"{faster} has {ratio} the throughput of {slower}{', by whole iterations' if all(whole) else ''}"
    models = [row["model"] for row in found.rows]
    if models[0] != models[1]:
        said += f", by tokens of two models ({found.a} serves {models[0]}, {found.b} {models[1]}; choose with --model)"
    if tied:
        return said
    gaps = {each.name: (each.a or 0.0) - (each.b or 0.0) for each in found.causes}
    sign = 1 if faster == found.b else -1
    saved = max(gaps, key=lambda name: sign * gaps[name], default=None)
    if saved is None or sign * gaps[saved] <= 0:
        return said
    saved_ns = units.with_unit(sign * gaps[saved], units.TIME_UNITS)
    return f"{said}. It saves most in {saved}: {saved_ns} of {found.causes[0].group}"


def as_answer(found: DesignComparison) -> Answer:
    """What differs in the specification and in numbers, and which is faster."""
    figures_of = (*found.causes, *found.quantities)
    rows: list[tuple[str, ...]] = []
    for group in dict.fromkeys(each.group for each in figures_of):
        rows.append((group, "", "", "", ""))
        rows += [
            (f"  {each.name}", cell(each, 0), cell(each, 1), change(each), _WORDS[each.better])
            for each in figures_of if each.group == group
        ]  # fmt: skip
    return Answer(
        (
            f"{answer(found)}.",
            f"A: {found.a}, B: {found.b}; both: {found.same}",
            Grid(("specification", "A", "B"), [(each.key, each.a, each.b) for each in found.spec]),
            Grid(("",), rows, ("A", "B", "B over A"), more=("",), headings=True),
        ),
        found.notes, found,
    )  # fmt: skip


def shown(each: DesignFigure, value: float | None) -> str:
    if value is None:
        return "–"
    match each.unit:
        case "ns":
            return units.with_unit(value, units.TIME_UNITS)
        case "share":
            return units.percent(value, 1)
        case "×":
            return units.factor(value)
    if each.unit in ("mm²", "USD"):
        return f"{units.significant(value)}{units.NO_BREAK}{each.unit}"
    worth, prefix = units.unit_of([value], units.scales_of(each.unit))
    unit = {"bytes": "B", "message hops": ""}.get(each.unit, each.unit)
    gap = " " if prefix and unit[:1] not in "JWB" else ""  # k tokens/s, but mJ
    return f"{units.significant(value / worth)}{units.NO_BREAK}{prefix}{gap}{unit}".strip()


def cell(each: DesignFigure, side: int) -> str:
    """The value of A (side 0) or B; of a price its range, as its coefficients are known no better."""
    if each.ranges:
        return units.usd(*each.ranges[side])
    return shown(each, (each.a, each.b)[side])


def change(each: DesignFigure) -> str:
    """B over A."""
    return "–" if each.ratio is None else units.factor(each.ratio)


def _causes_shown(found: DesignComparison) -> plots.Bars | None:
    if not found.causes:
        return None
    totals = {side: sums.sum(getattr(each, side) or 0.0 for each in found.causes) for side in ("a", "b")}
    worth, unit = units.unit_of(totals.values(), units.TIME_UNITS)
    rows = []
    for name, side in ((found.a, "a"), (found.b, "b")):
        for cause in tables.BOUNDS.values():
            ns = sums.sum(getattr(each, side) or 0.0 for each in found.causes if each.name == cause)
            if ns:
                label = units.with_unit(totals[side], units.TIME_UNITS)
                text = units.with_unit(ns, units.TIME_UNITS)
                rows.append({"name": name, "cause": cause, "value": ns / worth, "label": label, "tip": text})
    return plots.Bars(
        question="What does each design spend its time on?", rows=rows, y="name", colours=figures.cause_colours(),
        x=plots.PlotAxis("value", f"time on the critical path of {found.causes[0].group}, {unit}"),
        tips=(("name", "design"), ("cause", "cause"), ("tip", "time")),
    )  # fmt: skip
