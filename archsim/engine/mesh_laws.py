"""The law of a measured mesh that a system names, where its own mesh is one that was measured."""

from __future__ import annotations

from pathlib import Path

from archsim.base.errors import SpecError, did_you_mean
from archsim.laws.mesh import FULL, LINEAR, MESH, RING, EndpointLaw
from archsim.specs.fabric_calibrations import fabric_calibration

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
