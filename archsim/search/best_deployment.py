"""What is said of more than two deployments: the best of them, those that equal it, and where it is at a limit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from archsim.base.errors import capital
from archsim.base.quantities import as_written
from archsim.search.deployment_pair import TIMES, short
from archsim.serving.answers.sure import HEADLINES, ServedSure
from archsim.show.units import interval as written_interval
from archsim.show.units import listing, percent
from archsim.uncertainty.estimate import SURE, Interval, interval
from archsim.uncertainty.plateau import BestValue, best_value, ratio_of

MOST_NAMED = 4  # of deployments that are a tie


def best_sentence(
    sure: ServedSure, names: Sequence[str], amounts: Mapping[str, float], per: str, devices: Mapping[str, float],
    limits_ms: Mapping[str, float],
) -> str:  # fmt: skip
    """The best of the deployments by the column that ``sure`` judges, for a unit of the amount of each, with its range,
    over the first one or the worst. ``names``: of those that were served, in the order in which they were given;
    ``per``: the unit in words; ``devices``: how many each takes; ``limits_ms``: ttft, tpot → limit.
    """
    unit, what = HEADLINES[sure.judged]
    higher = sure.judged != "e2e_mean_ms"
    options = {each.name: each for each in sure.options}
    values = [options[name].samples[sure.judged] / amounts[name] for name in names]
    found = best_value(
        values if higher else [1 / each for each in values], [devices[name] for name in names], numbers_in(names)
    )
    best, base = names[found.cheapest], 0 if 0 not in found.equal else found.worst  # a tie is no gain
    ends = interval(values[found.cheapest])
    number, spread = _written(ends)
    begin = f"{capital(what)}{per} is {number} {unit.replace('/s', ' per second')}".rstrip()
    begin += f" ({spread}) with {short(best)}"
    if found.flat:
        gain = _over(values, found.cheapest, 0 if found.cheapest else found.worst, names)
        return (
            f"{begin}{gain}: all {len(names)} are a tie, as none is better than another in {percent(SURE)} of "
            f"samples.{_edges(sure, best, limits_ms)}"
        )
    over = "" if base in found.equal else _over(values, found.cheapest, base, names)
    said = "".join(_others(names, found, devices))
    most = "the most" if higher else "the least"
    return f"{begin}, {most} of {len(names)}{over}.{said}{_edges(sure, best, limits_ms)}"


def _over(values: Sequence[np.ndarray], at: int, base: int, names: Sequence[str]) -> str:
    """``, 1.1 × (0.9–1.3) that with 8 requests per rank``; '' over nothing, and over itself."""
    if at == base or float(np.median(values[base])) <= 0:
        return ""
    middle, spread = _written(ratio_of(values[at], values[base]))
    return f", {middle} × ({spread}) that with {short(names[base])}"


def _written(ends: Interval) -> tuple[str, str]:
    middle, low, high = written_interval(ends.p50, ends.p05, ends.p95)
    if not math.isfinite(ends.p95):  # of a ratio to what is 0 in some samples
        return middle, f"at least {low}"
    return middle, f"{low}–{high}" if low != high else "in all samples"


def numbers_in(names: Sequence[str]) -> list[float]:
    """The numbers of names such as ``KEY 4/s`` of one key; none where they name several keys, or no numbers."""
    keys, values = zip(*(name.partition(" ")[::2] for name in names), strict=True)
    written = [as_written(value.removesuffix("/s")) for value in values]
    if len(set(keys)) > 1 or not all(written):
        return []
    return [each.number * each.worth for each in written if each is not None]


def _others(names: Sequence[str], found: BestValue, devices: Mapping[str, float]) -> Iterator[str]:
    if len(found.equal) > 1:
        equal = [names[at] for at in found.equal]
        shown = (
            [short(name) for name in equal]
            if len(equal) <= MOST_NAMED
            else [*map(short, equal[: MOST_NAMED - 1]), f"{len(equal) - MOST_NAMED + 1} more"]
        )
        fewest = len({devices[name] for name in equal}) > 1
        yield f" {listing(shown)} are a tie" + (
            f", of which {short(names[found.cheapest])} takes the fewest devices ({devices[names[found.cheapest]]:g})."
            if fewest else "."
        )  # fmt: skip
    if found.end:
        yield f" It is the {found.end} value that was tried, and beyond it may be better."


def _edges(sure: ServedSure, name: str, limits_ms: Mapping[str, float]) -> str:
    """Its times, and which of them is within its range of a limit."""
    option = next(each for each in sure.options if each.name == name)
    said = []
    for column in TIMES:
        found, (unit, what) = option.intervals.get(column), HEADLINES[column]
        if found is None:
            continue
        middle, spread = _written(found)
        limit = limits_ms.get(column.partition("_")[0])
        edge = (
            f", whose range includes the limit of {limit:,g} {unit}"
            if limit and found.p05 <= limit <= found.p95
            else ""
        )
        said.append(f"{what} is {middle} {unit} ({spread}){edge}")
    return f" {listing(said)} there." if said else ""
