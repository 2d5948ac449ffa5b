"""Refuses fabrics that cannot be built or lack an assumption, and axes that change no link, before anything runs."""

from collections.abc import Iterable

import numpy as np

from archsim.base.errors import ArchsimError, SpecError
from archsim.engine.fabrics import build_fabric
from archsim.engine.flows.link_order import port_ranks
from archsim.machine.system import SystemSpec
from archsim.runs.run import Run
from archsim.specs.axes import Axis
from archsim.specs.plan import SweepPlan
from microarch.fabric.fabric import Fabric
from microarch.fabric.grid import ROW_MAJOR


def refuse_misroutes(runs: Iterable[Run]) -> None:
    """Raises ArchsimError with a line for every fabric without the ``arbitration`` of its runs."""
    problems: dict[str, None] = {}
    for run in runs:
        if run.assumptions.contention == "shared" and run.assumptions.arbitration == "round_robin":
            try:
                port_ranks(build_fabric(run.system, run.assumptions.numbering))
            except ArchsimError as error:
                problems[f"{run.system.name}: {error}"] = None
    if problems:
        raise ArchsimError("\n".join(problems))


# Keys of d2d that links may have of their own → the field, and what of it a fabric has.
_OF_LINKS = {"bandwidth": ("bandwidth_bytes_per_s", "link_bytes_per_ns"), "hop_latency": ("hop_latency_ns", "link_ns")}


def refuse_links(plan: SweepPlan, systems: Iterable[SystemSpec]) -> None:
    """ArchsimError for a user's function that builds no fabric; SpecError for an axis of links without effect."""
    unlike = {repr((system.mesh, system.topology, system.fabric)): system for system in systems}.values()  # but for d2d
    fabrics = [(system, build_fabric(system, ROW_MAJOR)) for system in unlike if system.topology.is_function]
    axes = [axis for axis in plan.sweep.axes if axis.path[:2] == ("system", "d2d") and axis.path[-1] in _OF_LINKS]
    if not axes:
        return
    known = {id(system): fabric for system, fabric in fabrics}
    built = [(system, known.get(id(system)) or build_fabric(system, ROW_MAJOR)) for system in unlike]
    for axis in axes:
        if all(_changes_nothing(axis, system, fabric) for system, fabric in built):
            names = [each.name for each in plan.experiment.systems]
            raise SpecError(_sentence(axis, *built[0], names[0] if len(names) == 1 else "any system"))


def refuse_own_fabric(system: SystemSpec) -> None:
    """Raise ArchsimError for a user's function that builds no fabric for the system."""
    if system.topology.is_function:
        build_fabric(system, ROW_MAJOR)


def _changes_nothing(axis: Axis, system: SystemSpec, fabric: Fabric) -> bool:
    field, links = _OF_LINKS[axis.path[-1]]
    other = system.d2d.model_copy(update={field: 2 * getattr(system.d2d, field) + 1})
    changed = build_fabric(system.model_copy(update={"d2d": other}), ROW_MAJOR)
    return np.array_equal(getattr(changed, links), getattr(fabric, links))


def _sentence(axis: Axis, system: SystemSpec, fabric: Fabric, name: str) -> str:
    key = axis.path[-1]
    names = ", ".join(dict.fromkeys(fabric.classes[at].name or "link" for at in np.unique(fabric.link_class)))
    if system.topology.is_function:
        params = ", ".join(f"system.topology.params.{name}" for name in system.topology.params) or "its params"
        instead = f"{system.topology.name} gives every class ({names}) its own; vary what it takes ({params})"
    else:
        whole = "system.fabric" if system.fabric is not None else "system.topology"
        instead = f"every class of links ({names}) has its own; vary {whole}, or leave {key} out of the classes"
    return f"{axis.place}: {axis.name} changes no link of {name}: {instead}"
