"""Energy of a run by block, and area and price of its machine, from the run's record.

Energy is that of the run's MoE layers, prefill included; a token is one that has passed all of the model's. Excluded
are attention (``archsim.runs.energy`` adds it where a whole iteration is known), host, cooling and LLC hits
(a hit is one LLC read more than counted here). Sources:
``microarch.silicon.energy``, ``microarch.silicon.cost``, ``microarch.silicon.cost``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from archsim.base.errors import SpecError, did_you_mean
from archsim.base.units import NS_PER_S
from archsim.engine.machine import build_fabric, dies_together, link_classes
from archsim.laws.wafer import harvested_yield
from archsim.runs.columns import plain
from archsim.specs.assumptions import GATHERING, AssumptionsSpec
from archsim.specs.model import ModelSpec
from archsim.specs.system import SystemSpec
from microarch.fabric.topology import ROW_MAJOR
from microarch.silicon.area import Cost, decision_parts, design_of, total
from microarch.silicon.cost import (
    CARRIER_MM2,
    HBM_STACK_BYTES_PER_S,
    HBM_STACK_MM2,
    AreaEstimates,
    CostEstimates,
    Estimate,
    Estimates,
    across_bytes_per_s,
    die_area,
    hbm_stacks,
    interface_mm2,
    interface_side_mm2,
    machine_cost,
)
from microarch.silicon.energy import SIXTEEN_BIT, Activity, EnergyEstimates, run_energy

if TYPE_CHECKING:
    from archsim.runs.columns import Finished


# ---- economics

MW_PER_W = 1e3
MATRICES = 3  # gate, up and down of an expert
FLOP_PER_WEIGHT = 2  # of one token: a product and a sum
PIECES = "pieces"  # block of a die: interfaces between its pieces
NOTHING = Cost(0.0, 0.0)


@dataclass(frozen=True)
class Coefficients:
    """All coefficients of energy, area and cost."""

    energy: EnergyEstimates = EnergyEstimates()
    area: AreaEstimates = AreaEstimates()
    cost: CostEstimates = CostEstimates()

    def named(self) -> Mapping[str, Estimate]:
        return self.energy.named() | self.area.named() | self.cost.named()

    def changed(self, changes: Mapping[str, float]) -> Coefficients:
        """With a user's values. Raises SpecError for an unknown name or a value that is not positive."""
        known = self.named()
        for name, value in changes.items():
            if name not in known:
                raise SpecError(
                    f"economics: unknown coefficient {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}"
                )
            if not value > 0:
                raise SpecError(f"economics: {name} must be above 0, got {value!r}")
        return Coefficients(*(_changed(group, changes) for group in (self.energy, self.area, self.cost)))

    def at(self, bound: str) -> Coefficients:
        """Every coefficient at its ``low`` or its ``high`` bound."""
        return Coefficients(self.energy.at(bound), self.area.at(bound), self.cost.at(bound))


def _changed(group: Estimates, changes: Mapping[str, float]) -> Estimates:
    return group.changed({name: value for name, value in changes.items() if name in group.named()})


@dataclass(frozen=True)
class Machine:
    """Area, power of the deciding hardware, and price of a system. ``area_mm2``: of one die, by block; ``usd``: by
    component; ``pieces`` of one die and ``carriers`` of the machine: those with the least price.
    """

    system: SystemSpec
    area_mm2: Mapping[str, float]
    decision: Cost
    stacks_per_die: int
    usd: Mapping[str, float]
    pieces: int
    carriers: int

    @property
    def die_mm2(self) -> float:
        return sum(self.area_mm2.values())

    @property
    def silicon_mm2(self) -> float:
        """All dies that were made, without HBM."""
        return self.die_mm2 * self.system.sites

    @property
    def carrier_mm2(self) -> float:
        """Area on the carrier: dies and HBM stacks."""
        return self.silicon_mm2 + self.system.sites * self.stacks_per_die * HBM_STACK_MM2

    @property
    def carrier_share(self) -> float:
        """Area of the dies that are linked as on one carrier and their HBM, divided by that of the largest carrier.

        Each die alone, if their links are a network between packages.
        """
        return self.carrier_mm2 / CARRIER_MM2 * (dies_together(self.system) or 1) / self.system.sites


@lru_cache(maxsize=256)
def build_costs(
    system: SystemSpec, coefficients: Coefficients = Coefficients(), without: Cost = NOTHING
) -> Machine:
    """The machine of a system, ``without`` some of its decision hardware. Dead and spare dies are made, too."""
    made = system.as_made
    every = total(part.cost for part in decision_parts(system.decision, design_of(made)))
    decision = Cost(every.area_mm2 - without.area_mm2, every.power_mw - without.power_mw)
    rates = build_fabric(made, ROW_MAJOR).link_bytes_per_ns
    stacks = system.hbm.stacks_on_carrier or hbm_stacks(system.hbm.capacity_bytes, system.hbm.bandwidth_bytes_per_s)
    machine = _priced_with(system, float(rates.sum()), decision, stacks, coefficients)
    usd, area = ({name: float(each) for name, each in found.items()} for found in (machine.usd, machine.area_mm2))
    return replace(machine, usd=usd, area_mm2=area, pieces=int(machine.pieces), carriers=int(machine.carriers))


def costs_of_many(system: SystemSpec, own: Machine, link_class: np.ndarray, coefficients: Coefficients) -> Machine:
    """`build_costs` of many machines, for which a system with arrays of rates stands
    (`archsim.engine.analytic.machines.with_rates`); areas and prices are float64[machine]. ``own``: the costs of one of
    them; ``link_class: int32[link]``.
    """
    bandwidth = system.hbm.bandwidth_bytes_per_s
    kinds = [np.broadcast_to(each.bytes_per_ns, bandwidth.shape) for each in link_classes(system)]
    leaving = np.ascontiguousarray(np.stack(kinds, axis=1)[:, link_class]).sum(axis=1)
    stacks = np.maximum(hbm_stacks(system.hbm.capacity_bytes, 1.0), np.ceil(bandwidth / HBM_STACK_BYTES_PER_S))
    return _priced_with(system, leaving, own.decision, system.hbm.stacks_on_carrier or stacks, coefficients)


def _priced_with(system: SystemSpec, leaving: Any, decision: Cost, stacks: Any, coefficients: Coefficients) -> Machine:
    """``leaving``: bytes per ns of all links together."""
    leaving_bytes_per_s = leaving / system.d2d.efficiency * NS_PER_S / system.sites
    area = die_area(system.as_made, leaving_bytes_per_s, decision.area_mm2, coefficients.area)
    return priced(system, area, decision, stacks, coefficients)


def price_ranges(system: SystemSpec, coefficients: Coefficients) -> list[tuple[str, float, float]]:
    """Coefficient, price with it at its low end, price with it at its high end, USD, all others at their values; those
    that decide most come first, those that change nothing are left out.
    """
    found = []
    for name, each in (coefficients.area.named() | coefficients.cost.named()).items():
        low, high = (
            sum(build_costs(system, coefficients.changed({name: end})).usd.values()) for end in (each.low, each.high)
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


def priced(
    system: SystemSpec, area_mm2: Mapping[str, Any], decision: Cost, stacks_per_die: Any, coefficients: Coefficients
) -> Machine:
    """A machine with its price; of many that differ in areas and stacks, these and prices are float64[machine].

    ``area_mm2``: of a die in one piece; that of the interfaces between pieces is added to it.
    """
    area = {name: each for name, each in area_mm2.items() if name != PIECES}
    side_mm2 = interface_side_mm2(area["hbm"], coefficients.area)
    # Packages of a cluster share the carriers that they are cut from, and no cables lead from one to the next.
    together = dies_together(system) or system.sites
    across = across_bytes_per_s(area["d2d"], together, coefficients.area) if dies_together(system) else 0.0
    making = machine_cost(
        die_mm2=sum(area.values()),
        dies=together,
        stacks_per_die=stacks_per_die,
        hbm_bytes_per_die=system.hbm.capacity_bytes,
        side_mm2=side_mm2,
        across_bytes_per_s=across,
        estimates=coefficients.cost,
        share_good=_share_good(system, area, coefficients.cost),
    )
    groups = system.sites // together
    usd = {name: groups * each for name, each in making.usd.items()}
    area[PIECES] = interface_mm2(making.pieces, side_mm2)
    return Machine(system, area, decision, stacks_per_die, usd, making.pieces, groups * making.carriers)


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
    weights = model.expert_ffn
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
    )


def full_load_w(machine: Machine, coefficients: Coefficients | None = None) -> float:
    """Power with every die at its peak, and HBM and links at their bandwidths, W: an upper bound, as no run does all
    of it.
    """
    system = machine.system
    read = system.dies * system.hbm.bandwidth_bytes_per_s
    moved = float(build_fabric(system, ROW_MAJOR).link_bytes_per_ns.sum()) / system.d2d.efficiency * NS_PER_S
    second = Activity(1.0, read, moved, 2 * read, system.dies * system.compute.peak_flop_per_s, 1.0, 1.0)
    return sum(energy_of(second, machine, coefficients).values())


def energy_of(activity: Activity, machine: Machine, coefficients: Coefficients | None = None) -> Mapping[str, float]:
    """Block → J of a run."""
    return run_energy(
        activity,
        dtype_bytes=machine.system.compute.dtype_bytes,
        die_mm2=machine.die_mm2,
        dies=machine.system.dies,
        decision_w=machine.decision.power_mw / MW_PER_W,
        pieces=machine.pieces,
        estimates=(coefficients or Coefficients()).energy,
    )


def economics(
    activity: Activity, machine: Machine, coefficients: Coefficients | None = None
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
        joule = sum(energy_of(activity, machine, replace(known, energy=known.energy.at(bound))).values())
        row[f"energy_per_token_j{name}"] = joule / activity.tokens if activity.tokens else None
        row[f"power_w{name}"] = joule / activity.time_s if np.any(activity.time_s) else None
    row |= {"die_mm2": machine.die_mm2, "silicon_mm2": machine.silicon_mm2, "cost_usd": sum(machine.usd.values())}
    row["carrier_share"] = machine.carrier_share
    return {name: plain(value) for name, value in row.items()}


# ---- iteration_energy
# Energy of a whole decode iteration, a token: MoE layers as the run has them, attention and all else by their work.
#
# Each rank reads the weights that are not routed experts once an iteration, and the KV cache of its requests; a token
# computes with each of these weights once. Waiting is paid for the whole iteration. Weights in the die's dtype,
# attention
# and its cache in BF16 (``microarch.silicon.energy`` has the coefficients and their sources).

BF16 = "bf16"
WAITING = "idle"  # of microarch.silicon.energy.run_energy


def iteration_energy_j(
    run: Finished, activity: Activity, machine: Machine, iteration_ns: float | None, coefficients: Coefficients
) -> float | None:
    """J a token; None where the whole iteration is not known. ``activity``: of the run."""
    if iteration_ns is None or not activity.tokens:
        return None
    energy = energy_of(activity, machine, coefficients)
    moe = sum(joule for block, joule in energy.items() if block != WAITING) / activity.tokens
    rest = energy_of(_beside_experts(run, iteration_ns), machine, coefficients)
    return moe + sum(rest.values()) / run.run.batch


def _beside_experts(run: Finished, iteration_ns: float) -> Activity:
    """What one iteration does beside its MoE layers, and its time."""
    model, system, batch = run.run.model, run.run.system, run.run.batch
    weights = model.attention_weights + model.dense_weights + (model.output_weights or model.input_weights)
    if run.run.assumptions.weights != "all":  # else shared experts are in the run
        weights += model.shared_weights
    ranks = 1 if run.run.assumptions.dispatch in GATHERING else system.dies
    attention = _attention(run)
    dtype_bytes = system.compute.dtype_bytes
    read = ranks * weights * dtype_bytes + attention["bytes"]
    # energy_of takes FLOP in the dtype of the die: one in 16 bits counts as often as its energy
    flop = FLOP_PER_WEIGHT * weights * batch + attention["flop"] * SIXTEEN_BIT / dtype_bytes
    return Activity(iteration_ns / NS_PER_S, read, 0.0, 2 * read, flop, 0.0, batch)


def _attention(run: Finished) -> Mapping[str, float]:
    """FLOP and bytes of attention kernels in all layers and ranks."""
    context, batch = float(max(run.run.workload.context_tokens or 1, 1)), float(run.run.batch)
    found = {"flop": 0.0, "bytes": 0.0}
    for kind, layers in run.run.model.attention_layers:
        work = kind.work("decode", 1, batch, 1.0, context, BF16)
        found["flop"] += layers * float(work.flop)
        found["bytes"] += layers * float(work.moved_bytes)
    return found
