"""When concurrent transfers over a mesh finish: `simulate_flows`.

A transfer takes the links of its XY route from its start on and moves at the rate that contention leaves it; the
latency of its hops is added once, at the end. Rates are constant between events (a start or an end), so a transfer's
end is known as soon as its rate is, and only those whose rate changes are looked at again.

Under ``shared`` contention rates come from `fair` or `round_robin`. Under ``reserved`` a transfer holds every
undirected mesh edge of its path, exclusively, from its begin to its end; transfers are booked in the order of
(start, index), each at the earliest time at which all its edges have fallen free, as in the published simulator.
"""

from __future__ import annotations

import math

import numpy as np

from archsim.base.kernels import inner, kernel
from archsim.engine.network.fair import fair_rates
from archsim.engine.network.network import STAMP, build_network, enter, leave
from archsim.engine.network.round_robin import build_ports, round_robin_rates, xy_rank
from microarch.fabric.mesh import Mesh, build_mesh

CONTENTIONS = ("shared", "reserved")
ARBITRATIONS = ("fair", "round_robin")
SPENT = 1e-12  # a transfer with less than this part of its bytes left is over
NS_PER_S = 1e9
RUN = np.dtype(
    [
        ("rate", "f8"),  # bytes/ns
        ("left", "f8"),  # bytes at the last change of rate
        ("since", "f8"),  # time of that change, from the flow's start
        ("takes", "f8"),  # time of the end, from the flow's start
    ]
)


def simulate_flows(mesh, flows, link_bytes_per_s, hop_ns, contention="shared", arbitration="fair",
                   die_port_bytes_per_s=None) -> np.ndarray:
    """Finish times, float64[n] in ns, of n transfers over an X × Y mesh with XY routing and full-duplex links.

    ``mesh``: (x, y); die = x + X·y. ``flows``: rows (src, dst, size_bytes, start_ns). ``link_bytes_per_s``: bandwidth
    of one direction of a link. ``die_port_bytes_per_s``: what a die can inject, and eject, in all; None: no limit.
    ``contention``: 'shared' | 'reserved'. ``arbitration`` ('fair' | 'round_robin') applies to 'shared' only.

    A transfer that meets no other finishes at start + hops · hop_ns + size / bandwidth, with the lesser bandwidth of
    link and die port. One of size 0 takes the latency alone. One from a die to itself uses no link and meets no other:
    it finishes at start + size / die port, or at its start if the ports have no limit.

    Raises ValueError for an unknown name, a bandwidth that is not positive, a size, start or hop time that is negative
    or not finite, or a die outside the mesh; the message names the flow by its index.
    """
    _check_name("contention", contention, CONTENTIONS)
    _check_name("arbitration", arbitration, ARBITRATIONS)
    link = _bytes_per_ns("link_bytes_per_s", link_bytes_per_s)
    port = math.inf if die_port_bytes_per_s is None else _bytes_per_ns("die_port_bytes_per_s", die_port_bytes_per_s)
    if not (math.isfinite(hop_ns) and hop_ns >= 0):
        raise ValueError(f"hop_ns {hop_ns!r}: expected a finite number that is not negative")
    geometry = build_mesh(*mesh)
    src, dst, size, start = _flow_columns(flows, geometry.dies)
    latency = geometry.hops[src, dst] * float(hop_ns)
    alone = np.where(src == dst, port, min(link, port))
    if contention == "reserved":
        return _reserved(geometry, src, dst, start, latency, size / alone)
    finish = start + latency + size / alone
    meets = np.flatnonzero((src != dst) & (size > 0))
    if len(meets):
        finish[meets] = _shared(geometry, src[meets], dst[meets], size[meets], start[meets], latency[meets],
                                link, port, arbitration)
    return finish


def _check_name(what, name, valid):
    if name not in valid:
        raise ValueError(f"{what} {name!r}: expected one of {', '.join(map(repr, valid))}")


def _bytes_per_ns(what, bytes_per_s) -> float:
    if not (math.isfinite(bytes_per_s) and bytes_per_s > 0):
        raise ValueError(f"{what} {bytes_per_s!r}: expected a positive, finite number")
    return float(bytes_per_s) / NS_PER_S


def _flow_columns(flows, dies):
    """Columns src, dst: int64[n], size_bytes, start_ns: float64[n] of valid flows."""
    rows = [tuple(flow) for flow in flows]
    for i, row in enumerate(rows):
        if len(row) != 4:
            raise ValueError(f"flow {i}: expected (src, dst, size_bytes, start_ns), got {len(row)} values")
    table = np.array(rows, dtype=np.float64).reshape(len(rows), 4)
    for column, what in enumerate(("src", "dst")):
        ends = table[:, column]
        _refuse(~((ends >= 0) & (ends < dies) & (ends == np.floor(ends))), ends, what, f"a die from 0 to {dies - 1}")
    for column, what in ((2, "size_bytes"), (3, "start_ns")):
        values = table[:, column]
        _refuse(~(np.isfinite(values) & (values >= 0)), values, what, "a finite number that is not negative")
    return table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2], table[:, 3]


def _refuse(bad, values, what, expected):
    if bad.any():
        i = int(np.argmax(bad))
        raise ValueError(f"flow {i}: {what} {values[i]:g}: expected {expected}")


def _reserved(mesh: Mesh, src, dst, start, latency, transfer) -> np.ndarray:
    """Finish times when a path is held as a whole for ``latency + transfer: float64[n]`` ns."""
    free = np.zeros(mesh.edges)
    finish = np.empty(len(start))
    for i in np.argsort(start, kind="stable"):
        edges = mesh.link_edge[mesh.route(src[i], dst[i])]
        begin = max(start[i], free[edges].max(initial=0.0))
        finish[i] = begin + latency[i] + transfer[i]
        free[edges] = finish[i]
    return finish


def _shared(mesh: Mesh, src, dst, size, start, latency, link, port, arbitration) -> np.ndarray:
    """Finish times of flows that take links. Groups are the distinct (src, dst), ascending."""
    pairs, group = np.unique(src * mesh.dies + dst, return_inverse=True)
    net, rank = _mesh_network(mesh, pairs, link, port)
    order = np.argsort(start, kind="stable")
    runs = np.zeros(len(size), RUN)
    runs["left"], runs["takes"] = size, np.inf
    finish, active = np.empty(len(size)), np.empty(len(size), np.int64)
    flows = group.astype(np.int64), size, start, latency, order, runs, active, finish
    if arbitration == "fair":
        _run_fair(net, (), *flows)
    else:
        _run_round_robin(net, build_ports(net, rank), *flows)
    return finish


def _mesh_network(mesh: Mesh, pairs, link, port):
    """Network over the routes of ``pairs: int64[group]`` (src · dies + dst), and the rank of its resources.

    Resources: links as in the mesh; with a port limit also injection (links + die) and ejection (links + dies + die).
    """
    dies, links, rank = mesh.dies, mesh.links, xy_rank(mesh)
    routes = [mesh.route(*divmod(int(pair), dies)) for pair in pairs]
    if math.isinf(port):
        capacity = np.full(links, link)
    else:
        capacity = np.repeat([link, port], [links, 2 * dies])
        rank = np.concatenate([rank + 1, np.repeat([0, rank.max(initial=0) + 2], dies)])
        routes = [np.concatenate([[links + pair // dies], route, [links + dies + pair % dies]])
                  for pair, route in zip(pairs, routes, strict=True)]
    route_ptr = np.concatenate([[0], np.cumsum([len(route) for route in routes])])
    return build_network(capacity, route_ptr, np.concatenate(routes)), rank


@kernel
def _run_fair(net, ports, group, size, start, latency, order, runs, active, finish):
    _run_events(net, ports, group, size, start, latency, order, runs, active, finish, fair_rates)


@kernel
def _run_round_robin(net, ports, group, size, start, latency, order, runs, active, finish):
    _run_events(net, ports, group, size, start, latency, order, runs, active, finish, round_robin_rates)


@inner
def _run_events(net, ports, group, size, start, latency, order, runs, active, finish, solve):
    """Fill ``finish: float64[n]`` of flows ``group: int64[n]``; ``order: int64[n]`` is the order of their starts.

    ``solve(net, ports)`` recomputes the rates; given as an argument, so that only the one that is used is compiled.

    Times of a flow are kept relative to its start, and bytes are counted anew only when its rate changes, so a flow
    whose rate never changes finishes exactly after size / rate. ``runs: RUN[n]``, ``active: int64[n]`` are scratch.
    """
    n = len(group)
    running, started = 0, 0
    while running > 0 or started < n:
        now = start[order[started]] if started < n else np.inf
        for i in range(running):
            f = active[i]
            now = min(now, start[f] + runs[f].takes)
        i = 0
        while i < running:
            f = active[i]
            takes = runs[f].takes
            if start[f] + takes <= now or (takes - (now - start[f])) * runs[f].rate <= SPENT * size[f]:
                finish[f] = start[f] + latency[f] + takes
                leave(net, group[f])
                running -= 1
                active[i] = active[running]
            else:
                i += 1
        while started < n and start[order[started]] <= now:
            active[running] = order[started]
            enter(net, group[order[started]])
            running += 1
            started += 1
        solve(net, ports)
        stamp = net.counts[STAMP]
        for i in range(running):
            f = active[i]
            row = net.groups[group[f]]
            if row.stamp == stamp and row.rate != runs[f].rate:
                run = runs[f]
                run.left = max(0.0, run.left - run.rate * (now - start[f] - run.since))
                run.since = now - start[f]
                run.rate = row.rate
                run.takes = run.since + run.left / run.rate
