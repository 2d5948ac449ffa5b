"""Parallel sizes, batch limits and policy that give most goodput within limits on a given number of devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from archsim.base.errors import ArchsimError, SpecError
from archsim.iteration.layers import has_experts
from archsim.serving.deployment import Built, Engine, kv_blocks, laws_of, with_host
from archsim.serving.measures import Measures
from archsim.serving.requests import Requests
from archsim.serving.serving import Deployment, engine_of, host_for, requests_of, serve_requests, with_experts
from archsim.serving.simulate import Scheduler
from archsim.serving.tables import Host
from archsim.specs.deployment import AttentionRanks, ExpertRanks, ParallelSpec
from archsim.specs.loading.serving import Serving
from archsim.specs.policies import PolicySpec
from archsim.specs.serving import RoutingSpec
from archsim.studies.serving.highest_rate import highest_rate

RATED = 8  # configurations whose highest rate is found, of those whose goodput is within NEAR of the best
NEAR = 0.99
ONCE = 10_000_000  # iterations after which tokens are drawn anew: a search draws them once


class Choice(NamedTuple):
    """One configuration. ``instances`` engines of ``parallel`` each; ``policy``: '' without routing from traffic."""

    parallel: ParallelSpec
    instances: int
    max_num_seqs: int
    max_num_batched_tokens: int
    policy: str = ""

    @property
    def ranks(self) -> str:
        """``2 x tp 4 dp 1, ep 4 tp 1``."""
        attention, experts = self.parallel.attention, self.parallel.experts
        spread = f", ep {experts.ep} tp {experts.tp}" if experts else ""
        return f"{self.instances} x tp {attention.tp} dp {attention.dp}{spread}"

    @property
    def name(self) -> str:
        """``2 x tp 4 dp 1, ep 4 tp 1, 256 seqs, 8192 tokens``."""
        policy = f", {self.policy}" if self.policy else ""
        return f"{self.ranks}, {self.max_num_seqs} seqs, {self.max_num_batched_tokens} tokens{policy}"


class Found(NamedTuple):
    """``refused``: why a configuration cannot run; ''. ``highest_rate``: requests a second within the limits, of the
    best in open loops.
    """

    choice: Choice
    measures: Measures | None
    refused: str
    highest_rate: float | None = None


def search(serving: Serving) -> list[Found]:
    """Every configuration; those first whose highest rate was found, the highest first, then by goodput and throughput;
    refused ones last. At one rate many have the same goodput: the highest rate within limits tells the best apart.
    Raises SpecError for none, and for pools apart.
    """
    if serving.spec.disaggregated != "none":
        raise SpecError(
            "disaggregated: a search varies engines that prefill and decode; leave the key out, or serve pools beside "
            "each other (sweep: {grid: {disaggregated: [{prefill: ..., decode: ...}, ...]}})"
        )
    requests, host, found = requests_of(serving), host_for(serving), []
    for parallel, instances in _sizes(serving):
        for policy in serving.policies:
            found += _of_engine(_drawn_once(serving, policy), parallel, instances, requests, host)
    if not found:
        raise SpecError("search: no sizes divide the devices, heads and experts")
    found = sorted(found, key=_order)
    if not requests.offered_per_s:
        return found
    rated = [_with_rate(serving, each, requests, host) for each in _tied(found)]
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
            kept.setdefault((each.choice.parallel, each.choice.instances, each.measures), each)
    return list(kept.values())[:RATED]


def _with_rate(serving: Serving, found: Found, requests: Requests, host: Host) -> Found:
    """With the highest rate of its deployment, built anew."""
    if found.measures is None:
        return found
    choice = found.choice
    policy = next((each for each in serving.policies if each.name == choice.policy), serving.policy)
    served = _drawn_once(serving, policy)
    scheduler = _scheduler(served, choice.max_num_seqs, choice.max_num_batched_tokens)
    deployment = _deployed(*_largest(served, choice.parallel, host), choice, scheduler, host)
    return found._replace(highest_rate=highest_rate(served, deployment, requests))


def _of_engine(
    serving: Serving, parallel: ParallelSpec, instances: int, requests: Requests, host: Host
) -> Iterator[Found]:
    """All batch limits of one engine under one policy."""
    given, policy = serving.spec.search, serving.policy.name if serving.has_traffic else ""
    limits = [(seqs, tokens) for tokens in given.max_num_batched_tokens for seqs in given.max_num_seqs]
    try:
        known = _largest(serving, parallel, host)
    except ArchsimError as error:
        yield from (Found(Choice(parallel, instances, *each, policy), None, str(error)) for each in limits)
        return
    for seqs, tokens in limits:
        choice = Choice(parallel, instances, seqs, tokens, policy)
        scheduler = _scheduler(serving, seqs, tokens)
        try:
            pool = _deployed(*known, choice, scheduler, host)
            yield Found(choice, serve_requests(serving, pool, requests).measures, "")
        except ArchsimError as error:
            yield Found(choice, None, str(error))


def _drawn_once(serving: Serving, policy: PolicySpec) -> Serving:
    """Under a policy; tokens of experts are drawn once."""
    spec = serving.spec
    if isinstance(spec.routing, RoutingSpec):
        spec = spec.model_copy(update={"routing": spec.routing.model_copy(update={"every": ONCE})})
    return serving._replace(spec=spec, policy=policy)


def _order(found: Found) -> tuple:
    if found.measures is None:
        return (1, 0.0, 0.0, found.choice.name)
    return (0, -found.measures.goodput_per_s, -found.measures.output_tokens_per_s, found.choice.name)


def _sizes(serving: Serving) -> Iterator[tuple[ParallelSpec, int]]:
    devices = serving.spec.search.devices or serving.system.dies
    moe = has_experts(serving.model)
    for ranks in _divisors(devices):
        for tp in _divisors(ranks):
            attention = AttentionRanks(tp=tp, dp=ranks // tp)
            if not moe:
                if attention.dp == 1:
                    yield ParallelSpec(attention=attention), devices // ranks
                continue
            for ep in dict.fromkeys((ranks, 1)):
                yield ParallelSpec(attention=attention, experts=ExpertRanks(ep=ep, tp=ranks // ep)), devices // ranks


def _divisors(number: int) -> Sequence[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _scheduler(serving: Serving, seqs: int, tokens: int) -> Scheduler:
    return Scheduler.of(serving.spec.scheduler, max_num_seqs=seqs, max_num_batched_tokens=tokens)


def _largest(serving: Serving, parallel: ParallelSpec, host: Host) -> tuple[Engine, Built]:
    """An engine with the laws of the largest batch of the search; smaller ones read the same tables, and the times of
    one group of experts that has rebalanced.
    """
    given, engine = serving.spec.search, engine_of(serving, parallel)
    scheduler = _scheduler(serving, max(given.max_num_seqs), max(given.max_num_batched_tokens))
    laws, notes = laws_of(engine, scheduler)
    built = with_experts(serving, engine, with_host(laws, notes, engine, scheduler, host, 1), scheduler, host)
    if built.pool.experts is not None:
        group = built.pool.experts(0)
        group.settle()
        built = built._replace(pool=built.pool._replace(experts=lambda instance, say: group))
    return engine, built


def _deployed(engine: Engine, largest: Built, choice: Choice, scheduler: Scheduler, host: Host) -> Deployment:
    pool = largest.pool._replace(instances=choice.instances, kv_blocks=kv_blocks(engine, scheduler))
    devices = choice.instances * choice.parallel.ranks
    return Deployment(scheduler, host, largest._replace(pool=pool), None, None, devices, largest.notes)
