"""Timers and flows of a step under ``contention: shared``: what is under way, at what rate, and which event it raises
when.

A *timer* raises an event at a known time. A *flow* moves the bytes of a stage through its resources at the rate that
sharing leaves it; rates are constant between recomputes, so its end is known as soon as its rate is. Events are
processed in the order of (time, stage); stages are numbered in order of creation. To this module a stage is a row
with a group, bytes and a latency; what it means is in ``archsim.engine.event.shared``.
"""

import numpy as np

from archsim.base import compiled
from archsim.engine.event.heaps import bookings_pop, bookings_push, time_bits, time_of
from archsim.engine.flows import network
from archsim.engine.flows.simulation import SPENT
from archsim.engine.state import UNITS

NOBODY = np.int64(-1)
STAGES, TIMERS, WAITING, FLOWS = np.arange(4)  # counters: rows used, timers created, timers waiting, flows under way
IS_SERVED, HAS_SEGMENT, IS_COMPUTED, HAS_ROOM = np.arange(4)  # events that a timer raises for its stage
TELLS_BITS = np.int64(2)  # of a timer's number: which event; the others are its stage, which alone decides ties
TIE_BITS = np.int64(-1) << TELLS_BITS
# (port-fair rates settle to 1e-4) a resource with more than this share of its capacity left is not a bottleneck
UNSATURATED = 1e-3
ROUNDING = 1e-9  # of a time, more than its sums are off


@compiled.outer
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


@compiled.outer
def set_timer(pool, stage, time, tells):
    """Raise the event ``tells`` for the stage at ``time``."""
    pool.count[TIMERS] += 1
    timer = time_bits(time), np.int64(stage) << TELLS_BITS | tells
    pool.count[WAITING] = bookings_push(pool.calendar, pool.count[WAITING], timer, TIE_BITS)


@compiled.inner
def next_timer_time(pool):
    """Time of the next timer; infinity if none waits."""
    return time_of(pool.calendar[0].time_bits) if pool.count[WAITING] > 0 else np.inf


@compiled.inner
def take_timer(pool):
    """Remove the next timer from the calendar; returns its stage and its event."""
    (_, timer), pool.count[WAITING] = bookings_pop(pool.calendar, pool.count[WAITING], TIE_BITS)
    return timer >> TELLS_BITS, timer & ~TIE_BITS


@compiled.inner
def _tally_row(dies, r):
    """Row of ``archsim.engine.state.Tally.resources`` of a network resource: HBMs come first, then links."""
    return r + dies if r < dies else r + (UNITS - 1) * dies


@compiled.inner
def _meter(t, group, now, n_bytes):
    """Count busy and waiting time of the group's resources up to now, and the bytes about to pass them."""
    for position in range(t.net.groups[group].first, t.net.groups[group].end):
        r = t.net.routes[position]
        load, row = t.net.resources[r].load, t.resources[_tally_row(t.dies, r)]
        if load > 0:
            row.busy_ns += now - t.metered[r]
            row.wait_ns += (load - 1) * (now - t.metered[r])
        row.bytes += n_bytes
        t.metered[r] = now


@compiled.inner
def _expect(pool, index):
    """Note when the flow's next event comes, and before when it cannot: `_is_due` is asked from then on."""
    flow, rate = pool.flows[index], pool.rates[index]
    ends = flow.start + flow.takes
    pool.ends[index] = pool.not_before[index] = ends
    if rate > 0.0:
        pool.not_before[index] = ends - (2.0 * SPENT * flow.size / rate + ROUNDING * ends)


@compiled.inner
def _begin_bytes(t, index, stage, now):
    """The flow now moves the bytes of this stage, at the rate that it has."""
    flow, rate, row = t.pool.flows[index], t.pool.rates[index], t.pool.stages[stage]
    flow.start, flow.left, flow.since, flow.size = now, row.bytes, 0.0, row.bytes
    flow.goal, flow.stage = row.bytes - row.first_bytes, stage
    flow.takes = (flow.left - flow.goal) / rate if rate > 0.0 else np.inf
    _expect(t.pool, index)
    _meter(t, row.group, now, np.int64(row.bytes))


@compiled.outer
def _start_flow(t, stage, now):
    index, group = t.pool.count[FLOWS], t.pool.stages[stage].group
    t.pool.count[FLOWS] += 1
    t.pool.groups[index], t.pool.rates[index], t.pool.flows[index].hbm_bound = group, 0.0, 0
    t.flow_of[group] += index
    _begin_bytes(t, index, stage, now)
    network.enter(t.net, group)


@compiled.outer
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


@compiled.inner
def _next_in_line(t, group, before, now):
    """Take the stage whose flow starts as that of ``before`` ends; -1: none. It waited for its first resource."""
    if t.line_of[group] < 0:
        return NOBODY
    line = t.lines[t.line_of[group]]
    stage = line.first
    if stage < 0:
        line.busy = 0
        return NOBODY
    row = t.pool.stages[stage]
    line.first = row.next_in_line
    first = t.net.routes[t.net.groups[row.group].first]
    t.resources[_tally_row(t.dies, first)].wait_ns += now - row.time
    row.time, row.bound_from, row.cause = now, now, before
    return stage


@compiled.inner
def _end_flow(t, index, now):
    """The flow ends. If the next in its line takes the same way, it continues at its rate; else the flow leaves."""
    pool, flow = t.pool, t.pool.flows[index]
    stage, group = flow.stage, np.int64(pool.groups[index])
    row = pool.stages[stage]
    if flow.hbm_bound:
        row.hbm_ns += now - (flow.start + flow.since)
    served = max(flow.start + (flow.takes + row.latency), row.time + row.least_ns + row.latency)
    set_timer(pool, stage, served, IS_SERVED)
    following = _next_in_line(t, group, stage, now)
    if following >= 0 and pool.stages[following].group == group:
        _begin_bytes(t, index, following, now)
        return
    _meter(t, group, now, np.int64(0))
    network.leave(t.net, group)
    pool.count[FLOWS] -= 1
    last = pool.count[FLOWS]
    t.flow_of[group] -= index
    t.flow_of[pool.groups[last]] += index - last
    pool.flows[index], pool.groups[index], pool.rates[index] = pool.flows[last], pool.groups[last], pool.rates[last]
    pool.ends[index], pool.not_before[index] = pool.ends[last], pool.not_before[last]
    if following >= 0:
        _start_flow(t, following, now)


@compiled.inner
def _is_due(pool, index, now):
    """Whether a flow has reached its goal, or has less left than rounding."""
    flow = pool.flows[index]
    return flow.start + flow.takes <= now or (flow.takes - (now - flow.start)) * pool.rates[index] <= SPENT * flow.size


@compiled.outer
def work_flows(t, now):
    """Process flows that have reached their goal: the first segment has arrived, or the last byte."""
    index = 0
    while index < t.pool.count[FLOWS]:
        if t.pool.not_before[index] > now or not _is_due(t.pool, index, now):
            index += 1
            continue
        flow = t.pool.flows[index]
        if flow.goal > 0.0:
            latency = t.pool.stages[flow.stage].latency
            set_timer(t.pool, flow.stage, flow.start + (flow.takes + latency), HAS_SEGMENT)
            flow.goal = 0.0
            flow.takes = flow.since + flow.left / t.pool.rates[index]
            _expect(t.pool, index)
        else:
            _end_flow(t, index, now)


@compiled.inner
def _hbm_is_bottleneck(net, group, dies):
    """Whether an HBM limits the group: by the solver, or a saturated HBM and no saturated link of the route."""
    if net.groups[group].bottleneck >= 0:
        return net.groups[group].bottleneck < dies
    tight = False
    for position in range(net.groups[group].first, net.groups[group].end):
        r = net.routes[position]
        if net.resources[r].left <= UNSATURATED * net.resources[r].capacity:
            if r >= dies:
                return False
            tight = True
    return tight


@compiled.inner
def _change_rate(t, index, now):
    flow, rate = t.pool.flows[index], t.net.groups[t.pool.groups[index]].rate
    elapsed = now - flow.start
    if flow.hbm_bound:
        t.pool.stages[flow.stage].hbm_ns += elapsed - flow.since
    flow.left = max(0.0, flow.left - t.pool.rates[index] * (elapsed - flow.since))
    flow.since, t.pool.rates[index] = elapsed, rate
    flow.takes = flow.since + max(0.0, flow.left - flow.goal) / rate
    flow.hbm_bound = np.int64(_hbm_is_bottleneck(t.net, np.int64(t.pool.groups[index]), t.dies))
    _expect(t.pool, index)


@compiled.outer
def apply_rates(t, now):
    """Update the flows whose rate has changed. Returns the time of the next event of any flow."""
    changed, several = np.int64(0), False
    for i in range(t.net.counts[network.FOUND]):  # without a branch, which no processor could foresee
        group = t.net.lists[network.RECOMPUTED, compiled.unsigned(i)]
        row = t.net.groups[group]
        index = t.flow_of[group] * (row.weight == 1)  # the sum of several numbers may lie beyond the pool
        t.pool.changed[compiled.unsigned(changed)] = index
        changed += (row.weight == 1) & (row.rate != t.pool.rates[compiled.unsigned(index)])
        several |= row.weight > 1
    if several:
        changed = _all_changed(t)
    for i in range(changed):
        _change_rate(t, t.pool.changed[compiled.unsigned(i)], now)
    return next_flow_time(t.pool)


@compiled.outer
def _all_changed(t):
    """List all flows whose rate has changed; returns their number."""
    changed = np.int64(0)
    for index in range(t.pool.count[FLOWS]):
        t.pool.changed[compiled.unsigned(changed)] = index
        changed += t.net.groups[t.pool.groups[index]].rate != t.pool.rates[index]
    return changed


@compiled.inner
def next_flow_time(pool):
    """Time of the next event of any flow; infinity if none is under way."""
    soonest = time_bits(np.inf)
    for index in range(pool.count[FLOWS]):  # of integers, as processors take the least of several at once
        soonest = min(soonest, time_bits(pool.ends[index]))
    return time_of(soonest)
