"""Machines that are drawn: areas that decide how many defects they have, which of them work, and their distribution."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from archsim.engine.machine import MachineInParts, build_fabric, what_is_left
from archsim.runs.energy import build_costs
from archsim.specs.as_built import named_dies
from archsim.specs.plan import Dropped, Point
from archsim.specs.system import SystemSpec
from microarch.fabric.topology import ROW_MAJOR

SCRAPPED = "a machine that works"  # what drawn machines that do not were dropped by


@lru_cache(maxsize=4096)
def with_areas(system: SystemSpec) -> SystemSpec:
    """A drawn system with the areas of a die and of its cores, by which defects hit it: those of its price, where it
    gives none.
    """
    drawn = system.drawn
    if drawn is None or not drawn.needs_area:
        return system
    blocks = build_costs(system.as_made).area_mm2
    die_mm2 = drawn.die_area_mm2 or sum(blocks.values())
    core_mm2 = drawn.core_area_mm2 or min(die_mm2, die_mm2 * blocks["compute"] / sum(blocks.values()))
    areas = {"die_area_mm2": die_mm2, "core_area_mm2": core_mm2}
    return system.model_copy(update={"drawn": drawn.model_copy(update=areas)})


def works(points: Iterable[Point], dropped: Dropped) -> Iterator[Point]:
    """Points whose machine works; drawn ones that do not are counted as dropped. Raises SpecError for others."""
    known: dict[int, bool] = {}
    for point in points:
        system = point.system
        if id(system) not in known:
            known[id(system)] = system.drawn is None or not why_scrapped(system)
        if known[id(system)]:
            yield point
        else:
            dropped.by_constraint[SCRAPPED] = dropped.by_constraint.get(SCRAPPED, 0) + 1


def why_scrapped(system: SystemSpec) -> str:
    """Why a drawn machine does not work: too few dies, or dies that are cut off; '' if it does."""
    if system.built is not None and system.built.unusable:
        return system.built.unusable
    try:
        build_fabric(system, ROW_MAJOR)
    except MachineInParts as error:
        return str(error)
    return ""


def told_as_built(system: SystemSpec) -> list[str]:
    """Sentences on a machine as it is built; none of a perfect one. Raises SpecError for one that does not work."""
    system = with_areas(system)
    if system.drawn is not None and system.drawn.wafers > 1:
        return [_told_drawn(system)]
    left = what_is_left(system)
    if left is None:
        return []
    built, found = system.built, []
    if built is not None and len(built.living) < built.sites:
        dead = f"{named_dies(built.dead)} dead" if built.dead else ""
        idle = f"{named_dies(built.idle)} spare" if built.idle else ""
        found.append(f"{len(built.living)} of {built.sites} dies work ({', '.join(filter(None, (dead, idle)))})")
    if built is not None and (min(built.array) < 1 or max(built.array) > 1 or min(built.hbm) < 1 or max(built.hbm) > 1):
        found.append(f"arrays run at {_range(built.array)} of their clock, HBM at {_range(built.hbm)} of its bandwidth")
    found.append(
        f"all are connected; detours: routes are {left.mean_detour:.3f} times as long as in the perfect machine, at "
        f"most {left.most_detour:.2f} times; bisection left: {left.bisection:.0%}; virtual channels: {left.channels} "
        f"(perfect machine: {left.perfect_channels})"
    )
    return [f"{system.name}: {'; '.join(found)}"]


def _range(factors: tuple[float, ...]) -> str:
    low, high = min(factors), max(factors)
    return f"{low:.1%}" if low == high else f"{low:.1%} to {high:.1%}"


_TOLD = 200  # wafers that are looked at to say how many work


def _told_drawn(system: SystemSpec) -> str:
    assert system.drawn is not None
    count = min(system.drawn.wafers, _TOLD)
    living, scrapped = [], 0
    for wafer in range(count):
        one = system.model_copy(update={"drawn": system.drawn.model_copy(update={"wafer": wafer})})
        if why_scrapped(one):
            scrapped += 1
        else:
            living.append(one.dies)
    area = "" if system.drawn.die_area_mm2 is None else f" on dies of {system.drawn.die_area_mm2:,.0f} mm²"
    dies = f", with {min(living)} to {max(living)} of {system.sites} dies" if living else ""
    first = f" of the first {count}" if count < system.drawn.wafers else f" of {count}"
    return f"{system.name}: {count - scrapped}{first} drawn machines work{dies}{area}"
