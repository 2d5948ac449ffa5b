"""State of a simulated deployment as arrays: requests, ranks, instances, the prefix cache, limits."""

from typing import NamedTuple

import numpy as np

NONE = np.int64(-1)
# Strategies of the choice of a rank, by number in compiled code.
ROUND_ROBIN, LEAST_LOADED = np.int64(0), np.int64(1)
PREFIX_AWARE, CACHE_AWARE, SESSION = np.int64(2), np.int64(3), np.int64(4)
ARRIVAL, PRIORITY, DEADLINE = np.int64(0), np.int64(1), np.int64(2)  # orders in which requests wait
FREE, SPACED, TOGETHER = np.int64(0), np.int64(1), np.int64(2)  # when ranks admit prompts
# What a scheduler of the user's did that cannot be (``failed`` of TOTALS).
RAISED, TOO_MANY, NOT_LACKING, NO_BLOCKS = np.int64(1), np.int64(2), np.int64(3), np.int64(4)
# What an instance does; a store keeps KV beside HBM, and a rank that failed belongs to one that does nothing.
BOTH, PREFILL, DECODE, STORE, FAILED = np.int64(0), np.int64(1), np.int64(2), np.int64(3), np.int64(4)

REQUEST = np.dtype(
    [
        ("arrival_ns", "f8"),
        ("input", "i8"),  # tokens of the prompt
        ("output", "i8"),  # tokens to generate
        ("piece_from", "i8"),  # its pieces: of the array of those of all
        ("piece_to", "i8"),
        ("computed", "i8"),  # tokens with KV
        ("made", "i8"),  # tokens generated
        ("blocks", "i8"),  # units of KV of its own
        ("known", "i8"),  # tokens of its prompt, with the output that it had when it was admitted; 0: only decodes
        ("hashed", "i8"),  # pieces of its prompt that were looked up or inserted
        ("covered", "i8"),  # units of KV of these pieces
        ("shared", "i8"),  # of those, units that it holds in the prefix cache
        ("next", "i8"),  # in the waiting queue or the line of transfers
        ("rank", "i8"),
        ("hit", "i8"),  # tokens found in the prefix cache at first admission
        ("preempted", "i8"),  # times
        ("scheduled_ns", "f8"),  # first admitted
        ("first_ns", "f8"),
        ("last_ns", "f8"),
        ("lag_ns", "f8"),  # from a token to its client
        ("behind", "i8"),  # iterations until its first token reaches its client
        ("ready_ns", "f8"),  # its KV has arrived at the decode instance, or from the store
        ("follower", "i8"),  # next turn of its session; -1: none
        ("think_ns", "f8"),  # between its last token and the next turn
        ("order", "f8"),  # the least waits in front; of deadlines, from its arrival on until it is queued
        ("kind", "i8"),  # of the classes of requests
        ("loaded", "i8"),  # pieces of its prompt that are there when those of the store have arrived
    ]
)
RANK = np.dtype(
    [
        ("instance", "i8"),
        ("head", "i8"),  # waiting queue
        ("tail", "i8"),
        ("waiting", "i8"),
        ("running", "i8"),
        ("most", "i8"),  # requests that may run
        ("capacity", "i8"),  # units of KV
        ("free", "i8"),
        ("oldest", "i8"),  # prefix cache: pieces that no request holds, by last use
        ("newest", "i8"),
        ("unheld", "i8"),  # units of KV of these pieces
        ("received", "i8"),  # waiting requests that a scheduler that polls has seen
        ("unpolled", "i8"),  # and iterations since it looked for more
        ("held", "i8"),  # no prompt is computed in this iteration
        ("store", "i8"),  # rank that keeps KV for it beside HBM; -1: none
        ("load_head", "i8"),  # requests whose KV comes from the store
        ("load_tail", "i8"),
        ("load_free_ns", "f8"),
        ("tokens", "i8"),  # of this iteration
        ("decodes", "i8"),
        ("rows", "i8"),  # tokens of the decodes: with drafts, several each
        ("decode_context", "i8"),  # sum
        ("chunks", "i8"),
        ("chunk_tokens", "i8"),
        ("pairs", "f8"),  # of queries and keys of the chunks
        ("sampled", "i8"),
    ]
)
INSTANCE = np.dtype(
    [
        ("first", "i8"),  # its ranks: first to last - 1
        ("last", "i8"),
        ("does", "i8"),
        ("busy", "i8"),
        ("end_ns", "f8"),
        ("head", "i8"),  # requests whose KV leaves this instance
        ("tail", "i8"),
        ("link_free_ns", "f8"),
        ("iterations", "i8"),
        ("pause_at", "i8"),  # with this iteration, or at this time, its experts are asked for anew
        ("pause_ns", "f8"),
        ("stall_ns", "f8"),  # that its next iteration waits
        ("quiet", "i8"),  # iterations since one with a prompt
        ("decoded", "f8"),  # tokens since its experts were asked for
        ("prompted", "f8"),
        ("experts", "f8"),  # of the time of routed experts, where fewer ranks have them
    ]
)
TOTALS = np.dtype(
    [
        ("finished", "i8"),
        ("issued", "i8"),  # their arrival is known
        ("queued", "i8"),
        ("begun", "i8"),  # first turns that were issued
        ("turn", "i8"),
        ("decode_turn", "i8"),
        ("iterations", "i8"),
        ("prompts", "i8"),  # iterations with a prompt, and their time
        ("prompts_ns", "f8"),
        ("sequences", "i8"),  # requests of the fullest rank, over iterations
        ("shared_ns", "f8"),  # of experts, with dispatch and combine
        ("moved_ns", "f8"),  # of it dispatch and combine, where nothing hides them
        ("linked_ns", "f8"),  # of slowest ranks: collectives, and hops of pipelines
        ("through_ns", "f8"),  # when the front end is free
        ("balance", "f8"),  # of the pairs of ranks, over iterations
        ("paused", "i8"),  # instance whose experts are asked for
        ("drafts", "i8"),  # of a decode, all of them verified
        ("depth", "i8"),  # of its drafts: how often some are drafted, and how many of them may be accepted
        ("draft_share", "f8"),  # of the layers that a draft runs
        ("drafted", "i8"),  # drafts verified, and accepted
        ("accepted", "i8"),
        ("failed", "i8"),  # a user's scheduler raised (1), or gave what cannot be (other FAULTS)
        ("failed_at", "i8"),  # the request
        ("preemptions", "i8"),
        ("loaded_tokens", "i8"),  # of prompts, from stores
        ("prefill_tokens", "i8"),  # computed, recomputation included
        ("decode_tokens", "i8"),
        ("busy_ns", "f8"),  # of all instances
        ("now_ns", "f8"),
        ("bin_ns", "f8"),
        ("seen_ns", "f8"),  # up to here the series is filled
    ]
)
ITERATION = np.dtype(
    [
        ("instance", "i8"),
        ("begin_ns", "f8"),
        ("end_ns", "f8"),
        ("decodes", "i8"),
        ("chunks", "i8"),
        ("chunk_tokens", "i8"),
        ("experts_ns", "f8"),  # with dispatch and combine
        ("moved_ns", "f8"),  # of it dispatch and combine
        ("linked_ns", "f8"),  # collectives, and hops of pipelines
        ("stall_ns", "f8"),  # of it, for weights that moved
        ("kv", "f8"),  # share of the instance's blocks in use
        ("waiting", "i8"),
    ]
)
# The routed experts of all MoE layers for a number of tokens; what is no logarithm and no balance is a share of the ns.
EXPERTS = np.dtype(
    [
        ("ln_ns", "f8"),
        ("balance", "f8"),  # mean over largest number of pairs of a rank
        ("dispatch", "f8"),
        ("combine", "f8"),
        ("dispatch_sms", "f8"),  # while SMs send and receive
        ("combine_sms", "f8"),
        ("multiply", "f8"),  # at peak
    ]
)
SERIES = ("kv", "running", "waiting", "tokens")  # columns: shares of KV blocks, requests, tokens of the iterations
BINS = 512
# Gaps between tokens: bins of 0.5 % from 1 us on.
GAPS, GAP_FIRST_NS, GAP_STEP = 4200, 1e3, 0.005


class SchedulerLimits(NamedTuple):
    """Of a scheduler. ``cached``: whether there is a prefix cache. ``params``: float64[n], its own, in the order of its
    row. ``by_length``: whether a chunk of one token is computed as a decode. ``block_units``: of KV a block of layers
    that keep all tokens; ``request_units``: what a request takes besides, however long it is; ``windows``:
    int64[window, 2], tokens and units a block of layers that keep the last tokens alone.
    """

    max_seqs: np.int64
    budget: np.int64
    block_tokens: np.int64
    cached: np.int64
    by_length: np.int64
    chunked: np.int64
    choice: np.int64
    concurrency: np.int64  # closed loop; 0: open
    request_ns: np.float64  # host's time from arrival to the queue
    front_end_ns: np.float64  # before it, one request after the other
    first_after: np.int64  # iterations that are over when a client sees a first token, its own among them
    params: np.ndarray
    prefill: np.int64  # FREE, SPACED, TOGETHER
    prefill_every: np.int64
    acceptance: np.ndarray  # float64[draft]
    draws: np.ndarray  # float64[DRAWS]
    block_units: np.int64
    request_units: np.int64
    windows: np.ndarray
    sessions: np.int64  # whether requests have followers
    ordered: np.int64  # ARRIVAL, PRIORITY, DEADLINE
    stored: np.int64  # whether ranks have a store
    load_ns: np.float64  # of a load from the store, before its units come
    unit_ns: np.float64  # of a unit of KV from the store


class KvTransfer(NamedTuple):
    """KV from a prefill to a decode instance. ``ns_per_token``: of layers that keep all tokens; ``ns_per_request``: of
    states; ``windows``: float64[window, 2], tokens of a window and ns of each of them.
    """

    latency_ns: np.float64
    ns_per_token: np.float64
    ns_per_request: np.float64 = np.float64(0)
    windows: np.ndarray = np.zeros((0, 2))


class ServingState(NamedTuple):
    """All that changes while requests are served. Kernels write it in place."""

    requests: np.ndarray  # REQUEST[request]
    ranks: np.ndarray  # RANK[rank]
    instances: np.ndarray  # INSTANCE[instance]
    totals: np.ndarray  # TOTALS[1], of the whole run
    pieces: np.ndarray  # int64[n] of all prompts (`archsim.serving.kv.pieces_of`)
    held: np.ndarray  # uint8[n] of pieces: whether their request holds them in the cache
    sizes: np.ndarray  # int64[piece], units of KV
    slots: np.ndarray  # int64[rank, slot], running requests
    new: np.ndarray  # int64[rank, slot], their tokens in this iteration
    references: np.ndarray  # int32[rank, piece], users of a piece; -1: not in the cache
    older: np.ndarray  # int32[rank, piece], the piece used before; -1: none
    younger: np.ndarray  # int32[rank, piece], the piece used after; -1: none
    gaps: np.ndarray  # int64[bin], times between tokens
    series: np.ndarray  # float64[bin, column], integrals over time
    entered: np.ndarray  # float64[1], tokens since the series was filled
    # EXPERTS[instance, phase, point] (`archsim.serving.groups`); no point where experts are in the table of steps
    experts: np.ndarray
    log: np.ndarray  # ITERATION[n], the first n of all instances
    sessions: np.ndarray  # int64[request], the session of each
    homes: np.ndarray  # int64[session], the rank it is bound to; -1: none yet
    line: np.ndarray  # int64[request], in the order of queueing, as far as it is known
    heads: np.ndarray  # int64[session], first turns


def zeros(n: int, dtype: np.dtype) -> np.ndarray:
    """Records of zeros, with links and ranks unset."""
    found = np.zeros(n, dtype)
    for name in ("head", "tail", "next", "oldest", "newest", "rank", "follower", "store", "load_head", "load_tail"):
        if name in (dtype.names or ()):
            found[name] = -1
    return found
