"""What ``archsim cost`` prints: area of a die by block, price of a machine by part, energy of a bit, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archsim.base.errors import SpecError
from archsim.cli.printing import console, grid
from archsim.runs.economics import Coefficients, Machine, build_costs
from archsim.specs.experiment import ExperimentSpec
from microarch.silicon.cost import CARRIER_MM2, tiles_of

OK = 0


def cost_command(experiment: ExperimentSpec, changes: Sequence[str], sources: bool) -> int:
    """Print area and price of every system; ``changes`` are ``name=value`` texts of coefficients. Raises SpecError."""
    coefficients = Coefficients().changed(parse_changes(changes))
    out = console()
    for system in experiment.systems:
        value, low, high = (build_costs(system, each) for each in (coefficients, coefficients.at("low"), coefficients.at("high")))
        out.print(_table(f"{system.name}: one die, mm²", value.area_mm2, low.area_mm2, high.area_mm2, "{:,.1f}"))
        out.print(_carrier(value), soft_wrap=True)
        out.print(_table(f"{system.name}: {system.dies} dies on a carrier, USD", value.usd, low.usd, high.usd, "{:,.0f}"))
    if sources:
        out.print(_sources(coefficients))
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
