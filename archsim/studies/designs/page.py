"""The page of two designs side by side."""

from pathlib import Path

from archsim.base.files import own_folder, write_text
from archsim.report.draw.charts import Bar, Group, Segment, bar_panel
from archsim.report.draw.svg import linear_axis
from archsim.report.figures import BOUND_NAMES
from archsim.report.rendering import rendered
from archsim.report.units import NO_BREAK, PREFIXES, TIME_UNITS, factor, percent, plain, scaled, significant, unit_of
from archsim.studies.designs.compare import SAME, DesignComparison, Quantity

SCALES = (*PREFIXES, (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def write_comparison_page(found: DesignComparison, folder: Path) -> Path:
    """Write ``index.html`` and ``comparison.csv``; returns the path of the page."""
    own_folder(folder)
    write_text(folder / "comparison.csv", found.to_pandas().to_csv(index=False, lineterminator="\n"))
    write_text(folder / "index.html", render(found))
    return folder / "index.html"


def render(found: DesignComparison) -> str:
    groups = list(dict.fromkeys(each.group for each in found.quantities))
    context = {
        "found": found,
        "answer": answer(found),
        "causes": _causes(found),
        "of": found.causes[0].group if found.causes else "",
        "cause_parts": list(BOUND_NAMES.values()),
        "groups": [(name, [each for each in found.quantities if each.group == name]) for name in groups],
    }
    return rendered("compare.html.j2", context, {"cell": cell, "change": change})


def answer(found: DesignComparison) -> str:
    """Which is faster, and by what, in a sentence."""
    rate = next((each for each in found.quantities if each.unit == "tokens/s"), None)
    if rate is None or not rate.ratio:
        return "Neither has decode steps to compare"
    if not rate.better:
        return f"{found.a} and {found.b} have the same throughput, within {SAME:.1%}"
    faster, slower, by = (found.b, found.a, rate.ratio) if rate.ratio >= 1 else (found.a, found.b, 1 / rate.ratio)
    said = f"{faster} has {factor(by)} the throughput of {slower}"
    gaps = {each.name: (each.a or 0.0) - (each.b or 0.0) for each in found.causes}
    sign = 1 if faster == found.b else -1
    saved = max(gaps, key=lambda name: sign * gaps[name], default=None)
    if saved is None or sign * gaps[saved] <= 0:
        return said
    saved_ns = scaled(sign * gaps[saved], TIME_UNITS)
    return f"{said}; most of the time that it saves is {saved}: {saved_ns} of {found.causes[0].group}"


def shown(each: Quantity, value: float | None) -> str:
    if value is None:
        return "–"
    match each.unit:
        case "ns":
            return scaled(value, TIME_UNITS)
        case "share":
            return percent(value, 1)
        case "×":
            return factor(value)
    if each.unit in ("mm²", "USD"):
        return f"{significant(value)}{NO_BREAK}{each.unit}"
    worth, prefix = unit_of([value], SCALES)
    unit = {"bytes": "B", "message hops": ""}.get(each.unit, each.unit)
    gap = " " if prefix and unit[:1] not in "JWB" else ""  # k tokens/s, but mJ
    return f"{significant(value / worth)}{NO_BREAK}{prefix}{gap}{unit}".strip()


def cell(each: Quantity, side: int) -> str:
    """The value of A (side 0) or B; of a price its range, as its coefficients are known no better."""
    if each.ranges:
        return usd(*each.ranges[side])
    return shown(each, (each.a, each.b)[side])


def usd(low: float, high: float) -> str:
    """``43,000 to 530,000 USD``: two digits of each end."""
    ends = (f"{float(f'{end:.1e}'):,.{0 if end >= 10 else 2}f}" for end in (low, high))
    return f"{' to '.join(ends)}{NO_BREAK}USD"


def change(each: Quantity) -> str:
    """B over A."""
    return "–" if each.ratio is None else factor(each.ratio)


def _causes(found: DesignComparison) -> str:
    totals = [sum(getattr(each, side) or 0.0 for each in found.causes) for side in ("a", "b")]
    worth, unit = unit_of(totals, TIME_UNITS)
    axis = linear_axis(1.02 * max(totals), lambda value: plain(round(value / worth, 6)))

    def bar(name: str, side: str, total: float) -> Bar:
        segments = []
        for kind, cause in BOUND_NAMES.values():
            ns = sum(getattr(each, side) or 0.0 for each in found.causes if each.name == cause)
            if ns:
                segments.append(Segment(kind, ns, f"{name}: {scaled(ns, TIME_UNITS)} {cause}"))
        return Bar(name, tuple(segments), scaled(total, TIME_UNITS))

    bars = bar(found.a, "a", totals[0]), bar(found.b, "b", totals[1])
    of = found.causes[0].group if found.causes else ""
    return bar_panel([Group(of, bars)], axis, f"time on the critical path, {unit}", "time by cause")
