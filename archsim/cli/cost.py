"""``archsim cost``: die area by block, machine price by part, and the coefficients behind them."""

import argparse
from collections.abc import Mapping

from archsim.cli.arguments import add_experiment, add_json, named_numbers
from archsim.cli.exit_codes import OK
from archsim.cli.printing import console, grid
from archsim.runs.economics import Coefficients, Machine, build_costs, full_load_w
from archsim.specs.loading.library import load_experiment
from microarch.silicon.cost import CARRIER_MM2, tiles_of


def add(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser)
    add_json(parser)
    parser.add_argument(
        "--coefficient",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a coefficient, such as wafer_usd=20000; repeatable",
    )
    parser.add_argument("--sources", action="store_true", help="print every coefficient, its range and its source")


def run(args: argparse.Namespace) -> int:
    """Print area and price of every system. Raises SpecError for an unknown coefficient."""
    experiment = load_experiment(args.file, args.overrides)
    middle = Coefficients().changed(named_numbers("--coefficient", args.coefficient))
    ends = [middle.at("low"), middle.at("high")]
    out, args.result = console(), {}
    for system in experiment.systems:
        value, low, high = (build_costs(system, each) for each in (middle, *ends))
        bounds = {"value": value, "low": low, "high": high}
        args.result[system.name] = {name: {"area_mm2": each.area_mm2, "usd": each.usd} for name, each in bounds.items()}
        out.print(_table(f"{system.name}: one die, mm²", value.area_mm2, low.area_mm2, high.area_mm2, "{:,.1f}"))
        out.print(_carrier(value), soft_wrap=True)
        watts = [full_load_w(machine, each) for machine, each in zip((value, low, high), (middle, *ends), strict=True)]
        out.print("At full load (peak FLOP, HBM and links at once) {:,.0f} W, {:,.0f} to {:,.0f}.".format(*watts))
        title = f"{system.name}: {system.dies} dies on a carrier, USD"
        out.print(_table(title, value.usd, low.usd, high.usd, "{:,.0f}"))
    if args.sources:
        out.print(_sources(middle))
    return OK


def _carrier(machine: Machine) -> str:
    tiles = int(tiles_of(machine.die_mm2))
    dies = f"each in {tiles} pieces, as it exceeds a reticle; " if tiles > 1 else ""
    use = machine.carrier_mm2 / CARRIER_MM2
    verdict = "they fit on one" if machine.carriers == 1 else f"they need {machine.carriers}"
    return (
        f"Dies ({dies}{machine.silicon_mm2:,.0f} mm²) and HBM take {use:.0%} of a carrier of {CARRIER_MM2:,.0f} mm²: "
        f"{verdict}."
    )


def _table(title: str, value: Mapping[str, float], low: Mapping[str, float], high: Mapping[str, float], form: str):
    made = grid("block", title=title, numbers=("value", "all coefficients low", "all high"))
    for name, number in value.items():
        made.add_row(name, *(form.format(each) for each in (number, low[name], high[name])))
    made.add_section()
    made.add_row("sum", *(form.format(sum(each.values())) for each in (value, low, high)))
    return made


def _sources(coefficients: Coefficients):
    made = grid("coefficient", title="coefficients", numbers=("value", "low", "high"))
    made.add_column("unit")
    made.add_column("source")
    for name, each in coefficients.named().items():
        made.add_row(name, *(f"{number:.4g}" for number in (each.value, each.low, each.high)), each.unit, each.source)
    return made
