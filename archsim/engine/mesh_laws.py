"""The law of a measured mesh that a system names, where its own mesh is one that was measured."""

from __future__ import annotations

from pathlib import Path

from archsim.base.errors import SpecError, did_you_mean
from archsim.base.sums import sum
from archsim.base.units import NS_PER_S
from archsim.laws.mesh import FULL, KERNELS, LINEAR, MESH, RING, TERMS, EndpointLaw
from archsim.machine.fabric_calibrations import FabricCalibration, fabric_calibration
from archsim.machine.system import D2DSpec
from microarch.fabric.fabric import Fabric

_GRIDS = ("mesh", "torus")
JUDGED_VECTORS = 2240.0  # that a chip sends and returns: 640 tokens of four experts each, an eighth of them its own


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


def neighbour_bytes_per_s(name: str, system, fabric: Fabric) -> float:
    """Rate of the slowest link between neighbours, one way; laws have nominal rates, links reached a share of these."""
    measured = _reached_share(fabric_calibration(Path(name.rpartition("/")[0])))
    return float(fabric.link_bytes_per_ns.min()) * NS_PER_S / measured


def _reached_share(calibration: FabricCalibration) -> float:
    """Share of its nominal rate that a measured link reached at most, to hundredths; if none, a machine's default."""
    reached = max((each.bytes_per_s for each in calibration.link_rate), default=0.0)
    nominal = [law.link_bytes_per_s for law in calibration.endpoint if law.link_bytes_per_s >= reached]
    return round(reached / min(nominal), 2) if reached and nominal else D2DSpec.model_fields["efficiency"].default


def name_endpoint(system) -> str:
    """The measured kernels of a system that names its endpoint, and how far off their laws are, in words."""
    said = []
    for kernel in KERNELS:
        law = measured_law(system.endpoint, kernel, system)
        off = law.residuals and law.residuals.held_out_mean
        said.append(f"{kernel} {off:.1%} off" if off is not None else f"{kernel} without a case left out")
    low, high = other_versions(system)
    return (
        f"{system.endpoint.replace('/', ' ')}, regressions of one kernel on one topology ({' and '.join(said)}; other "
        f"versions of it take {low:.2g} to {high:.2g} times as long)"
    )


def endpoint_carried(system, model) -> bool:
    """Whether the kernels of a system's endpoint were measured with vectors of another size."""
    return any(measured_law(system.endpoint, kernel, system).vector_bytes != 2 * model.hidden for kernel in KERNELS)


def other_versions(system) -> tuple[float, float]:
    """Least and most time over the endpoint's own: every measured version, and the error of cases left out."""
    machine, _, version = system.endpoint.rpartition("/")
    calibration, own = fabric_calibration(Path(machine)), [measured_law(system.endpoint, k, system) for k in KERNELS]
    even, found = dict.fromkeys(TERMS, JUDGED_VECTORS), []
    for each in dict.fromkeys(law.version for law in calibration.endpoint):
        laws = [
            law
            for kernel in KERNELS
            if (law := calibration.law(kernel, each)) is not None and _of_same_links(law, own[0])
        ]
        if len(laws) == len(own):
            errors = [law.residuals.held_out_most or 0.0 for law in laws if law.residuals]
            found += [
                sum(law.time_ns(even, law.vector_bytes) for law in laws) * factor
                for factor in (1 - max(errors, default=0.0), 1 + max(errors, default=0.0))
            ]
    whole = sum(law.time_ns(even, law.vector_bytes) for law in own)
    return min(found) / whole, max(found) / whole


def _of_same_links(law: EndpointLaw, own: EndpointLaw) -> bool:
    same = (law.links, law.link_bytes_per_s, law.vector_bytes) == (own.links, own.link_bytes_per_s, own.vector_bytes)
    return same and bool(set(law.topologies) & set(own.topologies))
