"""What ``archsim cost`` prints: area of a die by block, price of a machine by part, energy of a bit, and where it comes from."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from archsim.economics import Coefficients, Machine, build_costs
from archsim.specs.errors import SpecError
from archsim.specs.experiment import ExperimentSpec
from microarch.cost import CARRIER_MM2, tiles_of

OK = 0
_LOG_WIDTH = 170  # of tables that do not go to a terminal


def cost_command(experiment: ExperimentSpec, changes: Sequence[str], sources: bool) -> int:
    """Print area and price of every system; ``changes`` are ``name=value`` texts of coefficients. Raises SpecError."""
    coefficients = Coefficients().changed(parse_changes(changes))
    console = _console()
    for system in experiment.systems:
        value, low, high = (build_costs(system, each) for each in (coefficients, coefficients.at("low"), coefficients.at("high")))
        console.print(_table(f"{system.name}: one die, mm²", value.area_mm2, low.area_mm2, high.area_mm2, "{:,.1f}"))
        console.print(_carrier(value), soft_wrap=True)
        console.print(_table(f"{system.name}: {system.dies} dies on a carrier, USD", value.usd, low.usd, high.usd, "{:,.0f}"))
    if sources:
        console.print(_sources(coefficients))
    return OK


def parse_changes(texts: Sequence[str]) -> dict[str, float]:
    """``name=value`` texts as numbers. Raises SpecError."""
    changes = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            changes[name] = float(value)
        except ValueError:
            expected = "KEY=VALUE, such as hbm_pj_per_bit=5" if not equals else "a number"
            raise SpecError(f"--coefficient {text}: expected {expected}") from None
    return changes


def _carrier(machine: Machine) -> str:
    tiles = tiles_of(machine.die_mm2)
    dies = f"each of {tiles} pieces, as a reticle is smaller; " if tiles > 1 else ""
    use = machine.carrier_mm2 / CARRIER_MM2
    verdict = "they fit on one" if machine.carriers == 1 else f"they need {machine.carriers}"
    return f"Dies ({dies}{machine.silicon_mm2:,.0f} mm²) and HBM take {use:.0%} of a carrier of {CARRIER_MM2:,.0f} mm²: {verdict}."


def _table(title: str, value: Mapping[str, float], low: Mapping[str, float], high: Mapping[str, float], form: str):
    grid = _grid(title, "block", "value", "all coefficients low", "all high")
    for name, number in value.items():
        grid.add_row(name, *(form.format(each) for each in (number, low[name], high[name])))
    grid.add_section()
    grid.add_row("sum", *(form.format(sum(each.values())) for each in (value, low, high)))
    return grid


def _sources(coefficients: Coefficients):
    grid = _grid("coefficients", "coefficient", "value", "low", "high")
    grid.add_column("unit")
    grid.add_column("source")
    for name, each in coefficients.named().items():
        grid.add_row(name, *(f"{number:.4g}" for number in (each.value, each.low, each.high)), each.unit, each.source)
    return grid


def _grid(title: str, first: str, *numbers: str):
    from rich import box
    from rich.table import Table

    grid = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column(first, no_wrap=True)
    for name in numbers:
        grid.add_column(name, justify="right")
    return grid


def _console():
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _LOG_WIDTH, highlight=False)
