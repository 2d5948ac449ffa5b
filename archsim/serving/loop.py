"""The loop over arrivals, transfers and ends of iterations, in order of time; equal times in this order."""

import math

from archsim.base.compiled import inner, kernel, outer, reference, value
from archsim.serving import clock, kv, records, schedulers

ENDED, STUCK, PAUSED, FAILED = 0, 1, 2, 3


@kernel
def run(
    state: records.ServingState,
    table: clock.StepTable,
    decode_table: clock.StepTable,
    limits: records.SchedulerLimits,
    transfer: records.KvTransfer,
    schedule,
):
    """Serve all requests. Returns ENDED; STUCK if requests wait but none can be scheduled; PAUSED before an iteration
    whose experts are to be asked for (``pause_at``, ``pause_ns``), to be called again; FAILED where a scheduler did
    what cannot be. ``schedule``: compiled (``archsim.serving.schedulers``).
    """
    state, limits, transfer = reference(state), reference(limits), reference(transfer)
    table, decode_table = reference(table), reference(decode_table)
    totals = state.totals[0]
    n = state.requests.shape[0]
    if _begin_all(state, totals.now_ns, table, decode_table, limits, schedule):
        return FAILED if totals.failed else PAUSED
    while totals.finished < n:
        now, what, which = _next(state, limits)
        if what < 0:
            return STUCK
        _fill_series(state, now)
        if what == 0:
            _queue(state, limits)
        elif what == 1:
            _arrive(state, which, limits)
        elif what == 3:
            _kv_arrives(state, which)
        else:
            _end(state, which, now, limits, transfer)
        if _more_at(state, now, limits):
            continue
        if _begin_all(state, now, table, decode_table, limits, schedule):
            return FAILED if totals.failed else PAUSED
    return ENDED


@outer
def _begin_all(
    state: records.ServingState,
    now,
    table: clock.StepTable,
    decode_table: clock.StepTable,
    limits: records.SchedulerLimits,
    schedule,
):
    """Begin an iteration of every idle instance; True, not all begun, where one pauses first or a scheduler failed."""
    for i in range(state.instances.shape[0]):
        instance = state.instances[i]
        if instance.busy:
            continue
        if (instance.iterations >= instance.pause_at or now >= instance.pause_ns) and _has_requests(state, i):
            state.totals[0].paused = i
            return True
        _begin(state, i, now, decode_table if instance.does == records.DECODE else table, limits, schedule)
        if state.totals[0].failed:
            return True
    return False


@inner
def _has_requests(state: records.ServingState, i):
    for k in range(state.instances[i].first, state.instances[i].last):
        if state.ranks[k].running + state.ranks[k].waiting:
            return True
    return False


@outer
def _next(state: records.ServingState, limits: records.SchedulerLimits):
    """(time, 0 arrival | 1 transfer | 2 end of an iteration | 3 load, instance or rank) of the next event; -1: none."""
    totals = state.totals[0]
    now, what, which = math.inf, -1, 0
    if totals.queued < totals.issued:
        now, what = _through(state, limits) + limits.request_ns, 0
    for i in range(state.instances.shape[0]):
        instance = state.instances[i]
        if instance.head >= 0 and state.requests[instance.head].ready_ns < now:
            now, what, which = state.requests[instance.head].ready_ns, 1, i
    if limits.stored:
        for k in range(state.ranks.shape[0]):
            head = state.ranks[k].load_head
            if head >= 0 and state.requests[head].ready_ns < now:
                now, what, which = state.requests[head].ready_ns, 3, k
    for i in range(state.instances.shape[0]):
        instance = state.instances[i]
        if instance.busy and instance.end_ns < now:
            now, what, which = instance.end_ns, 2, i
    return now, what, which


@inner
def _more_at(state: records.ServingState, now, limits: records.SchedulerLimits):
    """Whether another event has the same time: instances begin after all of them."""
    later, what, _ = _next(state, limits)
    return what >= 0 and later <= now


@inner
def _through(state: records.ServingState, limits: records.SchedulerLimits):
    """When the next request is through the front end, which takes one after the other."""
    totals = state.totals[0]
    return max(state.requests[state.line[totals.queued]].arrival_ns, totals.through_ns) + limits.front_end_ns


@outer
def _queue(state: records.ServingState, limits: records.SchedulerLimits):
    """The next request in order of arrival waits at a rank."""
    r, does = state.line[state.totals[0].queued], state.instances[0].does
    state.totals[0].through_ns = _through(state, limits)
    state.totals[0].queued += 1
    if limits.ordered == records.DEADLINE:
        state.requests[r].order += state.requests[r].arrival_ns
    if does == records.DECODE:  # it comes with its first token
        state.requests[r].first_ns = state.requests[r].last_ns = state.totals[0].through_ns
    k = schedulers.choose(state, does, r, limits)
    if not (limits.stored and _loads(state, k, r, limits)):
        schedulers.enqueue(state, k, r)


@outer
def _loads(state: records.ServingState, k, r, limits: records.SchedulerLimits):
    """Whether a store has more of a prompt than its rank: that is loaded, a request at a time, before it waits."""
    rank, request = state.ranks[k], state.requests[r]
    if rank.store < 0:
        return False
    found, here = kv.cached_pieces(state, k, r, limits)
    pieces, units = kv.stored_pieces(state, k, r, found, here, limits)
    if units == here:
        return False
    request.loaded = pieces
    rank.load_free_ns = max(state.totals[0].through_ns + limits.request_ns, rank.load_free_ns)
    rank.load_free_ns += (units - here) * limits.unit_ns
    request.ready_ns = rank.load_free_ns + limits.load_ns
    request.next = -1
    if rank.load_tail >= 0:
        state.requests[rank.load_tail].next = r
    else:
        rank.load_head = r
    rank.load_tail = r
    return True


@outer
def _kv_arrives(state: records.ServingState, k):
    """KV from the store has reached a rank: its request waits there."""
    rank = state.ranks[k]
    r = rank.load_head
    rank.load_head = state.requests[r].next
    if rank.load_head < 0:
        rank.load_tail = -1
    schedulers.enqueue(state, k, r)


@outer
def _arrive(state: records.ServingState, i, limits: records.SchedulerLimits):
    """The KV of a request has reached its decode rank: it waits there."""
    instance = state.instances[i]
    r = instance.head
    request = state.requests[r]
    instance.head = request.next
    if instance.head < 0:
        instance.tail = -1
    schedulers.enqueue(state, schedulers.choose(state, records.DECODE, r, limits), r)


@outer
def _begin(state: records.ServingState, i, now, table: clock.StepTable, limits: records.SchedulerLimits, schedule):
    """Start an iteration if there is anything to compute."""
    instance, totals = state.instances[i], state.totals[0]
    tokens, chunks, held = 0, 0, _holds_prompts(state, i, limits)
    for k in range(instance.first, instance.last):
        state.ranks[k].held = held
        if state.ranks[k].running + state.ranks[k].waiting:
            schedule(value(state), k, now, value(limits))
            if totals.failed or not schedulers.sum_up(state, k, limits):
                return
        else:
            schedulers.empty(state, k)
        tokens += state.ranks[k].tokens
        chunks += state.ranks[k].chunks
        totals.prefill_tokens += state.ranks[k].chunk_tokens
        totals.decode_tokens += state.ranks[k].decodes
        instance.prompted += state.ranks[k].chunk_tokens
        instance.decoded += state.ranks[k].decodes
    if tokens == 0:
        return
    instance.busy = 1
    instance.iterations += 1
    before = totals.shared_ns, totals.moved_ns, totals.linked_ns
    ns = clock.iteration_ns(state, table, i) + instance.stall_ns
    instance.quiet = 0 if chunks else instance.quiet + 1
    if totals.iterations < state.log.shape[0]:
        _note(state, i, now, now + ns, before)
    instance.stall_ns = 0.0
    instance.end_ns = now + ns
    totals.busy_ns += ns
    if chunks:
        totals.prompts_ns += ns
    state.entered[0] += tokens
    totals.iterations += 1


@outer
def _holds_prompts(state: records.ServingState, i, limits: records.SchedulerLimits):
    """1 where the prompts of an engine wait: its ranks wait for each other, so one prompt holds all decodes up."""
    instance = state.instances[i]
    if limits.prefill == records.FREE or instance.quiet + 1 >= limits.prefill_every:
        return 0
    every, decodes = True, False
    for k in range(instance.first, instance.last):
        asks = state.ranks[k].waiting > 0
        for at in range(state.ranks[k].running):
            prompt = schedulers.is_prompt(state, state.slots[k, at])
            asks = asks or prompt
            decodes = decodes or not prompt
        every = every and asks
    return 1 if decodes and not (limits.prefill == records.TOGETHER and every) else 0


@outer
def _note(state: records.ServingState, i, begin, end, before):
    """A row of the log, for the timeline; ``before``: ns of experts, of dispatch and combine, of links until then."""
    instance, totals = state.instances[i], state.totals[0]
    row = state.log[totals.iterations]
    row.instance, row.begin_ns, row.end_ns = i, begin, end
    row.experts_ns, row.stall_ns = totals.shared_ns - before[0], instance.stall_ns
    row.moved_ns, row.linked_ns = totals.moved_ns - before[1], totals.linked_ns - before[2]
    row.decodes, row.chunks, row.chunk_tokens, row.waiting = 0, 0, 0, 0
    capacity, used = 0, 0
    for k in range(instance.first, instance.last):
        rank = state.ranks[k]
        row.decodes += rank.decodes
        row.chunks += rank.chunks
        row.chunk_tokens += rank.chunk_tokens
        row.waiting += rank.waiting
        capacity += rank.capacity
        used += rank.capacity - rank.free
    row.kv = used / capacity


@outer
def _end(state: records.ServingState, i, now, limits: records.SchedulerLimits, transfer: records.KvTransfer):
    """Tokens of an iteration are out; requests that have their last one leave."""
    instance = state.instances[i]
    instance.busy = 0
    for k in range(instance.first, instance.last):
        rank = state.ranks[k]
        kept = 0
        for at in range(rank.running):
            r = state.slots[k, at]
            made = _made(state, r, state.new[k, at], limits)
            if limits.cached and state.new[k, at]:
                kv.insert(state, k, r, limits)
            if _count_tokens(state, r, made, now, limits) and _leaves(state, i, k, r, now, limits, transfer):
                continue
            state.slots[k, kept] = r
            kept += 1
        rank.running = kept


@inner
def _made(state: records.ServingState, r, new, limits: records.SchedulerLimits):
    """Count the tokens with KV. Returns those that are out: the next one, and drafts before the first refusal."""
    request, totals = state.requests[r], state.totals[0]
    if schedulers.is_prompt(state, r):
        request.computed += new
        return 1 if new > 0 and request.computed == request.input + request.made else 0
    made, most = min(new, 1), min(new, 1 + totals.depth)
    while made < most:
        draft = made - 1
        at = (r * 7919 + request.made * 31 + draft * 12553) % limits.draws.shape[0]
        if limits.draws[at] >= limits.acceptance[draft]:
            break
        made += 1
    totals.drafted += max(new - 1, 0)
    totals.accepted += max(made - 1, 0)
    request.computed += made
    return made


@inner
def _count_tokens(state: records.ServingState, r, made, now, limits: records.SchedulerLimits):
    """Count the tokens that a request got, all at once."""
    request = state.requests[r]
    if request.behind and request.made:
        request.behind -= 1
        request.lag_ns = now - request.first_ns
    if made == 0:
        return False
    if request.made == 0:
        request.first_ns = now
    if request.made:
        gap = math.log(max((now - request.last_ns) / records.GAP_FIRST_NS, 1.0)) / records.GAP_STEP
        state.gaps[min(int(gap), records.GAPS - 1)] += 1
    request.last_ns = now
    request.made += made
    return True


@outer
def _leaves(state: records.ServingState, i, k, r, now, limits: records.SchedulerLimits, transfer: records.KvTransfer):
    """Whether the request leaves the instance after its token: it ends, or goes on to decode elsewhere."""
    request, totals = state.requests[r], state.totals[0]
    if request.made == request.output:
        kv.release(state, k, r)
        totals.finished += 1
        if request.follower >= 0:
            _issue(state, request.follower, now + request.lag_ns + request.think_ns, limits)
        elif limits.concurrency and totals.begun < state.heads.shape[0]:
            totals.begun += 1
            _issue(state, state.heads[totals.begun - 1], now + request.lag_ns, limits)
        return True
    if state.instances[i].does == records.PREFILL:
        kv.release(state, k, r)
        _send(state, i, r, now, limits, transfer)
        return True
    return False


@inner
def _issue(state: records.ServingState, r, at_ns, limits: records.SchedulerLimits):
    """A client that has seen its last token sends the next request. Some clients see their tokens later than others, so
    arrivals are sorted: a turn of a session has its own place, and requests that are equal keep their order.
    """
    totals, at = state.totals[0], state.totals[0].issued
    state.line[at] = r
    while at > totals.queued and state.requests[state.line[at - 1]].arrival_ns > at_ns:
        if limits.sessions:
            state.line[at] = state.line[at - 1]
        else:
            state.requests[state.line[at]].arrival_ns = state.requests[state.line[at - 1]].arrival_ns
        at -= 1
    if limits.sessions:
        state.line[at] = r
    state.requests[state.line[at]].arrival_ns = at_ns
    totals.issued += 1


@outer
def _send(state: records.ServingState, i, r, now, limits: records.SchedulerLimits, transfer: records.KvTransfer):
    """KV leaves an instance one request after the other."""
    instance, request = state.instances[i], state.requests[r]
    begin = max(now, instance.link_free_ns)
    instance.link_free_ns = begin + request.input * transfer.ns_per_token + transfer.ns_per_request
    for at in range(transfer.windows.shape[0]):
        instance.link_free_ns += min(float(request.input), transfer.windows[at, 0]) * transfer.windows[at, 1]
    request.ready_ns = instance.link_free_ns + transfer.latency_ns
    request.next = -1
    if instance.tail >= 0:
        state.requests[instance.tail].next = r
    else:
        instance.head = r
    instance.tail = r


@outer
def _fill_series(state: records.ServingState, now):
    """Integrate KV use and numbers of requests up to now; bins double when time runs beyond the last."""
    totals = state.totals[0]
    capacity, used, running, waiting = 0, 0, 0, 0
    for k in range(state.ranks.shape[0]):
        rank = state.ranks[k]
        if state.instances[rank.instance].does == records.STORE:
            continue
        capacity += rank.capacity
        used += rank.capacity - rank.free
        running += rank.running
        waiting += rank.waiting
    while now >= totals.bin_ns * records.BINS:
        for at in range(records.BINS // 2):
            for column in range(state.series.shape[1]):
                state.series[at, column] = state.series[2 * at, column] + state.series[2 * at + 1, column]
        for at in range(records.BINS // 2, records.BINS):
            for column in range(state.series.shape[1]):
                state.series[at, column] = 0.0
        totals.bin_ns *= 2
    state.series[int(now / totals.bin_ns), 3] += state.entered[0]
    state.entered[0] = 0.0
    while totals.seen_ns < now:
        at = int(totals.seen_ns / totals.bin_ns)
        until = min((at + 1) * totals.bin_ns, now)
        if until <= totals.seen_ns:
            at, until = at + 1, now
        span = until - totals.seen_ns
        state.series[at, 0] += span * used / capacity
        state.series[at, 1] += span * running
        state.series[at, 2] += span * waiting
        totals.seen_ns = until
    totals.now_ns = now


@kernel
def lose(state: records.ServingState, k, leave, limits: records.SchedulerLimits):
    """A rank has lost its KV: its requests compute everything anew, and so do those that wait for KV of its prefixes.
    ``leave``: whether they wait for another rank, of those that do what ``leave`` says; -1: they stay. Returns how many
    requests had KV there.
    """
    state, limits = reference(state), reference(limits)
    rank, lost = state.ranks[k], 0
    while rank.running:
        schedulers.preempt_last(state, k)
        lost += 1
    while rank.oldest >= 0:
        piece = rank.oldest
        kv.unlink(state, k, piece)
        state.references[k, piece] = -1
        rank.free += state.sizes[piece]
    if leave < 0:
        return lost
    while rank.head >= 0 or rank.load_head >= 0:
        if rank.head >= 0:
            r = rank.head
            rank.head = state.requests[r].next
        else:
            r = rank.load_head
            rank.load_head = state.requests[r].next
            state.requests[r].loaded = 0
        schedulers.enqueue(state, schedulers.choose(state, leave, r, limits), r)
    rank.tail, rank.load_tail, rank.waiting, rank.received = -1, -1, 0, 0
    return lost
