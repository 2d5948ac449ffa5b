"""Area and price of a machine by part; what cannot be made is refused. Source: ``microarch.silicon.cost``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple, TypeVar

import numpy as np

from archsim.base.errors import SpecError, did_you_mean
from archsim.base.quantities import BANDWIDTH, SIZE, format_quantity
from archsim.base.sums import sum
from archsim.base.units import NS_PER_S
from archsim.engine.fabrics import build_fabric, dies_together, link_classes
from archsim.laws.wafer import harvested_yield
from archsim.machine.made import MONOLITHIC
from archsim.machine.system import SystemSpec
from microarch.fabric.grid import ROW_MAJOR
from microarch.silicon import decision_area, die_area
from microarch.silicon.area import AreaAndPower, total
from microarch.silicon.cost import (
    CARRIER_MM2,
    NOTHING_BESIDE,
    PACKAGE_MM2,
    RETICLE_MM2,
    Beside,
    CostEstimates,
    die_yield,
    dies_per_wafer,
    interface_mm2,
    machine_cost,
)
from microarch.silicon.energy import EnergyEstimates
from microarch.silicon.estimates import Estimate, Estimates
from microarch.silicon.memories import HBM_STACK_MM2, SRAM, devices, memory_of
from microarch.silicon.nodes import NODES

GB = 1e9
PIECES = "pieces"  # block of a die: interfaces between its pieces
IO_DIES = "io dies"  # block of a die: dies of another kind that belong to it
SET_BY_USER = "set by the user"  # source of a coefficient
MAY_BE_ZERO = ("defects_per_cm2", "bond_loss", "test_share", "cable_usd_per_gbit_per_s")  # a perfect process, ...
SHARES = ("bond_loss", "test_share")  # coefficients below 1
MOST_TIMES = 100  # a coefficient of a user beyond its range by more is in another unit
NOTHING = AreaAndPower(0.0, 0.0)


class Coefficients(NamedTuple):
    """All coefficients of energy, area and cost."""

    energy: EnergyEstimates = EnergyEstimates()
    area: die_area.AreaEstimates = die_area.AreaEstimates()
    cost: CostEstimates = CostEstimates()
    bound: str = "value"  # end of the ranges of nodes and memories that goes with these

    def by_name(self) -> Mapping[str, Estimate]:
        return self.energy.by_name() | self.area.by_name() | self.cost.by_name()

    def change(self, changes: Mapping[str, float]) -> Coefficients:
        """With a user's values. Raises SpecError for an unknown name or a value that is not positive."""
        known = self.by_name()
        for name, value in changes.items():
            if name not in known:
                raise SpecError(
                    f"economics: unknown coefficient {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}"
                )
            if not (value >= 0 if name in MAY_BE_ZERO else value > 0):
                least = "at least 0" if name in MAY_BE_ZERO else "above 0"
                raise SpecError(f"economics: {name} must be {least}, got {value!r}")
            if name in SHARES and value >= 1:
                raise SpecError(
                    f"economics: {name} must be a share below 1, such as {known[name].value:g}, got {value!r}"
                )
            if value > MOST_TIMES * known[name].high:
                raise SpecError(
                    f"economics: {name} of {value:g} {known[name].unit} is over {MOST_TIMES} times the most that its "
                    f"sources say, {known[name].high:g}; expected about {known[name].value:g} {known[name].unit}"
                )
        groups = (
            change_estimates(self.energy, changes),
            change_estimates(self.area, changes),
            change_estimates(self.cost, changes),
        )
        return Coefficients(*groups, self.bound)

    def at(self, bound: str) -> Coefficients:
        """Every coefficient at its ``low`` or its ``high`` bound."""
        return Coefficients(self.energy.at(bound), self.area.at(bound), self.cost.at(bound), bound)

    def of(self, system: SystemSpec) -> Coefficients:
        """The coefficients of a system's node and memory; those that a user set stay. Equal if it says neither."""
        hbm, made = system.hbm, system.made  # without rates, which may be arrays
        node = made.node if made is not None else None
        return _of(self, system.name, node, hbm.kind, hbm.pj_per_bit, hbm.usd_per_gb)


@lru_cache(maxsize=1024)
def _of(
    general: Coefficients, whose: str, of_node: str | None, kind: str | None, pj: float | None, usd: float | None
) -> Coefficients:
    """`Coefficients.of` a node and a memory; ``pj``, ``usd``: of a bit and a GB, where its file says them."""
    memory, bound = memory_of(kind), general.bound
    energy, area, cost = general.energy.by_name(), general.area.by_name(), general.cost.by_name()
    found: dict[str, Estimate] = {}
    if of_node is not None:
        node = NODES[of_node]
        for name in ("flop_pj", "padding_pj", "sram_pj_per_bit"):
            found[name] = _times(energy[name], node.energy, bound)
        name = "compute_mm2_per_tflop_per_s"
        found |= {name: _times(area[name], node.logic_area, bound)}
        found["wafer_usd"] = _instead(cost["wafer_usd"], node.wafer_usd, bound)
    if kind is not None:
        by_kind = _instead if kind == SRAM else _times
        found["hbm_pj_per_bit"] = by_kind(energy["hbm_pj_per_bit"], memory.energy, bound)
        if kind == SRAM and of_node is not None:
            found["hbm_pj_per_bit"] = _times(found["hbm_pj_per_bit"], NODES[of_node].energy, bound)
        found["hbm_usd_per_gb"] = _instead(cost["hbm_usd_per_gb"], memory.usd_per_gb, bound)
        found["hbm_mm2_per_tb_per_s"] = _times(area["hbm_mm2_per_tb_per_s"], memory.phy, bound)
    for name, given in (("hbm_pj_per_bit", pj), ("hbm_usd_per_gb", usd)):
        if given is not None:
            found[name] = Estimate(given, given, given, (energy | cost)[name].unit, whose)
    if not found:
        return general
    return Coefficients(
        general.energy.with_estimates(found),
        general.area.with_estimates(found),
        general.cost.with_estimates(found),
        bound,
    )


def _times(known: Estimate, factor: Estimate, bound: str) -> Estimate:
    """A coefficient times a factor, at this end of their ranges; that of a user as it is."""
    if known.source == SET_BY_USER:
        return known
    low, high = known.low * factor.low, known.high * factor.high
    return Estimate(known.value * getattr(factor, bound), low, high, known.unit, f"{known.source}; {factor.source}")


def _instead(known: Estimate, other: Estimate | None, bound: str) -> Estimate:
    """Another coefficient at this end of its range, but for that of a user."""
    if known.source == SET_BY_USER or other is None:
        return known
    return replace(other, value=getattr(other, bound))


AS_PUBLISHED = Coefficients()

Group = TypeVar("Group", bound=Estimates)


def change_estimates(group: Group, changes: Mapping[str, float]) -> Group:
    return group.change({name: value for name, value in changes.items() if name in group.by_name()})


class SystemHardware(NamedTuple):
    """Area, power of the deciding hardware, and price of a system."""

    system: SystemSpec  # that it is of
    area_mm2: Mapping[str, float]  # name of a block → mm² of one die
    decision: AreaAndPower  # of the hardware that decides
    stacks_per_die: int  # of memory on the carrier
    usd: Mapping[str, float]  # component → price of the machine
    pieces: int  # of one die: as many as make it cheapest
    carriers: int  # of the machine: as many as cost least

    @property
    def die_mm2(self) -> float:
        return sum(self.area_mm2.values())

    @property
    def powered_mm2(self) -> float:
        """Of one die, by which it draws power: without its IO dies."""
        made = self.system.made
        if made is not None and made.area_mm2 is not None:
            return made.area_mm2
        return self.die_mm2 - self.area_mm2.get(IO_DIES, 0.0)

    @property
    def silicon_mm2(self) -> float:
        """All dies that were made, without HBM."""
        return self.die_mm2 * self.system.sites

    @property
    def carrier_mm2(self) -> float:
        """Area on the carrier: dies, without those below others, and stacks of memory."""
        made, compute_mm2, io_mm2 = self.system.made, self.die_mm2, self.area_mm2.get(IO_DIES, 0.0)
        if made is not None and made.io_dies is not None and made.io_dies.place == "below":
            compute_mm2 = max(self.die_mm2 - io_mm2, io_mm2)
        return self.system.sites * (compute_mm2 + self.stacks_per_die * HBM_STACK_MM2)

    @property
    def packages(self) -> bool:
        """Whether the dies that are linked as on one carrier are in a package, not on a wafer."""
        made = self.system.made
        on_one_mm2 = self.carrier_mm2 * (dies_together(self.system) or 1) / self.system.sites
        return on_one_mm2 <= PACKAGE_MM2 and (made is None or made.carrier not in ("wafer", MONOLITHIC))

    @property
    def carrier_share(self) -> float:
        """Area of dies linked as on one carrier, and HBM, over the largest carrier's; else of each die."""
        return self.carrier_mm2 / CARRIER_MM2 * (dies_together(self.system) or 1) / self.system.sites


@lru_cache(maxsize=256)
def build_costs(
    system: SystemSpec, coefficients: Coefficients = AS_PUBLISHED, without: AreaAndPower = NOTHING
) -> SystemHardware:
    """The machine of a system, ``without`` some of its decision hardware. Dead and spare dies are made, too."""
    made = system.as_made
    every = total(part.cost for part in decision_area.decision_parts(system.decision, decision_area.design_of(made)))
    decision = AreaAndPower(every.area_mm2 - without.area_mm2, every.power_mw - without.power_mw)
    rates = build_fabric(made, ROW_MAJOR).link_bytes_per_ns
    stacks = int(die_area.stacks_of(system))
    machine = _price_system(system, float(rates.sum()), decision, stacks, coefficients.of(system))
    usd, area = ({name: float(each) for name, each in found.items()} for found in (machine.usd, machine.area_mm2))
    return machine._replace(usd=usd, area_mm2=area, pieces=int(machine.pieces), carriers=int(machine.carriers))


def price_range(system: SystemSpec) -> tuple[float, float]:
    """USD with all coefficients at their low and at their high ends."""
    low, high = (sum(build_costs(system, Coefficients().at(bound)).usd.values()) for bound in ("low", "high"))
    return low, high


def costs_of_many(
    system: SystemSpec, own: SystemHardware, link_class: np.ndarray, coefficients: Coefficients
) -> SystemHardware:
    """`build_costs` of many machines, for which a system with arrays of rates stands
    (`archsim.engine.analytic.rates.with_rates`); areas and prices are float64[machine]. ``own``: the costs of one of
    them; ``link_class: int32[link]``.
    """
    bandwidth: Any = system.hbm.bandwidth_bytes_per_s
    kinds = [np.broadcast_to(each.bytes_per_ns, bandwidth.shape) for each in link_classes(system)]
    leaving = np.ascontiguousarray(np.stack(kinds, axis=1)[:, link_class]).sum(axis=1)
    return _price_system(system, leaving, own.decision, die_area.stacks_of(system), coefficients.of(own.system))


def price_ranges(system: SystemSpec, coefficients: Coefficients) -> list[tuple[str, float, float]]:
    """(coefficient, price at its low end, at its high end, USD), most decisive first; none that changes nothing."""
    found, own = [], coefficients.of(system)
    for name, each in (own.area.by_name() | own.cost.by_name()).items():
        if each.low == each.high:
            continue
        low, high = (
            sum(build_costs(system, coefficients.change({name: end})).usd.values()) for end in (each.low, each.high)
        )
        if low != high:
            found.append((name, low, high))
    return sorted(found, key=lambda each: each[1] - each[2])


def carrier_note(name: str, share: float) -> str:
    """A sentence about a system whose dies, linked as on one carrier, take this share of the largest; empty up to 1."""
    if share <= 1:
        return ""
    return (
        f"{name}: dies and HBM take {share:.0%} of the largest carrier, {CARRIER_MM2:,.0f} mm² of a wafer. Under "
        "carriers: as_needed (physical), links from one carrier to the next have the bandwidth and latency of "
        "d2d.off_carrier; under carriers: one (published), they are as fast as those within"
    )


def _price_system(
    system: SystemSpec, leaving: Any, decision: AreaAndPower, stacks_per_die: Any, coefficients: Coefficients
) -> SystemHardware:
    """A machine with its price, of many float64[machine]. ``leaving``: bytes per ns of all links together."""
    leaving_bytes_per_s = leaving / system.d2d.efficiency * NS_PER_S / system.sites
    area = dict(die_area.die_area(system.as_made, leaving_bytes_per_s, decision.area_mm2, coefficients.area))
    side_mm2 = die_area.interface_of(system, coefficients.area)
    cost = coefficients.cost
    if system.drawn is not None and system.drawn.bond_failure:  # these dies are lost, and no carrier
        cost = replace(cost, bond_loss=replace(cost.bond_loss, value=0.0, low=0.0))
    # Each die of a cluster has a package of its own, and no cables lead from one to the next.
    together, made = dies_together(system) or 1, system.made
    across = die_area.across_bytes_per_s(area["d2d"], together, coefficients.area) if dies_together(system) else 0.0
    making = machine_cost(
        die_mm2=sum(area.values()),
        dies=together,
        stacks_per_die=stacks_per_die,
        hbm_bytes_per_die=system.hbm.capacity_bytes,
        side_mm2=side_mm2,
        across_bytes_per_s=across,
        estimates=cost,
        share_good=_share_good(system, area, coefficients.cost),
        pieces=made.pieces if made is not None else None,
        packaged=made is None or made.carrier != "wafer",
        finished=made is not None and made.carrier == "package",
        monolithic=made is not None and made.carrier == MONOLITHIC,
        beside=_beside(system, area, coefficients),
    )
    groups = system.sites // together
    usd = {name: groups * each for name, each in making.usd.items()}
    area[PIECES] = interface_mm2(making.pieces, side_mm2)
    if made is not None and made.io_dies is not None:
        area[IO_DIES] = made.io_dies.number * made.io_dies.area_mm2
    return SystemHardware(system, area, decision, stacks_per_die, usd, making.pieces, groups * making.carriers)


def _beside(system: SystemSpec, area_mm2: Mapping[str, Any], coefficients: Coefficients) -> Beside:
    """What each die has beside it: IO dies, tested, and memories that keep nothing."""
    cost, bound, found = coefficients.cost, coefficients.bound, NOTHING_BESIDE
    for tier in system.memory:
        memory = memory_of(tier.kind)
        usd = memory.usd_per_gb if tier.usd_per_gb is None else None
        price = tier.usd_per_gb if usd is None else getattr(usd, bound)
        stacks = 0 if not memory.carrier_mm2 else int(devices(memory, tier.capacity_bytes, tier.bandwidth_bytes_per_s))
        found = Beside(
            found.usd + tier.capacity_bytes / GB * (price or 0.0), found.carrier_mm2 + stacks * memory.carrier_mm2,
            found.bonds + stacks,
        )  # fmt: skip
    io = system.made.io_dies if system.made is not None else None
    if io is None:
        return found
    wafer_usd = _instead(cost.wafer_usd, NODES[io.node].wafer_usd, bound).value
    one_usd = wafer_usd / (dies_per_wafer(io.area_mm2) * die_yield(io.area_mm2, cost)) * (1 + cost.test_share.value)
    carrier_mm2 = io.number * io.area_mm2
    if io.place == "below":
        carrier_mm2 = max(0.0, carrier_mm2 - sum(area_mm2.values()))
    return Beside(found.usd + io.number * one_usd, found.carrier_mm2 + carrier_mm2, found.bonds + io.number)


def making_notes(machine: SystemHardware) -> Iterator[str]:
    """What of a machine has no room on the edge of a die or in a package, and memories that take no time."""
    system = machine.system
    rates = build_fabric(system.as_made, ROW_MAJOR).link_bytes_per_ns
    leaving = float(rates.sum()) / system.d2d.efficiency * NS_PER_S / system.sites
    memory, number = memory_of(system.hbm.kind), int(die_area.devices_of(system))
    made, outline_mm2, pieces = system.made, machine.die_mm2, machine.pieces
    if made is not None and made.io_dies is not None and made.io_dies.place == "below":
        outline_mm2, pieces = machine.carrier_mm2 / system.sites - machine.stacks_per_die * HBM_STACK_MM2, 1
    needed, there = die_area.edge_needed_mm(system, leaving), die_area.edge_mm(outline_mm2, pieces)
    if needed > there:
        fits = max(0, int((there - (needed - number * memory.edge_mm)) / memory.edge_mm)) if memory.edge_mm else 0
        yield (
            f"{system.name}: {number} devices of {memory.title} and the links of a die need {needed:,.0f} mm of its "
            f"edge, and a die of {outline_mm2:,.0f} mm² has {there:,.0f} mm, room for {fits}. Write hbm.kind for a "
            "memory with more in a stack or on the board, sram for one in the die, or larger dies"
        )
    if (
        made is not None
        and made.carrier == "package"
        and machine.usd.get("assembly")
        and machine.carrier_mm2 * (dies_together(system) or 1) / system.sites > PACKAGE_MM2
    ):
        yield (
            f"{system.name}: a package takes {PACKAGE_MM2:,.0f} mm² of silicon at most (5.5 reticles), and this has "
            f"{machine.carrier_mm2 * (dies_together(system) or 1) / system.sites:,.0f}: it is priced on wafers"
        )
    if made is not None and made.pieces and machine.die_mm2 / made.pieces > RETICLE_MM2 and made.io_dies is None:
        yield (
            f"{system.name}: made.pieces: {made.pieces} makes pieces of {machine.die_mm2 / made.pieces:,.0f} mm², and "
            f"a reticle has {RETICLE_MM2:,.0f}. Give {ceil(machine.die_mm2 / RETICLE_MM2)} or more"
        )
    if made is not None and made.area_mm2 is not None:
        free = system.model_copy(update={"made": made.model_copy(update={"area_mm2": None})})
        if (least_mm2 := build_costs(free, Coefficients().at("low")).die_mm2) > machine.die_mm2:
            yield (
                f"{system.name}: made.area: {made.area_mm2:,.0f} mm² is less than arrays, memory and links of a die "
                f"take, {least_mm2:,.0f} mm² with all coefficients low. Write a larger one, or lower rates"
            )
    for at, tier in enumerate(system.memory):
        yield (
            f"{system.name}: memory.{at} ({memory_of(tier.kind).title}) keeps nothing that is read, so it counts in "
            "area and price alone"
        )


MOST_DEVICES = 100  # of memory beside one die: no package has a fifth of them


def refuse_unbuildable(machine: SystemHardware) -> None:
    """Raise SpecError for a die with more devices of memory than any package has room for, or larger than a wafer."""
    hbm, memory, made = machine.system.hbm, memory_of(machine.system.hbm.kind), machine.system.made
    if made is not None and made.carrier == MONOLITHIC and machine.die_mm2 > CARRIER_MM2:
        raise SpecError(
            f"{machine.system.name}: hbm, d2d and compute of one die take {machine.die_mm2:,.0f} mm², and a wafer that "
            f"is not cut has {CARRIER_MM2:,.0f}. Write what one die has, and their number as mesh"
        )
    if (number := int(die_area.devices_of(machine.system))) > MOST_DEVICES:
        size, rate = format_quantity(hbm.capacity_bytes, SIZE), format_quantity(hbm.bandwidth_bytes_per_s, BANDWIDTH)
        raise SpecError(
            f"{machine.system.name}: hbm: {size} at {rate} are {number} devices of {memory.title} beside one die, and "
            f"none has {MOST_DEVICES}. For memory in the die write hbm: {{kind: sram}}; for memory on the board, "
            "kind: gddr7, lpddr5x or cxl"
        )


def _share_good(
    system: SystemSpec, area_mm2: Mapping[str, Any], estimates: CostEstimates
) -> Callable[[Any, int], Any] | None:
    """Share of pieces of a die that are used, by area and number of pieces, where it is not the yield of whole ones:
    all where defects are drawn, as these dies stay where they were made; with ``harvest`` those with enough cores.
    """
    if system.drawn is not None and system.drawn.defects_per_cm2:
        return lambda piece_mm2, pieces: 1.0
    harvest = system.dies_as_built.harvest if system.dies_as_built is not None else None
    if harvest is None:
        return None
    of_cores = area_mm2["compute"] / sum(area_mm2.values())
    defects = estimates.defects_per_cm2.value, estimates.cluster.value

    def share(piece_mm2: Any, pieces: int) -> Any:
        cores = max(1, round(harvest.cores / pieces))
        needed = min(cores, ceil(harvest.needed / pieces))
        law = np.vectorize(lambda area, part: harvested_yield(area, area * part, *defects, cores, needed))
        return law(piece_mm2, of_cores)

    return share
