"""Why one option is faster than another, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import numpy as np

from archsim.base.quantities import TIME, format_quantity
from archsim.search.compare import NEVER, Compared, OptionComparison
from archsim.show.units import listing, percent, with_prefix
from archsim.uncertainty.estimate import SURE

_PART = {"projections": "projections", "dense": "dense layers", "all_reduce": "all-reduces", "head": "head"}


def reasons(found: OptionComparison) -> Iterator[str]:
    """How every side is used, what its time goes to, and how near it is to its limits."""
    for each in found.sides:
        way, batch, limits = each.chosen.way, each.batch, found.limits
        if each.rates[0] <= NEVER:
            fastest = float(each.frontier.ends()[0])
            yield f"{each.side.label} does not keep the limits: its fastest token takes {_ms(fastest)}."
            continue
        parts = sorted(batch.parts_ns.items(), key=lambda part: -part[1])[:3]
        spent = listing(f"{percent(ns / batch.ns)} {_PART.get(name, name)}" for name, ns in parts)
        yield (
            f"{each.side.label}: {way.label}, {batch.batch:,} requests per engine. An iteration takes {_ms(batch.ns)} "
            f"at nominal values ({spent})."
        )
        if found.samples and limits.tpot_ns < inf:
            yield _edge(found, each)
        if abs(each.simulated - 1) > 0.01:
            yield (
                f"{each.side.label}: the event engine takes {each.simulated:.2f} times the estimate, which the rates "
                "include."
            )
    if found.varied is None and len(found.able) > 1:
        one, other = found.able[:2]
        a, b, ratio_ = found.sides[one], found.sides[other], found.pair(one, other, "machines").ratio.p50
        yield (
            f"Per dollar, both serve as much if {a.side.label} costs {with_prefix(b.usd[0] * ratio_)} USD; it is "
            f"estimated at {with_prefix(a.usd[0])} USD, and {b.side.label} at {with_prefix(b.usd[0])} USD."
        )


def _edge(found: OptionComparison, each: Compared) -> str:
    at = next(at for at, used in enumerate(each.machine.used) if used is each.chosen)
    curve, used, limit = each.frontier.curves[at], each.chosen, found.limits.tpot_ns
    if curve.tpot_ns[0, -1] < limit:
        largest = _ms(float(curve.tpot_ns[0, -1]))
        return f"{each.side.name} is held by its largest batch, not by the limit: a token takes {largest} there."
    sizes = np.log([one.batch for one in used.batches])
    held = ((row, ~np.isnan(row)) for row in curve.tpot_ns[1:])
    keeps = [
        float(np.exp(np.interp(np.log(limit), np.log(np.maximum.accumulate(row[is_held])), sizes[is_held])))
        if is_held.any() else 0.0 for row, is_held in held
    ]  # fmt: skip
    safe = int(np.percentile(keeps, 100 - 100 * SURE)) // used.way.groups * used.way.groups
    missed = float(np.mean(np.array(keeps) < each.batch.batch * 0.999))
    return (
        f"{each.side.name} is at the limit: {each.batch.batch:,} requests miss it in {percent(missed)} of samples, and "
        f"{max(safe, used.way.groups):,} keep it in {SURE:.0%}."
    )


def _ms(ns: float) -> str:
    return format_quantity(float(f"{ns:.3g}"), TIME)
