"""Timers and flows of a step under ``contention: shared``: what is under way, at what rate, and which event it raises
when.

A *timer* raises an event at a known time. A *flow* moves the bytes of a stage through its resources at the rate that
sharing leaves it; rates are constant between recomputes, so its end is known as soon as its rate is. Events are
processed in the order of (time, stage); stages are numbered in order of creation. To this module a stage is a row
with a group, bytes and a latency; what it means is in ``archsim.engine.event.shared``.
"""

from typing import NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.base.kernels import inner, outer
from archsim.engine.event.heaps import calendar_pop, calendar_push
from archsim.engine.network.flows import SPENT
from archsim.engine.network.network import FlowNetwork, enter, leave
from archsim.engine.network.round_robin import UNCOUPLED, rank_links
from archsim.engine.state import UNITS, Machine
from microarch.fabric.fabric import Fabric

NOBODY = np.int64(-1)
STAGES, TIMERS, WAITING, FLOWS = np.arange(4)  # counters: rows used, timers created, timers waiting, flows under way
IS_SERVED, HAS_SEGMENT, IS_COMPUTED, HAS_ROOM = np.arange(4)  # events that a timer raises for its stage
STAGES_PER_CHAIN, STAGES_PER_MOVE, TIMERS_PER_STAGE = 9, 4, 2
# (port-fair rates settle to 1e-4) a resource with more than this share of its capacity left is not a bottleneck
UNSATURATED = 1e-3

STAGE = np.dtype(
    [
        ("time", "f8"),  # start
        ("end", "f8"),
        ("bound_from", "f8"),  # from when on the step waited for this stage; before, for its cause
        ("hbm_ns", "f8"),  # time in which an HBM, not a link, limited its flow
        ("bytes", "f8"),  # of its flow
        ("first_bytes", "f8"),  # their arrival is an event of its own
        ("latency", "f8"),  # added at the flow's end
        ("least_ns", "f8"),  # the flow takes no less, its time in a queue included
        ("group", "i8"),  # of flows, see archsim.engine.event.groups
        ("item", "i8"),  # chain, or move for the ACT_ states
        ("parent", "i8"),  # stage that created it, -1 at the start of a step
        ("cause", "i8"),  # stage that it had to wait for
        ("next_in_line", "i8"),  # -1 if none
        ("kind", "i8"),  # microarch.blocks.request.State
        ("event", "i8"),  # microarch.blocks.request.Event that ends it; a look-up's is known at its start
    ]
)
# tie: the stage, in order of creation
TIMER = np.dtype([("time", "f8"), ("tie", "i8"), ("stage", "i8"), ("tells", "i8")])
FLOW = np.dtype(
    [
        ("start", "f8"),
        ("rate", "f8"),  # bytes/ns
        ("left", "f8"),  # bytes at the last change of rate
        ("since", "f8"),  # time of that change, from the start
        ("goal", "f8"),  # bytes left at the flow's next event: first segment arrived, or 0
        ("takes", "f8"),  # time of that event, from the start
        ("size", "f8"),
        ("stage", "u4"),
        ("group", "u4"),
        ("hbm_bound", "i8"),  # whether an HBM is its bottleneck now
    ]
)
CHAIN = np.dtype(
    [
        ("stage", "i8"),  # its compute stage
        ("next", "i8"),  # next in the array's queue
        ("ready", "f8"),  # from when on its product counts as begun if the array is idle
        ("ends_from", "f8"),  # earliest end of its GEMM
        ("last", "i8"),  # stage that completed the slice
        ("taken", "f8"),  # room that it takes now
        ("arrived", "i8"),  # whether the whole slice is there
        ("computed", "i8"),  # whether its GEMM has run for its full duration
    ]
)
DIE = np.dtype(
    [
        ("first", "i8"),  # chain that the compute array takes next, -1 if none waits
        ("last", "i8"),
        ("running", "i8"),  # chain that it works on
        ("latest", "i8"),  # stage that it worked on last
        ("free", "f8"),  # since when it is idle
        ("begun", "f8"),  # when the product that it works on counts as begun
        ("room", "f8"),  # left for slices, see archsim.engine.state.room_for_slices
        ("ask_from", "f8"),  # room with which it asks for its next slice
        ("unasked", "i8"),  # slices that it has not asked for
    ]
)
LINE = np.dtype(
    [
        ("first", "i8"),  # stage whose flow starts next, -1 if none waits
        ("last", "i8"),
        ("busy", "i8"),  # whether a flow of the line is under way
    ]
)


class Pool(NamedTuple):
    """The step's stages and their queues."""

    stages: np.ndarray  # STAGE[stage]
    timers: np.ndarray  # TIMER[timer]
    calendar: np.ndarray  # uint32[timer]: heap of timers
    flows: np.ndarray  # FLOW[flow], the first count[FLOWS] are under way
    chains: np.ndarray  # CHAIN[chain]
    dies: np.ndarray  # DIE[die]: queues for the compute array
    count: np.ndarray  # int64[4]


class Traffic(NamedTuple):
    """State of the flows of a step."""

    pool: Pool
    net: FlowNetwork
    resources: np.ndarray  # Tally.resources
    metered: np.ndarray  # float64[network resource]: until when busy and waiting time are counted
    lines: np.ndarray  # LINE[line]
    line_of: np.ndarray  # int32[row]: the line in which its flows wait for each other; -1: they do not
    row_of: np.ndarray  # int32[group]: its row in the network
    dies: int


def port_ranks(fabric: Fabric) -> np.ndarray:
    """int32[resource] for ``archsim.engine.network.round_robin``: HBMs are uncoupled, links rise along every route.

    Raises ArchsimError for a fabric whose routes wait for each other in a cycle: the rates of round-robin
    routers then depend on their buffers, which are not modelled.
    """
    try:
        links = rank_links(fabric)
    except ValueError:
        raise ArchsimError(
            f"arbitration: round_robin has no steady state on a fabric of {fabric.name}, whose routes wait for each "
            f"other in a cycle; "
            "use arbitration: fair"
        ) from None
    return np.concatenate([np.full(fabric.dies, UNCOUPLED), links]).astype(np.int32)


def new_pool(machine: Machine, chains: int, moves: int) -> Pool:
    """An empty pool for steps of at most ``chains`` chains and ``moves`` moves (dispatch and combine together), and on
    every die copies that are still to be written.
    """
    stages = STAGES_PER_CHAIN * chains + STAGES_PER_MOVE * moves + machine.dies
    return Pool(
        stages=np.zeros(stages, STAGE),
        timers=np.zeros(TIMERS_PER_STAGE * stages, TIMER),
        calendar=np.zeros(TIMERS_PER_STAGE * stages, np.uint32),
        flows=np.zeros(2 * chains + moves + machine.dies, FLOW),
        chains=np.zeros(chains, CHAIN),
        dies=np.zeros(machine.dies, DIE),
        count=np.zeros(4, np.int64),
    )


@outer
def reset(t, chains):
    """Clear pool and meters for a step of ``chains`` chains."""
    for i in range(len(t.pool.count)):
        t.pool.count[i] = 0
    for die in range(t.dies):
        row = t.pool.dies[die]
        row.first = row.last = row.running = row.latest = NOBODY
        row.free = 0.0
    for chain in range(chains):
        t.pool.chains[chain].arrived = t.pool.chains[chain].computed = 0
    for r in range(len(t.metered)):
        t.metered[r] = 0.0


@outer
def set_timer(pool, stage, time, tells):
    """Raise the event ``tells`` for the stage at ``time``."""
    timer = pool.count[TIMERS]
    pool.count[TIMERS] += 1
    row = pool.timers[timer]
    row.time, row.tie, row.stage, row.tells = time, stage, stage, tells
    pool.count[WAITING] = calendar_push(pool.calendar, pool.count[WAITING], timer, pool.timers)


@inner
def next_timer_time(pool):
    """Time of the next timer; infinity if none waits."""
    return pool.timers[pool.calendar[0]].time if pool.count[WAITING] > 0 else np.inf


@inner
def take_timer(pool):
    """Remove the next timer from the calendar; returns its row."""
    timer, pool.count[WAITING] = calendar_pop(pool.calendar, pool.count[WAITING], pool.timers)
    return timer


@inner
def _tally_row(dies, r):
    """Row of ``Tally.resources`` of a network resource: HBMs come first, then links."""
    return r + dies if r < dies else r + (UNITS - 1) * dies


@inner
def _meter(t, group, now, n_bytes):
    """Count busy and waiting time of the group's resources up to now, and the bytes about to pass them."""
    for position in range(t.net.groups[group].first, t.net.groups[group + 1].first):
        r = t.net.positions[position].resource
        load, row = t.net.resources[r].load, t.resources[_tally_row(t.dies, r)]
        if load > 0:
            row.busy_ns += now - t.metered[r]
            row.wait_ns += (load - 1) * (now - t.metered[r])
        row.bytes += n_bytes
        t.metered[r] = now


@inner
def _begin_bytes(t, flow, stage, now):
    """The flow now moves the bytes of this stage, at the rate that it has."""
    row = t.pool.stages[stage]
    flow.start, flow.left, flow.since, flow.size = now, row.bytes, 0.0, row.bytes
    flow.goal, flow.stage = row.bytes - row.first_bytes, stage
    flow.takes = (flow.left - flow.goal) / flow.rate if flow.rate > 0.0 else np.inf
    _meter(t, row.group, now, np.int64(row.bytes))


@outer
def _start_flow(t, stage, now):
    flow, group = t.pool.flows[t.pool.count[FLOWS]], t.pool.stages[stage].group
    t.pool.count[FLOWS] += 1
    flow.group, flow.rate, flow.hbm_bound = group, 0.0, 0
    _begin_bytes(t, flow, stage, now)
    enter(t.net, group)


@outer
def send(t, stage, now):
    """Start the flow of a stage, or let it wait in its line; the stage is served ``latency`` after its last byte."""
    line_of = t.line_of[t.pool.stages[stage].group]
    if line_of < 0:
        _start_flow(t, stage, now)
        return
    line = t.lines[line_of]
    if not line.busy:
        line.busy = 1
        _start_flow(t, stage, now)
        return
    t.pool.stages[stage].next_in_line = NOBODY
    if line.first < 0:
        line.first = stage
    else:
        t.pool.stages[line.last].next_in_line = stage
    line.last = stage


@inner
def _next_in_line(t, group, before, now):
    """Take the stage whose flow starts as that of stage ``before`` ends; -1 if none waits. Until now it has waited for
    the first resource of its route.
    """
    if t.line_of[group] < 0:
        return NOBODY
    line = t.lines[t.line_of[group]]
    stage = line.first
    if stage < 0:
        line.busy = 0
        return NOBODY
    row = t.pool.stages[stage]
    line.first = row.next_in_line
    first = t.net.positions[t.net.groups[row.group].first].resource
    t.resources[_tally_row(t.dies, first)].wait_ns += now - row.time
    row.time, row.bound_from, row.cause = now, now, before
    return stage


@inner
def _end_flow(t, index, now):
    """The flow ends. If the next one in its line takes the same way, it continues at its rate; else the flow leaves the
    network, and the last row takes its place.
    """
    flow = t.pool.flows[index]
    stage, group = np.int64(flow.stage), np.int64(flow.group)
    row = t.pool.stages[stage]
    if flow.hbm_bound:
        row.hbm_ns += now - (flow.start + flow.since)
    served = max(flow.start + (flow.takes + row.latency), row.time + row.least_ns + row.latency)
    set_timer(t.pool, stage, served, IS_SERVED)
    following = _next_in_line(t, group, stage, now)
    if following >= 0 and t.pool.stages[following].group == group:
        _begin_bytes(t, flow, following, now)
        return
    _meter(t, group, now, np.int64(0))
    leave(t.net, group)
    t.pool.count[FLOWS] -= 1
    t.pool.flows[index] = t.pool.flows[t.pool.count[FLOWS]]
    if following >= 0:
        _start_flow(t, following, now)


@outer
def work_flows(t, now):
    """Process flows that have reached their goal: the first segment has arrived, or the last byte."""
    index = 0
    while index < t.pool.count[FLOWS]:
        flow = t.pool.flows[index]
        due = flow.start + flow.takes <= now or (flow.takes - (now - flow.start)) * flow.rate <= SPENT * flow.size
        if not due:
            index += 1
        elif flow.goal > 0.0:
            latency = t.pool.stages[flow.stage].latency
            set_timer(t.pool, np.int64(flow.stage), flow.start + (flow.takes + latency), HAS_SEGMENT)
            flow.goal = 0.0
            flow.takes = flow.since + flow.left / flow.rate
        else:
            _end_flow(t, index, now)


@inner
def _hbm_is_bottleneck(net, group, dies):
    """Whether an HBM limits the group's flows; if the solver does not report it: an HBM is saturated, and no link of
    the route is.
    """
    if net.groups[group].bottleneck >= 0:
        return net.groups[group].bottleneck < dies
    tight = False
    for position in range(net.groups[group].first, net.groups[group + 1].first):
        r = net.positions[position].resource
        if net.resources[r].left <= UNSATURATED * net.resources[r].capacity:
            if r >= dies:
                return False
            tight = True
    return tight


@outer
def apply_rates(t, now):
    """Update the flows whose rate has changed. Returns the time of the next event of any flow."""
    soonest = np.inf
    for index in range(t.pool.count[FLOWS]):
        flow = t.pool.flows[index]
        group = t.net.groups[flow.group]
        if group.rate != flow.rate:
            elapsed = now - flow.start
            if flow.hbm_bound:
                t.pool.stages[flow.stage].hbm_ns += elapsed - flow.since
            flow.left = max(0.0, flow.left - flow.rate * (elapsed - flow.since))
            flow.since, flow.rate = elapsed, group.rate
            flow.takes = flow.since + max(0.0, flow.left - flow.goal) / flow.rate
            flow.hbm_bound = np.int64(_hbm_is_bottleneck(t.net, flow.group, t.dies))
        soonest = min(soonest, flow.start + flow.takes)
    return soonest


@inner
def next_flow_time(flows, count):
    """Time of the next event of any flow; infinity if none is under way."""
    soonest = np.inf
    for index in range(count):
        soonest = min(soonest, flows[index].start + flows[index].takes)
    return soonest
