"""What is said of one deployment under its load: the p99 of its times, and whether it sustains the load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from archsim.base.quantities import TIME, format_quantity
from archsim.serving.answers.highest_rate import WITHIN
from archsim.serving.answers.runs import ServeRun
from archsim.serving.file_requests import requests_of
from archsim.serving.measures import SATURATED
from archsim.show.units import interval, listing, percent, significant
from archsim.specs.serving_files import Serving
from archsim.uncertainty.estimate import Interval

CHANCE = 2.0  # standard errors
P99, P99_NAMES = ("ttft_p99_ms", "tpot_p99_ms"), ("p99 of TTFT", "p99 of TPOT")


class SustainedRate(NamedTuple):
    """Requests a second that are sustained within the limits; ``range``: in samples, None where none were taken."""

    per_s: float
    range: Interval | None


def offered_requests(run: ServeRun) -> float:
    """Clients, or requests per second with all turns of a session."""
    given = run.serving.spec.requests
    return run.offered if given.sessions is None or given.concurrency else requests_of(run.serving).offered_per_s


def sustains(serving: Serving, row: Mapping[str, Any], offered: float) -> bool:
    """Whether a run keeps up and WITHIN of its requests are within the limits. A closed loop always counts as kept up
    with, as its clients wait for their answers.
    """
    if serving.spec.requests.concurrency or not offered:
        return True
    by_chance = CHANCE / row["requests"] ** 0.5  # of the rate of so many random arrivals
    is_slow = row["requests_per_s"] * (1 + by_chance) < SATURATED * offered
    is_behind = bool(row["saturated"]) or bool(row["unsteady"]) and is_slow
    return not is_behind and row["within_slo"] >= WITHIN


def with_medians(row: Mapping[str, Any], intervals: Mapping[str, Interval]) -> dict[str, Any]:
    """The row with the medians of samples where there are any, as in the table of samples."""
    return {**row, **{name: ends.p50 for name, ends in intervals.items()}}


def load_sentence(
    serving: Serving, row: Mapping[str, Any], offered: float, intervals: Mapping[str, Interval], samples: int,
    rate: SustainedRate | None = None,
) -> str:  # fmt: skip
    """p99 of TTFT and TPOT under the load, goodput, and the share of requests within the limits: medians and ranges; or
    that the load is not sustained, and the ``rate`` that is. ``row``: of `archsim.serving.answers.runs.table_of`;
    ``intervals``: of its columns, {} without samples.
    """
    row = with_medians(row, intervals)
    devices = f"{row['devices']} device{'' if row['devices'] == 1 else 's'}"
    name = f"{serving.model.name} on {devices} of {serving.system.name}"
    is_loop = bool(serving.spec.requests.concurrency)
    load = load_text(serving, offered)
    limits = limits_text(serving)
    said = [_value(row, column, intervals, what, "ms") for column, what in zip(P99, P99_NAMES, strict=True)]
    if is_loop:
        said.append(_value(row, "output_tokens_per_s", intervals, "output", "tokens per second"))
    is_kept = sustains(serving, row, offered) if rate is None else rate.per_s >= offered  # of a longer run
    if limits:
        said += [] if is_loop else [_value(row, "goodput_per_s", intervals, "goodput", "requests per second")]
        said.append(f"{_share(row, intervals)} of requests are within {limits if is_kept else 'these limits'}")
    times = listing(filter(None, said))
    if samples:
        times = times.replace(")", f" in {percent(0.9)} of {samples} samples)", 1)
    if is_kept:
        return f"With {load} on {name}, {times}." if offered else f"With {name}, {times}."
    return f"{unsustained(serving, [name], offered, [rate] if rate else [])}: at {load}, {times}."


def unsustained(serving: Serving, names: Sequence[str], offered: float, rates: Sequence[SustainedRate]) -> str:
    """``A and B do not sustain 40 requests per second, and sustain 31 and 28``. ``rates``: of all names, or none."""
    limits, s = limits_text(serving), "s" if len(names) == 1 else ""
    kept = f" with {percent(WITHIN)} of requests within {limits}" if limits else ", as the queue keeps growing"
    instead = f", and sustain{s} {listing(_rate(each) if each.per_s else 'no rate' for each in rates)}" if rates else ""
    return f"{listing(names)} do{'es' if s else ''} not sustain {load_text(serving, offered)}{kept}{instead}"


def load_text(serving: Serving, offered: float) -> str:
    """``40 requests per second``, ``1 client``."""
    is_loop = bool(serving.spec.requests.concurrency)
    number = f"{offered:,.0f}" if offered == int(offered) else significant(offered)
    one = "client" if is_loop else "request"
    return f"{number} {one}{'' if offered == 1 else 's'}{'' if is_loop else ' per second'}"


def limits_text(serving: Serving) -> str:
    """``2 s to the first token and 50 ms per token``; '' without a limit."""
    slo = serving.spec.slo
    words = ((slo.ttft_ns, "to the first token"), (slo.tpot_ns, "per token"), (slo.e2e_ns, "to the last token"))
    said = [f"{format_quantity(ns, TIME)} {text}" for ns, text in words if ns is not None]
    own = any(each.ttft_ns or each.tpot_ns or each.e2e_ns for each in serving.spec.requests.classes)
    return listing([*said, *(["the limits of their class"] if own else [])]) if said or own else ""


def _value(row: Mapping[str, Any], column: str, intervals: Mapping[str, Interval], what: str, unit: str) -> str:
    """``p99 of TTFT is 1,300 ms (1,100 to 1,600)``; '' where there is none."""
    if (value := row[column]) is None:
        return ""
    ends = intervals.get(column, Interval(value, value, value))
    middle, low, high = interval(value, ends.p05, ends.p95)
    return f"{what} is {middle} {unit}{f' ({low} to {high})' if column in intervals else ''}"


def _share(row: Mapping[str, Any], intervals: Mapping[str, Interval]) -> str:
    ends = intervals.get("within_slo")
    spread = "" if ends is None else f" ({percent(ends.p05)} to {percent(ends.p95)})"
    share = row["within_slo"]
    text = percent(share, 1) if share < WITHIN and percent(share) == percent(WITHIN) else percent(share)
    return f"{text}{'' if ends is not None and ends.width < 0.005 else spread}"


def _rate(rate: SustainedRate) -> str:
    spread = "" if rate.range is None else f" ({significant(rate.range.p05, 2)} to {significant(rate.range.p95, 2)})"
    return f"{significant(rate.per_s, 2)}{spread}"
