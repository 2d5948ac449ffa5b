"""From specs to the constants of a run: effective rates, the resources of the fabric, memory and its room."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from archsim.base.errors import CapacityError
from archsim.engine.state import SLICES, UNITS, Machine, Memory
from archsim.policies.allocation.rules import Costs
from archsim.policies.placement.placement import Placement
from archsim.specs.machine.utilisation import Utilisation, published_utilisation
from archsim.specs.scenario import Scenario
from microarch.blocks import atu, llc
from microarch.blocks.hbm import UNBOUNDED_BYTES, no_copies
from microarch.fabric.mesh import Mesh
from microarch.fabric.topology import Edge, build_topology, narrowest, per_route

NS_PER_S = 1e9
NO_WINDOW = 2**31 - 1


def effective_utilisation(system, model, assumptions) -> Utilisation:
    """Shares of peak: of the published tables (``gemm: tables``), or the system's constant ones (``roofline``)."""
    if assumptions.gemm == "tables":
        return published_utilisation(model.name)
    return Utilisation(system.hbm.efficiency, (), (system.compute.efficiency,))


def slice_bytes(system, model) -> int:
    """Bytes of one weight slice: gate, up or down matrix of an expert."""
    return model.hidden * model.expert_ffn * system.compute.dtype_bytes


def build_machine(scenario: Scenario) -> tuple[Machine, Mesh]:
    """The run's machine and its mesh; see ``archsim.engine.state.Machine``."""
    model, assumptions = scenario.model, scenario.assumptions
    system = with_links_of_slices(scenario.system, model)
    mesh = build_fabric(system, assumptions.numbering)
    link_bytes_per_ns, link_ns = link_properties(system, mesh)
    shared = assumptions.contention == "shared"
    group_ptr, group_resources = _groups(mesh, full_duplex=shared)
    weights, plain_link = slice_bytes(system, model), plain_link_bytes_per_ns(system)
    segmented = assumptions.llc == "segments"
    machine = Machine(
        dies=mesh.dies,
        hops=mesh.hops.astype(np.int64),
        group_ptr=group_ptr,
        group_resources=group_resources,
        link_resources=mesh.links if shared else mesh.edges,
        hbm_bytes_per_ns=system.hbm.bandwidth_bytes_per_s / NS_PER_S * effective_utilisation(system, model, assumptions).hbm,
        link_bytes_per_ns=plain_link,
        hbm_latency_ns=system.hbm.latency_ns,
        hop_ns=system.d2d.hop_latency_ns,
        link_rates=link_bytes_per_ns,
        route_bytes_per_ns=narrowest(mesh, link_bytes_per_ns, here=plain_link),
        route_ns=per_route(mesh, link_ns),
        request_bytes=system.d2d.request_bytes,
        llc_hit_ns=system.llc.hit_ns,
        llc_miss_ns=system.llc.miss_ns,
        llc_write_ns=system.llc.write_ns,
        slice_bytes=weights,
        first_bytes=min(weights, system.llc.segment_bytes) if segmented else weights,
        window=max(1, llc_geometry(scenario)[1]) if segmented else NO_WINDOW,
        whole_ns=not shared,
    )
    return machine, mesh


def with_links_of_slices(system, model):
    """The system whose links are those of slices of the model's size, where they come from measured copies."""
    d2d = system.d2d.of_slices(slice_bytes(system, model))
    return system if d2d is system.d2d else system.model_copy(update={"d2d": d2d})


def build_fabric(system, numbering: str) -> Mesh:
    """Dies, links and routes of a system's topology."""
    plain_ns = system.d2d.hop_latency_ns
    edges = tuple(Edge(*edge.dies, plain_ns if edge.hop_latency_ns is None else edge.hop_latency_ns) for edge in system.topology.edges)
    return build_topology(system.topology.name, system.mesh.x, system.mesh.y, numbering, edges)


def plain_link_bytes_per_ns(system) -> float:
    """Effective rate of a link to which the topology gives no bandwidth of its own."""
    return system.d2d.bandwidth_bytes_per_s / NS_PER_S * system.d2d.efficiency


def link_properties(system, mesh: Mesh) -> tuple[np.ndarray, np.ndarray]:
    """(effective bytes/ns, latency in ns), float64[link] each: the system's ``d2d``, or what the link's class has of its own."""
    rates, latencies = [], []
    for own in system.topology.classes:
        given, latency = own.bandwidth_bytes_per_s, own.hop_latency_ns
        rates.append(plain_link_bytes_per_ns(system) if given is None else given / NS_PER_S * system.d2d.efficiency)
        latencies.append(system.d2d.hop_latency_ns if latency is None else latency)
    return np.array(rates, np.float64)[mesh.link_class], np.array(latencies, np.float64)[mesh.link_class]


def _groups(mesh: Mesh, full_duplex: bool) -> tuple[np.ndarray, np.ndarray]:
    """CSR of the resources of every unit of a die, then of every route."""
    own = UNITS * mesh.dies
    link = mesh.route_links if full_duplex else mesh.link_edge[mesh.route_links]
    ptr = np.concatenate([np.arange(own, dtype=np.int64), own + mesh.route_ptr])
    return ptr, np.concatenate([np.arange(own), own + link]).astype(np.int64)


def llc_geometry(scenario: Scenario) -> tuple[int, int]:
    """(sets, ways) of a die's LLC."""
    spec, weights = scenario.system.llc, slice_bytes(scenario.system, scenario.model)
    if scenario.assumptions.llc == "slices":
        return llc.sliced_geometry(spec.capacity_bytes, weights, spec.ways)
    return llc.segmented_geometry(spec.capacity_bytes, weights, spec.segment_bytes)


def policy_costs(system, model) -> Costs:
    """What allocation assumes of the machine: the system's own efficiencies, whatever the engine's GEMM model."""
    system = with_links_of_slices(system, model)
    return Costs(
        slice_bytes=slice_bytes(system, model),
        flop_per_token=float(6 * model.hidden * model.expert_ffn),
        flop_per_ns=system.compute.peak_flop_per_s / NS_PER_S * system.compute.efficiency,
        hbm_bytes_per_ns=system.hbm.bandwidth_bytes_per_s / NS_PER_S * system.hbm.efficiency,
        link_bytes_per_ns=plain_link_bytes_per_ns(system),
        hbm_latency_ns=system.hbm.latency_ns,
        hop_ns=system.d2d.hop_latency_ns,
    )


@dataclass(frozen=True)
class Fit:
    """How the weights of a model lie in the HBM of a system.

    ``demand_bytes``: int64[die] experts placed there, and shared experts if they run; ``bound_bytes``: what a die may hold.
    """

    demand_bytes: np.ndarray
    bound_bytes: int

    @property
    def fits(self) -> bool:
        return bool(self.demand_bytes.max() <= self.bound_bytes)

    @property
    def room_bytes(self) -> np.ndarray:
        """What is left for copies, int64[die]."""
        return self.bound_bytes - self.demand_bytes


def memory_fit(system, model, assumptions, placement: Placement) -> Fit:
    """Demand and bound per die. Every MoE layer of the model counts, not those that a run simulates alone."""
    demand = placement.bytes_per_die(SLICES * slice_bytes(system, model))
    if assumptions.weights == "all":
        shared = model.shared_experts * SLICES * model.hidden * model.shared_ffn * system.compute.dtype_bytes
        demand = demand + placement.layers * shared
    bound = int(system.hbm.capacity_bytes * (1 - system.hbm.reserved_fraction))
    return Fit(demand, bound)


def refuse_misfit(scenario: Scenario, placement: Placement) -> Fit:
    """The fit, or CapacityError with die, demand, bound, gap and what would make the model fit."""
    system, model, assumptions = scenario.system, scenario.model, scenario.assumptions
    fit = memory_fit(system, model, assumptions, placement)
    if assumptions.capacity == "unbounded" or fit.fits:
        return fit
    die = int(fit.demand_bytes.argmax())
    demand = int(fit.demand_bytes[die])
    capacity = demand / (1 - system.hbm.reserved_fraction)
    dies = int(np.ceil(fit.demand_bytes.sum() / fit.bound_bytes))
    levers = [f"hbm.capacity of at least {_written(capacity)} a die", f"about {dies} dies or more instead of {system.dies}"]
    if system.compute.dtype_bytes > 1 and (demand + 1) // 2 <= fit.bound_bytes:
        levers.append("compute.dtype: fp8, which halves the weights")
    levers.append("capacity: unbounded, to ignore the limit")
    raise CapacityError(
        f"{model.name} does not fit on {system.name}: die {die} needs {_written(demand)} of HBM for the homes of its experts, "
        f"has {_written(fit.bound_bytes)} ({_written(system.hbm.capacity_bytes)} less {system.hbm.reserved_fraction:.0%} "
        f"reserve), {_written(demand - fit.bound_bytes)} too little; it would fit with {', or '.join(levers)}"
    )


def _written(n_bytes: float) -> str:
    """Bytes with a unit that leaves digits to read: ``91.2 GB``, ``3.4 MB``."""
    unit, size = next(((unit, size) for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if n_bytes >= size), ("B", 1))
    return f"{n_bytes / size:.1f} {unit}"


def build_memory(scenario: Scenario, layers: int, fit: Fit) -> Memory:
    """Empty LLCs, no copies, and the room there is for copies beside the homes."""
    system, model, assumptions = scenario.system, scenario.model, scenario.assumptions
    sets, ways = llc_geometry(scenario)
    if assumptions.capacity == "unbounded":
        room = np.full(system.dies, UNBOUNDED_BYTES, dtype=np.int64)
    else:
        room = fit.room_bytes
    per_layer = model.experts + model.shared_experts
    entries = system.decision.atu_entries if assumptions.tables == "finite" else 0
    return Memory(
        llc.empty_tags(system.dies, sets, ways),
        no_copies(layers * per_layer, room),
        atu.no_translations(system.dies, layers * per_layer, entries),
    )
