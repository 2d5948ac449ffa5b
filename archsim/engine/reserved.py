"""``contention: reserved``: every stage claims all of its resources for itself, booked ahead by one.

The rules are those of the published simulator (design notes, machine section 4). A stage of a request (see
``microarch.request``) has an earliest time and a group of resources. When it is created and none of them is claimed,
it claims them and will start when the last of them falls free; otherwise it waits in the queue of each. Stages are
processed in order of start; processing creates the successors, gives the resources up at once (they fall free at the
stage's end) and offers each to the first that waits for it.

Rows of the pool stay until the step ends; they are also the log from which timelines are drawn.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from archsim.engine.heaps import calendar_pop, calendar_push, queue_pop, queue_push
from archsim.engine.state import (
    COMBINE,
    DATA_MESSAGES,
    DISPATCH,
    HIDDEN,
    REQUESTS,
    SLICES,
    UNITS,
    Machine,
    Memory,
    Tally,
    Work,
    inner,
    kernel,
)
from microarch import hbm, llc
from microarch.request import NEXT, SPAWN, UNIT, Event, State, Unit

LOOKUP, LOCAL_HBM, REQUEST, REMOTE_LLC, REMOTE_HBM, DATA, COMPUTE, LLC_FILL, COPY, ACT_READ, ACT_MOVE, ACT_WRITE, DONE = (
    int(state) for state in State
)
SERVED, HIT, MISS, HERE, AWAY, KEEP = (int(event) for event in Event)
HBM, COMPUTE_ARRAY, PATH = int(Unit.HBM), int(Unit.COMPUTE), int(Unit.PATH)
STAGES, WAITING = 0, 1  # counters
STAGES_PER_CHAIN = 11  # the longest walk through the request table, spawned stages included
STAGES_PER_MOVE = 4
WAITS_PER_CHAIN = 3  # stages of a chain that may stand in one resource's queue, stale entries included

STAGE = np.dtype(
    [
        ("time", "f8"),  # earliest time; from admission on the start
        ("end", "f8"),  # start + duration, set when processed
        ("floor", "f8"),  # a compute stage cannot end before: its last segment arrives then
        ("item", "i4"),  # chain, or move for the ACT_ states
        ("group", "i4"),  # its resources: group_resources[group_ptr[g]:group_ptr[g + 1]]
        ("parent", "i4"),  # stage that created it, -1 at the start of a step
        ("cause", "i4"),  # stage that it had to wait for: its parent, or the last user of a resource
        ("arrival", "i4"),  # order in which waiting stages came
        ("tie", "i4"),  # 0 (ties: heapq) or creation number (ties: sequence)
        ("kind", "i1"),  # microarch.request.State
        ("priority", "i1"),  # 1 where the expert's home is another die (published simulator)
        ("admitted", "u1"),  # 1 once it has claimed its resources
    ],
    align=True,
)
CLAIM = np.dtype([("free_at", "f8"), ("queued", "i8"), ("last_user", "i4"), ("claimed", "u1")], align=True)


class Pool(NamedTuple):
    """Stages of the step and the queues they wait in."""

    stages: np.ndarray  # STAGE[stage]
    claims: np.ndarray  # CLAIM[resource]
    queue: np.ndarray  # int32[resource, waiting]: heaps of the stages that wait
    calendar: np.ndarray  # int32[stage]: heap of admitted stages
    offers: np.ndarray  # int32[resource]: heap of the stages that are offered something
    count: np.ndarray  # int64[2]


def new_pool(resources: int, stages: int, waiting: int) -> Pool:
    """An empty pool for ``stages`` stages of which at most ``waiting`` wait for one resource."""
    return Pool(
        stages=np.zeros(stages, STAGE),
        claims=np.zeros(resources, CLAIM),
        queue=np.zeros((resources, waiting), np.int32),
        calendar=np.zeros(stages, np.int32),
        offers=np.zeros(resources + 1, np.int32),
        count=np.zeros(2, np.int64),
    )


@inner
def _admit(machine, pool, tally, stage, size):
    """Claim the resources; the stage starts when the last of them falls free. Returns the calendar's size."""
    row = pool.stages[stage]
    start, cause, binding = row.time, row.parent, -1
    for i in range(machine.group_ptr[row.group], machine.group_ptr[row.group + 1]):
        r = machine.group_resources[i]
        pool.claims[r].claimed = 1
        if pool.claims[r].free_at > start:
            start, cause, binding = pool.claims[r].free_at, pool.claims[r].last_user, r
    if binding >= 0:
        tally.resources[binding].wait_ns += start - row.time
    row.time, row.cause, row.admitted = start, cause, 1
    return calendar_push(pool.calendar, size, stage, pool.stages)


@inner
def _any_claimed(machine, pool, group):
    for i in range(machine.group_ptr[group], machine.group_ptr[group + 1]):
        r = machine.group_resources[i]
        if pool.claims[r].claimed:
            return True
    return False


@inner
def _create(machine, pool, tally, kind, item, group, earliest, floor, parent, priority, total_order, size):
    """A new stage: admitted if none of its resources is claimed, else queued at each. Returns the calendar's size."""
    stage = pool.count[STAGES]
    pool.count[STAGES] += 1
    row = pool.stages[stage]
    row.kind, row.item, row.group, row.parent = kind, item, group, parent
    row.time, row.floor, row.priority, row.admitted = earliest, floor, priority, 0
    row.tie = stage if total_order else 0
    if not _any_claimed(machine, pool, group):
        return _admit(machine, pool, tally, stage, size)
    row.arrival = pool.count[WAITING]
    pool.count[WAITING] += 1
    for i in range(machine.group_ptr[group], machine.group_ptr[group + 1]):
        r = machine.group_resources[i]
        pool.claims[r].queued = queue_push(pool.queue[r], pool.claims[r].queued, stage, pool.stages)
    return size


@inner
def _offer(machine, pool, tally, group, size):
    """Offer what was given up to those who wait. Returns the calendar's size."""
    offered = 0
    for i in range(machine.group_ptr[group], machine.group_ptr[group + 1]):
        r = machine.group_resources[i]
        queue, claim = pool.queue[r], pool.claims[r]
        while claim.queued > 0 and pool.stages[queue[0]].admitted:
            _, claim.queued = queue_pop(queue, claim.queued, pool.stages)
        if claim.queued > 0:
            offered = calendar_push(pool.offers, offered, queue[0], pool.stages)
    while offered > 0:
        stage, offered = calendar_pop(pool.offers, offered, pool.stages)
        if pool.stages[stage].admitted:
            continue
        if not _any_claimed(machine, pool, pool.stages[stage].group):
            size = _admit(machine, pool, tally, stage, size)
    return size


@inner
def _duration(machine, fixed_ns, n_bytes, bytes_per_ns):
    transfer_ns = n_bytes / bytes_per_ns
    return fixed_ns + (np.ceil(transfer_ns) if machine.whole_ns else transfer_ns)


@inner
def _count_hops(tally, what, hops, n_bytes):
    tally.hops[what, 0] += hops
    tally.hops[what, 1] += hops * n_bytes


@inner
def _serve_slice(machine, work, memory, tally, kind, chain, start, floor, filled):
    """(event, duration, bytes) of a weight slice's stage, and what it changes in caches, copies and counters."""
    entry = work.entries[chain // SLICES]
    key = entry.key + chain % SLICES
    die, home, expert = entry.die, entry.home, entry.expert
    if kind == LOOKUP:
        if entry.look_here:
            if llc.holds(memory.llc_tags, die, expert, key):
                tally.llc_hits[0] += 1
                return HIT, machine.llc_hit_ns, machine.slice_bytes
            if die == home:
                return HERE, machine.llc_miss_ns, 0
            if memory.copies.present[die, key]:
                hbm.touch(memory.copies, die, key)
                return HERE, machine.llc_miss_ns, 0
        return AWAY, machine.llc_miss_ns, 0
    if kind == LOCAL_HBM:
        n_bytes = entry.read_bytes
        tally.dies[die].local_read_bytes += n_bytes
        return SERVED, _duration(machine, machine.hbm_latency_ns, n_bytes, machine.hbm_bytes_per_ns), n_bytes
    if kind == REQUEST:
        n_bytes, hops = machine.request_bytes, machine.hops[die, home]
        _count_hops(tally, REQUESTS, hops, n_bytes)
        hit = llc.holds(memory.llc_tags, home, expert, key)
        duration = _duration(machine, hops * machine.hop_ns, n_bytes, machine.link_bytes_per_ns)
        return (HIT if hit else MISS), duration, n_bytes
    if kind == REMOTE_LLC:
        tally.llc_hits[1] += 1
        return SERVED, machine.llc_hit_ns, machine.slice_bytes
    if kind == COMPUTE:
        return SERVED, max(entry.compute_ns, floor - start), 0
    if kind == LLC_FILL:
        llc.store(memory.llc_tags, filled, expert, key)
        return SERVED, machine.llc_write_ns, machine.slice_bytes
    n_bytes = machine.slice_bytes
    if kind == DATA:
        hops = machine.hops[home, die]
        _count_hops(tally, DATA_MESSAGES, hops, n_bytes)
        event = KEEP if work.cp_en[die, expert] and not memory.copies.present[die, key] else SERVED
        return event, _duration(machine, hops * machine.hop_ns, n_bytes, machine.link_bytes_per_ns), n_bytes
    duration = _duration(machine, machine.hbm_latency_ns, n_bytes, machine.hbm_bytes_per_ns)
    if kind == REMOTE_HBM:
        tally.dies[home].remote_read_bytes += n_bytes
    elif hbm.keep(memory.copies, die, key, n_bytes):
        tally.dies[die].write_bytes += n_bytes
    return SERVED, duration, n_bytes


@inner
def _move(work, item):
    """Record of a move: dispatch moves are numbered first, then those of combine."""
    columns = work.moves.shape[1]
    return work.moves[item // columns, item % columns]


@inner
def _serve_move(machine, work, tally, kind, item):
    """(event, duration, bytes) of a stage of a bundle of hidden vectors."""
    move = _move(work, item)
    if kind == ACT_MOVE:
        hops = machine.hops[move.src, move.dst]
        _count_hops(tally, HIDDEN, hops, move.bytes)
        tally.moved_bytes[0] += move.bytes
        return SERVED, _duration(machine, hops * machine.hop_ns, move.bytes, machine.link_bytes_per_ns), move.bytes
    tally.dies[move.src if kind == ACT_READ else move.dst].activation_bytes += move.bytes
    event = HERE if kind == ACT_READ and move.src == move.dst else SERVED
    return event, _duration(machine, machine.hbm_latency_ns, move.bytes, machine.hbm_bytes_per_ns), move.bytes


@inner
def _group_of(machine, work, kind, item, reader):
    """Resources of a stage: a unit of a die, or the route of a request, slice or move. ``reader``: whose LLC is filled."""
    routes = UNITS * machine.dies
    if kind == DONE:
        return routes  # the empty route from die 0 to itself
    if kind >= ACT_READ:
        move = _move(work, item)
        if kind == ACT_MOVE:
            return routes + move.src * machine.dies + move.dst
        return HBM * machine.dies + (move.src if kind == ACT_READ else move.dst)
    entry = work.entries[item // SLICES]
    if kind == REQUEST:
        return routes + entry.die * machine.dies + entry.home
    if kind == DATA:
        return routes + entry.home * machine.dies + entry.die
    place = entry.home if kind == REMOTE_LLC or kind == REMOTE_HBM else entry.die
    return UNIT[kind] * machine.dies + (reader if kind == LLC_FILL else place)


@inner
def _priority_of(work, chain):
    entry = work.entries[chain // SLICES]
    return 1 if entry.die != entry.home else 0


@inner
def _early_ns(machine, kind):
    """How long before a slice's last byte its first segment is there (0 where slices are not segmented)."""
    rest = machine.slice_bytes - machine.first_bytes
    if kind == LOCAL_HBM:
        return rest / machine.hbm_bytes_per_ns
    return rest / machine.link_bytes_per_ns if kind == DATA else 0.0


@inner
def _hold(work, die, chain, floor):
    """The chain waits for dispatched tokens, behind those that wait already."""
    local = work.local[die]
    work.held[chain].floor, work.held[chain].next = floor, -1
    if local.held < 0:
        local.held = chain
    else:
        work.held[local.held_last].next = chain
    local.held_last = chain


@inner
def _follow(machine, work, pool, tally, stage, event, end, total_order, size):
    """Create what follows a processed stage, the spawned one first. Returns the calendar's size."""
    row = pool.stages[stage]
    kind, item, priority = row.kind, row.item, row.priority
    spawned = SPAWN[kind, event]
    if spawned >= 0:
        group = _group_of(machine, work, spawned, item, row.group % machine.dies)
        size = _create(machine, pool, tally, spawned, item, group, end, 0.0, stage, priority, total_order, size)
    following = NEXT[kind, event]
    earliest, floor = end, 0.0
    if following == COMPUTE:
        earliest, floor = end - _early_ns(machine, kind), end
        entry = work.entries[item // SLICES]
        if entry.routed and work.local[entry.die].moves_left > 0:
            _hold(work, entry.die, item, floor)
            return size
    group = _group_of(machine, work, following, item, 0)
    return _create(machine, pool, tally, following, item, group, earliest, floor, stage, priority, total_order, size)


@inner
def _start_chain(machine, work, pool, tally, die, now, parent, total_order, size):
    """Look the die's next slice up, if one is left. Returns the calendar's size."""
    local = work.local[die]
    if local.next_chain == local.end_chain:
        return size
    chain = work.chains[local.next_chain]
    local.next_chain += 1
    priority = _priority_of(work, chain)
    return _create(machine, pool, tally, LOOKUP, chain, die, now, 0.0, parent, priority, total_order, size)


@inner
def _start_moves(machine, work, pool, tally, what, die, now, parent, total_order, size):
    """Start the bundles of hidden vectors that leave ``die``. Returns the calendar's size."""
    columns = work.moves.shape[1]
    column = 0
    while column < columns and work.moves[what, column].src < die:
        column += 1
    while column < columns and work.moves[what, column].src == die:
        item = what * columns + column
        size = _create(machine, pool, tally, ACT_READ, item, HBM * machine.dies + die, now, 0.0, parent, 0, total_order, size)
        column += 1
    return size


@inner
def _release_held(machine, work, pool, tally, die, now, parent, total_order, size):
    """The die's tokens have arrived: its waiting slices may be computed. Returns the calendar's size."""
    chain = work.local[die].held
    work.local[die].held = -1
    group = COMPUTE_ARRAY * machine.dies + die
    while chain >= 0:
        floor, priority = work.held[chain].floor, _priority_of(work, chain)
        size = _create(machine, pool, tally, COMPUTE, chain, group, now, floor, parent, priority, total_order, size)
        chain = work.held[chain].next
    return size


@inner
def _finish(machine, work, pool, tally, stage, total_order, size):
    """A request is done: its die may start the next one, or send its results. Returns the calendar's size."""
    now, item = pool.stages[stage].time, pool.stages[stage].item
    kind = pool.stages[pool.stages[stage].parent].kind
    if kind == COMPUTE:
        entry = work.entries[item // SLICES]
        size = _start_chain(machine, work, pool, tally, entry.die, now, stage, total_order, size)
        if entry.routed:
            work.local[entry.die].routed_left -= 1
            if work.local[entry.die].routed_left == 0:
                size = _start_moves(machine, work, pool, tally, COMBINE, entry.die, now, stage, total_order, size)
    elif kind >= ACT_READ and item < work.moves.shape[1]:
        die = work.moves[DISPATCH, item].dst
        work.local[die].moves_left -= 1
        if work.local[die].moves_left == 0:
            size = _release_held(machine, work, pool, tally, die, now, stage, total_order, size)
    return size


@inner
def _process(machine, work, memory, pool, tally, stage, total_order, size):
    """Serve a stage, create its successors, give up its resources. Returns the calendar's size."""
    row = pool.stages[stage]
    if row.kind == DONE:
        row.end = row.time
        return _finish(machine, work, pool, tally, stage, total_order, size)
    if row.kind >= ACT_READ:
        event, duration, n_bytes = _serve_move(machine, work, tally, row.kind, row.item)
    else:
        reader = row.group % machine.dies
        event, duration, n_bytes = _serve_slice(machine, work, memory, tally, row.kind, row.item, row.time, row.floor, reader)
    end = row.time + duration
    row.end = end
    size = _follow(machine, work, pool, tally, stage, event, end, total_order, size)
    for i in range(machine.group_ptr[row.group], machine.group_ptr[row.group + 1]):
        r = machine.group_resources[i]
        claim, resource = pool.claims[r], tally.resources[r]
        claim.free_at, claim.claimed, claim.last_user = end, 0, stage
        resource.busy_ns += duration
        resource.bytes += n_bytes
    return _offer(machine, pool, tally, row.group, size)


@inner
def _trace_back(pool, tally, stage, begin):
    """Add the critical path that ends with ``stage`` to ``bound_ns``, by what was being done."""
    until = pool.stages[stage].end
    while stage >= 0 and until > begin:
        since = max(min(pool.stages[stage].time, until), begin)
        tally.bound_ns[pool.stages[stage].kind] += until - since
        until = since
        stage = pool.stages[stage].cause


@inner
def _start_all(machine, work, pool, tally, begin_ns, total_order):
    """Dispatch the hidden vectors and look up the first slices. Returns the calendar's size."""
    size = 0
    if work.moves.shape[1] > 0:
        for die in range(machine.dies):
            size = _start_moves(machine, work, pool, tally, DISPATCH, die, begin_ns, -1, total_order, size)
    if machine.window >= len(work.chains):
        for chain in range(len(work.chains)):
            die, priority = work.entries[chain // SLICES].die, _priority_of(work, chain)
            size = _create(machine, pool, tally, LOOKUP, chain, die, begin_ns, 0.0, -1, priority, total_order, size)
        for die in range(machine.dies):
            work.local[die].next_chain = work.local[die].end_chain
        return size
    for die in range(machine.dies):
        for _ in range(machine.window):
            size = _start_chain(machine, work, pool, tally, die, begin_ns, -1, total_order, size)
    return size


@kernel
def run_step(machine, work, memory, pool, tally, begin_ns, total_order):
    """Run one step from ``begin_ns``; returns when its last stage (stores included) has ended, float64 ns."""
    pool.count[STAGES] = pool.count[WAITING] = 0
    for r in range(len(pool.claims)):
        pool.claims[r].queued, pool.claims[r].last_user = 0, -1
    size = _start_all(machine, work, pool, tally, begin_ns, total_order)
    end, last = begin_ns, -1
    while size > 0:
        stage, size = calendar_pop(pool.calendar, size, pool.stages)
        size = _process(machine, work, memory, pool, tally, stage, total_order, size)
        if pool.stages[stage].end > end:
            end, last = pool.stages[stage].end, stage
    tally.events[0] += pool.count[STAGES]
    if last >= 0:
        _trace_back(pool, tally, last, begin_ns)
    return end


class ReservedKernel:
    """The strategy ``contention: reserved``: runs steps, keeping one pool that grows as steps need."""

    def __init__(self, machine: Machine, assumptions):
        self._machine = machine
        self._total_order = assumptions.ties == "sequence"
        self.pool = new_pool(machine.resources, 0, 0)

    def step(self, work: Work, memory: Memory, tally: Tally, begin_ns: float) -> float:
        """Run one step; returns its end in ns."""
        chains, moves = len(work.chains), work.moves.size
        if STAGES_PER_CHAIN * chains + STAGES_PER_MOVE * moves > len(self.pool.stages):
            room = 2 * chains, 2 * moves
            self.pool = new_pool(
                self._machine.resources,
                STAGES_PER_CHAIN * room[0] + STAGES_PER_MOVE * room[1],
                WAITS_PER_CHAIN * room[0] + room[1],
            )
        return run_step(self._machine, work, memory, self.pool, tally, begin_ns, self._total_order)
