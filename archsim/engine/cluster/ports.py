"""Ports of a cluster, and the bytes that pass them in one phase (dispatch or combine).

A fabric of switches, one level (a node) or two (nodes of GPUs), has a port per GPU and level: to the switch of its node
(NVLink), and to the network between nodes (a NIC; ``per: group``: one that the GPUs of a node share). A phase is a
sum of flows, one network at a time: ``flows: float64[network, source, target]``, bytes between ports. Flows of all
tokens between the same two ports are one.

============  =========================================================  ==============================================
kernel        between nodes                                              inside a node
============  =========================================================  ==============================================
forwarded     a vector once for every token and node, to the GPU with    from there to the GPUs that want it
              the same number there
direct        a vector for every token and GPU (or expert), to that GPU  only what stays in the node
============  =========================================================  ==============================================

A combine has the same flows the other way round: the GPU that forwarded sums the results of its node.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from archsim.base.compiled import inner, kernel
from archsim.base.errors import SpecError
from archsim.engine.cluster.laws import PortLaw
from microarch.fabric.fabric import Fabric

# ---- ports

SWITCH = "switch"


class Grid(NamedTuple):
    """Nodes of GPUs: GPU g of node n is die ``n · size + g``. ``shared``: the GPUs of a node share its NIC."""

    nodes: int
    size: int
    shared: bool = False

    @property
    def dies(self) -> int:
        return self.nodes * self.size

    @property
    def node_of(self) -> np.ndarray:
        """Node of every die, int64[die]."""
        return np.arange(self.dies) // self.size


class Flows(NamedTuple):
    """Bytes of a phase between ports. ``inner``: float64[node, source, target] of the GPUs of each node; ``outer``:
    float64[network, source, target] between nodes, in the order of ``outer_ports``; no networks in a single node.
    """

    inner: np.ndarray
    outer: np.ndarray

    def part(self, share: float) -> Flows:
        """A share of the bytes."""
        return Flows(self.inner * share, self.outer * share)

    def reversed(self) -> Flows:
        """The same bytes on their way back."""
        return Flows(self.inner.swapaxes(1, 2), self.outer.swapaxes(1, 2))


def grid_of(system) -> Grid | None:
    """The nodes of a system, if it is switches of GPUs in one or two levels; else None."""
    levels = () if system.fabric is None else system.fabric.levels
    if not 1 <= len(levels) <= 2 or any(level.kind != SWITCH for level in levels):
        return None
    if len(levels) == 1:
        return Grid(1, system.dies)
    nodes, size = levels[1].size, levels[0].size
    if system.dies != system.sites:
        living = np.bincount(np.array(system.built.living) // size, minlength=nodes)
        if living.min() != living.max():
            raise SpecError(
                f"{system.name}: dies_as_built: nodes are left with {living.min()} to {living.max()} GPUs, but "
                "measured kernels are of nodes with equally many; list as many dead in every node"
            )
        size = int(living[0])
    return Grid(nodes, size, shared=levels[1].per != "gpu")


def flows_forwarded(vectors: np.ndarray, to_nodes: np.ndarray, grid: Grid, vector_bytes: float) -> Flows:
    """Flows of a dispatch that sends once for every (token, node). ``vectors``: [home, die], ``to_nodes``: [home,
    node], tokens that have an expert there.
    """
    nodes, size = grid.nodes, grid.size
    by_rail = vectors.reshape(nodes, size, nodes, size).sum(axis=0)  # [rail, node, die in it]
    inner = _off_diagonal(by_rail.swapaxes(0, 1) * float(vector_bytes))
    if nodes == 1:
        return Flows(inner, np.zeros((0, 0, 0)))
    between = to_nodes.reshape(nodes, size, nodes) * float(vector_bytes)
    outer = between.sum(axis=1)[None] if grid.shared else between.swapaxes(0, 1)
    return Flows(inner, _off_diagonal(outer))


def flows_direct(vectors: np.ndarray, grid: Grid, vector_bytes: float) -> Flows:
    """Flows of a dispatch that sends every vector straight to its GPU. ``vectors``: [home, die]."""
    nodes, size = grid.nodes, grid.size
    sent = vectors.reshape(nodes, size, nodes, size) * float(vector_bytes)
    here = np.arange(nodes)
    inner = _off_diagonal(sent[here, :, here, :].copy())
    if nodes == 1:
        return Flows(inner, np.zeros((0, 0, 0)))
    if grid.shared:
        return Flows(inner, _off_diagonal(sent.sum(axis=(1, 3))[None]))
    sent[here, :, here, :] = 0.0
    return Flows(inner, sent.reshape(1, grid.dies, grid.dies))


def outer_ports(grid: Grid, networks: int) -> np.ndarray:
    """The port (a die, or a node whose GPUs share one) of every member of the networks between nodes, int64[network,
    member].
    """
    if grid.shared:
        return np.arange(grid.nodes)[None]
    return np.arange(grid.dies).reshape(grid.nodes, grid.size).T if networks > 1 else np.arange(grid.dies)[None]


def port_bytes(flows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(out of, into) the ports of all networks, float64[network, port]."""
    return flows.sum(axis=2), flows.sum(axis=1)


def refuse_unequal(slots: np.ndarray, experts: int) -> None:
    """Raise SpecError where GPUs hold different numbers of experts, as no measured kernel does. ``slots``: int64[layer,
    die]. GPUs may outnumber experts.
    """
    dies = slots.shape[1]
    if (slots.max(axis=1) == slots.min(axis=1)).all() or slots.max() == 1:
        return
    near = [each for each in range(1, experts + 1) if experts % each == 0]
    below, above = max(each for each in near if each < dies), min(each for each in near if each > dies)
    raise SpecError(
        f"{experts} experts do not divide over {dies} GPUs; {below} or {above} GPUs would do, or "
        f"a placement with {-experts % dies} redundant experts ({-(-experts // dies)} a GPU), or transfer_software: "
        "free"
    )


def _off_diagonal(flows: np.ndarray) -> np.ndarray:
    """Without what a port sends to itself; changes ``flows``."""
    member = np.arange(flows.shape[1])
    flows = np.ascontiguousarray(flows)
    flows[:, member, member] = 0.0
    return flows


# ---- routes
# Bytes of flows on the links of their routes, and what a phase waits for on them.

def link_bytes(fabric: Fabric, flows: np.ndarray) -> np.ndarray:
    """float64[link]: bytes of ``flows: float64[source, target]`` over each link."""
    found = np.zeros(fabric.links)
    _add(np.ascontiguousarray(flows, dtype=np.float64), fabric.route_ptr, fabric.route_links, found)
    return found


def slowest_link(fabric: Fabric, flows: np.ndarray, busy_ns: np.ndarray) -> np.ndarray:
    """float64[die]: the longest that a die waits for a flow: latency of its route, and its busiest link."""
    found = np.zeros(fabric.dies)
    flows = np.ascontiguousarray(flows, dtype=np.float64)
    _wait(flows, fabric.route_ptr, fabric.route_links, fabric.pair_ns, busy_ns, found)
    return found


@kernel
def _add(flows, route_ptr, route_links, found):
    dies = len(flows)
    for source in range(dies):
        for target in range(dies):
            if flows[source, target] > 0.0:
                pair = source * dies + target
                for at in range(route_ptr[pair], route_ptr[pair + 1]):
                    found[route_links[at]] += flows[source, target]


@kernel
def _wait(flows, route_ptr, route_links, pair_ns, busy_ns, found):
    dies = len(flows)
    for source in range(dies):
        for target in range(dies):
            if flows[source, target] > 0.0:
                pair, longest = source * dies + target, 0.0
                for at in range(route_ptr[pair], route_ptr[pair + 1]):
                    longest = max(longest, busy_ns[route_links[at]])
                found[target] = max(found[target], pair_ns[source, target] + longest)


# ---- finish
# When the bytes of a phase have passed all ports, given when each port may begin to send.
#
# Ports are the only bottleneck. If all begin together, the last byte arrives after the time of the fullest port: a
# schedule that interrupts transfers reaches this bound (Gonzalez and Sahni, Open shop scheduling to minimize finish
# time,
# J. ACM 23, 1976), and no other can beat it. Both engines take it. If they begin at different times (a combine, as
# ranks
# finish their experts at different times):
#
# ===========  =========================================================================================================
# event        into a port: the busy period of one server, max over k of (the k-th begin + bytes of all that begin then
#              or later); out of a port: its begin + its bytes; a target waits for every source that sends to it
# analytical   the same with two of the terms into a port: all bytes from the first begin on, and none after the last
# ===========  =========================================================================================================

def arrivals(flows: np.ndarray, begin_ns: np.ndarray, law: PortLaw) -> np.ndarray:
    """float64[network, target] ns: when a target has what it awaits; ``flows``: bytes, float64[network, source,
    target], ``begin_ns``: float64[network, source].
    """
    out_ns = begin_ns + law.busy(flows.sum(axis=2))
    found = np.zeros(flows.shape[::2])
    slope = law.last_ns_per_byte
    flows, begin_ns, out_ns = (np.ascontiguousarray(each) for each in (flows, begin_ns, out_ns))
    latest_first = np.ascontiguousarray(np.argsort(-begin_ns, axis=1))
    _busy_periods(flows, begin_ns, out_ns, latest_first, law.at_bytes, law.busy_ns, slope, found)
    return found + np.where(found > 0, law.fixed_ns, 0.0)


def bounds(flows: np.ndarray, begin_ns: np.ndarray, law: PortLaw) -> np.ndarray:
    """As `arrivals`, by the analytical rule."""
    out, into = flows.sum(axis=2), flows.sum(axis=1)
    last = np.where(out > 0, begin_ns + law.busy(out), 0.0).max(axis=1, keepdims=True)
    first = begin_ns.min(axis=1, keepdims=True)
    return np.where(into > 0, np.maximum(last, first + law.busy(into)) + law.fixed_ns, 0.0)


@kernel
def _busy_periods(flows, begin_ns, out_ns, latest_first, at_bytes, busy_ns, slope, found):
    """Fill ``found``; ``latest_first``: int64[network, source], in order of descending begin."""
    for network in range(len(flows)):
        for target in range(flows.shape[2]):
            total, end = 0.0, 0.0
            for place in range(flows.shape[1]):
                source = latest_first[network, place]
                n_bytes = flows[network, source, target]
                if n_bytes > 0.0:
                    total += n_bytes
                    busy = begin_ns[network, source] + _busy(total, at_bytes, busy_ns, slope)
                    end = max(end, out_ns[network, source], busy)
            found[network, target] = end


@inner
def _busy(n_bytes, at_bytes, busy_ns, slope):
    """``PortLaw.busy`` of one number."""
    low, high = 0, len(at_bytes) - 1
    if n_bytes >= at_bytes[high]:
        return busy_ns[high] + (n_bytes - at_bytes[high]) * slope
    while high - low > 1:
        middle = (low + high) // 2
        if at_bytes[middle] <= n_bytes:
            low = middle
        else:
            high = middle
    share = (n_bytes - at_bytes[low]) / (at_bytes[high] - at_bytes[low])
    return busy_ns[low] + share * (busy_ns[high] - busy_ns[low])
