"""Schedulers: what a rank computes in its next iteration; a function each, and a row in ``archsim.specs.serving``.

A scheduler is a function ``(state, k, now_ns, limits)``, compiled by `compile_scheduler`. It is called for every rank
``k`` that has a request, before every iteration of its engine. It fills ``state.new[k, i]`` (tokens of the i-th running
request, 0 for none), admits waiting requests, and gives both the KV blocks for these tokens, with the parts below. Its
parameters are ``limits.params``, in the order of its row; those of a user's own function are keyword arguments.
"""

import numpy as np

from archsim.base.compiled import inner, outer, reference
from archsim.serving import kv, records
from archsim.serving.requests import Requests

# Parts of a scheduler: queues, admission, preemption, and what the clock sums up.


@inner
def uncomputed(state: records.ServingState, r):
    """Known tokens without KV: 1 of a request that decodes."""
    request = state.requests[r]
    return request.input + request.made - request.computed


@inner
def is_prompt(state: records.ServingState, r):
    """Whether a request has yet to compute what it had when it was admitted: its prompt, or all anew."""
    return state.requests[r].computed < state.requests[r].known


@inner
def lacking(state: records.ServingState, r):
    """Tokens to compute before the next one is sampled, drafts included; 0 of a prompt where its rank holds prompts."""
    request = state.requests[r]
    if not is_prompt(state, r):
        return min(1 + state.totals[0].drafts, request.output - request.made)
    return 0 if state.ranks[request.rank].held else uncomputed(state, r)


@inner
def enqueue(state: records.ServingState, k, r):
    """At the end of a rank's waiting queue, or where ``order`` puts it: behind all with the same or an earlier one."""
    rank = state.ranks[k]
    state.requests[r].rank = k
    before = rank.tail
    if before >= 0 and state.requests[before].order > state.requests[r].order:
        at, before = rank.head, -1
        while state.requests[at].order <= state.requests[r].order:
            before, at = at, state.requests[at].next
    _put_behind(state, k, r, before)


@inner
def _put_behind(state: records.ServingState, k, r, before):
    """Into the waiting queue of a rank, behind a request; -1: at its front."""
    rank = state.ranks[k]
    if before >= 0:
        state.requests[r].next = state.requests[before].next
        state.requests[before].next = r
    else:
        state.requests[r].next = rank.head
        rank.head = r
    if before == rank.tail:
        rank.tail = r
    rank.waiting += 1


@inner
def _pop(state: records.ServingState, k):
    rank = state.ranks[k]
    r = rank.head
    rank.head = state.requests[r].next
    if rank.head < 0:
        rank.tail = -1
    rank.waiting -= 1
    return r


@inner
def preempt_last(state: records.ServingState, k):
    """The last running request loses its KV and goes back ahead of waiting ones with the same or a later ``order``."""
    rank = state.ranks[k]
    rank.running -= 1
    r = state.slots[k, rank.running]
    kv.release(state, k, r)
    state.requests[r].computed = 0
    state.requests[r].preempted += 1
    state.totals[0].preemptions += 1
    state.requests[r].loaded = 0
    rank.received += 1
    before, at = -1, rank.head
    while at >= 0 and state.requests[at].order < state.requests[r].order:
        before, at = at, state.requests[at].next
    _put_behind(state, k, r, before)


@outer
def serve_running(state: records.ServingState, k, budget, limits: records.SchedulerLimits):
    """Tokens of running requests in order. Returns the budget left; -1 where one was preempted."""
    rank = state.ranks[k]
    i, preempted = 0, False
    while i < rank.running:
        r = state.slots[k, i]
        new = min(lacking(state, r), budget)
        fits = new == 0
        while not fits and i < rank.running:
            fits = kv.grow(state, k, r, state.requests[r].computed + new, limits)
            if not fits:
                preempt_last(state, k)
                preempted = True
        if i < rank.running:
            state.new[k, i] = new
            budget -= new
            i += 1
    return -1 if preempted else budget


@outer
def admit(state: records.ServingState, k, now_ns, new_most, promised, whole, limits: records.SchedulerLimits):
    """Admit the first waiting request with up to ``new_most`` tokens, if the blocks of its first ``whole`` tokens and
    ``promised`` others are available.

    Returns its tokens of this iteration; 0: it has to wait.
    """
    rank = state.ranks[k]
    if rank.held or rank.running >= rank.most:
        return 0
    r = rank.head
    request = state.requests[r]
    found, shared, unheld, start = 0, 0, 0, request.computed
    anew = start == 0
    if anew:
        found, shared = kv.cached_pieces(state, k, r, limits)
        unheld = kv.unheld_of(state, k, r, found)
        start = kv.tokens_of(shared, limits)
        if limits.stored and request.loaded > found:
            start = kv.tokens_of(kv.stored_pieces(state, k, r, found, shared, limits)[1], limits)
    new = request.input + request.made - start
    if new > new_most:
        if limits.chunked == 0:
            return 0
        new = new_most
    left = min(request.input + request.made - start, limits.budget)
    own = max(kv.held_of(start, start + new, limits), kv.most_of(whole, left, limits) if whole else 0) - shared
    if own + promised > kv.available(state, k) - unheld:
        return 0
    _pop(state, k)
    request.known = request.input + request.made if anew else 0
    if found:
        kv.hold(state, k, r, found, shared, limits)
    if anew and start > kv.tokens_of(shared, limits):
        state.totals[0].loaded_tokens += start - kv.tokens_of(shared, limits)
        request.computed = start
    kv.grow(state, k, r, start + new, limits)
    if request.scheduled_ns < 0:
        request.scheduled_ns = now_ns
        request.hit = start if request.made == 0 else 0
    elif start == request.input and request.made == 1:  # computed elsewhere: its first token is out when it decodes
        request.first_ns = request.last_ns = now_ns
    at = rank.running
    while limits.ordered and at > 0 and state.requests[state.slots[k, at - 1]].order > request.order:
        state.slots[k, at], state.new[k, at] = state.slots[k, at - 1], state.new[k, at - 1]
        at -= 1
    state.slots[k, at], state.new[k, at] = r, new
    rank.running += 1
    return new


@outer
def sum_up(state: records.ServingState, k, limits: records.SchedulerLimits):
    """The batch of a rank as ``iteration.times.batches_of`` counts it. False, and a fault noted, for what cannot be."""
    rank = state.ranks[k]
    empty(state, k)
    if rank.running > limits.max_seqs:
        return _fault(state, records.TOO_MANY, state.slots[k, 0])
    for i in range(rank.running):
        r, new = state.slots[k, i], state.new[k, i]
        if new == 0:
            continue
        request = state.requests[r]
        before = request.computed
        if new < 0 or new > lacking(state, r):
            return _fault(state, records.NOT_LACKING, r)
        if kv.held_of(before, before + new, limits) > request.shared + request.blocks:
            return _fault(state, records.NO_BLOCKS, r)
        rank.tokens += new
        if before > 0 and uncomputed(state, r) == 1 and (limits.by_length or not is_prompt(state, r)):
            rank.decodes += 1
            rank.rows += new
            rank.decode_context += before + 1
            rank.sampled += new
            continue
        rank.chunks += 1
        rank.chunk_tokens += new
        rank.pairs += float(new) * before + new * (new + 1) / 2.0
        if before + new == request.input + request.made:
            rank.sampled += 1
    return True


@inner
def _fault(state: records.ServingState, fault, r):
    state.totals[0].failed, state.totals[0].failed_at = fault, r
    return False


@inner
def empty(state: records.ServingState, k):
    """No batch."""
    rank = state.ranks[k]
    rank.tokens, rank.decodes, rank.rows, rank.decode_context = 0, 0, 0, 0
    rank.chunks, rank.chunk_tokens, rank.pairs, rank.sampled = 0, 0, 0.0, 0


# SGLang: prompts go before decodes and are not mixed with them.
#
# An admission needs room for the whole prompt, also where a chunk of it runs first, for its own output, and for a share
# of the output that running requests have still to come (managers/schedule_policy.py, PrefillAdder.add_one_req and
# new_token_ratio). The scheduler looks for new requests after ``poll_every`` iterations of decodes, after prompts and
# when idle (managers/scheduler_recv_skipper.py). Until v0.5.9, requests that another engine has prefilled took an
# iteration of their rank, in which its decodes sat out while other ranks decoded (disaggregation/decode.py; DP sync:
# sgl-project/sglang#12839); now they join its decodes at once (#19568).

MOST_LATER = 4096  # tokens of an output that room is kept for: CLIP_MAX_NEW_TOKENS there


def sglang(state: records.ServingState, k, now_ns, limits: records.SchedulerLimits):
    state, limits = reference(state), reference(limits)
    poll_every, kept_share, joins = limits.params[0], limits.params[1], limits.params[2] > 0
    rank = state.ranks[k]
    budget, prompts, kept = limits.budget, 0, 0
    handed = state.instances[rank.instance].does == records.DECODE  # KV that arrives is looked for in every iteration
    if handed or rank.unpolled >= poll_every or rank.running == 0:
        rank.received, rank.unpolled = rank.waiting, 0
    for i in range(rank.running):
        r = state.slots[k, i]
        request = state.requests[r]
        kept += kv.blocks_of(int(kept_share * min(request.output - request.made, MOST_LATER)), limits)
        new = 0
        if is_prompt(state, r) and budget > 0:  # its first chunk is computed
            new = min(lacking(state, r), budget)
            if not kv.grow(state, k, r, request.computed + new, limits):
                new = 0
        state.new[k, i] = new
        budget -= new
        prompts += new
    while budget > 0 and rank.received > 0 and rank.head >= 0 and rank.running < limits.max_seqs:
        r = rank.head
        request = state.requests[r]
        own = min(request.output - request.made, MOST_LATER)
        whole = request.input + request.made + own
        new = admit(state, k, now_ns, budget, kept, whole, limits)
        if new == 0:
            break
        budget -= new
        prompts += 0 if joins and not is_prompt(state, r) else new
        kept += kv.blocks_of(own, limits)
        rank.received -= 1
    rank.unpolled = rank.unpolled + 1 if prompts == 0 else poll_every
    if prompts == 0:
        serve_running(state, k, limits.budget + limits.max_seqs * (1 + state.totals[0].drafts), limits)


# TensorRT-LLM: decodes and prompts together; an admission reserves the blocks of the whole output.
#
# So nothing is preempted (GUARANTEED_NO_EVICT).


def trtllm(state: records.ServingState, k, now_ns, limits: records.SchedulerLimits):
    state, limits = reference(state), reference(limits)
    rank = state.ranks[k]
    budget, promised = limits.budget, 0
    for i in range(rank.running):
        r = state.slots[k, i]
        request = state.requests[r]
        new = min(lacking(state, r), budget)
        if new and kv.grow(state, k, r, request.computed + new, limits):
            state.new[k, i] = new
            budget -= new
        else:
            state.new[k, i] = 0
        promised += _outstanding_blocks(state, r, limits)
    while budget > 0 and rank.head >= 0 and rank.running < limits.max_seqs:
        r = rank.head
        whole = state.requests[r].input + state.requests[r].output
        new = admit(state, k, now_ns, budget, promised, whole, limits)
        if new == 0:
            break
        budget -= new
        promised += _outstanding_blocks(state, r, limits)


@inner
def _outstanding_blocks(state: records.ServingState, r, limits: records.SchedulerLimits):
    """Blocks that a request has yet to take until its last token, while it holds most."""
    request = state.requests[r]
    own = request.shared + request.blocks
    at_once = min(uncomputed(state, r) + state.totals[0].drafts, limits.budget)
    return max(kv.most_of(request.input + request.output, at_once, limits) - own, 0)


# vLLM V1: running requests first, each with all tokens that it lacks, then waiting ones in order of arrival.
#
# All within one budget of tokens; a request that finds no block preempts the last one, which computes everything anew
# (vllm/v1/core/sched/scheduler.py). A prompt is admitted when the blocks of all of it are free, also if its first chunk
# would fit (``scheduler_reserve_full_isl``, on by default since 2026: vllm-project/vllm#37307; 0: as before).


def vllm_v1(state: records.ServingState, k, now_ns, limits: records.SchedulerLimits):
    state, limits = reference(state), reference(limits)
    rank, reserves = state.ranks[k], limits.params[0] > 0
    budget = serve_running(state, k, limits.budget, limits)
    while budget > 0 and rank.head >= 0 and rank.running < limits.max_seqs:
        request = state.requests[rank.head]
        new = admit(state, k, now_ns, budget, 0, request.input + request.made if reserves else 0, limits)
        if new == 0:
            break
        budget -= new


# Which rank a request goes to: a strategy a name of ``scheduler.balance``, and the sessions that one of them keeps.

# SGLang's router (sgl-project/sglang, sgl-router: balance_abs_threshold, balance_rel_threshold, cache_threshold).
APART, TIMES_APART, ENOUGH_CACHED = 64, 1.5, 0.3


@outer
def choose(state: records.ServingState, does, r, limits: records.SchedulerLimits):
    """The rank of request ``r``: of instances that do its work the first with least score, after the last choice."""
    totals, ranks = state.totals[0], state.ranks.shape[0]
    session = state.sessions[r] if limits.choice == records.SESSION and does != records.DECODE else -1
    if session >= 0 and state.homes[session] >= 0:
        return state.homes[session]
    if limits.choice == records.CACHE_AWARE and does != records.DECODE:
        return _most_cached(state, does, r, limits)
    turn = totals.decode_turn if does == records.DECODE else totals.turn
    best, least = -1, 0.0
    for step in range(ranks):
        k = (turn + step) % ranks
        if state.instances[state.ranks[k].instance].does != does:
            continue
        score = _score(state, k, r, does, limits)
        if best < 0 or score < least:
            best, least = k, score
    if does == records.DECODE:
        totals.decode_turn = best + 1
    else:
        totals.turn = best + 1
    if session >= 0:
        state.homes[session] = best
    return best


@inner
def _score(state: records.ServingState, k, r, does, limits: records.SchedulerLimits):
    """Of a rank for a request; the least is chosen. Sessions, and decodes, begin where fewest requests are."""
    if limits.choice == records.ROUND_ROBIN:
        return 0.0
    if limits.choice == records.PREFIX_AWARE and does != records.DECODE:
        return _kv_score(state, k, r, limits)
    return float(_load(state, k))


@inner
def _load(state: records.ServingState, k):
    return state.ranks[k].running + state.ranks[k].waiting


@outer
def _most_cached(state: records.ServingState, does, r, limits: records.SchedulerLimits):
    """As SGLang's router (sgl-router's `cache_aware` policy and its defaults): the shortest queue where queues differ
    much; else the rank that has most of the prompt, or, where none has enough of it, the one with the smallest cache.
    """
    none = np.int64(-1)
    best, shortest, smallest, cached, most = none, none, none, none, np.int64(0)
    for k in range(state.ranks.shape[0]):
        if state.instances[state.ranks[k].instance].does != does:
            continue
        found = kv.tokens_of(kv.cached_pieces(state, k, r, limits)[1], limits)
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
def _kv_score(state: records.ServingState, k, r, limits: records.SchedulerLimits):
    """As Dynamo's KV router: blocks of prompts that the rank then has to compute, and blocks in use (ai-dynamo/dynamo,
    lib/llm/src/kv_router/scheduler.rs: overlap_score_weight 1, router_temperature 0). Events of the cache arrive at
    once.
    """
    rank = state.ranks[k]
    tokens = state.requests[r].input - kv.tokens_of(kv.cached_pieces(state, k, r, limits)[1], limits)
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
