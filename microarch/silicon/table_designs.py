"""Area and power of the decision hardware: table designs, which models fit them, sources of the coefficients."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, get_type_hints

from archsim.base.errors import SpecError, did_you_mean
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from microarch.blocks.table_sizes import Shortfall, Storage, TableDesign, shortfalls
from microarch.silicon import decision_area
from microarch.silicon.technology import A72, A76, CLOCK, Coefficient, Technology

_FROM_SYSTEM = ("dies", "hbm_capacity_bytes", "atu_entries")


def parse_design(texts: Iterable[str]) -> dict[str, Any]:
    """``key=value`` strings as arguments of :class:`TableDesign`. Raises SpecError."""
    kinds = get_type_hints(TableDesign)
    keys = [field.name for field in fields(TableDesign) if field.name not in _FROM_SYSTEM]
    changes: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise SpecError(f"--design {text}: expected KEY=VALUE, such as experts=1024")
        if key in _FROM_SYSTEM:
            raise SpecError(f"--design {text}: it is derived from the system; change it there with --set")
        if key not in keys:
            raise SpecError(f"--design {text}: unknown key{did_you_mean(key, keys)}; known: {', '.join(keys)}")
        try:
            changes[key] = kinds[key](value)
            TableDesign(**changes)
        except ValueError as error:
            raise SpecError(f"--design {text}: {error}") from None
    return changes


def published_design(system: SystemSpec, changes: Mapping[str, Any]) -> TableDesign:
    """The tables of table II, for the dies and the HBM of a system, whatever its ``decision`` is."""
    return TableDesign(**changes, dies=system.dies, hbm_capacity_bytes=system.hbm.capacity_bytes)


def needed_by(model: ModelSpec, built: TableDesign) -> TableDesign:
    """The smallest tables that a model fits."""
    return replace(built, experts=model.experts, layers=len(model.moe_layer_ids), atu_entries=None)


def misfits(models: Iterable[ModelSpec], built: TableDesign, executor: str = "fsm") -> Iterator[str]:
    """One line per model and on-wafer table that do not fit: which entries, how many more bits."""
    for model in models:
        for short in shortfalls(built, needed_by(model, built)):
            if short.table.name in decision_area.ON_DIES or executor in ("fsm", "firmware"):
                yield f"{model.name} does not fit the {short.table.name}: {_shortfall(short, model)}"


def _shortfall(short: Shortfall, model: ModelSpec) -> str:
    table, needed = short.table, short.needed
    more = f"{short.entries:,} entries × {needed.bits_per_entry} bit = {short.bits:,} bits more"
    where = (
        f" on each of {table.copies} dies" if table.copies > 1 else " in DRAM" if table.storage is Storage.DRAM else ""
    )
    if needed.entries == model.experts:
        return f"{more}{where}, for experts {table.entries} to {model.experts - 1}"
    counters = (
        f"{model.experts} × {model.experts} counters, "
        f"{'per layer' if table.storage is Storage.SRAM else 'for all layers'}"
    )
    return f"{more}{where}, for {counters}"


def named_coefficients(technology: Technology) -> Iterator[tuple[str, Coefficient]]:
    """(name, coefficient) of the technology, the cores and the datapath."""
    yield from technology.coefficients().items()
    for core in (A72, A76):
        yield from core.coefficients().items()
    yield from (
        ("clock", CLOCK),
        ("lane", decision_area.LANE),
        ("candidate", decision_area.CANDIDATE),
        ("comparator", decision_area.COMPARATOR),
    )
    yield from (
        ("sorter", decision_area.SORTER),
        ("order of use", decision_area.ORDER_BIT),
        ("heatmap adders", decision_area.ADDER_BIT),
    )
    yield "heatmap addresses", decision_area.ADDER_REST
    yield "merge buffer", decision_area.TOKENS
    yield from (("multiplier of speeds", decision_area.SPEED_MULTIPLIER), ("slot of speeds", decision_area.SPEED_SLOT))
