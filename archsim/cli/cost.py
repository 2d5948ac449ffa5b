"""``archsim hardware cost``: die area by block, machine price by part, and the coefficients behind them;
``archsim hardware power``: what a machine draws at full load, against its limits.
"""

import argparse
from collections.abc import Mapping, Sequence

from archsim.base.sums import sum
from archsim.cli import arguments
from archsim.cli.printing import console, grid, print_notes
from archsim.engine.fabrics import dies_together
from archsim.runs.clocks import NOMINAL as HEAT
from archsim.runs.clocks import full_load_told, heat_with
from archsim.runs.energy import full_load_blocks_w
from archsim.runs.prices import (
    Coefficients,
    SystemHardware,
    build_costs,
    carrier_note,
    making_notes,
    price_ranges,
    refuse_unbuildable,
)
from archsim.specs.library import AXIS_UNREAD, load_experiment
from archsim.specs.made import MONOLITHIC
from archsim.specs.system import SystemSpec
from microarch.silicon.cost import CARRIER_MM2
from microarch.silicon.estimates import Estimate
from microarch.silicon.heat import HeatEstimates

DECISIVE = 3  # coefficients that are named


def add_cost(parser: argparse.ArgumentParser) -> None:
    arguments.add_experiment(parser, "The experiment, or a system, by name or file")
    parser.add_argument(
        "--coefficient",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="Change a coefficient, such as wafer_usd=20000. May be repeated.",
    )
    parser.add_argument("--sources", action="store_true", help="Print every coefficient, its range and its source.")


def run_cost(args: argparse.Namespace) -> int:
    """Print area and price of every system. Raises SpecError for an unknown coefficient."""
    from archsim.studies.machine_price import price_machine

    systems, unread = _systems(args)
    middle, limits = _coefficients(args)
    ends = [middle.at("low"), middle.at("high")]
    out, args.result = console(), {}
    for system in systems:
        value, low, high = (build_costs(system, each) for each in (middle, *ends))
        refuse_unbuildable(value)
        bounds = {"value": value, "low": low, "high": high}
        priced = price_machine(system, middle)
        args.result[system.name] = {"answer": f"{priced.price_sentence} {priced.power_sentence}"}
        args.result[system.name] |= {
            name: {"area_mm2": each.area_mm2, "usd": each.usd} for name, each in bounds.items()
        }  # fmt: skip
        out.print(args.result[system.name]["answer"], soft_wrap=True)
        out.print(_table(f"{system.name}: one die, mm²", value.area_mm2, low.area_mm2, high.area_mm2))
        out.print(_carrier(value), soft_wrap=True)
        for line in full_load_told(system, limits):
            out.print(line, soft_wrap=True)
        title = f"{system.name}: {system.dies} dies, USD"
        out.print(_table(title, value.usd, low.usd, high.usd))
        out.print(_decisive(price_ranges(system, middle)), soft_wrap=True)
        print_notes(filter(None, [carrier_note(system.name, value.carrier_share), *making_notes(value)]))
    if args.sources:
        out.print(_sources("coefficients", middle.by_name()))
        out.print(_sources("coefficients of power and cooling", limits.by_name()))
    print_notes(each for each in unread if AXIS_UNREAD in each)
    return arguments.OK


def _systems(args: argparse.Namespace) -> tuple[tuple[SystemSpec, ...], tuple[str, ...]]:
    """The systems of an experiment, and what of it has no effect; or one system, by name or file."""
    from archsim.search.options import is_system, load_system

    if is_system(args.file):
        return (load_system(args.file, [each.removeprefix("systems.0.") for each in args.overrides]),), ()
    experiment = load_experiment(args.file, args.overrides)
    return experiment.systems, experiment.unread


def _coefficients(args: argparse.Namespace) -> tuple[Coefficients, HeatEstimates]:
    """Those of price and energy, and those of power and heat, with the values of ``--coefficient``."""
    given = arguments.named_numbers("--coefficient", args.coefficient)
    heat = HEAT.by_name()
    middle = Coefficients().change({name: value for name, value in given.items() if name not in heat})
    return middle, heat_with({name: value for name, value in given.items() if name in heat})


add_power = add_cost


def run_power(args: argparse.Namespace) -> int:
    """Print power at full load against the limits, and by block. Raises SpecError for an unknown coefficient."""
    from archsim.studies.machine_price import price_machine

    systems, unread = _systems(args)
    middle, limits = _coefficients(args)
    ends = [middle.at("low"), middle.at("high")]
    out, args.result = console(), {}
    for system in systems:
        refuse_unbuildable(build_costs(system, middle))
        value, low, high = (full_load_blocks_w(build_costs(system, each), each) for each in (middle, *ends))
        said = price_machine(system, middle).power_sentence
        args.result[system.name] = {"answer": said, "value": value, "low": low, "high": high}
        out.print(said, soft_wrap=True)
        for line in full_load_told(system, limits):
            out.print(line, soft_wrap=True)
        title = f"{system.name}: peak FLOP, HBM and links at once, W"
        out.print(_table(title, value, low, high))
    if args.sources:
        out.print(_sources("coefficients of energy", middle.energy.by_name()))
        out.print(_sources("coefficients of power and cooling", limits.by_name()))
    print_notes(each for each in unread if AXIS_UNREAD in each)
    return arguments.OK


def _carrier(machine: SystemHardware) -> str:
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
    """The coefficients whose ranges change the price most."""
    from archsim.report.units import carried_digits, listing

    each = listing(
        f"{name} ({carried_digits(low, low, high)} to {carried_digits(high, low, high)} USD)"
        for name, low, high in ranges[:DECISIVE]
    )
    return f"The price depends most on {each}. Each range is that of one coefficient from its low to its high end."


def _table(title: str, value: Mapping[str, float], low: Mapping[str, float], high: Mapping[str, float]):
    """Each value with as many digits as its range carries."""
    from archsim.report.units import interval

    made = grid("block", title=title, numbers=("value", "all coefficients low", "all high"))
    for name in dict.fromkeys([*value, *low, *high]):  # other ends may have other parts, such as joined pieces
        made.add_row(name, *interval(value.get(name, 0.0), low.get(name, 0.0), high.get(name, 0.0)))
    made.add_section()
    made.add_row("sum", *interval(sum(value.values()), sum(low.values()), sum(high.values())))
    return made


def _sources(title: str, known: Mapping[str, Estimate]):
    made = grid("coefficient", title=title, numbers=("value", "low", "high"))
    made.add_column("unit")
    made.add_column("source")
    for name, each in known.items():
        made.add_row(name, *(f"{number:.4g}" for number in (each.value, each.low, each.high)), each.unit, each.source)
    return made
