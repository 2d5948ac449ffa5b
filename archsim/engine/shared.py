"""``contention: shared``: transfers share links and HBM; rates change when a transfer starts or ends.

The same requests go through the same table (``microarch.request``) as under ``reserved``; what differs is how a stage is
served:

============ ==========================================================================================================
LOOKUP       the LLC answers after its hit or miss latency (its port is pipelined)
LOCAL_HBM    a flow through the die's HBM; HBM latency is added at its end
REQUEST      hops and 16 bytes at link speed, as latency: too small to take part in sharing
REMOTE_LLC   the home's LLC answers after its hit latency
REMOTE_HBM   the home's HBM answers after its latency; the read itself is part of DATA
DATA         one flow through the home's HBM (not after REMOTE_LLC) and all links of the route; hop latency at its end
COMPUTE      the array takes slices in the order in which their first segment is there, one at a time; it may start then
             and cannot end before the last segment is there
LLC_FILL     the write latency, after the slice has left a remote HBM at full rate
COPY         a flow through the die's HBM
ACT_READ     HBM latency of the source; a flow through its HBM if the vectors stay on the die
ACT_MOVE     one flow through both HBMs and all links of the route
ACT_WRITE    nothing more: the write was part of the move
============ ==========================================================================================================

``source: queued`` lets a die have one outgoing flow at a time. Times are counted from the begin of the step.
Events are worked in the order of (time, sequence); all that starts or ends at one instant is recomputed once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from archsim.engine.fair import fair_rates
from archsim.engine.flows import SPENT
from archsim.engine.heaps import calendar_pop, calendar_push
from archsim.engine.network import STAMP, TOUCHED, FlowNetwork, build_network, enter, leave
from archsim.engine.round_robin import build_ports, round_robin_rates, xy_rank
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
    awaits_tokens,
    count_arrived,
    count_computed,
    hold,
    inner,
    kernel,
    move_of,
    outer,
)
from archsim.engine.steplog import step_log
from microarch import atu, hbm, llc, pdu
from microarch.blocks import NEXT, SPAWN
from microarch.fsm import codes
from microarch.mesh import Mesh
from microarch.request import Event, State

LOOKUP, LOCAL_HBM, REQUEST, REMOTE_LLC, REMOTE_HBM, DATA, COMPUTE, LLC_FILL, COPY, ACT_READ, ACT_MOVE, ACT_WRITE, DONE = (
    codes(State)
)
SERVED, HIT, MISS, HERE, AWAY, KEEP = codes(Event)
NOBODY = np.int64(-1)
STAGES, TIMERS, WAITING, FLOWS = 0, 1, 2, 3  # counters: rows used, timers created, timers waiting, flows under way
IS_SERVED, HAS_SEGMENT, IS_COMPUTED = np.int64(0), np.int64(1), np.int64(2)  # what a timer tells
STAGES_PER_CHAIN, STAGES_PER_MOVE = 9, 4
TIMERS_PER_STAGE = 2
UNSATURATED = 1e-9  # a resource with more than this part of its capacity left is not a bottleneck

STAGE = np.dtype(
    [
        ("time", "f8"),  # start
        ("end", "f8"),
        ("bound_from", "f8"),  # since when it was what the step waited for; before that it was its cause
        ("hbm_ns", "f8"),  # time in which an HBM, not a link, limited its flow
        ("item", "i8"),  # chain, or move for the ACT_ states
        ("parent", "i8"),  # stage that created it, -1 at the start of a step
        ("cause", "i8"),  # stage that it had to wait for
        ("next_out", "i8"),  # behind it in the queue of its source (source: queued), -1 if none
        ("kind", "i8"),  # microarch.request.State
        ("event", "i8"),  # outcome of a look-up, known when it starts
    ],
    align=True,
)
TIMER = np.dtype([("time", "f8"), ("tie", "i8"), ("stage", "i8"), ("tells", "i8")], align=True)
FLOW = np.dtype(
    [
        ("start", "f8"),
        ("rate", "f8"),  # bytes/ns
        ("left", "f8"),  # bytes at the last change of rate
        ("since", "f8"),  # time of that change, from the start
        ("goal", "f8"),  # bytes left at the next thing to tell: first segment there, or 0
        ("takes", "f8"),  # time of that, from the start
        ("size", "f8"),
        ("latency", "f8"),  # added at the end
        ("stage", "i8"),
        ("group", "i8"),
        ("hbm_bound", "i8"),  # whether an HBM is its bottleneck now
    ],
    align=True,
)
CHAIN = np.dtype(
    [("stage", "i8"), ("next", "i8"), ("data", "i8"), ("arrived", "i8"), ("computed", "i8")], align=True
)  # compute stage, next in the array's queue, stage that brought the slice; whether the slice is there, and computed
DIE = np.dtype(
    [
        ("first", "i8"),  # chain that the compute array takes next, -1 if none waits
        ("last", "i8"),
        ("running", "i8"),  # chain that it works on
        ("latest", "i8"),  # stage that it worked on last
        ("sending", "i8"),  # whether an outgoing flow is under way
        ("first_out", "i8"),  # stage whose flow leaves next (source: queued)
        ("last_out", "i8"),
    ]
)


class Pool(NamedTuple):
    """The step's stages and what waits for what."""

    stages: np.ndarray  # STAGE[stage]
    timers: np.ndarray  # TIMER[timer]
    calendar: np.ndarray  # int64[timer]: heap of timers
    flows: np.ndarray  # FLOW[flow], the first count[FLOWS] are under way
    chains: np.ndarray  # CHAIN[chain]
    dies: np.ndarray  # DIE[die]: who waits for the compute array, and to leave
    metered: np.ndarray  # float64[resource]: until when busy and waiting time are counted
    count: np.ndarray  # int64[4]


class Run(NamedTuple):
    """All that the kernels of a step work on."""

    machine: Machine
    work: Work
    memory: Memory
    tally: Tally
    pool: Pool
    net: FlowNetwork
    queued: bool  # source: queued


@inner
def _entry(s, chain):
    return s.work.entries[chain // SLICES]


@inner
def _set_timer(s, stage, time, tells):
    timer = s.pool.count[TIMERS]
    s.pool.count[TIMERS] += 1
    row = s.pool.timers[timer]
    row.time, row.tie, row.stage, row.tells = time, timer, stage, tells
    s.pool.count[WAITING] = calendar_push(s.pool.calendar, s.pool.count[WAITING], timer, s.pool.timers)


@inner
def _meter(s, group, now):
    """Count busy and waiting time of the group's resources up to now."""
    for position in range(s.net.groups[group].first, s.net.groups[group + 1].first):
        r = s.net.positions[position].resource
        load = s.net.resources[r].load
        if load > 0:
            resource = s.tally.resources[_tally_row(s.machine.dies, r)]
            resource.busy_ns += now - s.pool.metered[r]
            resource.wait_ns += (load - 1) * (now - s.pool.metered[r])
        s.pool.metered[r] = now


@inner
def _tally_row(dies, r):
    """Row of ``Tally.resources`` of a network resource: HBMs come first there, then links."""
    return r + dies if r < dies else r + (UNITS - 1) * dies


@outer
def _start_flow(s, stage, group, n_bytes, first_bytes, latency, now):
    """Let ``n_bytes`` flow; the stage is served ``latency`` after the last of them."""
    flow = s.pool.flows[s.pool.count[FLOWS]]
    s.pool.count[FLOWS] += 1
    flow.start, flow.rate, flow.left, flow.since, flow.size = now, 0.0, n_bytes, 0.0, n_bytes
    flow.goal = n_bytes - first_bytes
    flow.takes, flow.latency, flow.stage, flow.group, flow.hbm_bound = np.inf, latency, stage, group, 0
    _meter(s, group, now)
    for position in range(s.net.groups[group].first, s.net.groups[group + 1].first):
        r = _tally_row(s.machine.dies, s.net.positions[position].resource)
        s.tally.resources[r].bytes += int(n_bytes)
    enter(s.net, group)


@inner
def _data_group(s, die, home, from_llc):
    """Flow groups: HBM of a die; then by pair (source, target): slices from HBM, slices from LLC, hidden vectors."""
    dies = s.machine.dies
    return dies + (dies * dies if from_llc else 0) + home * dies + die


@outer
def _send(s, stage, now):
    """Start the outgoing flow of a DATA or ACT_MOVE stage."""
    row = s.pool.stages[stage]
    dies = s.machine.dies
    if row.kind == DATA:
        entry = _entry(s, row.item)
        hops = s.machine.hops[entry.home, entry.die]
        from_llc = s.pool.stages[row.parent].kind == REMOTE_LLC
        group = _data_group(s, entry.die, entry.home, from_llc)
        _start_flow(s, stage, group, s.machine.slice_bytes, s.machine.first_bytes, hops * s.machine.hop_ns, now)
    else:
        move = move_of(s.work, row.item)
        hops = s.machine.hops[move.src, move.dst]
        group = dies + 2 * dies * dies + move.src * dies + move.dst
        _start_flow(s, stage, group, move.bytes, move.bytes, hops * s.machine.hop_ns, now)


@inner
def _source_of(s, stage):
    row = s.pool.stages[stage]
    return _entry(s, row.item).home if row.kind == DATA else move_of(s.work, row.item).src


@inner
def _send_or_queue(s, stage, now):
    """An outgoing flow starts at once, or behind the others of its die (source: queued)."""
    source = s.pool.dies[_source_of(s, stage)]
    if not s.queued or not source.sending:
        source.sending = 1
        _send(s, stage, now)
        return
    s.pool.stages[stage].next_out = NOBODY
    if source.first_out < 0:
        source.first_out = stage
    else:
        s.pool.stages[source.last_out].next_out = stage
    source.last_out = stage


@inner
def _count_hops(s, what, hops, n_bytes):
    s.tally.hops[what, 0] += hops
    s.tally.hops[what, 1] += hops * n_bytes


@inner
def _request(s, entry):
    """Latency of a command to the home; its bytes are counted on the links that it passes."""
    hops, n_bytes = s.machine.hops[entry.die, entry.home], s.machine.request_bytes
    _count_hops(s, REQUESTS, hops, n_bytes)
    route = UNITS * s.machine.dies + entry.die * s.machine.dies + entry.home
    for i in range(s.machine.group_ptr[route], s.machine.group_ptr[route + 1]):
        s.tally.resources[s.machine.group_resources[i]].bytes += n_bytes
    return hops * s.machine.hop_ns + n_bytes / s.machine.link_bytes_per_ns


@inner
def _new_stage(s, kind, item, parent, now):
    stage = s.pool.count[STAGES]
    s.pool.count[STAGES] += 1
    row = s.pool.stages[stage]
    row.kind, row.item, row.parent, row.cause, row.event = kind, item, parent, parent, SERVED
    row.time = row.bound_from = now
    row.end, row.hbm_ns = now, 0.0
    return stage


@outer
def _begin_move(s, kind, item, parent, now):
    """Begin a stage of a bundle of hidden vectors."""
    stage = _new_stage(s, kind, item, parent, now)
    move = move_of(s.work, item)
    if kind == ACT_READ:
        s.tally.dies[move.src].activation_bytes += move.bytes
        if move.src == move.dst:
            s.pool.stages[stage].event = HERE
            _start_flow(s, stage, move.src, move.bytes, move.bytes, s.machine.hbm_latency_ns, now)
        else:
            _set_timer(s, stage, now + s.machine.hbm_latency_ns, IS_SERVED)
    elif kind == ACT_MOVE:
        _count_hops(s, HIDDEN, s.machine.hops[move.src, move.dst], move.bytes)
        s.tally.moved_bytes[0] += move.bytes
        s.tally.dies[move.dst].activation_bytes += move.bytes
        _send_or_queue(s, stage, now)


@outer
def _begin_slice(s, kind, item, parent, now):
    """Begin a stage of a weight slice, COMPUTE excepted."""
    stage = _new_stage(s, kind, item, parent, now)
    row, machine, entry = s.pool.stages[stage], s.machine, _entry(s, item)
    if kind == LOOKUP:
        row.event = atu.look_up(s.memory.llc_tags, s.memory.copies, entry, entry.key + item % SLICES)
        s.tally.llc_hits[0] += row.event == HIT
        _set_timer(s, stage, now + (machine.llc_hit_ns if row.event == HIT else machine.llc_miss_ns), IS_SERVED)
    elif kind == LOCAL_HBM:
        s.tally.dies[entry.die].local_read_bytes += entry.read_bytes
        first = min(machine.first_bytes, entry.read_bytes) if machine.first_bytes < machine.slice_bytes else entry.read_bytes
        _start_flow(s, stage, entry.die, entry.read_bytes, first, machine.hbm_latency_ns, now)
    elif kind == REQUEST:
        _set_timer(s, stage, now + _request(s, entry), IS_SERVED)
    elif kind == REMOTE_LLC:
        s.tally.llc_hits[1] += 1
        _set_timer(s, stage, now + machine.llc_hit_ns, IS_SERVED)
    elif kind == REMOTE_HBM:
        s.tally.dies[entry.home].remote_read_bytes += machine.slice_bytes
        _set_timer(s, stage, now + machine.hbm_latency_ns, IS_SERVED)
    elif kind == DATA:
        _count_hops(s, DATA_MESSAGES, machine.hops[entry.home, entry.die], machine.slice_bytes)
        _send_or_queue(s, stage, now)
    elif kind == LLC_FILL:
        reading_ns = machine.slice_bytes / machine.hbm_bytes_per_ns if s.pool.stages[parent].kind == REMOTE_HBM else 0.0
        _set_timer(s, stage, now + (reading_ns + machine.llc_write_ns), IS_SERVED)
    else:
        _start_flow(s, stage, entry.die, machine.slice_bytes, machine.slice_bytes, machine.hbm_latency_ns, now)


@inner
def _begin(s, kind, item, parent, now):
    if kind >= ACT_READ:
        _begin_move(s, kind, item, parent, now)
    else:
        _begin_slice(s, kind, item, parent, now)


@inner
def _start_array(s, die, now):
    """The compute array, if idle, takes the next slice."""
    array = s.pool.dies[die]
    if array.running >= 0 or array.first < 0:
        return
    chain = array.first
    array.first, array.running = s.pool.chains[chain].next, chain
    stage = s.pool.chains[chain].stage
    row = s.pool.stages[stage]
    if now > row.time:
        row.cause = array.latest
    row.time = row.bound_from = now
    array.latest = stage
    _set_timer(s, stage, now + _entry(s, chain).compute_ns, IS_COMPUTED)


@outer
def _queue_compute(s, chain, parent, now):
    """The slice's first segment is there, and its tokens: it waits for the array, behind those that came before."""
    stage = _new_stage(s, COMPUTE, chain, parent, now)
    die = _entry(s, chain).die
    array = s.pool.dies[die]
    s.pool.chains[chain].stage, s.pool.chains[chain].next = stage, NOBODY
    if array.first < 0:
        array.first = chain
    else:
        s.pool.chains[array.last].next = chain
    array.last = chain
    _start_array(s, die, now)


@outer
def _operand_ready(s, chain, parent, now):
    """The first segment is there: on to the array, or wait for dispatched tokens behind those that wait already."""
    entry = _entry(s, chain)
    if entry.routed and awaits_tokens(s.work, entry.die):
        hold(s.work, entry.die, chain)
    else:
        _queue_compute(s, chain, parent, now)


@outer
def _release_held(s, die, parent, now):
    """The die's tokens have arrived."""
    chain = s.work.local[die].held
    s.work.local[die].held = NOBODY
    while chain >= 0:
        following = s.work.held[chain].next
        _queue_compute(s, chain, parent, now)
        chain = following


@inner
def _start_chain(s, die, parent, now):
    local = s.work.local[die]
    if local.next_chain < local.end_chain:
        local.next_chain += 1
        _begin_slice(s, LOOKUP, s.work.chains[local.next_chain - 1], parent, now)


@outer
def _start_moves(s, what, die, parent, now):
    """The bundles of hidden vectors that leave a die."""
    columns = s.work.moves.shape[1]
    for column in range(s.work.move_ptr[what, die], s.work.move_ptr[what, die + 1]):
        _begin_move(s, ACT_READ, what * columns + column, parent, now)


@outer
def _computed(s, stage, now):
    """A slice is multiplied: the array takes the next, the Local CP fetches the next, results leave after the last."""
    s.pool.stages[stage].end = now
    chain = s.pool.stages[stage].item
    entry = _entry(s, chain)
    s.pool.dies[entry.die].running = NOBODY
    _start_array(s, entry.die, now)
    _start_chain(s, entry.die, stage, now)
    if entry.routed and count_computed(s.work, entry.die):
        _start_moves(s, COMBINE, entry.die, stage, now)


@inner
def _move_done(s, item, stage, now):
    if item < s.work.moves.shape[1]:
        die = s.work.moves[DISPATCH, item].dst
        if count_arrived(s.work, die):
            _release_held(s, die, stage, now)


@inner
def _outcome(s, row):
    """Event with which a stage ends, and what it changes in caches and copies."""
    if row.kind >= ACT_READ or row.kind == LOOKUP:
        return row.event
    entry = _entry(s, row.item)
    key = entry.key + row.item % SLICES
    if row.kind == REQUEST:
        return HIT if llc.holds(s.memory.llc_tags, entry.home, entry.expert, key) else MISS
    if row.kind == LLC_FILL:
        reader = entry.home if s.pool.stages[row.parent].kind == REMOTE_HBM else entry.die
        llc.store(s.memory.llc_tags, reader, entry.expert, key)
    elif row.kind == COPY:
        if hbm.keep(s.memory.copies, entry.die, key, s.machine.slice_bytes):
            s.tally.dies[entry.die].write_bytes += s.machine.slice_bytes
    elif row.kind == DATA:
        return pdu.decide(s.work.cp_en, s.memory.copies, entry, key)
    return SERVED


@outer
def _arrive(s, chain, stage, now):
    """The whole slice is there. If the array has been waiting for it, it is done."""
    row = s.pool.chains[chain]
    if s.machine.first_bytes == s.machine.slice_bytes or s.pool.stages[stage].kind == LOOKUP:
        _operand_ready(s, chain, stage, now)
    row.arrived = 1
    if row.computed:
        compute = s.pool.stages[row.stage]
        compute.cause, compute.bound_from = stage, now
        _computed(s, row.stage, now)


@outer
def _served(s, stage, now):
    """A stage has ended: what it changes, and what follows, the spawned one first."""
    row = s.pool.stages[stage]
    row.end = now
    kind, item = row.kind, row.item
    event = _outcome(s, row)
    spawned, following = SPAWN[kind, event], NEXT[kind, event]
    if spawned >= 0:
        _begin(s, spawned, item, stage, now)
    if following == COMPUTE:
        _arrive(s, item, stage, now)
    elif following == DONE or following == ACT_WRITE:
        if kind >= ACT_READ:
            _move_done(s, item, stage, now)
    else:
        _begin(s, following, item, stage, now)


@inner
def _tell(s, timer, now):
    row = s.pool.timers[timer]
    if row.tells == IS_SERVED:
        _served(s, row.stage, now)
    elif row.tells == HAS_SEGMENT:
        _operand_ready(s, s.pool.stages[row.stage].item, row.stage, now)
    else:
        chain = s.pool.chains[s.pool.stages[row.stage].item]
        chain.computed = 1
        if chain.arrived:
            _computed(s, row.stage, now)


@inner
def _end_flow(s, index, now):
    """Take a flow off the network; its place is taken by the last one."""
    flow = s.pool.flows[index]
    stage, group = flow.stage, flow.group
    if flow.hbm_bound:
        s.pool.stages[stage].hbm_ns += now - (flow.start + flow.since)
    _set_timer(s, stage, flow.start + (flow.takes + flow.latency), IS_SERVED)
    _meter(s, group, now)
    leave(s.net, group)
    s.pool.count[FLOWS] -= 1
    s.pool.flows[index] = s.pool.flows[s.pool.count[FLOWS]]
    kind = s.pool.stages[stage].kind
    if kind == DATA or kind == ACT_MOVE:
        source = s.pool.dies[_source_of(s, stage)]
        source.sending = 0
        if source.first_out >= 0:
            following = source.first_out
            source.first_out = s.pool.stages[following].next_out
            source.sending = 1
            _send(s, following, now)


@outer
def _work_flows(s, now):
    """Flows that have reached their goal: the first segment is there, or the last byte."""
    index = 0
    while index < s.pool.count[FLOWS]:
        flow = s.pool.flows[index]
        due = flow.start + flow.takes <= now or (flow.takes - (now - flow.start)) * flow.rate <= SPENT * flow.size
        if not due:
            index += 1
        elif flow.goal > 0.0:
            _set_timer(s, flow.stage, flow.start + (flow.takes + flow.latency), HAS_SEGMENT)
            flow.goal = 0.0
            flow.takes = flow.since + flow.left / flow.rate
        else:
            _end_flow(s, index, now)


@inner
def _hbm_is_bottleneck(s, group):
    """Whether an HBM of the flow's route is saturated and no link is."""
    tight = False
    for position in range(s.net.groups[group].first, s.net.groups[group + 1].first):
        r = s.net.positions[position].resource
        if s.net.resources[r].left <= UNSATURATED * s.net.resources[r].capacity:
            if r >= s.machine.dies:
                return False
            tight = True
    return tight


@inner
def _share(s, ports, solve, now):
    """New rates after flows have started or ended; flows whose rate changed are counted anew."""
    solve(s.net, ports)
    stamp = s.net.counts[STAMP]
    for index in range(s.pool.count[FLOWS]):
        flow = s.pool.flows[index]
        if s.net.groups[flow.group].stamp != stamp or s.net.groups[flow.group].rate == flow.rate:
            continue
        elapsed = now - flow.start
        if flow.hbm_bound:
            s.pool.stages[flow.stage].hbm_ns += elapsed - flow.since
        flow.left = max(0.0, flow.left - flow.rate * (elapsed - flow.since))
        flow.since, flow.rate = elapsed, s.net.groups[flow.group].rate
        flow.takes = flow.since + max(0.0, flow.left - flow.goal) / flow.rate
        flow.hbm_bound = 1 if _hbm_is_bottleneck(s, flow.group) else 0


@inner
def _next_flow_time(s):
    soonest = np.inf
    for index in range(s.pool.count[FLOWS]):
        soonest = min(soonest, s.pool.flows[index].start + s.pool.flows[index].takes)
    return soonest


@outer
def _reset(s):
    for i in range(len(s.pool.count)):
        s.pool.count[i] = 0
    for die in range(s.machine.dies):
        row = s.pool.dies[die]
        row.first = row.last = row.running = row.latest = row.first_out = row.last_out = NOBODY
        row.sending = 0
    for chain in range(len(s.work.chains)):
        s.pool.chains[chain].arrived = s.pool.chains[chain].computed = 0
    for r in range(len(s.pool.metered)):
        s.pool.metered[r] = 0.0


@outer
def _start(s):
    """Dispatch the hidden vectors and look up the first slices."""
    for die in range(s.machine.dies):
        _start_moves(s, DISPATCH, die, NOBODY, 0.0)
    for die in range(s.machine.dies):
        local = s.work.local[die]
        for _ in range(min(s.machine.window, local.end_chain - local.next_chain)):
            _start_chain(s, die, NOBODY, 0.0)


@outer
def _trace_back(s, stage):
    """Add the critical path that ends with ``stage`` to ``bound_ns``, by what was being done.

    The part of a transfer in which an HBM was its bottleneck counts as a read.
    """
    until = s.pool.stages[stage].end
    while stage >= 0 and until > 0.0:
        row = s.pool.stages[stage]
        since = max(min(row.bound_from, until), 0.0)
        kind, length = row.kind, until - since
        reading = min(length, row.hbm_ns) if kind == DATA or kind == ACT_MOVE else 0.0
        s.tally.bound_ns[kind] += length - reading
        if reading > 0.0:
            s.tally.bound_ns[REMOTE_HBM if kind == DATA else ACT_READ] += reading
        until = since
        stage = row.cause


@inner
def _run(s, ports, solve):
    """Run one step with the rates of ``solve(net, ports)``; returns how long it takes, float64 ns."""
    _reset(s)
    _start(s)
    now, flow_time = 0.0, np.inf
    while True:
        if s.net.counts[TOUCHED] > 0:
            _share(s, ports, solve, now)
            flow_time = _next_flow_time(s)
        waiting = s.pool.count[WAITING]
        timer_time = s.pool.timers[s.pool.calendar[0]].time if waiting > 0 else np.inf
        if min(timer_time, flow_time) == np.inf:
            break
        now = min(timer_time, flow_time)
        if flow_time <= now:
            _work_flows(s, now)
            flow_time = _next_flow_time(s)
        while s.pool.count[WAITING] > 0 and s.pool.timers[s.pool.calendar[0]].time <= now:
            timer, s.pool.count[WAITING] = calendar_pop(s.pool.calendar, s.pool.count[WAITING], s.pool.timers)
            _tell(s, timer, now)
    s.tally.events[0] += s.pool.count[TIMERS]
    last = 0
    for stage in range(1, s.pool.count[STAGES]):
        if s.pool.stages[stage].end > s.pool.stages[last].end:
            last = stage
    if s.pool.count[STAGES] == 0:
        return 0.0
    _trace_back(s, last)
    return s.pool.stages[last].end


@kernel
def run_fair(s, ports):
    """One step under ``arbitration: fair``."""
    return _run(s, ports, fair_rates)


@kernel
def run_round_robin(s, ports):
    """One step under ``arbitration: round_robin``."""
    return _run(s, ports, round_robin_rates)


def flow_network(machine: Machine, mesh: Mesh) -> tuple[FlowNetwork, np.ndarray]:
    """The network of HBMs and links with all flow groups (``_data_group``), and the XY rank of its resources."""
    dies = mesh.dies
    links = [dies + mesh.route(src, dst) for src in range(dies) for dst in range(dies)]
    pairs = [(src, dst) for src in range(dies) for dst in range(dies)]
    own = [[die] for die in range(dies)]
    from_hbm = [np.concatenate([[src], route]) for (src, _), route in zip(pairs, links)]
    hidden = [[src] if src == dst else np.concatenate([[src], route, [dst]]) for (src, dst), route in zip(pairs, links)]
    routes = [*own, *from_hbm, *links, *hidden]
    route_ptr = np.concatenate([[0], np.cumsum([len(route) for route in routes])])
    capacity = np.repeat([machine.hbm_bytes_per_ns, machine.link_bytes_per_ns], [dies, mesh.links])
    rank = np.concatenate([np.full(dies, -1), xy_rank(mesh)]).astype(np.int32)
    return build_network(capacity, route_ptr, np.concatenate(routes)), rank


def new_pool(machine: Machine, chains: int, moves: int) -> Pool:
    """An empty pool for steps of at most so many chains and moves (dispatch and combine together)."""
    stages = STAGES_PER_CHAIN * chains + STAGES_PER_MOVE * moves
    return Pool(
        stages=np.zeros(stages, STAGE),
        timers=np.zeros(TIMERS_PER_STAGE * stages, TIMER),
        calendar=np.zeros(TIMERS_PER_STAGE * stages, np.int64),
        flows=np.zeros(2 * chains + moves, FLOW),
        chains=np.zeros(chains, CHAIN),
        dies=np.zeros(machine.dies, DIE),
        metered=np.zeros(machine.dies + machine.link_resources),
        count=np.zeros(4, np.int64),
    )


class SharedKernel:
    """The strategy ``contention: shared``: runs steps, keeping one network, and one pool that grows as steps need."""

    def __init__(self, machine: Machine, mesh: Mesh, assumptions):
        self._machine = machine
        self._queued = assumptions.source == "queued"
        self._net, rank = flow_network(machine, mesh)
        if assumptions.arbitration == "round_robin":
            self._run_step, self._ports = run_round_robin, build_ports(self._net, rank)
        else:
            self._run_step, self._ports = run_fair, ()
        self.pool = new_pool(machine, 0, 0)

    def step(self, work: Work, memory: Memory, tally: Tally, begin_ns: float) -> float:
        """Run one step; returns its end in ns."""
        chains, moves = len(work.chains), work.moves.size
        if chains > len(self.pool.chains) or STAGES_PER_CHAIN * chains + STAGES_PER_MOVE * moves > len(self.pool.stages):
            self.pool = new_pool(self._machine, 2 * chains, 2 * moves)
        self._work = work
        run = Run(self._machine, work, memory, tally, self.pool, self._net, self._queued)
        return begin_ns + self._run_step(run, self._ports)

    def log(self, begin_ns: float) -> dict[str, np.ndarray]:
        """What happened in the step that was run last; its times count from 0, whenever it began."""
        return step_log(self.pool.stages[: self.pool.count[STAGES]], self._work, 0.0)
