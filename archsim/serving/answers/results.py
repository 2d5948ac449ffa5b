"""What a search has found: each configuration with its numbers, the best of them in words, and all as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from archsim.base.quantities import TIME, format_quantity
from archsim.base.tables import INTEGER, MOST_ROWS, REAL, TEXT, Shown, Table
from archsim.base.units import NS_PER_MS
from archsim.serving.answers.configuration import SIZES, Configuration, describe_sizes
from archsim.serving.answers.highest_rate import WITHIN
from archsim.serving.answers.page import front
from archsim.serving.answers.runs import MEASURES, flat
from archsim.serving.measures import PERCENTILES, UNDEFINED, Measures, number
from archsim.show.units import listing, percent, rounded_up, significant
from archsim.specs.serving import SloSpec
from archsim.specs.serving_files import Serving
from archsim.uncertainty.estimate import Interval

if TYPE_CHECKING:
    import pandas

NEAR = 0.99  # as many others reach it if the rate of arrivals bounds the goodput


class ConfigurationResult(NamedTuple):
    """What comes of a configuration at the load of the file."""

    choice: Configuration
    measures: Measures | None  # None where it was refused
    refused: str  # why it cannot run; ''
    highest_rate: float | None = None  # requests a second within the limits; None: not among those whose rate is found
    estimate: float = 0.0  # about that of its sizes, whatever their batch limits; 0: unknown
    highest_range: Interval | None = None  # of the highest rate in samples; None: not the best

    def __repr__(self) -> str:
        name = type(self).__name__
        if self.measures is None:
            return f"{name}({self.choice.name}: refused: {self.refused})"
        most = "" if self.highest_rate is None else f", {significant(self.highest_rate)} requests/s within the limits"
        return f"{name}({self.choice.name}: goodput {significant(self.measures.goodput_per_s)}{most})"


class Searched(Shown, list[ConfigurationResult]):
    """Configurations, the best first."""

    def __repr__(self) -> str:
        more = f"\n  and {len(self) - MOST_ROWS:,} more" if len(self) > MOST_ROWS else ""
        best = "".join(f"\n  {each!r}" for each in self[:MOST_ROWS])
        return f"Searched({len(self):,} configurations{best}{more})"

    def to_pandas(self) -> pandas.DataFrame:
        """One row per configuration, as ``archsim serve --search --out`` writes them."""
        return table_of(self).to_pandas()


COLUMNS = ("highest rate /s", "goodput /s", "requests /s", "tokens/s per device", "TTFT p50 ms", "TPOT p50 ms", "KV")


class EqualConfigurations(NamedTuple):
    """Configurations of the same parallel sizes, with the same numbers; the first of the search's order leads."""

    choices: tuple[Configuration, ...]
    measures: Measures
    highest_rate: float | None = None  # of the first, as in `ConfigurationResult`

    @property
    def name(self) -> str:
        """The name with all batch limits and policies, if in all combinations; else the first, and how many more."""
        kept = [(each.max_num_seqs, each.max_num_batched_tokens, each.policy) for each in self.choices]
        columns = [list(dict.fromkeys(column)) for column in zip(*kept, strict=True)]
        seqs, tokens, policies = columns
        if len(kept) < len(seqs) * len(tokens) * len(policies):
            return f"{self.choices[0].name} and {len(kept) - 1} more"
        limits = f"{_either(sorted(seqs))} seqs, {_either(sorted(tokens))} tokens"
        return ", ".join([self.choices[0].ranks, limits, *filter(None, [_either(policies)])])


def values(measures: Measures, highest_rate: float | None) -> tuple[str, ...]:
    """COLUMNS of a configuration."""
    each = (
        np.nan if highest_rate is None else highest_rate,
        measures.goodput_per_s,
        measures.requests_per_s,
        measures.output_tokens_per_s_device,
        measures.ttft.percentiles[0],
        measures.tpot.percentiles[0],
    )
    return *(number(value, ",.2f") for value in each), f"{measures.kv_peak:.0%}"


def equal_groups(found: Sequence[ConfigurationResult]) -> list[EqualConfigurations]:
    """The configurations that can run, in groups, most goodput first."""
    groups: dict[tuple, tuple[list[Configuration], Measures, float | None]] = {}
    for each in found:
        if each.measures is not None:
            key = each.choice.ranks, values(each.measures, None)
            groups.setdefault(key, ([], each.measures, each.highest_rate))[0].append(each.choice)
    return [EqualConfigurations(tuple(choices), measures, rate) for choices, measures, rate in groups.values()]


def answer(serving: Serving, found: Sequence[ConfigurationResult]) -> str:
    """What to serve with, how many requests it answers, the range, and batch limits; '' if all were refused."""
    if not found or (best := found[0].measures) is None:
        return ""
    choice, rate, ends = found[0].choice, found[0].highest_rate, found[0].highest_range
    if not rate and not best.goodput_per_s and (nearest := _nearest(serving, found)):
        return nearest
    engines = f"{choice.instances} engine{'s' if choice.instances > 1 else ''}"
    spread = "" if ends is None else f" ({significant(ends.p05, 2)} to {significant(ends.p95, 2)} in 90 % of samples)"
    serves = (
        f"it answers up to {significant(rate)} requests per second{spread}, of which {percent(WITHIN)}" if rate else
        f"at this load it answers {significant(best.goodput_per_s)} requests per second ({percent(best.within_slo)} of "
        "all) that"
    )  # fmt: skip
    policy = f" under policy {choice.policy}" if choice.policy else ""
    return (
        f"Serve {serving.model.name} with {engines} on {choice.devices} devices ({describe_sizes(choice)}){policy}: "
        f"{serves} {_within_limits(serving.spec.slo)}. Let each rank run up to {choice.max_num_seqs} requests and "
        f"{choice.max_num_batched_tokens:,} tokens per iteration."
    )


def _nearest(serving: Serving, found: Sequence[ConfigurationResult]) -> str:
    """Where none keeps the limits: which is nearest to them, and what would help; '' where requests never end."""
    slo, load = serving.spec.slo, serving.spec.requests
    limits = {name: ns for name in ("ttft", "tpot", "e2e") if (ns := getattr(slo, f"{name}_ns")) is not None}
    # At this percentile of each time WITHIN of the requests keep all limits together, whichever exceed one.
    at = int(np.searchsorted(PERCENTILES, 100 * (1 - (1 - WITHIN) / max(len(limits), 1)) - 1e-9))

    def times_ns(each: ConfigurationResult) -> dict[str, float]:
        return {name: getattr(each.measures, name).percentiles[at] * NS_PER_MS for name in limits}

    def over(each: ConfigurationResult) -> float:
        return max(ns / limits[name] for name, ns in times_ns(each).items())

    served = [each for each in found if each.measures is not None and over(each) < np.inf] if limits else []
    if not served:
        return ""
    nearest = min(served, key=over)
    own = times_ns(nearest)
    times = listing(f"{name.upper()} {format_quantity(float(f'{ns:.3g}'), TIME)}" for name, ns in own.items())
    raised = [f"slo.{name} to {format_quantity(rounded_up(ns), TIME)}" for name, ns in own.items() if ns > limits[name]]
    ways = [f"raise {listing(raised)}"] if raised else []
    if nearest.measures and nearest.measures.saturated and nearest.highest_rate != 0:  # no closed loop is
        ways.append(f"lower {'requests.arrivals.rate' if load.arrivals else 'requests.speed'}, as a queue grows")
    return (
        f"No configuration keeps {percent(WITHIN)} of the requests within {_limits(slo)}. The nearest is "
        f"{describe_sizes(nearest.choice)}, whose {PERCENTILES[at]}th percentiles are {times} at this load: "
        f"{', or '.join([*ways, 'give faster devices'])}."
    )


NOTATION = (
    "Notation: `2 x tp 4 dp 1, ep 4 tp 1, 256 seqs, 8192 tokens` are two engines. In each, 4 ranks share the heads of "
    "a request (tp), in 1 group of requests (dp). Experts are divided among 4 ranks (ep), and each expert "
    "is on 1 rank (tp). A rank runs up to 256 requests and 8,192 tokens per iteration."
)


def best_sentences(serving: Serving, found: Sequence[ConfigurationResult]) -> Iterator[str]:
    served = [each.measures for each in found if each.measures is not None]
    if not served:
        return
    group, best = equal_groups(found)[0], served[0]
    choice = group.choices[0]
    yield answer(serving, found)
    yield (
        f"At the load of the file, the best configuration ({choice.name}) has a goodput of "
        f"{significant(best.goodput_per_s, 2)} "
        f"requests/s on {choice.devices} devices: {best.within_slo:.1%} of its requests "
        f"{_within_limits(serving.spec.slo)}."
    )
    if len(group.choices) > 1:
        yield f"{len(group.choices)} configurations have the same numbers: {group.name}."
    yield from (each for each in (best.saturated, best.unsteady) if each)
    rate = found[0].highest_rate
    if rate is not None:
        yield (
            f"At most {significant(rate, 2)} requests/s keep the limits for {percent(WITHIN)} of the requests."
            if rate
            else f"At no rate do {percent(WITHIN)} of the requests keep the limits."
        )
    yield from _front_sentences(found)
    near = sum(each.goodput_per_s >= NEAR * best.goodput_per_s for each in served)
    if serving.spec.requests.arrivals is not None and near > len(group.choices) and best.within_slo >= NEAR:
        yield (
            f"{near} of {len(served)} configurations are within 1% of the best goodput, because requests come at a "
            "fixed rate. The first of them are ordered by their highest rates. Raise requests.arrivals.rate to rank "
            "all of them."
        )


def on_front(found: Sequence[ConfigurationResult]) -> list[ConfigurationResult]:
    """Configurations that none beats in output tokens/s both a device and a user, fastest for users last."""
    served = [each for each in found if each.measures is not None]
    both = [
        (0.0 if m.tpot == UNDEFINED else m.tokens_per_s_user, m.output_tokens_per_s_device)
        for m in (each.measures for each in served) if m
    ]  # fmt: skip
    return [served[at] for at in front(both)]


def _front_sentences(found: Sequence[ConfigurationResult]) -> Iterator[str]:
    for each in on_front(found):
        m = each.measures
        assert m is not None
        user = number(m.tokens_per_s_user, ".1f")
        yield (
            f"On the Pareto front, {each.choice.name} gives {m.output_tokens_per_s_device:,.0f} tokens/s per "
            f"device and {user} tokens/s per user."
        )


def table_of(found: Sequence[ConfigurationResult]) -> Table:
    columns = {
        "configuration": TEXT, **dict.fromkeys(SIZES, INTEGER), "policy": TEXT, "highest_rate_per_s": REAL,
        "front": INTEGER, **MEASURES, "refused": TEXT,
    }  # fmt: skip
    best = {each.choice for each in on_front(found)}
    return Table(columns, tuple(_row(each) | {"front": int(each.choice in best)} for each in found))


def _row(found: ConfigurationResult) -> dict[str, Any]:
    return {
        "configuration": found.choice.name, **found.choice.sizes, "policy": found.choice.policy,
        "highest_rate_per_s": found.highest_rate, **flat(found.measures), "refused": found.refused,
    }  # fmt: skip


def _within_limits(slo: SloSpec) -> str:
    """``stay within TTFT 2 s and TPOT 50 ms``, of requests."""
    limits = _limits(slo)
    return f"stay within {limits}" if limits else "count, as the file has no limits (slo:)"


def _limits(slo: SloSpec) -> str:
    """``TTFT 2 s and TPOT 50 ms``; '' for none."""
    given = (("TTFT", slo.ttft_ns), ("TPOT", slo.tpot_ns), ("E2E", slo.e2e_ns))
    return listing(f"{name} {format_quantity(limit, TIME)}" for name, limit in given if limit is not None)


def _either(each: Sequence) -> str:
    return " or ".join(", ".join(map(str, each)).rsplit(", ", 1))
