"""From a system to its fabric: the graph of dies and links, and the rate and latency of each link class."""

from pathlib import Path

from archsim.base.errors import SpecError
from archsim.base.nearest import did_you_mean
from archsim.base.units import NS_PER_S
from archsim.laws.mesh import FULL, LINEAR, MESH, RING, EndpointLaw
from archsim.specs.loading.fabric_calibrations import fabric_calibration
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
