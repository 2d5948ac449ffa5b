"""Serves requests on a deployment: sets up the state, runs the compiled loop, and returns what happened."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from archsim.serving import loop
from archsim.serving.clock import StepTable
from archsim.serving.records import (
    BINS,
    BOTH,
    DECODE,
    GAPS,
    INSTANCE,
    LEAST_LOADED,
    PREFILL,
    RANK,
    REQUEST,
    ROUND_ROBIN,
    SERIES,
    SGLANG,
    TOTALS,
    TRTLLM,
    VLLM_V1,
    Limits,
    State,
    Transfer,
    zeros,
)
from archsim.serving.requests import Requests, refuse_too_long

STRATEGIES = {"vllm_v1": VLLM_V1, "sglang": SGLANG, "trtllm": TRTLLM}
CHOICES = {"round_robin": ROUND_ROBIN, "least_loaded": LEAST_LOADED}
FIRST_BIN_NS = 1e7


class Scheduler(NamedTuple):
    """``name``: of STRATEGIES; ``balance``: of CHOICES. ``kept_share``: SGLang's new_token_ratio."""

    name: str = "vllm_v1"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    chunked_prefill: bool = True
    prefix_caching: bool = True
    block_tokens: int = 16
    balance: str = "round_robin"
    kept_share: float = 0.7


class Pool(NamedTuple):
    """``instances`` alike, of ``ranks`` that step together; ``kv_blocks``: of a rank."""

    instances: int
    ranks: int
    kv_blocks: int
    table: StepTable


class Served(NamedTuple):
    """What happened. ``requests``: REQUEST[request]; ``gaps``: int64[bin] between tokens; ``series``: float64[bin,
    column] means over ``bin_ns`` (columns of SERIES; tokens a second); ``totals``: a record of TOTALS.
    """

    requests: np.ndarray
    gaps: np.ndarray
    series: np.ndarray
    bin_ns: float
    totals: np.void
    concurrency: int


def simulate(
    requests: Requests,
    scheduler: Scheduler,
    pool: Pool,
    *,
    decode: Pool | None = None,
    transfer: Transfer | None = None,
    request_ns: float = 0.0,
    first_after: int = 1,
    whose: str = "requests",
) -> Served:
    """Serve all requests on a pool; with ``decode``, the pool only prefills and KV moves by ``transfer``.

    ``request_ns``: host's time from arrival to the queue; ``first_after``: tokens that are out when a client sees the
    first. Raises TraceError for requests that can never be served.
    """
    chunked = scheduler.chunked_prefill
    for each in (pool, decode) if decode else (pool,):
        kv_tokens = each.kv_blocks * scheduler.block_tokens
        refuse_too_long(requests, kv_tokens, scheduler.max_num_batched_tokens, chunked, whose)
    limits = _limits(requests, scheduler, request_ns, first_after)
    state = _state(requests, scheduler, pool, decode, limits)
    moved = transfer or Transfer(np.float64(0), np.float64(0))
    ended = loop.run(state, pool.table, (decode or pool).table, limits, moved)
    if ended != loop.ENDED:
        raise RuntimeError(f"{whose}: {state.totals[0]['finished']} requests ended, but no other can be scheduled")
    totals = state.totals[0]
    return _served(state, totals, requests.concurrency)


def _limits(requests: Requests, scheduler: Scheduler, request_ns: float, first_after: int = 1) -> Limits:
    caching = scheduler.prefix_caching and requests.hash_tokens > 0
    return Limits(
        STRATEGIES[scheduler.name],
        np.int64(scheduler.max_num_seqs),
        np.int64(scheduler.max_num_batched_tokens),
        np.int64(scheduler.block_tokens),
        np.int64(max(requests.hash_tokens, 1)),
        np.int64(requests.hash_tokens // scheduler.block_tokens if caching else 0),
        np.int64(scheduler.chunked_prefill),
        CHOICES[scheduler.balance],
        np.int64(requests.concurrency),
        np.float64(request_ns),
        np.int64(first_after),
        np.float64(scheduler.kept_share),
    )


def _state(requests: Requests, scheduler: Scheduler, pool: Pool, decode: Pool | None, limits: Limits) -> State:
    records = zeros(len(requests.input), REQUEST)
    records["arrival_ns"], records["input"], records["output"] = requests.arrival_ns, requests.input, requests.output
    records["hash_from"], records["hash_to"] = requests.hash_from[:-1], requests.hash_from[1:]
    for name in ("scheduled_ns", "first_ns", "last_ns"):
        records[name] = -1.0
    ranks, instances = _ranks(pool, decode)
    blocks = int(requests.hash_ids.max()) + 1 if limits.hash_blocks and len(requests.hash_ids) else 1
    seen = (len(ranks), blocks)
    return State(
        records,
        ranks,
        instances,
        _totals(),
        requests.hash_ids if len(requests.hash_ids) else np.zeros(1, np.int64),
        np.zeros(max(len(requests.hash_ids), 1), np.uint8),
        np.zeros((len(ranks), scheduler.max_num_seqs), np.int64),
        np.zeros((len(ranks), scheduler.max_num_seqs), np.int64),
        np.full(seen, -1, np.int32),
        np.full(seen, -1, np.int32),
        np.full(seen, -1, np.int32),
        np.zeros(GAPS, np.int64),
        np.zeros((BINS, len(SERIES))),
        np.zeros(1),
    )


def _ranks(pool: Pool, decode: Pool | None) -> tuple[np.ndarray, np.ndarray]:
    kinds = [(pool, BOTH)] if decode is None else [(pool, PREFILL), (decode, DECODE)]
    owners = [(each, does) for each, does in kinds for _ in range(each.instances)]
    instances, ranks = zeros(len(owners), INSTANCE), zeros(sum(each.ranks for each, _ in owners), RANK)
    first = 0
    for at, (each, does) in enumerate(owners):
        mine = slice(first, first + each.ranks)
        instances[at]["first"], instances[at]["last"], instances[at]["does"] = mine.start, mine.stop, does
        ranks["instance"][mine] = at
        ranks["capacity"][mine] = ranks["free"][mine] = each.kv_blocks
        first = mine.stop
    return ranks, instances


def _served(state: State, totals: np.void, concurrency: int) -> Served:
    bin_ns, end = float(totals["bin_ns"]), float(totals["now_ns"])
    used = max(1, int(np.ceil(end / bin_ns)))
    spans = np.full(used, bin_ns)
    spans[-1] = max(end - (used - 1) * bin_ns, 1.0)
    means = state.series[:used] / spans[:, None]
    means[:, -1] *= 1e9
    return Served(state.requests, state.gaps, means, bin_ns, totals, concurrency)


def _totals() -> np.ndarray:
    found = np.zeros(1, TOTALS)
    found["bin_ns"] = FIRST_BIN_NS
    return found
