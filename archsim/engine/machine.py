"""From specs to the constants of a run: effective rates, the resources of the fabric, memory and its room."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from archsim.base.units import NS_PER_S
from archsim.engine import fabrics, mesh_laws, state, transfer_kernels
from archsim.iteration.links import HostPath, Links
from archsim.laws import die, mesh
from archsim.machine.fabric_calibrations import fabric_calibration
from archsim.policies.allocation import Costs
from archsim.specs.assumptions import AssumptionsSpec, UtilisationSpec, published_utilisation
from archsim.specs.scenario import Scenario
from microarch.blocks import atu, hbm, llc
from microarch.fabric.fabric import Fabric, narrowest, with_ports

if TYPE_CHECKING:
    from archsim.iteration.memory import Fit
    from archsim.specs.assumptions import AssumptionsSpec


# From a system to its fabric: the graph of dies and links, and the rate and latency of each link class.


NO_WINDOW = 2**31 - 1
FASTEST_BYTES_PER_S = 1e18  # of a kernel whose law has no endpoint
ENDPOINT = ("blackhole", "combine", "replay-2026-09-11")  # machine, kernel, version of ``endpoint: as_measured``


def effective_utilisation(system, model, assumptions) -> UtilisationSpec:
    """Shares of peak: from the published tables (``gemm: tables``), or the system's constants (``roofline``)."""
    if assumptions.gemm == "tables":
        return published_utilisation(model.name)
    return UtilisationSpec.model_construct(hbm=system.hbm.efficiency, bounds=(), values=(system.compute.efficiency,))


def slice_bytes(system, model) -> int:
    """Bytes of one weight slice: gate, up or down matrix of an expert."""
    return system.compute.bytes_of(model.hidden * model.expert_ffn)


def build_machine(scenario: Scenario) -> tuple[state.Machine, Fabric]:
    """The run's machine and its fabric; see ``archsim.engine.state.Machine``."""
    model, assumptions = scenario.model, scenario.assumptions
    system = with_links_of_slices(scenario.system, model)
    fabric = fabrics.build_fabric(system, assumptions.numbering, assumptions.carriers)
    if assumptions.endpoint == "as_measured" and system.transfer_law is None and system.endpoint is None:
        fabric = with_ports(fabric, endpoint_bytes_per_s(system))
    shared = assumptions.contention == "shared"
    weights, plain_link = slice_bytes(system, model), fabrics.plain_link_bytes_per_ns(system)
    segmented = assumptions.llc == "segments"
    away_ns = fabric.pair_ns.min(initial=np.inf, where=~np.eye(fabric.dies, dtype=bool)) if fabric.dies > 1 else 0.0
    hbm_bytes_per_ns = (
        system.hbm.bandwidth_bytes_per_s / NS_PER_S * effective_utilisation(system, model, assumptions).hbm
    )
    of_dies = (np.ones((2, system.dies))) if system.built is None else (system.built.array, system.built.hbm)
    factors = die.DieFactors(*map(np.array, of_dies))  # over the nominal rates
    transfers = transfer_kernels.software(scenario, system.hbm.latency_ns + float(away_ns))
    machine = state.Machine(
        dies=fabric.dies, hops=fabric.hops, route_ptr=fabric.route_ptr,
        route_links=fabric.route_links if shared else fabric.route_edges(),
        link_resources=fabric.links if shared else fabric.edges, hbm_bytes_per_ns=hbm_bytes_per_ns,
        link_bytes_per_ns=plain_link, hbm_latency_ns=system.hbm.latency_ns, hop_ns=system.d2d.hop_latency_ns,
        link_rates=fabric.link_bytes_per_ns,
        route_bytes_per_ns=narrowest(fabric, fabric.link_bytes_per_ns, here=plain_link), route_ns=fabric.pair_ns,
        request_bytes=system.d2d.request_bytes, llc_hit_ns=system.llc.hit_ns, llc_miss_ns=system.llc.miss_ns,
        llc_write_ns=system.llc.write_ns, slice_bytes=weights,
        first_bytes=min(weights, system.llc.segment_bytes) if segmented else weights,
        window=max(1, llc_geometry(scenario)[1]) if segmented else NO_WINDOW,
        array_waits=not shared or assumptions.reads == "together",
        copies_in_background=assumptions.copy_writes == "background",
        stream_bytes=_streaming(scenario)[0] if streams_in_order(assumptions) else 0, whole_ns=not shared,
        transfer_ns=transfers.ns, transfer_bytes_per_ns=transfers.bytes_per_ns,
        hbm_rates=hbm_bytes_per_ns * factors.hbm, array_speeds=factors.array,
    )  # fmt: skip
    return machine, fabric


def endpoint_bytes_per_s(system) -> float:
    """What the controller of a die sends, and what it receives, in bytes/s, under ``endpoint: as_measured``.

    Of a system that names its ``endpoint``, the rate of the kernel that returns results, whatever the assumption; its
    hidden vectors have the laws of both kernels. Else a die's controller is not known: it is to its links as that of
    the measured chip is to its own, by that kernel in the replay of a recorded layer (`archsim.laws.mesh`; 21.8 GB/s a
    chip, beside 2 links of 25 GB/s to each neighbour). Other measured kernels reach from half to 1.3 times that share.
    """
    if system.endpoint is not None:
        return min(mesh_laws.measured_law(system.endpoint, mesh.COMBINE, system).bytes_per_s, FASTEST_BYTES_PER_S)
    law = fabric_calibration(ENDPOINT[0]).law(*ENDPOINT[1:])
    assert law is not None, "shipped"
    share = law.bytes_per_s / (law.links * law.link_bytes_per_s)
    return share * system.d2d.bandwidth_bytes_per_s * system.d2d.efficiency


@lru_cache(maxsize=8)
def links_of(system, assumptions: AssumptionsSpec) -> Links | None:
    """What collectives and the host of a system pass; None for GPUs, whose collectives were measured."""
    if system.launch == "gpu":
        return None
    fabric = fabrics.build_fabric(system, assumptions.numbering, assumptions.carriers)
    if assumptions.endpoint == "as_measured" or system.endpoint is not None:
        fabric = with_ports(fabric, endpoint_bytes_per_s(system))
    path = system.decision.host
    command_ns = path.launch_ns + path.sync_ns + 2 * path.pcie_latency_ns
    return Links(fabric, HostPath(command_ns, path.pcie_bandwidth_bytes_per_s))


def with_links_of_slices(system, model):
    """The system with its calibrated links, if it has any, evaluated at the size of the model's slices."""
    d2d = system.d2d.of_slices(slice_bytes(system, model))
    return system if d2d is system.d2d else system.model_copy(update={"d2d": d2d})


def llc_geometry(scenario: Scenario) -> tuple[int, int]:
    """(sets, ways) of a die's LLC."""
    spec, weights = scenario.system.llc, slice_bytes(scenario.system, scenario.model)
    if scenario.assumptions.llc == "slices":
        return llc.sliced_geometry(spec.capacity_bytes, weights, spec.ways)
    if streams_in_order(scenario.assumptions):
        return _streaming(scenario)[1]
    return llc.segmented_geometry(spec.capacity_bytes, weights, spec.segment_bytes)


def streams_in_order(assumptions) -> bool:
    """Whether slices take room in the LLC byte by byte while they are on their way (``reads: in_order``)."""
    return assumptions.contention == "shared" and assumptions.reads == "in_order" and assumptions.llc == "segments"


def _streaming(scenario: Scenario) -> tuple[int, tuple[int, int]]:
    spec, weights = scenario.system.llc, slice_bytes(scenario.system, scenario.model)
    return llc.streaming_geometry(spec.capacity_bytes, weights, spec.segment_bytes)


def share_every_ns(machine: state.Machine, assumptions: AssumptionsSpec) -> float:
    """Least time between two recomputes of the rates of transfers, 0 for none: see `RATE_UPDATES`."""
    return RATE_UPDATES[assumptions.rate_updates](machine)


def _shortest_round_trip_ns(machine: state.Machine) -> float:
    """Of a request and an answer as short, between the two dies that are nearest to each other; 0 for a single die."""
    one_way_ns = machine.route_ns + machine.request_bytes / machine.route_bytes_per_ns
    away_ns = one_way_ns[~np.eye(machine.dies, dtype=bool)]
    return 2.0 * float(away_ns.min()) if len(away_ns) else 0.0


# ``rate_updates``. A source learns of what happens elsewhere from messages, as routers learn from credits, not before a
# round trip (Dally and Towles, Principles and Practices of Interconnection Networks, section 13.3).
RATE_UPDATES = MappingProxyType({"instant": lambda machine: 0.0, "per_round_trip": _shortest_round_trip_ns})


def policy_costs(system, model, assumptions: AssumptionsSpec | None = None) -> Costs:
    """What allocation assumes about the machine: the system's own efficiencies, whatever the engine's GEMM model.

    ``assumptions``: with them, costs have the unit in which a state machine compares them, where one is charged for.
    """
    system, decision = with_links_of_slices(system, model), system.decision
    compares = assumptions is not None and assumptions.decision_cost == "charged" and decision.executor == "fsm"
    return Costs(
        slice_bytes=slice_bytes(system, model), flop_per_token=float(6 * model.hidden * model.expert_ffn),
        flop_per_ns=system.compute.peak_flop_per_s / NS_PER_S * system.compute.efficiency,
        hbm_bytes_per_ns=system.hbm.bandwidth_bytes_per_s / NS_PER_S * system.hbm.efficiency,
        link_bytes_per_ns=fabrics.plain_link_bytes_per_ns(system), hbm_latency_ns=system.hbm.latency_ns,
        hop_ns=system.d2d.hop_latency_ns, quantum_ns=decision.fsm.cost_quantum_ns if compares else 0.0,
    )  # fmt: skip


def build_memory(scenario: Scenario, layers: int, fit: Fit) -> state.Memory:
    """Empty LLCs, no cached copies, and the room for copies beside the homes."""
    system, model, assumptions = scenario.system, scenario.model, scenario.assumptions
    sets, ways = llc_geometry(scenario)
    if assumptions.capacity == "unbounded":
        room = np.full(system.dies, hbm.UNBOUNDED_BYTES, dtype=np.int64)
    else:
        room = fit.room_bytes
    per_layer = model.experts + model.shared_experts
    entries = system.decision.atu_entries if assumptions.tables == "finite" else 0
    return state.Memory(
        llc.empty_tags(system.dies, sets, ways),
        hbm.no_copies(layers * per_layer, room),
        atu.no_translations(system.dies, entries, system.decision.atu_ways),
    )
