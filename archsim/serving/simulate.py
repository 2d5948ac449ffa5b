"""Serves requests on a deployment: sets up the state, runs the compiled loop, and returns what happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError, TraceError
from archsim.iteration.times import NO_DRAFTS, Speculation, draws
from archsim.serving import loop
from archsim.serving.clock import StepTable
from archsim.serving.groups import DECODES, Group, Moved, Say
from archsim.serving.kv import NO_PIECES, pieces_of
from archsim.serving.records import (
    BINS,
    BOTH,
    CACHE_AWARE,
    DECODE,
    EXPERTS,
    FREE,
    GAPS,
    INSTANCE,
    ITERATION,
    LEAST_LOADED,
    NO_BLOCKS,
    NOT_LACKING,
    PREFILL,
    PREFIX_AWARE,
    RAISED,
    RANK,
    REQUEST,
    ROUND_ROBIN,
    SERIES,
    SESSION,
    SPACED,
    TOGETHER,
    TOO_MANY,
    TOTALS,
    Limits,
    State,
    Transfer,
    zeros,
)
from archsim.serving.requests import Requests, refuse_too_long
from archsim.serving.routing import sessions_of
from archsim.serving.schedulers import compiled
from archsim.specs.serving import BY_HASHES, SCHEDULERS, SchedulerSpec, is_function, row_of

# ---- progress
# How far a run of serving is: called with what it does, and the share that is done.

class Progress(NamedTuple):
    """``say(text, share)``: what is going on, and how much of it is done."""

    say: Callable[[str, float], None]
    what: str = ""

    def __call__(self, text: str, share: float) -> None:
        self.say(f"{self.what}: {text}" if self.what else text, share)

    def of(self, what: str) -> Progress:
        """The same, of a part named so."""
        return Progress(self.say, what)


SILENT = Progress(lambda text, share: None)


# ---- simulate

CADENCES = MappingProxyType({"free": FREE, "spaced": SPACED, "together": TOGETHER})
CHOICES = MappingProxyType(
    {
        "round_robin": ROUND_ROBIN,
        "least_loaded": LEAST_LOADED,
        "prefix_aware": PREFIX_AWARE,
        "cache_aware": CACHE_AWARE,
        "session": SESSION,
    }
)
FAULTS = MappingProxyType(
    {
        int(RAISED): "raises an error",
        int(TOO_MANY): "runs more requests than max_num_seqs, such as",
        int(NOT_LACKING): "gives fewer than 0 tokens, or more than are left to compute (`lacking`), to",
        int(NO_BLOCKS): "gives tokens without KV blocks (`grow`) to",
    }
)
FIRST_BIN_NS = 1e7
SPOKEN = 100_000  # iterations of an instance between two words on how far it is, where no experts are drawn

NO_LOG = np.zeros(0, ITERATION)


class Scheduler(NamedTuple):
    """``name``: of ``archsim.specs.serving``, or a user's own function; ``balance``: of CHOICES; ``params``: the
    scheduler's own that differ from their defaults.
    """

    name: str = "vllm_v1"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    chunked_prefill: bool = True
    prefix_caching: bool = True
    block_tokens: int = 16
    balance: str = "round_robin"
    prefill: str = "free"
    prefill_every: int = 16
    params: Mapping[str, float] = MappingProxyType({})

    @classmethod
    def of(cls, spec: SchedulerSpec, **changes: int) -> Scheduler:
        """As a file has it, but for ``changes``."""
        return cls(**{name: getattr(spec, name) for name in cls._fields} | changes)


class KvUnits(NamedTuple):
    """What requests take of a rank's KV, in units of which a block of the layers that keep all tokens has
    ``of_block``. ``of_request``: of every request, however long; ``windows``: (tokens, units a block) of layers that
    keep the last tokens alone.
    """

    of_block: int = 1
    of_request: int = 0
    windows: tuple[tuple[int, int], ...] = ()

    def most_tokens(self, blocks: int, block_tokens: int, budget: int) -> int:
        """The longest request that ``blocks`` hold while ``budget`` tokens of it are computed at once."""
        least, most = 0, blocks
        while least < most:
            middle = (least + most + 1) // 2
            held = middle * self.of_block + self.of_request
            for tokens, units in self.windows:
                held += units * min(middle, (tokens - 1 + budget) // block_tokens + 2)
            least, most = (middle, most) if held <= blocks * self.of_block else (least, middle - 1)
        return least * block_tokens


ALIKE = KvUnits()  # all layers keep all tokens


class Pool(NamedTuple):
    """``instances`` alike, of ``ranks`` that step together; ``kv_blocks``: of a rank, each of tokens of all layers that
    keep them. ``experts``: a new group of experts for instance i; None: they are in the table. ``prefilled``: requests
    come with their KV and a first token. ``most``: requests that a rank may run; 0: as many as the scheduler.
    ``units``: what a request takes of the blocks.
    """

    instances: int
    ranks: int
    kv_blocks: int
    table: StepTable
    experts: Callable[[int, Say], Group] | None = None
    prefilled: bool = False
    most: int = 0
    units: KvUnits = ALIKE


class Served(NamedTuple):
    """What happened. ``requests``: REQUEST[request]; ``gaps``: int64[bin] between tokens; ``series``: float64[bin,
    column] means over ``bin_ns`` (columns of SERIES; tokens a second); ``totals``: a record of TOTALS; ``balance``:
    float64[sample, 2], time in ns and balance of an engine's mean decode before it; ``moves``: of weights; ``log``:
    ITERATION[n], if asked for. ``experts``:
    of ``State``, at the end; ``ttft``: whether prompts were served, so that first tokens have a time.
    """

    requests: np.ndarray
    gaps: np.ndarray
    series: np.ndarray
    bin_ns: float
    totals: np.void
    concurrency: int
    balance: np.ndarray
    moves: tuple[Moved, ...] = ()
    log: np.ndarray = NO_LOG
    experts: np.ndarray | None = None
    ttft: bool = True

    def __repr__(self) -> str:
        totals = self.totals
        return f"Served({len(self.requests):,} requests in {totals['iterations']:,} iterations)"


def simulate(
    requests: Requests,
    scheduler: Scheduler,
    pool: Pool,
    *,
    decode: Pool | None = None,
    transfer: Transfer | None = None,
    request_ns: float = 0.0,
    front_end_ns: float = 0.0,
    first_after: int = 1,
    whose: str = "requests",
    logged: int = 0,
    progress: Progress = SILENT,
    speculation: Speculation = NO_DRAFTS,
    layers: int = 1,
) -> Served:
    """Serve all requests on a pool; with ``decode``, the pool only prefills and KV moves by ``transfer``.

    ``request_ns``: host's time from arrival to the queue; ``front_end_ns``: before it, one request after the other;
    ``first_after``: iterations of its engine after which a client sees a first token, its own among them; it sees all
    tokens as late. ``logged``: iterations to keep a log of. ``layers``: of the model, of which a draft runs some.
    Raises TraceError for requests that can never be served.
    """
    if scheduler.balance in BY_HASHES and not requests.hash_tokens:
        raise TraceError(
            f"{whose}: scheduler.balance: {scheduler.balance} asks for shared prefixes, and these requests have no "
            "hash ids; give least_loaded, or a trace with them, such as Mooncake's"
        )
    chunked, preempted = scheduler.chunked_prefill, row_of(scheduler.name).preempts
    for each in (pool, decode) if decode else (pool,):
        budget = scheduler.max_num_batched_tokens
        kv_tokens = each.units.most_tokens(each.kv_blocks, scheduler.block_tokens, budget)
        refuse_too_long(requests, kv_tokens, budget, chunked, whose, preempted=preempted)
    if pool.prefilled:  # another engine, or the router before it, has taken them in
        request_ns = front_end_ns = 0.0
        if requests.output.min() < 2:
            raise TraceError(f"{whose}: a request of one token is over when its KV comes; give outputs of 2 or more")
    units = _larger(pool.units, decode.units) if decode else pool.units
    limits = _limits(requests, scheduler, request_ns, front_end_ns, first_after, speculation, units)
    done = [0.0]
    groups, balance = _groups(pool, decode, lambda text: progress(text, done[0])), []
    points = max((group.table.shape[1] for group in groups), default=0)
    state = _state(requests, scheduler, pool, decode, limits, points, logged)
    state.totals[0]["drafts"] = speculation.drafts
    state.totals[0]["depth"] = len(speculation.acceptance)
    state.totals[0]["draft_share"] = speculation.layers / layers
    for i, group in enumerate(groups):
        _put(state, i, group)
        state.instances[i]["pause_at"] = group.next_pause
    moved = transfer or Transfer(np.float64(0), np.float64(0))
    schedule = compiled(scheduler.name, scheduler.params, state, limits)
    ended = loop.PAUSED
    while ended == loop.PAUSED:
        ended = loop.run(state, pool.table, (decode or pool).table, limits, moved, schedule)
        if ended == loop.PAUSED:
            done[0] = state.totals[0]["finished"] / len(state.requests)
            progress("serving", done[0])
            if groups:
                balance.append(_ask(state, groups))
            else:
                _go_on(state)
    if ended != loop.ENDED:
        raise ArchsimError(f"scheduler {scheduler.name}: {_fault(state, ended)}")
    totals = state.totals[0]
    moves = tuple(sorted((each for group in groups for each in group.moves), key=lambda each: each.time_ns))
    found = _served(state, totals, requests.concurrency, np.array(balance, float).reshape(-1, 2), moves)
    return found._replace(ttft=not pool.prefilled)


def _fault(state: State, ended: int) -> str:
    """What a scheduler did that cannot be."""
    totals = state.totals[0]
    if ended == loop.FAILED:
        at = "" if totals["failed"] == RAISED else f" request {totals['failed_at']}"
        return f"{FAULTS[int(totals['failed'])]}{at}"
    left = len(state.requests) - totals["finished"]
    return f"gives no token to any of {left} requests that are left, though no other event can change that"


def _groups(pool: Pool, decode: Pool | None, say: Say) -> list[Group]:
    """Of every instance; none where experts are in the table."""
    if pool.experts is None:
        return []
    kinds = [pool.experts] * pool.instances
    if decode is not None and decode.experts is not None:
        kinds += [decode.experts] * decode.instances
    return [build(i, say) for i, build in enumerate(kinds)]


def _put(state: State, i: int, group: Group) -> None:
    """No iteration has more tokens than the last point of its group; prefill and decode may have different ones."""
    points = group.table.shape[1]
    state.experts[i, :, :points] = group.table
    state.experts[i, :, points:] = group.table[:, -1:]


def _go_on(state: State) -> None:
    """Pause the instance again, to say how far it is."""
    instance = state.instances[int(state.totals[0]["paused"])]
    instance["pause_at"] = instance["iterations"] + SPOKEN


def _ask(state: State, groups: list[Group]) -> tuple[float, float]:
    """Draw the experts of the paused instance anew. Returns the time, and the balance at its mean decode."""
    i, now_ns = int(state.totals[0]["paused"]), float(state.totals[0]["now_ns"])
    instance = state.instances[i]
    served, iterations = (float(instance["decoded"]), float(instance["prompted"])), int(instance["iterations"])
    ran = max(iterations - groups[i].asked_at, 1)
    instance["stall_ns"] += groups[i].pause(now_ns, iterations, served)
    _put(state, i, groups[i])
    instance["pause_at"], instance["pause_ns"] = iterations + groups[i].next_pause, groups[i].switch_ns
    instance["decoded"] = instance["prompted"] = 0.0
    at = int(np.clip(np.log2(max(served[0] / ran, 1.0)), 0, state.experts.shape[2] - 1))
    return now_ns, float(state.experts["balance"][i, DECODES, at])


def _limits(
    requests: Requests,
    scheduler: Scheduler,
    request_ns: float,
    front_end_ns: float = 0.0,
    first_after: int = 1,
    speculation: Speculation = NO_DRAFTS,
    units: KvUnits = ALIKE,
) -> Limits:
    return Limits(
        np.int64(scheduler.max_num_seqs),
        np.int64(scheduler.max_num_batched_tokens),
        np.int64(scheduler.block_tokens),
        np.int64(scheduler.prefix_caching and requests.hash_tokens > 0),
        np.int64(row_of(scheduler.name).by_length),
        np.int64(scheduler.chunked_prefill),
        CHOICES[scheduler.balance],
        np.int64(requests.concurrency),
        np.float64(request_ns),
        np.float64(front_end_ns),
        np.int64(first_after),
        _params(scheduler),
        CADENCES[scheduler.prefill],
        np.int64(scheduler.prefill_every),
        np.array(speculation.acceptance or (0.0,)),
        draws(speculation),
        np.int64(units.of_block),
        np.int64(units.of_request),
        np.array(units.windows, np.int64).reshape(-1, 2),
    )


def _larger(one: KvUnits, other: KvUnits) -> KvUnits:
    """The larger parts of two pools, whose ranks may have other shares of the kinds of layers."""
    windows = tuple((each[0], max(each[1], that[1])) for each, that in zip(one.windows, other.windows, strict=True))
    return KvUnits(one.of_block, max(one.of_request, other.of_request), windows)


def _params(scheduler: Scheduler) -> np.ndarray:
    """float64[n] in the order of the scheduler's row; those of a user's function are bound to it."""
    if is_function(scheduler.name):
        return np.zeros(1)
    known = SCHEDULERS[scheduler.name].parameters
    return np.array([scheduler.params.get(key, each.default) for key, each in known.items()] or [0], float)


def _state(
    requests: Requests,
    scheduler: Scheduler,
    pool: Pool,
    decode: Pool | None,
    limits: Limits,
    points: int = 0,
    logged: int = 0,
) -> State:
    """``points``: of the tables of experts."""
    records = zeros(len(requests.input), REQUEST)
    records["arrival_ns"], records["input"], records["output"] = requests.arrival_ns, requests.input, requests.output
    cached = pieces_of(requests, scheduler.block_tokens) if limits.cached else NO_PIECES
    if limits.cached:
        records["piece_from"], records["piece_to"] = cached.first[:-1], cached.first[1:]
    records["behind"] = limits.first_after - 1
    for name in ("scheduled_ns", "first_ns", "last_ns"):
        records[name] = -1.0
    if pool.prefilled:
        records["computed"], records["made"] = requests.input, 1
    ranks, instances = _ranks(pool, decode, scheduler.max_num_seqs)
    seen = (len(ranks), len(cached.blocks))
    return State(
        records,
        ranks,
        instances,
        _totals(min(requests.concurrency or len(records), len(records))),
        cached.pieces,
        np.zeros(len(cached.pieces), np.uint8),
        cached.blocks * limits.block_units,
        np.zeros((len(ranks), scheduler.max_num_seqs), np.int64),
        np.zeros((len(ranks), scheduler.max_num_seqs), np.int64),
        np.full(seen, -1, np.int32),
        np.full(seen, -1, np.int32),
        np.full(seen, -1, np.int32),
        np.zeros(GAPS, np.int64),
        np.zeros((BINS, len(SERIES))),
        np.zeros(1),
        np.zeros((len(instances), 2, points), EXPERTS),
        np.zeros(logged, ITERATION),
        sessions_of(requests) if limits.choice == SESSION else np.zeros(1, np.int64),
        np.full(len(records) if limits.choice == SESSION else 1, -1, np.int64),
    )


def _ranks(pool: Pool, decode: Pool | None, most: int) -> tuple[np.ndarray, np.ndarray]:
    alone = DECODE if pool.prefilled else BOTH
    kinds = [(pool, alone)] if decode is None else [(pool, PREFILL), (decode, DECODE)]
    owners = [(each, does) for each, does in kinds for _ in range(each.instances)]
    instances, ranks = zeros(len(owners), INSTANCE), zeros(sum(each.ranks for each, _ in owners), RANK)
    first = 0
    for at, (each, does) in enumerate(owners):
        mine = slice(first, first + each.ranks)
        instances[at]["pause_at"], instances[at]["pause_ns"] = SPOKEN, np.inf
        instances[at]["first"], instances[at]["last"], instances[at]["does"] = mine.start, mine.stop, does
        ranks["instance"][mine], ranks["most"][mine] = at, min(each.most or most, most)
        ranks["capacity"][mine] = ranks["free"][mine] = each.kv_blocks * each.units.of_block
        first = mine.stop
    return ranks, instances


def _served(state: State, totals: np.void, concurrency: int, balance: np.ndarray, moves: tuple[Moved, ...]) -> Served:
    bin_ns, end = float(totals["bin_ns"]), float(totals["now_ns"])
    used = max(1, int(np.ceil(end / bin_ns)))
    spans = np.full(used, bin_ns)
    spans[-1] = max(end - (used - 1) * bin_ns, 1.0)
    means = state.series[:used] / spans[:, None]
    means[:, -1] *= 1e9
    log = state.log[: int(totals["iterations"])]
    for name in ("first_ns", "last_ns"):  # as clients see them
        state.requests[name] += state.requests["lag_ns"]
    return Served(state.requests, state.gaps, means, bin_ns, totals, concurrency, balance, moves, log, state.experts)


def _totals(issued: int) -> np.ndarray:
    found = np.zeros(1, TOTALS)
    found["bin_ns"], found["issued"] = FIRST_BIN_NS, issued
    return found
