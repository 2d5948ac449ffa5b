"""What is said of two deployments: what one gains over the other, its times, and whether a limit decides."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from archsim.serving.answers.sure import HEADLINES, ServedOption, ServedSure
from archsim.serving.serving import serve
from archsim.show.units import carried_digits, digits_of_ratio, listing, percent, significant
from archsim.specs.serving_files import Serving
from archsim.uncertainty.estimate import SURE, Interval, interval

TIMES = ("ttft_mean_ms", "tpot_mean_ms")
MOVED = (0.9, 1.1)  # factors on the limits, where one is within the range of a time
MOVES = 0.02  # relative: what moved limits change less is not said
NOTHING = 0.001  # relative: smaller changes are none
_APART = 0.05  # relative: a ratio of medians that is farther from the median of ratios is explained
_MANY = 5.0  # ratios above it are written as such, not as a change in percent
_ENDLESS = 100.0  # ratios above it are of next to nothing, and have no end that is said
_WORDS = MappingProxyType({
    "max_num_seqs": "requests per rank", "max_num_batched_tokens": "tokens per step", "rate": "requests per second",
    "users": "users", "concurrency": "clients", "redundant_experts": "redundant experts", "drafts": "draft tokens",
})  # fmt: skip
_KEY = re.compile(r"(?<![\w.])[A-Za-z_][\w]*(?:\.\w+)*\.(?=[A-Za-z_]\w* )")  # of ``scheduler.name ``, all but the last


def pair_sentence(
    sure: ServedSure, one: str, other: str, amounts: Mapping[str, float], per: str, limits_ms: Mapping[str, float],
    moved: Mapping[float, float], is_closed_loop: bool,
) -> str:  # fmt: skip
    """What ``other`` gains over ``one``, with its range. ``amounts``: of a budget, of each; ``per``: its unit in words;
    ``limits_ms``: ttft, tpot → limit; ``moved``: as of `moved_limits`; ``is_closed_loop``: as many tokens are had as
    the engine gives.
    """
    first, second = (next(each for each in sure.options if each.name == name) for name in (one, other))
    column = "output_tokens_per_s" if is_closed_loop and sure.judged == "goodput_per_s" else sure.judged
    said = [_gain(first, second, column, amounts, per)]
    if column != sure.judged and any(np.median(each.samples["within_slo"]) < 0.995 for each in (first, second)):
        said.append(_gain(first, second, sure.judged, amounts, per))
    said += filter(None, (_change(first, second, each) for each in TIMES))
    at = at_limits((first, second), limits_ms)
    text = f"With {short(other)} instead of {short(one)}, {listing(said)}"
    if at and moved and max(moved.values()) > (1 + MOVES) * min(moved.values()):
        edges = listing(f"{ms:,g} ms for {name.upper()}" for name, ms in at.items())
        ratios = " and ".join(
            f"{significant(ratio)} × with limits {abs(factor - 1):.0%} {'tighter' if factor < 1 else 'looser'}"
            for factor, ratio in moved.items()
        )
        text += f"; some samples miss the limit of {edges}, so that the goodput is {ratios}"
    return text


def short(name: str) -> str:
    """``scheduler.max_num_seqs 2048`` → ``2,048 requests per rank``."""
    own = _KEY.sub(lambda key: key[0][7:] if key[0].startswith("system.") else "", name)  # a machine has many of a name
    found = re.sub(r"\b(True|False)\b", lambda value: "on" if value[0] == "True" else "off", own)
    found = re.sub(r"(?<=\s)\d{4,}(?![\d.\w])", lambda value: f"{int(value[0]):,}", found)
    for key, words in _WORDS.items():
        found = re.sub(rf"\b{key} ([\d,.]*\d)(?:/s)?(?![\w/])", rf"\1 {words}", found)
    found = re.sub(r"\{([^{}]*)\}", lambda each: f"({each[1].replace(': ', ' ')})", found)
    if "(" not in found and ", " in found:
        found = " and ".join(found.rsplit(", ", 1))
    return re.sub(r"(?<=[a-z])_(?=[a-z])", " ", found)


def at_limits(options: Sequence[ServedOption], limits_ms: Mapping[str, float]) -> dict[str, float]:
    """ttft, tpot → limit, of those that are within the range of the time of an option."""
    found = {}
    for column in TIMES:
        name = column.partition("_")[0]
        ends = [each.intervals[column] for each in options if column in each.intervals]
        if (limit := limits_ms.get(name)) and any(each.p05 <= limit <= each.p95 for each in ends):
            found[name] = limit
    return found


def moved_limits(one: Serving, other: Serving) -> dict[float, float]:
    """Factor on all limits → goodput of ``other`` over that of ``one``, without a draw; {} where either has none."""
    found = {}
    for factor in MOVED:
        rates = []
        for each in (one, other):
            given = each.spec.slo
            slo = given.model_copy(update={
                name: ns * factor for name in ("ttft_ns", "tpot_ns", "e2e_ns") if (ns := getattr(given, name))
            })  # fmt: skip
            rates.append(serve(each._replace(spec=each.spec.model_copy(update={"slo": slo}))).measures.goodput_per_s)
        if min(rates) <= 0:
            return {}
        found[factor] = rates[1] / rates[0]
    return found


def _gain(first: ServedOption, second: ServedOption, column: str, amounts: Mapping[str, float], per: str) -> str:
    """``goodput is 0.89 instead of 0.74 requests per second (1.06 ×, 0.75–2.1, a tie: more in 81 % of samples)``."""
    unit, what = HEADLINES[column]
    values = [each.samples[column] / amounts[each.name] for each in (second, first)]
    times = interval(np.where(values[0] == values[1], 1.0, values[0] / np.maximum(values[1], 1e-12)))
    ends = max(map(_ends, values), key=lambda each: each[1] - each[0])  # both have the digits of the wider range
    medians = [float(np.median(each)) for each in values]
    a, b = (carried_digits(each, *ends) if each else "0" for each in medians)
    name = "output" if what == "output" else what
    rate = unit.replace("/s", " per second")
    if a == b and max(1 - times.p05, times.p95 - 1) < NOTHING:
        return f"{name}{per} stays at {a} {rate}"
    both = f"{a} {rate} with both" if a == b else f"{a} instead of {b} {rate}"
    if not medians[1]:
        share = float((values[1] == 0).mean())
        none = f"none with {short(first.name)} in {'all' if share == 1 else f'{percent(share)} of'} samples"
        return f"{name}{per} is {both} ({none}{_tie(*values)})"
    is_far = abs(medians[0] / medians[1] / max(times.p50, 1e-12) - 1) > _APART and times.p50 <= _ENDLESS
    each = "sample by sample " if medians[0] and is_far else ""
    return f"{name}{per} is {both} ({each}{_ratio(times)}{_tie(*values)})"


def _ends(values: np.ndarray) -> tuple[float, float]:
    found = interval(values)
    return found.p05, found.p95


def _tie(second: np.ndarray, first: np.ndarray) -> str:
    """``, a tie: more in 81 % of samples, less in 6 %``; '' without one."""
    more = float((second > first * (1 + NOTHING)).mean())
    less = float((second < first * (1 - NOTHING)).mean())
    return "" if max(more, less) >= SURE else f", a tie: more in {percent(more)} of samples, less in {percent(less)}"


def _ratio(times: Interval) -> str:
    """``1.22 ×, 1.19–1.25``."""
    if times.p50 > _ENDLESS:
        return f"at least {significant(times.p05)} ×"
    if times.p95 > _ENDLESS:
        return f"{significant(times.p50)} ×, at least {significant(times.p05)}"
    texts = digits_of_ratio(times.p05, times.p50, times.p95)
    low, middle, high = (text if value else "0" for text, value in zip(texts, times, strict=True))
    return f"{middle} ×, {f'{low}–{high}' if low != high else 'in all samples'}"


def _change(first: ServedOption, second: ServedOption, column: str) -> str:
    """``TTFT is 500 instead of 870 ms (−60 % to −28 %)``; '' where there is none."""
    unit, what = HEADLINES[column]
    if column not in first.intervals or column not in second.intervals:
        return ""
    change = interval(second.samples[column] / first.samples[column])
    medians = [each.intervals[column].p50 for each in (second, first)]
    if max(1 - change.p05, change.p95 - 1) < NOTHING:
        return f"{what} stays at {significant(medians[0], 2)} {unit}"
    digits = 2 + (significant(medians[0], 2) == significant(medians[1], 2))
    a, b = (significant(each, digits) for each in medians)
    both = f"{significant(medians[0], 2)} {unit} with both" if a == b else f"{a} instead of {b} {unit}"
    percents = [100 * (each - 1) for each in (change.p05, change.p95)]
    digits = int(max(map(abs, percents)) < 0.5)
    rounded = [round(each, digits) for each in percents]
    ends = [f"{each:+.{digits}f}\u00a0%".replace("-", "−") if each else "0\u00a0%" for each in rounded]
    if change.p95 > _MANY:
        ends = [f"{significant(each, 2)}\u00a0×" for each in (change.p05, change.p95)]
    return f"{what} is {both} ({ends[0]} to {ends[1]})"
