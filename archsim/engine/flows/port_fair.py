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

=============  ===================  ================================================================================
field          dtype[shape]         meaning
=============  ===================  ================================================================================
``buffers``    BUFFER[resource+1]   limit of a resource, its ports, the ports that it feeds; the last row only ends
                                    them
``ports``      PORT[port]           input ports by resource; an uncoupled resource has one, for all its flows
``enters``     int64[position]      port by which a position enters its resource
``entries``    int64[position]      groups of the component that enter by a port, ascending: from its ``first_entry``
                                    up to its ``end_entry``
``order``      int64[resource]      coupled resources by rank, then the uncoupled ones
``sweep``      int64[resource]      those of the component, in this order
``source``     float64[group]       rate at which a flow leaves its source
=============  ===================  ================================================================================

Where routes wait for each other in a cycle, as around a ring, there is no such order. ``arbitration: head_of_line``
breaks a cycle at one link (`ranks_in_cycles`): there, what passes shares the input of the die, whose flows do not
block each other. Rings without deadlock have such a place: two free buffers to inject (bubble flow control; Puente et
al., Adaptive bubble router, ICPP 1999), or a dateline with buffers of its own.

The contract of the incremental recompute is that of `max_min`. All tolerances are relative.
"""

from typing import NamedTuple

import numpy as np

from archsim.base.compiled import inner, outer
from archsim.engine.flows import max_min, network
from microarch.fabric.fabric import Graph, link_rank

UNCOUPLED = -1
KEPT = 0.6  # share of the old limit that damping keeps
SETTLED = 1e-4
MAX_SWEEPS = 200

BUFFER = np.dtype(
    [
        ("limit", "f8"),  # throughput of the port's buffer; level of an uncoupled resource
        ("first_port", "i8"),
        ("first_fed", "i8"),  # start of the ports that it feeds in ``ports.fed``
        ("coupled", "i8"),
    ],
    align=True,
)
PORT = np.dtype(
    [
        ("asked", "f8"),  # rate that arrives at the port
        ("granted", "f8"),
        ("resource", "i8"),  # resource that the port belongs to
        ("upstream", "i8"),  # resource that feeds the port; -1: the die itself
        ("first_entry", "i8"),
        ("end_entry", "i8"),
        ("fed", "i8"),  # a separate list: ports with an upstream resource, sorted by it
    ],
    align=True,
)


class Ports(NamedTuple):
    """Input ports of the coupled resources, and the solver's scratch; see the module's table."""

    buffers: np.ndarray  # BUFFER[resource + 1]
    ports: np.ndarray  # PORT[port]
    enters: np.ndarray  # int64[position]
    entries: np.ndarray  # int64[position]
    order: np.ndarray  # int64[resource]
    sweep: np.ndarray  # int64[resource]
    source: np.ndarray  # float64[group]


NO_ROWS = np.zeros(0, np.int64)


def rank_links(graph: Graph) -> np.ndarray:
    """int32[link]: an order of the links along which every route rises, from 0.

    Raises ValueError where routes wait for each other in a cycle: the rates of round-robin routers then depend on their
    buffers, which are not modelled.
    """
    ports = getattr(graph, "ports", 0)
    if not ports:
        return xy_rank(graph) if graph.kind == "mesh" else link_rank(graph)
    if graph.kind != "mesh":
        return link_rank(graph)
    rank = xy_rank(graph)[:-ports] + 1
    out, into = np.zeros(ports // 2, np.int32), np.full(ports // 2, rank.max(initial=0) + 1, np.int32)
    return np.concatenate([rank, out, into])


def xy_rank(mesh: Graph) -> np.ndarray:
    """int32[link]: an order of a mesh's links along which every XY route rises, from 0."""
    if mesh.x_of is None or mesh.y_of is None:
        raise ValueError(f"a {mesh.kind} has no columns and rows")
    x, y = int(mesh.x_of.max()) + 1, int(mesh.y_of.max()) + 1
    from_x, from_y = mesh.x_of[mesh.link_src], mesh.y_of[mesh.link_src]
    step_x, step_y = mesh.x_of[mesh.link_dst] - from_x, mesh.y_of[mesh.link_dst] - from_y
    along_x = np.where(step_x > 0, from_x, x - 1 - from_x)
    along_y = x + np.where(step_y > 0, from_y, y - 1 - from_y)
    return np.where(step_x != 0, along_x, along_y).astype(np.int32)


def ranks_in_cycles(graph: Graph) -> np.ndarray:
    """int32[link]: an order of the links that every route follows, but for one step of every cycle of routes: where all
    links that are left wait for others, that with the lowest number comes first.
    """
    first, same = graph.route_links[:-1], np.ones(max(0, len(graph.route_links) - 1), bool)
    same[graph.route_ptr[(graph.route_ptr > 0) & (graph.route_ptr < len(graph.route_links))] - 1] = False
    pairs = np.unique(np.stack([first[same], graph.route_links[1:][same]], axis=1).astype(np.int64), axis=0)
    waits = np.bincount(pairs[:, 1], minlength=graph.links)
    ptr = np.searchsorted(pairs[:, 0], np.arange(graph.links + 1))
    rank, left = np.full(graph.links, -1, np.int32), np.ones(graph.links, bool)
    for place in range(graph.links):
        free = np.flatnonzero(left & (waits == 0))
        link = int(free[0] if len(free) else np.flatnonzero(left)[0])
        rank[link], left[link] = place, False
        waits[pairs[ptr[link] : ptr[link + 1], 1]] -= 1
    return rank


def build_ports(net: network.FlowNetwork, rank, cycles: bool = False) -> Ports:
    """Input ports for ``rank: int64[resource]`` (-1: uncoupled), which must rise along the coupled part of every route,
    unless there may be ``cycles``.

    Raises ValueError if it does not.
    """
    rank, route_resources = np.asarray(rank, dtype=np.int64), net.routes
    resources, positions = len(net.resources), len(route_resources)
    keys = route_resources * (resources + 1) + _upstream(net, rank, cycles) + 1
    keys, enters, room = np.unique(keys, return_inverse=True, return_counts=True)

    ports, buffers = np.zeros(len(keys), PORT), np.zeros(resources + 1, BUFFER)
    ports["resource"], ports["upstream"] = keys // (resources + 1), keys % (resources + 1) - 1
    ports["first_entry"] = np.cumsum(room) - room
    fed = np.flatnonzero(ports["upstream"] >= 0)
    upstream = ports["upstream"][fed]
    ports["fed"][: len(fed)] = fed[np.argsort(upstream, kind="stable")]
    buffers["first_port"], buffers["first_fed"] = _csr_ptr(ports["resource"], resources), _csr_ptr(upstream, resources)
    buffers["coupled"][:-1] = rank != UNCOUPLED
    by_rank = np.argsort(rank, kind="stable")
    uncoupled = rank[by_rank] == UNCOUPLED
    return Ports(
        buffers,
        ports,
        enters.astype(np.int64),
        entries=np.zeros(positions, np.int64),
        order=np.concatenate([by_rank[~uncoupled], by_rank[uncoupled]]),
        sweep=np.zeros(resources, np.int64),
        source=np.zeros(len(net.groups) - 1),
    )


def _upstream(net, rank, cycles) -> np.ndarray:
    """int64[position]: the coupled resource before each coupled one on its route; -1 where there is none."""
    route_resources, route_group = net.routes, net.positions["group"]
    coupled = np.flatnonzero(rank[route_resources] != UNCOUPLED)
    before, after = coupled[:-1], coupled[1:]
    same_route = route_group[before] == route_group[after]
    before, after = before[same_route], after[same_route]
    falls = np.flatnonzero(rank[route_resources[before]] >= rank[route_resources[after]])
    if len(falls) and not cycles:
        p, q = before[falls[0]], after[falls[0]]
        raise ValueError(
            f"route {route_group[p]}: rank falls from resource {route_resources[p]} to resource {route_resources[q]}"
        )
    upstream = np.full(len(route_resources), -1, dtype=np.int64)
    upstream[after] = route_resources[before]
    upstream[after[falls]] = -1
    return upstream


def _csr_ptr(owner, owners) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=owners))]).astype(np.int64)


NO_PORTS = Ports(np.zeros(0, BUFFER), np.zeros(0, PORT), NO_ROWS, NO_ROWS, NO_ROWS, NO_ROWS, np.zeros(0))


@outer
def solve_rates(net, ports, fair):
    """`fair_rates`, or else `round_robin_rates`. Kernels have both, so that none is compiled twice for it; ``ports``:
    NO_PORTS where rates are fair.
    """
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
    """Multiply the rates of the flows that enter by port ``k``."""
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
    """Share of ``capacity`` that port ``k`` would get if it requested all of it and the others what they request
    now.
    """
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
    """Levels of the uncoupled resources, where a flow that nothing else slows requests all, any other its rate.

    Returns the largest move relative to capacity.
    """
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
