"""Which rank a request goes to: a strategy a name of ``scheduler.balance``, and the sessions that one of them keeps."""

import numpy as np

from archsim.base.compiled import inner, outer
from archsim.serving.kv import cached_pieces, tokens_of
from archsim.serving.records import CACHE_AWARE, DECODE, PREFIX_AWARE, ROUND_ROBIN, SESSION, Limits, State
from archsim.serving.requests import Requests
from archsim.serving.schedulers import uncomputed

# SGLang's router (sgl-project/sglang, sgl-router: balance_abs_threshold, balance_rel_threshold, cache_threshold).
APART, TIMES_APART, ENOUGH_CACHED = 64, 1.5, 0.3


@outer
def choose(state: State, does, r, limits: Limits):
    """The rank of request ``r``, of instances that do its work; the first of those with the least score, from the one
    after the last choice on.
    """
    totals, ranks = state.totals[0], state.ranks.shape[0]
    session = state.sessions[r] if limits.choice == SESSION and does != DECODE else -1
    if session >= 0 and state.homes[session] >= 0:
        return state.homes[session]
    if limits.choice == CACHE_AWARE and does != DECODE:
        return _most_cached(state, does, r, limits)
    turn = totals.decode_turn if does == DECODE else totals.turn
    best, least = -1, 0.0
    for step in range(ranks):
        k = (turn + step) % ranks
        if state.instances[state.ranks[k].instance].does != does:
            continue
        score = _score(state, k, r, does, limits)
        if best < 0 or score < least:
            best, least = k, score
    if does == DECODE:
        totals.decode_turn = best + 1
    else:
        totals.turn = best + 1
    if session >= 0:
        state.homes[session] = best
    return best


@inner
def _score(state: State, k, r, does, limits: Limits):
    """Of a rank for a request; the least is chosen. Sessions, and decodes, begin where fewest requests are."""
    if limits.choice == ROUND_ROBIN:
        return 0.0
    if limits.choice == PREFIX_AWARE and does != DECODE:
        return _kv_score(state, k, r, limits)
    return float(_load(state, k))


@inner
def _load(state: State, k):
    return state.ranks[k].running + state.ranks[k].waiting


@outer
def _most_cached(state: State, does, r, limits: Limits):
    """As SGLang's router (sgl-router's `cache_aware` policy and its defaults): the shortest queue where queues differ
    much; else the rank that has most of the prompt, or, where none has enough of it, the one with the smallest cache.
    """
    best, shortest, smallest, cached, most = -1, -1, -1, -1, 0
    for k in range(state.ranks.shape[0]):
        if state.instances[state.ranks[k].instance].does != does:
            continue
        found = tokens_of(cached_pieces(state, k, r, limits)[1], limits)
        if found > cached:
            best, cached = k, found
        if shortest < 0 or _load(state, k) < _load(state, shortest):
            shortest = k
        if smallest < 0 or state.ranks[k].free > state.ranks[smallest].free:
            smallest = k
        most = max(most, _load(state, k))
    least = _load(state, shortest)
    if most - least > APART and most > TIMES_APART * least:
        return shortest
    return best if cached > ENOUGH_CACHED * state.requests[r].input else smallest


@outer
def _kv_score(state: State, k, r, limits: Limits):
    """As Dynamo's KV router: blocks of prompts that the rank then has to compute, and blocks in use (ai-dynamo/dynamo,
    lib/llm/src/kv_router/scheduler.rs: overlap_score_weight 1, router_temperature 0). Events of the cache arrive at
    once.
    """
    rank = state.ranks[k]
    tokens = state.requests[r].input - tokens_of(cached_pieces(state, k, r, limits)[1], limits)
    waiting = rank.head
    while waiting >= 0:
        tokens += uncomputed(state, waiting)
        waiting = state.requests[waiting].next
    for at in range(rank.running):
        if state.requests[state.slots[k, at]].made == 0:
            tokens += uncomputed(state, state.slots[k, at])
    used = rank.capacity - rank.free - rank.unheld
    return tokens / limits.block_tokens + used / limits.block_units


def sessions_of(requests: Requests) -> np.ndarray:
    """int64[request]: requests of one session have the number of its first one. A prompt that contains all full blocks
    of an earlier one, of which it has the longest, is a later turn of it; the first block alone is a system prompt.
    """
    found = np.arange(len(requests.input))
    ends: dict[int, int] = {}  # the last full block of a prompt → its session
    for r in range(len(found)):
        full = int(requests.input[r]) // max(requests.hash_tokens, 1)
        blocks = requests.hash_ids[requests.hash_from[r] : requests.hash_from[r + 1]][:full].tolist()[1:]
        found[r] = next((ends[each] for each in reversed(blocks) if each in ends), r)
        if blocks:
            ends[blocks[-1]] = int(found[r])
    return found
