"""Rates where routers serve their input ports in turn and flows of a port share one buffer (port-fair, coupled FIFOs).

The capacity of a link is shared max–min among its *input ports*: the links upstream, and the die itself, which is one
input however many flows it sources (its own flows are queued apart and share that input max–min). Inside a port
traffic leaves in the mix in which it came in, so a flow that is blocked ahead slows all that share its buffer: the
throughput of port q is at most, for every link l that its traffic takes next,

    limit(q) = share of q at l · (all traffic of q) / (the part of q's traffic that goes to l).

Rates follow from shares in travelling order (forward), limits from shares against it (backward), over the acyclic
order that XY routing gives the links; limits are damped, 0.6 old + 0.4 new, until none moves by more than `SETTLED`
of its capacity (rates are then within a few tenths of a per cent of the fixed point). Rates are those of the steady
state: what buffers hold when a flow starts or ends is not modelled.

Resources with a rank are coupled as above (links, and injection and ejection ports, which are one FIFO each). Those
with rank -1 (HBM) queue every flow apart: they limit a flow at its source to the level of a max–min fill of what the
flows ask for, within the same fixed point, and never block others in a buffer.

The contract of the incremental recompute is that of `fair`. All tolerances are relative.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from archsim.engine.state import kernel

from archsim.engine.network import COMPONENT, STAMP, FlowNetwork, touched_component

UNCOUPLED = -1
KEPT = 0.6  # part of the old limit that damping keeps
SETTLED = 1e-4
MAX_SWEEPS = 200


class Ports(NamedTuple):
    """Input ports of the coupled resources, and the solver's scratch."""

    order: np.ndarray  # int32[coupled]: coupled resources by rank
    uncoupled: np.ndarray  # int32[...]: resources of rank -1
    of_position: np.ndarray  # int32[position]: input port by which a position enters its resource; -1 if uncoupled
    ptr: np.ndarray  # int64[resource + 1]: ports of a resource
    upstream: np.ndarray  # int32[port]: resource that feeds the port; -1: the die itself
    next_ptr: np.ndarray  # int64[resource + 1]: ports that a resource feeds
    next_port: np.ndarray  # int32[...]
    resource: np.ndarray  # int32[port]: resource that the port belongs to
    sweep: np.ndarray  # int32[coupled]: those of the component, by rank
    entry_ptr: np.ndarray  # int64[resource]: an entry is a group of the component at one resource; first entry of it,
    entry_end: np.ndarray  # int64[resource]: and one past its last
    entry_group: np.ndarray  # int32[position]
    entry_port: np.ndarray  # int32[position]: input port of the entry; -1 if uncoupled
    asked: np.ndarray  # float64[port]: rate that arrives at the port
    granted: np.ndarray  # float64[port]
    limit: np.ndarray  # float64[resource]: throughput of the port's buffer; level of an uncoupled resource
    source: np.ndarray  # float64[group]: rate at which a flow leaves its source


def xy_rank(mesh) -> np.ndarray:
    """int32[link]: an order of the mesh's links along which every XY route rises, from 0."""
    step_x = mesh.x_of[mesh.link_dst] - mesh.x_of[mesh.link_src]
    step_y = mesh.y_of[mesh.link_dst] - mesh.y_of[mesh.link_src]
    along_x = np.where(step_x > 0, mesh.x_of[mesh.link_src], mesh.x - 1 - mesh.x_of[mesh.link_src])
    along_y = mesh.x + np.where(step_y > 0, mesh.y_of[mesh.link_src], mesh.y - 1 - mesh.y_of[mesh.link_src])
    return np.where(step_x != 0, along_x, along_y).astype(np.int32)


def build_ports(net: FlowNetwork, rank) -> Ports:
    """Input ports for ``rank: int32[resource]`` (-1: uncoupled), which must rise along the coupled part of every route.

    Raises ValueError if it does not.
    """
    rank = np.asarray(rank, dtype=np.int32)
    resources, groups, positions = len(net.capacity), len(net.weight), len(net.route_resources)
    upstream_of_position = _upstream(net, rank)
    coupled = np.flatnonzero(rank[net.route_resources] != UNCOUPLED)
    keys = net.route_resources[coupled].astype(np.int64) * (resources + 1) + upstream_of_position[coupled] + 1
    ports, port_of_coupled = np.unique(keys, return_inverse=True)
    resource, upstream = (ports // (resources + 1)).astype(np.int32), (ports % (resources + 1) - 1).astype(np.int32)
    of_position = np.full(positions, -1, dtype=np.int32)
    of_position[coupled] = port_of_coupled
    fed = np.flatnonzero(upstream >= 0)
    by_rank = np.argsort(rank, kind="stable").astype(np.int32)
    return Ports(
        order=by_rank[rank[by_rank] != UNCOUPLED], uncoupled=np.flatnonzero(rank == UNCOUPLED).astype(np.int32),
        of_position=of_position, ptr=_csr_ptr(resource, resources), upstream=upstream,
        next_ptr=_csr_ptr(upstream[fed], resources),
        next_port=fed[np.argsort(upstream[fed], kind="stable")].astype(np.int32), resource=resource,
        sweep=np.zeros(resources, np.int32), entry_ptr=np.zeros(resources, np.int64),
        entry_end=np.zeros(resources, np.int64), entry_group=np.zeros(positions, np.int32),
        entry_port=np.zeros(positions, np.int32), asked=np.zeros(len(ports)), granted=np.zeros(len(ports)),
        limit=np.zeros(resources), source=np.zeros(groups),
    )


def _upstream(net, rank) -> np.ndarray:
    """int64[position]: the coupled resource before each coupled one on its route; -1 where there is none."""
    upstream = np.full(len(net.route_resources), -1, dtype=np.int64)
    for group in range(len(net.weight)):
        before = -1
        for p in range(net.route_ptr[group], net.route_ptr[group + 1]):
            r = net.route_resources[p]
            if rank[r] == UNCOUPLED:
                continue
            if before >= 0 and rank[before] >= rank[r]:
                raise ValueError(f"route {group}: rank falls from resource {before} to resource {r}")
            upstream[p] = before
            before = r
    return upstream


def _csr_ptr(owner, owners) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=owners))]).astype(np.int64)


@kernel
def round_robin_rates(net, ports):
    """Steady-state rates of the touched component; returns its number of groups. See `fair` for the contract."""
    found = touched_component(net)
    coupled, uncoupled = _collect_entries(net, ports)
    for _ in range(MAX_SWEEPS):
        _forward(net, ports, coupled)
        moved = _backward(net, ports, coupled)
        if uncoupled > 0:
            moved = max(moved, _fill_uncoupled(net, ports))
        if moved <= SETTLED:
            break
    _forward(net, ports, coupled)
    if uncoupled > 0:
        _clip_uncoupled(net, ports)
    return found


@kernel
def _collect_entries(net, ports):
    """Lay out the component by resource; returns its numbers of coupled and uncoupled resources.

    Groups ascend, so that sums, and with them rates, do not depend on who came first.
    """
    capacity, user_count = net.capacity, net.user_count
    stamp, resource_stamp, group_stamp = net.counts[STAMP], net.resource_stamp, net.group_stamp
    entry_ptr, entry_end, limit, order, sweep = ports.entry_ptr, ports.entry_end, ports.limit, ports.order, ports.sweep
    end, coupled, uncoupled = 0, 0, 0
    for i in range(len(order)):
        r = order[i]
        if resource_stamp[r] == stamp:
            entry_ptr[r] = end
            entry_end[r] = end
            end += user_count[r]
            limit[r] = capacity[r]
            sweep[coupled] = r
            coupled += 1
    for r in ports.uncoupled:
        if resource_stamp[r] == stamp:
            entry_ptr[r] = end
            entry_end[r] = end
            end += user_count[r]
            limit[r] = capacity[r]
            uncoupled += 1
    route_resources, of_position = net.route_resources, ports.of_position
    entry_group, entry_port = ports.entry_group, ports.entry_port
    for group in range(len(group_stamp)):
        if group_stamp[group] != stamp:
            continue
        for p in range(net.route_ptr[group], net.route_ptr[group + 1]):
            r = route_resources[p]
            entry_group[entry_end[r]] = group
            entry_port[entry_end[r]] = of_position[p]
            entry_end[r] += 1
    return coupled, uncoupled


@kernel
def _forward(net, ports, coupled):
    """Rates from limits, in travelling order. A flow's rate can only fall on its way, so the last is feasible."""
    rate, weight, limit, sweep = net.rate, net.weight, ports.limit, ports.sweep
    entry_ptr, entry_end = ports.entry_ptr, ports.entry_end
    entry_group, entry_port = ports.entry_group, ports.entry_port
    port_ptr, upstream, asked, granted = ports.ptr, ports.upstream, ports.asked, ports.granted
    _limit_sources(net, ports)
    for i in range(coupled):
        r = sweep[i]
        for k in range(port_ptr[r], port_ptr[r + 1]):
            asked[k] = 0.0
        for e in range(entry_ptr[r], entry_end[r]):
            asked[entry_port[e]] += rate[entry_group[e]] * weight[entry_group[e]]
        level = _water_level(asked, port_ptr[r], port_ptr[r + 1], limit[r])
        for k in range(port_ptr[r], port_ptr[r + 1]):
            granted[k] = min(asked[k], level)
        if level == np.inf:
            continue
        for e in range(entry_ptr[r], entry_end[r]):
            k = entry_port[e]
            if asked[k] > level and upstream[k] >= 0:
                rate[entry_group[e]] *= level / asked[k]
        for k in range(port_ptr[r], port_ptr[r + 1]):
            if asked[k] > level and upstream[k] < 0:
                _share_die_input(k, level, entry_group, entry_port, entry_ptr[r], entry_end[r],
                                 ports.source, weight, rate)


@kernel
def _limit_sources(net, ports):
    """A flow leaves its source at the least level of the uncoupled resources on its route."""
    rate, source, component = net.rate, ports.source, net.component
    for i in range(net.counts[COMPONENT]):
        source[component[i]] = np.inf
    if len(ports.uncoupled) > 0:
        stamp, resource_stamp, limit = net.counts[STAMP], net.resource_stamp, ports.limit
        for r in ports.uncoupled:
            if resource_stamp[r] == stamp:
                for e in range(ports.entry_ptr[r], ports.entry_end[r]):
                    group = ports.entry_group[e]
                    source[group] = min(source[group], limit[r])
    for i in range(net.counts[COMPONENT]):
        rate[component[i]] = source[component[i]]


@kernel
def _water_level(asked, first, last, capacity):
    """Max–min level at which the requests ``asked[first:last]`` fill ``capacity``; infinity if they do not."""
    level, before = 0.0, -1
    while True:
        left, sharing = capacity, 0
        for k in range(first, last):
            if asked[k] <= level:
                left -= asked[k]
            else:
                sharing += 1
        if sharing == 0:
            return np.inf
        if sharing == before:
            return level
        level = max(level, left / sharing)
        before = sharing


@kernel
def _offer(asked, first, last, capacity, k):
    """What request ``k`` would get of ``capacity`` if it asked for everything and the others for what they do."""
    kept = asked[k]
    asked[k] = np.inf
    level = _water_level(asked, first, last, capacity)
    asked[k] = kept
    return level


@kernel
def _share_die_input(k, granted, entry_group, entry_port, begin, end, source, weight, rate):
    """Max–min fill of a die's own input ``k``, whose flows are queued apart and may be slower at their source."""
    level, before = 0.0, -1
    while True:
        left, sharing = granted, 0
        for e in range(begin, end):
            if entry_port[e] == k:
                group = entry_group[e]
                if source[group] <= level:
                    left -= source[group] * weight[group]
                else:
                    sharing += weight[group]
        if sharing == before or sharing == 0:
            break
        level = max(level, left / sharing)
        before = sharing
    for e in range(begin, end):
        if entry_port[e] == k:
            rate[entry_group[e]] = min(source[entry_group[e]], level)


@kernel
def _backward(net, ports, coupled):
    """Limits from shares, against the travelling order; returns the largest move relative to capacity."""
    capacity, limit, sweep, port_ptr = net.capacity, ports.limit, ports.sweep, ports.ptr
    next_ptr, next_port, resource = ports.next_ptr, ports.next_port, ports.resource
    asked, granted = ports.asked, ports.granted
    resource_stamp, stamp = net.resource_stamp, net.counts[STAMP]
    moved = 0.0
    for i in range(coupled - 1, -1, -1):
        r = sweep[i]
        total = 0.0
        for k in range(port_ptr[r], port_ptr[r + 1]):
            total += granted[k]
        new = capacity[r]
        for n in range(next_ptr[r], next_ptr[r + 1]):
            k = next_port[n]
            after = resource[k]
            if resource_stamp[after] == stamp and asked[k] > 0.0:
                offer = _offer(asked, port_ptr[after], port_ptr[after + 1], limit[after], k)
                new = min(new, offer * (total / asked[k]))
        moved = max(moved, _damp(limit, capacity, r, new))
    return moved


@kernel
def _fill_uncoupled(net, ports):
    """Levels of the uncoupled resources, where a flow that nothing else slows asks for all, any other for its rate."""
    rate, weight, capacity, limit = net.rate, net.weight, net.capacity, ports.limit
    entry_ptr, entry_end, entry_group = ports.entry_ptr, ports.entry_end, ports.entry_group
    moved = 0.0
    for r in ports.uncoupled:
        if net.resource_stamp[r] != net.counts[STAMP]:
            continue
        level, before = 0.0, -1
        while True:
            left, sharing = capacity[r], 0
            for e in range(entry_ptr[r], entry_end[r]):
                group = entry_group[e]
                if rate[group] < limit[r] and rate[group] <= level:
                    left -= rate[group] * weight[group]
                else:
                    sharing += weight[group]
            if sharing == before:
                break
            if sharing == 0:
                level = capacity[r]
                break
            level = max(level, left / sharing)
            before = sharing
        moved = max(moved, _damp(limit, capacity, r, level))
    return moved


@kernel
def _damp(limit, capacity, r, new):
    """Move a limit towards its new value; returns the move relative to capacity."""
    move = (1.0 - KEPT) * (new - limit[r])
    limit[r] += move
    return abs(move) / capacity[r]


@kernel
def _clip_uncoupled(net, ports):
    """Scale flows down where an uncoupled resource is over its capacity by what the fixed point leaves open."""
    rate, weight, entry_group = net.rate, net.weight, ports.entry_group
    for r in ports.uncoupled:
        if net.resource_stamp[r] != net.counts[STAMP]:
            continue
        total = 0.0
        for e in range(ports.entry_ptr[r], ports.entry_end[r]):
            total += rate[entry_group[e]] * weight[entry_group[e]]
        if total > net.capacity[r]:
            for e in range(ports.entry_ptr[r], ports.entry_end[r]):
                rate[entry_group[e]] *= net.capacity[r] / total
