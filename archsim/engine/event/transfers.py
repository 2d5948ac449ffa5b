"""Timers and flows of a step under ``contention: shared``: what is under way, at what rate, and which event it raises
when.

A *timer* raises an event at a known time. A *flow* moves the bytes of a stage through its resources at the rate that
sharing leaves it; rates are constant between recomputes, so its end is known as soon as its rate is. Events are
processed in the order of (time, stage); stages are numbered in order of creation. To this module a stage is a row
with a group, bytes and a latency; what it means is in ``archsim.engine.event.shared``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.base.kernels import inner, outer
from archsim.engine.event.heaps import calendar_pop, calendar_push
from archsim.engine.network.flows import SPENT
from archsim.engine.network.network import FlowNetwork, build_network, enter, leave
from archsim.engine.network.round_robin import UNCOUPLED, rank_links
from archsim.engine.state import UNITS, Machine
from microarch.fabric.fabric import Fabric

NOBODY = np.int64(-1)
STAGES, TIMERS, WAITING, FLOWS = np.arange(4)  # counters: rows used, timers created, timers waiting, flows under way
IS_SERVED, HAS_SEGMENT, IS_COMPUTED = np.arange(3)  # events that a timer raises for its stage
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
        ("group", "i8"),  # of flows, see flow_network
        ("source", "i8"),  # die that an outgoing flow leaves, -1 for flows within a die
        ("item", "i8"),  # chain, or move for the ACT_ states
        ("parent", "i8"),  # stage that created it, -1 at the start of a step
        ("cause", "i8"),  # stage that it had to wait for
        ("next_out", "i8"),  # next stage in the queue of its source (source: queued), -1 if none
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
        ("stage", "i8"),
        ("group", "i8"),
        ("hbm_bound", "i8"),  # whether an HBM is its bottleneck now
    ]
)
CHAIN = np.dtype(
    [
        ("stage", "i8"),  # its compute stage
        ("next", "i8"),  # next in the array's queue
        ("ends_from", "f8"),  # earliest end of its GEMM once the whole slice is there
        ("last", "i8"),  # stage that completed the slice
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
        ("sending", "i8"),  # whether an outgoing flow is under way
        ("first_out", "i8"),  # stage whose flow leaves next (source: queued)
        ("last_out", "i8"),
    ]
)


class Pool(NamedTuple):
    """The step's stages and their queues."""

    stages: np.ndarray  # STAGE[stage]
    timers: np.ndarray  # TIMER[timer]
    calendar: np.ndarray  # int64[timer]: heap of timers
    flows: np.ndarray  # FLOW[flow], the first count[FLOWS] are under way
    chains: np.ndarray  # CHAIN[chain]
    dies: np.ndarray  # DIE[die]: queues for the compute array and for outgoing flows
    count: np.ndarray  # int64[4]


class Traffic(NamedTuple):
    """State of the flows of a step."""

    pool: Pool
    net: FlowNetwork
    resources: np.ndarray  # Tally.resources
    metered: np.ndarray  # float64[network resource]: until when busy and waiting time are counted
    dies: int
    queued: bool  # source: queued


def flow_network(machine: Machine, fabric: Fabric) -> FlowNetwork:
    """The network of HBMs (first) and links with all groups of flows.

    Groups: HBM of a die; then by pair (source · dies + target) slices from an HBM, slices from an LLC, hidden vectors
    (from HBM to HBM).
    """
    dies = fabric.dies
    src, dst = np.divmod(np.arange(dies * dies), dies)
    away = src != dst
    from_llc = dies + fabric.route_links
    from_hbm = np.insert(from_llc, fabric.route_ptr[:-1], src)
    behind = fabric.route_ptr[1:] + np.arange(1, dies * dies + 1)  # end of every route of from_hbm
    hidden = np.insert(from_hbm, behind[away], dst[away])
    length = np.diff(fabric.route_ptr)
    lengths = np.concatenate([np.ones(dies, np.int64), length + 1, length, length + 1 + away])
    route_ptr = np.concatenate([[0], np.cumsum(lengths)])
    routes = np.concatenate([np.arange(dies), from_hbm, from_llc, hidden])
    capacity = np.concatenate([np.full(dies, machine.hbm_bytes_per_ns), machine.link_rates])
    return build_network(capacity, route_ptr, routes)


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
    """An empty pool for steps of at most ``chains`` chains and ``moves`` moves (dispatch and combine together)."""
    stages = STAGES_PER_CHAIN * chains + STAGES_PER_MOVE * moves
    return Pool(
        stages=np.zeros(stages, STAGE),
        timers=np.zeros(TIMERS_PER_STAGE * stages, TIMER),
        calendar=np.zeros(TIMERS_PER_STAGE * stages, np.int64),
        flows=np.zeros(2 * chains + moves, FLOW),
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
        row.first = row.last = row.running = row.latest = row.first_out = row.last_out = NOBODY
        row.sending = 0
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


@outer
def start_flow(t, stage, now):
    """Start the flow of a stage; the stage is served ``latency`` after its last byte."""
    row = t.pool.stages[stage]
    flow = t.pool.flows[t.pool.count[FLOWS]]
    t.pool.count[FLOWS] += 1
    flow.start, flow.rate, flow.left, flow.since, flow.size = now, 0.0, row.bytes, 0.0, row.bytes
    flow.goal, flow.takes, flow.stage, flow.group, flow.hbm_bound = (
        row.bytes - row.first_bytes,
        np.inf,
        stage,
        row.group,
        0,
    )
    _meter(t, row.group, now, np.int64(row.bytes))
    enter(t.net, row.group)


@outer
def send(t, stage, now):
    """Start an outgoing flow at once, or queue it behind the others of its die (``source: queued``)."""
    source = t.pool.dies[t.pool.stages[stage].source]
    if not t.queued or not source.sending:
        source.sending = 1
        start_flow(t, stage, now)
        return
    t.pool.stages[stage].next_out = NOBODY
    if source.first_out < 0:
        source.first_out = stage
    else:
        t.pool.stages[source.last_out].next_out = stage
    source.last_out = stage


@inner
def _end_flow(t, index, now):
    """Remove a flow from the network; the last row takes its place. A flow that waited for it may start."""
    flow = t.pool.flows[index]
    row, group = t.pool.stages[flow.stage], flow.group
    if flow.hbm_bound:
        row.hbm_ns += now - (flow.start + flow.since)
    served = max(flow.start + (flow.takes + row.latency), row.time + row.least_ns + row.latency)
    set_timer(t.pool, flow.stage, served, IS_SERVED)
    _meter(t, group, now, np.int64(0))
    leave(t.net, group)
    t.pool.count[FLOWS] -= 1
    t.pool.flows[index] = t.pool.flows[t.pool.count[FLOWS]]
    if t.queued and row.source >= 0:
        source = t.pool.dies[row.source]
        following = source.first_out
        source.sending = following >= 0
        if following >= 0:
            source.first_out = t.pool.stages[following].next_out
            start_flow(t, following, now)


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
            set_timer(t.pool, flow.stage, flow.start + (flow.takes + latency), HAS_SEGMENT)
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
