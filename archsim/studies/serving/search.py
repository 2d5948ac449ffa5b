"""Parallel sizes, batch limits and policy that give most goodput within limits on a given number of devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError, SpecError, TraceError
from archsim.base.fields import TIME, format_quantity
from archsim.base.files import own_folder, write_text
from archsim.base.tables import INTEGER, MOST_ROWS, REAL, TEXT, Shown, Table
from archsim.base.units import NS_PER_S
from archsim.iteration.layers import has_experts
from archsim.report.plots import Colours, PlotAxis, Points
from archsim.report.units import listed
from archsim.runs import store as cache
from archsim.runs.run import Job, Record, Workspace
from archsim.runs.store import RecordStore
from archsim.runs.sweep import Unwatched, complete, refuse_failed
from archsim.serving.clock import times_of
from archsim.serving.deployment import DECODE, PREFILL, Built, ServingEngine, kv_blocks, laws_of, with_host
from archsim.serving.measures import UNDEFINED, Measures, number, saturation, within_limits
from archsim.serving.requests import Requests, first, scaled
from archsim.serving.serving import (
    ENOUGH,
    Deployment,
    Outcome,
    decodes_alone,
    engine_of,
    host_for,
    kv_store_of,
    requests_of,
    serve_requests,
    simulated,
    slo_of,
    transfer_of,
    with_experts,
)
from archsim.serving.simulate import Pool, Scheduler, Served
from archsim.specs.deployment import AttentionRanks, ExpertRanks, ParallelSpec, PrecisionSpec
from archsim.specs.policies import PolicySpec
from archsim.specs.recipes import with_recipe
from archsim.specs.schedulers import is_function
from archsim.specs.serving import RoutingSpec, SloSpec, TransferSpec
from archsim.specs.serving_files import Serving
from archsim.studies.serving.page import SHOWN, front
from archsim.studies.serving.runs import MEASURES, code_of_serving, flat, functions_of, key_of, measures_of

if TYPE_CHECKING:
    import pandas


# ---- highest_rate
# The highest rate that a deployment serves within its limits, by bisection.

WITHIN = 0.9  # share of requests within all limits (DistServe, section 2: SLO attainment)
CLOSE = 0.03  # to which the rate is found
MOST_DOUBLINGS = 12
SUSTAINED = 20_000  # requests that a promised rate is held to: a queue that grows by 1 % shows


def highest_rate(serving: Serving, deployment: Deployment, requests: Requests) -> float:
    """Requests a second at which WITHIN of them are within the limits, and the run is not saturated; 0 where no rate
    is. The same requests come faster or slower. Requests that are drawn are as many as show a growing queue: ENOUGH to
    find the rate, then SUSTAINED, of which it is lowered until it holds.
    """
    own = requests.offered_per_s

    def fits(asked: Requests, rate: float) -> bool:
        return share_within(serving, deployment, scaled(asked, rate / asked.offered_per_s)) >= WITHIN

    few, many = (_drawn(serving, requests, count) for count in (ENOUGH, SUSTAINED))
    rate = _found(lambda rate: fits(few, rate), own)
    if not rate or len(many.input) < SUSTAINED or fits(many, rate):
        return rate
    return _lowered(lambda rate: fits(many, rate), rate)


def share_within(serving: Serving, deployment: Deployment, requests: Requests) -> float:
    """The share of requests that are within all limits. It is 0 where they come faster than they end."""
    served = simulated(serving, deployment, requests)
    return 0.0 if saturation(served) else float(within_limits(served, slo_of(serving)).mean())


def _lowered(fits: Callable[[float], bool], high: float) -> float:
    """The highest rate that fits, below one that does not, in as few runs as find it where it is near; 0 where none
    does.
    """
    low, step = high / (1 + CLOSE), 2 * CLOSE
    for _ in range(MOST_DOUBLINGS):
        if fits(low):
            break
        low, high, step = low / (1 + step), low, 2 * step
    else:
        return 0.0
    return _between(fits, low, high)


def _found(fits: Callable[[float], bool], first: float) -> float:
    """The highest rate that fits, from a first guess; 0 where none does."""
    low, high = (first, 0.0) if fits(first) else (0.0, first)
    for _ in range(MOST_DOUBLINGS):
        rate = 2 * low if not high else high / 2
        if low and high:
            break
        if fits(rate):
            low = rate
        else:
            high = rate
    return _between(fits, low, high) if low and high else low


def _between(fits: Callable[[float], bool], low: float, high: float) -> float:
    """The highest rate that fits, between one that does and one that does not."""
    while high / low > (1 + CLOSE) * (1 + 1e-9):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _drawn(serving: Serving, requests: Requests, count: int) -> Requests:
    """``count`` requests of the file; those given, where it has no more, or one among them that cannot be served."""
    if len(requests.input) >= count or serving.spec.requests.trace is not None:
        return requests
    more = serving.spec.requests.model_copy(update={"total": count})
    try:
        return requests_of(serving._replace(spec=serving.spec.model_copy(update={"requests": more})))
    except TraceError:
        return requests


# ---- search

Known = dict[
    tuple[ParallelSpec, bool], tuple[ServingEngine, Built]
]  # engines by their sizes, and whether they decode alone
RATED = 8  # configurations whose highest rate is found, of those whose goodput is within NEAR of the best
NEAR = 0.99  # as many others reach it if the rate of arrivals bounds the goodput
ONCE = 10_000_000  # iterations after which tokens are drawn anew: a search draws them once


class Configuration(NamedTuple):
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
        """The devices of all engines together."""
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


class EngineLayout(NamedTuple):
    """Sizes of engines, of those that decode where they are unlike, and (instances, prefill) of `Configuration`."""

    parallel: ParallelSpec
    decode: ParallelSpec | None
    counts: Sequence[tuple[int, int]]


class ConfigurationResult(NamedTuple):
    """``refused``: why a configuration cannot run; ''. ``highest_rate``: requests a second within the limits, of the
    best in open loops; ``estimate``: about that of its sizes, whatever their batch limits; 0: unknown.
    """

    choice: Configuration
    measures: Measures | None
    refused: str
    highest_rate: float | None = None
    estimate: float = 0.0

    def __repr__(self) -> str:
        if self.measures is None:
            return f"Found({self.choice.name}: refused: {self.refused})"
        rate = "" if self.highest_rate is None else f", {self.highest_rate:.3f} requests/s within the limits at most"
        return f"Found({self.choice.name}: goodput {self.measures.goodput_per_s:.3f}{rate})"


class Searched(Shown, list[ConfigurationResult]):
    """Configurations, the best first."""

    def __repr__(self) -> str:
        more = f"\n  and {len(self) - MOST_ROWS:,} more" if len(self) > MOST_ROWS else ""
        best = "".join(f"\n  {each!r}" for each in self[:MOST_ROWS])
        return f"Searched({len(self):,} configurations{best}{more})"

    def to_pandas(self) -> pandas.DataFrame:
        """One row per configuration, as ``archsim serve --search --out`` writes them."""
        return table_of(self).to_pandas()


_SOURCE = "archsim/studies/serving/search.py"


@dataclass(frozen=True, eq=False)
class PartOfSearch(Job):
    """A part of a search, under one policy and precision: ``serving``, whose ``search:`` says what varies."""

    serving: Serving
    precision: PrecisionSpec | None

    @cached_property
    def code(self) -> str:
        """Digest of the code and the host constants that decide its numbers."""
        return code_of_serving(functions_of(self.serving), _SOURCE)

    @property
    def cacheable(self) -> bool:
        """See `Job.cacheable`."""
        return not functions_of(self.serving)

    @cached_property
    def group(self) -> str:
        """Parts of one policy and precision share engines."""
        return key_of(self.serving)

    @property
    def kernel(self) -> str:
        """All share the loop over iterations."""
        return "serving"


@dataclass(frozen=True, eq=False)
class OfLayout(PartOfSearch):
    """All batch limits of engines of some sizes. Its row has ``found``: of each of `choices`, why it was refused, the
    estimated rate, and `MEASURES`.
    """

    layout: EngineLayout

    @cached_property
    def key(self) -> str:
        """See `Job.key`."""
        given = self.serving.spec.search
        return key_of(self.serving, [each.name for each in self.choices], given.max_num_seqs)

    @property
    def name(self) -> str:
        """``tp 4 dp 1, ep 4 tp 1``, of the first number of engines."""
        return self.choices[0].ranks

    @property
    def choices(self) -> list[Configuration]:
        """Its configurations."""
        given, layout = self.serving.spec.search, self.layout
        policy = self.serving.policy.name if self.serving.has_traffic else ""
        return [
            Configuration(layout.parallel, instances, seqs, tokens, policy, prefill, self.precision, layout.decode)
            for instances, prefill in layout.counts for tokens in given.max_num_batched_tokens
            for seqs in given.max_num_seqs
        ]  # fmt: skip

    def summary(self, row: Mapping[str, Any]) -> str:
        """See `Job.summary`."""
        refused = sum(bool(why) for why, _, _ in row["found"])
        return f"{len(row['found'])} configurations" + (f", {refused} of them refused" if refused else "")

    def found(self, record: Record) -> list[ConfigurationResult]:
        """What a record says of each of `choices`."""
        return [
            ConfigurationResult(choice, None if refused else measures_of(measures), refused, estimate=estimate)
            for choice, (refused, estimate, measures) in zip(self.choices, record["row"]["found"], strict=True)
        ]

    def simulate(self, workspace: Workspace) -> Record:
        """Serve the requests with every configuration."""
        began = perf_counter()
        found = self._served(workspace.of(_Engines))
        row = {"found": [(each.refused, each.estimate, flat(each.measures)) for each in found]}
        return {"run": self.key, "row": row, "host": {"wall_s": perf_counter() - began}}

    def warm_up(self, workspace: Workspace) -> None:
        """Serve the first requests with the first configuration that has the smallest batches."""
        engines, given, layout = workspace.of(_Engines), self.serving.spec.search, self.layout
        choice = self.choices[0]._replace(
            max_num_seqs=min(given.max_num_seqs), max_num_batched_tokens=min(given.max_num_batched_tokens)
        )
        requests = engines.requests(self.serving)
        sides = _sides(self.serving, layout.parallel, layout.decode, choice.prefill > 0, {})
        estimated(self.serving, *sides[0], requests)
        simulated(self.serving, deployed(self.serving, sides, choice), first(requests, 8))

    def _served(self, engines: _Engines) -> list[ConfigurationResult]:
        serving, layout, choices = self.serving, self.layout, self.choices
        requests, known = engines.requests(serving), engines.known.setdefault(self.group, {})
        try:
            apart = any(prefill for _, prefill in layout.counts)
            sides = _sides(serving, layout.parallel, layout.decode, apart, known)
        except ArchsimError as error:
            return [ConfigurationResult(choice, None, str(error)) for choice in choices]
        alike: dict[tuple[int, int, int], _Unbound] = {}
        estimate = 0.0 if apart else estimated(serving, *sides[0], requests).rate
        found: dict[Configuration, ConfigurationResult] = {}
        for choice in sorted(choices, key=lambda each: each.max_num_seqs):
            key = choice.instances, choice.prefill, choice.max_num_batched_tokens
            try:
                deployment = deployed(serving, sides, choice)
                blocks = deployment.prefill.pool.kv_blocks
                measures = alike[key].with_room(blocks) if key in alike else None
                if measures is None:
                    outcome = serve_requests(serving, deployment, requests)
                    measures = outcome.measures
                    if unbound := _unbound(outcome, choice):
                        alike[key] = unbound
                found[choice] = ConfigurationResult(choice, measures, "", estimate=choice.instances * estimate)
            except ArchsimError as error:
                found[choice] = ConfigurationResult(choice, None, str(error))
        return [found[choice] for choice in choices]


@dataclass(frozen=True, eq=False)
class OfRate(PartOfSearch):
    """The highest rate of one configuration, on a deployment that is built anew; its row has ``highest_rate``.
    ``requests``: by how many it is found, and then held to.
    """

    choice: Configuration
    requests: tuple[int, int]

    @cached_property
    def key(self) -> str:
        """See `Job.key`."""
        return key_of(self.serving, self.choice.name, max(self.serving.spec.search.max_num_seqs), self.requests)

    @property
    def name(self) -> str:
        """That of the configuration."""
        return self.choice.name

    def summary(self, row: Mapping[str, Any]) -> str:
        """See `Job.summary`."""
        return f"{row['highest_rate']:.3f} requests/s within the limits at most"

    def simulate(self, workspace: Workspace) -> Record:
        """Find the rate by serving the requests at many."""
        began, choice = perf_counter(), self.choice
        requests = workspace.of(_Engines).requests(self.serving)
        sides = _sides(self.serving, choice.parallel, choice.decode, choice.prefill > 0, {})
        rate = highest_rate(self.serving, deployed(self.serving, sides, choice), requests)
        return {"run": self.key, "row": {"highest_rate": float(rate)}, "host": {"wall_s": perf_counter() - began}}


class _Engines:
    """What parts of a search share in one process: engines by group and sizes, and the requests."""

    def __init__(self, workspace: Workspace) -> None:
        self.known: dict[str, Known] = {}
        self._requests: dict[str, Requests] = {}

    def requests(self, serving: Serving) -> Requests:
        """The requests of a file."""
        named = f"{serving.trace} {serving.spec.requests.model_dump_json()}"
        if named not in self._requests:
            self._requests[named] = requests_of(serving)
        return self._requests[named]


def search(
    serving: Serving,
    told: Callable[[str], None] = lambda text: None,
    *,
    jobs: int = 1,
    folder: Path | None = None,
    kept: Callable[[Sequence[ConfigurationResult]], None] = lambda found: None,
) -> list[ConfigurationResult]:
    """Every configuration; those first whose highest rate was found, the highest first, then by goodput and throughput;
    refused ones last. At one rate many have the same goodput: the highest rate within limits tells the best apart.
    ``told``: what is served next, of how many. ``jobs``: processes that serve. ``folder``: keeps what was served, where
    a later search finds it, also after Ctrl-C. ``kept``: gets all configurations so far, whenever there are more.
    Raises SpecError for none, and for pools apart; FailedRuns.
    """
    if serving.spec.disaggregated != "none":
        raise SpecError(
            "disaggregated: a search varies engines that prefill and decode. Leave the key out, and give search: "
            "{pools: [colocated, disaggregated]} to try both"
        )
    kinds = {
        (policy.name, precision): drawn_once(serving, policy, precision)
        for precision, policy in product(serving.spec.search.precision or (None,), serving.policies)
    }
    parts = [OfLayout(kind, precision, layout)
             for (_, precision), kind in kinds.items() for layout in _layouts(serving)]  # fmt: skip
    if not parts:
        raise SpecError("search: no sizes divide the devices, heads and experts")
    store, workspace = None if folder is None else RecordStore(folder), Workspace()
    requests = workspace.of(_Engines).requests(serving)  # copies of this process begin with them
    found: list[ConfigurationResult] = []
    done: list[PartOfSearch] = []
    failures: list[str] = []

    def of_layout(part: OfLayout, record: Record) -> None:
        done.append(part)
        found.extend(part.found(record))
        kept(found)
        told(f"{len(done)} of {len(parts)} sizes of engines are served, {len(found)} configurations so far")

    complete(parts, store, Unwatched(), failures, jobs, workspace=workspace, found=of_layout)
    refuse_failed(failures, len(parts), folder)
    found = sorted(found, key=_order)
    if not requests.offered_per_s:
        return found
    tied = _tied(found)
    rated: list[ConfigurationResult] = []
    told(f"finding the highest rates of the {len(tied)} best")
    own = {each.choice: each for each in tied}

    def of_rate(part: OfRate, record: Record) -> None:
        rated.append(own[part.choice]._replace(highest_rate=record["row"]["highest_rate"]))
        told(f"found the highest rate of {len(rated)} of the {len(tied)} best")

    rates = []
    for choice in own:
        policy = choice.policy if serving.has_traffic else serving.policy.name
        rates.append(OfRate(kinds[policy, choice.precision], choice.precision, choice, (ENOUGH, SUSTAINED)))
    complete(rates, store, Unwatched(), failures, jobs, workspace=workspace, found=of_rate)
    refuse_failed(failures, len(rates), folder)
    cache.remove_oldest()
    place = {each.choice: at for at, each in enumerate(tied)}
    rated.sort(key=lambda each: (-(each.highest_rate or 0.0), place[each.choice]))
    with_rates = {each.choice for each in rated}
    return rated + [each for each in found if each.choice not in with_rates]


def _tied(found: Sequence[ConfigurationResult]) -> list[ConfigurationResult]:
    """RATED of those whose goodput is near the best one, which are alike at this load: of each size and policy the one
    with the largest batches, by the estimated rates of sizes; then others that differ in a number, too.
    """
    kept: dict[tuple, ConfigurationResult] = {}
    for each in found:
        if each.measures is None or found[0].measures is None:
            continue
        if each.measures.goodput_per_s >= NEAR * found[0].measures.goodput_per_s:
            kept.setdefault((each.choice.ranks, each.measures), each)
    first: dict[tuple, ConfigurationResult] = {}
    for each in sorted(kept.values(), key=lambda each: -each.choice.max_num_seqs):
        first.setdefault((each.choice.ranks, each.choice.policy), each)
    best = sorted(first.values(), key=lambda each: -each.estimate)
    chosen = {each.choice for each in best}
    return [*best, *(each for each in kept.values() if each.choice not in chosen)][:RATED]


class _Unbound(NamedTuple):
    """A run on ranks of ``blocks`` in which neither the limit of requests nor KV made any request wait: those of larger
    limits, whose ranks have ``needed`` blocks or more, are the same but for the share of KV that is in use.
    """

    measures: Measures
    blocks: int
    needed: int

    def with_room(self, blocks: int) -> Measures | None:
        if blocks < self.needed:
            return None
        share = self.blocks / blocks
        m = self.measures
        return m if share == 1 else m._replace(kv_mean=m.kv_mean * share, kv_peak=m.kv_peak * share)


def _unbound(outcome: Outcome, choice: Configuration) -> _Unbound | None:
    """None where a limit may have mattered: a user's scheduler may read it, a prefix cache evicts by the room that is
    left, and the ranks of pools apart have limits of their own.
    """
    pool, cached = outcome.deployment.prefill.pool, outcome.requests.hash_tokens > 0
    if choice.prefill or cached or is_function(outcome.deployment.scheduler.name):
        return None
    needed = 0
    for served in filter(None, (outcome.served, outcome.longer)):
        running, blocks = _peak(served, pool, choice, outcome.deployment.scheduler.block_tokens)
        if running >= choice.max_num_seqs or served.totals["preemptions"]:
            return None
        needed = max(needed, blocks)
    return _Unbound(outcome.measures, pool.kv_blocks, needed) if needed <= pool.kv_blocks else None


def _peak(served: Served, pool: Pool, choice: Configuration, block_tokens: int) -> tuple[int, int]:
    """(requests, KV blocks of their whole length) that one rank has at once, at most, and no fewer than it had."""
    requests, units, block = served.requests, pool.units, block_tokens
    tokens = requests["input"] + requests["output"] + int(served.totals["drafts"])
    own = -(-tokens // block) + 1
    held = own * units.of_block + units.of_request
    for window, each in units.windows:
        held += each * np.minimum(own, (window - 1 + choice.max_num_batched_tokens) // block + 2)
    most = np.zeros(2, np.int64)
    for rank in range(pool.instances * pool.ranks):
        mine = requests["rank"] == rank
        begin, end = requests["scheduled_ns"][mine], requests["last_ns"][mine]
        order = np.lexsort((np.repeat([0, 1], len(begin)), np.concatenate([begin, end])))
        for at, each in enumerate((np.ones_like(held[mine]), held[mine])):
            change = np.concatenate([each, -each])[order]
            most[at] = max(most[at], np.cumsum(change).max(initial=0))
    return int(most[0]), int(-(-most[1] // units.of_block))


def drawn_once(serving: Serving, policy: PolicySpec, precision: PrecisionSpec | None = None) -> Serving:
    """Under a policy and a precision; tokens of experts are drawn once."""
    spec = serving.spec
    if precision is not None:
        spec, _ = with_recipe(spec.model_copy(update={"precision": precision}), serving.system, serving.model)
    if isinstance(spec.routing, RoutingSpec):
        spec = spec.model_copy(update={"routing": spec.routing.model_copy(update={"every": ONCE})})
    return serving._replace(spec=spec, policy=policy)


def _order(found: ConfigurationResult) -> tuple:
    if found.measures is None:
        return (1, 0.0, 0.0, found.choice.name)
    return (0, -found.measures.goodput_per_s, -found.measures.output_tokens_per_s, found.choice.name)


def _layouts(serving: Serving) -> list[EngineLayout]:
    """Those of the file's pools, on all devices."""
    pools, devices = serving.spec.search.pools, serving.spec.search.devices or serving.system.dies
    sizes, found = list(sizes_of(serving, devices)), []
    for parallel in sizes:
        instances = devices // parallel.ranks
        apart = range(1, instances) if "disaggregated" in pools else ()
        counts = [(instances, prefill) for prefill in (*((0,) if "colocated" in pools else ()), *apart)]
        found.append(EngineLayout(parallel, None, counts))
    for parallel, decode in product(sizes, sizes) if "unlike" in pools else ():
        counts = [
            (prefill + left // decode.ranks, prefill) for prefill in range(1, devices // parallel.ranks + 1)
            if (left := devices - prefill * parallel.ranks) and not left % decode.ranks
        ]  # fmt: skip
        if parallel != decode:
            found.append(EngineLayout(parallel, decode, counts))
    return [layout for layout in found if layout.counts]


class RateEstimate(NamedTuple):
    """The estimate of one engine, from the times of its iterations: requests a second, and the ns that a request spends
    in it. ``refused``: why it cannot run, or ''.
    """

    rate: float
    residence_ns: float
    refused: str = ""


def estimated(serving: Serving, engine: ServingEngine, built: Built, requests: Requests) -> RateEstimate:
    """Of one engine whose decodes run in batches of B on each rank, with B as large as the limit of the mean time per
    output token and KV allow. A rank that decodes B at a time and takes r requests a second spends
    r (prompt c + output t(B) / B) of a second: c is what a token of a prompt adds to an iteration, t(B) the time of one
    without. Under data-parallel attention the prompts of one rank hold all others up, unless theirs come together
    (TOGETHER of them). Served rates are 0.8 to 1.3 times this (docs/recommend.md).
    """
    prompt, output = float(requests.input.mean()), float(requests.output.mean())
    table, host, dp = built.pool.table, host_for(serving), engine.parallel.dp
    chunk, seen = min(2048.0, max(prompt, 64.0)), prompt + output / 2
    kv = built.pool.kv_blocks * serving.spec.scheduler.block_tokens / (prompt + output / 2)
    limit = serving.spec.slo.tpot_ns or np.inf
    held_up = 1 + (dp - 1) * (1 - TOGETHER)
    best, residence_ns, batch = 0.0, 0.0, 1.0
    while batch <= min(max(serving.spec.search.max_num_seqs), kv):
        step = _ns(table, batch, seen, 0.0)
        added = max(_ns(table, batch, seen, chunk) - step, 0.0) * host.prompts / chunk
        step = step * host.decodes + host.iteration_ns + batch * host.sequence_ns
        per_s = NS_PER_S / (prompt * added * held_up + output * step / batch)
        token_ns = batch / (per_s * output) * NS_PER_S
        if token_ns > limit:
            break
        if per_s > best:
            best, residence_ns = per_s, token_ns * output
        batch *= 1.2
    if not best:  # not even one request at a time is fast enough, by this estimate
        return RateEstimate(0.1 * dp / max(limit * output, 1.0) * NS_PER_S, limit * output)
    return RateEstimate(best * dp, residence_ns)


TOGETHER = 0.75  # of the prompts of ranks that share iterations


def _ns(table: Any, decodes: float, context: float, new: float) -> float:
    """Of an iteration with at least one decode and one token of a prompt, for which tables have times."""
    found = np.zeros(1)
    times_of(table, np.array([[max(decodes, 1.0), max(context, 1.0), max(new, 1.0), max(new, 1.0)]]), found)
    return float(found[0])


def sizes_of(serving: Serving, devices: int) -> Iterator[ParallelSpec]:
    """The sizes of one engine on some of the devices, or on all of them."""
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
) -> tuple[tuple[ServingEngine, Built], ...]:
    """An engine that does both or prefills, and one that decodes alone, which may have other kernels. ``known``: those
    that were built before.
    """
    sizes_alone = decode or parallel
    kinds = [(serving, parallel, False), (decodes_alone(serving, sizes_alone), sizes_alone, True)][: 1 + apart]
    found = []
    for one, sizes, alone in kinds:
        key = sizes, alone
        if key not in known:
            known[key] = largest(one, sizes, alone)
        found.append(known[key])
    return tuple(found)


def largest(serving: Serving, parallel: ParallelSpec, alone: bool = False) -> tuple[ServingEngine, Built]:
    """An engine with the laws of the largest batch of the search; smaller ones read the same tables, and the times of
    one group of experts that has rebalanced. ``alone``: that only decodes.
    """
    host = host_for(serving, DECODE if alone else "", parallel.attention.dp)
    given, engine = serving.spec.search, engine_of(serving, parallel)._replace(profiled_seqs=0, decodes_alone=alone)
    scheduler = _scheduler(serving, max(given.max_num_seqs), max(given.max_num_batched_tokens))
    laws, notes = laws_of(engine, scheduler)
    built = with_experts(serving, engine, with_host(laws, notes, engine, scheduler, host, 1), scheduler, host)
    if built.pool.experts is not None:
        group = built.pool.experts(0, lambda text: None)
        group.settle()
        built = built._replace(pool=built.pool._replace(experts=lambda instance, say: group))
    return engine, built


def deployed(serving: Serving, sides: Sequence[tuple[ServingEngine, Built]], choice: Configuration) -> Deployment:
    """Engines that are built, in the numbers and with the batch limits of a choice. Raises CapacityError."""
    scheduler = _scheduler(serving, choice.max_num_seqs, choice.max_num_batched_tokens)
    counts = (choice.prefill, choice.instances - choice.prefill) if choice.prefill else (choice.instances,)
    built = [
        known._replace(pool=known.pool._replace(instances=count, kv_blocks=kv_blocks(engine, scheduler)))
        for (engine, known), count in zip(sides, counts, strict=False)
    ]
    host = host_for(serving, PREFILL if choice.prefill else "")
    first, machines = built[0], ((serving.system.name, choice.devices),)
    store = kv_store_of(serving, scheduler, choice.parallel)
    if not choice.prefill:
        return Deployment(scheduler, host, first, None, None, choice.devices, first.notes, machines, store)
    moved = transfer_of(serving, sides[0][0], TransferSpec(), host, choice.devices)
    return Deployment(scheduler, host, first, built[1], moved, choice.devices, first.notes, machines, store)


# ---- search_table
# A search of configurations in words: the best, and rows that stand for all configurations with the same numbers.

COLUMNS = ("highest rate /s", "goodput /s", "requests /s", "tokens/s a device", "TTFT p50 ms", "TPOT p50 ms", "KV")


class EqualConfigurations(NamedTuple):
    """Configurations of the same parallel sizes, with the same numbers; the first of the search's order leads.

    ``highest_rate``: of the first, as in `ConfigurationResult`.
    """

    choices: tuple[Configuration, ...]
    measures: Measures
    highest_rate: float | None = None

    @property
    def name(self) -> str:
        """The name with all batch limits and policies, if each of the former goes with each of the latter. Else the
        first name, and how many more there are.
        """
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


def alike(found: Sequence[ConfigurationResult]) -> list[EqualConfigurations]:
    """The configurations that can run, in groups, most goodput first."""
    groups: dict[tuple, tuple[list[Configuration], Measures, float | None]] = {}
    for each in found:
        if each.measures is not None:
            key = each.choice.ranks, values(each.measures, None)
            groups.setdefault(key, ([], each.measures, each.highest_rate))[0].append(each.choice)
    return [EqualConfigurations(tuple(choices), measures, rate) for choices, measures, rate in groups.values()]


def answer(serving: Serving, found: Sequence[ConfigurationResult]) -> str:
    """One sentence: what to serve with, and how many requests it answers; '' if all were refused."""
    if not found or (best := found[0].measures) is None:
        return ""
    choice, rate = found[0].choice, found[0].highest_rate
    engines = f"{choice.instances} engine{'s' if choice.instances > 1 else ''}"
    serves = (
        f"It answers up to {rate:.2f} requests a second, of which {WITHIN:.0%}" if rate else
        f"At this load it answers {best.goodput_per_s:.2f} requests a second ({best.within_slo:.1%} of all) that"
    )  # fmt: skip
    policy = f" under policy {choice.policy}" if choice.policy else ""
    return (
        f"Serve {serving.model.name} with {engines} on {choice.devices} devices ({sizes_told(choice)}){policy}. Let "
        f"each rank run up to {choice.max_num_seqs} requests and {choice.max_num_batched_tokens:,} tokens an "
        f"iteration. {serves} {_kept(serving.spec.slo)}."
    )


NOTATION = (
    "Notation: `2 x tp 4 dp 1, ep 4 tp 1, 256 seqs, 8192 tokens` are two engines. In each, 4 ranks share the heads of "
    "a request (tp), in 1 group with requests of its own (dp). Experts are divided among 4 ranks (ep), and each expert "
    "is on 1 rank (tp). A rank runs up to 256 requests and 8,192 tokens an iteration."
)


def best_told(serving: Serving, found: Sequence[ConfigurationResult]) -> Iterator[str]:
    """Sentences: the answer, the configuration with its numbers, those that equal it, and why many do; none if all
    were refused.
    """
    served = [each.measures for each in found if each.measures is not None]
    if not served:
        return
    group, best = alike(found)[0], served[0]
    choice = group.choices[0]
    yield answer(serving, found)
    yield (
        f"At the load of the file, the best configuration ({choice.name}) has a goodput of {best.goodput_per_s:.3f} "
        f"requests/s on {choice.devices} devices: {best.within_slo:.1%} of its requests "
        f"{_kept(serving.spec.slo)}."
    )
    if len(group.choices) > 1:
        yield f"{len(group.choices)} configurations have the same numbers: {group.name}."
    yield from (each for each in (best.saturated, best.unsteady) if each)
    rate = found[0].highest_rate
    if rate is not None:
        yield (
            f"The highest rate at which {WITHIN:.0%} of the requests keep the limits is {rate:.2f} requests/s."
            if rate
            else f"At no rate do {WITHIN:.0%} of the requests keep the limits."
        )
    yield from _front_told(found)
    near = sum(each.goodput_per_s >= NEAR * best.goodput_per_s for each in served)
    if serving.spec.requests.arrivals is not None and near > len(group.choices) and best.within_slo >= NEAR:
        yield (
            f"{near} of {len(served)} configurations are within 1% of the best goodput, because requests come at a "
            "fixed rate. The first of them are ordered by their highest rates. Raise requests.arrivals.rate to tell "
            "all of them apart."
        )


def on_front(found: Sequence[ConfigurationResult]) -> list[ConfigurationResult]:
    """Configurations that no other beats in both output tokens a second a device and a user, fastest for users last.
    All have the same devices, so that tokens a W or a USD have the same front.
    """
    served = [each for each in found if each.measures is not None]
    both = [
        (0.0 if m.tpot == UNDEFINED else m.tokens_per_s_user, m.output_tokens_per_s_device)
        for m in (each.measures for each in served) if m
    ]  # fmt: skip
    return [served[at] for at in front(both)]


def _front_told(found: Sequence[ConfigurationResult]) -> Iterator[str]:
    for each in on_front(found):
        m = each.measures
        assert m is not None
        user = number(m.tokens_per_s_user, ".1f")
        yield (
            f"On the Pareto front, {each.choice.name} gives {m.output_tokens_per_s_device:,.0f} tokens/s a device and "
            f"{user} tokens/s a user."
        )


def table_of(found: Sequence[ConfigurationResult]) -> Table:
    """A row a configuration, in their order: sizes, batch limits, highest rate, measures, and why it was refused."""
    columns = {
        "configuration": TEXT, **dict.fromkeys(SIZES, INTEGER), "policy": TEXT, "highest_rate_per_s": REAL,
        "front": INTEGER, **MEASURES, "refused": TEXT,
    }  # fmt: skip
    best = {each.choice for each in on_front(found)}
    return Table(columns, tuple(_row(each) | {"front": int(each.choice in best)} for each in found))


SIZES = ("instances", "prefill", "tp", "dp", "ep", "expert_tp", "max_num_seqs", "max_num_batched_tokens")


def _row(found: ConfigurationResult) -> dict[str, Any]:
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


def sizes_told(choice: Configuration) -> str:
    """``4 engines of attention TP 8, experts EP 8``, for a sentence."""

    def of(parallel: ParallelSpec) -> str:
        attention, experts = parallel.attention, parallel.experts
        one = f"TP {attention.tp}" if attention.dp == 1 else f"DP {attention.dp} of TP {attention.tp}"
        if experts is None or parallel.ranks == 1:
            return one
        both = [f"EP {experts.ep}"] if experts.ep > 1 else []
        both += [f"TP {experts.tp}"] if experts.tp > 1 else []
        return f"attention {one}, experts {' of '.join(both)}"

    if choice.prefill:
        decodes = f"{choice.instances - choice.prefill} x {of(choice.decode or choice.parallel)}"
        return f"{choice.prefill} x {of(choice.parallel)} that prefill and {decodes} that decode"
    return f"{choice.instances} x {of(choice.parallel)}"


def with_choice(given: Mapping[str, Any], choice: Configuration) -> dict[str, Any]:
    """A file of ``archsim serve`` with the sizes, batch limits, dtypes and policy of a configuration."""
    found = {key: each for key, each in given.items() if key not in ("parallel", "instances", "search", "sweep")}
    scheduler = found.get("scheduler") or {}
    found["scheduler"] = ({"name": scheduler} if isinstance(scheduler, str) else dict(scheduler)) | {
        "max_num_seqs": choice.max_num_seqs, "max_num_batched_tokens": choice.max_num_batched_tokens,
    }  # fmt: skip
    if choice.precision is not None:
        found["precision"] = choice.precision.model_dump(exclude_none=True)
    if choice.prefill:
        found["disaggregated"] = {
            "prefill": {"parallel": _plain(choice.parallel), "instances": choice.prefill},
            "decode": {
                "parallel": _plain(choice.decode or choice.parallel), "instances": choice.instances - choice.prefill,
            },
        }  # fmt: skip
        return found
    return found | {"parallel": _plain(choice.parallel), "instances": choice.instances}


def _plain(parallel: ParallelSpec) -> dict[str, Any]:
    attention, experts = parallel.attention, parallel.experts
    plain: dict[str, Any] = {"attention": {"tp": attention.tp, "dp": attention.dp}}
    return plain | ({"experts": {"ep": experts.ep, "tp": experts.tp}} if experts else {})


def _kept(slo: SloSpec) -> str:
    """``stay within TTFT 2 s and TPOT 50 ms``, of requests."""
    given = (("TTFT", slo.ttft_ns), ("TPOT", slo.tpot_ns), ("E2E", slo.e2e_ns))
    told = [f"{name} {format_quantity(limit, TIME)}" for name, limit in given if limit is not None]
    return f"stay within {listed(told)}" if told else "count, as the file has no limits (slo:)"


def _either(each: Sequence) -> str:
    return " or ".join(", ".join(map(str, each)).rsplit(", ", 1))


# ---- search_files
# What a search writes: its table, the best as a file of ``archsim serve``, and a page.

MOST_ON_PAGE = 200


def _plots(groups: Sequence[EqualConfigurations]) -> list[Points]:
    """Every configuration, by the speed that a user sees and the throughput of a device."""
    if not groups:
        return []
    users = "tokens/s of a user", "output tokens/s of a device"
    points = [(each.measures.tokens_per_s_user, each.measures.output_tokens_per_s_device) for each in groups]
    on_front = set(front(points))
    rows = [
        {
            "user": user, "device": device, "configuration": each.name,
            "kind": "most goodput" if at == 0 else "no other is better in both" if at in on_front else "others",
            "goodput": f"{each.measures.goodput_per_s:.3g}",
        }
        for at, (each, (user, device)) in enumerate(zip(groups, points, strict=True)) if user == user
    ]  # fmt: skip
    colours = {"most goodput": "--p3", "no other is better in both": "--p2", "others": "--p0"}
    return [
        Points(
            question="What does speed for a user cost in throughput?", rows=rows[::-1], x=PlotAxis("user", users[0]),
            y=PlotAxis("device", users[1]), colours=Colours("kind", colours), size=70,
            tips=(
                ("configuration", "configuration"), ("goodput", "goodput /s"), ("user", users[0]), ("device", users[1]),
            ),
        )
    ]  # fmt: skip


PARTIAL = "search.partial.csv"  # configurations so far, while a search runs


def write_search(serving: Serving, found: Sequence[ConfigurationResult], folder: Path) -> None:
    """``search.csv``, ``search.parquet``, ``best.yaml`` (a file of ``archsim serve``) and ``index.html``."""
    import yaml

    from archsim.report.page import rendered

    own_folder(folder)
    table = table_of(found)
    table.write_csv(folder / "search.csv")
    table.write_parquet(folder / "search.parquet")
    (folder / PARTIAL).unlink(missing_ok=True)
    files = ["search.csv", "search.parquet"]
    if said := answer(serving, found):
        best = with_choice(serving.given, found[0].choice)
        if serving.has_traffic and len(serving.policies) > 1:
            names = [each.name for each in serving.policies]
            best["policies"] = [serving.given["policies"][names.index(found[0].choice.policy)]]
        write_text(folder / "best.yaml", f"# {said}\n{yaml.safe_dump(best, sort_keys=False)}")
        files.append("best.yaml")
    groups, refused = alike(found), sum(each.measures is None for each in found)
    rows = []
    for each in groups[:MOST_ON_PAGE]:
        numbers = flat(each.measures)
        rate = each.highest_rate
        shown = ["–" if numbers[name] is None else f"{numbers[name]:,.3g}" for name, _ in SHOWN]
        rows.append([each.name, "–" if rate is None else f"{rate:.2f}", *shown, str(len(each.choices))])
    context = {
        "model": serving.model.name, "system": serving.system.name, "points": len(found), "answer": said,
        "policies": ", ".join(policy.name for policy in serving.policies), "files": files,
        "title": "Configurations, the best first (a row holds all with the same numbers)",
        "headers": ["configuration", "highest rate /s", *(header for _, header in SHOWN), "configurations"],
        "rows": rows, "notes": [*best_told(serving, found)][1:] + [NOTATION], "texts": 1, "refused": refused,
        "plots": _plots(groups), "intervals": None,
    }  # fmt: skip
    write_text(folder / "index.html", rendered("serving_points.html.j2", context))
