"""The compute array of a die under ``contention: shared``: when it takes a slice, how long that holds it, and what
follows.

A product counts as begun when its slice was asked for and the array is idle; it multiplies when bytes are there, too
(``archsim.engine.state.begun_ns``, ``multiplied_ns``).
"""

from archsim.base.compiled import inner, outer
from archsim.engine import local_cp, state
from archsim.engine.event import flows, stages
from microarch.blocks import hbm, request


@inner
def _resource_of(s, die):
    return s.tally.resources[(state.UNITS - 1) * s.machine.dies + die]


@outer
def _start_array(s, die, now):
    """The compute array, if idle, takes the next slice; a routed one waits there for the launch of its kernel."""
    pool, work, array = s.traffic.pool, s.work, s.traffic.pool.dies[die]
    if array.running >= 0 or array.first < 0:
        return
    chain = array.first
    array.first, array.running = pool.chains[chain].next, chain
    stage = pool.chains[chain].stage
    row = pool.stages[stage]
    entry, ready = work.entries[chain // hbm.SLICES], pool.chains[chain].ready
    launched = state.launched_ns(work, entry)
    array.begun = state.begun_ns(array.free, ready, launched)
    ends, row.bound_from = state.multiplied_ns(entry, array.begun, max(now, launched)), now
    if now <= array.free or ends <= array.begun + entry.compute_ns:  # bound by the array, not by the slice's bytes
        row.bound_from = max(array.free, ready)
        if array.free > ready and array.latest >= 0:
            row.cause = array.latest
    _resource_of(s, die).wait_ns += now - row.time
    row.time, array.latest = now, stage
    flows.set_timer(pool, stage, ends, flows.IS_COMPUTED)
    _watch_room(pool, entry, array, stage, max(now, launched))


@inner
def _watch_room(pool, entry, array, stage, now):
    """Set a timer for when the array's slice has left room (evenly, until it is multiplied) for the next one."""
    lacking, taken = array.ask_from - array.room, pool.chains[pool.stages[stage].item].taken
    if array.unasked > 0 and lacking < taken:
        left = entry.compute_ns * (entry.read_bytes - taken + lacking) / entry.read_bytes
        flows.set_timer(pool, stage, max(now, array.begun + left), flows.HAS_ROOM)


@inner
def _leave_array(pool, die, now):
    pool.dies[die].running, pool.dies[die].free = flows.NOBODY, now


@outer
def _queue_compute(s, chain, parent, now):
    """The slice's first segment and its tokens have arrived: it queues for the array."""
    pool = s.traffic.pool
    stage = stages.new_stage(pool, request.COMPUTE, chain, parent, now)
    die = s.work.entries[chain // hbm.SLICES].die
    array = pool.dies[die]
    pool.chains[chain].stage, pool.chains[chain].next = stage, flows.NOBODY
    if array.first < 0:
        array.first = chain
    else:
        pool.chains[array.last].next = chain
    array.last = chain
    _start_array(s, die, now)


@outer
def operand_ready(s, chain, parent, now):
    """The first segment has arrived: go on to the array, or queue for dispatched tokens."""
    entry = s.work.entries[chain // hbm.SLICES]
    if entry.routed and local_cp.awaits_tokens(s.work, entry.die):
        local_cp.hold(s.work, entry.die, chain)
    else:
        _queue_compute(s, chain, parent, now)


@outer
def release_held(s, die, parent, now):
    """The die's tokens have arrived: its kernel is launched."""
    chain = s.work.local[die].held
    s.work.local[die].launched_ns = now + s.work.local[die].launch_ns
    s.work.local[die].held = flows.NOBODY
    while chain >= 0:
        following = s.work.held[chain].next
        s.traffic.pool.chains[chain].ready = now
        _queue_compute(s, chain, parent, now)
        chain = following


@inner
def has_room(s, stage, now):
    """The slice that the array works on has left enough room for the next one."""
    pool, chain = s.traffic.pool, s.traffic.pool.stages[stage].item
    array = pool.dies[s.work.entries[chain // hbm.SLICES].die]
    pool.chains[chain].taken -= array.ask_from - array.room
    array.room = array.ask_from
    stages.ask(s, s.work.entries[chain // hbm.SLICES].die, stage, now)
    _watch_room(pool, s.work.entries[chain // hbm.SLICES], array, stage, now)


@outer
def end_product(s, stage, now):
    """A slice is multiplied: the array takes the next, the Local CP fetches one; after the last, results leave."""
    pool, row = s.traffic.pool, s.traffic.pool.stages[stage]
    row.end = now
    entry = s.work.entries[row.item // hbm.SLICES]
    resource = _resource_of(s, entry.die)
    # An array that holds a slice whose last bytes have not arrived waits: it is not busy.
    resource.busy_ns += entry.compute_ns
    resource.wait_ns += max(0.0, now - row.time - entry.compute_ns)
    if pool.dies[entry.die].running == row.item:
        _leave_array(pool, entry.die, now)
    pool.dies[entry.die].room += pool.chains[row.item].taken
    stages.ask(s, entry.die, stage, now)
    _start_array(s, entry.die, now)
    if entry.routed and local_cp.count_computed(s.work, entry.die, now):
        stages.start_moves(s, state.COMBINE, entry.die, stage, now)


@outer
def end_multiplying(s, stage, now):
    """A product's time or a drain has passed. If bytes are missing, the array waits for them or goes on."""
    pool, item = s.traffic.pool, s.traffic.pool.stages[stage].item
    chain, entry = pool.chains[item], s.work.entries[item // hbm.SLICES]
    chain.computed = 1
    if chain.arrived and chain.ends_from <= now:
        end_product(s, stage, now)
        return
    if chain.arrived:
        _drain(s, chain, entry.drain_ns, now)
    if not s.machine.array_waits:
        _leave_array(pool, entry.die, now)
        _start_array(s, entry.die, now)


@outer
def _drain(s, chain, drain_ns, now):
    """The last segment came late: the GEMM ends ``drain_ns`` after it, or its measured time is longer, as it reads."""
    compute, last = s.traffic.pool.stages[chain.stage], s.traffic.pool.stages[chain.last]
    if chain.ends_from <= last.end + drain_ns:
        compute.cause, compute.bound_from = chain.last, last.end
    if chain.ends_from <= now:
        end_product(s, chain.stage, now)
    else:
        flows.set_timer(s.traffic.pool, chain.stage, chain.ends_from, flows.IS_COMPUTED)


@inner
def arrive(s, chain, stage, now):
    """The whole slice has arrived. If the array has spent its time on it, it is done, except for the drain."""
    pool, drain_ns = s.traffic.pool, s.work.entries[chain // hbm.SLICES].drain_ns
    row, last = pool.chains[chain], pool.stages[stage]
    # A slice from the LLC, or one no longer than its first segment, raised no event for its first segment.
    if last.kind == request.LOOKUP or last.first_bytes >= last.bytes:
        operand_ready(s, chain, stage, now)
    row.arrived, row.last, row.ends_from = 1, stage, max(row.ends_from, now + drain_ns)
    if row.computed:
        _drain(s, row, drain_ns, now)
