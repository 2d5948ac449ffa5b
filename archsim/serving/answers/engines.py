"""Engines of a search: built once for all batch limits, deployed with those of a configuration, and their rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from archsim.base.units import NS_PER_S
from archsim.iteration.constants import DECODE, PREFILL
from archsim.iteration.links import Links
from archsim.runs.run import Job, Record, Workspace
from archsim.serving.answers.configuration import Configuration
from archsim.serving.answers.runs import code_of_serving, functions_of, key_of
from archsim.serving.clock import host_ns, times_of
from archsim.serving.deployment import Built, dispatches_equal, laws_of, with_host
from archsim.serving.engine import UNIFORM, ServingEngine
from archsim.serving.file_engines import decodes_alone, engine_of, host_for, kv_store_of, transfer_of
from archsim.serving.file_requests import requests_of
from archsim.serving.kv_room import kv_blocks
from archsim.serving.outcome import Deployment
from archsim.serving.requests import Requests
from archsim.serving.serving import with_experts
from archsim.serving.simulate import Scheduler
from archsim.serving.tabulated import Grids
from archsim.specs.deployment import ParallelSpec
from archsim.specs.serving import TransferSpec
from archsim.specs.serving_files import Serving

# Engines by their sizes, and what they do alone (PREFILL, DECODE; '': both).
Known = dict[tuple[ParallelSpec, str], tuple[ServingEngine, Built]]
_SOURCES = tuple(
    f"archsim/serving/answers/{name}.py"
    for name in ("configuration", "engines", "highest_rate", "question", "race", "search")
)


class SharedEngines:
    """What parts of searches share in one process: engines by group and sizes, and the requests."""

    def __init__(self, workspace: Workspace) -> None:
        self.known: dict[str, Known] = {}
        self.estimated: tuple[str, Grids] = "", {}  # of the group whose sizes were estimated last
        self._requests: dict[str, Requests] = {}

    def grids(self, group: str) -> Grids:
        """Those of a group; they are large, and its sizes are estimated one after the other."""
        if self.estimated[0] != group:
            self.estimated = group, {}
        return self.estimated[1]

    def requests(self, serving: Serving) -> Requests:
        """The requests of a file."""
        named = f"{serving.trace} {serving.spec.requests.model_dump_json()}"
        if named not in self._requests:
            self._requests[named] = requests_of(serving)
        return self._requests[named]


@dataclass(frozen=True, eq=False)
class PartOfSearch(Job):
    """A part of a search or recommendation: ``serving`` with what varies (``search:``). A row is what `find` finds."""

    serving: Serving

    def find(self, engines: SharedEngines) -> dict[str, Any]:
        """The row. Raises ArchsimError."""
        raise NotImplementedError

    def simulate(self, workspace: Workspace) -> Record:
        began = perf_counter()
        row = self.find(workspace.of(SharedEngines))
        return {"run": self.key, "row": row, "host": {"wall_s": perf_counter() - began}}

    @cached_property
    def code(self) -> str:
        return code_of_serving(functions_of(self.serving), *_SOURCES)

    @property
    def cacheable(self) -> bool:
        return not functions_of(self.serving)

    @property
    def limits(self) -> list[tuple[int, ...]]:
        """All batch limits of ``search:``, which decide the tables of engines, estimates and what is tried."""
        given = self.serving.spec.search
        return [given.max_num_seqs, given.max_num_batched_tokens, given.decode_max_num_seqs]

    @cached_property
    def group(self) -> str:
        """Parts of one policy, precision and largest batch share engines."""
        return key_of(self.serving, self.limits)

    @property
    def kernel(self) -> str:
        return "serving"

    def summary(self, row: Mapping[str, Any]) -> str:
        """That of all parts is the answer."""
        return self.name


class RateEstimate(NamedTuple):
    """The estimate of one engine, from the times of its iterations."""

    rate: float  # requests a second
    residence_ns: float  # that a request spends in it
    refused: str = ""  # why it cannot run, or ''


def estimate_rate(serving: Serving, engine: ServingEngine, built: Built, requests: Requests) -> RateEstimate:
    """Of one engine whose decodes run in batches of B on each rank, with B as large as the limit of the mean time per
    output token and KV allow. A rank that decodes B at a time and takes r requests a second spends
    r (prompt c + output t(B) / B) of a second: c is what a token of a prompt adds to an iteration, t(B) the time of one
    without. Under data-parallel attention the prompts of one rank hold all others up, unless theirs come together
    (TOGETHER of them). Served rates are 0.8 to 1.3 times this (docs/recommend.md).
    """
    prompt, output = float(requests.input.mean()), float(requests.output.mean())
    table, dp = built.pool.table, engine.parallel.dp
    chunk, seen = min(2048.0, max(prompt, 64.0)), prompt + output / 2
    kv = built.pool.kv_blocks * serving.spec.scheduler.block_tokens / (prompt + output / 2)
    limit = serving.spec.slo.tpot_ns or np.inf
    held_up = 1 + (dp - 1) * (1 - TOGETHER)
    best, residence_ns, batch = 0.0, 0.0, 1.0
    while batch <= min(max(serving.spec.search.max_num_seqs), kv):
        step = _ns(table, batch, seen, 0.0)
        added = max(_ns(table, batch, seen, chunk) - step, 0.0) / chunk
        step += host_ns.py_func(table, batch)
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


def _scheduler(serving: Serving, seqs: int, tokens: int) -> Scheduler:
    return Scheduler.of(serving.spec.scheduler, max_num_seqs=seqs, max_num_batched_tokens=tokens)


def _largest_scheduler(serving: Serving) -> Scheduler:
    given = serving.spec.search
    seqs = max(*given.max_num_seqs, *given.decode_max_num_seqs, 1)
    return _scheduler(serving, seqs, max(given.max_num_batched_tokens))


def build_sides(
    serving: Serving, parallel: ParallelSpec, decode: ParallelSpec | None, apart: bool, known: Known
) -> tuple[tuple[ServingEngine, Built], ...]:
    """An engine that does both or prefills, and one that decodes alone. ``known``: those built before."""
    sizes_alone = decode or parallel
    first = serving, parallel, prefilling(serving) if apart else ""
    kinds = [first, (decodes_alone(serving, sizes_alone), sizes_alone, DECODE)][: 1 + apart]
    found = []
    for one, sizes, alone in kinds:
        key = sizes, alone
        if key not in known:
            known[key] = largest(one, sizes, alone)
        found.append(known[key])
    return tuple(found)


def prefilling(serving: Serving) -> str:
    """`Known` of engines that prefill: SGLang's have kernels of their own, others are those that do both."""
    return PREFILL if serving.spec.engine == "sglang" else ""


def largest(serving: Serving, parallel: ParallelSpec, alone: str = "") -> tuple[ServingEngine, Built]:
    """An engine with the laws of the search's largest batch. Smaller batches read the same tables, but for the host and
    the times of a group of experts that has rebalanced. ``alone``: as of `Known`.
    """
    host = host_for(serving)
    engine = engine_of(serving, parallel)
    engine = engine._replace(decodes_alone=alone == DECODE, prefills_alone=alone == PREFILL)
    scheduler = _largest_scheduler(serving)
    laws, notes = laws_of(engine, scheduler)
    built = with_experts(serving, engine, with_host(laws, notes, engine, scheduler, host, 1), scheduler, host)
    if built.pool.experts is not None:
        group = built.pool.experts(0, lambda text: None)
        group.settle()
        built = built._replace(pool=built.pool._replace(experts=lambda instance, say: group))
    return engine, built


class _FreeLinks(Links):
    """Links over which nothing takes time, of no machine, so that no measured collectives of other GPUs are read."""

    def collective_ns(self, op: str, size_bytes: np.ndarray, ranks: int) -> np.ndarray:
        """float64[size]: see `Links`."""
        return np.zeros(np.shape(size_bytes))

    def host_ns(self, tokens: np.ndarray) -> np.ndarray:
        """float64[iteration]: see `Links`."""
        return np.zeros(np.shape(tokens))


_FREE = _FreeLinks._make((None, None))


def estimate_of(
    serving: Serving, parallel: ParallelSpec, requests: Requests, grids: Grids, least: float
) -> RateEstimate:
    """`estimate_rate` of an engine that is built for it alone. ``least``: requests a second, below which a bound is
    enough: the rate without dispatch, or, where there is none, over links that take no time. 0: no bound is enough.
    Raises as `largest`.
    """
    engine, host = engine_of(serving, parallel), host_for(serving)
    if engine.routing != UNIFORM or engine.library is None:
        return estimate_rate(serving, *largest(serving, parallel), requests)
    scheduler = _largest_scheduler(serving)

    def rated(links: Links | None, dispatches: bool) -> RateEstimate:
        laws, notes = laws_of(engine._replace(links=links), scheduler, dispatches)
        gathers = links is _FREE and parallel.attention.context > 1  # attention itself takes links
        known = None if gathers else grids
        return estimate_rate(serving, engine, with_host(laws, notes, engine, scheduler, host, 1, known), requests)

    if least:
        links = engine.links if dispatches_equal(engine) else _FREE
        if (bound := rated(links, False)).rate < least:
            return bound
    return rated(engine.links, True)


def deployment_of(
    serving: Serving, sides: Sequence[tuple[ServingEngine, Built]], choice: Configuration, offered: int = 0
) -> Deployment:
    """Engines that are built, in the numbers and with the batch limits of a choice, on one machine of ``offered``
    devices, which others like these fill. Raises CapacityError.
    """
    scheduler = _scheduler(serving, choice.max_num_seqs, choice.max_num_batched_tokens)
    pool = PREFILL if choice.prefill else ""
    counts, hosts = [choice.instances], [host_for(serving, pool, choice.parallel.attention.dp)]
    if choice.prefill:
        counts = [choice.prefill, choice.instances - choice.prefill]
        hosts.append(host_for(serving, DECODE, (choice.decode or choice.parallel).attention.dp))
    built = []
    for (engine, known), count, host in zip(sides, counts, hosts, strict=False):
        table = known.pool.table._replace(host=host.of_iterations(choice.max_num_seqs))
        blocks = kv_blocks(engine, scheduler)
        built.append(known._replace(pool=known.pool._replace(instances=count, kv_blocks=blocks, table=table)))
    if choice.decode_seqs:
        built[1] = built[1]._replace(pool=built[1].pool._replace(most=choice.decode_seqs))
    host = hosts[0]
    first, machines = built[0], ((serving.system.name, choice.devices),)
    store = kv_store_of(serving, scheduler, choice.parallel)
    decode = moved = None
    if choice.prefill:
        decode, moved = built[1], transfer_of(serving, sides[0][0], TransferSpec(), host, choice.devices)
    return Deployment(
        scheduler, host, prefill=first, decode=decode, transfer=moved, devices=choice.devices, notes=first.notes,
        machines=machines, store=store,
        beside=max(min(offered, serving.system.dies) // choice.devices - 1, 0) * choice.devices,
    )  # fmt: skip
