"""What ``archsim hardware cost`` and ``hardware power`` say of a machine: price, power, area by block and its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archsim.base.answer import Answer, Grid
from archsim.base.sums import sum
from archsim.engine.fabrics import dies_together
from archsim.machine.made import MONOLITHIC
from archsim.machine.system import SystemSpec
from archsim.questions.machine_price import price_machine
from archsim.runs import prices
from archsim.runs.clocks import NOMINAL, full_load_note, heat_with
from archsim.runs.energy import full_load_blocks_w
from archsim.show.units import carried_digits, interval, listing
from microarch.silicon.cost import CARRIER_MM2
from microarch.silicon.estimates import Estimate
from microarch.silicon.heat import HeatEstimates

DECISIVE = 3  # coefficients that are named


def coefficients_of(given: Mapping[str, float]) -> tuple[prices.Coefficients, HeatEstimates]:
    """Those of price and energy, and those of power and heat, with other values of some. Raises SpecError."""
    heat = NOMINAL.by_name()
    middle = prices.Coefficients().change({name: value for name, value in given.items() if name not in heat})
    return middle, heat_with({name: value for name, value in given.items() if name in heat})


def cost_parts(system: SystemSpec, middle: prices.Coefficients, limits: HeatEstimates) -> Answer:
    """Price and power in a sentence; area by block, price by part, and the coefficients that decide it."""
    value, low, high = (prices.build_costs(system, each) for each in (middle, middle.at("low"), middle.at("high")))
    prices.refuse_unbuildable(value)
    priced = price_machine(system, middle)
    said = f"{priced.price_sentence} {priced.power_sentence}"
    bounds = {"value": value, "low": low, "high": high}
    notes = filter(None, [prices.carrier_note(system.name, value.carrier_share), *prices.making_notes(value)])
    return Answer(
        (
            said,
            _blocks(f"{system.name}: one die, mm²", value.area_mm2, low.area_mm2, high.area_mm2),
            _carrier(value),
            *full_load_note(system, limits),
            _blocks(f"{system.name}: {system.dies} dies, USD", value.usd, low.usd, high.usd),
            _decisive(prices.price_ranges(system, middle)),
        ),
        tuple(notes),
        {"answer": said} | {name: {"area_mm2": each.area_mm2, "usd": each.usd} for name, each in bounds.items()},
    )


def power_parts(system: SystemSpec, middle: prices.Coefficients, limits: HeatEstimates) -> Answer:
    """Power at full load in a sentence, against its limits, and by block."""
    prices.refuse_unbuildable(prices.build_costs(system, middle))
    ends = (middle, middle.at("low"), middle.at("high"))
    value, low, high = (full_load_blocks_w(prices.build_costs(system, each), each) for each in ends)
    said = price_machine(system, middle).power_sentence
    table = _blocks(f"{system.name}: peak FLOP, HBM and links at once, W", value, low, high)
    result = {"answer": said, "value": value, "low": low, "high": high}
    return Answer((said, *full_load_note(system, limits), table), result=result)


def sources_of(title: str, known: Mapping[str, Estimate]) -> Grid:
    rows = [
        (name, *(f"{number:.4g}" for number in (each.value, each.low, each.high)), each.unit, each.source)
        for name, each in known.items()
    ]
    return Grid(("coefficient",), rows, ("value", "low", "high"), more=("unit", "source"), title=title)


def _carrier(machine: prices.SystemHardware) -> str:
    made = machine.system.made
    pieces = f" Each die is made in {machine.pieces} pieces" if machine.pieces > 1 else ""
    pieces += ("." if made is not None and made.pieces else ", which costs least.") if pieces else ""
    together = dies_together(machine.system) or 1
    if made is not None and made.carrier == MONOLITHIC:
        count = f"{machine.carriers} wafer{'s' if machine.carriers > 1 else ''}"
        return f"Dies ({machine.silicon_mm2:,.0f} mm²) are parts of {count}, of {CARRIER_MM2:,.0f} mm², not cut."
    if machine.packages:
        each_mm2 = machine.carrier_mm2 * together / machine.system.sites
        whose = "its" if together == 1 else f"{together} dies and their"
        return (
            f"Each package has {each_mm2:,.0f} mm² of {whose} silicon and stacks; there are {machine.carriers}.{pieces}"
        )
    fit = "They fit on one." if machine.carriers == 1 else f"They are priced on {machine.carriers}."
    return (
        f"Dies ({machine.silicon_mm2:,.0f} mm²) and HBM take {machine.carrier_mm2 / CARRIER_MM2:.0%} of a carrier of "
        f"{CARRIER_MM2:,.0f} mm². {fit}{pieces}"
    )


def _decisive(ranges: Sequence[tuple[str, float, float]]) -> str:
    each = listing(
        f"{name} ({carried_digits(low, low, high)} to {carried_digits(high, low, high)} USD)"
        for name, low, high in ranges[:DECISIVE]
    )
    return f"The price depends most on {each}. Each range is that of one coefficient from its low to its high end."


def _blocks(title: str, value: Mapping[str, float], low: Mapping[str, float], high: Mapping[str, float]) -> Grid:
    names = dict.fromkeys((*value, *low, *high))  # other ends may have other parts, such as joined pieces
    rows: list[tuple[str, ...] | None] = [
        (name, *interval(value.get(name, 0.0), low.get(name, 0.0), high.get(name, 0.0))) for name in names
    ]
    whole = ("sum", *interval(sum(value.values()), sum(low.values()), sum(high.values())))
    return Grid(("block",), [*rows, None, whole], ("value", "all coefficients low", "all high"), title=title)
