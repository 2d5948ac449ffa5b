"""What a rank computes in its next iteration, as vLLM V1, SGLang and TensorRT-LLM choose it.

``vllm_v1``: running requests first, each with all tokens that it lacks, then waiting ones in order of arrival, within
one budget of tokens; a request that finds no block preempts the last one, which computes everything anew
(vllm/v1/core/sched/scheduler.py). ``sglang``: prompts go before decodes and are not mixed with them; an admission keeps
room for a share of the output still to come (managers/schedule_policy.py, PrefillAdder), and it looks for new requests
after ``poll_every`` iterations of decodes, after prompts and when idle (managers/scheduler_recv_skipper.py).
``trtllm``: decodes and
prompts together, and an admission reserves the blocks of the whole output, so that nothing is preempted
(GUARANTEED_NO_EVICT).
"""

from __future__ import annotations

from archsim.base.kernels import inner, outer
from archsim.serving.kv import available, blocks_of, cached_blocks, grow, hold, release, unheld_of
from archsim.serving.records import SGLANG, TRTLLM, Limits, State


@outer
def schedule(state: State, k, now_ns, limits: Limits):
    """Fill ``new`` of the running requests of a rank, and what the clock needs to know of them."""
    if limits.strategy == SGLANG:
        _schedule_sglang(state, k, now_ns, limits)
    elif limits.strategy == TRTLLM:
        _schedule_trtllm(state, k, now_ns, limits)
    else:
        _schedule_vllm(state, k, now_ns, limits)
    _sum_up(state, k)


@inner
def lacking(state: State, r):
    """Tokens to compute before the next one is sampled."""
    request = state.requests[r]
    return request.input + request.made - request.computed


@inner
def enqueue(state: State, k, r):
    """At the end of a rank's waiting queue."""
    rank = state.ranks[k]
    state.requests[r].rank = k
    state.requests[r].next = -1
    if rank.tail >= 0:
        state.requests[rank.tail].next = r
    else:
        rank.head = r
    rank.tail = r
    rank.waiting += 1


@inner
def _push_front(state: State, k, r):
    rank = state.ranks[k]
    state.requests[r].next = rank.head
    rank.head = r
    if rank.tail < 0:
        rank.tail = r
    rank.waiting += 1


@inner
def _pop(state: State, k):
    rank = state.ranks[k]
    r = rank.head
    rank.head = state.requests[r].next
    if rank.head < 0:
        rank.tail = -1
    rank.waiting -= 1
    return r


@inner
def _preempt_last(state: State, k):
    """The last running request returns to the front of the queue and loses its KV."""
    rank = state.ranks[k]
    rank.running -= 1
    r = state.slots[k, rank.running]
    release(state, k, r)
    state.requests[r].computed = 0
    state.requests[r].preempted += 1
    state.totals[0].preemptions += 1
    rank.received += 1
    _push_front(state, k, r)


@outer
def _serve_running(state: State, k, budget, limits: Limits):
    """Tokens of running requests in order. Returns the budget left; -1 where one was preempted."""
    rank = state.ranks[k]
    i, preempted = 0, False
    while i < rank.running:
        r = state.slots[k, i]
        new = min(lacking(state, r), budget)
        fits = new == 0
        while not fits and i < rank.running:
            fits = grow(state, k, r, state.requests[r].computed + new, limits)
            if not fits:
                _preempt_last(state, k)
                preempted = True
        if i < rank.running:
            state.new[k, i] = new
            budget -= new
            i += 1
    return -1 if preempted else budget


@outer
def _admit(state: State, k, now_ns, new_most, promised, whole, limits: Limits):
    """Admit the first waiting request with up to ``new_most`` tokens, if the blocks of its first ``whole`` tokens and
    ``promised`` others are available.

    Returns its tokens of this iteration; 0: it has to wait.
    """
    rank = state.ranks[k]
    r = rank.head
    request = state.requests[r]
    found, unheld, start = 0, 0, request.computed
    if start == 0:
        found = cached_blocks(state, k, r, limits)
        unheld = unheld_of(state, k, r, found)
        start = found * limits.hash_tokens
    new = request.input + request.made - start
    if new > new_most:
        if limits.chunked == 0:
            return 0
        new = new_most
    own = blocks_of(max(start + new, whole), limits) - found * limits.hash_blocks
    if own + promised > available(state, k, limits) - unheld * limits.hash_blocks:
        return 0
    _pop(state, k)
    if found:
        hold(state, k, r, found, limits)
    grow(state, k, r, start + new, limits)
    if request.scheduled_ns < 0:
        request.scheduled_ns = now_ns
        request.hit = start if request.made == 0 else 0
    state.slots[k, rank.running] = r
    state.new[k, rank.running] = new
    rank.running += 1
    return new


@outer
def _schedule_vllm(state: State, k, now_ns, limits: Limits):
    rank = state.ranks[k]
    budget = _serve_running(state, k, limits.budget, limits)
    while budget > 0 and rank.head >= 0 and rank.running < limits.max_seqs:
        new = _admit(state, k, now_ns, budget, 0, 0, limits)
        if new == 0:
            break
        budget -= new


@outer
def _schedule_sglang(state: State, k, now_ns, limits: Limits):
    """A batch of prompts if there is one, else the decodes."""
    rank = state.ranks[k]
    budget, prompts, outstanding = limits.budget, 0, 0
    if rank.unpolled >= limits.poll_every or rank.running == 0:
        rank.received, rank.unpolled = rank.waiting, 0
    for i in range(rank.running):
        r = state.slots[k, i]
        request = state.requests[r]
        outstanding += request.output - request.made
        new = 0
        if lacking(state, r) > 1 and budget > 0:  # a prompt whose first chunk is computed
            new = min(lacking(state, r), budget)
            if not grow(state, k, r, request.computed + new, limits):
                new = 0
        state.new[k, i] = new
        budget -= new
        prompts += new
    while budget > 0 and rank.received > 0 and rank.head >= 0 and rank.running < limits.max_seqs:
        request = state.requests[rank.head]
        later = outstanding + request.output - request.made
        kept = blocks_of(int(limits.kept_share * later), limits) if rank.running else 0
        new = _admit(state, k, now_ns, budget, kept, 0, limits)
        if new == 0:
            break
        budget -= new
        prompts += new
        outstanding = later
        rank.received -= 1
    rank.unpolled = rank.unpolled + 1 if prompts == 0 else limits.poll_every
    if prompts == 0:
        _serve_running(state, k, limits.budget + limits.max_seqs, limits)


@outer
def _schedule_trtllm(state: State, k, now_ns, limits: Limits):
    rank = state.ranks[k]
    budget, promised = limits.budget, 0
    for i in range(rank.running):
        r = state.slots[k, i]
        request = state.requests[r]
        promised += _outstanding_blocks(state, r, limits)
        new = min(lacking(state, r), budget)
        if new and grow(state, k, r, request.computed + new, limits):
            state.new[k, i] = new
            budget -= new
        else:
            state.new[k, i] = 0
    while budget > 0 and rank.head >= 0 and rank.running < limits.max_seqs:
        r = rank.head
        whole = state.requests[r].input + state.requests[r].output
        new = _admit(state, k, now_ns, budget, promised, whole, limits)
        if new == 0:
            break
        budget -= new
        promised += _outstanding_blocks(state, r, limits)


@inner
def _outstanding_blocks(state: State, r, limits: Limits):
    """Blocks that a request has yet to take until its last token."""
    request = state.requests[r]
    own = request.shared * limits.hash_blocks + request.blocks
    return max(blocks_of(request.input + request.output, limits) - own, 0)


@outer
def _sum_up(state: State, k):
    """The batch of a rank, as ``archsim.iteration.times.batches_of`` counts it."""
    rank = state.ranks[k]
    rank.tokens, rank.decodes, rank.decode_context = 0, 0, 0
    rank.chunks, rank.chunk_tokens, rank.pairs, rank.sampled = 0, 0, 0.0, 0
    for i in range(rank.running):
        new = state.new[k, i]
        if new == 0:
            continue
        request = state.requests[state.slots[k, i]]
        before = request.computed
        rank.tokens += new
        if new == 1 and before > 0:
            rank.decodes += 1
            rank.decode_context += before + 1
        else:
            rank.chunks += 1
            rank.chunk_tokens += new
            rank.pairs += float(new) * before + new * (new + 1) / 2.0
        if before + new == request.input + request.made:
            rank.sampled += 1
