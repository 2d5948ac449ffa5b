"""The dies and links of a system in a manifest: their number, a description, and their arrangement in a map."""

from collections.abc import Mapping
from math import ceil, sqrt
from typing import Any

from archsim.specs.machine.fabric import FabricSpec


def dies_of(system: Mapping[str, Any]) -> int:
    """Number of dies of a system in a manifest."""
    if system.get("mesh"):
        return system["mesh"]["x"] * system["mesh"]["y"]
    if system.get("fabric"):
        return FabricSpec.model_validate(system["fabric"]).dies
    return system["topology"]["dies"]


def shape_of(system: Mapping[str, Any]) -> str:
    """Dies and links in words: ``5 × 5``, ``5 × 5, torus``, ``4 × 8 switch``."""
    if system.get("fabric"):
        return FabricSpec.model_validate(system["fabric"]).shape
    topology = system.get("topology") or "mesh"
    name = topology if isinstance(topology, str) else topology["name"]
    if not system.get("mesh"):
        return f"{topology['dies']}, {name}"
    size = f"{system['mesh']['x']} × {system['mesh']['y']}"
    return size if topology == "mesh" else f"{size}, {name}"


def map_width(system: Mapping[str, Any]) -> int:
    """Dies per row in a map without coordinates: the innermost group of several, else as many as there are rows."""
    levels = FabricSpec.model_validate(system["fabric"]).levels if system.get("fabric") else ()
    return levels[0].size if len(levels) > 1 else ceil(sqrt(dies_of(system)))


def nodes_of(system: Mapping[str, Any]) -> int | None:
    """Nodes of GPUs behind switches, in one or two levels; None: another fabric."""
    levels = FabricSpec.model_validate(system["fabric"]).levels if system.get("fabric") else ()
    if not 1 <= len(levels) <= 2 or any(level.kind != "switch" for level in levels):
        return None
    return levels[1].size if len(levels) > 1 else 1
