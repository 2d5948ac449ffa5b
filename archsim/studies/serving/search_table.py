"""A search of configurations in words: the best, and rows that stand for all configurations with the same numbers."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from archsim.base.tables import INTEGER, REAL, TEXT, Table
from archsim.base.text.quantities import TIME, format_quantity
from archsim.serving.measures import UNDEFINED, Measures, number
from archsim.specs.loading.serving import Serving
from archsim.specs.serving import SloSpec
from archsim.studies.serving.highest_rate import WITHIN
from archsim.studies.serving.page import front
from archsim.studies.serving.runs import MEASURES, flat
from archsim.studies.serving.search import Choice, Found

COLUMNS = ("goodput /s", "requests /s", "tokens/s a device", "TTFT p50 ms", "TPOT p50 ms", "KV")
_NEAR = 0.99  # of the best goodput, which as many others reach if the rate of arrivals bounds it


class Alike(NamedTuple):
    """Configurations of the same parallel sizes, with the same `values`; the first of the search's order leads."""

    choices: tuple[Choice, ...]
    measures: Measures

    @property
    def name(self) -> str:
        """With all batch limits and policies, if any of the one goes with any of the other; else the first, and how
        many more.
        """
        kept = [(each.max_num_seqs, each.max_num_batched_tokens, each.policy) for each in self.choices]
        columns = [list(dict.fromkeys(column)) for column in zip(*kept, strict=True)]
        seqs, tokens, policies = columns
        if len(kept) < len(seqs) * len(tokens) * len(policies):
            return f"{self.choices[0].name}; and {len(kept) - 1} more"
        limits = f"{_either(sorted(seqs))} seqs, {_either(sorted(tokens))} tokens"
        return ", ".join([self.choices[0].ranks, limits, *filter(None, [_either(policies)])])


def values(measures: Measures) -> tuple[str, ...]:
    """COLUMNS of a configuration."""
    each = (
        measures.goodput_per_s, measures.requests_per_s, measures.output_tokens_per_s_device,
        measures.ttft.percentiles[0], measures.tpot.percentiles[0],
    )
    return *(number(value, ",.2f") for value in each), f"{measures.kv_peak:.0%}"


def alike(found: Sequence[Found]) -> list[Alike]:
    """The configurations that can run, in groups, most goodput first."""
    groups: dict[tuple, tuple[list[Choice], Measures]] = {}
    for each in found:
        if each.measures is not None:
            key = each.choice.ranks, values(each.measures)
            groups.setdefault(key, ([], each.measures))[0].append(each.choice)
    return [Alike(tuple(choices), measures) for choices, measures in groups.values()]


def best_told(serving: Serving, found: Sequence[Found]) -> Iterator[str]:
    """Sentences: the best configuration with its numbers, those that equal it, and why many do; none if all were
    refused.
    """
    served = [each.measures for each in found if each.measures is not None]
    if not served:
        return
    first, best = alike(found)[0], served[0]
    choice = first.choices[0]
    yield (
        f"best: goodput {best.goodput_per_s:.3f} requests/s on {choice.devices} devices, {best.within_slo:.1%} of "
        f"requests within {_limits(serving.spec.slo)}: {choice.name}"
    )
    if len(first.choices) > 1:
        yield f"the same numbers, {len(first.choices)} configurations: {first.name}"
    yield from (each for each in (best.saturated, best.unsteady) if each)
    rate = found[0].highest_rate
    if rate is not None:
        yield f"highest rate with {WITHIN:.0%} of requests within them: {rate:.2f} requests/s" if rate else (
            f"at no rate are {WITHIN:.0%} of requests within them"
        )
    yield from _front_told(found)
    near = sum(each.goodput_per_s >= _NEAR * best.goodput_per_s for each in served)
    if serving.spec.requests.arrivals is not None and near > len(first.choices) and best.within_slo >= _NEAR:
        yield (
            f"{near} of {len(served)} tie within 1% of the best goodput, as requests come at a fixed rate; the first "
            "are in order of their highest rates: raise requests.arrivals.rate to tell all apart"
        )


def on_front(found: Sequence[Found]) -> list[Found]:
    """Configurations that no other beats in both output tokens a second a device and a user, fastest for users last.
    All have the same devices, so that tokens a W or a USD have the same front.
    """
    served = [each for each in found if each.measures is not None]
    both = [
        (0.0 if m.tpot == UNDEFINED else m.tokens_per_s_user, m.output_tokens_per_s_device)
        for m in (each.measures for each in served) if m
    ]  # fmt: skip
    return [served[at] for at in front(both)]


def _front_told(found: Sequence[Found]) -> Iterator[str]:
    for each in on_front(found):
        m = each.measures
        assert m is not None
        speeds = f"{m.output_tokens_per_s_device:,.0f} tokens/s a device at {number(m.tokens_per_s_user, '.1f')} a user"
        yield f"front: {speeds}: {each.choice.name}"


def table_of(found: Sequence[Found]) -> Table:
    """A row a configuration, in their order: sizes, batch limits, highest rate, measures, and why it was refused."""
    columns = {
        "configuration": TEXT, **dict.fromkeys(SIZES, INTEGER), "policy": TEXT, "highest_rate_per_s": REAL,
        "front": INTEGER, **MEASURES, "refused": TEXT,
    }  # fmt: skip
    best = {each.choice for each in on_front(found)}
    return Table(columns, tuple(_row(each) | {"front": int(each.choice in best)} for each in found))


SIZES = ("instances", "prefill", "tp", "dp", "ep", "expert_tp", "max_num_seqs", "max_num_batched_tokens")


def _row(found: Found) -> dict[str, Any]:
    choice = found.choice
    attention, experts = choice.parallel.attention, choice.parallel.experts
    spread = (experts.ep, experts.tp) if experts else (None, None)
    sizes = (
        choice.instances, choice.prefill, attention.tp, attention.dp, *spread, choice.max_num_seqs,
        choice.max_num_batched_tokens,
    )  # fmt: skip
    return {
        "configuration": choice.name, **dict(zip(SIZES, sizes, strict=True)), "policy": choice.policy,
        "highest_rate_per_s": found.highest_rate, **flat(found.measures), "refused": found.refused,
    }  # fmt: skip


def _limits(slo: SloSpec) -> str:
    given = (("TTFT", slo.ttft_ns), ("TPOT", slo.tpot_ns), ("E2E", slo.e2e_ns))
    told = [f"{name} {format_quantity(limit, TIME)}" for name, limit in given if limit is not None]
    return ", ".join(told) or "no limits (the file has no slo:)"


def _either(each: Sequence) -> str:
    return " or ".join(", ".join(map(str, each)).rsplit(", ", 1))
