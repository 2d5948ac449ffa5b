"""Parallel sizes, batch limits and policy that give most goodput within limits on a given number of devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError, SpecError
from archsim.runs.run import Workspace
from archsim.serving.answers import runs
from archsim.serving.answers.configuration import Configuration, EngineLayout, serving_of, sizes_of, with_choice
from archsim.serving.answers.engines import PartOfSearch, SharedEngines, build_sides, deployment_of, estimate_rate
from archsim.serving.answers.race import PartOfRace, Rounds, Tried, find_sustained
from archsim.serving.answers.results import NEAR, ConfigurationResult
from archsim.serving.answers.sustained import sustained_rate
from archsim.serving.clock import HOST_CAPTURED
from archsim.serving.measures import Measures
from archsim.serving.outcome import Outcome
from archsim.serving.requests import first
from archsim.serving.serving import serve_requests, simulate_requests
from archsim.serving.simulate import Pool, Served
from archsim.show.units import listing
from archsim.specs import policies, recipes, schedulers, serving_files
from archsim.specs.deployment import PrecisionSpec
from archsim.specs.serving import RoutingSpec, SearchSpec
from archsim.uncertainty.estimate import Interval

RATED = 8  # configurations whose highest rate is found, of those whose goodput is within NEAR of the best
SAMPLES = 16  # in which the highest rate of the best has a range
CHOSEN = ("parallel", "instances", "scheduler.max_num_seqs", "scheduler.max_num_batched_tokens")  # keys, by a search
ONCE = 10_000_000  # iterations after which tokens are drawn anew: a search draws them once


@dataclass(frozen=True, eq=False)
class OfLayout(PartOfSearch):
    """All batch limits of engines of some sizes. Its row's ``found``: for each of `choices` why it was refused, the
    estimated rate and `MEASURES`.
    """

    precision: PrecisionSpec | None
    drafts: int | None  # of every decode; None: those of the file
    layout: EngineLayout

    @cached_property
    def key(self) -> str:
        return runs.key_of(self.serving, self.limits, [each.name for each in self.choices])

    @property
    def name(self) -> str:
        """``tp 4 dp 1, ep 4 tp 1``, of the first number of engines."""
        return self.choices[0].ranks

    @property
    def choices(self) -> list[Configuration]:
        given, layout = self.serving.spec.search, self.layout
        policy = self.serving.policy.name if self.serving.has_traffic else ""
        return [
            Configuration(
                layout.parallel, instances, max_num_seqs=seqs, max_num_batched_tokens=tokens, policy=policy,
                prefill=prefill, precision=self.precision, decode=layout.decode, decode_seqs=decode_seqs,
                draft_tokens=self.drafts,
            )
            for instances, prefill in layout.counts for tokens in given.max_num_batched_tokens
            for seqs in given.max_num_seqs for decode_seqs in _limits_of_decodes(given, seqs if prefill else 0)
        ]  # fmt: skip

    def found(self, row: Mapping[str, Any]) -> list[ConfigurationResult]:
        return [
            ConfigurationResult(choice, None if refused else runs.measures_of(measures), refused, estimate=estimate)
            for choice, (refused, estimate, measures) in zip(self.choices, row["found"], strict=True)
        ]

    def find(self, engines: SharedEngines) -> dict[str, Any]:
        return {"found": [(each.refused, each.estimate, runs.flat(each.measures)) for each in self._serve(engines)]}

    def warm_up(self, workspace: Workspace) -> None:
        engines, given, layout = workspace.of(SharedEngines), self.serving.spec.search, self.layout
        choice = self.choices[0]._replace(
            max_num_seqs=min(given.max_num_seqs), max_num_batched_tokens=min(given.max_num_batched_tokens)
        )
        requests = engines.requests(self.serving)
        sides = build_sides(self.serving, layout.parallel, layout.decode, choice.prefill > 0, {})
        estimate_rate(self.serving, *sides[0], requests)
        simulate_requests(self.serving, deployment_of(self.serving, sides, choice), first(requests, 8))

    def _serve(self, engines: SharedEngines) -> list[ConfigurationResult]:
        serving, layout, choices = self.serving, self.layout, self.choices
        requests, known = engines.requests(serving), engines.known.setdefault(self.group, {})
        try:
            apart = any(prefill for _, prefill in layout.counts)
            sides = build_sides(serving, layout.parallel, layout.decode, apart, known)
        except ArchsimError as error:
            return [ConfigurationResult(choice, None, str(error)) for choice in choices]
        unbound: dict[tuple[float, ...], _Unbound] = {}
        estimate = 0.0 if apart else estimate_rate(serving, *sides[0], requests).rate
        found: dict[Configuration, ConfigurationResult] = {}
        for choice in sorted(choices, key=lambda each: each.max_num_seqs):
            try:
                deployment = deployment_of(serving, sides, choice)
                graph = float(deployment.prefill.pool.table.host[HOST_CAPTURED])
                key = choice.instances, choice.prefill, choice.max_num_batched_tokens, choice.decode_seqs, graph
                blocks = deployment.prefill.pool.kv_blocks
                measures = unbound[key].with_room(blocks) if key in unbound else None
                if measures is None:
                    outcome = serve_requests(serving_of(serving, choice), deployment, requests)
                    measures = outcome.measures
                    if run := _unbound_run(outcome, choice):
                        unbound[key] = run
                found[choice] = ConfigurationResult(choice, measures, "", estimate=choice.instances * estimate)
            except ArchsimError as error:
                found[choice] = ConfigurationResult(choice, None, str(error))
        return [found[choice] for choice in choices]


def _limits_of_decodes(given: SearchSpec, seqs: int) -> Sequence[int]:
    """Those below that of all engines, which holds for engines that decode, too; 0: none of their own."""
    return [each for each in given.decode_max_num_seqs if each <= seqs] or [0]


def search(
    serving: serving_files.Serving,
    report: Callable[[str], None] = lambda text: None,
    *,
    jobs: int = 1,
    folder: Path | None = None,
    kept: Callable[[Sequence[ConfigurationResult]], None] = lambda found: None,
) -> list[ConfigurationResult]:
    """Every configuration: the highest rate first where it was found, then by goodput and throughput; refused ones
    last. ``report``: hears progress; ``jobs``: processes; ``folder``: keeps what was served for a later search, also
    after Ctrl-C; ``kept``: gets all configurations so far. Raises SpecError for none, and for pools apart; FailedRuns.
    """
    if serving.spec.disaggregated != "none":
        raise SpecError(
            "disaggregated: a search varies engines that prefill and decode. Leave the key out, and give search: "
            "{pools: [colocated, disaggregated]} to try both"
        )
    given = serving.spec.search
    kinds = {
        (policy.name, precision, drafts): serving_under(serving, policy, precision, drafts)
        for precision, drafts, policy in product(
            given.precision or (None,), given.draft_tokens or (None,), serving.policies
        )
    }
    parts = [OfLayout(kind, precision, drafts, layout)
             for (_, precision, drafts), kind in kinds.items() for layout in layouts(serving)]  # fmt: skip
    if not parts:
        raise SpecError("search: no sizes divide the devices, heads and experts")
    rounds = Rounds(report, jobs, folder)
    requests = rounds.workspace.of(SharedEngines).requests(serving)  # copies of this process begin with them
    found: list[ConfigurationResult] = []

    def of_layout(part: OfLayout, row: Mapping[str, Any]) -> None:
        found.extend(part.found(row))
        kept(found)

    rounds.rows(parts, "sizes of engines are served", of_layout)
    found = sorted(found, key=_order)
    if not requests.offered_per_s:
        return found
    tied = _best_of_ties(found)
    report(f"finding the highest rates of the {len(tied)} best")
    rates = []
    for choice in (each.choice for each in tied):
        policy = choice.policy if serving.has_traffic else serving.policy.name
        kind = kinds[policy, choice.precision, choice.draft_tokens]
        rates.append(PartOfRace(kind, find_sustained, Tried(0, choice, 0.0, 0.0)))
    highest = rounds.tried(rates, "highest rates of the best are found")
    rated = [each._replace(highest_rate=rate.rate) for each, rate in zip(tied, highest, strict=True)]
    rated.sort(key=lambda each: -(each.highest_rate or 0.0))
    with_rates = {each.choice for each in rated}
    if rated and rated[0].highest_rate:
        rated[0] = rated[0]._replace(highest_range=_range_of(serving, rated[0], jobs, report))
    return rated + [each for each in found if each.choice not in with_rates]


def unread_by_search(serving: serving_files.Serving) -> Iterator[str]:
    """Sentences on keys of the file that a search chooses, or takes the first value of."""
    scheduler = serving.given.get("scheduler")
    given = {*serving.given, *(f"scheduler.{key}" for key in (scheduler if isinstance(scheduler, dict) else ()))}
    keys = [key for key in CHOSEN if key in given]
    if keys:
        yield f"{listing(keys)} {'have' if keys[1:] else 'has'} no effect: a search chooses among all (search)"
    yield from (f"{name} has no effect: a search serves the first value of an axis" for name in serving.axes)


def _range_of(
    serving: serving_files.Serving, best: ConfigurationResult, jobs: int, report: Callable[[str], None]
) -> Interval | None:
    chosen = serving_files.load_serving(with_choice(serving.given, best.choice))
    policy = next((each for each in chosen.policies if each.name == best.choice.policy), chosen.policy)
    run = runs.ServeRun(chosen._replace(policy=policy), {}, 0, runs.offered_rate(chosen))
    return sustained_rate(run, SAMPLES, jobs, report, best.highest_rate).range


def _best_of_ties(found: Sequence[ConfigurationResult]) -> list[ConfigurationResult]:
    """RATED of those whose goodput is near the best one, which this load cannot tell apart: of each size and policy the
    one with the largest batches, by the estimated rates of sizes; then others that differ in a number, too.
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
    limits, whose ranks have ``needed`` blocks or more and a captured graph as large, are the same but for the share of
    KV that is in use.
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


def _unbound_run(outcome: Outcome, choice: Configuration) -> _Unbound | None:
    """None where a limit may have mattered: a user's scheduler may read it, a prefix cache evicts by the room that is
    left, and ranks of pools apart have limits of their own.
    """
    pool, cached = outcome.deployment.prefill.pool, outcome.requests.hash_tokens > 0
    if choice.prefill or cached or schedulers.is_function(outcome.deployment.scheduler.name):
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


def serving_under(
    serving: serving_files.Serving, policy: policies.PolicySpec, precision: PrecisionSpec | None = None,
    drafts: int | None = None,
) -> serving_files.Serving:  # fmt: skip
    """Under a policy, a precision and a number of drafts; tokens of experts are drawn once."""
    spec = serving.spec
    if drafts is not None:
        of = spec.speculation.of_depth(drafts) if drafts and spec.speculation != "none" else "none"
        spec = spec.model_copy(update={"speculation": of})
    if precision is not None:
        spec, _ = recipes.with_recipe(spec.model_copy(update={"precision": precision}), serving.system, serving.model)
    if isinstance(spec.routing, RoutingSpec):
        spec = spec.model_copy(update={"routing": spec.routing.model_copy(update={"every": ONCE})})
    return serving._replace(spec=spec, policy=policy)


def _order(found: ConfigurationResult) -> tuple:
    if found.measures is None:
        return (1, 0.0, 0.0, found.choice.name)
    return (0, -found.measures.goodput_per_s, -found.measures.output_tokens_per_s, found.choice.name)


def layouts(serving: serving_files.Serving) -> list[EngineLayout]:
    pools, devices = serving.spec.search.pools, serving.spec.search.devices or serving.system.dies
    sizes, found = list(sizes_of(serving, devices)), []
    for parallel in sizes:
        instances = devices // parallel.devices
        apart = range(1, instances) if "disaggregated" in pools else ()
        counts = [(instances, prefill) for prefill in (*((0,) if "colocated" in pools else ()), *apart)]
        found.append(EngineLayout(parallel, None, counts))
    for parallel, decode in product(sizes, sizes) if "unlike" in pools else ():
        counts = [
            (prefill + left // decode.devices, prefill) for prefill in range(1, devices // parallel.devices + 1)
            if (left := devices - prefill * parallel.devices) and not left % decode.devices
        ]  # fmt: skip
        if parallel != decode:
            found.append(EngineLayout(parallel, decode, counts))
    return [layout for layout in found if layout.counts]
