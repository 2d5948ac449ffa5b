"""Rates if routers serve their input ports in turn and the flows of a port share one buffer (port-fair, coupled FIFOs).

The capacity of a link is shared max–min among its *input ports*: the links upstream, and the die itself, which is one
input however many flows it sources (its own flows are queued separately and share that input max–min). Inside a port
traffic leaves in the mix in which it arrived, so a flow that is blocked downstream slows all that share its buffer:
the throughput of port q is at most, for every link l that its traffic takes next,

    limit(q) = share of q at l · (all traffic of q) / (the share of q's traffic that goes to l).

Rates follow from shares in travelling order (forward), limits from shares against it (backward), over the acyclic
order that XY routing gives the links; limits are damped, 0.6 old + 0.4 new, until none moves by more than `SETTLED`
of its capacity (rates are then within a few tenths of a percent of the fixed point). Rates are those of the steady
state: what buffers hold when a flow starts or ends is not modelled.

Resources with a rank are coupled as above (links, and injection and ejection ports, which are one FIFO each). Those
with rank -1 (HBM) queue every flow separately: they limit a flow at its source to the level of a max–min fill of the
requested rates, within the same fixed point, and never block others in a buffer.

Where routes wait for each other in a cycle, as around a ring, there is no such order. ``arbitration: head_of_line``
breaks a cycle at one link (`archsim.engine.flows.link_order.ranks_in_cycles`): there, what passes shares the input of
the die, whose flows do not block each other. Rings without deadlock have such a place: two free buffers to inject
(bubble flow control; Puente et al., Adaptive bubble router, ICPP 1999), or a dateline with buffers of its own.

The contract of the incremental recompute is that of `max_min`. All tolerances are relative.
"""

import numpy as np

from archsim.base.compiled import inner, outer
from archsim.engine.flows import max_min, network

KEPT = 0.6  # share of the old limit that damping keeps
SETTLED = 1e-4
MAX_SWEEPS = 200


@outer
def solve_rates(net, ports, fair):
    """`fair_rates`, or else `round_robin_rates`, in one kernel; ``ports``: NO_PORTS where rates are fair."""
    if fair:
        max_min.fair_rates(net, ports)
    else:
        round_robin_rates(net, ports)


@outer
def round_robin_rates(net, ports):
    """Steady-state rates of the touched component; returns its number of groups. See `max_min` for the contract."""
    found = net.counts[network.FOUND] = network.touched_component(net)
    coupled, reached = _collect_resources(net, ports)
    _collect_entries(net, ports)
    for _ in range(MAX_SWEEPS):
        _forward(net, ports, found, coupled, reached)
        moved = max(_backward(net, ports, coupled), _fill_uncoupled(net, ports, coupled, reached))
        if moved <= SETTLED:
            break
    _forward(net, ports, found, coupled, reached)
    _clip_uncoupled(net, ports, coupled, reached)
    _count_left(net, ports, reached)
    return found


@inner
def _collect_resources(net, ports):
    """Resources of the component, with empty ports; returns the numbers of the coupled ones and of all."""
    stamp = net.counts[network.STAMP]
    coupled, reached = 0, 0
    for i in range(len(ports.order)):
        r = ports.order[i]
        if net.resources[r].stamp == stamp:
            buffer = ports.buffers[r]
            buffer.limit = net.resources[r].capacity
            coupled += buffer.coupled
            ports.sweep[reached] = r
            reached += 1
            for k in range(buffer.first_port, ports.buffers[r + 1].first_port):
                ports.ports[k].end_entry = ports.ports[k].first_entry
    return coupled, reached


@inner
def _collect_entries(net, ports):
    """Lay out the component by port. Groups ascend, so that sums, and rates, do not depend on the order of arrival."""
    stamp = net.counts[network.STAMP]
    for group in range(len(net.groups) - 1):
        if net.groups[group].stamp == stamp:
            for p in range(net.groups[group].first, net.groups[group].end):
                port = ports.ports[ports.enters[p]]
                ports.entries[port.end_entry] = group
                port.end_entry += 1


@outer
def _forward(net, ports, found, coupled, reached):
    """Rates from limits, in travelling order. A flow's rate can only fall on its way, so the last is feasible."""
    _limit_sources(net, ports, found, coupled, reached)
    for i in range(coupled):
        r = ports.sweep[i]
        first, last = ports.buffers[r].first_port, ports.buffers[r + 1].first_port
        for k in range(first, last):
            ports.ports[k].asked = _taken(net, ports, k)
        level = _water_level(ports.ports, first, last, ports.buffers[r].limit)
        for k in range(first, last):
            port = ports.ports[k]
            port.granted = min(port.asked, level)
            if port.asked > level:
                if port.upstream < 0:
                    _share_die_input(net, ports, k, level)
                else:
                    _slow_down(net, ports, k, level / port.asked)


@inner
def _taken(net, ports, k):
    """Bytes/ns of all flows that enter by port ``k``."""
    total = 0.0
    for e in range(ports.ports[k].first_entry, ports.ports[k].end_entry):
        group = net.groups[ports.entries[e]]
        total += group.rate * group.weight
    return total


@inner
def _slow_down(net, ports, k, factor):
    for e in range(ports.ports[k].first_entry, ports.ports[k].end_entry):
        net.groups[ports.entries[e]].rate *= factor


@inner
def _limit_sources(net, ports, found, coupled, reached):
    """A flow leaves its source at the least level of the uncoupled resources on its route."""
    for i in range(found):
        ports.source[net.lists[network.RECOMPUTED, i]] = np.inf
    for i in range(coupled, reached):
        buffer = ports.buffers[ports.sweep[i]]
        port = ports.ports[buffer.first_port]
        for e in range(port.first_entry, port.end_entry):
            group = ports.entries[e]
            ports.source[group] = min(ports.source[group], buffer.limit)
    for i in range(found):
        group = net.lists[network.RECOMPUTED, i]
        net.groups[group].rate = ports.source[group]


@inner
def _water_level(ports, first, last, capacity):
    """Max–min level at which the requests of ``ports[first:last]`` fill ``capacity``; infinity if they do not."""
    level, before = 0.0, -1
    while True:
        left, sharing = capacity, 0
        for k in range(first, last):
            if ports[k].asked <= level:
                left -= ports[k].asked
            else:
                sharing += 1
        if sharing == 0:
            return np.inf
        if sharing == before:
            return level
        level = max(level, left / sharing)
        before = sharing


@inner
def _offer(ports, first, last, capacity, k):
    """Share of ``capacity`` that port ``k`` would get if it requested all of it and the others as now."""
    kept = ports[k].asked
    ports[k].asked = np.inf
    level = _water_level(ports, first, last, capacity)
    ports[k].asked = kept
    return level


@outer
def _share_die_input(net, ports, k, granted):
    """Max–min fill of a die's own input ``k``, whose flows are queued separately and may be slower at their source."""
    begin, end = ports.ports[k].first_entry, ports.ports[k].end_entry
    level, before = 0.0, -1
    while True:
        left, sharing = granted, 0
        for e in range(begin, end):
            group = ports.entries[e]
            if ports.source[group] <= level:
                left -= ports.source[group] * net.groups[group].weight
            else:
                sharing += net.groups[group].weight
        if sharing == before or sharing == 0:
            break
        level = max(level, left / sharing)
        before = sharing
    for e in range(begin, end):
        group = ports.entries[e]
        net.groups[group].rate = min(ports.source[group], level)


@outer
def _backward(net, ports, coupled):
    """Limits from shares, against the travelling order; returns the largest move relative to capacity."""
    stamp = net.counts[network.STAMP]
    moved = 0.0
    for i in range(coupled - 1, -1, -1):
        r = ports.sweep[i]
        total = 0.0
        for k in range(ports.buffers[r].first_port, ports.buffers[r + 1].first_port):
            total += ports.ports[k].granted
        new = net.resources[r].capacity
        for i_fed in range(ports.buffers[r].first_fed, ports.buffers[r + 1].first_fed):
            k = ports.ports[i_fed].fed
            after = ports.ports[k].resource
            if net.resources[after].stamp == stamp and ports.ports[k].asked > 0.0:
                first, last = ports.buffers[after].first_port, ports.buffers[after + 1].first_port
                offer = _offer(ports.ports, first, last, ports.buffers[after].limit, k)
                new = min(new, offer * (total / ports.ports[k].asked))
        moved = max(moved, _damp(ports.buffers[r], net.resources[r].capacity, new))
    return moved


@inner
def _fill_uncoupled(net, ports, coupled, reached):
    """Levels of uncoupled resources: a flow that nothing else slows requests all. Returns the largest relative move."""
    moved = 0.0
    for i in range(coupled, reached):
        r = ports.sweep[i]
        capacity, buffer = net.resources[r].capacity, ports.buffers[r]
        port = ports.ports[buffer.first_port]
        level, before = 0.0, -1
        while True:
            left, sharing = capacity, 0
            for e in range(port.first_entry, port.end_entry):
                group = net.groups[ports.entries[e]]
                if group.rate < buffer.limit and group.rate <= level:
                    left -= group.rate * group.weight
                else:
                    sharing += group.weight
            if sharing == before:
                break
            if sharing == 0:
                level = capacity
                break
            level = max(level, left / sharing)
            before = sharing
        moved = max(moved, _damp(buffer, capacity, level))
    return moved


@inner
def _damp(buffer, capacity, new):
    """Move a limit towards its new value; returns the move relative to capacity."""
    move = (1.0 - KEPT) * (new - buffer.limit)
    buffer.limit += move
    return abs(move) / capacity


@inner
def _clip_uncoupled(net, ports, coupled, reached):
    """Scale flows down where the remaining error of the fixed point puts an uncoupled resource over its capacity."""
    for i in range(coupled, reached):
        r = ports.sweep[i]
        capacity, k = net.resources[r].capacity, ports.buffers[r].first_port
        total = _taken(net, ports, k)
        if total > capacity:
            _slow_down(net, ports, k, capacity / total)


@inner
def _count_left(net, ports, reached):
    """Capacity that the flows leave on the resources."""
    for i in range(reached):
        r = ports.sweep[i]
        left = net.resources[r].capacity
        for k in range(ports.buffers[r].first_port, ports.buffers[r + 1].first_port):
            left -= _taken(net, ports, k)
        net.resources[r].left = left
