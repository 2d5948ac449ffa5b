"""``contention: shared``: transfers share links and HBM; rates change when a transfer starts or ends.

The same requests go through the same table (``microarch.blocks.request``) as under ``reserved``; what differs is how
a stage is served:

============ ==========================================================================================================
LOOKUP       the LLC answers after its hit or miss latency (its port is pipelined)
LOCAL_HBM    a flow through the die's HBM; HBM latency is added at its end
REQUEST      hops and ``request_bytes`` at link speed, as latency: too small to take part in sharing
REMOTE_LLC   the home's LLC answers after its hit latency
REMOTE_HBM   the home's HBM answers after its latency; the read itself is part of DATA
DATA         one flow through the home's HBM (not after REMOTE_LLC) and all links of the route; hop latency at its end
COMPUTE      the array takes slices one at a time, in the order in which their first segments arrive; a slice does not
             end before its last segment has arrived, nor sooner after that than ``drain_ns``. An array that has spent
             the time of the product waits until then (``reads: together``) or takes the next slice (``in_order``).
             Time in which an idle array waits after the request counts towards the product already
LLC_FILL     the write latency, after the slice has left a remote HBM at full rate
COPY         a flow through the die's HBM; under ``copy_writes: background`` the step does not wait for it, and the next
             begins with a flow of the bytes that are left
ACT_READ     software of the transfer, then HBM latency of the source; a flow through its HBM if the vectors stay
ACT_MOVE     one flow through both HBMs and all links of the route; no sooner than the fuller of its ports has passed
             what the phase sends through it, at the rate of the software
ACT_WRITE    nothing more: the write was part of the move
============ ==========================================================================================================

Flows of one line take part one after the other (``reads: in_order``, ``source: queued``). Times are counted from
the start of the step; everything that starts or ends at one instant is recomputed once. Under ``rate_updates:
per_round_trip`` recomputes keep a distance in time: until the next one, a flow that has started waits, and the share of
one that has ended is left unused. Timers and flows are in ``transfers``, how stages begin in ``stages``, the compute
array in ``array``.
"""

from typing import NamedTuple

import numpy as np

from archsim.base.compiled import inner, kernel, outer, reference
from archsim.engine.event.explained import step_log, trace_back
from archsim.engine.event.flows import (
    HAS_ROOM,
    HAS_SEGMENT,
    IS_COMPUTED,
    IS_SERVED,
    NOBODY,
    OWN_COPIES,
    OWN_SLICES,
    OWN_VECTORS,
    PAIRS,
    STAGES,
    STAGES_PER_CHAIN,
    STAGES_PER_MOVE,
    TIMERS,
    StepNetworks,
    Traffic,
    apply_rates,
    new_pool,
    next_flow_time,
    next_timer_time,
    port_ranks,
    reset,
    send,
    set_timer,
    take_timer,
    work_flows,
)
from archsim.engine.machine import share_every_ns
from archsim.engine.network import NO_PORTS, TOUCHED, FlowNetwork, Ports, build_ports, solve_rates
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
    StepWork,
    Tally,
    awaits_tokens,
    begun_ns,
    count_arrived,
    count_computed,
    hold,
    launched_ns,
    link_at,
    move_of,
    multiplied_ns,
    phase_of,
    room_for_slices,
    room_of,
    room_to_ask,
    route_of,
)
from microarch.blocks import atu, hbm, llc, pdu
from microarch.blocks.catalogue import NEXT, SPAWN
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
)
from microarch.fabric.fabric import Fabric

# ---- stages
# How a step begins the stages of its slices and of its hidden vectors under ``contention: shared``; what each stage
# takes is told at the top of this module.


class SharedState(NamedTuple):
    """State of a step, as its kernels use it."""

    machine: Machine
    work: StepWork
    memory: Memory
    tally: Tally
    traffic: Traffic


@inner
def new_stage(pool, kind, item, parent, now):
    stage = pool.count[STAGES]
    pool.count[STAGES] += 1
    row = pool.stages[stage]
    row.kind, row.item, row.parent, row.cause, row.event = kind, item, parent, parent, SERVED
    row.time = row.bound_from = row.end = now
    row.hbm_ns, row.least_ns = 0.0, 0.0
    return stage


@inner
def describe_flow(traffic, row, group, n_bytes, first_bytes, latency):
    row.group, row.bytes = np.int64(traffic.row_of[group]), n_bytes
    row.first_bytes, row.latency = first_bytes, latency


@inner
def _count_message(machine, tally, what, src, dst, n_bytes):
    tally.hops[min(what, HIDDEN), 0] += machine.hops[src, dst]
    tally.hops[min(what, HIDDEN), 1] += machine.hops[src, dst] * n_bytes
    tally.pair_bytes[what, src, dst] += n_bytes


@inner
def _request(machine, tally, entry):
    """Latency of a command to the home; its bytes are counted on the links that it passes."""
    n_bytes = machine.request_bytes
    _count_message(machine, tally, REQUESTS, entry.die, entry.home, n_bytes)
    first, last = route_of(machine, entry.die, entry.home)
    for at in range(first, last):
        tally.resources[link_at(machine, at)].bytes += n_bytes
    return machine.route_ns[entry.die, entry.home] + n_bytes / machine.route_bytes_per_ns[entry.die, entry.home]


@outer
def begin_move(s, kind, item, parent, now):
    """Begin a stage of a bundle of hidden vectors."""
    machine, move, phase = s.machine, move_of(s.work, item), phase_of(s.work, item)
    stage = new_stage(s.traffic.pool, kind, item, parent, now)
    row = s.traffic.pool.stages[stage]
    if kind == ACT_MOVE:
        _count_message(machine, s.tally, HIDDEN + phase, move.src, move.dst, move.bytes)
        s.tally.moved_bytes[phase] += move.bytes
        s.tally.dies[move.dst].activation_bytes += move.bytes
        row.least_ns = move.port_bytes / machine.transfer_bytes_per_ns[phase]
        group = (PAIRS + 2 * machine.dies + move.src) * machine.dies + move.dst
        describe_flow(s.traffic, row, group, move.bytes, move.bytes, machine.route_ns[move.src, move.dst])
        send(s.traffic, stage, now)
        return
    s.tally.dies[move.src].activation_bytes += move.bytes
    if move.src == move.dst:
        row.event = HERE
        group = OWN_VECTORS * machine.dies + move.src
        latency = machine.transfer_ns[phase] + machine.hbm_latency_ns
        describe_flow(s.traffic, row, group, move.bytes, move.bytes, latency)
        send(s.traffic, stage, now)
    else:
        set_timer(s.traffic.pool, stage, now + machine.transfer_ns[phase] + machine.hbm_latency_ns, IS_SERVED)


@outer
def begin_slice(s, kind, item, parent, now):
    """Begin a stage of a weight slice, COMPUTE excepted."""
    machine, pool, entry = s.machine, s.traffic.pool, s.work.entries[item // SLICES]
    stage = new_stage(pool, kind, item, parent, now)
    row, latency = pool.stages[stage], 0.0
    if kind == LOCAL_HBM:
        s.tally.dies[entry.die].local_read_bytes += entry.read_bytes
        whole = machine.first_bytes == machine.slice_bytes
        first_bytes = entry.read_bytes if whole else min(machine.first_bytes, entry.read_bytes)
        group = OWN_SLICES * machine.dies + entry.die
        describe_flow(s.traffic, row, group, entry.read_bytes, first_bytes, machine.hbm_latency_ns)
        send(s.traffic, stage, now)
        return
    if kind == COPY:
        group = OWN_COPIES * machine.dies + entry.die
        describe_flow(s.traffic, row, group, machine.slice_bytes, machine.slice_bytes, machine.hbm_latency_ns)
        send(s.traffic, stage, now)
        return
    if kind == DATA:
        _count_message(machine, s.tally, DATA_MESSAGES, entry.home, entry.die, machine.slice_bytes)
        from_llc = pool.stages[parent].kind == REMOTE_LLC
        group = (PAIRS + (machine.dies if from_llc else 0) + entry.home) * machine.dies + entry.die
        latency = machine.route_ns[entry.home, entry.die]
        describe_flow(s.traffic, row, group, machine.slice_bytes, machine.first_bytes, latency)
        send(s.traffic, stage, now)
        return
    if kind == LOOKUP:
        row.event = atu.look_up(s.memory.llc_tags, s.memory.copies, entry, entry.key + item % SLICES)
        s.tally.llc_hits[0] += row.event == HIT
        latency = machine.llc_hit_ns if row.event == HIT else machine.llc_miss_ns
        if row.event != HIT and not atu.knows(s.memory.atu, entry, entry.key // SLICES):
            latency += machine.hbm_latency_ns
    elif kind == REQUEST:
        latency = _request(machine, s.tally, entry)
    elif kind == REMOTE_LLC:
        s.tally.llc_hits[1] += 1
        latency = machine.llc_hit_ns
    elif kind == REMOTE_HBM:
        s.tally.dies[entry.home].remote_read_bytes += machine.slice_bytes
        latency = machine.hbm_latency_ns
    else:  # LLC_FILL
        latency = machine.llc_write_ns
        if pool.stages[parent].kind == REMOTE_HBM:
            latency += machine.slice_bytes / machine.hbm_rates[entry.home]
    set_timer(pool, stage, now + latency, IS_SERVED)


@outer
def start_moves(s, what, die, parent, now):
    """Start the bundles of hidden vectors that leave a die."""
    columns = s.work.moves.shape[1]
    for column in range(s.work.move_ptr[what, die], s.work.move_ptr[what, die + 1]):
        begin_move(s, ACT_READ, what * columns + column, parent, now)


@outer
def ask(s, die, parent, now):
    """The Local CP asks for slices while there is room for them."""
    local, row = s.work.local[die], s.traffic.pool.dies[die]
    while row.unasked > 0 and row.room >= row.ask_from:
        chain = s.work.chains[local.next_chain]
        taken = room_of(s.machine, s.work.entries[chain // SLICES])
        asked = s.traffic.pool.chains[chain]
        asked.taken, asked.ready = taken, now
        asked.ends_from = now + s.work.entries[chain // SLICES].alone_ns
        local.next_chain += 1
        row.unasked -= 1
        row.room -= taken
        begin_slice(s, LOOKUP, chain, parent, now)


# ---- array
# The compute array of a die under ``contention: shared``: when it takes a slice, how long that holds it, and what
# follows.
#
# A product counts as begun when its slice was asked for and the array is idle; it multiplies when bytes are there, too
# (``archsim.engine.state.begun_ns``, ``multiplied_ns``).


@inner
def _resource_of(s, die):
    """The row of ``Tally.resources`` of a die's compute array."""
    return s.tally.resources[(UNITS - 1) * s.machine.dies + die]


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
    entry, ready = work.entries[chain // SLICES], pool.chains[chain].ready
    launched = launched_ns(work, entry)
    array.begun = begun_ns(array.free, ready, launched)
    ends, row.bound_from = multiplied_ns(entry, array.begun, max(now, launched)), now
    if now <= array.free or ends <= array.begun + entry.compute_ns:  # bound by the array, not by the slice's bytes
        row.bound_from = max(array.free, ready)
        if array.free > ready and array.latest >= 0:
            row.cause = array.latest
    _resource_of(s, die).wait_ns += now - row.time
    row.time, array.latest = now, stage
    set_timer(pool, stage, ends, IS_COMPUTED)
    _watch_room(pool, entry, array, stage, max(now, launched))


@inner
def _watch_room(pool, entry, array, stage, now):
    """Set a timer for when the slice that the array works on has left enough room for the next one. It leaves room
    evenly until it is multiplied.
    """
    lacking, taken = array.ask_from - array.room, pool.chains[pool.stages[stage].item].taken
    if array.unasked > 0 and lacking < taken:
        left = entry.compute_ns * (entry.read_bytes - taken + lacking) / entry.read_bytes
        set_timer(pool, stage, max(now, array.begun + left), HAS_ROOM)


@inner
def _leave_array(pool, die, now):
    pool.dies[die].running, pool.dies[die].free = NOBODY, now


@outer
def _queue_compute(s, chain, parent, now):
    """The slice's first segment and its tokens have arrived: it queues for the array."""
    pool = s.traffic.pool
    stage = new_stage(pool, COMPUTE, chain, parent, now)
    die = s.work.entries[chain // SLICES].die
    array = pool.dies[die]
    pool.chains[chain].stage, pool.chains[chain].next = stage, NOBODY
    if array.first < 0:
        array.first = chain
    else:
        pool.chains[array.last].next = chain
    array.last = chain
    _start_array(s, die, now)


@outer
def operand_ready(s, chain, parent, now):
    """The first segment has arrived: go on to the array, or queue for dispatched tokens."""
    entry = s.work.entries[chain // SLICES]
    if entry.routed and awaits_tokens(s.work, entry.die):
        hold(s.work, entry.die, chain)
    else:
        _queue_compute(s, chain, parent, now)


@outer
def release_held(s, die, parent, now):
    """The die's tokens have arrived: its kernel is launched."""
    chain = s.work.local[die].held
    s.work.local[die].launched_ns = now + s.work.local[die].launch_ns
    s.work.local[die].held = NOBODY
    while chain >= 0:
        following = s.work.held[chain].next
        s.traffic.pool.chains[chain].ready = now
        _queue_compute(s, chain, parent, now)
        chain = following


@inner
def has_room(s, stage, now):
    """The slice that the array works on has left enough room for the next one."""
    pool, chain = s.traffic.pool, s.traffic.pool.stages[stage].item
    array = pool.dies[s.work.entries[chain // SLICES].die]
    pool.chains[chain].taken -= array.ask_from - array.room
    array.room = array.ask_from
    ask(s, s.work.entries[chain // SLICES].die, stage, now)
    _watch_room(pool, s.work.entries[chain // SLICES], array, stage, now)


@outer
def computed(s, stage, now):
    """A slice is multiplied: the array takes the next one, the Local CP fetches another; after the last, results
    leave.
    """
    pool, row = s.traffic.pool, s.traffic.pool.stages[stage]
    row.end = now
    entry = s.work.entries[row.item // SLICES]
    resource = _resource_of(s, entry.die)
    # An array that holds a slice whose last bytes have not arrived waits: it is not busy.
    resource.busy_ns += entry.compute_ns
    resource.wait_ns += max(0.0, now - row.time - entry.compute_ns)
    if pool.dies[entry.die].running == row.item:
        _leave_array(pool, entry.die, now)
    pool.dies[entry.die].room += pool.chains[row.item].taken
    ask(s, entry.die, stage, now)
    _start_array(s, entry.die, now)
    if entry.routed and count_computed(s.work, entry.die, now):
        start_moves(s, COMBINE, entry.die, stage, now)


@outer
def multiplied(s, stage, now):
    """The array has worked on a slice for the time of its product, or the slice has drained. If bytes of it are
    missing, the array waits for them or goes on.
    """
    pool, item = s.traffic.pool, s.traffic.pool.stages[stage].item
    chain, entry = pool.chains[item], s.work.entries[item // SLICES]
    chain.computed = 1
    if chain.arrived and chain.ends_from <= now:
        computed(s, stage, now)
        return
    if chain.arrived:
        _drain(s, chain, entry.drain_ns, now)
    if not s.machine.array_waits:
        _leave_array(pool, entry.die, now)
        _start_array(s, entry.die, now)


@outer
def _drain(s, chain, drain_ns, now):
    """The array would be done but for the last segment, which came late: the GEMM ends ``drain_ns`` after it; or its
    measured time is longer, as it reads.
    """
    compute, last = s.traffic.pool.stages[chain.stage], s.traffic.pool.stages[chain.last]
    if chain.ends_from <= last.end + drain_ns:
        compute.cause, compute.bound_from = chain.last, last.end
    if chain.ends_from <= now:
        computed(s, chain.stage, now)
    else:
        set_timer(s.traffic.pool, chain.stage, chain.ends_from, IS_COMPUTED)


@inner
def arrive(s, chain, stage, now):
    """The whole slice has arrived. If the array has spent its time on it, it is done, except for the drain."""
    pool, drain_ns = s.traffic.pool, s.work.entries[chain // SLICES].drain_ns
    row, last = pool.chains[chain], pool.stages[stage]
    # A slice from the LLC, or one no longer than its first segment, raised no event for its first segment.
    if last.kind == LOOKUP or last.first_bytes >= last.bytes:
        operand_ready(s, chain, stage, now)
    row.arrived, row.last, row.ends_from = 1, stage, max(row.ends_from, now + drain_ns)
    if row.computed:
        _drain(s, row, drain_ns, now)


# ---- unwritten
# Copies that a step leaves to be written while the next one runs (``copy_writes: background``).


@outer
def resume_copies(s):
    """Begin with the bytes of copies that the step before left to be written: item -1 - die."""
    for die in range(s.machine.dies):
        left = s.memory.copies.room[die].unwritten_bytes
        if left > 0:
            stage = new_stage(s.traffic.pool, COPY, -1 - die, NOBODY, 0.0)
            group = OWN_COPIES * s.machine.dies + die
            describe_flow(s.traffic, s.traffic.pool.stages[stage], group, left, left, s.machine.hbm_latency_ns)
            send(s.traffic, stage, 0.0)


@outer
def leave_copies(s, end):
    """Leave what is not written when the step ends to the next one.

    From then on only copies use an HBM, so that it is busy until the last of them has left.
    """
    pool, machine, room = s.traffic.pool, s.machine, s.memory.copies.room
    for die in range(machine.dies):
        room[die].unwritten_bytes = 0
    for stage in range(pool.count[STAGES]):
        row = pool.stages[stage]
        if row.kind == COPY:
            die = -1 - row.item if row.item < 0 else s.work.entries[row.item // SLICES].die
            left = np.int64((row.end - row.latency - end) * machine.hbm_rates[die])
            room[die].unwritten_bytes = max(room[die].unwritten_bytes, left)
    for die in range(machine.dies):
        row = s.tally.resources[machine.dies + die]
        row.bytes -= room[die].unwritten_bytes
        row.busy_ns -= room[die].unwritten_bytes / machine.hbm_rates[die]


# ---- shared


@inner
def _move_done(s, item, stage, now):
    if item < s.work.moves.shape[1]:
        die = s.work.moves[DISPATCH, item].dst
        if count_arrived(s.work, die, now):
            release_held(s, die, stage, now)


@inner
def _outcome(s, row, now):
    """Event that ends a stage ``now``; updates caches and copies."""
    if row.kind >= ACT_READ or row.kind == LOOKUP or row.item < 0:
        return row.event
    entry = s.work.entries[row.item // SLICES]
    key = entry.key + row.item % SLICES
    if row.kind == REQUEST:
        return HIT if llc.holds(s.memory.llc_tags, entry.home, entry.expert, key) else MISS
    if row.kind == DATA:
        return pdu.decide(s.work.cp_en, s.work.cp_ready_ns, s.memory.copies, entry, key, now)
    if row.kind == LLC_FILL:
        reader = entry.home if s.traffic.pool.stages[row.parent].kind == REMOTE_HBM else entry.die
        llc.store(s.memory.llc_tags, reader, entry.expert, key)
    elif row.kind == COPY and hbm.keep(s.memory.copies, entry.die, key, s.machine.slice_bytes):
        s.tally.dies[entry.die].write_bytes += s.machine.slice_bytes
    return SERVED


@inner
def _served(s, stage, now):
    """A stage has ended: apply its effects and start its successors, the spawned one first."""
    row = s.traffic.pool.stages[stage]
    event = _outcome(s, row, now)
    row.end, row.event = now, event
    spawned, following = SPAWN[row.kind, event], NEXT[row.kind, event]
    if spawned >= 0:
        begin_slice(s, spawned, row.item, stage, now)
    if following == COMPUTE:
        arrive(s, row.item, stage, now)
    elif row.kind < ACT_READ:
        if following != DONE:
            begin_slice(s, following, row.item, stage, now)
    elif following == ACT_MOVE:
        begin_move(s, following, row.item, stage, now)
    else:  # written on arrival
        _move_done(s, row.item, stage, now)


@outer
def _tell(s, timer, now):
    """Handle the event of a timer: ``(stage, event)``."""
    stage, tells = timer
    if tells == IS_SERVED:
        _served(s, stage, now)
    elif tells == HAS_SEGMENT:
        operand_ready(s, s.traffic.pool.stages[stage].item, stage, now)
    elif tells == HAS_ROOM:
        has_room(s, stage, now)
    else:
        multiplied(s, stage, now)


@outer
def _start(s):
    """Dispatch the hidden vectors and look up the first slices; copies of the step before may still be written."""
    resume_copies(s)
    for die in range(s.machine.dies):
        start_moves(s, DISPATCH, die, NOBODY, 0.0)
    for die in range(s.machine.dies):
        local, row = s.work.local[die], s.traffic.pool.dies[die]
        row.room, row.ask_from = room_for_slices(s.machine), room_to_ask(s.machine)
        row.unasked = local.end_chain - local.next_chain
        ask(s, die, NOBODY, 0.0)


@inner
def _last_to_end(stages, count, copies_too):
    """The stage that ends the step."""
    last = NOBODY
    for stage in range(count):
        if (copies_too or stages[stage].kind != COPY) and (last < 0 or stages[stage].end > stages[last].end):
            last = stage
    return last


@kernel
def run_step(s, ports, fair):
    """Run one step with the rates of `solve_rates`; returns its duration, float64 ns."""
    s, ports = reference(s), reference(ports)
    traffic, pool = s.traffic, s.traffic.pool
    reset(traffic, len(s.work.chains))
    _start(s)
    now, flow_time, share_from = 0.0, np.inf, 0.0
    while True:
        if traffic.net.counts[TOUCHED] > 0 and share_from <= now:
            solve_rates(traffic.net, ports, fair)
            flow_time, share_from = apply_rates(traffic, now), now + traffic.share_every_ns
        elif flow_time <= now:
            flow_time = next_flow_time(pool)
        now = min(next_timer_time(pool), flow_time, share_from if traffic.net.counts[TOUCHED] > 0 else np.inf)
        if now == np.inf:
            break
        if flow_time <= now:
            work_flows(traffic, now)
        while next_timer_time(pool) <= now:
            _tell(s, take_timer(pool), now)
    s.tally.events[0] += pool.count[TIMERS]
    if pool.count[STAGES] == 0:
        return 0.0
    last = _last_to_end(pool.stages, pool.count[STAGES], not s.machine.copies_in_background)
    if s.machine.copies_in_background:
        leave_copies(s, pool.stages[last].end)
    trace_back(pool.stages, s.work, s.tally, last)
    return pool.stages[last].end


class SharedKernel:
    """The strategy ``contention: shared``: runs steps, keeping one network, and one pool that grows as steps need."""

    def __init__(self, machine: Machine, fabric: Fabric, assumptions):
        self._machine = machine
        self._groups = StepNetworks(machine, fabric, assumptions.reads, assumptions.source)
        self._cycles = assumptions.arbitration == "head_of_line"
        self._ranks = None if assumptions.arbitration == "fair" else port_ranks(fabric, self._cycles)
        self._ports: tuple[FlowNetwork | None, Ports] = (None, NO_PORTS)
        self.share_every_ns = share_every_ns(machine, assumptions)  # least time between two recomputes of rates
        self._metered = np.zeros(machine.dies + machine.link_resources)
        self.pool = new_pool(machine, 0, 0)

    def step(self, work: StepWork, memory: Memory, tally: Tally, begin_ns: float) -> float:
        """Run one step; returns its end in ns."""
        chains, moves = len(work.chains), work.moves.size
        stages = STAGES_PER_CHAIN * chains + STAGES_PER_MOVE * moves + self._machine.dies
        if chains > len(self.pool.chains) or stages > len(self.pool.stages):
            self.pool = new_pool(self._machine, 2 * chains, 2 * moves)
        self._work = work
        net, lines, line_of, row_of, flow_of = self._groups.of(work)
        traffic = Traffic(
            self.pool, net, tally.resources, self._metered, lines, line_of, row_of, flow_of,
            self._machine.dies, self.share_every_ns,
        )  # fmt: skip
        state = SharedState(self._machine, work, memory, tally, traffic)
        return begin_ns + run_step(state, self._ports_of(net), self._ranks is None)

    def _ports_of(self, net: FlowNetwork) -> Ports:
        if self._ranks is not None and self._ports[0] is not net:
            self._ports = net, build_ports(net, self._ranks, self._cycles)
        return self._ports[1]

    def log(self, begin_ns: float) -> dict[str, np.ndarray]:
        """Log of the last step; its times count from 0, whenever the step began."""
        stages, waits = self.pool.stages[: self.pool.count[STAGES]], not self._machine.copies_in_background
        return step_log(stages, self._work, 0.0, waits)
