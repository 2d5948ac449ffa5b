"""Parallel sizes, batch limits and policy that give most goodput within limits on a given number of devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from archsim.base.errors import ArchsimError, SpecError
from archsim.base.shown import MOST_ROWS, Shown
from archsim.iteration.layers import has_experts
from archsim.serving.deployment import Built, Engine, kv_blocks, laws_of, with_host
from archsim.serving.measures import Measures
from archsim.serving.requests import Requests
from archsim.serving.serving import (
    Deployment,
    decodes_alone,
    engine_of,
    host_for,
    requests_of,
    serve_requests,
    transfer_of,
    with_experts,
)
from archsim.serving.simulate import Scheduler
from archsim.serving.tables import Host
from archsim.specs.deployment import AttentionRanks, ExpertRanks, ParallelSpec, PrecisionSpec
from archsim.specs.loading.serving import Serving
from archsim.specs.policies import PolicySpec
from archsim.specs.serving import RoutingSpec, TransferSpec
from archsim.studies.serving.highest_rate import highest_rate

if TYPE_CHECKING:
    import pandas

Known = dict[tuple[ParallelSpec, bool], tuple[Engine, Built]]  # engines by their sizes, and whether they decode alone
RATED = 8  # configurations whose highest rate is found, of those whose goodput is within NEAR of the best
NEAR = 0.99
ONCE = 10_000_000  # iterations after which tokens are drawn anew: a search draws them once


class Choice(NamedTuple):
    """One configuration. ``instances`` engines of ``parallel`` each, of which ``prefill`` only prefill and the others
    only decode; 0: all do both. ``policy``: '' without routing from traffic; ``precision``: None: that of the file;
    ``decode``: of engines that decode, None: as those that prefill.
    """

    parallel: ParallelSpec
    instances: int
    max_num_seqs: int
    max_num_batched_tokens: int
    policy: str = ""
    prefill: int = 0
    precision: PrecisionSpec | None = None
    decode: ParallelSpec | None = None

    @property
    def devices(self) -> int:
        """Of all engines."""
        prefill = self.prefill if self.decode else self.instances
        return prefill * self.parallel.ranks + (self.instances - prefill) * (self.decode or self.parallel).ranks

    @property
    def ranks(self) -> str:
        """``2 x tp 4 dp 1, ep 4 tp 1``, and what tells them apart beside batch limits and policy."""
        decodes = self.instances - self.prefill
        if self.decode:
            sizes = f"{self.prefill} x {_told(self.parallel)} prefill, {decodes} x {_told(self.decode)} decode"
        else:
            apart = f" ({self.prefill} prefill, {decodes} decode)" if self.prefill else ""
            sizes = f"{self.instances} x {_told(self.parallel)}{apart}"
        given = self.precision.model_dump(exclude_none=True) if self.precision else {}
        dtypes = "".join(f", {key} {dtype}" for key, dtype in given.items())
        return sizes + dtypes

    @property
    def name(self) -> str:
        """``2 x tp 4 dp 1, ep 4 tp 1, 256 seqs, 8192 tokens``."""
        policy = f", {self.policy}" if self.policy else ""
        return f"{self.ranks}, {self.max_num_seqs} seqs, {self.max_num_batched_tokens} tokens{policy}"


def _told(parallel: ParallelSpec) -> str:
    attention, experts = parallel.attention, parallel.experts
    return f"tp {attention.tp} dp {attention.dp}" + (f", ep {experts.ep} tp {experts.tp}" if experts else "")


class Layout(NamedTuple):
    """Sizes of engines, of those that decode where they are unlike, and (instances, prefill) of `Choice`."""

    parallel: ParallelSpec
    decode: ParallelSpec | None
    counts: Sequence[tuple[int, int]]


class Found(NamedTuple):
    """``refused``: why a configuration cannot run; ''. ``highest_rate``: requests a second within the limits, of the
    best in open loops.
    """

    choice: Choice
    measures: Measures | None
    refused: str
    highest_rate: float | None = None

    def __repr__(self) -> str:
        if self.measures is None:
            return f"Found({self.choice.name}: refused: {self.refused})"
        rate = "" if self.highest_rate is None else f", {self.highest_rate:.3f} requests/s within the limits at most"
        return f"Found({self.choice.name}: goodput {self.measures.goodput_per_s:.3f}{rate})"


class Searched(Shown, list[Found]):
    """Configurations, the best first."""

    def __repr__(self) -> str:
        more = f"\n  and {len(self) - MOST_ROWS:,} more" if len(self) > MOST_ROWS else ""
        best = "".join(f"\n  {each!r}" for each in self[:MOST_ROWS])
        return f"Searched({len(self):,} configurations{best}{more})"

    def to_pandas(self) -> pandas.DataFrame:
        """One row per configuration, as ``archsim serve --search --out`` writes them."""
        from archsim.studies.serving.search_table import table_of

        return table_of(self).to_pandas()


def search(serving: Serving, told: Callable[[str], None] = lambda text: None) -> list[Found]:
    """Every configuration; those first whose highest rate was found, the highest first, then by goodput and throughput;
    refused ones last. At one rate many have the same goodput: the highest rate within limits tells the best apart.
    ``told``: what is served next, of how many. Raises SpecError for none, and for pools apart.
    """
    if serving.spec.disaggregated != "none":
        raise SpecError(
            "disaggregated: a search varies engines that prefill and decode; leave the key out, and give search: "
            "{pools: [colocated, disaggregated]} to try both"
        )
    requests, found = requests_of(serving), []
    kinds, layouts = list(product(serving.spec.search.precision or (None,), serving.policies)), _layouts(serving)
    for kind, (precision, policy) in enumerate(kinds):
        served = _drawn_once(serving, policy, precision)
        known: Known = {}
        for at, layout in enumerate(layouts, 1 + kind * len(layouts)):
            told(f"serving with sizes {at} of {len(kinds) * len(layouts)}, {len(found)} configurations so far")
            found += _of_layout(served, layout, requests, precision, known)
    if not found:
        raise SpecError("search: no sizes divide the devices, heads and experts")
    found = sorted(found, key=_order)
    if not requests.offered_per_s:
        return found
    tied, rated = _tied(found), []
    for at, each in enumerate(tied, 1):
        told(f"finding the highest rate of {at} of the {len(tied)} best")
        rated.append(_with_rate(serving, each, requests))
    rated.sort(key=lambda each: -(each.highest_rate or 0.0))
    known = {each.choice for each in rated}
    return rated + [each for each in found if each.choice not in known]


def _tied(found: Sequence[Found]) -> list[Found]:
    """The first RATED whose goodput is near the best one, without those that differ in their batch limits alone and not
    in any number.
    """
    kept: dict[tuple, Found] = {}
    for each in found:
        if each.measures is None or found[0].measures is None:
            continue
        if each.measures.goodput_per_s >= NEAR * found[0].measures.goodput_per_s:
            kept.setdefault((each.choice.ranks, each.measures), each)
    return list(kept.values())[:RATED]


def _with_rate(serving: Serving, found: Found, requests: Requests) -> Found:
    """With the highest rate of its deployment, built anew."""
    if found.measures is None:
        return found
    choice = found.choice
    policy = next((each for each in serving.policies if each.name == choice.policy), serving.policy)
    served = _drawn_once(serving, policy, choice.precision)
    deployment = _deployed(served, _sides(served, choice.parallel, choice.decode, choice.prefill > 0, {}), choice)
    return found._replace(highest_rate=highest_rate(served, deployment, requests))


def _of_layout(
    serving: Serving, layout: Layout, requests: Requests, precision: PrecisionSpec | None, known: Known
) -> Iterator[Found]:
    """All batch limits of engines of some sizes under one policy."""
    given, policy = serving.spec.search, serving.policy.name if serving.has_traffic else ""
    choices = [
        Choice(layout.parallel, instances, seqs, tokens, policy, prefill, precision, layout.decode)
        for instances, prefill in layout.counts for tokens in given.max_num_batched_tokens
        for seqs in given.max_num_seqs
    ]  # fmt: skip
    try:
        apart = any(prefill for _, prefill in layout.counts)
        sides = _sides(serving, layout.parallel, layout.decode, apart, known)
    except ArchsimError as error:
        yield from (Found(choice, None, str(error)) for choice in choices)
        return
    for choice in choices:
        try:
            yield Found(choice, serve_requests(serving, _deployed(serving, sides, choice), requests).measures, "")
        except ArchsimError as error:
            yield Found(choice, None, str(error))


def _drawn_once(serving: Serving, policy: PolicySpec, precision: PrecisionSpec | None = None) -> Serving:
    """Under a policy and a precision; tokens of experts are drawn once."""
    spec = serving.spec
    if precision is not None:
        spec = spec.model_copy(update={"precision": precision})
    if isinstance(spec.routing, RoutingSpec):
        spec = spec.model_copy(update={"routing": spec.routing.model_copy(update={"every": ONCE})})
    return serving._replace(spec=spec, policy=policy)


def _order(found: Found) -> tuple:
    if found.measures is None:
        return (1, 0.0, 0.0, found.choice.name)
    return (0, -found.measures.goodput_per_s, -found.measures.output_tokens_per_s, found.choice.name)


def _layouts(serving: Serving) -> list[Layout]:
    """Those of the file's pools, on all devices."""
    pools, devices = serving.spec.search.pools, serving.spec.search.devices or serving.system.dies
    sizes, found = list(_sizes(serving, devices)), []
    for parallel in sizes:
        instances = devices // parallel.ranks
        apart = range(1, instances) if "disaggregated" in pools else ()
        counts = [(instances, prefill) for prefill in (*((0,) if "colocated" in pools else ()), *apart)]
        found.append(Layout(parallel, None, counts))
    for parallel, decode in product(sizes, sizes) if "unlike" in pools else ():
        counts = [
            (prefill + left // decode.ranks, prefill) for prefill in range(1, devices // parallel.ranks + 1)
            if (left := devices - prefill * parallel.ranks) and not left % decode.ranks
        ]  # fmt: skip
        if parallel != decode:
            found.append(Layout(parallel, decode, counts))
    return [layout for layout in found if layout.counts]


def _sizes(serving: Serving, devices: int) -> Iterator[ParallelSpec]:
    moe = has_experts(serving.model)
    for ranks in _divisors(devices):
        for tp in _divisors(ranks):
            attention = AttentionRanks(tp=tp, dp=ranks // tp)
            if not moe:
                if attention.dp == 1:
                    yield ParallelSpec(attention=attention)
                continue
            for ep in dict.fromkeys((ranks, 1)):
                yield ParallelSpec(attention=attention, experts=ExpertRanks(ep=ep, tp=ranks // ep))


def _divisors(number: int) -> Sequence[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _scheduler(serving: Serving, seqs: int, tokens: int) -> Scheduler:
    return Scheduler.of(serving.spec.scheduler, max_num_seqs=seqs, max_num_batched_tokens=tokens)


def _sides(
    serving: Serving, parallel: ParallelSpec, decode: ParallelSpec | None, apart: bool, known: Known
) -> tuple[tuple[Engine, Built], ...]:
    """An engine that does both or prefills, and one that decodes alone, which may have other kernels. ``known``: those
    that were built before.
    """
    host, alone = host_for(serving), decode or parallel
    kinds = [(serving, parallel), (decodes_alone(serving, alone), alone)][: 1 + apart]
    found = []
    for one, sizes in kinds:
        key = sizes, one is not serving
        if key not in known:
            known[key] = _largest(one, sizes, host)
        found.append(known[key])
    return tuple(found)


def _largest(serving: Serving, parallel: ParallelSpec, host: Host) -> tuple[Engine, Built]:
    """An engine with the laws of the largest batch of the search; smaller ones read the same tables, and the times of
    one group of experts that has rebalanced.
    """
    given, engine = serving.spec.search, engine_of(serving, parallel)._replace(profiled_seqs=0)
    scheduler = _scheduler(serving, max(given.max_num_seqs), max(given.max_num_batched_tokens))
    laws, notes = laws_of(engine, scheduler)
    built = with_experts(serving, engine, with_host(laws, notes, engine, scheduler, host, 1), scheduler, host)
    if built.pool.experts is not None:
        group = built.pool.experts(0)
        group.settle()
        built = built._replace(pool=built.pool._replace(experts=lambda instance, say: group))
    return engine, built


def _deployed(serving: Serving, sides: Sequence[tuple[Engine, Built]], choice: Choice) -> Deployment:
    scheduler = _scheduler(serving, choice.max_num_seqs, choice.max_num_batched_tokens)
    counts = (choice.prefill, choice.instances - choice.prefill) if choice.prefill else (choice.instances,)
    built = [
        known._replace(pool=known.pool._replace(instances=count, kv_blocks=kv_blocks(engine, scheduler)))
        for (engine, known), count in zip(sides, counts, strict=False)
    ]
    first, host = built[0], host_for(serving)
    if not choice.prefill:
        return Deployment(scheduler, host, first, None, None, choice.devices, first.notes)
    moved = transfer_of(serving, sides[0][0], TransferSpec(), host)
    return Deployment(scheduler, host, first, built[1], moved, choice.devices, first.notes)
