"""From a system to its fabric: the graph of dies and links, and the rate and latency of each link class.

Dies that are linked as on one carrier may need more room than one has: then they stand on several, in order of their
ids (whole rows of a mesh where these fit), and the links from one carrier to the next are a class of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from archsim.base.errors import SpecError
from archsim.base.sums import sum
from archsim.base.units import NS_PER_S
from archsim.laws.wafer import Draw, dead_links
from archsim.machine.built import named_dies, switches_of
from archsim.machine.made import MONOLITHIC
from archsim.specs.scenario import Scenario
from microarch.fabric import as_built, described, extent, fabric, grid
from microarch.fabric.levels import Level, build_levels
from microarch.fabric.topology import Edge, build_topology
from microarch.silicon.cost import CARRIER_MM2, least_whole_mm2
from microarch.silicon.die_area import AreaEstimates, die_area, interface_of, stacks_of
from microarch.silicon.memories import HBM_STACK_MM2


def dies_together(system) -> int | None:
    """Dies linked as on one carrier: all, or those of an innermost level that is a mesh; None: of another kind."""
    if system.fabric is None:
        return system.sites
    innermost = system.fabric.levels[0]
    return innermost.size if innermost.kind == "mesh" else None


def dies_on_a_carrier(system) -> Any:
    """How many dies one carrier has room for, at least 1: areas of ``archsim cost``. Of arrays of rates, an array."""
    if system.fabric is not None:
        graph = _of_levels(system)
    else:
        graph, _ = _own_fabric(system, system.mesh.x, system.mesh.y, grid.ROW_MAJOR)
    links = np.bincount(graph.link_class, minlength=1).tolist()
    leaving = sum(count * each.bandwidth_bytes_per_s for count, each in zip(links, link_classes(system), strict=False))
    area = die_area(system, leaving / system.sites, 0.0)
    whole_mm2 = sum(area.values())
    if system.made is None or system.made.carrier != MONOLITHIC:
        whole_mm2 = least_whole_mm2(whole_mm2, interface_of(system, AreaEstimates()))
    stacks = stacks_of(system)
    return np.maximum(1, CARRIER_MM2 // (whole_mm2 + stacks * HBM_STACK_MM2)).astype(np.int64)


def carriers_needed(system) -> Any:
    """Carriers that dies linked as on one need: 1 for networks, own code, spare rows. Of arrays, an array."""
    together = dies_together(system)
    if together is None or system.topology.is_function or system.spares is not None:
        return 1
    return -(-together // dies_on_a_carrier(system))


def carriers_of(scenario: Scenario) -> int:
    return int(carriers_needed(scenario.system)) if scenario.assumptions.carriers == "as_needed" else 1


def _across(
    system, graph: fabric.Graph, classes: list[fabric.LinkClass]
) -> tuple[fabric.Graph, list[fabric.LinkClass]]:
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


def off_carrier(system, classes: Sequence[fabric.LinkClass]) -> list[fabric.LinkClass]:
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


def _as_made(system, numbering: str, carriers: str = "one") -> tuple[fabric.Graph, list[fabric.LinkClass]]:
    if system.topology.is_function:
        graph, _ = described.build_own(system.topology.name, system.sites, system.topology.params)
        return graph, link_classes(system)
    if system.fabric is not None:
        found = _of_levels(system), link_classes(system)
    else:
        found = _own_fabric(system, system.mesh.x, system.mesh.y, numbering)
    return _across(system, *found) if carriers == "as_needed" else found


def link_classes(system) -> list[fabric.LinkClass]:
    """Link classes of the perfect machine without ports of its dies; of arrays of rates, those of many machines."""
    topology = system.topology
    if system.fabric is not None:
        return _level_classes(system)
    if topology.is_function:
        _, classes = described.build_own(topology.name, system.sites, topology.params)
        return [each._replace(efficiency=system.d2d.efficiency) for each in classes]
    return [_link(system, name, own) for name, own in zip(topology.class_names, topology.classes, strict=True)]


def _own_fabric(system, x: int, y: int, numbering: str) -> tuple[fabric.Graph, list[fabric.LinkClass]]:
    listed = system.topology.edges
    edges = tuple(Edge(edge.dies[0], edge.dies[1], _link(system, "", edge).latency_ns) for edge in listed)
    return build_topology(system.topology.name, x, y, numbering, edges), link_classes(system)


def _as_built(system, carriers: str = "one") -> tuple[as_built.Punched, list[fabric.LinkClass]]:
    """The graph of what works, and the classes of the perfect machine. Raises SpecError for a machine in parts."""
    built, links = system.built, system.links_as_built
    if built is not None and built.unusable:
        raise SpecError(f"{system.name}: {built.unusable}")
    graph, classes = _as_made(system, grid.ROW_MAJOR, carriers)
    pairs = {tuple(sorted(pair)) for pair in zip(graph.link_src.tolist(), graph.link_dst.tolist(), strict=True)}
    dead = {_edge_of(system, graph, pair) for pair in links.dead} if links else set()
    slow = {_edge_of(system, graph, each.link): each.bandwidth for each in links.degraded} if links else {}
    for pair in sorted((dead | set(slow)) - pairs):
        near = sorted(other for each in pairs for other in each if pair[0] in each and other != pair[0])
        there = [named_dies(near)] if (near := [other for other in near if other < graph.dies]) else []
        raise SpecError(
            f"{system.name}: links_as_built: no link between dies {pair[0]} and {pair[1]}; die {pair[0]} is linked to "
            f"{', '.join([*there, *switches_of(system)]) or 'none'}"
        )
    if (drawn := system.drawn) is not None and drawn.link_failure:
        every = sorted(pairs)
        fails = dead_links(Draw(drawn.seed, drawn.wafer), len(every), drawn.link_failure)
        dead |= {pair for pair, failed in zip(every, fails.tolist(), strict=True) if failed}
    if built is None:
        holes = as_built.Holes(tuple(range(graph.dies)), (), tuple(sorted(dead)), tuple(sorted(slow.items())))
    elif built.sides is not None:
        graph, classes = _own_fabric(system, built.sides[0], built.sides[1], grid.ROW_MAJOR)
        holes = _moved_up(system, built, graph, dead, slow)
    else:
        switched = system.fabric is not None and system.fabric.levels[0].kind == "switch"  # GPUs pass nothing on
        router_dead = switched or system.dies_as_built is None or system.dies_as_built.router == "dead"
        gone = built.dead if router_dead else ()
        holes = as_built.Holes(built.living, gone, tuple(sorted(dead)), tuple(sorted(slow.items())))
    try:
        found = as_built.punch(graph, holes)
        if built is not None and built.sides is not None:  # maps show dies where they are
            sites = np.array(built.living, np.int32)
            places = {"node_x": sites % system.mesh.x, "node_y": sites // system.mesh.x}
            found = found._replace(graph=replace(found.graph, **places))
        return found, classes
    except as_built.CutOff as error:
        raise MachineInParts(f"{system.name}: {error}") from None


def _edge_of(system, graph: fabric.Graph, link: tuple[int, int | str]) -> tuple[int, int]:
    """The nodes of a link as it is written, lower first; of a port that a group shares, that port and its switch."""
    die, end = link
    if isinstance(end, int):
        return min(die, end), max(die, end)
    level, levels = int(end.rpartition(" ")[2]), len(system.fabric.levels) if system.fabric is not None else 1
    leaves = graph.link_src == die
    if (own := np.flatnonzero(leaves & (graph.link_class == level) & (graph.link_dst >= graph.dies))).size:
        return die, int(graph.link_dst[own[0]])
    port = int(graph.link_dst[np.flatnonzero(leaves & (graph.link_class == levels + level))[0]])
    ends = port, int(graph.link_dst[np.flatnonzero((graph.link_src == port) & (graph.link_class == level))[0]])
    return min(ends), max(ends)


class MachineInParts(SpecError):
    """Dead dies and links cut living dies off."""


def _moved_up(system, built, graph: fabric.Graph, dead: set, slow: dict) -> as_built.Holes:
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
    return as_built.Holes(tuple(range(graph.dies)), (), tuple(sorted(cut)), tuple(sorted(share.items())), longer)


def _of_kind(kind: as_built.LinkKind, classes: list[fabric.LinkClass]) -> fabric.LinkClass:
    of = classes[kind.of]
    if kind == as_built.LinkKind(kind.of):
        return of
    differs = [f"{kind.share:.0%}"] * (kind.share < 1) + [f"{kind.length} long"] * (kind.length > 1)
    return of._replace(
        name=", ".join([of.name, *differs]), bandwidth_bytes_per_s=of.bandwidth_bytes_per_s * kind.share,
        latency_ns=of.latency_ns * kind.length,
    )  # fmt: skip


def what_is_left(system) -> as_built.Left | None:
    """Detours, bisection and virtual channels of a machine as it is built; None of a perfect one. Raises SpecError."""
    if is_perfect(system):
        return None
    found, _ = _as_built(system)
    sites = np.arange(system.sites) if system.built is None else np.array(system.built.living)
    return as_built.left_of(_as_made(system, grid.ROW_MAJOR)[0], sites, found)


def plain_link_bytes_per_ns(system) -> float:
    """Effective rate of a link without a bandwidth of its own in the topology."""
    return system.d2d.bandwidth_bytes_per_s / NS_PER_S * system.d2d.efficiency


def extent_of(system) -> extent.Extent:
    """Links of the fabric and of the routes of all pairs of dies, without building it."""
    if system.fabric is not None:
        return extent.extent_of_levels(_levels(system))
    sides = (system.sites, 1) if system.mesh is None else (system.mesh.x, system.mesh.y)
    found, listed = extent.extent(system.topology.name, *sides), len(system.topology.edges)
    return found._replace(links=2 * listed) if listed else found


def _of_levels(system) -> fabric.Graph:
    return build_levels(_levels(system))


def _levels(system) -> tuple[Level, ...]:
    return tuple(Level(level.kind, level.sides, level.per or "group") for level in system.fabric.levels)


def _level_classes(system) -> list[fabric.LinkClass]:
    """Links of every level; then those between dies and the level's shared ports, which add no latency."""
    levels = system.fabric.levels
    links = [_link(system, f"level {number}", level) for number, level in enumerate(levels)]
    return links + [each._replace(name=f"{each.name} port", latency_ns=0.0) for each in links]


def _link(system, name: str, own) -> fabric.LinkClass:
    """The link class: its own properties where given, else those of the system's ``d2d``."""
    bandwidth, latency_ns = own.bandwidth_bytes_per_s, own.hop_latency_ns
    return fabric.LinkClass(
        name, system.d2d.bandwidth_bytes_per_s if bandwidth is None else bandwidth,
        system.d2d.hop_latency_ns if latency_ns is None else latency_ns, own.law, system.d2d.efficiency,
    )  # fmt: skip


def build_fabric(system, numbering: str, carriers: str = "one") -> fabric.Fabric:
    """Dies, links and routes of a system; systems that differ in rates alone share a graph. ``numbering``,
    ``carriers``: see the assumptions. Raises ArchsimError for a user's function that returns no fabric.
    """
    if is_perfect(system):
        graph, classes = _as_made(system, numbering, carriers)
        return graph.with_links(system.shape, classes)
    if numbering != grid.ROW_MAJOR and system.mesh is not None:
        raise SpecError(
            f"{system.name}: numbering: {numbering} numbers the dies of a perfect mesh; a machine with dies_as_built, "
            f"links_as_built, spares or drawn has numbering: {grid.ROW_MAJOR}"
        )
    found, classes = _as_built(system, carriers)
    return found.graph.with_links(system.shape, [_of_kind(kind, classes) for kind in found.kinds])
