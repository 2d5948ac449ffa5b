"""What ``archsim area`` prints: tables and cores of every system of an experiment, table II beside them, what fits."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import get_type_hints

from archsim.specs.errors import SpecError
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.hardware import SystemSpec
from archsim.specs.model import ModelSpec
from archsim.specs.nearest import did_you_mean
from microarch.area_power import WAFER_MM2, Cost, Part, parts_of, total
from microarch.published_area import deviation, explanation, published_row, total_note
from microarch.tables import Shortfall, Storage, Table, TableDesign, shortfalls
from microarch.technology import A72, A76, CLOCK, TECHNOLOGIES, Coefficient, Technology

OK = 0
_LOG_WIDTH = 170  # of tables that do not go to a terminal
_FROM_SYSTEM = ("dies", "hbm_capacity_bytes")
_KIB, _MIB, _PPM = 2**10, 2**20, 1e6


def area_command(experiment: ExperimentSpec, design: Sequence[str], technology: str, sources: bool) -> int:
    """Print area and power; ``design`` are ``key=value`` texts for :class:`TableDesign`. Raises SpecError for those it does not know."""
    chosen, changes = TECHNOLOGIES[technology], parse_design(design)
    console = _console()
    for system in experiment.systems:
        built = design_of(system, changes)
        parts = parts_of(built, chosen)
        console.print(_parts_table(system, built, parts, chosen))
        for line in _notes(parts, built, chosen):
            console.print(line, soft_wrap=True)
        console.print(_models_table(experiment.models, built, chosen))
        for line in misfits(experiment.models, built):
            console.print(line, soft_wrap=True)
    if sources:
        console.print(_sources_table(chosen))
    return OK


def parse_design(texts: Iterable[str]) -> dict[str, float]:
    """``key=value`` texts as arguments of :class:`TableDesign`. Raises SpecError."""
    kinds = get_type_hints(TableDesign)
    keys = [field.name for field in fields(TableDesign) if field.name not in _FROM_SYSTEM]
    changes: dict[str, float] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise SpecError(f"--design {text}: expected KEY=VALUE, such as experts=1024")
        if key in _FROM_SYSTEM:
            raise SpecError(f"--design {text}: it follows from the system; change it there with --set")
        if key not in keys:
            raise SpecError(f"--design {text}: unknown key{did_you_mean(key, keys)}; known: {', '.join(keys)}")
        try:
            changes[key] = kinds[key](value)
            TableDesign(**changes)
        except ValueError as error:
            raise SpecError(f"--design {text}: {error}") from None
    return changes


def design_of(system: SystemSpec, changes: dict[str, float]) -> TableDesign:
    """The tables of a system: as in table II, for its dies and its HBM."""
    return TableDesign(**changes, dies=system.dies, hbm_capacity_bytes=system.hbm.capacity_bytes)


def needed_by(model: ModelSpec, built: TableDesign) -> TableDesign:
    """Tables that are just large enough for a model."""
    return replace(built, experts=model.experts, layers=len(model.moe_layer_ids))


def misfits(models: Iterable[ModelSpec], built: TableDesign) -> Iterator[str]:
    """A line for every model and table that do not fit: which entries, how many bits more."""
    for model in models:
        for short in shortfalls(built, needed_by(model, built)):
            yield f"{model.name} does not fit the {short.table.name}: {_shortfall(short, model, built)}"


def _shortfall(short: Shortfall, model: ModelSpec, built: TableDesign) -> str:
    table, needed = short.table, short.needed
    more = f"{short.entries:,} entries × {needed.bits_per_entry} bit = {short.bits:,} bits more"
    where = f" on each of {table.copies} dies" if table.copies > 1 else " in DRAM" if table.storage is Storage.DRAM else ""
    if table.entries == built.experts:
        return f"{more}{where}, for experts {built.experts} to {model.experts - 1}"
    counters = f"{model.experts} × {model.experts} counters, {'a layer' if table.storage is Storage.SRAM else 'all layers'}"
    return f"{more}{where}, for {counters}"


def _parts_table(system: SystemSpec, built: TableDesign, parts: Sequence[Part], technology: Technology):
    title = f"{system.name}: tables for {built.experts} experts, {built.layers} layers, {built.dies} dies; {technology.title}, {built.clock_hz / 1e9:g} GHz"
    grid = _table(title, "part", "kept in")
    grid.columns[0].no_wrap = True
    for name in ("entries", "bits", "size", "port", "copies", "mm²", "mW", "of wafer", "table II mm²", "Δ", "table II mW", "Δ"):
        grid.add_column(name, justify="right")
    for part in parts:
        row = published_row(part, built)
        grid.add_row(part.name, *_size_cells(part.table), str(part.copies), *_cost_cells(part.cost), *_beside(part.cost, row))
    sum_of = total(part.cost for part in parts)
    rows = [published_row(part, built) for part in parts if part.name != "heatmap"]
    published = None if None in rows else total(rows)
    grid.add_section()
    grid.add_row("sum of rows", *[""] * 6, *_cost_cells(sum_of), *_beside(sum_of, published))
    return grid


def _size_cells(table: Table | None) -> tuple[str, ...]:
    if table is None:
        return ("",) * 5
    port = f"{table.ports} × {table.port_bits} bit"
    return table.storage.value, f"{table.entries:,}", str(table.bits_per_entry), _size(table.size_bytes), port


def _cost_cells(cost: Cost) -> tuple[str, ...]:
    if not cost.area_mm2:
        return ("–",) * 3
    return f"{cost.area_mm2:.4f}", f"{cost.power_mw:.2f}", f"{_PPM * cost.area_mm2 / WAFER_MM2:.3g} ppm"


def _beside(cost: Cost, row: Cost | None) -> tuple[str, ...]:
    if row is None:
        return ("–",) * 4
    area, power = deviation(cost.area_mm2, row.area_mm2), deviation(cost.power_mw, row.power_mw)
    return f"{row.area_mm2:.4f}", f"{area:+.1%}", f"{row.power_mw:.2f}", f"{power:+.1%}"


def _notes(parts: Sequence[Part], built: TableDesign, technology: Technology) -> Iterator[str]:
    yield from filter(None, (explanation(part, built, technology) for part in parts))
    yield total_note()
    others = [part.name for part in parts if part.name != "heatmap" and published_row(part, built) is None]
    if others:
        yield f"Not of the size or clock of table II, so not compared: {', '.join(others)}."
    for part in parts:
        if part.table is not None:
            layout = " + ".join(f"{name} {bits}" for name, bits in part.table.fields)
            yield f"Bits of an entry, {part.name}: {layout}."


def _models_table(models: Iterable[ModelSpec], built: TableDesign, technology: Technology):
    grid = _table("the same tables, just large enough for a model", "model")
    for name in ("experts", "MoE layers", "fits", "mm² of tables", "mW of tables", "heatmap in DRAM"):
        grid.add_column(name, justify="right")
    for model in models:
        needed = needed_by(model, built)
        parts = [part for part in parts_of(needed, technology) if part.table is not None]
        cost = total(part.cost for part in parts)
        dram = next(part.table for part in parts if part.table.storage is Storage.DRAM)
        fits = "no" if shortfalls(built, needed) else "yes"
        sizes = (f"{cost.area_mm2:.4f}", f"{cost.power_mw:.2f}", _size(dram.size_bytes))
        grid.add_row(model.name, str(model.experts), str(needed.layers), fits, *sizes)
    return grid


def _sources_table(technology: Technology):
    grid = _table("coefficients", "coefficient", "value", "unit", "source")
    for name, coefficient in named_coefficients(technology):
        grid.add_row(name, f"{coefficient.value:g}", coefficient.unit, coefficient.source)
    return grid


def named_coefficients(technology: Technology) -> Iterator[tuple[str, Coefficient]]:
    yield from technology.coefficients().items()
    for core in (A72, A76):
        yield from core.coefficients().items()
    yield "clock", CLOCK


def _size(size_bytes: float) -> str:
    for unit, name in ((_MIB, "MB"), (_KIB, "KB")):
        if size_bytes >= unit / 2 and size_bytes >= _KIB:
            return f"{size_bytes / unit:.4g} {name}"
    return f"{size_bytes:g} B"


def _table(title: str, *columns: str):
    from rich import box
    from rich.table import Table as Grid

    grid = Grid(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        grid.add_column(column)
    return grid


def _console():
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _LOG_WIDTH, highlight=False)
