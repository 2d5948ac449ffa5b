"""Dispatch and combine of an expert-parallel step: the flows of a plan, and when every GPU has what it awaits.

=============  =======================================================================================================
`PortMoves`    switches of GPUs: flows through the ports of each level (``ports``), timed by measured kernels
               (``port_laws``, ``between_nodes``) or by bandwidths (``transfer_software: free``)
`GatherMoves`  ``dispatch: all_gather``: every GPU of a node gets every token, and a reduce-scatter (with
               ``all_gather_all_reduce`` an all-reduce) returns the results
`NoMoves`      nothing moves: every die has all tokens (``activations: replicated``), or those that a dispatch would
               bring it (``ignored``)
`RouteMoves`   any other fabric (a wafer): bytes of every link along its routes, at its bandwidth
`MeshMoves`    the same by the law of kernels measured on it (``endpoint: as_measured``, with the system's own)
=============  =======================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from archsim.base.compiled import inner, kernel
from archsim.base.errors import SpecError
from archsim.base.units import NS_PER_S
from archsim.engine.cluster.laws import KERNELS, NORMAL_SMS, PortLaw, level_law, plain_law, slower
from archsim.engine.engine import WeightMover, WeightTransfer
from archsim.engine.execution import Order
from archsim.engine.machine import measured_law, mesh_of
from archsim.engine.moves import Sizes, own_calibration, send_once, send_once_to, send_selections, vector_bytes
from archsim.engine.state import COMBINE, DATA_MESSAGES, DISPATCH, SLICES, Machine, Tally
from archsim.iteration.overlap import Sms
from archsim.iteration.times import gathered_ns, gathered_told
from archsim.laws import transfers
from archsim.laws.laws import Laws
from archsim.laws.mesh import KERNELS as MESH_KERNELS
from archsim.laws.mesh import quantities
from archsim.policies.allocation import Plan
from archsim.policies.placement import nearest_holders
from archsim.specs.assumptions import GATHERING, AssumptionsSpec
from archsim.specs.calibration_files import calibration_named
from archsim.specs.experiment import Scenario
from archsim.specs.fabric import LevelSpec
from archsim.specs.system import SystemSpec
from archsim.workload.demand import StepDemand
from microarch.fabric.fabric import Fabric

# ---- ports
# Ports of a cluster, and the bytes that pass them in one phase (dispatch or combine).
#
# A fabric of switches, one level (a node) or two (nodes of GPUs), has a port per GPU and level: to the switch of its
# node (NVLink), and to the network between nodes (a NIC; ``per: group``: one that the GPUs of a node share). A phase is
# a sum of flows, one network at a time: ``flows: float64[network, source, target]``, bytes between ports. Flows of all
# tokens between the same two ports are one.
#
# ============  =========================================================  =============================================
# kernel        between nodes                                              inside a node
# ============  =========================================================  =============================================
# forwarded     a vector once for every token and node, to the GPU with    from there to the GPUs that want it
#               the same number there
# direct        a vector for every token and GPU (or expert), to that GPU  only what stays in the node
# ============  =========================================================  =============================================
#
# A combine has the same flows the other way round: the GPU that forwarded sums the results of its node.

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


class PortBytes(NamedTuple):
    """Bytes of a phase between ports. ``inner``: float64[node, source, target] of the GPUs of each node; ``outer``:
    float64[network, source, target] between nodes, in the order of ``outer_ports``; no networks in a single node.
    """

    inner: np.ndarray
    outer: np.ndarray

    def part(self, share: float) -> PortBytes:
        """A share of the bytes."""
        return PortBytes(self.inner * share, self.outer * share)

    def reversed(self) -> PortBytes:
        """The same bytes on their way back."""
        return PortBytes(self.inner.swapaxes(1, 2), self.outer.swapaxes(1, 2))


def grid_of(system) -> Grid | None:
    """The nodes of a system, if it is switches of GPUs in one or two levels; else None."""
    levels: Sequence[LevelSpec] = () if system.fabric is None else system.fabric.levels
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
                "measured kernels are of nodes with equally many. List as many dead in every node"
            )
        size = int(living[0])
    return Grid(nodes, size, shared=levels[1].per != "gpu")


def flows_forwarded(vectors: np.ndarray, to_nodes: np.ndarray, grid: Grid, vector_bytes: float) -> PortBytes:
    """Flows of a dispatch that sends once for every (token, node). ``vectors``: [home, die], ``to_nodes``: [home,
    node], tokens that have an expert there.
    """
    nodes, size = grid.nodes, grid.size
    by_rail = vectors.reshape(nodes, size, nodes, size).sum(axis=0)  # [rail, node, die in it]
    inner = _off_diagonal(by_rail.swapaxes(0, 1) * float(vector_bytes))
    if nodes == 1:
        return PortBytes(inner, np.zeros((0, 0, 0)))
    between = to_nodes.reshape(nodes, size, nodes) * float(vector_bytes)
    outer = between.sum(axis=1)[None] if grid.shared else between.swapaxes(0, 1)
    return PortBytes(inner, _off_diagonal(outer))


def flows_direct(vectors: np.ndarray, grid: Grid, vector_bytes: float) -> PortBytes:
    """Flows of a dispatch that sends every vector straight to its GPU. ``vectors``: [home, die]."""
    nodes, size = grid.nodes, grid.size
    sent = vectors.reshape(nodes, size, nodes, size) * float(vector_bytes)
    here = np.arange(nodes)
    inner = _off_diagonal(sent[here, :, here, :].copy())
    if nodes == 1:
        return PortBytes(inner, np.zeros((0, 0, 0)))
    if grid.shared:
        return PortBytes(inner, _off_diagonal(sent.sum(axis=(1, 3))[None]))
    sent[here, :, here, :] = 0.0
    return PortBytes(inner, sent.reshape(1, grid.dies, grid.dies))


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
        f"{-(-experts // dies)} slots a GPU, of which {-experts % dies} are empty (placement: padded) or hold "
        "redundant experts, or transfer_software: free"
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
# time, J. ACM 23, 1976), and no other can beat it. Both engines take it. If they begin at different times (a combine,
# as ranks finish their experts at different times):
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


# ---- transfers


class Sent(NamedTuple):
    """What a dispatch sends. ``vectors``: [home, die], as they count for HBM and energy; ``arrived``: float64[die],
    distinct tokens that every die has then; ``flows``: of GPUs behind switches, else None.
    """

    vectors: np.ndarray
    arrived: np.ndarray
    flows: PortBytes | None = None

    def part(self, share: float) -> Sent:
        """A share of it."""
        return Sent(self.vectors * share, self.arrived * share, self.flows and self.flows.part(share))


class OnLinks(NamedTuple):
    """What a phase puts on every link, float64[link] each."""

    n_bytes: np.ndarray
    ns: np.ndarray


class Moves(Protocol):
    """How hidden vectors move. ``vector_bytes``: of a vector in DISPATCH and COMBINE; ``named``: the kernels."""

    @property
    def vector_bytes(self) -> tuple[int, int]: ...

    @property
    def named(self) -> str: ...

    def sent(self, plan: Plan, demand: StepDemand) -> Sent:
        """What a plan sends."""

    def dispatched(self, sent: Sent) -> np.ndarray:
        """When every die has its tokens, float64[die] ns; all send from 0 on."""

    def combined(self, sent: Sent, begin_ns: np.ndarray) -> np.ndarray:
        """When every die has its results, float64[die] ns; ``begin_ns``: float64[die], when each may return them."""

    def sms(self, sent: Sent) -> tuple[Sms, Sms]:
        """What DISPATCH and COMBINE take of the SMs of a die."""

    def on_links(self, sent: Sent) -> tuple[OnLinks, OnLinks]:
        """What DISPATCH and COMBINE put on the links."""


def build_moves(scenario: Scenario, machine: Machine, fabric: Fabric, analytical: bool) -> Moves:
    """The moves of a scenario. Raises SpecError where levels have no law, or kernels were not measured."""
    if scenario.assumptions.activations != "dispatched":
        return NoMoves(scenario, fabric)
    grid = grid_of(scenario.system)
    if scenario.assumptions.dispatch in GATHERING:
        return GatherMoves(scenario, fabric, grid)
    if grid is None:
        measured = scenario.assumptions.endpoint == "as_measured" and scenario.system.endpoint is not None
        return (MeshMoves if measured else RouteMoves)(scenario, machine, fabric)
    return PortMoves(scenario, fabric, grid, analytical)


def sms_share(system: SystemSpec, assumptions: AssumptionsSpec) -> float:
    """Of a GPU's SMs, those that a transfer takes as long as it runs."""
    if system.launch != "gpu" or assumptions.transfer_software == "free":
        return 0.0
    kernel = KERNELS.get(assumptions.dispatch)
    reference = calibration_named(system.compute.calibration).reference
    sms = NORMAL_SMS if kernel is None else kernel.sms
    if sms and system.fabric is not None:
        sms = max((level.sms for level in system.fabric.levels if level.sms), default=sms)
    return sms / reference.sms


class PortMoves:
    """Through ports; see the module."""

    def __init__(self, scenario: Scenario, fabric: Fabric, grid: Grid, analytical: bool):
        model, assumptions = scenario.model, scenario.assumptions
        self._grid, self._fabric = grid, fabric
        self._arrive = bounds if analytical else arrivals
        self._kernel = KERNELS[assumptions.dispatch]
        self._sizes = Sizes(model.experts, model.top_k, model.expert_groups, model.top_groups)
        self.vector_bytes = vector_bytes(model.hidden, scenario.system.compute.dtype, assumptions.combine)
        self._laws = {
            phase: [_law(scenario, number, op) for number in range(2 if grid.nodes > 1 else 1)]
            for phase, op in ((DISPATCH, transfers.DISPATCH), (COMBINE, transfers.COMBINE))
        }
        self.named = told_kernels(scenario) or ""
        self._links = _links_of_ports(fabric, grid)
        self._share, self._free = sms_share(scenario.system, assumptions), assumptions.transfer_software == "free"

    def sent(self, plan: Plan, demand: StepDemand) -> Sent:
        grid, hops = self._grid, self._fabric.hops
        if not self._kernel.once:
            vectors, arrived = _selections(plan, demand, self._sizes, hops)
            if self._kernel.padded:
                vectors = np.full(vectors.shape, vectors.max())
            return Sent(vectors, arrived, flows_direct(vectors, grid, self.vector_bytes[DISPATCH]))
        groups = [np.arange(grid.dies), grid.node_of] if grid.nodes > 1 else [np.arange(grid.dies)]
        found = send_once_to(groups, plan, origins_of(demand), demand.routing, self._sizes, hops)
        flows = flows_forwarded(found[0], found[-1], grid, self.vector_bytes[DISPATCH])
        return Sent(found[0], found[0].sum(axis=0), flows)

    def dispatched(self, sent: Sent) -> np.ndarray:
        return self._done(self._flows(sent)[0], DISPATCH, np.zeros(self._grid.dies))

    def combined(self, sent: Sent, begin_ns: np.ndarray) -> np.ndarray:
        return self._done(self._flows(sent)[1], COMBINE, begin_ns)

    def _flows(self, sent: Sent) -> tuple[PortBytes, PortBytes]:
        """Of DISPATCH and, the same way back, of COMBINE."""
        assert sent.flows is not None, "of ports"
        ratio = self.vector_bytes[COMBINE] / self.vector_bytes[DISPATCH]
        return sent.flows, sent.flows.part(ratio).reversed()

    def _done(self, flows: PortBytes, phase: np.int64, begin_ns: np.ndarray) -> np.ndarray:
        grid, laws = self._grid, self._laws[phase]
        of_nodes = begin_ns.reshape(grid.nodes, grid.size)
        found = np.maximum(self._arrive(flows.inner, of_nodes, laws[0]).ravel(), begin_ns + laws[0].fixed_ns)
        if grid.nodes == 1:
            return found
        ports = outer_ports(grid, len(flows.outer))
        # what a node sends is summed in it, or has been there, when its last GPU is ready
        ready = of_nodes.max(axis=1) if self._kernel.forwarded or grid.shared else begin_ns
        source = ready[ports // grid.size] if self._kernel.forwarded and not grid.shared else ready[ports]
        arrived = self._arrive(flows.outer, source, laws[1])
        by_port = np.zeros(ports.max() + 1)
        by_port[ports] = arrived
        if grid.shared:
            by_port = np.repeat(by_port, grid.size)
        elif self._kernel.forwarded and phase == DISPATCH:
            by_port = np.repeat(by_port.reshape(grid.nodes, grid.size).max(axis=1), grid.size)
        return np.maximum(np.maximum(found, by_port), begin_ns + laws[1].fixed_ns)

    def sms(self, sent: Sent) -> tuple[Sms, Sms]:
        """Kernels that send to experts and receive take all SMs for as long as they would inside one node, where SMs
        move all bytes themselves; for the rest of the time, the NIC does.
        """
        if self._free or self._share:
            return Sms(share=self._share), Sms(share=self._share)
        passed = sent.vectors.sum(axis=1).max() * (self._grid.size - 1) / self._grid.size
        laws = [self._laws[phase][0] for phase in (DISPATCH, COMBINE)]
        dispatch, combine = (
            Sms(law.fixed_ns + float(law.busy(passed * n_bytes)))
            for law, n_bytes in zip(laws, self.vector_bytes, strict=True)
        )
        return dispatch, combine

    def on_links(self, sent: Sent) -> tuple[OnLinks, OnLinks]:
        there, back = self._flows(sent)
        return self._flows_on_links(there, DISPATCH), self._flows_on_links(back, COMBINE)

    def _flows_on_links(self, flows: PortBytes, phase: np.int64) -> OnLinks:
        found = OnLinks(np.zeros(self._fabric.links), np.zeros(self._fabric.links))
        levels = [(flows.inner, np.arange(self._grid.dies).reshape(self._grid.nodes, -1))]
        if self._grid.nodes > 1:
            levels.append((flows.outer, outer_ports(self._grid, len(flows.outer))))
        for (of_level, ports), law, links in zip(levels, self._laws[phase], self._links, strict=True):
            for axis, link in ((2, links[0]), (1, links[1])):
                passed = of_level.sum(axis=axis)
                found.n_bytes[link[ports]] += passed
                found.ns[link[ports]] += law.busy(passed)
        return found


class GatherMoves:
    """All tokens to all GPUs of a node; see the module. Vectors and flows do not depend on the routing."""

    def __init__(self, scenario: Scenario, fabric: Fabric, grid: Grid | None):
        if grid is None or grid.nodes > 1:
            raise SpecError(
                f"dispatch: {scenario.assumptions.dispatch}: all-gather and reduce-scatter were measured inside a node "
                "alone. Take a system of one level of switches, or dispatch: per_rank"
            )
        model = scenario.model
        self._sums = GATHERING[scenario.assumptions.dispatch]
        self._ranks, self._top_k, self._fabric = grid.dies, model.top_k, fabric
        self._laws = Laws(calibration_named(own_calibration(scenario.system)))
        self.vector_bytes = vector_bytes(model.hidden, scenario.system.compute.dtype, scenario.assumptions.combine)
        summed = self._sums.replace("_", "-")
        self.named = f"{self._laws.calibration.gpu} all-gather and {summed} on {self._ranks} ranks"
        for op in ("all_gather", self._sums):  # refused here, where nothing of it was measured
            gathered_ns(self._laws, op, np.ones(1), self._ranks)
            if told := gathered_told(self._laws, op, self._ranks):
                self.named += f" ({told})"
        self._share = sms_share(scenario.system, scenario.assumptions)
        self._factor = scenario.system.d2d.measured_factor

    def sent(self, plan: Plan, demand: StepDemand) -> Sent:
        tokens = origins_of(demand).sum(axis=1, dtype=np.int64) / self._top_k
        vectors = np.repeat(tokens[:, None], self._ranks, axis=1)
        return Sent(vectors, vectors.sum(axis=0))

    def dispatched(self, sent: Sent) -> np.ndarray:
        return self._all("all_gather", sent, self.vector_bytes[DISPATCH])

    def combined(self, sent: Sent, begin_ns: np.ndarray) -> np.ndarray:
        return begin_ns.max() + self._all(self._sums, sent, self.vector_bytes[COMBINE])

    def _all(self, op: str, sent: Sent, n_bytes: float) -> np.ndarray:
        # the fullest part decides: libraries pad ranks to equal sizes
        gathered = self._ranks * sent.vectors.max() * n_bytes
        ns = float(gathered_ns(self._laws, op, np.array([max(gathered, 1.0)]), self._ranks)[0])
        return np.full(self._ranks, ns * self._factor if self._factor != 1 else ns)

    def sms(self, sent: Sent) -> tuple[Sms, Sms]:
        return Sms(share=self._share), Sms(share=self._share)

    def on_links(self, sent: Sent) -> tuple[OnLinks, OnLinks]:
        links = _links_of_ports(self._fabric, Grid(1, self._ranks))[0]
        vectors = np.zeros(self._fabric.links)
        vectors[np.concatenate(links)] = float(sent.vectors[:, 0].sum()) * (self._ranks - 1) / self._ranks
        return self._phase(vectors, DISPATCH), self._phase(vectors, COMBINE)

    def _phase(self, vectors: np.ndarray, phase: np.int64) -> OnLinks:
        n_bytes = vectors * self.vector_bytes[phase]
        return OnLinks(n_bytes, n_bytes / self._fabric.link_bytes_per_ns)


class NoMoves:
    """Every die has its tokens, and keeps its results; see the module."""

    vector_bytes = (0, 0)
    named = ""

    def __init__(self, scenario: Scenario, fabric: Fabric):
        model = scenario.model
        self._fabric, self._receives = fabric, scenario.assumptions.receives
        self._sizes = Sizes(model.experts, model.top_k, model.expert_groups, model.top_groups)

    def sent(self, plan: Plan, demand: StepDemand) -> Sent:
        dies = self._fabric.dies
        if self._receives:
            once = send_once(plan, origins_of(demand), demand.routing, self._sizes, self._fabric.hops)
            arrived = once.sum(axis=0).astype(float)
        else:
            arrived = np.full(dies, origins_of(demand).sum(dtype=np.int64) / demand.top_k)
        return Sent(np.zeros((dies, dies)), arrived)

    def dispatched(self, sent: Sent) -> np.ndarray:
        return np.zeros(self._fabric.dies)

    def combined(self, sent: Sent, begin_ns: np.ndarray) -> np.ndarray:
        return begin_ns

    def sms(self, sent: Sent) -> tuple[Sms, Sms]:
        return Sms(), Sms()

    def on_links(self, sent: Sent) -> tuple[OnLinks, OnLinks]:
        nothing = OnLinks(np.zeros(self._fabric.links), np.zeros(self._fabric.links))
        return nothing, nothing


class RouteMoves:
    """Over the links of routes; see the module."""

    def __init__(self, scenario: Scenario, machine: Machine, fabric: Fabric):
        model, assumptions = scenario.model, scenario.assumptions
        charged = scenario.system.launch == "gpu" and assumptions.transfer_software == "charged"
        if charged and not isinstance(self, MeshMoves):
            raise SpecError(
                f"no kernels were measured on {scenario.system.shape}: execution: expert_parallel with launch: gpu "
                "needs one or two levels of switches with laws. Take transfer_software: free, or launch: local_cp"
            )
        self._fabric, self._fixed_ns = fabric, machine.transfer_ns
        self._once = KERNELS[assumptions.dispatch].once
        self._sizes = Sizes(model.experts, model.top_k, model.expert_groups, model.top_groups)
        self.vector_bytes = vector_bytes(model.hidden, scenario.system.compute.dtype, assumptions.combine)
        self.named = ""

    def sent(self, plan: Plan, demand: StepDemand) -> Sent:
        hops = self._fabric.hops
        if self._once:
            vectors = send_once(plan, origins_of(demand), demand.routing, self._sizes, hops)
            return Sent(vectors, vectors.sum(axis=0))
        return Sent(*_selections(plan, demand, self._sizes, hops))

    def dispatched(self, sent: Sent) -> np.ndarray:
        return self._done(sent.vectors * float(self.vector_bytes[DISPATCH]), DISPATCH)

    def combined(self, sent: Sent, begin_ns: np.ndarray) -> np.ndarray:
        return begin_ns.max() + self._done(sent.vectors.T * float(self.vector_bytes[COMBINE]), COMBINE)

    def _done(self, n_bytes: np.ndarray, phase: np.int64) -> np.ndarray:
        away = np.where(n_bytes > 0, n_bytes, 0.0)
        np.fill_diagonal(away, 0.0)
        busy_ns = link_bytes(self._fabric, away) / self._fabric.link_bytes_per_ns
        return self._fixed_ns[phase] + slowest_link(self._fabric, away, busy_ns)

    def sms(self, sent: Sent) -> tuple[Sms, Sms]:
        return Sms(), Sms()

    def on_links(self, sent: Sent) -> tuple[OnLinks, OnLinks]:
        away = sent.vectors * 1.0
        np.fill_diagonal(away, 0.0)
        return self._phase(away, DISPATCH), self._phase(away.T, COMBINE)

    def _phase(self, vectors: np.ndarray, phase: np.int64) -> OnLinks:
        n_bytes = link_bytes(self._fabric, vectors * self.vector_bytes[phase])
        return OnLinks(n_bytes, n_bytes / self._fabric.link_bytes_per_ns)


class MeshMoves(RouteMoves):
    """By the law of measured kernels; see the module. All dies have what they await when the kernel ends."""

    def __init__(self, scenario: Scenario, machine: Machine, fabric: Fabric):
        system, name = scenario.system, str(scenario.system.endpoint)
        super().__init__(scenario, machine, fabric)
        self._laws = [measured_law(name, kernel, system) for kernel in MESH_KERNELS]
        self._mesh = mesh_of(system)[1:]
        self.named = f"{name.replace('/', ' ')}: {self._laws[0].note}"

    def dispatched(self, sent: Sent) -> np.ndarray:
        return np.full(self._fabric.dies, self._kernel_ns(sent, DISPATCH))

    def combined(self, sent: Sent, begin_ns: np.ndarray) -> np.ndarray:
        return np.full(self._fabric.dies, begin_ns.max() + self._kernel_ns(sent, COMBINE))

    def _kernel_ns(self, sent: Sent, phase: np.int64) -> float:
        found = quantities(sent.vectors, *self._mesh, MESH_KERNELS[phase])
        return self._laws[phase].time_ns(found, self.vector_bytes[phase]) if found["tokens"] else 0.0


def _selections(plan: Plan, demand: StepDemand, sizes: Sizes, hops) -> tuple[np.ndarray, np.ndarray]:
    """Vectors and tokens of ``Sent`` where one is sent for every token and expert."""
    origins = origins_of(demand)
    once = send_once(plan, origins, demand.routing, sizes, hops)
    return send_selections(plan, origins, demand.routing, sizes, hops), once.sum(axis=0)


def origins_of(demand: StepDemand) -> np.ndarray:
    """Those of a step whose tokens move, for which a run counts them."""
    assert demand.origins is not None, "AssumptionsSpec.needs_origins"
    return demand.origins


def _law(scenario: Scenario, number: int, op: str) -> PortLaw:
    """The law of a level: of measured kernels, or of its bandwidth."""
    system, assumptions = scenario.system, scenario.assumptions
    assert system.fabric is not None, "it has nodes"
    levels = system.fabric.levels
    level, bandwidth = levels[number], levels[number].bandwidth_bytes_per_s or system.d2d.bandwidth_bytes_per_s
    if assumptions.transfer_software == "free":
        hop_ns = system.d2d.hop_latency_ns if level.hop_latency_ns is None else level.hop_latency_ns
        return plain_law(2 * hop_ns, bandwidth * system.d2d.efficiency / NS_PER_S)
    nodes = levels[1].size if len(levels) > 1 else 1
    law = level_law(level, number, op, assumptions.dispatch, scenario.model, nodes, levels[0].size, bandwidth)
    return slower(law, system.d2d.measured_factor)


def told_kernels(scenario: Scenario) -> str | None:
    """The measured kernels that move hidden vectors between GPUs, by level; None where none are charged."""
    grid, charged = grid_of(scenario.system), scenario.assumptions.transfer_software == "charged"
    if grid is None or not charged or scenario.assumptions.dispatch in GATHERING:
        return None
    return "; ".join(law.named for law in _laws_of(scenario, transfers.DISPATCH))


def kernels_carried(scenario: Scenario) -> bool:
    """Whether one of the kernels of `told_kernels` was measured on another GPU, shape, or number of ranks or nodes."""
    gpu = calibration_named(scenario.system.compute.calibration).gpu
    laws = [law for op in (transfers.DISPATCH, transfers.COMBINE) for law in _laws_of(scenario, op)]
    return any(law.carried or law.gpu != gpu for law in laws)


def _laws_of(scenario: Scenario, op: str) -> Iterator[PortLaw]:
    """Of the levels of a cluster, the innermost first."""
    grid = grid_of(scenario.system)
    assert grid is not None, "kernels were measured between GPUs of nodes alone"
    return (_law(scenario, number, op) for number in range(2 if grid.nodes > 1 else 1))


def _links_of_ports(fabric: Fabric, grid: Grid) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each level, the link out of and into every port, int64[port] each."""
    found = []
    for level, ports in ((0, grid.dies), (1, grid.nodes if grid.shared else grid.dies))[: 2 if grid.nodes > 1 else 1]:
        own = np.flatnonzero(fabric.link_class == level)
        src, dst = fabric.link_src[own], fabric.link_dst[own]
        first = 0 if ports == grid.dies else fabric.dies + grid.nodes  # shared ports follow dies and their switches
        out, into = np.zeros(ports, np.int64), np.zeros(ports, np.int64)
        leaves, enters = (src >= first) & (src < first + ports), (dst >= first) & (dst < first + ports)
        out[src[leaves] - first], into[dst[enters] - first] = own[leaves], own[enters]
        found.append((out, into))
    return found


# ---- fetches
# Weights that ranks fetch for one step: of experts that a plan runs where they are not held.
#
# HarMoEny passes tokens to ranks that fetch the expert; the wafer's rules run experts beside their holders. A rank
# fetches each such expert from the nearest holder, once a step, over the links that the dispatch has used before;
# meanwhile it computes what it holds. Fetched weights are not kept.


class FetchedWeights(NamedTuple):
    """``ns``: float64[die], from the end of the dispatch until a die has the weights; ``share``: float64[die] of its
    pairs that wait for them. ``source``: int64[fetch], where the weights come from; ``transfer``: their way, None
    without fetches.
    """

    ns: np.ndarray
    share: np.ndarray
    source: np.ndarray
    transfer: WeightTransfer | None


class Fetches:
    """Times and counts what the steps of a run fetch."""

    def __init__(self, machine: Machine, fabric: Fabric, tally: Tally):
        self._machine, self._fabric, self._tally = machine, fabric, tally
        self._mover = WeightMover(machine, fabric, tally)

    def of(self, order: Order) -> FetchedWeights:
        plan, dies = order.plan, self._machine.dies
        holds = order.placement.holds[order.row]
        away = ~holds[plan.expert, plan.die]
        if not away.any():
            return FetchedWeights(np.zeros(dies), np.zeros(dies), np.zeros(0, np.int64), None)
        die = plan.die[away]
        source = nearest_holders(holds[plan.expert[away]], die, self._fabric.hops)
        transfer = self._mover.transfer(source, die, self._expert_bytes)
        pairs = np.bincount(plan.die, plan.tokens, dies)
        waiting = np.bincount(die, plan.tokens[away], dies)
        share = np.divide(waiting, pairs, out=np.zeros(dies), where=pairs > 0)
        return FetchedWeights(transfer.arrival_ns, share, source, transfer)

    def count(self, fetched: FetchedWeights) -> None:
        """Add what a step has fetched to the tally."""
        if fetched.transfer is not None:
            self._mover.book(fetched.transfer, DATA_MESSAGES)
            np.add.at(self._tally.dies["remote_read_bytes"], fetched.source, self._expert_bytes)

    @property
    def _expert_bytes(self) -> int:
        return SLICES * self._machine.slice_bytes
