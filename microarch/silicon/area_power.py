"""Area and power of the tables and cores that decide where experts run and which slices are kept.

- SRAM: area = bits × cell(ports) × macro factor; power = bits × leakage + accesses/s × energy of an access.
- Registers: area = bits × (flip-flop + a multiplexer per port) / placement; power = bits × clock × energy of a cycle.
- DRAM: room in an existing HBM, no area and no power of its own.

Every port makes one access per cycle, so the power is that of tables in constant use: an upper bound. Coefficients and
their sources: ``microarch.silicon.technology``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import pi

from microarch.blocks.table_sizes import Storage, Table, TableDesign, tables_of
from microarch.silicon.technology import A72, A76, N5, PJ_PER_FJ, Core, Technology

UM2_PER_MM2 = 1e6
MW_PER_W = 1e3
MW_PER_NW = 1e-6
W_PER_PJ_HZ = 1e-12
WAFER_MM2 = pi * 150.0**2  # a 300 mm wafer


@dataclass(frozen=True)
class Cost:
    area_mm2: float
    power_mw: float

    def times(self, copies: float) -> Cost:
        return Cost(self.area_mm2 * copies, self.power_mw * copies)

    def minus(self, other: Cost) -> Cost:
        return Cost(self.area_mm2 - other.area_mm2, self.power_mw - other.power_mw)


@dataclass(frozen=True)
class Part:
    """A row: ``copies`` instances of a table or core; ``cost`` is that of all of them."""

    name: str
    copies: int
    cost: Cost
    table: Table | None = None


def total(costs: Iterable[Cost]) -> Cost:
    costs = tuple(costs)
    return Cost(sum(cost.area_mm2 for cost in costs), sum(cost.power_mw for cost in costs))


def table_cost(table: Table, clock_hz: float, technology: Technology = N5) -> Cost:
    if table.storage is Storage.DRAM:
        return Cost(0.0, 0.0)
    if table.storage is Storage.REGISTERS:
        area_um2 = table.bits * technology.register_um2(table.ports)
        cycle_pj = table.bits * technology.flop_cycle.value * PJ_PER_FJ
        return Cost(area_um2 / UM2_PER_MM2, cycle_pj * clock_hz * W_PER_PJ_HZ * MW_PER_W)
    area_um2 = table.bits * technology.cell_um2(table.ports) * technology.macro_factor(table.bits)
    access_pj = technology.access_pj(table.bits, table.port_bits) * table.ports
    leakage_mw = table.bits * technology.sram_leakage.value * MW_PER_NW
    return Cost(area_um2 / UM2_PER_MM2, leakage_mw + access_pj * clock_hz * W_PER_PJ_HZ * MW_PER_W)


def core_cost(core: Core, clock_hz: float) -> Cost:
    return Cost(core.area_5nm_mm2, core.power_5nm_mw(clock_hz))


def parts_of(design: TableDesign, technology: Technology = N5) -> tuple[Part, ...]:
    """Every table, and the cores of the Local CPs and of the Global CP."""
    tables = tuple(
        Part(table.name, table.copies, table_cost(table, design.clock_hz, technology).times(table.copies), table)
        for table in tables_of(design)
    )
    cores = (("Local CP", A72, design.dies), ("Global CP", A76, 1))
    return tables + tuple(
        Part(f"{name} ({core.name})", copies, core_cost(core, design.clock_hz).times(copies))
        for name, core, copies in cores
    )
