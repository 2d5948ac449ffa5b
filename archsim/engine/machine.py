"""From specs to the constants of a run: effective rates, the resources of the fabric, memory and its room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from archsim.base.errors import ArchsimError, SpecError, did_you_mean
from archsim.base.own_code import import_function
from archsim.base.sums import sum
from archsim.base.units import NS_PER_S
from archsim.engine.moves import software
from archsim.engine.state import Machine, Memory
from archsim.laws.die import DieFactors
from archsim.laws.mesh import COMBINE, FULL, LINEAR, MESH, RING, EndpointLaw
from archsim.laws.wafer import Draw, dead_links
from archsim.policies.allocation import Costs
from archsim.specs.as_built import named_dies
from archsim.specs.assumptions import AssumptionsSpec, UtilisationSpec, published_utilisation
from archsim.specs.calibration_files import fabric_calibration
from archsim.specs.experiment import Scenario
from archsim.specs.policies import PolicySpec
from archsim.specs.system import NETWORK, BlockSpec, SystemSpec, kind_of
from microarch.blocks import atu, llc
from microarch.blocks.global_cp import COUNTER_BITS
from microarch.blocks.hbm import UNBOUNDED_BYTES, no_copies
from microarch.fabric.as_built import CutOff, Holes, Left, LinkKind, Punched, left_of, punched
from microarch.fabric.fabric import Fabric, Graph, LinkClass, narrowest, with_ports
from microarch.fabric.topology import (
    ROW_MAJOR,
    Edge,
    Extent,
    Level,
    build_levels,
    build_own,
    build_topology,
    extent,
    extent_of_levels,
)
from microarch.rtl import missing
from microarch.silicon.cost import (
    CARRIER_MM2,
    HBM_STACK_BYTES_PER_S,
    HBM_STACK_MM2,
    AreaEstimates,
    die_area,
    hbm_stacks,
    interface_side_mm2,
    least_whole_mm2,
)

if TYPE_CHECKING:
    from archsim.iteration.memory import Fit
    from archsim.specs.assumptions import AssumptionsSpec


# ---- fabric
# From a system to its fabric: the graph of dies and links, and the rate and latency of each link class.


def build_fabric(system, numbering: str, carriers: str = "one") -> Fabric:
    """Dies, links and routes of a system, with bandwidths and latencies.

    Systems that differ only in these share a graph.

    ``numbering``: of the dies of a mesh, and ``carriers``: see the assumptions. Raises ArchsimError for a user's
    function that returns no fabric.
    """
    if is_perfect(system):
        graph, classes = _as_made(system, numbering, carriers)
        return graph.with_links(system.shape, classes)
    if numbering != ROW_MAJOR and system.mesh is not None:
        raise SpecError(
            f"{system.name}: numbering: {numbering} numbers the dies of a perfect mesh; a machine with dies_as_built, "
            f"links_as_built, spares or drawn has numbering: {ROW_MAJOR}"
        )
    found, classes = _as_built(system, carriers)
    return found.graph.with_links(system.shape, [_of_kind(kind, classes) for kind in found.kinds])


# ---- carriers
# Dies that are linked as on one carrier may need more room than one has: then they stand on several, in order of their
# ids (whole rows of a mesh where these fit), and the links from one carrier to the next are a class of their own.


def dies_together(system) -> int | None:
    """Number of dies that are linked as on one carrier: all without levels, those of the innermost level if that is a
    mesh; None if it is of another kind, as it is then a network between packages.
    """
    if system.fabric is None:
        return system.sites
    innermost = system.fabric.levels[0]
    return innermost.size if innermost.kind == "mesh" else None


def dies_on_a_carrier(system) -> Any:
    """How many dies one carrier has room for, with their HBM, at least one: areas of ``archsim cost``, dies in as few
    pieces as reticles allow. Of a system whose rates are arrays, an array.
    """
    if system.fabric is not None:
        graph = _of_levels(system)
    else:
        graph, _ = _named(system, system.mesh.x, system.mesh.y, ROW_MAJOR)
    links = np.bincount(graph.link_class, minlength=1).tolist()
    leaving = sum(count * each.bandwidth_bytes_per_s for count, each in zip(links, link_classes(system), strict=False))
    area = die_area(system, leaving / system.sites, 0.0)
    whole_mm2 = least_whole_mm2(sum(area.values()), interface_side_mm2(area["hbm"], AreaEstimates()))
    stacks = system.hbm.stacks_on_carrier or np.maximum(
        hbm_stacks(system.hbm.capacity_bytes, 1.0), np.ceil(system.hbm.bandwidth_bytes_per_s / HBM_STACK_BYTES_PER_S)
    )
    return np.maximum(1, CARRIER_MM2 // (whole_mm2 + stacks * HBM_STACK_MM2)).astype(np.int64)


def carriers_needed(system) -> Any:
    """Carriers that the dies which are linked as on one have room on; 1 for networks between packages, fabrics of own
    code, and machines with spare rows or columns, whose dies have moved. Of a system whose rates are arrays, an array.
    """
    together = dies_together(system)
    if together is None or system.topology.is_function or system.spares is not None:
        return 1
    return -(-together // dies_on_a_carrier(system))


def carriers_of(scenario: Scenario) -> int:
    """Carriers on which the dies of a run stand that are linked as on one."""
    return int(carriers_needed(scenario.system)) if scenario.assumptions.carriers == "as_needed" else 1


def _across(system, graph: Graph, classes: list[LinkClass]) -> tuple[Graph, list[LinkClass]]:
    """The links between carriers in classes of their own, behind all others."""
    count = carriers_needed(system)
    if count == 1:
        return graph, classes
    together, levels = dies_together(system), system.fabric.levels if system.fabric is not None else ()
    x, y = levels[0].sides if levels else (system.mesh.x, system.mesh.y)
    assert together is not None, "else one carrier is enough"
    on_each = -(-together // count)
    if (rows := int(dies_on_a_carrier(system)) // x) and -(-y // rows) == count:
        on_each = -(-y // count) * x  # whole rows
    carrier = np.zeros(graph.nodes, np.int64)  # switches are on the first
    carrier[: system.sites] = np.arange(system.sites) % together // on_each
    leads_away = carrier[graph.link_src] != carrier[graph.link_dst]
    if levels:
        leads_away &= graph.link_class == 0
    link_class = (graph.link_class + leads_away * len(classes)).astype(graph.link_class.dtype)
    return replace(graph, link_class=link_class), [*classes, *off_carrier(system, classes)]


def off_carrier(system, classes: Sequence[LinkClass]) -> list[LinkClass]:
    """Classes of the links that are of these classes but lead to another carrier: no better than on one."""
    across = system.d2d.off_carrier
    return [
        each._replace(
            name=f"{each.name}, off carrier",
            bandwidth_bytes_per_s=np.minimum(each.bandwidth_bytes_per_s, across.bandwidth_bytes_per_s),
            latency_ns=np.maximum(each.latency_ns, across.hop_latency_ns),
        )
        for each in classes
    ]


def is_perfect(system) -> bool:
    """Whether nothing says that dies or links of the system differ from those that were meant."""
    return system.built is None and system.links_as_built is None


def _as_made(system, numbering: str, carriers: str = "one") -> tuple[Graph, list[LinkClass]]:
    """The graph of the perfect machine, and its classes of links."""
    if system.topology.is_function:
        graph, _ = build_own(system.topology.name, system.sites, system.topology.params)
        return graph, link_classes(system)
    if system.fabric is not None:
        found = _of_levels(system), link_classes(system)
    else:
        found = _named(system, system.mesh.x, system.mesh.y, numbering)
    return _across(system, *found) if carriers == "as_needed" else found


def link_classes(system) -> list[LinkClass]:
    """Classes of the links of the perfect machine, without ports of its dies. Of a system whose rates of ``d2d`` are
    arrays, those of many machines, bandwidths and latencies are, too.
    """
    topology = system.topology
    if system.fabric is not None:
        return _level_classes(system)
    if topology.is_function:
        _, classes = build_own(topology.name, system.sites, topology.params)
        return [each._replace(efficiency=system.d2d.efficiency) for each in classes]
    return [_link(system, name, own) for name, own in zip(topology.class_names, topology.classes, strict=True)]


def _named(system, x: int, y: int, numbering: str) -> tuple[Graph, list[LinkClass]]:
    listed = system.topology.edges
    edges = tuple(Edge(edge.dies[0], edge.dies[1], _link(system, "", edge).latency_ns) for edge in listed)
    return build_topology(system.topology.name, x, y, numbering, edges), link_classes(system)


def _as_built(system, carriers: str = "one") -> tuple[Punched, list[LinkClass]]:
    """The graph of what works, and the classes of the perfect machine. Raises SpecError for a machine in parts."""
    built, links = system.built, system.links_as_built
    if built is not None and built.unusable:
        raise SpecError(f"{system.name}: {built.unusable}")
    graph, classes = _as_made(system, ROW_MAJOR, carriers)
    pairs = {tuple(sorted(pair)) for pair in zip(graph.link_src.tolist(), graph.link_dst.tolist(), strict=True)}
    dead = {tuple(sorted(pair)) for pair in links.dead} if links else set()
    slow = {tuple(sorted(each.link)): each.bandwidth for each in links.degraded} if links else {}
    for pair in sorted((dead | set(slow)) - pairs):
        near = sorted(other for each in pairs for other in each if pair[0] in each and other != pair[0])
        raise SpecError(
            f"{system.name}: links_as_built: no link between dies {pair[0]} and {pair[1]}; node {pair[0]} is linked to "
            f"{named_dies(near) if near else 'none'}"
        )
    if (drawn := system.drawn) is not None and drawn.link_failure:
        every = sorted(pairs)
        fails = dead_links(Draw(drawn.seed, drawn.wafer), len(every), drawn.link_failure)
        dead |= {pair for pair, failed in zip(every, fails.tolist(), strict=True) if failed}
    if built is None:
        holes = Holes(tuple(range(graph.dies)), (), tuple(sorted(dead)), tuple(sorted(slow.items())))
    elif built.sides is not None:
        graph, classes = _named(system, built.sides[0], built.sides[1], ROW_MAJOR)
        holes = _moved_up(system, built, graph, dead, slow)
    else:
        switched = system.fabric is not None and system.fabric.levels[0].kind == "switch"  # GPUs pass nothing on
        router_dead = switched or system.dies_as_built is None or system.dies_as_built.router == "dead"
        gone = built.dead if router_dead else ()
        holes = Holes(built.living, gone, tuple(sorted(dead)), tuple(sorted(slow.items())))
    try:
        found = punched(graph, holes)
        if built is not None and built.sides is not None:  # maps show dies where they are
            sites = np.array(built.living, np.int32)
            places = {"node_x": sites % system.mesh.x, "node_y": sites // system.mesh.x}
            found = found._replace(graph=replace(found.graph, **places))
        return found, classes
    except CutOff as error:
        raise MachineInParts(f"{system.name}: {error}") from None


class MachineInParts(SpecError):
    """Dead dies and links cut living dies off."""


def _moved_up(system, built, graph: Graph, dead: set, slow: dict) -> Holes:
    """Dies in the places that spare rows or columns leave: links are as long as their ends are apart.

    A link along the line in which dies have moved up passes the wires of the dead dies between its ends, and is as good
    as the worst of these; one between two lines has wires of its own.
    """
    x = system.mesh.x
    along_y = bool(system.spares.rows)
    length, cut, share = {}, set(), {}
    for a, b in {tuple(sorted(pair)) for pair in zip(graph.link_src.tolist(), graph.link_dst.tolist(), strict=True)}:
        one, other = built.living[a], built.living[b]
        (column_a, row_a), (column_b, row_b) = (one % x, one // x), (other % x, other // x)
        same = column_a == column_b if along_y else row_a == row_b
        apart = abs(row_a - row_b) if along_y else abs(column_a - column_b)
        neighbours = abs(a - b) in (1, built.sides[0])
        wires = [tuple(sorted((one, other)))]
        if same and neighbours:
            step = x if along_y else 1
            low, high = min(one, other), max(one, other)
            wires = [(site, site + step) for site in range(low, high, step)]
        length[a, b] = max(1, apart) if same and neighbours else 1 if same else 1 + apart
        if any(wire in dead for wire in wires):
            cut.add((a, b))
        if (least := min(slow.get(wire, 1.0) for wire in wires)) < 1:
            share[a, b] = least
    longer = tuple(sorted((pair, times) for pair, times in length.items() if times > 1))
    return Holes(tuple(range(graph.dies)), (), tuple(sorted(cut)), tuple(sorted(share.items())), longer)


def _of_kind(kind: LinkKind, classes: list[LinkClass]) -> LinkClass:
    of = classes[kind.of]
    if kind == LinkKind(kind.of):
        return of
    told = [f"{kind.share:.0%}"] * (kind.share < 1) + [f"{kind.length} long"] * (kind.length > 1)
    return of._replace(
        name=", ".join([of.name, *told]), bandwidth_bytes_per_s=of.bandwidth_bytes_per_s * kind.share,
        latency_ns=of.latency_ns * kind.length,
    )  # fmt: skip


def what_is_left(system) -> Left | None:
    """Detours, bisection and virtual channels of a machine as it is built; None of a perfect one. Raises SpecError."""
    if is_perfect(system):
        return None
    found, _ = _as_built(system)
    sites = np.arange(system.sites) if system.built is None else np.array(system.built.living)
    return left_of(_as_made(system, ROW_MAJOR)[0], sites, found)


def plain_link_bytes_per_ns(system) -> float:
    """Effective rate of a link without a bandwidth of its own in the topology."""
    return system.d2d.bandwidth_bytes_per_s / NS_PER_S * system.d2d.efficiency


def extent_of(system) -> Extent:
    """Links of the fabric and of the routes of all pairs of dies, without building it."""
    if system.fabric is not None:
        return extent_of_levels(_levels(system))
    sides = (system.sites, 1) if system.mesh is None else (system.mesh.x, system.mesh.y)
    found, listed = extent(system.topology.name, *sides), len(system.topology.edges)
    return found._replace(links=2 * listed) if listed else found


def _of_levels(system) -> Graph:
    return build_levels(_levels(system))


def _levels(system) -> tuple[Level, ...]:
    return tuple(Level(level.kind, level.sides, level.per or "group") for level in system.fabric.levels)


def _level_classes(system) -> list[LinkClass]:
    """Links of every level; then those between dies and the level's shared ports, which add no latency."""
    levels = system.fabric.levels
    links = [_link(system, f"level {number}", level) for number, level in enumerate(levels)]
    return links + [each._replace(name=f"{each.name} port", latency_ns=0.0) for each in links]


def _link(system, name: str, own) -> LinkClass:
    """The link class: its own properties where given, else those of the system's ``d2d``."""
    bandwidth, latency_ns = own.bandwidth_bytes_per_s, own.hop_latency_ns
    return LinkClass(
        name,
        system.d2d.bandwidth_bytes_per_s if bandwidth is None else bandwidth,
        system.d2d.hop_latency_ns if latency_ns is None else latency_ns,
        own.law,
        system.d2d.efficiency,
    )


_GRIDS = ("mesh", "torus")


def mesh_of(system) -> tuple[str, tuple[int, ...], tuple[bool, ...]]:
    """(topology, sides, wrapped) of a system, as laws of measured meshes name them."""
    if system.fabric is not None:
        levels = system.fabric.levels
        if len(levels) == 1 and levels[0].kind in ("fully_connected", "switch"):
            return FULL, (), ()
        sides = tuple(side for level in levels for side in (level.sides if level.kind in _GRIDS else (level.size,)))
        around = tuple(
            level.kind in ("torus", "ring") for level in levels for _ in range(2 if level.kind in _GRIDS else 1)
        )
        return MESH, sides, around
    assert system.mesh is not None or system.topology.is_function, "else there is a fabric"
    name, mesh = system.topology.name, system.mesh
    if mesh is None or name in ("fully_connected", "switch", "edges"):
        return FULL, (), ()
    if name == "ring":
        return RING, (system.dies,), (True,)
    sides = mesh.x, mesh.y
    wrapped = name in ("torus", "torus_x"), name in ("torus", "torus_y")
    if min(sides) > 1:
        return MESH, sides, wrapped
    long = int(mesh.y > mesh.x)
    return (RING if wrapped[long] else LINEAR), (sides[long],), (wrapped[long],)


def measured_law(name: str, kernel: str, system) -> EndpointLaw:
    """The law ``MACHINE/VERSION`` of a kernel. Raises SpecError for an unknown one, and for one of another topology."""
    machine, _, version = name.rpartition("/")
    if not machine:
        raise SpecError(f"law {name!r}: expected MACHINE/VERSION, such as blackhole/replay-2026-09-11")
    calibration = fabric_calibration(Path(machine))
    law = calibration.law(kernel, version)
    if law is None:
        known = [each.version for each in calibration.endpoint if each.kernel == kernel]
        raise SpecError(
            f"law {name!r}: {machine} has no {kernel} kernel of version {version!r}{did_you_mean(version, known)} "
            f"(known: {', '.join(known) or 'none'})"
        )
    topology = mesh_of(system)[0]
    if topology not in law.topologies:
        raise SpecError(
            f"law {name!r} was measured on the topology {' and '.join(law.topologies)}; {system.name} "
            f"({system.shape}) is {topology!r}: take a law of that topology"
        )
    return law


# ---- machine

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


def build_machine(scenario: Scenario) -> tuple[Machine, Fabric]:
    """The run's machine and its fabric; see ``archsim.engine.state.Machine``."""
    model, assumptions = scenario.model, scenario.assumptions
    system = with_links_of_slices(scenario.system, model)
    fabric = build_fabric(system, assumptions.numbering, assumptions.carriers)
    by_law = system.endpoint is not None and assumptions.execution == "expert_parallel"  # of whole kernels
    if assumptions.endpoint == "as_measured" and system.transfer_law is None and not by_law:
        fabric = with_ports(fabric, endpoint_bytes_per_s(system))
    shared = assumptions.contention == "shared"
    weights, plain_link = slice_bytes(system, model), plain_link_bytes_per_ns(system)
    segmented = assumptions.llc == "segments"
    away_ns = fabric.pair_ns.min(initial=np.inf, where=~np.eye(fabric.dies, dtype=bool)) if fabric.dies > 1 else 0.0
    hbm_bytes_per_ns = (
        system.hbm.bandwidth_bytes_per_s / NS_PER_S * effective_utilisation(system, model, assumptions).hbm
    )
    of_dies = (np.ones((2, system.dies))) if system.built is None else (system.built.array, system.built.hbm)
    factors = DieFactors(*map(np.array, of_dies))  # over the nominal rates
    transfers = software(scenario, system.hbm.latency_ns + float(away_ns))
    machine = Machine(
        dies=fabric.dies,
        hops=fabric.hops,
        route_ptr=fabric.route_ptr,
        route_links=fabric.route_links if shared else fabric.route_edges(),
        link_resources=fabric.links if shared else fabric.edges,
        hbm_bytes_per_ns=hbm_bytes_per_ns,
        link_bytes_per_ns=plain_link,
        hbm_latency_ns=system.hbm.latency_ns,
        hop_ns=system.d2d.hop_latency_ns,
        link_rates=fabric.link_bytes_per_ns,
        route_bytes_per_ns=narrowest(fabric, fabric.link_bytes_per_ns, here=plain_link),
        route_ns=fabric.pair_ns,
        request_bytes=system.d2d.request_bytes,
        llc_hit_ns=system.llc.hit_ns,
        llc_miss_ns=system.llc.miss_ns,
        llc_write_ns=system.llc.write_ns,
        slice_bytes=weights,
        first_bytes=min(weights, system.llc.segment_bytes) if segmented else weights,
        window=max(1, llc_geometry(scenario)[1]) if segmented else NO_WINDOW,
        array_waits=not shared or assumptions.reads == "together",
        copies_in_background=assumptions.copy_writes == "background",
        stream_bytes=_streaming(scenario)[0] if streams_in_order(assumptions) else 0,
        whole_ns=not shared,
        transfer_ns=transfers.ns,
        transfer_bytes_per_ns=transfers.bytes_per_ns,
        hbm_rates=hbm_bytes_per_ns * factors.hbm,
        array_speeds=factors.array,
    )
    return machine, fabric


def endpoint_bytes_per_s(system) -> float:
    """What the controller of a die sends, and what it receives, in bytes/s, under ``endpoint: as_measured``.

    Of a system that names its ``endpoint``, the rate of the kernel that returns results. Else a die's controller is not
    known: it is to its links as that of the measured chip is to its own, by that kernel in the replay of a recorded
    layer (`archsim.laws.mesh`; 21.8 GB/s a chip, beside 2 links of 25 GB/s to each neighbour). Other measured kernels
    reach from half to 1.3 times that share.
    """
    if system.endpoint is not None:
        return min(measured_law(system.endpoint, COMBINE, system).bytes_per_s, FASTEST_BYTES_PER_S)
    law = fabric_calibration(ENDPOINT[0]).law(*ENDPOINT[1:])
    assert law is not None, "shipped"
    share = law.bytes_per_s / (law.links * law.link_bytes_per_s)
    return share * system.d2d.bandwidth_bytes_per_s * system.d2d.efficiency


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


def share_every_ns(machine: Machine, assumptions: AssumptionsSpec) -> float:
    """Least time between two recomputes of the rates of transfers, 0 for none: see `RATE_UPDATES`."""
    return RATE_UPDATES[assumptions.rate_updates](machine)


def _shortest_round_trip_ns(machine: Machine) -> float:
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
        slice_bytes=slice_bytes(system, model),
        flop_per_token=float(6 * model.hidden * model.expert_ffn),
        flop_per_ns=system.compute.peak_flop_per_s / NS_PER_S * system.compute.efficiency,
        hbm_bytes_per_ns=system.hbm.bandwidth_bytes_per_s / NS_PER_S * system.hbm.efficiency,
        link_bytes_per_ns=plain_link_bytes_per_ns(system),
        hbm_latency_ns=system.hbm.latency_ns,
        hop_ns=system.d2d.hop_latency_ns,
        quantum_ns=decision.fsm.cost_quantum_ns if compares else 0.0,
    )


def build_memory(scenario: Scenario, layers: int, fit: Fit) -> Memory:
    """Empty LLCs, no cached copies, and the room for copies beside the homes."""
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
        atu.no_translations(system.dies, entries, system.decision.atu_ways),
    )


# ---- own_blocks
# Users' own blocks on the path of a die's weight slices (``blocks`` of a system).
#
# A block serves one whole slice after the other in front of the compute array, not pipelined with it: the array holds a
# slice for the time of the blocks plus its GEMM, and the GEMM cannot end sooner than the blocks' time after the last
# byte arrives. So a block costs its full time if the step waits for the array, and nothing if the array waits for
# slices anyway. Block time counts as time of the array. Policies do not see it.
#
# A block that is a function says how long it holds slices, in every engine. One that is a class has states: only
# ``engine: interpreted`` runs it (``archsim.engine.interpreted.interpreter``).

INTERPRETED = "interpreted"


class OwnObject(NamedTuple):
    """A user's class: ``kind`` as in ``archsim.specs.system``; ``build`` makes one, for a run."""

    name: str
    kind: str
    build: partial[Any]
    serves: tuple[int, ...]


def objects_of(specs: Sequence[BlockSpec]) -> tuple[OwnObject, ...]:
    """The blocks of a system that are classes. Raises ValueError for one that cannot be imported."""
    named = ((spec, import_function(spec.name)) for spec in specs)
    return tuple(
        OwnObject(spec.name, kind, partial(each, **spec.params), tuple(getattr(each, "SERVES", ())))
        for spec, each in named
        if (kind := kind_of(each))
    )


def refuse_engine(engine: str, system: SystemSpec, assumptions: AssumptionsSpec, policy: PolicySpec) -> None:
    """Raise ArchsimError for what the engine cannot run: a class among the blocks or a state machine in RTL, or on the
    interpreted engine anything but chains and moves.
    """
    if system.decision.executor == "fsm" and system.decision.fsm.implementation == "rtl":
        _refuse_rtl(engine, system, assumptions, policy)
    objects = objects_of(system.blocks)
    for own in objects:
        if (refuses := getattr(own.build.func, "refuse", None)) is not None:
            refuses(system)
    if engine == INTERPRETED:
        if assumptions.execution != "weight_streaming":
            raise ArchsimError(
                f"engine: interpreted runs execution: weight_streaming, not {assumptions.execution}. Take engine: event"
            )
        if assumptions.contention == "shared" and assumptions.arbitration == "head_of_line":
            raise ArchsimError(
                "engine: interpreted runs arbitration: fair and round_robin, not head_of_line. Take engine: event"
            )
        if assumptions.contention != "shared" and any(own.kind == NETWORK for own in objects):
            raise ArchsimError("blocks: a network needs contention: shared; under reserved, transfers claim links")
    elif objects:
        raise ArchsimError(
            f"blocks: {objects[0].name} is a class, with states of its own; engine: {engine} runs functions alone. "
            "Take engine: interpreted, which runs both"
        )


def _refuse_rtl(engine: str, system: SystemSpec, assumptions: AssumptionsSpec, policy: PolicySpec) -> None:
    """Raise ArchsimError for what the state machine's components cannot decide."""
    fsm = system.decision.fsm
    refused = (
        (engine != INTERPRETED, f"runs on engine: interpreted alone, not {engine}"),
        (missing() is not None, f"needs an extra. {missing()}"),
        (assumptions.decision_cost != "charged", f"needs decision_cost: charged, not {assumptions.decision_cost}"),
        (fsm.sorter != "bitonic", "needs sorter: bitonic; a merge sorter is not in RTL"),
        (fsm.comparators & (fsm.comparators - 1) != 0, f"needs a power of two of comparators, not {fsm.comparators}"),
        (
            policy.allocation.name not in ("paper", "home", "first_seen"),
            f"has an allocator for allocation: paper, not for {policy.allocation.name} of {policy.name}",
        ),
        (
            policy.prediction.is_function,
            f"has a selector for prediction: heatmap, not for {policy.prediction.name} of {policy.name}",
        ),
        (
            fsm.heatmap_port_bits % COUNTER_BITS != 0,
            f"needs a heatmap_port_bits that is a multiple of {COUNTER_BITS}, not {fsm.heatmap_port_bits}",
        ),
    )
    for is_so, why in refused:
        if is_so:
            raise ArchsimError(f"decision.fsm.implementation: rtl {why}")


class OwnBlocks:
    """The blocks of a system that are functions. Raises ValueError for one that cannot be imported."""

    def __init__(self, specs: Sequence[BlockSpec]):
        named = [(spec, import_function(spec.name)) for spec in specs]
        self._blocks: list[tuple[BlockSpec, Callable[[np.ndarray], np.ndarray]]] = [
            (spec, partial(each, **spec.params)) for spec, each in named if kind_of(each) is None
        ]

    def service_ns(self, n_bytes: np.ndarray) -> np.ndarray | float:
        """Time for which all blocks together hold a slice of ``n_bytes`` (int64[entry]), float64[entry]; 0.0 without
        blocks.

        Raises ArchsimError if a block returns anything but finite times >= 0.
        """
        total_ns: np.ndarray | float = 0.0
        for spec, function in self._blocks:
            total_ns = total_ns + _checked(spec.name, function(n_bytes.copy()), n_bytes.shape)
            if spec.bandwidth_bytes_per_s is not None:
                total_ns = total_ns + n_bytes / (spec.bandwidth_bytes_per_s / NS_PER_S)
        return total_ns


def _checked(name: str, given: object, shape: tuple[int, ...]) -> np.ndarray:
    ns = np.asarray(given)
    if ns.shape not in (shape, ()) or ns.dtype.kind not in "iuf" or not np.isfinite(ns).all() or (ns < 0).any():
        raise ArchsimError(
            f"{name}: expected ns for {shape[0]} entries, finite and not negative, got {ns.dtype} of shape {ns.shape}"
        )
    return np.broadcast_to(ns, shape).astype(np.float64)
