"""State of a step under ``contention: reserved``: its stages, and the claims and queues of the resources."""

import numpy as np

from archsim.base.compiled import inner, outer, unsigned
from archsim.engine.event import heaps
from archsim.engine.state import UNITS, link_at
from microarch.blocks import hbm, request

NOBODY = np.int64(-1)
# stages created, stages in the calendar, bits of the claimed links (see ReservedState.link_bits)
STAGES, BOOKED, CLAIMED = 0, 1, 2
MOST_BITS = 63  # of links that a route's bits can tell


@inner
def row_of(s, stage):
    return s.pool.stages[unsigned(stage)]


@inner
def claim_of(s, r):
    return s.pool.claims[unsigned(r)]


@inner
def entry_of(s, chain):
    return s.work.entries[unsigned(chain) // unsigned(hbm.SLICES)]


@inner
def _book(s, stage, start):
    booking = heaps.time_bits(start), stage
    s.pool.count[BOOKED] = heaps.bookings_push(s.pool.calendar, s.pool.count[BOOKED], booking, s.tie_bits)


@inner
def is_unit(s, group):
    """Whether the group is a unit of a die: the one resource of its number, which no other group contains."""
    return group < UNITS * s.machine.dies


@inner
def links_of(s, group):
    """(begin, end) of the links of a group that is a route, for `link_at`."""
    pair = group - UNITS * s.machine.dies
    return s.machine.route_ptr[pair], s.machine.route_ptr[pair + 1]


@inner
def admit_at(s, stage, r):
    """Claim a unit; the stage starts when it falls free."""
    row, claim = row_of(s, stage), claim_of(s, r)
    claim.claimed = 1
    if claim.free_at > row.time:
        s.tally.resources[unsigned(r)].wait_ns += claim.free_at - row.time
        row.time, row.cause = claim.free_at, claim.last_user
    else:
        row.cause = row.parent
    s.pool.waits_for[unsigned(stage)] = NOBODY
    s.pool.keys[unsigned(stage)] = heaps.queue_key(row.time, row.priority)
    _book(s, stage, row.time)


@inner
def _admit(s, stage):
    """Claim the links of a route; the stage starts when the last of them falls free."""
    row = row_of(s, stage)
    if len(s.link_bits):
        s.pool.count[CLAIMED] |= s.link_bits[unsigned(row.group)]
    start, cause, binding = row.time, row.parent, NOBODY
    first, last = links_of(s, row.group)
    for at in range(first, last):
        r = link_at(s.machine, at)
        claim = claim_of(s, r)
        claim.claimed = 1
        if claim.free_at > start:
            start, cause, binding = claim.free_at, claim.last_user, r
    if binding >= 0:
        s.tally.resources[unsigned(binding)].wait_ns += start - row.time
    row.time, row.cause = start, cause
    s.pool.waits_for[unsigned(stage)] = NOBODY
    s.pool.keys[unsigned(stage)] = heaps.queue_key(start, row.priority)
    _book(s, stage, start)


@inner
def _any_claimed(s, group):
    if len(s.link_bits):
        return s.pool.count[CLAIMED] & s.link_bits[unsigned(group)] != 0
    first, last = links_of(s, group)
    for at in range(first, last):
        if claim_of(s, link_at(s.machine, at)).claimed:
            return True
    return False


@inner
def _wait(s, stage, r):
    """Queue a stage at a resource."""
    waiting, claim = (s.pool.keys[unsigned(stage)], stage), claim_of(s, r)
    claim.queued = heaps.queue_push(s.pool.queue[unsigned(r)], claim.queued, waiting, s.pool.keys)


@inner
def create(s, kind, item, group, earliest, floor, parent, priority):
    """Create a stage: admitted if none of its resources is claimed, else queued at each."""
    stage = s.pool.count[STAGES]
    s.pool.count[STAGES] += 1
    row = row_of(s, stage)
    row.kind, row.item, row.group, row.parent = kind, item, group, parent
    row.time, row.floor, row.priority = earliest, floor, priority
    if kind == request.DONE:
        row.cause, s.pool.waits_for[unsigned(stage)] = parent, NOBODY
        _book(s, stage, earliest)
    elif is_unit(s, group):
        if claim_of(s, group).claimed:
            s.pool.keys[unsigned(stage)], s.pool.waits_for[unsigned(stage)] = heaps.queue_key(earliest, priority), group
            _wait(s, stage, group)
        else:
            admit_at(s, stage, group)
    elif _any_claimed(s, group):
        s.pool.keys[unsigned(stage)], s.pool.waits_for[unsigned(stage)] = heaps.queue_key(earliest, priority), group
        first, last = links_of(s, group)
        for at in range(first, last):
            _wait(s, stage, link_at(s.machine, at))
    else:
        _admit(s, stage)


@inner
def first_waiting(s, r):
    """Who is next in a queue, or NOBODY; those who were admitted leave when they are found at its head."""
    queue, claim = s.pool.queue[unsigned(r)], claim_of(s, r)
    while claim.queued > 0 and s.pool.waits_for[unsigned(queue[0])] < 0:
        _, claim.queued = heaps.queue_pop(queue, claim.queued, s.pool.keys)
    return queue[0] if claim.queued > 0 else NOBODY


@inner
def _may_begin(s, stage):
    group = s.pool.waits_for[unsigned(stage)]
    return group >= 0 and not _any_claimed(s, group)


@inner
def offer_links(s, group):
    """Offer the links of a route to those who wait.

    Offering claims and never frees: who cannot begin now cannot either when its turn comes. So only if several could
    begin does their order matter, and then it is that of a heap of all to whom something is offered.
    """
    offers, offered, only, several = s.pool.offers, np.int64(0), NOBODY, False
    first, last = links_of(s, group)
    for at in range(first, last):
        stage = first_waiting(s, link_at(s.machine, at))
        if stage >= 0:
            offers[unsigned(offered)] = stage
            offered += 1
            if stage != only and _may_begin(s, stage):
                several |= only >= 0
                only = stage
    if several:
        _offer_in_order(s, offered)
    elif only >= 0:
        _admit(s, only)


@outer
def _offer_in_order(s, offered):
    """Those of the pool's first ``offered`` offers who can begin do, as they come from a heap of all."""
    offers, order = s.pool.offers, (s.pool.keys, s.tie_bits)
    for size in range(offered):
        stage = offers[unsigned(size)]
        heaps.offers_push(offers, size, (s.pool.keys[unsigned(stage)] & heaps.TIME_BITS, stage), order)
    while offered > 0:
        (_, stage), offered = heaps.offers_pop(offers, offered, order)
        if _may_begin(s, stage):
            _admit(s, stage)


@inner
def give_up(s, stage, r, duration, n_bytes):
    """A processed stage leaves a resource, which falls free at its end."""
    claim, resource = claim_of(s, r), s.tally.resources[unsigned(r)]
    claim.free_at, claim.claimed, claim.last_user = row_of(s, stage).end, 0, stage
    resource.busy_ns += duration
    resource.bytes += n_bytes
