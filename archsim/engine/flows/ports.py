"""Input ports of the resources of a network: which traffic shares a buffer, and what feeds it.

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
"""

from typing import NamedTuple

import numpy as np

from archsim.engine.flows import network

UNCOUPLED = -1
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


def build_ports(net: network.FlowNetwork, rank, cycles: bool = False) -> Ports:
    """Input ports for ``rank: int64[resource]`` (-1: uncoupled). Raises ValueError where ranks do not rise along the
    coupled part of a route, unless there may be ``cycles``.
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
        buffers, ports, enters.astype(np.int64), entries=np.zeros(positions, np.int64),
        order=np.concatenate([by_rank[~uncoupled], by_rank[uncoupled]]), sweep=np.zeros(resources, np.int64),
        source=np.zeros(len(net.groups) - 1),
    )  # fmt: skip


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
