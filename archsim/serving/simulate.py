"""Serves requests on a deployment: sets up the state, runs the compiled loop, and returns what happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError, TraceError
from archsim.serving import clock, compiled_scheduler, kv, loop, schedulers
from archsim.serving.groups import DECODES, ExpertGroup, Fixed, MigrationCost, Say
from archsim.serving.records import (
    ARRIVAL,
    BINS,
    BOTH,
    CACHE_AWARE,
    DEADLINE,
    DECODE,
    EXPERTS,
    FAILED,
    FREE,
    GAPS,
    INSTANCE,
    ITERATION,
    LEAST_LOADED,
    NO_BLOCKS,
    NOT_LACKING,
    PREFILL,
    PREFIX_AWARE,
    PRIORITY,
    RAISED,
    RANK,
    REQUEST,
    ROUND_ROBIN,
    SERIES,
    SESSION,
    SPACED,
    STORE,
    TOGETHER,
    TOO_MANY,
    TOTALS,
    KvTransfer,
    SchedulerLimits,
    ServingState,
    zeros,
)
from archsim.serving.requests import Requests, first_turns, rejected_notes, some, without_too_long
from archsim.serving.speculation import NO_DRAFTS, Speculation, draws
from archsim.specs.schedulers import BY_HASHES, SCHEDULERS, SchedulerSpec, is_function, row_of

# How far a run of serving is: called with what it does, and the share that is done.


class Progress(NamedTuple):
    """``say(text, share)``: what is going on, and how much of it is done."""

    say: Callable[[str, float], None]
    what: str = ""

    def __call__(self, text: str, share: float) -> None:
        self.say(f"{self.what}: {text}" if self.what else text, share)

    def of(self, what: str) -> Progress:
        return Progress(self.say, what)


SILENT = Progress(lambda text, share: None)


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
ORDERS = MappingProxyType({"arrival": ARRIVAL, "priority": PRIORITY, "deadline": DEADLINE})
FAULTS = MappingProxyType(
    {
        int(RAISED): "raises an error",
        int(TOO_MANY): "runs more requests than max_num_seqs, such as",
        int(NOT_LACKING): "gives fewer than 0 tokens, or more than are left to compute (`lacking`), to",
        int(NO_BLOCKS): "gives tokens without KV blocks (`grow`) to",
    }
)
FIRST_BIN_NS = 1e7
SELDOM = np.iinfo(np.int64).max
START_STREAM = 9  # of random numbers; others are of what a file draws
SPOKEN = 100_000  # iterations of an instance between two words on how far it is, where no experts are drawn

NO_LOG = np.zeros(0, ITERATION)


class Scheduler(NamedTuple):
    """``name``: of ``archsim.specs.serving``, or a user's own function; ``balance``: of CHOICES; ``order``: of ORDERS;
    ``params``: the scheduler's own that differ from their defaults.
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
    order: str = "arrival"
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


class KvStore(NamedTuple):
    """KV beside HBM: memory of the host, or a store that engines share. ``blocks``: that it holds, each as one of a
    rank; ``shared``: one for all ranks, else one for each instance; ``block_ns``: of a block that is loaded by a rank,
    ``load_ns``: before the first.
    """

    blocks: int
    shared: bool
    block_ns: float
    load_ns: float = 0.0


class Fault(NamedTuple):
    """Rank ``rank`` of instance ``instance`` fails at ``at_ns``: the KV of its requests is lost, and they wait for
    other ranks. ``stall_ns``: until its engine goes on, without the rank if it is ``elastic``; else all ranks of the
    engine lose their KV. ``back_ns``: after which the rank is there again; infinite: never.
    """

    at_ns: float
    instance: int
    rank: int
    stall_ns: float
    elastic: bool
    back_ns: float = np.inf


class Pool(NamedTuple):
    """``instances`` in all, of ``ranks`` that step together; ``kv_blocks``: of a rank, each of tokens of all layers
    that keep them. ``experts``: a new group of experts for instance i; None: they are in the table. ``prefilled``:
    requests come with their KV and a first token. ``most``: requests that a rank may run; 0: as many as the scheduler.
    ``units``: what a request takes of the blocks.
    """

    instances: int
    ranks: int
    kv_blocks: int
    table: clock.StepTable
    experts: Callable[[int, Say], ExpertGroup] | None = None
    prefilled: bool = False
    most: int = 0
    units: KvUnits = ALIKE


class Served(NamedTuple):
    """What happened. ``requests``: REQUEST[request]; ``gaps``: int64[bin] between tokens; ``series``: float64[bin,
    column] means over ``bin_ns`` (columns of SERIES; tokens a second); ``totals``: a record of TOTALS; ``balance``:
    float64[sample, 2], time in ns and balance of an engine's mean decode before it; ``moves``: of weights; ``log``:
    ITERATION[n], if asked for. ``experts``:
    of ``ServingState``, at the end; ``ttft``: whether prompts were served, so that first tokens have a time.
    ``failed``: faults.
    """

    requests: np.ndarray
    gaps: np.ndarray
    series: np.ndarray
    bin_ns: float
    totals: np.void
    concurrency: int
    balance: np.ndarray
    moves: tuple[MigrationCost, ...] = ()
    log: np.ndarray = NO_LOG
    experts: np.ndarray | None = None
    ttft: bool = True
    failed: tuple[Failed, ...] = ()

    def __repr__(self) -> str:
        totals = self.totals
        return f"Served({len(self.requests):,} requests in {totals['iterations']:,} iterations)"


def simulate(
    requests: Requests,
    scheduler: Scheduler,
    pool: Pool,
    *,
    decode: Pool | None = None,
    transfer: KvTransfer | None = None,
    request_ns: float = 0.0,
    front_end_ns: float = 0.0,
    first_after: int = 1,
    whose: str = "requests",
    logged: int = 0,
    progress: Progress = SILENT,
    speculation: Speculation = NO_DRAFTS,
    layers: int = 1,
    store: KvStore | None = None,
    faults: Sequence[Fault] = (),
) -> Served:
    """Serve all requests on a pool; with ``decode``, the pool only prefills and KV moves by ``transfer``.

    ``request_ns``: host's time from arrival to the queue; ``front_end_ns``: before it, one request after the other;
    ``first_after``: iterations of its engine after which a client sees a first token, its own among them; it sees all
    tokens as late. ``logged``: iterations to keep a log of. ``layers``: of the model, of which a draft runs some.
    ``store``: of the KV of prompts, beside HBM; it needs a prefix cache. ``faults``: of instances without ``experts``.
    Raises TraceError for requests that can never be served.
    """
    if scheduler.balance in BY_HASHES and not requests.hash_tokens:
        raise TraceError(
            f"{whose}: scheduler.balance: {scheduler.balance} asks for shared prefixes, and these requests have no "
            "hash ids. Give least_loaded, or a trace with them, such as Mooncake's"
        )
    rejected = servable(requests._replace(rejected=()), scheduler, pool, decode, whose).rejected
    if rejected:
        raise TraceError(next(rejected_notes(requests._replace(rejected=rejected))))
    if pool.prefilled:  # another engine, or the router before it, has taken them in
        request_ns = front_end_ns = 0.0
        if requests.output.min() < 2:
            raise TraceError(f"{whose}: a request of one token ends before its KV arrives. Give outputs of 2 or more")
    units = _larger(pool.units, decode.units) if decode else pool.units
    done = [0.0]
    groups, balance = _groups(pool, decode, lambda text: progress(text, done[0])), []
    if requests.apart:
        fixed = [(lambda i, say, group=group: Fixed(group.table)) for group in groups]
        alone = pool._replace(experts=fixed[0]) if fixed else pool
        other = decode._replace(experts=fixed[-1]) if decode and fixed else decode
        requests = _apart(requests, lambda few: simulate(
            few, scheduler, alone, decode=other, transfer=transfer, request_ns=request_ns, front_end_ns=front_end_ns,
            first_after=first_after, whose=whose, speculation=speculation, layers=layers, store=store,
        ))  # fmt: skip
    limits = _limits(requests, scheduler, request_ns, front_end_ns, first_after, speculation, units, store)
    points = max((group.table.shape[1] for group in groups), default=0)
    state = _state(requests, scheduler, pool, decode, limits, points, logged, store, bool(faults))
    state.totals[0]["drafts"] = speculation.drafts
    state.totals[0]["depth"] = len(speculation.acceptance)
    state.totals[0]["draft_share"] = speculation.layers / layers
    failing = Failing(state, limits, faults)
    for i, group in enumerate(groups):
        _put(state, i, group)
        state.instances[i]["pause_at"] = group.next_pause
    moved = transfer or KvTransfer(np.float64(0), np.float64(0))
    schedule = compiled_scheduler.compile_scheduler(scheduler.name, scheduler.params, state, limits)
    ended = loop.PAUSED
    while ended == loop.PAUSED:
        ended = loop.run(state, pool.table, (decode or pool).table, limits, moved, schedule)
        if ended == loop.PAUSED:
            done[0] = state.totals[0]["finished"] / len(state.requests)
            progress("serving", done[0])
            if failing.due:
                failing.go_on()
            elif groups:
                balance.append(_ask(state, groups))
            else:
                _go_on(state)
    if ended != loop.ENDED:
        raise ArchsimError(f"scheduler {scheduler.name}: {_fault(state, ended)}")
    totals = state.totals[0]
    moves = tuple(sorted((each for group in groups for each in group.moves), key=lambda each: each.time_ns))
    found = _as_served(state, totals, requests.concurrency, np.array(balance, float).reshape(-1, 2), moves)
    return found._replace(ttft=not pool.prefilled, failed=tuple(failing.found))


def servable(
    requests: Requests, scheduler: Scheduler, pool: Pool, decode: Pool | None = None, whose: str = "requests"
) -> Requests:
    """Without requests that no iteration of a pool could ever serve. Raises TraceError where that leaves none."""
    budget, preempted = scheduler.max_num_batched_tokens, row_of(scheduler.name).preempts
    for each in (pool, decode) if decode else (pool,):
        kv_tokens = each.units.most_tokens(each.kv_blocks, scheduler.block_tokens, budget)
        requests = without_too_long(
            requests, kv_tokens, budget, scheduler.chunked_prefill, whose, preempted=preempted
        )  # fmt: skip
    return requests


def _apart(requests: Requests, served: Callable[[Requests], Served]) -> Requests:
    """With clients that begin at random within the time that a request, or a session, takes, as clients that know
    nothing of each other are found to be; load generators ramp up so (AIPerf's --concurrency-ramp-duration, GuideLLM's
    rampup_duration). That time is of as many requests as there are clients, ``served`` at once. Where no client sends a
    second one, all begin at once.
    """
    clients, n = requests.concurrency, len(requests.input)
    heads = first_turns(n, requests.follower)
    if not 1 < clients < len(heads):
        return requests._replace(apart=False)
    few = some(requests, np.isin(np.arange(n), np.arange(clients) * n // clients))
    few = few._replace(arrival_ns=np.zeros(clients), follower=np.zeros(0, np.int64), think_ns=np.zeros(0), apart=False)
    takes = float((found := served(few).requests)["last_ns"].mean() - found["arrival_ns"].mean()) * n / len(heads)
    takes += float(requests.think_ns[requests.follower >= 0].sum()) / len(heads)
    arrivals = requests.arrival_ns.copy()
    at = np.sort(np.random.Generator(np.random.Philox(key=[clients, START_STREAM])).random(clients))
    arrivals[heads[:clients]] = (at - at[0]) * takes
    return requests._replace(arrival_ns=arrivals, apart=False)


def _fault(state: ServingState, ended: int) -> str:
    totals = state.totals[0]
    if ended == loop.FAILED:
        at = "" if totals["failed"] == RAISED else f" request {totals['failed_at']}"
        return f"{FAULTS[int(totals['failed'])]}{at}"
    left = len(state.requests) - totals["finished"]
    return f"gives no token to any of {left} requests that are left, though no other event can change that"


def _groups(pool: Pool, decode: Pool | None, say: Say) -> list[ExpertGroup]:
    """Of every instance; none where experts are in the table."""
    if pool.experts is None:
        return []
    kinds = [pool.experts] * pool.instances
    if decode is not None and decode.experts is not None:
        kinds += [decode.experts] * decode.instances
    return [build(i, say) for i, build in enumerate(kinds)]


def _put(state: ServingState, i: int, group: ExpertGroup) -> None:
    """No iteration has more tokens than the last point of its group; prefill and decode may have different ones."""
    points = group.table.shape[1]
    state.experts[i, :, :points] = group.table
    state.experts[i, :, points:] = group.table[:, -1:]


def _go_on(state: ServingState) -> None:
    instance = state.instances[int(state.totals[0]["paused"])]
    instance["pause_at"] = instance["iterations"] + SPOKEN


def _ask(state: ServingState, groups: list[ExpertGroup]) -> tuple[float, float]:
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
    store: KvStore | None = None,
) -> SchedulerLimits:
    return SchedulerLimits(
        max_seqs=np.int64(scheduler.max_num_seqs),
        budget=np.int64(scheduler.max_num_batched_tokens),
        block_tokens=np.int64(scheduler.block_tokens),
        cached=np.int64(scheduler.prefix_caching and requests.hash_tokens > 0),
        by_length=np.int64(row_of(scheduler.name).by_length),
        chunked=np.int64(scheduler.chunked_prefill),
        choice=CHOICES[scheduler.balance],
        concurrency=np.int64(requests.concurrency),
        request_ns=np.float64(request_ns),
        front_end_ns=np.float64(front_end_ns),
        first_after=np.int64(first_after),
        params=_params(scheduler),
        prefill=CADENCES[scheduler.prefill],
        prefill_every=np.int64(scheduler.prefill_every),
        acceptance=np.array(speculation.acceptance or (0.0,)),
        draws=draws(speculation),
        block_units=np.int64(units.of_block),
        request_units=np.int64(units.of_request),
        windows=np.array(units.windows, np.int64).reshape(-1, 2),
        sessions=np.int64(len(requests.follower) > 0),
        ordered=ORDERS[scheduler.order] if len(requests.order) else ARRIVAL,
        stored=np.int64(store is not None),
        load_ns=np.float64(store.load_ns if store else 0.0),
        unit_ns=np.float64(store.block_ns / units.of_block if store else 0.0),
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
    limits: SchedulerLimits,
    points: int = 0,
    logged: int = 0,
    store: KvStore | None = None,
    failing: bool = False,
) -> ServingState:
    """``points``: of the tables of experts; ``failing``: whether ranks may fail."""
    records = zeros(len(requests.input), REQUEST)
    records["arrival_ns"], records["input"], records["output"] = requests.arrival_ns, requests.input, requests.output
    cached = kv.pieces_of(requests, scheduler.block_tokens) if limits.cached else kv.NO_PIECES
    if limits.cached:
        records["piece_from"], records["piece_to"] = cached.first[:-1], cached.first[1:]
    records["behind"] = limits.first_after - 1
    for name in ("scheduled_ns", "first_ns", "last_ns"):
        records[name] = -1.0
    heads = first_turns(len(records), requests.follower)
    if len(requests.follower):
        records["follower"], records["think_ns"] = requests.follower, requests.think_ns
        heads = heads[np.argsort(requests.arrival_ns[heads], kind="stable")]
    if len(requests.kinds):
        records["kind"] = requests.kinds
    if limits.ordered:
        records["order"] = requests.order
    begun = min(requests.concurrency or len(heads), len(heads))
    line = np.zeros(len(records), np.int64)
    line[: len(heads)] = heads
    if pool.prefilled:
        records["computed"], records["made"] = requests.input, 1
    ranks, instances = _ranks(pool, decode, scheduler.max_num_seqs, store, failing)
    seen = (len(ranks), len(cached.blocks))
    return ServingState(
        requests=records,
        ranks=ranks,
        instances=instances,
        totals=_totals(begun),
        pieces=cached.pieces,
        held=np.zeros(len(cached.pieces), np.uint8),
        sizes=cached.blocks * limits.block_units,
        slots=np.zeros((len(ranks), scheduler.max_num_seqs), np.int64),
        new=np.zeros((len(ranks), scheduler.max_num_seqs), np.int64),
        references=np.full(seen, -1, np.int32),
        older=np.full(seen, -1, np.int32),
        younger=np.full(seen, -1, np.int32),
        gaps=np.zeros(GAPS, np.int64),
        series=np.zeros((BINS, len(SERIES))),
        entered=np.zeros(1),
        experts=np.zeros((len(instances), 2, points), EXPERTS),
        log=np.zeros(logged, ITERATION),
        sessions=schedulers.sessions_of(requests) if limits.choice == SESSION else np.zeros(1, np.int64),
        homes=np.full(len(records) if limits.choice == SESSION else 1, -1, np.int64),
        line=line,
        heads=heads,
    )


def _ranks(
    pool: Pool, decode: Pool | None, most: int, store: KvStore | None = None, failing: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """(ranks, instances): those that serve, then stores, each a rank of an instance that only keeps pieces, and last,
    with ``failing``, an instance for ranks that failed.
    """
    alone = DECODE if pool.prefilled else BOTH
    kinds = [(pool, alone)] if decode is None else [(pool, PREFILL), (decode, DECODE)]
    owners = [(each, does) for each, does in kinds for _ in range(each.instances)]
    serving, kept = sum(each.ranks for each, _ in owners), 0
    if store is not None:
        kept = 1 if store.shared else pool.instances
    instances, ranks = zeros(len(owners) + kept + failing, INSTANCE), zeros(serving + kept, RANK)
    instances["experts"] = 1.0
    first = 0
    for at, (each, does) in enumerate(owners):
        mine = slice(first, first + each.ranks)
        instances[at]["pause_at"], instances[at]["pause_ns"] = SPOKEN, np.inf
        instances[at]["first"], instances[at]["last"], instances[at]["does"] = mine.start, mine.stop, does
        ranks["instance"][mine], ranks["most"][mine] = at, min(each.most or most, most)
        ranks["capacity"][mine] = ranks["free"][mine] = each.kv_blocks * each.units.of_block
        if store is not None and at < pool.instances:
            ranks["store"][mine] = serving + (0 if store.shared else at)
        first = mine.stop
    for at in range(kept):
        assert store is not None
        mine_at = instances[len(owners) + at]
        mine_at["first"], mine_at["last"], mine_at["does"] = serving + at, serving + at + 1, STORE
        mine_at["pause_at"], mine_at["pause_ns"] = SELDOM, np.inf
        ranks["instance"][serving + at] = len(owners) + at
        ranks["capacity"][serving + at] = ranks["free"][serving + at] = store.blocks * pool.units.of_block
    if failing:
        instances[-1]["does"], instances[-1]["pause_at"], instances[-1]["pause_ns"] = FAILED, SELDOM, np.inf
    return ranks, instances


class Failed(NamedTuple):
    """A fault that was: ``lost``: requests that had KV there."""

    at_ns: float
    lost: int


class Failing:
    """Ranks that fail and come back while requests are served: ``go_on`` changes the state of a paused loop."""

    def __init__(self, state: ServingState, limits: SchedulerLimits, faults: Sequence[Fault]) -> None:
        self._state, self._limits = state, limits
        self._left: list[tuple[float, bool, Fault]] = sorted(
            ((each.at_ns, False, each) for each in faults), key=lambda event: event[0]
        )
        self.found: list[Failed] = []
        self._homes = state.ranks["instance"].copy()
        self._does = state.instances["does"].copy()
        self._set_pause()

    @property
    def due(self) -> bool:
        """Whether the loop has paused for what fails or comes back now."""
        return bool(self._left) and float(self._state.totals[0]["now_ns"]) >= self._left[0][0]

    def go_on(self) -> None:
        while self.due:
            at_ns, back, fault = self._left.pop(0)
            self._back(fault) if back else self._fail(fault, at_ns)
        self._set_pause()

    def _set_pause(self) -> None:
        if self._left:
            self._state.instances["pause_ns"] = self._left[0][0]
        elif self.found:
            self._state.instances["pause_ns"] = np.inf

    def _fail(self, fault: Fault, at_ns: float) -> None:
        state, i = self._state, fault.instance
        instance = state.instances[i]
        first, does = int(instance["first"]), int(self._does[i])
        ranks = range(first, int(instance["last"]))
        dead = [first + fault.rank] if fault.elastic else list(ranks)
        others = [k for k in range(len(state.ranks)) if k not in dead
                  and state.instances[state.ranks[k]["instance"]]["does"] == does]  # fmt: skip
        if others:
            for k in dead:
                state.ranks[k]["instance"] = len(state.instances) - 1
        leave = does if others else -1
        self.found.append(Failed(at_ns, sum(int(loop.lose(state, k, leave, self._limits)) for k in dead)))
        back_ns = fault.back_ns if fault.elastic else (fault.stall_ns if others else np.inf)
        if fault.elastic or not others:
            self._stall(instance, at_ns + fault.stall_ns)
        if fault.elastic:
            self._spread(i)
        if np.isfinite(back_ns):
            self._left.append((at_ns + back_ns, True, fault))
            self._left.sort(key=lambda event: event[0])

    def _back(self, fault: Fault) -> None:
        state, i = self._state, fault.instance
        first = int(state.instances[i]["first"])
        ranks = [first + fault.rank] if fault.elastic else range(first, int(state.instances[i]["last"]))
        for k in ranks:
            state.ranks[k]["instance"] = self._homes[k]
        if fault.elastic:
            self._stall(state.instances[i], float(state.totals[0]["now_ns"]) + fault.stall_ns)
            self._spread(i)

    def _stall(self, instance: np.void, until_ns: float) -> None:
        instance["stall_ns"] += max(until_ns - float(self._state.totals[0]["now_ns"]), 0.0)

    def _spread(self, i: int) -> None:
        """The experts of an engine are on the ranks that are left."""
        instance = self._state.instances[i]
        mine = self._state.ranks["instance"][int(instance["first"]) : int(instance["last"])]
        instance["experts"] = len(mine) / max(int((mine == i).sum()), 1)


def _as_served(
    state: ServingState, totals: np.void, concurrency: int, balance: np.ndarray, moves: tuple[MigrationCost, ...]
) -> Served:
    bin_ns, end = float(totals["bin_ns"]), float(totals["now_ns"])
    used = max(1, int(np.ceil(end / bin_ns)))
    spans = np.full(used, bin_ns)
    spans[-1] = max(end - (used - 1) * bin_ns, 1.0)
    means = state.series[:used] / spans[:, None]
    means[:, -1] *= 1e9
    log = state.log[: int(totals["iterations"])]
    for name in ("first_ns", "last_ns"):  # as clients see them
        state.requests[name] += state.requests["lag_ns"]
    return Served(
        requests=state.requests,
        gaps=state.gaps,
        series=means,
        bin_ns=bin_ns,
        totals=totals,
        concurrency=concurrency,
        balance=balance,
        moves=moves,
        log=log,
        experts=state.experts,
    )


def _totals(issued: int) -> np.ndarray:
    found = np.zeros(1, TOTALS)
    found["bin_ns"], found["issued"], found["begun"] = FIRST_BIN_NS, issued, issued
    return found
