"""From a system to its fabric: the graph of dies and links, and the rate and latency of each link class."""

from archsim.base.units import NS_PER_S
from microarch.fabric.extent import Extent, extent, extent_of_levels
from microarch.fabric.fabric import Fabric, Graph, LinkClass
from microarch.fabric.levels import Level, build_levels
from microarch.fabric.own import build_own
from microarch.fabric.topology import Edge, build_topology


def build_fabric(system, numbering: str) -> Fabric:
    """Dies, links and routes of a system, with bandwidths and latencies.

    Systems that differ only in these share a graph.

    ``numbering``: of the dies of a mesh, see the assumption. Raises ArchsimError for a user's function that returns no
    fabric.
    """
    if system.fabric is not None:
        return _of_levels(system).with_links(system.shape, _level_classes(system))
    topology = system.topology
    if topology.is_function:
        graph, classes = build_own(topology.name, system.dies, topology.params)
        return graph.with_links(system.shape, [each._replace(efficiency=system.d2d.efficiency) for each in classes])
    edges = tuple(Edge(*edge.dies, _link(system, "", edge).latency_ns) for edge in topology.edges)
    graph = build_topology(topology.name, system.mesh.x, system.mesh.y, numbering, edges)
    named = zip(topology.class_names, topology.classes, strict=True)
    return graph.with_links(system.shape, [_link(system, name, own) for name, own in named])


def plain_link_bytes_per_ns(system) -> float:
    """Effective rate of a link without a bandwidth of its own in the topology."""
    return system.d2d.bandwidth_bytes_per_s / NS_PER_S * system.d2d.efficiency


def extent_of(system) -> Extent:
    """Links of the fabric, and of the routes of all pairs of dies, without building it: ``microarch.fabric.extent``."""
    if system.fabric is not None:
        return extent_of_levels(_levels(system))
    sides = (system.dies, 1) if system.mesh is None else (system.mesh.x, system.mesh.y)
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
