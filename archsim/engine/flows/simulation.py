"""When concurrent transfers over a fabric finish: `simulate_flows`.

A transfer uses the links of its route from its start and moves at the rate that contention leaves it; the latency
of its links is added once, at the end. Rates are constant between events (a start or an end), so a transfer's end is
known as soon as its rate is, and only those whose rate changes are updated.

Under ``shared`` contention rates come from `archsim.engine.flows.max_min` or `port_fair`. Under ``reserved`` a transfer
holds every undirected edge of its route, exclusively, from its start to its end; transfers are booked in the order of
(start, index), each at the earliest time at which all its edges are free, as in the published simulator.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from archsim.base import compiled, units
from archsim.engine.flows import link_order, network, port_fair
from archsim.engine.flows.ports import NO_PORTS, build_ports
from microarch.fabric.fabric import Fabric, Graph, narrowest, per_route
from microarch.fabric.grid import build_mesh

CONTENTIONS = ("shared", "reserved")
ARBITRATIONS = ("fair", "round_robin", "head_of_line")
SPENT = 1e-12  # a transfer with less than this share of its bytes left is complete
RUN = np.dtype(
    [
        ("rate", "f8"),  # bytes/ns
        ("left", "f8"),  # bytes at the last change of rate
        ("since", "f8"),  # time of that change, from the flow's start
        ("takes", "f8"),  # time of the end, from the flow's start
    ]
)


def simulate_flows(
    fabric: tuple[int, int] | Graph,
    flows: Iterable[Sequence[float]],
    link_bytes_per_s: float | None = None,
    hop_ns: float | None = None,
    contention: str = "shared",
    arbitration: str = "fair",
    die_port_bytes_per_s: float | None = None,
) -> np.ndarray:
    """Finish times, float64[flow] in ns, of transfers that share the links of a fabric.

    fabric: an X × Y mesh as ``(x, y)`` (die = x + X·y, XY routes), a ``Graph``, or a ``Fabric``, whose links have
    their own bandwidths and latencies (``archsim.engine.fabrics.build_fabric(system, "row_major")``). Links are full
    duplex. flows: rows (src, dst, size_bytes, start_ns), dies and real numbers. link_bytes_per_s, hop_ns: bandwidth of
    one direction of a link, and the latency that every link adds to a route; for a ``Fabric`` they may be left out, or
    replace its own. contention: ``shared``, transfers share the links of their routes; ``reserved``, a transfer has its
    route to itself, both ways. arbitration: of ``shared``. ``fair``: rates are max-min fair over transfers.
    ``round_robin``: routers serve their input ports in turn, which favours sources near the destination.
    ``head_of_line``: the same also on rings and tori, whose routes wait for each other in a cycle.
    die_port_bytes_per_s: total bandwidth at which a die can inject, and eject; None: no limit.

    A transfer that meets no other finishes at start + latency of its route + size / bandwidth, with the least bandwidth
    of links and die port. One of size 0 takes the latency alone. One from a die to itself uses no link and meets no
    other: it finishes at start + size / die port, or at its start if the ports have no limit.

    Raises ValueError for an unknown name, a bandwidth that is missing or not positive, a size, start or hop time that
    is negative or not finite, a die outside the fabric (the message names the flow by its index), and ``round_robin``
    on a fabric whose routes wait for each other in a cycle.

    >>> simulate_flows((3, 1), [(0, 2, 1000, 0), (1, 2, 1000, 0)], 1e9, 20.0).tolist()
    [2040.0, 2020.0]
    """
    _check_name("contention", contention, CONTENTIONS)
    _check_name("arbitration", arbitration, ARBITRATIONS)
    port = math.inf if die_port_bytes_per_s is None else _bytes_per_ns("die_port_bytes_per_s", die_port_bytes_per_s)
    graph = fabric if isinstance(fabric, Graph) else build_mesh(*fabric)
    link_bytes_per_ns, link_ns = _link_properties(graph, link_bytes_per_s, hop_ns)
    rates, latencies = (np.broadcast_to(each, graph.links).astype(np.float64) for each in (link_bytes_per_ns, link_ns))
    src, dst, size, start = _flow_columns(flows, graph.dies)
    latency = per_route(graph, latencies)[src, dst]
    alone = np.minimum(narrowest(graph, rates, here=math.inf)[src, dst], port)
    if contention == "reserved":
        return _hold_routes(graph, src, dst, start, latency, size / alone)
    finish = start + latency + size / alone
    meets = np.flatnonzero((src != dst) & (size > 0))
    if len(meets):
        finish[meets] = _share_links(
            graph, src[meets], dst[meets], size[meets], start[meets], latency[meets], rates, port, arbitration
        )
    return finish


def _link_properties(
    graph: Graph, link_bytes_per_s: float | None, hop_ns: float | None
) -> tuple[float | np.ndarray, float | np.ndarray]:
    """(bytes/ns, ns) of links: those given, else the fabric's own."""
    if hop_ns is not None and not (math.isfinite(hop_ns) and hop_ns >= 0):
        raise ValueError(f"hop_ns {hop_ns!r}: expected a finite number that is not negative")
    name = "link_bytes_per_s"
    rates = _own(graph, name).link_bytes_per_ns if link_bytes_per_s is None else _bytes_per_ns(name, link_bytes_per_s)
    return rates, _own(graph, "hop_ns").link_ns if hop_ns is None else float(hop_ns)


def _own(graph: Graph, missing: str) -> Fabric:
    """The graph, where its links have bandwidths and latencies."""
    if not isinstance(graph, Fabric):
        raise ValueError(f"{missing} is missing; only a Fabric has bandwidths and latencies")
    return graph


def _check_name(what, name, valid):
    if name not in valid:
        raise ValueError(f"{what} {name!r}: expected one of {', '.join(map(repr, valid))}")


def _bytes_per_ns(what, bytes_per_s) -> float:
    if not (math.isfinite(bytes_per_s) and bytes_per_s > 0):
        raise ValueError(f"{what} {bytes_per_s!r}: expected a positive, finite number")
    return float(bytes_per_s) / units.NS_PER_S


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


def _hold_routes(graph: Graph, src, dst, start, latency, transfer) -> np.ndarray:
    """Finish times when a path is held as a whole for ``latency + transfer: float64[n]`` ns."""
    free = np.zeros(graph.edges)
    finish = np.empty(len(start))
    for i in np.argsort(start, kind="stable"):
        edges = graph.link_edge[graph.route(src[i], dst[i])]
        begin = max(start[i], free[edges].max(initial=0.0))
        finish[i] = begin + latency[i] + transfer[i]
        free[edges] = finish[i]
    return finish


def _share_links(graph: Graph, src, dst, size, start, latency, rates, port, arbitration) -> np.ndarray:
    """Finish times of flows that use links. Groups are the distinct (src, dst), ascending."""
    pairs, group = np.unique(src * graph.dies + dst, return_inverse=True)
    net = _network(graph, pairs, rates, port)
    order = np.argsort(start, kind="stable")
    runs = np.zeros(len(size), RUN)
    runs["left"], runs["takes"] = size, np.inf
    finish, active = np.empty(len(size)), np.empty(len(size), np.int64)
    flows = group.astype(np.int64), size, start, latency, order, runs, active, finish
    fair, cycles = arbitration == "fair", arbitration == "head_of_line"
    ports = NO_PORTS if fair else build_ports(net, _port_rank(graph, port, cycles), cycles)
    _run_events(net, ports, *flows, fair)
    return finish


def _network(graph: Graph, pairs, rates, port):
    """Network over the routes of ``pairs: int64[group]`` (src · dies + dst). Resources: links as in the graph; with a
    port limit also injection (links + die) and ejection (links + dies + die).
    """
    dies, links = graph.dies, graph.links
    routes = [graph.route(*divmod(int(pair), dies)) for pair in pairs]
    if not math.isinf(port):
        rates = np.concatenate([rates, np.full(2 * dies, port)])
        routes = [
            np.concatenate([[links + pair // dies], route, [links + dies + pair % dies]])
            for pair, route in zip(pairs, routes, strict=True)
        ]
    route_ptr = np.concatenate([[0], np.cumsum([len(route) for route in routes])])
    return network.build_network(rates, route_ptr, np.concatenate(routes))


def _port_rank(graph: Graph, port, cycles: bool) -> np.ndarray:
    """Rank of the resources of `_network`: injection, links along every route, ejection."""
    rank = link_order.ranks_in_cycles(graph) if cycles else link_order.rank_links(graph)
    if math.isinf(port):
        return rank
    return np.concatenate([rank + 1, np.repeat([0, rank.max(initial=0) + 2], graph.dies)])


@compiled.kernel
def _run_events(net, ports, group, size, start, latency, order, runs, active, finish, fair):
    """Fill ``finish: float64[n]`` of flows ``group: int64[n]``; ``order: int64[n]`` is the order of their starts.

    ``fair``: whether rates are max–min fair, see `solve_rates`.

    Times of a flow are kept relative to its start, and its bytes left are updated only when its rate changes, so a flow
    whose rate never changes finishes exactly after size / rate. ``runs: RUN[n]``, ``active: int64[n]`` are scratch.
    """
    net, ports, n = compiled.reference(net), compiled.reference(ports), len(group)
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
                network.leave(net, group[f])
                running -= 1
                active[i] = active[running]
            else:
                i += 1
        while started < n and start[order[started]] <= now:
            active[running] = order[started]
            network.enter(net, group[order[started]])
            running += 1
            started += 1
        port_fair.solve_rates(net, ports, fair)
        stamp = net.counts[network.STAMP]
        for i in range(running):
            f = active[i]
            row = net.groups[group[f]]
            if row.stamp == stamp and row.rate != runs[f].rate:
                run = runs[f]
                run.left = max(0.0, run.left - run.rate * (now - start[f] - run.since))
                run.since = now - start[f]
                run.rate = row.rate
                run.takes = run.since + run.left / run.rate
