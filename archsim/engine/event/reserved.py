"""``contention: reserved``: every stage claims all of its resources exclusively, booked ahead by one.

The rules are those of the published simulator (design notes, machine section 4). A stage of a request (see
``microarch.blocks.request``) has an earliest time and a group of resources. When it is created and none of them is
claimed, it claims them and will start when the last of them becomes free; otherwise it waits in the queue of each.
Stages are processed in order of start; processing creates the successors, releases the resources at once (they become
free at the stage's end) and offers each to the first stage that waits for it. A look-up chooses the whole path of its
slice: if the home is queried, its LLC is looked up at that moment, not when the request arrives.

Rows of the pool stay until the step ends; they are also the log from which timelines are drawn.
"""

from typing import NamedTuple

import numpy as np

from archsim.base.compiled import inner, kernel, outer, reference, unsigned
from archsim.base.host import sparse_zeros
from archsim.engine.event.explained import explain_product, step_log
from archsim.engine.event.heaps import (
    BOOKING,
    TIME_BITS,
    bookings_pop,
    bookings_push,
    offers_pop,
    offers_push,
    queue_key,
    queue_pop,
    queue_push,
    time_bits,
)
from archsim.engine.state import (
    CAUSE_OF,
    COMBINE,
    DATA_MESSAGES,
    DISPATCH,
    HIDDEN,
    REQUESTS,
    SLICES,
    UNITS,
    Machine,
    Memory,
    StepWork,
    Tally,
    awaits_tokens,
    begun_ns,
    count_arrived,
    count_computed,
    hold,
    launched_ns,
    launching_ns,
    link_at,
    move_of,
    phase_of,
)
from microarch.blocks import atu, hbm, llc, pdu
from microarch.blocks.catalogue import NEXT, SPAWN, UNIT
from microarch.blocks.request import (
    ACT_MOVE,
    ACT_READ,
    COMPUTE,
    COPY,
    DATA,
    DONE,
    HERE,
    HIT,
    LLC_FILL,
    LOCAL_HBM,
    LOOKUP,
    MISS,
    REMOTE_HBM,
    REMOTE_LLC,
    REQUEST,
    SERVED,
    Unit,
)
from microarch.fabric.fabric import Fabric

# ---- claims
# State of a step under ``contention: reserved``: its stages, and the claims and queues of the resources.

NOBODY = np.int64(-1)
# stages created, stages in the calendar, bits of the claimed links (see StepState.link_bits)
STAGES, BOOKED, CLAIMED = 0, 1, 2
MOST_BITS = 63  # of links that a route's bits can tell
STAGES_PER_CHAIN = 11  # the longest walk through the request table, spawned stages included
STAGES_PER_MOVE = 4
WAITS_PER_CHAIN = 3  # stages of a chain that may be in one resource's queue, stale entries included

STAGE = np.dtype(
    [
        ("time", "f8"),  # earliest time; from admission on the start
        ("end", "f8"),  # start + duration, set when processed
        ("floor", "f8"),  # earliest end of a compute stage: its last segment has arrived and been processed
        ("item", "i8"),  # chain, or move for the ACT_ states
        ("group", "i8"),  # its resources: a unit (unit · D + die), or the links of a route (3 · D + pair)
        ("parent", "i8"),  # stage that created it, -1 at the start of a step
        ("cause", "i8"),  # stage that it had to wait for: its parent, or the last user of a resource
        ("kind", "i8"),  # microarch.blocks.request.State
        ("event", "i8"),  # microarch.blocks.request.Event that ended it, set when processed
        ("priority", "i8"),  # 1 where the expert's home is another die (published simulator)
        ("home_hit", "i8"),  # of a look-up: 1 if the home's LLC has the slice; the request goes there, else to the HBM
    ],
    align=True,
)
CLAIM = np.dtype([("free_at", "f8"), ("queued", "i8"), ("last_user", "i8"), ("claimed", "i8")], align=True)


class QueuePool(NamedTuple):
    """Stages of the step and the queues they wait in."""

    stages: np.ndarray  # STAGE[stage]
    keys: np.ndarray  # int64[stage]: archsim.engine.event.heaps.queue_key
    waits_for: np.ndarray  # int64[stage]: its group while it waits in queues, NOBODY once it is admitted
    claims: np.ndarray  # CLAIM[resource]
    queue: np.ndarray  # int64[resource, waiting]: heaps of the stages that wait
    calendar: np.ndarray  # BOOKING[stage]: heap of admitted stages
    offers: np.ndarray  # int64[resource]: heap of the stages that are offered something
    count: np.ndarray  # int64[3]


class ReservedState(NamedTuple):
    """State of a step, as its kernels use it."""

    machine: Machine
    work: StepWork
    memory: Memory
    tally: Tally
    pool: QueuePool
    # int64[group]: the links of a route, one bit each; empty where there are more than MOST_BITS links
    link_bits: np.ndarray
    tie_bits: int  # of stages that are compared where times are equal: 0 (ties: heapq) or -1 (ties: sequence)


@inner
def row_of(s, stage):
    """STAGE: the row of a stage."""
    return s.pool.stages[unsigned(stage)]


@inner
def claim_of(s, r):
    """CLAIM: of a resource."""
    return s.pool.claims[unsigned(r)]


@inner
def entry_of(s, chain):
    """ENTRY: of which the chain is a slice."""
    return s.work.entries[unsigned(chain) // unsigned(SLICES)]


def new_pool(resources: int, stages: int, waiting: int) -> QueuePool:
    """An empty pool for ``stages`` stages of which at most ``waiting`` wait for one resource."""
    return QueuePool(
        stages=np.zeros(stages, STAGE),
        keys=np.zeros(stages, np.int64),
        waits_for=np.zeros(stages, np.int64),
        claims=np.zeros(resources, CLAIM),
        queue=sparse_zeros((resources, waiting)),  # few wait for most links
        calendar=np.zeros(stages, BOOKING),
        offers=np.zeros(resources + 1, np.int64),
        count=np.zeros(3, np.int64),
    )


# ---- admission
# Who holds which resource under ``contention: reserved``: stages are admitted, wait in queues, and are offered what
# falls free. The rules are at the top of this module.


@inner
def _book(s, stage, start):
    booking = time_bits(start), stage
    s.pool.count[BOOKED] = bookings_push(s.pool.calendar, s.pool.count[BOOKED], booking, s.tie_bits)


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
    s.pool.keys[unsigned(stage)] = queue_key(row.time, row.priority)
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
    s.pool.keys[unsigned(stage)] = queue_key(start, row.priority)
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
    claim.queued = queue_push(s.pool.queue[unsigned(r)], claim.queued, waiting, s.pool.keys)


@inner
def create(s, kind, item, group, earliest, floor, parent, priority):
    """Create a stage: admitted if none of its resources is claimed, else queued at each."""
    stage = s.pool.count[STAGES]
    s.pool.count[STAGES] += 1
    row = row_of(s, stage)
    row.kind, row.item, row.group, row.parent = kind, item, group, parent
    row.time, row.floor, row.priority = earliest, floor, priority
    if kind == DONE:
        row.cause, s.pool.waits_for[unsigned(stage)] = parent, NOBODY
        _book(s, stage, earliest)
    elif is_unit(s, group):
        if claim_of(s, group).claimed:
            s.pool.keys[unsigned(stage)], s.pool.waits_for[unsigned(stage)] = queue_key(earliest, priority), group
            _wait(s, stage, group)
        else:
            admit_at(s, stage, group)
    elif _any_claimed(s, group):
        s.pool.keys[unsigned(stage)], s.pool.waits_for[unsigned(stage)] = queue_key(earliest, priority), group
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
        _, claim.queued = queue_pop(queue, claim.queued, s.pool.keys)
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
        offers_push(offers, size, (s.pool.keys[unsigned(stage)] & TIME_BITS, stage), order)
    while offered > 0:
        (_, stage), offered = offers_pop(offers, offered, order)
        if _may_begin(s, stage):
            _admit(s, stage)


@inner
def give_up(s, stage, r, duration, n_bytes):
    """A processed stage leaves a resource, which falls free at its end."""
    claim, resource = claim_of(s, r), s.tally.resources[unsigned(r)]
    claim.free_at, claim.claimed, claim.last_user = row_of(s, stage).end, 0, stage
    resource.busy_ns += duration
    resource.bytes += n_bytes


# ---- service
# What a stage takes under ``contention: reserved``, what it counts and changes, and which resources it needs.

HBM_CLASS = np.int64(Unit.HBM)


@inner
def _duration(s, fixed_ns, n_bytes, bytes_per_ns):
    transfer_ns = n_bytes / bytes_per_ns
    return fixed_ns + (np.ceil(transfer_ns) if s.machine.whole_ns else transfer_ns)


@inner
def _cross(s, what, src, dst, n_bytes, most_bytes_per_ns):
    """Count a message over the fabric; returns its duration, at no more than ``most_bytes_per_ns``."""
    hops = s.machine.hops[src, dst]
    s.tally.hops[what, 0] += hops
    s.tally.hops[what, 1] += hops * n_bytes
    rate = min(s.machine.route_bytes_per_ns[src, dst], most_bytes_per_ns)
    return _duration(s, s.machine.route_ns[src, dst], n_bytes, rate)


@inner
def asked_at(s, stage):
    """When the slice was looked up whose arrival the stage is."""
    while row_of(s, stage).kind != LOOKUP:
        stage = row_of(s, stage).parent
    return row_of(s, stage).time


@inner
def _product_ns(s, row, entry):
    """How long a stage holds the array: less than its product takes by what it counts as begun before."""
    launching, ahead = launching_ns(s.work, entry, row.time), 0.0
    if row_of(s, row.parent).kind < ACT_READ:  # not held for tokens
        free, asked = claim_of(s, row.group).free_at, asked_at(s, row.parent)
        ahead = max(0.0, row.time - begun_ns(free, asked, launched_ns(s.work, entry)))
    multiplied = max(entry.compute_ns - ahead, entry.least_ns)
    return max(launching + multiplied, row.floor - row.time)


@inner
def serve_slice(s, row):
    """(event, duration, bytes) of a weight slice's stage; updates caches, copies and counters."""
    kind, machine, memory = row.kind, s.machine, s.memory
    entry = entry_of(s, row.item)
    key = entry.key + np.int64(unsigned(row.item) % unsigned(SLICES))
    n_bytes = machine.slice_bytes
    if kind == LOOKUP:
        event = atu.look_up(memory.llc_tags, memory.copies, entry, key)
        s.tally.llc_hits[0] += event == HIT
        row.home_hit = llc.holds(memory.llc_tags, entry.home, entry.expert, key)
        latency = machine.llc_hit_ns if event == HIT else machine.llc_miss_ns
        if event != HIT and not atu.knows(memory.atu, entry, key // SLICES):
            latency += machine.hbm_latency_ns
        return event, latency, np.int64(0)
    if kind == LOCAL_HBM:
        s.tally.dies[unsigned(entry.die)].local_read_bytes += entry.read_bytes
        duration = _duration(s, machine.hbm_latency_ns, entry.read_bytes, machine.hbm_rates[entry.die])
        return SERVED, duration, entry.read_bytes
    if kind == REQUEST:
        s.tally.pair_bytes[REQUESTS, entry.die, entry.home] += machine.request_bytes
        duration = _cross(s, REQUESTS, entry.die, entry.home, machine.request_bytes, np.inf)
        return (HIT if row_of(s, row.parent).home_hit else MISS), duration, machine.request_bytes
    if kind == REMOTE_LLC:
        s.tally.llc_hits[1] += 1
        return SERVED, machine.llc_hit_ns, n_bytes
    if kind == COMPUTE:
        # An array that holds a slice whose last bytes have not arrived waits: it is not busy.
        duration, array = _product_ns(s, row, entry), s.tally.resources[unsigned(row.group)]
        array.busy_ns -= duration - entry.compute_ns
        array.wait_ns += max(0.0, duration - entry.compute_ns)
        return SERVED, duration, np.int64(0)
    if kind == LLC_FILL:
        llc.store(memory.llc_tags, row.group % machine.dies, entry.expert, key)
        return SERVED, machine.llc_write_ns, n_bytes
    if kind == DATA:
        s.tally.pair_bytes[DATA_MESSAGES, entry.home, entry.die] += n_bytes
        duration = _cross(s, DATA_MESSAGES, entry.home, entry.die, n_bytes, np.inf)
        event = pdu.decide(s.work.cp_en, s.work.cp_ready_ns, memory.copies, entry, key, row.time + duration)
        return event, duration, n_bytes
    if kind == REMOTE_HBM:
        s.tally.dies[unsigned(entry.home)].remote_read_bytes += n_bytes
        return SERVED, _duration(s, machine.hbm_latency_ns, n_bytes, machine.hbm_rates[entry.home]), n_bytes
    if hbm.keep(memory.copies, entry.die, key, n_bytes):
        s.tally.dies[unsigned(entry.die)].write_bytes += n_bytes
    return SERVED, _duration(s, machine.hbm_latency_ns, n_bytes, machine.hbm_rates[entry.die]), n_bytes


@inner
def serve_move(s, row):
    """(event, duration, bytes) of a stage of a bundle of hidden vectors."""
    move = move_of(s.work, row.item)
    if row.kind == ACT_MOVE:
        phase = phase_of(s.work, row.item)
        s.tally.moved_bytes[phase] += move.bytes
        s.tally.pair_bytes[HIDDEN + phase, move.src, move.dst] += move.bytes
        most = s.machine.transfer_bytes_per_ns[phase]
        return SERVED, _cross(s, HIDDEN, move.src, move.dst, move.bytes, most), move.bytes
    die = move.src if row.kind == ACT_READ else move.dst
    s.tally.dies[unsigned(die)].activation_bytes += move.bytes
    event = HERE if row.kind == ACT_READ and move.src == move.dst else SERVED
    return event, _duration(s, s.machine.hbm_latency_ns, move.bytes, s.machine.hbm_rates[die]), move.bytes


@inner
def group_of(s, kind, item, reader):
    """Resources of a stage: a unit of a die, or the route of a request, slice or move. ``reader``: whose LLC is
    filled.
    """
    dies = s.machine.dies
    routes = UNITS * dies
    if kind == DONE:
        return routes  # the empty route from die 0 to itself
    if kind >= ACT_READ:
        move = move_of(s.work, item)
        if kind == ACT_MOVE:
            return routes + move.src * dies + move.dst
        return HBM_CLASS * dies + (move.src if kind == ACT_READ else move.dst)
    entry = entry_of(s, item)
    if kind == REQUEST:
        return routes + entry.die * dies + entry.home
    if kind == DATA:
        return routes + entry.home * dies + entry.die
    place = entry.home if kind == REMOTE_LLC or kind == REMOTE_HBM else entry.die
    return UNIT[kind] * dies + (reader if kind == LLC_FILL else place)


@inner
def priority_of(s, chain):
    entry = entry_of(s, chain)
    return np.int64(entry.die != entry.home)


@inner
def early_ns(s, kind, chain):
    """How long before a slice's last byte its first segment is there (0 where slices are not segmented)."""
    rest = s.machine.slice_bytes - s.machine.first_bytes
    if kind == LOCAL_HBM:
        return rest / s.machine.hbm_rates[entry_of(s, chain).die]
    if kind != DATA:
        return 0.0
    entry = entry_of(s, chain)
    return rest / s.machine.route_bytes_per_ns[entry.home, entry.die]


# ---- reserved

HBM, COMPUTE_ARRAY = np.int64(Unit.HBM), np.int64(Unit.COMPUTE)


@inner
def _follow(s, stage, event, end):
    """Create the successors of a processed stage, the spawned one first."""
    row = row_of(s, stage)
    spawned, following = SPAWN[row.kind, event], NEXT[row.kind, event]
    if spawned >= 0:
        group = group_of(s, spawned, row.item, row.group % s.machine.dies)
        create(s, spawned, row.item, group, end, 0.0, stage, row.priority)
    earliest, floor = end, 0.0
    if following == COMPUTE:
        entry = entry_of(s, row.item)
        earliest = end - early_ns(s, row.kind, row.item)
        floor = max(end + entry.drain_ns, asked_at(s, stage) + entry.alone_ns)
        if entry.routed and awaits_tokens(s.work, entry.die):
            s.work.held[unsigned(row.item)].floor = floor
            hold(s.work, entry.die, row.item)
            return
    elif following == DONE and row.kind >= ACT_READ:  # software follows, so that it keeps no resource from others
        earliest = end + s.machine.transfer_ns[phase_of(s.work, row.item)]
    group = group_of(s, following, row.item, row.group % s.machine.dies)
    create(s, following, row.item, group, earliest, floor, stage, row.priority)


@inner
def _start_chain(s, die, now, parent):
    """Look the die's next slice up, if one is left."""
    local = s.work.local[unsigned(die)]
    if local.next_chain < local.end_chain:
        chain = s.work.chains[unsigned(local.next_chain)]
        local.next_chain += 1
        create(s, LOOKUP, chain, die, now, 0.0, parent, priority_of(s, chain))


@inner
def _start_moves(s, what, die, now, parent):
    """Start the bundles of hidden vectors that leave ``die``."""
    columns = s.work.moves.shape[1]
    for column in range(s.work.move_ptr[what, die], s.work.move_ptr[what, die + 1]):
        create(s, ACT_READ, what * columns + column, HBM * s.machine.dies + die, now, 0.0, parent, np.int64(0))


@inner
def _release_held(s, die, now, parent):
    """The die's tokens have arrived: its waiting slices may be computed."""
    chain = s.work.local[unsigned(die)].held
    s.work.local[unsigned(die)].held = NOBODY
    s.work.local[unsigned(die)].launched_ns = now + s.work.local[unsigned(die)].launch_ns
    while chain >= 0:
        group = COMPUTE_ARRAY * s.machine.dies + die
        create(s, COMPUTE, chain, group, now, s.work.held[unsigned(chain)].floor, parent, priority_of(s, chain))
        chain = s.work.held[unsigned(chain)].next


@inner
def _finish(s, stage):
    """A request is done: its die may start the next one or send its results."""
    now, item = row_of(s, stage).time, row_of(s, stage).item
    kind = row_of(s, row_of(s, stage).parent).kind
    if kind == COMPUTE:
        entry = entry_of(s, item)
        _start_chain(s, entry.die, now, stage)
        if entry.routed and count_computed(s.work, entry.die, now):
            _start_moves(s, COMBINE, entry.die, now, stage)
    elif kind >= ACT_READ and item < s.work.moves.shape[1]:
        die = s.work.moves[DISPATCH, item].dst
        if count_arrived(s.work, die, now):
            _release_held(s, die, now, stage)


@inner
def _process(s, stage):
    """Serve a stage, create its successors, release its resources."""
    row = row_of(s, stage)
    if row.kind == DONE:
        row.end = row.time
        _finish(s, stage)
        return
    event, duration, n_bytes = serve_move(s, row) if row.kind >= ACT_READ else serve_slice(s, row)
    row.end, row.event = row.time + duration, event
    _follow(s, stage, event, row.end)
    if is_unit(s, row.group):
        give_up(s, stage, row.group, duration, n_bytes)
        waiting = first_waiting(s, row.group)
        if waiting >= 0:
            admit_at(s, waiting, row.group)
        return
    first, last = links_of(s, row.group)
    for at in range(first, last):
        give_up(s, stage, link_at(s.machine, at), duration, n_bytes)
    if len(s.link_bits):
        s.pool.count[CLAIMED] &= ~s.link_bits[unsigned(row.group)]
    offer_links(s, row.group)


@inner
def _trace_back(s, stage, begin):
    """Add the critical path that ends with ``stage`` to ``bound_ns``, by cause, and its residuals."""
    until = row_of(s, stage).end
    while stage >= 0 and until > begin:
        row = row_of(s, stage)
        since = max(min(row.time, until), begin)
        if row.kind == COMPUTE:
            explain_product(s.tally, s.work, entry_of(s, row.item), since, until)
        else:
            s.tally.bound_ns[CAUSE_OF[row.kind]] += until - since
        until = since
        stage = row.cause


@inner
def _start_all(s, begin_ns):
    """Dispatch the hidden vectors and look up the first slices."""
    for die in range(s.machine.dies):
        _start_moves(s, DISPATCH, die, begin_ns, NOBODY)
    if s.machine.window < len(s.work.chains):
        for die in range(s.machine.dies):
            for _ in range(s.machine.window):
                _start_chain(s, die, begin_ns, NOBODY)
        return
    for chain in range(len(s.work.chains)):
        create(s, LOOKUP, chain, entry_of(s, chain).die, begin_ns, 0.0, NOBODY, priority_of(s, chain))
    for die in range(s.machine.dies):
        s.work.local[unsigned(die)].next_chain = s.work.local[unsigned(die)].end_chain


@inner
def _ends_step(s, stage):
    """Whether the step waits for the stage: not for copies under ``copy_writes: background``."""
    row = row_of(s, stage)
    is_copy = row.kind == COPY or (row.kind == DONE and row_of(s, row.parent).kind == COPY)
    return not (is_copy and s.machine.copies_in_background)


@kernel
def run_step(s, begin_ns):
    """Run one step from ``begin_ns``; returns when its last stage has ended, float64 ns: stores included, but for
    copies under ``copy_writes: background``, whose time is left to the HBMs at the start of the next step.
    """
    s = reference(s)
    for i in range(len(s.pool.count)):
        s.pool.count[i] = 0
    for r in range(len(s.pool.claims)):
        claim = claim_of(s, r)
        claim.queued, claim.claimed, claim.last_user, claim.free_at = 0, 0, -1, begin_ns
    for die in range(s.machine.dies):
        s.work.local[unsigned(die)].launched_ns += begin_ns
        unwritten_ns = s.memory.copies.room[die].unwritten_bytes / s.machine.hbm_rates[die]
        claim_of(s, s.machine.dies + die).free_at += unwritten_ns
    _start_all(s, begin_ns)
    end, last = begin_ns, NOBODY
    while s.pool.count[BOOKED] > 0:
        booking, s.pool.count[BOOKED] = bookings_pop(s.pool.calendar, s.pool.count[BOOKED], s.tie_bits)
        stage = booking[1]
        _process(s, stage)
        if row_of(s, stage).end > end and _ends_step(s, stage):
            end, last = row_of(s, stage).end, stage
    s.tally.events[0] += s.pool.count[STAGES]
    if s.machine.copies_in_background:
        for die in range(s.machine.dies):
            late_ns = max(0.0, claim_of(s, s.machine.dies + die).free_at - end)
            s.memory.copies.room[die].unwritten_bytes = np.int64(late_ns * s.machine.hbm_rates[die])
    if last >= 0:
        _trace_back(s, last, begin_ns)
    return end


def _link_bits(machine: Machine) -> np.ndarray:
    """``ReservedState.link_bits``."""
    if machine.link_resources > MOST_BITS:
        return np.zeros(0, np.int64)
    of_pairs = np.zeros(machine.dies**2, np.int64)
    pair = np.repeat(np.arange(len(of_pairs)), np.diff(machine.route_ptr))
    np.bitwise_or.at(of_pairs, pair, np.int64(1) << machine.route_links.astype(np.int64))
    return np.concatenate([np.zeros(UNITS * machine.dies, np.int64), of_pairs])


class ReservedKernel:
    """The strategy ``contention: reserved``: runs steps, keeping one pool that grows as steps need."""

    def __init__(self, machine: Machine, fabric: Fabric, assumptions):
        self._machine = machine
        self._tie_bits = -1 if assumptions.ties == "sequence" else 0
        self._link_bits = _link_bits(machine)
        self.pool = new_pool(machine.resources, 0, 0)

    def step(self, work: StepWork, memory: Memory, tally: Tally, begin_ns: float) -> float:
        """Run one step; returns its end in ns."""
        chains, moves = len(work.chains), work.moves.size
        if STAGES_PER_CHAIN * chains + STAGES_PER_MOVE * moves > len(self.pool.stages):
            room = 2 * chains, 2 * moves
            self.pool = new_pool(
                self._machine.resources,
                STAGES_PER_CHAIN * room[0] + STAGES_PER_MOVE * room[1],
                WAITS_PER_CHAIN * room[0] + room[1],
            )
        self._work = work = work._replace(cp_ready_ns=begin_ns + work.cp_ready_ns)
        end_ns = run_step(
            ReservedState(self._machine, work, memory, tally, self.pool, self._link_bits, self._tie_bits), begin_ns
        )
        if len(work.notes):
            work.notes["time_ns"] -= begin_ns
        return end_ns

    def log(self, begin_ns: float) -> dict[str, np.ndarray]:
        """Log of the last step, which began at ``begin_ns``."""
        stages, waits = self.pool.stages[: self.pool.count[STAGES]], not self._machine.copies_in_background
        return step_log(stages, self._work, begin_ns, waits)
