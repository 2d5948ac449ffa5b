"""Energy of a run by block, and area and price of its machine, from the run's record.

Energy is that of the run's MoE layers, prefill included; a token is one that has passed all of the model's. Excluded
are attention (`iteration_energy` adds it where a whole iteration is known), host, cooling and LLC hits
(a hit is one LLC read more than counted here). Sources:
``microarch.silicon.energy`` and ``microarch.silicon.cost``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from math import ceil
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from archsim.base.errors import CapacityError, SpecError, did_you_mean
from archsim.base.quantities import BANDWIDTH, POWER, SIZE, format_quantity
from archsim.base.sums import sum
from archsim.base.units import NS_PER_S
from archsim.engine.engine import EventEngine
from archsim.engine.fabrics import build_fabric, dies_together, link_classes
from archsim.engine.loop import RunOutcome
from archsim.engine.pair_traffic import statistics_bytes
from archsim.engine.state import UNITS
from archsim.engine.step_counts import DECODE, PREFILL
from archsim.laws.wafer import harvested_yield
from archsim.runs.finished import plain
from archsim.specs.assumptions import GATHERING, AssumptionsSpec
from archsim.specs.built import places_of
from archsim.specs.model import ModelSpec
from archsim.specs.scenario import Scenario
from archsim.specs.system import SystemSpec
from microarch.fabric.fabric import Fabric
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
from microarch.silicon.energy import CROWDED_ROWS, SIXTEEN_BIT, Activity, EnergyEstimates, multiplying, run_energy
from microarch.silicon.estimates import Estimate, Estimates
from microarch.silicon.heat import DieTemperatures, HeatEstimates, Temperatures
from microarch.silicon.memories import HBM_STACK_MM2, SRAM, devices, memory_of
from microarch.silicon.nodes import NODES

MW_PER_W, GB = 1e3, 1e9
MATRICES = 3  # gate, up and down of an expert
FLOP_PER_WEIGHT = 2  # of one token: a product and a sum
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
        """The coefficients with a user's values. Raises SpecError for an unknown name or a value that
        is not positive.
        """
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
        groups = _change(self.energy, changes), _change(self.area, changes), _change(self.cost, changes)
        return Coefficients(*groups, self.bound)

    def at(self, bound: str) -> Coefficients:
        """Every coefficient at its ``low`` or its ``high`` bound."""
        return Coefficients(self.energy.at(bound), self.area.at(bound), self.cost.at(bound), bound)

    def of(self, system: SystemSpec) -> Coefficients:
        """The coefficients of a system's node and memory: those of a user stay as given. Equal to these for a system
        that says neither.
        """
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


def _change(group: Group, changes: Mapping[str, float]) -> Group:
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
        return on_one_mm2 <= PACKAGE_MM2 and (made is None or made.carrier != "wafer")

    @property
    def carrier_share(self) -> float:
        """Area of the dies that are linked as on one carrier and their HBM, divided by that of the largest carrier.

        Each die alone, if their links are a network between packages.
        """
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
    """Coefficient, price with it at its low end, price with it at its high end, USD, all others at their values; those
    that decide most come first, those that change nothing are left out.
    """
    found, own = [], coefficients.of(system)
    for name, each in (own.area.by_name() | own.cost.by_name()).items():
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
    """A machine with its price; of many that differ in rates, areas and stacks, these and prices are float64[machine].
    ``leaving``: bytes per ns of all links together.
    """
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
    """Sentences about what of a machine cannot be built as it is written: what has no room on the edge of a die or in a
    package, and memories on which no time is spent.
    """
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
    for at, tier in enumerate(system.memory):
        yield (
            f"{system.name}: memory.{at} ({memory_of(tier.kind).title}) keeps nothing that is read, so it counts in "
            "area and price alone"
        )


MOST_DEVICES = 100  # of memory beside one die: no package has a fifth of them


def refuse_unbuildable(machine: SystemHardware) -> None:
    """Raise SpecError for a die with more devices of memory than any package has room for."""
    hbm, memory = machine.system.hbm, memory_of(machine.system.hbm.kind)
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


def work_of(
    model: ModelSpec, assumptions: AssumptionsSpec, dies: Mapping[str, list], links: Mapping[str, list], padded: int
) -> dict[str, float]:
    """Columns of a run that energy follows from, prefill included; ``dies`` and ``links`` as in its record; ``padded``:
    rows that are empty in the tiles of its products.
    """
    routed = sum(dies["tokens"])
    weights: float = model.expert_ffn
    if assumptions.weights == "all":
        weights += model.shared_experts * model.shared_ffn / model.top_k
    return {
        "expert_tokens": routed,
        "hbm_bytes": sum(dies["hbm_bytes"]),
        "link_bytes": sum(
            n for n, src, dst in zip(links["bytes"], links["src"], links["dst"], strict=True) if src != dst
        ),  # ports are no links
        "flop": float(FLOP_PER_WEIGHT * MATRICES * model.hidden * weights * routed),
        "padded_flop": float(FLOP_PER_WEIGHT * MATRICES * model.hidden * model.expert_ffn * padded),
    }


def activity_of(model: ModelSpec, row: Mapping[str, Any]) -> Activity:
    """Activity of a run, from its row of the results."""
    return Activity(
        time_s=(row["prefill_ns"] + row["decode_ns"]) / NS_PER_S,
        hbm_bytes=row["hbm_bytes"],
        d2d_byte_hops=row["link_bytes"],
        llc_bytes=2 * (row["local_hbm_read_bytes"] + row["remote_hbm_read_bytes"]),
        flop=row["flop"],
        decision_s=row["decision_ns"] / NS_PER_S,
        tokens=(row["expert_tokens"] + row.get("pairs_lost", 0)) / model.top_k / len(model.moe_layer_ids),
        padded_flop=row.get("padded_flop") or 0.0,
        core_factor=1.0 if row.get("core_energy_factor") is None else row["core_energy_factor"],
        idle_factor=1.0 if row.get("idle_energy_factor") is None else row["idle_energy_factor"],
        rows=row["batch"],
    )


def full_load_w(machine: SystemHardware, coefficients: Coefficients | None = None) -> float:
    """Power with every die at its peak, and HBM and links at their bandwidths, W: an upper bound, as no run does all
    of it.
    """
    return sum(full_load_blocks_w(machine, coefficients).values())


def full_load_blocks_w(machine: SystemHardware, coefficients: Coefficients | None = None) -> Mapping[str, float]:
    """Block → W of `full_load_w`."""
    system = machine.system
    read = system.dies * system.hbm.bandwidth_bytes_per_s
    moved = float(build_fabric(system, ROW_MAJOR).link_bytes_per_ns.sum()) / system.d2d.efficiency * NS_PER_S
    second = Activity(1.0, read, moved, 2 * read, system.dies * system.compute.peak_flop_per_s, 1.0, 1.0)
    return energy_of(second, machine, coefficients)


def energy_of(
    activity: Activity, machine: SystemHardware, coefficients: Coefficients | None = None
) -> Mapping[str, float]:
    """Block → J of a run. Kernels of a GPU run all the time; a Local CP starts work when its operands are there."""
    return run_energy(
        _with_kernels(machine.system, activity, machine.system.dies),
        dtype_bytes=machine.system.compute.dtype_bytes,
        die_mm2=machine.powered_mm2,
        dies=machine.system.dies,
        decision_w=machine.decision.power_mw / MW_PER_W,
        pieces=machine.pieces,
        estimates=(coefficients or Coefficients()).of(machine.system).energy,
        cached=machine.system.hbm.kind != SRAM,
    )


def _with_kernels(system: SystemSpec, activity: Activity, dies: int, rows: float | None = None) -> Activity:
    """An activity with the time of kernels that multiply little, on dies that run kernels all the time; one that has
    it stays as it is. ``rows``: of the kernels of a die; None: those of the activity, which are of all.
    """
    if system.launch != "gpu" or np.any(activity.kernel_s) or not np.any(activity.time_s):
        return activity
    share = multiplying(activity.flop / dies / activity.time_s, system.compute.peak_flop_per_s)
    kernel_s = dies * activity.time_s * (1 - share)
    of_rows = activity.rows / dies if rows is None else rows
    return replace(activity, kernel_s=kernel_s, crowded_s=kernel_s * of_rows / (of_rows + CROWDED_ROWS))


def economics(
    activity: Activity, machine: SystemHardware, coefficients: Coefficients | None = None
) -> dict[str, float | None]:
    """Columns of a run: ``energy_per_token_j`` and ``power_w`` (mean), both also ``_low`` and ``_high`` with all
    coefficients of energy at these bounds; ``die_mm2``, ``silicon_mm2``, ``cost_usd``,
    ``carrier_share``.

    ``None`` for energy of a run without tokens, and power of one without time. Of many runs and machines, columns are
    float64[machine].
    """
    known = coefficients or Coefficients()
    row: dict[str, float | None] = {}
    for name, bound in (("", "value"), ("_low", "low"), ("_high", "high")):
        joule = sum(energy_of(activity, machine, known._replace(energy=known.energy.at(bound))).values())
        row[f"energy_per_token_j{name}"] = joule / activity.tokens if activity.tokens else None
        row[f"power_w{name}"] = joule / activity.time_s if np.any(activity.time_s) else None
    row |= {"die_mm2": machine.die_mm2, "silicon_mm2": machine.silicon_mm2, "cost_usd": sum(machine.usd.values())}
    row["carrier_share"] = machine.carrier_share
    return {name: plain(value) for name, value in row.items()}


# Energy of a whole decode iteration, a token: MoE layers as the run has them, attention and all else by their work.
#
# Each rank reads the weights that are not routed experts once an iteration, and the KV cache of its requests; a token
# computes with each of these weights once. Waiting is paid for the whole iteration. Weights in the die's dtype,
# attention and its cache in BF16 (``microarch.silicon.energy`` has the coefficients and their sources).

BF16 = "bf16"
WAITING = ("idle", "busy")  # of microarch.silicon.energy.run_energy: what time costs


def iteration_energy(
    scenario: Scenario, activity: Activity, machine: SystemHardware, iteration_ns: float | None
) -> dict[str, float | None]:
    """Columns of J a token, coefficients of energy at their values, low and high bounds; None where the whole iteration
    is not known. ``activity``: of the run.
    """
    found: dict[str, float | None] = {}
    for end, bound in (("", "value"), ("_low", "low"), ("_high", "high")):
        found[f"iteration_energy_per_token_j{end}"] = None
        if iteration_ns is not None and activity.tokens:
            known = Coefficients(EnergyEstimates().at(bound))
            energy = energy_of(activity, machine, known)
            moe = sum(joule for block, joule in energy.items() if block not in WAITING) / activity.tokens
            rest = energy_of(_beside_experts(scenario, iteration_ns), machine, known)
            found[f"iteration_energy_per_token_j{end}"] = moe + sum(rest.values()) / scenario.batch
    return found


def _beside_experts(scenario: Scenario, iteration_ns: float) -> Activity:
    """What one iteration does beside its MoE layers, and its time."""
    model, system, batch = scenario.model, scenario.system, scenario.batch
    weights = model.attention_weights + model.dense_weights + (model.output_weights or model.input_weights)
    if scenario.assumptions.weights != "all":  # else shared experts are in the run
        weights += model.shared_weights
    ranks = 1 if scenario.assumptions.dispatch in GATHERING else system.dies
    context, attention_flop, attention_bytes = float(max(scenario.workload.context_tokens or 1, 1)), 0.0, 0.0
    kind: Any  # archsim.iteration.attention.Kind
    for kind, layers in model.attention_layers:
        work = kind.work("decode", 1, float(batch), 1.0, context, BF16)
        attention_flop += layers * float(work.flop)
        attention_bytes += layers * float(work.moved_bytes)
    dtype_bytes = system.compute.dtype_bytes
    read = ranks * weights * dtype_bytes + attention_bytes
    # energy_of takes FLOP in the dtype of the die: one in 16 bits counts as often as its energy
    flop = FLOP_PER_WEIGHT * weights * batch + attention_flop * SIXTEEN_BIT / dtype_bytes
    return Activity(iteration_ns / NS_PER_S, read, 0.0, 2 * read, flop, 0.0, batch)


# A run at its limits: power and temperature of its dies, and the clock at which none is exceeded.
#
# A limit is a closed loop: where it is exceeded the clock falls, with it the voltage (V ~ f down to a least one, so
# that an operation takes f² of its energy), then steps take longer, and power falls by both. The loop is solved for
# decode and for the prefill, each with one clock for all dies, in steps of a hundredth: the highest with which the
# simulated run exceeds no limit. So a higher limit and better cooling never lower a clock. With ``clocks: each`` a die
# that exceeds a limit lowers its own clock (`_SearchEach`). Power is the mean over a class of steps, as regulators of
# GPUs average over milliseconds; it follows from the energy account above, die by die. Without
# ``power`` and ``cooling`` in a system nothing here runs.

STEPS = 100  # of a clock, as PLLs have them: 15 MHz of 1,980 on an H100
LOWEST = 20  # of these; NVIDIA's driver goes down to 345 of 1,500 MHz
CORE = ("compute", "llc")  # blocks whose energy follows the voltage of a die's array; PHYs and HBM have their own
IDLE, STACKS, BUSY = "idle", "hbm", "busy"
PHASES = ("prefill", "decode")
Clock = int | tuple[int, ...]  # of all dies, or of each, in STEPS
Clocks = tuple[Clock, Clock]  # in the prefill and in decode
FULL: Clocks = (STEPS, STEPS)
MACHINE_POWER, DIE_POWER = "power of the machine", "power of a die"
DIE_HEAT, HBM_HEAT = "temperature of a die", "temperature of HBM"


NOMINAL = HeatEstimates()
NO_PLACES: Mapping[tuple[str, str], str] = MappingProxyType({})


def heat_with(changes: Mapping[str, float]) -> HeatEstimates:
    """The coefficients of power and heat with a user's values. Raises SpecError for one that is not positive, and for
    shares of the power of a die that waits that are more than all of it.
    """
    for name, value in changes.items():
        if not value > 0:
            raise SpecError(f"economics: {name} must be above 0, got {value!r}")
    found = NOMINAL.change(changes)
    known = found.values()
    if (shares := known["leakage_share"] + known["clock_share"]) > 1:
        raise SpecError(f"economics: leakage_share and clock_share are {shares:g} together; expected at most 1")
    return found


class DieLoad(NamedTuple):
    """What dies do in a class of steps: ``time_ns`` of it; block → float64[die] J at full clock."""

    time_ns: float
    joule: Mapping[str, np.ndarray]


class ClassPower(NamedTuple):
    """Power and clocks of dies in a class of steps: means over the class."""

    time_ns: float  # that the class takes
    clock: float  # share of the full one, of the slowest die
    die_w: np.ndarray  # float64[die], W, its HBM included
    heat: Temperatures | None  # temperatures; None without cooling
    core_joule: float  # of all dies
    idle_joule: float  # of all dies
    exceeded: tuple[tuple[str, float], ...]  # limit → by which share, the worst first
    die_clock: np.ndarray  # float64[die], share of the full one
    die_exceeded: np.ndarray  # float64[die]: by which share the worst of its own limits is exceeded
    held_by: str = ""  # what holds the clock below the full one; "": nothing

    @property
    def machine_w(self) -> float:
        return float(self.die_w.sum())

    @property
    def within(self) -> bool:
        """Whether no limit is exceeded."""
        return not any(share > 0 for _, share in self.exceeded)


class PowerState(NamedTuple):
    """The classes of a run that took time, by PREFILL and DECODE; factors of the energies at full clock."""

    classes: Mapping[int, ClassPower]
    core_factor: float
    idle_factor: float

    @property
    def _time_ns(self) -> float:
        return sum(each.time_ns for each in self.classes.values())

    @property
    def throttled_share(self) -> float:
        """Share of the time in which the clock is below the full one."""
        slow = sum(each.time_ns for each in self.classes.values() if each.clock < 1)
        return slow / self._time_ns if self.classes else 0.0

    @property
    def held_by(self) -> str:
        """What holds the clock in decode, else in the prefill; '' for nothing."""
        return next((each.held_by for _, each in sorted(self.classes.items(), reverse=True) if each.held_by), "")

    def clock(self, phase: int) -> float | None:
        return self.classes[phase].clock if phase in self.classes else None

    def most(self, value: Callable[[ClassPower], np.ndarray | None]) -> np.ndarray | None:
        """float64[die]: the largest over classes; None where there is none."""
        found = [each for each in map(value, self.classes.values()) if each is not None]
        return np.max(found, axis=0) if found else None

    @property
    def die_w(self) -> np.ndarray:
        """float64[die], mean over the run."""
        return np.sum([each.time_ns * each.die_w for each in self.classes.values()], axis=0) / self._time_ns


def has_limits(system: SystemSpec) -> bool:
    """Whether a system has limits, so that its clock may fall."""
    return system.power is not None or system.cooling is not None


def loads_of(scenario: Scenario, outcome: RunOutcome, costs: SystemHardware) -> Mapping[int, DieLoad]:
    """What dies do in every class of steps that took time. Links count for the die that sends; shared decision hardware
    for all dies, the same.
    """
    model, system, counts, fabric = scenario.model, scenario.system, outcome.counts, outcome.fabric
    dies = fabric.dies
    tokens = counts.tokens.sum(axis=1, keepdims=True)
    hbm_bytes, every = counts.hbm_bytes.astype(float), counts.hbm_bytes.sum(axis=0)
    reads = outcome.tally.dies["local_read_bytes"] + outcome.tally.dies["remote_read_bytes"]
    weights = float(model.expert_ffn)
    if scenario.assumptions.weights == "all":
        weights += model.shared_experts * model.shared_ffn / model.top_k
    times_ns = np.array([outcome.prefill_ns, outcome.decode_ns])
    decision_s = float(outcome.decision.states_ns.sum()) / NS_PER_S
    on_links = counts.resource_bytes[:, UNITS * dies :] + np.outer(
        times_ns / times_ns.sum(), statistics_bytes(outcome.machine, outcome.tally)
    )
    found = {}
    for phase in (PREFILL, DECODE):
        if not times_ns[phase] or not tokens[phase]:
            continue
        share = np.divide(hbm_bytes[phase], every, out=np.zeros(dies), where=every > 0)
        per_row = FLOP_PER_WEIGHT * MATRICES * model.hidden
        activity = Activity(
            time_s=times_ns[phase] / NS_PER_S,
            hbm_bytes=hbm_bytes[phase],
            d2d_byte_hops=_sent(on_links[phase], fabric),
            llc_bytes=2 * reads * share,
            flop=per_row * weights * counts.tokens[phase].astype(float),
            decision_s=decision_s * times_ns[phase] / times_ns.sum(),
            tokens=1.0,
            padded_flop=per_row * model.expert_ffn * counts.padded[phase].astype(float),
        )
        rows = scenario.batch / dies
        joule = run_energy(
            _with_kernels(system, activity, 1, rows),
            dtype_bytes=system.compute.dtype_bytes, die_mm2=costs.powered_mm2, dies=1,
            decision_w=costs.decision.power_mw / MW_PER_W / dies, pieces=costs.pieces,
            estimates=AS_PUBLISHED.of(system).energy, cached=system.hbm.kind != SRAM,
        )  # fmt: skip
        found[phase] = DieLoad(
            float(times_ns[phase]), {name: np.broadcast_to(each, dies).astype(float) for name, each in joule.items()}
        )
    return found


def _sent(link_bytes: np.ndarray, fabric: Fabric) -> np.ndarray:
    """float64[die]: bytes times links, of the die where a link begins, else of that where it ends; of an edge that is
    held both ways, half of each end.
    """
    sent = np.zeros(fabric.dies)
    if len(link_bytes) == fabric.links:
        ends = [(fabric.link_src, fabric.link_dst, 1.0)]
    else:
        first = np.zeros(fabric.edges, np.int64)
        first[fabric.link_edge[::-1]] = np.arange(len(fabric.link_edge))[::-1]
        src, dst = fabric.link_src[first], fabric.link_dst[first]
        ends = [(src, dst, 0.5), (dst, src, 0.5)]
    for src, dst, share in ends:
        at = np.where(src < fabric.dies, src, dst)
        ours = (at < fabric.dies) & (src != dst)  # ports are no links
        np.add.at(sent, at[ours], share * link_bytes[ours])
    return sent


class PowerLimits:
    """What a system may draw and how hot it may get; asked whether a load at a clock is within."""

    def __init__(self, system: SystemSpec, estimates: HeatEstimates = NOMINAL):
        self.system, self.costs, self._known = system, build_costs(system), estimates.values()
        self._heat = _heat_of(system, self.costs, estimates) if system.cooling is not None else None

    def at(self, load: DieLoad, clock: float | np.ndarray) -> ClassPower:
        """Power and temperatures with ``clock``, a share of the full one (or float64[die] of them), at which ``load``
        has been simulated.
        """
        known, seconds = self._known, load.time_ns / NS_PER_S
        voltage = np.maximum(clock, known["lowest_voltage"])
        blocks = {name: joule * (voltage**2 if name in CORE else 1.0) / seconds for name, joule in load.joule.items()}
        idle_w = blocks.pop(IDLE)
        leakage_w = known["leakage_share"] * idle_w * voltage
        blocks[""] = known["clock_share"] * idle_w * clock * voltage**2 + blocks.pop("decision")
        blocks[""] = blocks[""] + blocks.pop(BUSY) * clock * voltage**2
        blocks[""] = blocks[""] + (1 - known["leakage_share"] - known["clock_share"]) * idle_w
        heat = None
        if self._heat is not None:
            stacks_w = known["stack_share"] * blocks[STACKS] if self.costs.stacks_per_die else 0.0 * idle_w
            on_die = blocks | {STACKS: blocks[STACKS] - stacks_w}
            heat = self._of_dies(on_die, stacks_w, leakage_w)
            leakage_w = heat.leakage_w
        die_w = sum(blocks.values()) + leakage_w
        core_w = np.sum([blocks[name] for name in CORE], axis=0)
        idle_now_w = die_w - sum(blocks[name] for name in blocks if name)
        idle_joule = float((idle_now_w - load.joule["decision"] / seconds).sum()) * seconds
        of_dies = self._of_each(die_w, heat)
        found = [(name, float(each.max())) for name, each in of_dies.items()]
        if self.system.power is not None and self.system.power.limit_w is not None:
            found.insert(0, (MACHINE_POWER, float(die_w.sum()) / self.system.power.limit_w - 1))
        exceeded = tuple(sorted(found, key=lambda each: -each[1]))
        die_exceeded = np.max([np.full(len(die_w), -np.inf), *of_dies.values()], axis=0)
        return ClassPower(
            time_ns=load.time_ns, clock=float(np.min(clock)), die_w=die_w, heat=heat,
            core_joule=float(core_w.sum()) * seconds, idle_joule=idle_joule, exceeded=exceeded,
            die_clock=np.broadcast_to(clock, len(die_w)), die_exceeded=die_exceeded,
        )  # fmt: skip

    def _of_dies(self, blocks_w: Mapping[str, np.ndarray], stacks_w: np.ndarray, leakage_w: np.ndarray) -> Temperatures:
        """Temperatures of the dies in use; others draw nothing."""
        assert self._heat is not None
        built, sites = self.system.built, self.system.sites
        if built is None:
            return self._heat.of(blocks_w, stacks_w, leakage_w)
        at = np.array(built.living)

        def on_sites(watt: np.ndarray) -> np.ndarray:
            every = np.zeros(sites)
            every[at] = watt
            return every

        blocks_w = {name: on_sites(watt) for name, watt in blocks_w.items()}
        found = self._heat.of(blocks_w, on_sites(stacks_w), on_sites(leakage_w))
        return Temperatures(*(each[at] for each in found))

    def _of_each(self, die_w: np.ndarray, heat: Temperatures | None) -> dict[str, np.ndarray]:
        """By which share each limit of a die is exceeded, float64[die]; heat as a share of what lies between the
        coolant and its limit.
        """
        power, cooling, found = self.system.power, self.system.cooling, {}
        if power is not None and power.die_limit_w is not None:
            found[DIE_POWER] = die_w / power.die_limit_w - 1
        if cooling is not None and heat is not None:
            for name, celsius, limit_c in (
                (DIE_HEAT, heat.die_c, cooling.limit_c),
                (HBM_HEAT, heat.hbm_c, cooling.hbm_limit_c),
            ):
                if not np.isnan(celsius).any():
                    found[name] = (celsius - limit_c) / (limit_c - cooling.coolant_c)
        return found

    def idle(self) -> ClassPower:
        """The machine at its lowest clock with nothing to do."""
        nothing = np.zeros(self.system.dies)
        blocks = dict.fromkeys((*CORE, STACKS, BUSY, "d2d", "pieces", "decision"), nothing)
        of_die = run_energy(
            Activity(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0),
            dtype_bytes=1,
            die_mm2=self.costs.powered_mm2,
            dies=1,
            decision_w=0.0,
        )[IDLE]
        return self.at(DieLoad(NS_PER_S, blocks | {IDLE: nothing + of_die}), LOWEST / STEPS)

    def describe(self, found: ClassPower, doing: str, places: Mapping[tuple[str, str], str] = NO_PLACES) -> str:
        """What is wrong with limits that hold at no clock, where it is written (``places``, as of an experiment's
        ``limits_at``), and what would work.
        """
        (what, _), *_ = found.exceeded
        key, limit, reached, hint = self._problem(what, found, doing)
        at = places.get((self.system.name, key), f"{self.system.name}: {key}")
        return f"{at}: {limit} cannot be held: {reached}; {hint}"

    def _problem(self, what: str, found: ClassPower, doing: str) -> tuple[str, str, str, str]:
        """(key, limit, what is reached at the lowest clock, what would work)."""
        power, cooling, at_lowest = (
            self.system.power,
            self.system.cooling,
            f"{doing}, at {LOWEST / STEPS:.0%} of the clock",
        )
        if what in (MACHINE_POWER, DIE_POWER) and power is not None:
            whole = what == MACHINE_POWER
            limit_w = (power.limit_w if whole else power.die_limit_w) or 0.0
            drawn_w = found.machine_w if whole else float(found.die_w.max())
            who = f"its {self.system.dies} dies draw" if whole else "a die draws"
            reached = f"{at_lowest}, the lowest, {who} {_watt(drawn_w)}"
            hint = f"give more than {_watt(1.01 * drawn_w)}, or less work at a time"
            return f"power.{'limit' if whole else 'die_limit'}", format_quantity(limit_w, POWER), reached, hint
        assert cooling is not None and found.heat is not None
        of_die = what == DIE_HEAT
        celsius, limit_c = (found.heat.die_c, cooling.limit_c) if of_die else (found.heat.hbm_c, cooling.hbm_limit_c)
        hottest = float(np.max(celsius))
        runaway = "is never steady, as leakage grows faster than heat leaves"
        said = f"is {hottest:.0f} C" if np.isfinite(hottest) else runaway
        better = cooling.resistance_k_per_w * (limit_c - cooling.coolant_c) / (hottest - cooling.coolant_c)
        hint = f"give a resistance of about {better:.2g} K/W per die" if better > 0 else "give a much lower resistance"
        reached = f"{at_lowest}, the lowest, the {what} {said}"
        return f"cooling.{'limit' if of_die else 'hbm_limit'}", f"{limit_c:g} C", reached, f"{hint}, or colder coolant"


def _watt(watt: float) -> str:
    return f"{watt / 1000:.3g} kW" if watt >= 1000 else f"{watt:.3g} W"


def _heat_of(system: SystemSpec, costs: SystemHardware, estimates: HeatEstimates) -> DieTemperatures:
    """Of all sites of a wafer: dead dies and spare ones conduct, too."""
    cooling, together = system.cooling, dies_together(system) or 1
    assert cooling is not None
    places: list[tuple[int, int] | None] = [None] * system.sites
    at = places_of(system) if cooling.lateral != "none" else None
    if at is not None:
        places = [(int(x), int(y)) for x, y in zip(*at, strict=True)]
    carriers = (np.arange(system.sites) // together).tolist()
    return DieTemperatures(
        places, carriers, dict(costs.area_mm2), costs.stacks_per_die, cooling.resistance_k_per_w, cooling.coolant_c,
        cooling.cells, at is not None, estimates,
    )  # fmt: skip


def refuse_unpowered(system: SystemSpec, places: Mapping[tuple[str, str], str] = NO_PLACES) -> None:
    """Raise SpecError for limits that the machine exceeds with nothing to do, with their place and what would work."""
    if not has_limits(system):
        return
    limits = PowerLimits(system)
    idle = limits.idle()
    if idle.exceeded and idle.exceeded[0][1] > 0:
        raise SpecError(limits.describe(idle, "with nothing to do", places))


WORKS = {
    "all at once": (1.0, 1.0),
    "arrays alone": (1.0, 0.0),
    "HBM and links alone": (0.0, 1.0),
}  # share of the peak of arrays, and of the bandwidths of HBM and links


def full_load(limits: PowerLimits, arrays: float, bandwidths: float) -> tuple[ClassPower, bool]:
    """The machine at these shares of its peaks at the highest clock within its limits, and whether there is one; else
    at the lowest clock. Arrays do less with a lower clock, HBM and links do not.
    """
    system, costs = limits.system, limits.costs
    links = build_fabric(system, ROW_MAJOR).link_bytes_per_ns.sum() / system.d2d.efficiency * NS_PER_S / system.dies
    read = bandwidths * system.hbm.bandwidth_bytes_per_s
    found = None
    for clock in range(STEPS, LOWEST - 1, -1):
        flop = arrays * system.compute.peak_flop_per_s * clock / STEPS
        joule = run_energy(
            Activity(1.0, read, bandwidths * float(links), 2 * read, flop, 1.0, 1.0),
            dtype_bytes=system.compute.dtype_bytes, die_mm2=costs.powered_mm2, dies=1,
            decision_w=costs.decision.power_mw / MW_PER_W / system.dies, pieces=costs.pieces,
            estimates=AS_PUBLISHED.of(system).energy, cached=system.hbm.kind != SRAM,
        )  # fmt: skip
        load = DieLoad(NS_PER_S, {name: np.full(system.dies, float(each)) for name, each in joule.items()})
        above, found = found, limits.at(load, clock / STEPS)
        if found.within:
            return found._replace(held_by=above.exceeded[0][0] if above else ""), True
    assert found is not None
    return found, False


def full_load_told(system: SystemSpec, estimates: HeatEstimates = NOMINAL) -> Iterator[str]:
    """A sentence for each of WORKS: the clock of a machine with limits at full load, one for all dies."""
    if not has_limits(system):
        return
    limits = PowerLimits(system, estimates)
    for what, (arrays, bandwidths) in WORKS.items():
        found, within = full_load(limits, arrays, bandwidths)
        heat = "" if found.heat is None else f", with dies at {found.heat.die_c.max():.0f} C"
        if within:
            held = f", limited by the {found.held_by}" if found.held_by else ""
            yield (
                f"With {what}, it stays within its limits. It runs at {found.clock:.0%} of the full clock{held}, and "
                f"draws {_watt(found.machine_w)}{heat}."
            )
        else:
            yield (
                f"With {what}, it exceeds its limits. Even at the lowest clock, {found.clock:.0%}, it draws "
                f"{_watt(found.machine_w)}{heat} ({found.exceeded[0][0]}). HBM and links cannot be used at full rate."
            )


def within_limits(scenario: Scenario, run: Callable[[Clocks], RunOutcome]) -> tuple[RunOutcome, Clocks, PowerState]:
    """The outcome at the highest clocks with which no limit is exceeded. ``run``: simulates with clocks.

    Raises CapacityError for work that exceeds a limit at the lowest clock.
    """
    limits = PowerLimits(scenario.system)
    outcomes: dict[Clocks, RunOutcome] = {}

    def loads_at(clocks: Clocks) -> Mapping[int, DieLoad]:
        if clocks not in outcomes:
            outcomes[clocks] = run(clocks)
        return loads_of(scenario, outcomes[clocks], limits.costs)

    searches: dict[int, _Search] = _search_all({phase: _Search() for phase in loads_at(FULL)}, loads_at, limits)
    for phase, search in searches.items():
        if search.best is None:
            raise CapacityError(
                limits.describe(search.worst, f"in the {PHASES[phase]}" if phase == PREFILL else "in decode")
            )
    if scenario.system.power is not None and scenario.system.power.clocks == "each":
        each = {phase: _SearchEach(search) for phase, search in searches.items()}
        searches = {**_search_all(each, loads_at, limits)}
    clocks = _with(searches)
    loads = loads_at(clocks)
    held = {phase: search.held_by for phase, search in searches.items()}
    classes = {
        phase: limits.at(load, share_of(clocks[phase]))._replace(held_by=held[phase]) for phase, load in loads.items()
    }
    return outcomes[clocks], clocks, PowerState(classes, *_factors(loads, classes))


def _search_all(
    searches: Mapping[int, _Search], loads_at: Callable[[Clocks], Mapping[int, DieLoad]], limits: PowerLimits
) -> dict[int, _Search]:
    """The same, done."""
    while not all(search.done for search in searches.values()):
        clocks = _with(searches)
        loads = loads_at(clocks)
        for phase, search in searches.items():
            if not search.done:
                search.add(clocks[phase], loads[phase], limits)
    return dict(searches)


def share_of(clock: Clock) -> float | np.ndarray:
    """A clock as a share of the full one; float64[die] where each has its own."""
    return np.array(clock) / STEPS if isinstance(clock, tuple) else clock / STEPS


def set_clocks(engine: EventEngine, clocks: Clocks) -> None:
    """Have the arrays of an engine run at these clocks. Raises SpecError for an execution without clocks."""
    if not hasattr(engine.execution, "clocks"):
        raise SpecError(
            f"{engine.scenario.system.name}: power and cooling need an execution whose GEMMs follow a clock: "
            "weight_streaming, expert_parallel, or one of your own with an attribute clocks: (prefill, decode), shares "
            "of the full one, each a number or, with clocks: each, float64[die]; "
            f"{engine.scenario.assumptions.execution} has none"
        )
    engine.execution.clocks = tuple(map(share_of, clocks))
    engine.clocks = engine.execution.clocks


def _with(searches: Mapping[int, _Search]) -> Clocks:
    found: list[Clock] = [searches[phase].guess if phase in searches else STEPS for phase in (PREFILL, DECODE)]
    return found[0], found[1]


def _factors(loads: Mapping[int, DieLoad], classes: Mapping[int, ClassPower]) -> tuple[float, float]:
    """Energy of arrays, and of waiting, over that at full clock and without regard to temperature."""
    core = sum(float(sum(load.joule[name].sum() for name in CORE)) for load in loads.values())
    idle = sum(float((load.joule[IDLE] + load.joule[BUSY]).sum()) for load in loads.values())
    if all(each.clock == 1 and each.heat is None for each in classes.values()):
        return 1.0, 1.0
    now = [sum(getattr(each, name) for each in classes.values()) for name in ("core_joule", "idle_joule")]
    return (now[0] / core if core else 1.0), (now[1] / idle if idle else 1.0)


class _Search:
    """The highest clock of a class that exceeds no limit: between one that was simulated and is within, and the next,
    which was simulated and is not. Guesses by the two nearest simulated clocks, as time is a + b / clock.
    """

    def __init__(self) -> None:
        self.guess: Clock = STEPS
        self.held_by, self._above = "", STEPS + 1
        self.best: int | None = None
        self.worst: ClassPower
        self.loads: dict[int, DieLoad] = {}

    @property
    def done(self) -> bool:
        return self._above == (self.best or LOWEST - 1) + 1

    def add(self, clock: Clock, load: DieLoad, limits: PowerLimits) -> None:
        """What was simulated with the clock of ``guess``."""
        assert isinstance(clock, int)
        self.loads[clock] = load
        found = limits.at(load, clock / STEPS)
        if not found.within:
            self._above, self.held_by, self.worst = clock, found.exceeded[0][0], found
        else:
            self.best = clock
        self.guess = self._next(limits) if not self.done else (self.best or LOWEST)

    def _next(self, limits: PowerLimits) -> int:
        low, high = (self.best or LOWEST - 1) + 1, self._above - 1
        while low < high:  # the highest that is predicted to be within
            middle = (low + high + 1) // 2
            found = limits.at(self._predict(middle), middle / STEPS)
            if not found.within:
                high = middle - 1
            else:
                low = middle
        return low

    def _predict(self, clock: int) -> DieLoad:
        """The load at a clock that was not simulated: as that of the nearest, in the time that two of them give."""
        near = sorted(self.loads, key=lambda each: abs(each - clock))[:2]
        load = self.loads[near[0]]
        if len(near) == 1:
            return load
        one, other = (self.loads[each].time_ns for each in near)
        inverse = [1 / each for each in (*near, clock)]
        time_ns = one + (other - one) * (inverse[2] - inverse[0]) / (inverse[1] - inverse[0])
        share = max(time_ns, 1e-3 * load.time_ns) / load.time_ns
        return DieLoad(load.time_ns * share, {**load.joule, IDLE: load.joule[IDLE] * share})


class _SearchEach(_Search):
    """Clocks of their own, where a die that exceeds one of its limits lowers its clock alone, and an exceeded limit of
    the machine lowers the highest clocks.

    Power is a mean over time, so for a time that is assumed the clocks follow (`_clocks_in`), and the longer the time,
    the higher they are; with these clocks the run takes a time. The time that is assumed rises, by bisection, as long
    as the run takes no less and nothing is exceeded. What one clock for all gives is kept where it is faster.
    """

    ROUNDS = 8  # of bisection: a 256th of what lies between the full clock and the first guess
    HALVES = 4  # of what clocks are raised above one for all dies

    def __init__(self, common: _Search) -> None:
        super().__init__()
        assert common.best is not None
        self.best, self.held_by, self.loads = common.best, common.held_by, common.loads
        self._fastest: Clock = common.best
        self.guess = self._fastest
        self._time_ns, self._load = self.loads[common.best].time_ns, self.loads[STEPS]
        self._low_ns, self._high_ns, self._assumed_ns = [self._load.time_ns] * 3
        self._rounds = self._halves = 0
        self._known: dict[Clock, tuple[bool, float]] = {}  # clocks: whether nothing is exceeded, and the time
        self._done = common.best == STEPS

    @property
    def done(self) -> bool:
        return self._done

    def add(self, clock: Clock, load: DieLoad, limits: PowerLimits) -> None:
        """See ``_Search.add``; what is added first is known: one clock for all."""
        within = limits.at(load, share_of(clock)).within
        self._known[clock] = within, load.time_ns
        if within and load.time_ns <= self._time_ns:
            self._fastest, self._time_ns = clock, load.time_ns
        while self._rounds < self.ROUNDS:
            self.guess = self._clocks_in(self._assumed_ns, limits)
            if self.guess not in self._known:
                return
            within, took_ns = self._known[self.guess]
            if not within:
                self._high_ns = self._assumed_ns
            elif self._rounds == 0:
                self._high_ns = max(took_ns, self._assumed_ns)
            if within:
                self._low_ns = self._assumed_ns
                self._high_ns = max(self._low_ns, min(self._high_ns, took_ns))
            self._rounds += 1
            self._assumed_ns = (self._low_ns + self._high_ns) / 2
        if isinstance(self._fastest, int) and self._halves < self.HALVES:  # from one clock up, as far as is within
            raised = np.array(self._clocks_in(self._time_ns, limits)) - self._fastest
            while self._halves < self.HALVES:
                more = np.maximum(raised, 0) // 2**self._halves
                self._halves += 1
                self.guess = _told_apart(self._fastest + np.broadcast_to(more, limits.system.dies))
                if self.guess not in self._known:
                    return
        self.guess, self._done = self._fastest, True

    def _clocks_in(self, time_ns: float, limits: PowerLimits) -> Clock:
        """The clocks with which a class of steps that takes so long exceeds nothing, each die's its own.

        From full clocks down, all dies that exceed a limit of their own at a time, so that a die counts on the heat of
        its neighbours as they end up; a die that its neighbours heat even at its lowest clock lowers theirs. While
        leakage runs away, no die has a temperature: those that draw most are lowered, and raised again where they can.
        """
        longer = time_ns / self._load.time_ns
        load = DieLoad(time_ns, {**self._load.joule, IDLE: self._load.joule[IDLE] * longer})
        clocks, ran_away = np.full(limits.system.dies, STEPS), False
        while not (found := limits.at(load, clocks / STEPS)).within:
            above = clocks > LOWEST
            if not np.isfinite(found.die_exceeded).all() and np.isinf(found.exceeded[0][1]):
                ran_away, steps = True, np.full(len(clocks), 4)
                lower = above & (found.die_w >= 0.95 * found.die_w[above].max(initial=0.0))
            else:
                lower, over = above & (found.die_exceeded > 0), found.die_exceeded
                if not lower.any():  # of the machine, or by heat of neighbours
                    lower, over = above & (clocks == clocks.max()), np.asarray(found.exceeded[0][1])
                steps = np.maximum(1, np.floor(STEPS / 8 * np.clip(over, 0.0, 1.0))).astype(int)  # power falls faster
            if not lower.any():
                return _told_apart(clocks)
            clocks = np.where(lower, np.maximum(clocks - steps, LOWEST), clocks)
        for die in np.argsort(found.die_exceeded, kind="stable") if ran_away else ():
            low, high = int(clocks[die]), STEPS
            while low < high:
                clocks[die] = (low + high + 1) // 2
                if not limits.at(load, clocks / STEPS).within:
                    high = int(clocks[die]) - 1
                else:
                    low = int(clocks[die])
            clocks[die] = low
        return _told_apart(clocks)


def _told_apart(clocks: np.ndarray) -> Clock:
    """One clock where all dies have the same."""
    return int(clocks[0]) if (clocks == clocks[0]).all() else tuple(clocks.tolist())
