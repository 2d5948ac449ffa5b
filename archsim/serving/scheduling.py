"""Parts of a scheduler (``archsim.serving.schedulers``): queues, admission, preemption, and what the clock sums up."""

from archsim.base.kernels import inner, outer
from archsim.serving.kv import available, cached_pieces, grow, held_of, hold, most_of, release, tokens_of, unheld_of
from archsim.serving.records import NO_BLOCKS, NOT_LACKING, TOO_MANY, Limits, State


@inner
def uncomputed(state: State, r):
    """Known tokens without KV: 1 of a request that decodes."""
    request = state.requests[r]
    return request.input + request.made - request.computed


@inner
def is_prompt(state: State, r):
    """Whether a request has yet to compute what it had when it was admitted: its prompt, or all anew."""
    return state.requests[r].computed < state.requests[r].known


@inner
def lacking(state: State, r):
    """Tokens to compute before the next one is sampled, drafts included; 0 of a prompt where its rank holds prompts."""
    request = state.requests[r]
    if not is_prompt(state, r):
        return min(1 + state.totals[0].drafts, request.output - request.made)
    return 0 if state.ranks[request.rank].held else uncomputed(state, r)


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
def serve_running(state: State, k, budget, limits: Limits):
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
def admit(state: State, k, now_ns, new_most, promised, whole, limits: Limits):
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
        found, shared = cached_pieces(state, k, r, limits)
        unheld = unheld_of(state, k, r, found)
        start = tokens_of(shared, limits)
    new = request.input + request.made - start
    if new > new_most:
        if limits.chunked == 0:
            return 0
        new = new_most
    left = min(request.input + request.made - start, limits.budget)
    own = max(held_of(start, start + new, limits), most_of(whole, left, limits) if whole else 0) - shared
    if own + promised > available(state, k) - unheld:
        return 0
    _pop(state, k)
    request.known = request.input + request.made if anew else 0
    if found:
        hold(state, k, r, found, shared, limits)
    grow(state, k, r, start + new, limits)
    if request.scheduled_ns < 0:
        request.scheduled_ns = now_ns
        request.hit = start if request.made == 0 else 0
    elif start == request.input and request.made == 1:  # computed elsewhere: its first token is out when it decodes
        request.first_ns = request.last_ns = now_ns
    state.slots[k, rank.running] = r
    state.new[k, rank.running] = new
    rank.running += 1
    return new


@outer
def sum_up(state: State, k, limits: Limits):
    """The batch of a rank, as ``archsim.iteration.times.batches_of`` counts it. False, and a fault noted, where its
    scheduler gave what cannot be.
    """
    rank = state.ranks[k]
    empty(state, k)
    if rank.running > limits.max_seqs:
        return _fault(state, TOO_MANY, state.slots[k, 0])
    for i in range(rank.running):
        r, new = state.slots[k, i], state.new[k, i]
        if new == 0:
            continue
        request = state.requests[r]
        before = request.computed
        if new < 0 or new > lacking(state, r):
            return _fault(state, NOT_LACKING, r)
        if held_of(before, before + new, limits) > request.shared + request.blocks:
            return _fault(state, NO_BLOCKS, r)
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
def _fault(state: State, fault, r):
    state.totals[0].failed, state.totals[0].failed_at = fault, r
    return False


@inner
def empty(state: State, k):
    """No batch."""
    rank = state.ranks[k]
    rank.tokens, rank.decodes, rank.rows, rank.decode_context = 0, 0, 0, 0
    rank.chunks, rank.chunk_tokens, rank.pairs, rank.sampled = 0, 0, 0.0, 0
