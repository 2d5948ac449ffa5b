"""What a good machine costs, with how many spare dies it costs least, and its power at full load. A carrier with ``s``
spares is good if at most ``s`` dies fail, which is binomial; without, a failed die loses it. Where defects are drawn,
dies fail by their yield, too. Carriers have room up to `CARRIER_MM2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from archsim.base.sums import sum
from archsim.engine.fabrics import dies_together
from archsim.laws.wafer import harvested_yield
from archsim.machine.made import MONOLITHIC
from archsim.machine.system import SystemSpec
from archsim.runs.energy import full_load_w
from archsim.runs.plan import with_areas
from archsim.runs.prices import Coefficients, SystemHardware, build_costs
from archsim.show.units import carried_digits, percent
from archsim.uncertainty.estimate import SURE, Interval, interval
from archsim.uncertainty.system_quantities import economics_of
from archsim.uncertainty.worlds import draws_of
from microarch.silicon.cost import CARRIER_MM2

SAMPLES = 64  # of the coefficients: a machine is priced in a few ms
MOST_MADE = 1000.0  # machines for a good one, beyond which no price is said: nobody makes these
MOST_SPARES = 64  # that are tried, on a carrier


@dataclass(frozen=True)
class MachinePrice:
    """Price and power of a machine. Arrays are float64[sample]; values are without a draw."""

    name: str  # of the system
    spares: int  # dies of a carrier that its file keeps back
    usd: Sequence[float]  # of a good machine, by number of spare dies on a carrier; alone where spares take no place
    samples_usd: np.ndarray  # float64[sample, number of spares]
    parts_usd: float  # of what one machine is made of, whether it is good or not
    watt: float  # at full load
    samples_watt: np.ndarray
    silicon_mm2: float
    samples_mm2: np.ndarray
    limit_w: float | None  # of the machine, by its file; None: it gives none
    uncut: bool = False  # whether dies stay in the wafers in which they were made

    @property
    def own_usd(self) -> np.ndarray:
        """float64[1 + sample] USD of a good machine with the spare dies of its file; the first without a draw."""
        own = min(self.spares, len(self.usd) - 1)
        return np.array([self.usd[own], *(each[own] for each in self.samples_usd)])

    @property
    def best_spares(self) -> int:
        """The number with the lowest median, of those for which carriers have room."""
        return int(np.argmin(np.median(self.samples_usd, axis=0)))

    @property
    def price_sentence(self) -> str:
        """``A good dojo costs least with 1 spare die: 30,000 USD (21,000–44,000 in 90 % of 64 samples) …``."""
        own, best = min(self.spares, len(self.usd) - 1), self.best_spares
        within = f" in {percent(SURE)} of {len(self.samples_usd)} samples"
        now = _range(self.usd[own], interval(self.samples_usd[:, own]), "USD", within)
        kept = _spare_dies(own)
        if len(self.usd) == 1 and self.uncut:
            return f"A good {self.name} costs {now}: its dies stay in their wafers, whose spare cores replace bad ones."
        if len(self.usd) == 1:
            return f"A good {self.name} costs {now}, and its carriers or packages have no room for a spare die."
        if float(np.median(self.samples_usd[:, best])) > MOST_MADE * self.parts_usd:
            return (
                f"Hardly any {self.name} is good: fewer than one of {MOST_MADE:,.0f} is, with any number of spare dies "
                "for which its carriers have room. Lower drawn.defects_per_cm2, or make dies smaller."
            )
        sure = float((self.samples_usd.argmin(axis=1) == best).mean())
        least = f"that number costs least in {percent(sure)} of samples"
        if best == own:
            other = own + 1 if own + 1 < len(self.usd) else own - 1
            beside = _range(self.usd[other], interval(self.samples_usd[:, other]), "USD")
            said = f"A good {self.name} costs {now} {kept}, and no other number of spare dies makes it cheaper"
            return f"{said}: it costs least so in {percent(sure)} of samples, and {_spare_dies(other)} {beside}."
        cheapest = _range(self.usd[best], interval(self.samples_usd[:, best]), "USD", within)
        as_it_is = f"against {_range(self.usd[own], interval(self.samples_usd[:, own]), 'USD')} {kept}"
        if float(np.median(self.samples_usd[:, own])) > MOST_MADE * self.parts_usd:
            as_it_is = f"and hardly any is good {kept}"
        return f"A good {self.name} costs least {_spare_dies(best)} per carrier: {cheapest}, {as_it_is}; {least}."

    @property
    def power_sentence(self) -> str:
        """``At full load, dojo draws 17 kW (11–25 in 90 % of 64 samples), 1.8 W/mm² (1.2–2.6), …``."""
        spread, within = interval(self.samples_watt), f" in {percent(SURE)} of {len(self.samples_watt)} samples"
        kilo = 1e3 if self.watt >= 1e3 else 1.0
        watt = _range(self.watt / kilo, Interval(*(each / kilo for each in spread)), "kW" if kilo > 1 else "W", within)
        density = _range(self.watt / self.silicon_mm2, interval(self.samples_watt / self.samples_mm2), "W/mm²")
        said = f"At full load, {self.name} draws {watt}, {density}"
        if self.limit_w is None:
            kept = float(np.quantile(self.samples_watt, SURE)) / kilo
            text = carried_digits(kept, spread.p05 / kilo, spread.p95 / kilo)
            return (
                f"{said}; its file gives no limit, and one of {text} {'kW' if kilo > 1 else 'W'} would be kept with a "
                f"probability of {percent(SURE)}."
            )
        share = float((self.samples_watt <= self.limit_w).mean())
        side, other = ("under", "above") if share > 0.5 else ("above", "under")
        verdict = side if max(share, 1 - share) >= SURE else f"more likely {side} than {other}"
        return (
            f"{said}; that is {verdict} its limit of {self.limit_w / kilo:,.4g} {'kW' if kilo > 1 else 'W'}, which it "
            f"keeps with a probability of {percent(share)}."
        )


def price_machine(system: SystemSpec, middle: Coefficients | None = None, samples: int = SAMPLES) -> MachinePrice:
    """``middle``: coefficients, of which those that a user set are exact."""
    middle = middle or Coefficients()
    machine = build_costs(system, middle)
    uncut = system.made is not None and system.made.carrier == MONOLITHIC
    alone = uncut or (dies_together(system) or 1) == 1 or machine.packages  # in every sample, as it is without a draw
    drawn = _drawn(system, middle, samples) if samples else []
    found = [_priced(system, each, alone) for each in [middle, *drawn]]
    room, limits = _with_room(machine, len(found[0][0])), []
    if system.power is not None:
        limits = [system.power.limit_w, system.power.die_limit_w and system.power.die_limit_w * system.dies]
    return MachinePrice(
        name=system.name, spares=_kept(system) // max(1, machine.carriers),
        usd=tuple(found[0][0][room]), samples_usd=np.array([usd[room] for usd, _, _ in found[1:]]),
        parts_usd=sum(machine.usd.values()),
        watt=found[0][1], samples_watt=np.array([watt for _, watt, _ in found[1:]]),
        silicon_mm2=found[0][2], samples_mm2=np.array([mm2 for _, _, mm2 in found[1:]]),
        limit_w=min((each for each in limits if each), default=None), uncut=uncut,
    )  # fmt: skip


def _drawn(system: SystemSpec, middle: Coefficients, samples: int) -> list[Coefficients]:
    """Coefficients in every sample, in this machine's ranges, with the draws of other machines."""
    quantities = economics_of(middle.of(system))
    names = dict.fromkeys(each.key for each in (*economics_of(middle), *quantities))
    draws = draws_of(list(names), samples, seed=1)
    values = {each.key.partition(".")[2]: each.distribution.at(draws[each.key]) for each in quantities}
    return [middle.change({name: float(each[at]) for name, each in values.items()}) for at in range(samples)]


def _priced(system: SystemSpec, coefficients: Coefficients, alone: bool) -> tuple[np.ndarray, float, float]:
    """Price by number of spare dies, or alone; W at full load; mm² of silicon."""
    machine = build_costs(system, coefficients)
    usd = np.array([sum(machine.usd.values())]) if alone else _by_spares(machine)
    return usd, full_load_w(machine, coefficients), machine.silicon_mm2


def _by_spares(machine: SystemHardware) -> np.ndarray:
    """USD of a good machine with 0, 1, … spare dies on every carrier, beside the dies that it needs."""
    system, usd = machine.system, machine.usd
    from scipy.special import betainc

    lost_usd = usd.get("bonding", 0.0)
    tested_usd = sum(each for name, each in usd.items() if name not in ("bonding", "assembly"))
    carriers = machine.carriers
    on_one, needed = system.sites / carriers, (system.sites - _kept(system)) / carriers
    good = np.exp(-np.log1p(lost_usd / tested_usd) / on_one)  # share of dies whose bonds all hold
    drawn = with_areas(system).drawn
    if drawn is not None:
        good *= (1 - drawn.bond_failure) ** (drawn.bonds or 0)
        harvest = system.dies_as_built.harvest if system.dies_as_built is not None else None
        cores = (harvest.cores, harvest.needed) if harvest is not None else (1, 1)
        cores_mm2 = (drawn.core_area_mm2 or 0.0) if harvest is not None else 0.0
        good *= harvested_yield(
            drawn.die_area_mm2 or machine.die_mm2, cores_mm2, drawn.defects_per_cm2, drawn.cluster, *cores
        )
    die_usd = (tested_usd - usd["carrier"] - usd.get("cables", 0.0)) / system.sites
    spares = np.arange(MOST_SPARES + 1)
    share = betainc(needed, spares + 1, good)  # binomial; carriers may have a part of a die in the mean
    each_usd = (needed + spares) * die_usd + (usd["carrier"] + usd.get("cables", 0.0)) / carriers
    with np.errstate(divide="ignore"):
        return carriers * each_usd / share + usd.get("assembly", 0.0)


def _with_room(machine: SystemHardware, count: int) -> np.ndarray:
    """bool[number of spare dies]: whether a carrier has room for them."""
    on_one, die_mm2 = machine.system.sites / machine.carriers, machine.carrier_mm2 / machine.system.sites
    dies = on_one - _kept(machine.system) / machine.carriers + np.arange(count)
    return dies * die_mm2 <= max(CARRIER_MM2, on_one * die_mm2)


def _kept(system: SystemSpec) -> int:
    spares = system.spares
    if spares is None:
        return 0
    across, up = (system.mesh.x, system.mesh.y) if system.mesh is not None else (0, 0)
    return spares.dies + spares.rows * across + spares.columns * up


def _spare_dies(count: int) -> str:
    return "without spare dies" if not count else f"with {count} spare {'die' if count == 1 else 'dies'}"


def _range(value: float, spread: Interval, unit: str, within: str = "") -> str:
    """``30,000 USD (21,000–44,000)``, with the digits of the range, which has the value inside."""
    low, high = min(spread.p05, value), max(spread.p95, value)
    text, first, last = (carried_digits(each, low, high) for each in (value, low, high))
    return f"{text} {unit} ({first}–{last}{within})"
