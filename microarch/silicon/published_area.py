"""Table II of Yu et al., ISCA 2026 (arXiv 2510.05497v4): area and power at 5 nm, and why the model's values differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from archsim.base.errors import capital
from microarch.blocks.table_sizes import HardwareTable, Storage, TableDesign, tables_of
from microarch.silicon.area import UM2_PER_MM2, AreaAndPower, Part, table_cost, total
from microarch.silicon.technology import N5, SCALED, Technology

TOLERANCE = 0.25  # a larger difference gets a sentence
# Table II: area and power of all copies, 512 experts and 25 dies. "About" 7.5, 7000, 1.1 and 1000 in the paper.
PUBLISHED_DESIGN = TableDesign()
PUBLISHED: Mapping[str, AreaAndPower] = MappingProxyType(
    {
        "prediction table": AreaAndPower(0.0020, 55.75),
        "ATU": AreaAndPower(0.0048, 334.25),
        "Local CP (Cortex-A72)": AreaAndPower(7.5, 7000.0),
        "expert distribution table": AreaAndPower(0.0002, 13.94),
        "heatmap cache": AreaAndPower(0.0278, 184.67),
        "Global CP (Cortex-A76)": AreaAndPower(1.1, 1000.0),
    }
)
PUBLISHED_TOTAL = AreaAndPower(6.13, 8588.61)


def published_row(part: Part, design: TableDesign) -> AreaAndPower | None:
    """Table II's row for a part of ``design``, scaled to its instances; None for another size or clock."""
    row = PUBLISHED.get(part.name)
    if row is None or design.clock_hz != PUBLISHED_DESIGN.clock_hz:
        return None
    if part.table is not None:
        published = next(table for table in tables_of(PUBLISHED_DESIGN) if table.name == part.name)
        if replace(published, copies=part.copies) != part.table:
            return None
    return row if part.copies == 1 else row.times(part.copies / PUBLISHED_DESIGN.dies)


def deviation(value: float, published: float) -> float:
    return value / published - 1


def explanation(part: Part, design: TableDesign, technology: Technology = N5) -> str | None:
    """A sentence if area or power of a part are further than TOLERANCE from table II; else None."""
    row = published_row(part, design)
    if row is None:
        return None
    sentences = []
    area, power = deviation(part.cost.area_mm2, row.area_mm2), deviation(part.cost.power_mw, row.power_mw)
    if abs(area) > TOLERANCE:
        sentences.append(_area_sentence(part, part.table, row) if part.table else "the core is not the paper's.")
    if abs(power) > TOLERANCE:
        sentences.append(
            f"power is that of {technology.title} at {design.clock_hz / 1e9:g} GHz; table II states no clock."
        )
    return f"{part.name}: {' '.join(sentences)}" if sentences else None


def _area_sentence(part: Part, table: HardwareTable, row: AreaAndPower) -> str:
    """Why an area that is computed from the cells of N5 is larger than the published one."""
    published_um2 = row.area_mm2 * UM2_PER_MM2 / (table.bits * part.copies)
    scaled_mm2 = table_cost(table, PUBLISHED_DESIGN.clock_hz, SCALED).times(part.copies).area_mm2
    if table.storage is Storage.REGISTERS:
        cell, cell_um2 = "a flip-flop", N5.flop.value
        how = "a flip-flop and a multiplexer of a 45 nm library times (5/45)²"
    else:
        cell, cell_um2 = "the bit cell", N5.bitcell.value
        how = f"CACTI's cell of 146 F² with F = 5 nm and {SCALED.periphery.value - 1:.0%} periphery"
    return (
        f"The published area is {published_um2:.4f} um² per bit. {capital(cell)} of TSMC N5 alone takes "
        f"{cell_um2:g} um², {cell_um2 / published_um2:.1f} times as much, so no periphery can explain the difference. "
        f"{capital(how)} gives {scaled_mm2:.4f} mm² ({deviation(scaled_mm2, row.area_mm2):+.0%}), as if "
        "scaled by the node's name."
    )


def total_note() -> str:
    """Inconsistencies of the printed totals."""
    rows = total(PUBLISHED.values())
    return (
        f"Table II prints a total area of {PUBLISHED_TOTAL.area_mm2:g} mm², but its rows add up to "
        f"{rows.area_mm2:.2f} mm². Its total power, {PUBLISHED_TOTAL.power_mw:g} mW, is the sum of its rows "
        f"({rows.power_mw:.2f} mW)."
    )
