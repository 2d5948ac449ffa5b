"""Dispatch and combine of an expert-parallel step: the flows of a plan, and when every GPU has what it awaits.

=============  =======================================================================================================
`PortMoves`    switches of GPUs: flows through the ports of each level (``ports``), timed by measured kernels
               (``laws``, ``between_nodes``) or by bandwidths (``transfer_software: free``)
`LinkedMoves`  the same kernels between GPUs that are linked to each other, one link for each pair
`GatherMoves`  ``dispatch: all_gather``: every GPU of a node gets every token, and a reduce-scatter (with
               ``all_gather_all_reduce`` an all-reduce) returns the results
`NoMoves`      nothing moves: every die has all tokens (``activations: replicated``), or those that a dispatch would
               bring it (``ignored``)
`RouteMoves`   any other fabric (a wafer): bytes of every link along its routes, at its bandwidth
`MeshMoves`    the same by the law of kernels measured on it, where the system names its ``endpoint``
=============  =======================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from archsim.base import errors, units
from archsim.base.compiled import kernel
from archsim.engine import mesh_laws, state, transfer_kernels
from archsim.engine.cluster.between_nodes import level_law
from archsim.engine.cluster.finish import arrivals, bounds
from archsim.engine.cluster.laws import KERNELS, NORMAL_SMS, PortLaw, plain_law, slower
from archsim.engine.cluster.ports import LINKED, Grid, PortBytes, flows_direct, flows_forwarded, grid_of, outer_ports
from archsim.engine.moves import Sizes, send_once_to, send_selections, vector_bytes
from archsim.iteration import collectives, overlap
from archsim.iteration.machine import links_on
from archsim.laws import transfers
from archsim.laws.calibration_files import calibration_named
from archsim.laws.laws import Laws
from archsim.laws.mesh import KERNELS as MESH_KERNELS
from archsim.laws.mesh import quantities
from archsim.machine.system import SystemSpec
from archsim.policies.allocation import Plan
from archsim.specs.assumptions import GATHERING, AssumptionsSpec
from archsim.specs.scenario import Scenario
from archsim.traffic.step_demand import StepDemand
from microarch.fabric.fabric import Fabric

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


class Sent(NamedTuple):
    """What a dispatch sends. ``vectors``: [home, die], as they count for HBM and energy; ``arrived``: float64[die],
    distinct tokens that every die has then; ``flows``: of GPUs behind switches, else None.
    """

    vectors: np.ndarray
    arrived: np.ndarray
    flows: PortBytes | None = None

    def part(self, share: float) -> Sent:
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

    def dispatch_ns(self, sent: Sent) -> np.ndarray:
        """When every die has its tokens, float64[die] ns; all send from 0 on."""

    def combine_ns(self, sent: Sent, begin_ns: np.ndarray) -> np.ndarray:
        """When every die has its results, float64[die] ns; ``begin_ns``: float64[die], when each may return them."""

    def sms(self, sent: Sent) -> tuple[overlap.Sms, overlap.Sms]:
        """What DISPATCH and COMBINE take of the SMs of a die."""

    def on_links(self, sent: Sent) -> tuple[OnLinks, OnLinks]:
        """What DISPATCH and COMBINE put on the links."""


class _Vectors:
    """Vectors and tokens of a plan; see `archsim.engine.moves`."""

    def __init__(self, scenario: Scenario, hops: np.ndarray):
        model, shared = scenario.model, scenario.policy.shared
        # shared experts run on any die, whether or not the token has other experts there
        self._anywhere, self._hops = shared.params.get("loads") == "own" or ":" in shared.name, hops
        self._sizes = Sizes(model.experts, model.top_k, model.expert_groups, model.top_groups)

    def once_to(self, groups: Sequence[np.ndarray], plan: Plan, demand: StepDemand) -> list[np.ndarray]:
        """[home, group] for each of ``groups``: one for every token and group of dies."""
        anywhere = plan.shared if self._anywhere else None
        return send_once_to(groups, plan, origins_of(demand), demand.routing, self._sizes, self._hops, anywhere)

    def once(self, plan: Plan, demand: StepDemand) -> np.ndarray:
        """[home, die]: one for every token and die."""
        return self.once_to([np.arange(len(self._hops))], plan, demand)[0]

    def selections(self, plan: Plan, demand: StepDemand) -> tuple[np.ndarray, np.ndarray]:
        """Vectors and tokens of ``Sent``: one for every token and expert, and for shared experts away from home."""
        vectors = send_selections(plan, origins_of(demand), demand.routing, self._sizes, self._hops)
        if plan.shared is not None:
            vectors = vectors + plan.shared * (1 - np.eye(len(vectors), dtype=np.int64))
        return vectors, self.once(plan, demand).sum(axis=0)


def build_moves(scenario: Scenario, machine: state.Machine, fabric: Fabric, analytical: bool) -> Moves:
    """The moves of a scenario. Raises SpecError where levels have no law, or kernels were not measured."""
    grid = grid_of(scenario.system)
    if scenario.assumptions.activations != "dispatched" or (grid is not None and not fabric.links):
        return NoMoves(scenario, fabric)
    if grid is not None and scenario.system.has_dead_links:
        if scenario.assumptions.transfer_software == "charged":
            raise errors.SpecError(
                f"{scenario.system.name}: links_as_built.dead: kernels were measured where all links work. List the "
                "GPU as dead, give the link a share of its bandwidth (degraded), or take transfer_software: free"
            )
        return RouteMoves(scenario, machine, fabric)
    if scenario.assumptions.dispatch in GATHERING:
        return GatherMoves(scenario, fabric, grid)
    if grid is not None and grid.linked and scenario.assumptions.transfer_software == "charged":
        return LinkedMoves(scenario, fabric, grid, analytical)
    if grid is None or grid.linked:
        return (RouteMoves if scenario.system.endpoint is None else MeshMoves)(scenario, machine, fabric)
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
        self._of = _Vectors(scenario, fabric.hops)
        self.vector_bytes = vector_bytes(model.hidden, scenario.system.compute.dtype, assumptions.combine)
        self._laws = {
            phase: [_law(scenario, number, op) for number in range(2 if grid.nodes > 1 else 1)]
            for phase, op in ((state.DISPATCH, transfers.DISPATCH), (state.COMBINE, transfers.COMBINE))
        }
        self.named = name_kernels(scenario) or ""
        self._links = [] if grid.linked else _links_of_ports(fabric, grid)
        rates = fabric.link_bytes_per_ns
        shares = [rates[out] / fabric.classes[level].bytes_per_ns for level, (out, _) in enumerate(self._links)]
        self._port_share = shares  # of the bandwidth of a level, float64[port] each
        self._share, self._free = sms_share(scenario.system, assumptions), assumptions.transfer_software == "free"

    def sent(self, plan: Plan, demand: StepDemand) -> Sent:
        grid = self._grid
        if not self._kernel.once:
            vectors, arrived = self._of.selections(plan, demand)
            if self._kernel.padded:
                vectors = np.full(vectors.shape, vectors.max())
            return Sent(vectors, arrived, flows_direct(vectors, grid, self.vector_bytes[state.DISPATCH]))
        groups = [np.arange(grid.dies), grid.node_of] if grid.nodes > 1 else [np.arange(grid.dies)]
        found = self._of.once_to(groups, plan, demand)
        flows = flows_forwarded(found[0], found[-1], grid, self.vector_bytes[state.DISPATCH])
        return Sent(found[0], found[0].sum(axis=0), flows)

    def dispatch_ns(self, sent: Sent) -> np.ndarray:
        return self._done(self._flows(sent)[0], state.DISPATCH, np.zeros(self._grid.dies))

    def combine_ns(self, sent: Sent, begin_ns: np.ndarray) -> np.ndarray:
        return self._done(self._flows(sent)[1], state.COMBINE, begin_ns)

    def _flows(self, sent: Sent) -> tuple[PortBytes, PortBytes]:
        """Of DISPATCH and, the same way back, of COMBINE."""
        assert sent.flows is not None, "of ports"
        ratio = self.vector_bytes[state.COMBINE] / self.vector_bytes[state.DISPATCH]
        return sent.flows, sent.flows.part(ratio).reverse()

    def _done(self, flows: PortBytes, phase: np.int64, begin_ns: np.ndarray) -> np.ndarray:
        grid, laws = self._grid, self._laws[phase]
        of_nodes = begin_ns.reshape(grid.nodes, grid.size)
        arrived = self._arrive(flows.inner, of_nodes, laws[0], self._port_share[0].reshape(of_nodes.shape))
        found = np.maximum(arrived.ravel(), begin_ns + laws[0].fixed_ns)
        if grid.nodes == 1:
            return found
        ports = outer_ports(grid, len(flows.outer))
        # what a node sends is summed in it, or has been there, when its last GPU is ready
        ready = of_nodes.max(axis=1) if self._kernel.forwarded or grid.shared else begin_ns
        source = ready[ports // grid.size] if self._kernel.forwarded and not grid.shared else ready[ports]
        arrived = self._arrive(flows.outer, source, laws[1], self._port_share[1][ports])
        by_port = np.zeros(ports.max() + 1)
        by_port[ports] = arrived
        if grid.shared:
            by_port = np.repeat(by_port, grid.size)
        elif self._kernel.forwarded and phase == state.DISPATCH:
            by_port = np.repeat(by_port.reshape(grid.nodes, grid.size).max(axis=1), grid.size)
        return np.maximum(np.maximum(found, by_port), begin_ns + laws[1].fixed_ns)

    def sms(self, sent: Sent) -> tuple[overlap.Sms, overlap.Sms]:
        """Sends and receives take all SMs as long as inside one node; for the rest of the time, the NIC moves all."""
        if self._free or self._share:
            return overlap.Sms(share=self._share), overlap.Sms(share=self._share)
        passed = sent.vectors.sum(axis=1).max() * (self._grid.size - 1) / self._grid.size
        laws = [self._laws[phase][0] for phase in (state.DISPATCH, state.COMBINE)]
        dispatch, combine = (
            overlap.Sms(law.fixed_ns + float(law.busy(passed * n_bytes)))
            for law, n_bytes in zip(laws, self.vector_bytes, strict=True)
        )
        return dispatch, combine

    def on_links(self, sent: Sent) -> tuple[OnLinks, OnLinks]:
        there, back = self._flows(sent)
        return self._flows_on_links(there, state.DISPATCH), self._flows_on_links(back, state.COMBINE)

    def _flows_on_links(self, flows: PortBytes, phase: np.int64) -> OnLinks:
        found = OnLinks(np.zeros(self._fabric.links), np.zeros(self._fabric.links))
        levels = [(flows.inner, np.arange(self._grid.dies).reshape(self._grid.nodes, -1))]
        if self._grid.nodes > 1:
            levels.append((flows.outer, outer_ports(self._grid, len(flows.outer))))
        every = zip(levels, self._laws[phase], self._links, self._port_share, strict=True)
        for (of_level, ports), law, links, share in every:
            for axis, link in ((2, links[0]), (1, links[1])):
                passed = of_level.sum(axis=axis)
                found.n_bytes[link[ports]] += passed
                found.ns[link[ports]] += law.busy(passed) / share[ports]
        return found


class LinkedMoves(PortMoves):
    """Over the links of pairs; see the module. A flow takes as long as a measured port with as many bytes for every
    other GPU, which all links bring together: even traffic takes exactly that, and no flow shares a link with another.
    """

    def _done(self, flows: PortBytes, phase: np.int64, begin_ns: np.ndarray) -> np.ndarray:
        law, sent = self._laws[phase][0], flows.inner[0]
        ends = np.where(sent > 0, begin_ns[:, None] + self._busy(sent, phase) + law.fixed_ns, 0.0).max(axis=0)
        return np.maximum(ends, begin_ns + law.fixed_ns)

    def _busy(self, sent: np.ndarray, phase: np.int64) -> np.ndarray:
        rates = np.full(sent.shape, self._fabric.classes[0].bytes_per_ns)
        rates[self._fabric.link_src, self._fabric.link_dst] = self._fabric.link_bytes_per_ns
        return self._laws[phase][0].busy(sent * (self._grid.size - 1)) * (self._fabric.classes[0].bytes_per_ns / rates)

    def _flows_on_links(self, flows: PortBytes, phase: np.int64) -> OnLinks:
        link = self._fabric.link_src, self._fabric.link_dst
        return OnLinks(flows.inner[0][link], self._busy(flows.inner[0], phase)[link])


class GatherMoves:
    """All tokens to all GPUs of a node; see the module. Vectors and flows do not depend on the routing."""

    def __init__(self, scenario: Scenario, fabric: Fabric, grid: Grid | None):
        if grid is None or grid.nodes > 1:
            raise errors.SpecError(
                f"dispatch: {scenario.assumptions.dispatch}: all-gather and reduce-scatter were measured inside a node "
                "alone. Take a system of one level of switches, or dispatch: per_rank"
            )
        model = scenario.model
        self._sums = GATHERING[scenario.assumptions.dispatch]
        self._ranks, self._top_k, self._fabric, self._linked = grid.dies, model.top_k, fabric, grid.linked
        self._laws = Laws(links_on(scenario.system, transfer_kernels.own_calibration(scenario.system)))
        self.vector_bytes = vector_bytes(model.hidden, scenario.system.compute.dtype, scenario.assumptions.combine)
        summed = self._sums.replace("_", "-")
        self.named = f"{self._laws.calibration.gpu} all-gather and {summed} on {self._ranks} ranks"
        for op in ("all_gather", self._sums):  # refused here, where nothing of it was measured
            collectives.gathered_ns(self._laws, op, np.ones(1), self._ranks)
            if described := collectives.describe_gathered(self._laws, op, self._ranks):
                self.named += f" ({described})"
        self._share = sms_share(scenario.system, scenario.assumptions)
        self._factor = scenario.system.d2d.measured_factor

    def sent(self, plan: Plan, demand: StepDemand) -> Sent:
        tokens = origins_of(demand).sum(axis=1, dtype=np.int64) / self._top_k
        vectors = np.repeat(tokens[:, None], self._ranks, axis=1)
        return Sent(vectors, vectors.sum(axis=0))

    def dispatch_ns(self, sent: Sent) -> np.ndarray:
        return self._all("all_gather", sent, self.vector_bytes[state.DISPATCH])

    def combine_ns(self, sent: Sent, begin_ns: np.ndarray) -> np.ndarray:
        return begin_ns.max() + self._all(self._sums, sent, self.vector_bytes[state.COMBINE])

    def _all(self, op: str, sent: Sent, n_bytes: float) -> np.ndarray:
        # the fullest part decides: libraries pad ranks to equal sizes
        gathered = self._ranks * sent.vectors.max() * n_bytes
        ns = float(collectives.gathered_ns(self._laws, op, np.array([max(gathered, 1.0)]), self._ranks)[0])
        return np.full(self._ranks, ns * self._factor if self._factor != 1 else ns)

    def sms(self, sent: Sent) -> tuple[overlap.Sms, overlap.Sms]:
        return overlap.Sms(share=self._share), overlap.Sms(share=self._share)

    def on_links(self, sent: Sent) -> tuple[OnLinks, OnLinks]:
        if self._linked:
            vectors = sent.vectors[self._fabric.link_src, self._fabric.link_dst].astype(float)
            return self._phase(vectors, state.DISPATCH), self._phase(vectors, state.COMBINE)
        links = _links_of_ports(self._fabric, Grid(1, self._ranks))[0]
        vectors = np.zeros(self._fabric.links)
        vectors[np.concatenate(links)] = float(sent.vectors[:, 0].sum()) * (self._ranks - 1) / self._ranks
        return self._phase(vectors, state.DISPATCH), self._phase(vectors, state.COMBINE)

    def _phase(self, vectors: np.ndarray, phase: np.int64) -> OnLinks:
        n_bytes = vectors * self.vector_bytes[phase]
        return OnLinks(n_bytes, n_bytes / self._fabric.link_bytes_per_ns)


class NoMoves:
    """Every die has its tokens, and keeps its results; see the module."""

    vector_bytes = (0, 0)
    named = ""

    def __init__(self, scenario: Scenario, fabric: Fabric):
        self._fabric, self._receives = fabric, scenario.assumptions.receives
        self._of = _Vectors(scenario, fabric.hops)

    def sent(self, plan: Plan, demand: StepDemand) -> Sent:
        dies = self._fabric.dies
        if self._receives:
            arrived = self._of.once(plan, demand).sum(axis=0).astype(float)
        else:
            arrived = np.full(dies, origins_of(demand).sum(dtype=np.int64) / demand.top_k)
        return Sent(np.zeros((dies, dies)), arrived)

    def dispatch_ns(self, sent: Sent) -> np.ndarray:
        return np.zeros(self._fabric.dies)

    def combine_ns(self, sent: Sent, begin_ns: np.ndarray) -> np.ndarray:
        return begin_ns

    def sms(self, sent: Sent) -> tuple[overlap.Sms, overlap.Sms]:
        return overlap.Sms(), overlap.Sms()

    def on_links(self, sent: Sent) -> tuple[OnLinks, OnLinks]:
        nothing = OnLinks(np.zeros(self._fabric.links), np.zeros(self._fabric.links))
        return nothing, nothing


class RouteMoves:
    """Over the links of routes; see the module."""

    def __init__(self, scenario: Scenario, machine: state.Machine, fabric: Fabric):
        model, assumptions = scenario.model, scenario.assumptions
        charged = scenario.system.launch == "gpu" and assumptions.transfer_software == "charged"
        if charged and not isinstance(self, MeshMoves):
            raise errors.SpecError(
                f"no kernels were measured on {scenario.system.shape}: execution: expert_parallel with launch: gpu "
                "needs one or two levels of switches, or one of links between all GPUs, with laws. Take "
                "transfer_software: free, or launch: local_cp"
            )
        self._fabric, self._fixed_ns = fabric, machine.transfer_ns
        self._once = KERNELS[assumptions.dispatch].once
        self._of = _Vectors(scenario, fabric.hops)
        self.vector_bytes = vector_bytes(model.hidden, scenario.system.compute.dtype, assumptions.combine)
        self.named = ""

    def sent(self, plan: Plan, demand: StepDemand) -> Sent:
        if self._once:
            vectors = self._of.once(plan, demand)
            return Sent(vectors, vectors.sum(axis=0))
        return Sent(*self._of.selections(plan, demand))

    def dispatch_ns(self, sent: Sent) -> np.ndarray:
        return self._done(sent.vectors * float(self.vector_bytes[state.DISPATCH]), state.DISPATCH)

    def combine_ns(self, sent: Sent, begin_ns: np.ndarray) -> np.ndarray:
        return begin_ns.max() + self._done(sent.vectors.T * float(self.vector_bytes[state.COMBINE]), state.COMBINE)

    def _done(self, n_bytes: np.ndarray, phase: np.int64) -> np.ndarray:
        away = np.where(n_bytes > 0, n_bytes, 0.0)
        np.fill_diagonal(away, 0.0)
        busy_ns = link_bytes(self._fabric, away) / self._fabric.link_bytes_per_ns
        return self._fixed_ns[phase] + slowest_link(self._fabric, away, busy_ns)

    def sms(self, sent: Sent) -> tuple[overlap.Sms, overlap.Sms]:
        return overlap.Sms(), overlap.Sms()

    def on_links(self, sent: Sent) -> tuple[OnLinks, OnLinks]:
        away = sent.vectors * 1.0
        np.fill_diagonal(away, 0.0)
        return self._phase(away, state.DISPATCH), self._phase(away.T, state.COMBINE)

    def _phase(self, vectors: np.ndarray, phase: np.int64) -> OnLinks:
        n_bytes = link_bytes(self._fabric, vectors * self.vector_bytes[phase])
        return OnLinks(n_bytes, n_bytes / self._fabric.link_bytes_per_ns)


class MeshMoves(RouteMoves):
    """By measured kernels: a vector for every token and expert whatever ``dispatch`` says; all arrive at the end."""

    def __init__(self, scenario: Scenario, machine: state.Machine, fabric: Fabric):
        system, name = scenario.system, str(scenario.system.endpoint)
        super().__init__(scenario, machine, fabric)
        self._once, self._factor = False, system.d2d.measured_factor
        self._laws = [mesh_laws.measured_law(name, kernel, system) for kernel in MESH_KERNELS]
        self._mesh, self._rate = mesh_laws.mesh_of(system)[1:], mesh_laws.neighbour_bytes_per_s(name, system, fabric)
        self.named = mesh_laws.name_endpoint(system)

    def dispatch_ns(self, sent: Sent) -> np.ndarray:
        return np.full(self._fabric.dies, self._kernel_ns(sent, state.DISPATCH))

    def combine_ns(self, sent: Sent, begin_ns: np.ndarray) -> np.ndarray:
        return np.full(self._fabric.dies, begin_ns.max() + self._kernel_ns(sent, state.COMBINE))

    def _kernel_ns(self, sent: Sent, phase: np.int64) -> float:
        found = quantities(sent.vectors, *self._mesh, MESH_KERNELS[phase])
        if not found["tokens"]:
            return 0.0
        return self._factor * self._laws[phase].time_ns(found, self.vector_bytes[phase], rate=self._rate)


def origins_of(demand: StepDemand) -> np.ndarray:
    """Those of a step whose tokens move, for which a run counts them."""
    assert demand.origins is not None, "AssumptionsSpec.needs_origins"
    return demand.origins


def _law(scenario: Scenario, number: int, op: str) -> PortLaw:
    system, assumptions = scenario.system, scenario.assumptions
    assert system.fabric is not None, "it has nodes"
    levels = system.fabric.levels
    level, bandwidth = levels[number], levels[number].bandwidth_bytes_per_s or system.d2d.bandwidth_bytes_per_s
    if assumptions.transfer_software == "free":
        hop_ns = system.d2d.hop_latency_ns if level.hop_latency_ns is None else level.hop_latency_ns
        return plain_law(2 * hop_ns, bandwidth * system.d2d.efficiency / units.NS_PER_S)
    nodes = levels[1].size if len(levels) > 1 else 1
    if level.kind == LINKED:
        bandwidth *= max(level.size - 1, 1)  # of all links of a GPU together
    law = level_law(level, number, op, assumptions.dispatch, scenario.model, nodes, levels[0].size, bandwidth)
    return slower(law, system.d2d.measured_factor)


def name_kernels(scenario: Scenario) -> str | None:
    """Measured kernels that move hidden vectors, by level or between a mesh's chips; None where none is charged."""
    if scenario.system.endpoint is not None and scenario.assumptions.activations == "dispatched":
        return mesh_laws.name_endpoint(scenario.system)
    grid, charged = grid_of(scenario.system), scenario.assumptions.transfer_software == "charged"
    if grid is None or not charged or scenario.assumptions.dispatch in GATHERING:
        return None
    return "; ".join(law.named for law in _laws_of(scenario, transfers.DISPATCH))


def kernels_carried(scenario: Scenario) -> bool:
    """Whether one of the kernels of `name_kernels` was measured on another GPU, shape, or number of ranks or nodes."""
    if scenario.system.endpoint is not None:
        return mesh_laws.endpoint_carried(scenario.system, scenario.model)
    gpu = calibration_named(scenario.system.compute.calibration).gpu
    laws = [law for op in (transfers.DISPATCH, transfers.COMBINE) for law in _laws_of(scenario, op)]
    return any(law.carried or law.gpu != gpu for law in laws)


def _laws_of(scenario: Scenario, op: str) -> Iterator[PortLaw]:
    grid = grid_of(scenario.system)
    assert grid is not None, "kernels were measured between GPUs of nodes alone"
    return (_law(scenario, number, op) for number in range(2 if grid.nodes > 1 else 1))


def _links_of_ports(fabric: Fabric, grid: Grid) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each level, the link out of and into every port, int64[port] each."""
    found = []
    for level, ports in ((0, grid.dies), (1, grid.nodes if grid.shared else grid.dies))[: 2 if grid.nodes > 1 else 1]:
        of_level = np.array([each.name.partition(",")[0] == f"level {level}" for each in fabric.classes])
        own = np.flatnonzero(of_level[fabric.link_class])
        src, dst = fabric.link_src[own], fabric.link_dst[own]
        first = 0 if ports == grid.dies else fabric.dies + grid.nodes  # shared ports follow dies and their switches
        out, into = np.zeros(ports, np.int64), np.zeros(ports, np.int64)
        leaves, enters = (src >= first) & (src < first + ports), (dst >= first) & (dst < first + ports)
        out[src[leaves] - first], into[dst[enters] - first] = own[leaves], own[enters]
        found.append((out, into))
    return found
