"""Area and power of the tables and cores that decide where experts run and which slices are kept.

- SRAM: area = bits × cell(ports) × macro factor; power = bits × leakage + accesses/s × energy of an access.
- Registers: area = bits × (flip-flop + a multiplexer per port) / placement; power = bits × clock × energy of a cycle.
- DRAM: room in an existing HBM, no area and no power of its own.

Every port makes one access per cycle, so the power is that of tables in constant use: an upper bound. `Technology` has
the coefficients and their sources.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import pi

from archsim.base.sums import sum
from microarch.blocks.table_sizes import HardwareTable, Storage, TableDesign, tables_of
from microarch.silicon.technology import A72, A76, N5, PJ_PER_FJ, Core, Technology

# ruff: noqa: E501  (one row a coefficient: a table is read across)

UM2_PER_MM2 = 1e6
MW_PER_W = 1e3
MW_PER_NW = 1e-6
W_PER_PJ_HZ = 1e-12
WAFER_MM2 = pi * 150.0**2  # a 300 mm wafer


@dataclass(frozen=True)
class AreaAndPower:
    area_mm2: float
    power_mw: float

    def times(self, copies: float) -> AreaAndPower:
        return AreaAndPower(self.area_mm2 * copies, self.power_mw * copies)

    def minus(self, other: AreaAndPower) -> AreaAndPower:
        return AreaAndPower(self.area_mm2 - other.area_mm2, self.power_mw - other.power_mw)


@dataclass(frozen=True)
class Part:
    """A row: ``copies`` instances of a table or core; ``cost`` is that of all of them."""

    name: str
    copies: int
    cost: AreaAndPower
    table: HardwareTable | None = None


def total(costs: Iterable[AreaAndPower]) -> AreaAndPower:
    costs = tuple(costs)
    return AreaAndPower(sum(cost.area_mm2 for cost in costs), sum(cost.power_mw for cost in costs))


def table_cost(table: HardwareTable, clock_hz: float, technology: Technology = N5) -> AreaAndPower:
    if table.storage is Storage.DRAM:
        return AreaAndPower(0.0, 0.0)
    if table.storage is Storage.REGISTERS:
        area_um2 = table.bits * technology.register_um2(table.ports)
        cycle_pj = table.bits * technology.flop_cycle.value * PJ_PER_FJ
        return AreaAndPower(area_um2 / UM2_PER_MM2, cycle_pj * clock_hz * W_PER_PJ_HZ * MW_PER_W)
    area_um2 = table.bits * technology.cell_um2(table.ports) * technology.macro_factor(table.bits)
    access_pj = technology.access_pj(table.bits, table.port_bits) * table.ports
    leakage_mw = table.bits * technology.sram_leakage.value * MW_PER_NW
    return AreaAndPower(area_um2 / UM2_PER_MM2, leakage_mw + access_pj * clock_hz * W_PER_PJ_HZ * MW_PER_W)


def core_cost(core: Core, clock_hz: float) -> AreaAndPower:
    """In 5 nm, at the same voltage: power follows the clock."""
    power_mw = core.power_mw.value * core.power_scale.value * clock_hz / core.clock_hz.value
    return AreaAndPower(core.area_mm2.value * core.area_scale.value, power_mw)


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
