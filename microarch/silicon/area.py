"""Area and power of the tables and cores that decide where experts run and which slices are kept.

- SRAM: area = bits × cell(ports) × macro factor; power = bits × leakage + accesses/s × energy of an access.
- Registers: area = bits × (flip-flop + a multiplexer per port) / placement; power = bits × clock × energy of a cycle.
- DRAM: room in an existing HBM, no area and no power of its own.

Every port makes one access per cycle, so the power is that of tables in constant use: an upper bound. `Technology` has
the coefficients and their sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from math import log2, pi, sqrt
from types import MappingProxyType
from typing import Any

from archsim.base.errors import capital
from archsim.base.sums import sum
from archsim.laws.wafer import SPEED_BITS
from archsim.specs.system import DecisionSpec, FsmSpec, SystemSpec
from microarch.blocks.table_sizes import HardwareTable, Storage, TableDesign, bits_to_count, tables_of

# ---- technology
# Coefficients of bits, accesses and cores in silicon, each with its source.
#
# "not looked up" marks values cited from memory because the text was not available; they have a range, as assumed
# values do.
#
# Two technologies. ``n5`` is TSMC's 5 nm process according to public sources. ``scaled`` takes the name of the node for
# a length, F = 5 nm, and shrinks older cells by its square, which no process achieves; it reproduces the areas of table
# II of Yu et al. (ISCA 2026, arXiv 2510.05497v4), and explains why they are so small.

# ruff: noqa: E501  (one row a coefficient: a table is read across)


KIB_BITS = 8 * 1024
PJ_PER_FJ = 1e-3
_ACCESS = "pJ per 64-bit access in 7 nm"
_JOUPPI = "Jouppi et al., Ten Lessons From Three Generations Shaped Google's TPUv4i, ISCA 2021, table 2 (not looked up)"
_N5_POWER = "TSMC, 5nm Technology (tsmc.com): about 30 % less power than N7"
# AnandTech, Neoverse V1 and N2, 2021: Arm expects 40 % less; first chips in N5 were 26 % more efficient
_N5_POWER_BETWEEN = (0.6, 0.79)
_N5_DENSITY = (
    "Linley Group, Die Photos Show Cortex-A78 Shortfall, 2021: Cortex-A55 22 to 29 % denser in 5 nm than in 7 nm"
)


@dataclass(frozen=True)
class Coefficient:
    value: float
    unit: str
    source: str  # "assumed: …" or "fitted: …" without a source
    between: tuple[float, float] | None = None  # range of a value that is assumed or not looked up


@dataclass(frozen=True)
class Technology:
    """Coefficients of tables. The module's text says how they combine."""

    name: str
    title: str
    bitcell: Coefficient
    port_pitch: Coefficient
    periphery: Coefficient
    periphery_edge: Coefficient
    flop: Coefficient
    flop_port: Coefficient
    placement: Coefficient
    access_8k: Coefficient
    access_32k: Coefficient
    access_1m: Coefficient
    energy_scale: Coefficient
    sram_leakage: Coefficient
    flop_cycle: Coefficient

    def coefficients(self) -> dict[str, Coefficient]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Coefficient)}

    def cell_um2(self, ports: int) -> float:
        """A bit cell: every further port adds two bit lines to its width and a word line to its height (CACTI's
        rule).
        """
        side, pitch = sqrt(self.bitcell.value), self.port_pitch.value * (ports - 1)
        return (side + 2 * pitch) * (side + pitch)

    def macro_factor(self, bits: float) -> float:
        """Area of an SRAM macro over that of its cells: drivers and sense amplifiers are along two edges, so the
        overhead of small macros is larger.
        """
        return self.periphery.value + self.periphery_edge.value / sqrt(bits)

    def register_um2(self, ports: int) -> float:
        """A placed register bit: a flip-flop, and a multiplexer for every port that may write it."""
        return self.flop.value * (1 + ports * self.flop_port.value) / self.placement.value

    def access_pj(self, bits: int, width_bits: int) -> float:
        """One access to an SRAM: linear in the logarithm of the size between 8 KB, 32 KB and 1 MB, and in the width."""
        octaves = log2(bits / (32 * KIB_BITS))
        if octaves < 0:
            slope = (self.access_32k.value - self.access_8k.value) / 2
        else:
            slope = (self.access_1m.value - self.access_32k.value) / 5
        energy_pj = max(self.access_32k.value + slope * octaves, 0.0)
        return energy_pj * self.energy_scale.value * width_bits / 64


@dataclass(frozen=True)
class Core:
    """A core as measured in an older node, and its scaling to 5 nm."""

    name: str
    area_mm2: Coefficient
    power_mw: Coefficient
    clock_hz: Coefficient  # clock at which the power was measured
    area_scale: Coefficient
    power_scale: Coefficient

    def coefficients(self) -> dict[str, Coefficient]:
        names = ("area_mm2", "power_mw", "clock_hz", "area_scale", "power_scale")
        return {f"{self.name} {name}": getattr(self, name) for name in names}


_ENERGY = {
    "access_8k": Coefficient(7.5, _ACCESS, _JOUPPI, (5.0, 10.0)),
    "access_32k": Coefficient(8.5, _ACCESS, _JOUPPI, (6.0, 12.0)),
    "access_1m": Coefficient(14.0, _ACCESS, _JOUPPI, (10.0, 20.0)),
    "energy_scale": Coefficient(0.7, "5 nm over 7 nm", _N5_POWER, _N5_POWER_BETWEEN),
    "sram_leakage": Coefficient(
        0.75, "nW/bit", "assumed: 1 nA per cell at 0.75 V and 85 °C; under 2 % of any table's power", (0.075, 2.25)
    ),
    "flop_cycle": Coefficient(
        0.82,
        "fJ per bit and cycle",
        "ASAP7, DFFHQNx1: 1.17 fJ of its clock pin a cycle (archsim hardware rtl synth), times energy_scale; no clock gating",
        (0.7, 0.92),
    ),
}
N5 = Technology(
    name="n5",
    title="TSMC N5",
    bitcell=Coefficient(0.021, "um2", "WikiChip, TSMC 5-Nanometer Update, 2019: high-density 6T cell (IEDM 2019)"),
    port_pitch=Coefficient(0.030, "um", "WikiChip, TSMC Details 5 nm, 2020: its estimate of the metal pitch"),
    periphery=Coefficient(
        1.43,
        "times the cells",
        "WikiChip, TSMC 5-Nanometer Update, 2019: about 30 % of a large array, 32 Mib/mm2 (not 45 of cells alone)",
    ),
    periphery_edge=Coefficient(
        103.0,
        "times the cells, over the root of the bits",
        "assumed: a macro of 4 KB is half cells (0.4 to 0.6)",
        (43.0, 194.0),
    ),
    flop=Coefficient(
        0.233,
        "um2",
        f"ASAP7, DFFHQNx1: 0.2916 um2 in its predicted 7 nm (not looked up); 1.25 times denser ({_N5_DENSITY})",
        (0.19, 0.27),
    ),
    flop_port=Coefficient(
        1.51,
        "times the flip-flop, per port",
        "synthesis of the PDU to ASAP7 (archsim hardware rtl synth): write and look-up of 512 experts take 1.51 flip-flops per bit",
        (1.45, 1.55),
    ),
    placement=Coefficient(0.70, "of the area is cells", "assumed: usual utilisation of placed logic", (0.6, 0.85)),
    **_ENERGY,
)
SCALED = Technology(
    name="scaled",
    title="older cells shrunk as if the node's name were a length of 5 nm",
    bitcell=Coefficient(0.00365, "um2", "CACTI 6.5, technology.cc: 146 F² with F = 5 nm"),
    port_pitch=Coefficient(0.0125, "um", "CACTI 7, tech_params: 2.5 F"),
    periphery=Coefficient(
        1.65, "times the cells", "fitted: area of ATUs, distribution table and heatmap cache in table II"
    ),
    periphery_edge=Coefficient(0.0, "times the cells, over the root of the bits", "fitted: as periphery"),
    flop=Coefficient(0.0558, "um2", "Nangate 45 nm library, DFF_X1: 4.522 um2 times (5/45)²"),
    flop_port=Coefficient(
        0.41,
        "times the flip-flop, per port",
        "Nangate 45 nm library: MUX2_X1 7, DFF_X1 17 sites of 0.266 um2",
        (0.3, 0.6),
    ),
    placement=Coefficient(1.0, "of the area is cells", "fitted: area of the prediction tables in table II"),
    **_ENERGY,
)
TECHNOLOGIES = MappingProxyType({technology.name: technology for technology in (N5, SCALED)})

A72 = Core(
    name="Cortex-A72",
    area_mm2=Coefficient(
        1.20,
        "mm2 in 16FF+",
        "Arm at the launch of the Cortex-A73, 2016: 0.65 mm2 in 10 nm; 46 % less than a Cortex-A72 in 16 nm (not looked up)",
        (0.9, 1.5),
    ),
    power_mw=Coefficient(
        1085.0, "mW in 16FF+", "AnandTech, HiSilicon Kirin 960, 2017: Kirin 955, mean of +1100, +1185, +970 mW per core"
    ),
    clock_hz=Coefficient(2.516e9, "Hz", "same"),
    area_scale=Coefficient(
        0.24, "5 nm over 16FF+", f"TSMC on CLN7FF: 70 % smaller than CLN16FF+; then 1.25 times denser ({_N5_DENSITY})"
    ),
    power_scale=Coefficient(0.28, "5 nm over 16FF+", f"TSMC on CLN7FF: 60 % less power than CLN16FF+; {_N5_POWER}"),
)
A76 = Core(
    name="Cortex-A76",
    area_mm2=Coefficient(
        1.4, "mm2 in 7 nm", "Arm, in AnandTech, Neoverse V1 and N2, 2021: Neoverse N1 (a Cortex-A76) with 1 MB L2"
    ),
    power_mw=Coefficient(1800.0, "mW in 7 nm", "same"),
    clock_hz=Coefficient(3.1e9, "Hz", "same"),
    area_scale=Coefficient(0.8, "5 nm over 7 nm", _N5_DENSITY, (0.775, 0.82)),
    power_scale=Coefficient(0.7, "5 nm over 7 nm", _N5_POWER, _N5_POWER_BETWEEN),
)
# Sets the power of all SRAM tables; cores run at it too. It is the default of ``TableDesign.clock_hz``.
CLOCK = Coefficient(
    2.5e9,
    "Hz, one access per cycle and port",
    "fitted: power of distribution table, heatmap cache and ATUs in table II",
)


# ---- area_power

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


# ---- memory_area
# Area of SRAM by node: bits × cell × macro factor, one coefficient a source.
#
# The macro factor (area over that of the cells) is that of 37 one-port ASAP7 macros of 512 bits to 64 Kib (the wheel
# ``hammer-vlsi`` 1.2.0, whose read-me calls them dummies): 0.0488 + 0.385 / sqrt(bits) um2 a bit, within 11.5 %, over a
# cell of 0.029 um2. Large arrays of foundries are denser: `LARGE`.

CELL_UM2: Mapping[str, Coefficient] = MappingProxyType(
    {
        "N16": Coefficient(0.07, "um2", "TSMC, Chen et al., JSSC 50(1), 2015 (WikiChip); N12 alike"),
        "N7": Coefficient(0.027, "um2", "TSMC, Chang et al., ISSCC 2017, 12.1 (WikiChip)"),
        "ASAP7": Coefficient(0.029, "um2", "ASAP7, predictive 7 nm: 0.108 × 0.27 um (not looked up)", (0.027, 0.031)),
        "N5": Coefficient(0.021, "um2", "TSMC, IEDM 2019 (WikiChip); N3E alike (IEDM 2022)"),
        "N3B": Coefficient(0.0199, "um2", "TSMC, IEDM 2022 (WikiChip)"),
        "N2": Coefficient(0.0175, "um2", "TSMC, IEDM 2024: 38 Mb/mm2 (Tom's Hardware)"),
    }
)
LARGE = Coefficient(1.43, "times the cells", "WikiChip: 31.8 Mib/mm2 of N3E and N5-class cells, large arrays")
MACRO = Coefficient(1.68, "times the cells", "ASAP7 macros of hammer-vlsi 1.2.0: 0.0488 um2 a bit")
MACRO_EDGE = Coefficient(13.3, "times the cells, over the root of the bits", "the same: 0.385 um2 a bit and root")


def macro_factor(bits: int) -> float:
    """Area of a macro with one port over that of its cells."""
    return MACRO.value + MACRO_EDGE.value / sqrt(bits)


def macro_mm2(bits: int, node: str) -> float:
    """A macro of a node with one port. Raises KeyError for a node without a cell."""
    return bits * CELL_UM2[node].value * macro_factor(bits) / 1e6


# ---- datapath_area
# Area and power of logic that decides: lanes of the Global CP that evaluate candidates, slots that keep them,
# comparators and buffers that sort, the heatmap's adders; on the dies the PDUs' second registers and the ATUs' order.
#
# Logic is counted in flip-flops of the technology, each clocked every cycle. Their number per lane, per candidate and
# per comparator is that of the RTL, synthesised at 4 to 16 lanes (``microarch.silicon.synthesis``: within 25 %), of an
# ATU at 4 to 16 ways and 128 to 1,024 entries, of the heatmap's store at ports of 64 to 2,048 bits (both within 5 %). A
# bitonic network sorts in place; a merge sorter, which is not in RTL, writes the experts from one buffer to another.

# ruff: noqa: E501  (one row a coefficient: a table is read across)


SHADOW, ORDER, ADDERS = "PDU: second register", "ATU: order of use", "Global CP: heatmap adders"
_RTL = "area of cells over that of a flip-flop, ASAP7, pipeline of 3 (archsim hardware rtl synth)"
LANE = Coefficient(298.0, "flip-flops per lane", f"synthesis of the allocator, 8 and 16 lanes: {_RTL}", (250.0, 350.0))
CANDIDATE = Coefficient(
    255.0,
    "flip-flops per die",
    f"synthesis of the allocator, 25 dies: slot, load and their multiplexers; {_RTL}",
    (215.0, 280.0),
)
COMPARATOR = Coefficient(
    60.0,
    "flip-flops per comparator",
    f"synthesis of the selector, 32 comparators, its word of the heatmap in a register: 60; {_RTL}",
    (35.0, 100.0),
)
SORTER = Coefficient(
    181.0,
    "flip-flops per comparator of a bitonic sorter",
    f"synthesis of the sorter, 32 comparators and 512 experts: two keys, and what brings them there and back; {_RTL}",
    (120.0, 240.0),
)
ORDER_BIT = Coefficient(
    2.3,
    "flip-flops per pair of ways of a set",
    f"synthesis of the ATU: its bit of the order of use, the set's choice and update, comparison of tags; {_RTL}",
    (2.2, 2.5),
)
ADDER_BIT = Coefficient(
    2.43,
    "flip-flops per bit of the heatmap's port",
    f"synthesis of the heatmap's store: a bit of the word, its adder and its halving; {_RTL}",
    (2.4, 2.5),
)
ADDER_REST = Coefficient(
    60.0,
    "flip-flops beside the heatmap's word",
    f"synthesis of the heatmap's store: addresses, states; {_RTL}",
    (50.0, 80.0),
)
TOKENS = Coefficient(
    16.0,
    "flip-flops per expert, plus its id",
    "assumed: a count of tokens has the bits of a heatmap counter",
    (16.0, 24.0),
)


def atu_flops(entries: int, ways: int) -> float:
    """Flip-flops' worth of logic of an ATU: the order of use in every set."""
    return entries // ways * (ways * (ways - 1) // 2) * ORDER_BIT.value


def heatmap_flops(port_bits: int) -> float:
    """Flip-flops' worth of logic behind the heatmap's port."""
    return port_bits * ADDER_BIT.value + ADDER_REST.value


def datapath_parts(
    fsm: FsmSpec, experts: int, dies: int, clock_hz: float, technology: Technology = N5
) -> tuple[Part, ...]:
    """Lanes, candidates, comparators and buffers, placed; ``experts``: the number to sort; ``dies``: the candidates."""
    counted = [
        ("lanes", fsm.lanes, LANE.value),
        ("candidates", dies, CANDIDATE.value),
        ("comparators", fsm.comparators, COMPARATOR.value),
        ("heatmap adders", 1, heatmap_flops(fsm.heatmap_port_bits)),
    ]
    if fsm.sorter == "bitonic":
        counted.append(("sorter", fsm.comparators, SORTER.value))
    else:
        counted.append(("merge buffer", 1, experts * (TOKENS.value + bits_to_count(experts))))
    return tuple(
        Part(f"Global CP: {name}", copies, _flops_cost(flops, clock_hz, technology).times(copies))
        for name, copies, flops in counted
    )


SPEEDS = "Global CP: speeds of dies"
SPEED_MULTIPLIER = Coefficient(
    680.0,
    "flip-flops per lane",
    f"synthesis of the allocator with and without speeds, 4 and 8 lanes: a multiplier of 24 x 16 bits and the register after it; {_RTL}",
    (640.0, 730.0),
)
SPEED_SLOT = Coefficient(
    29.0,
    "flip-flops per die",
    f"the same, 25 dies: the factor of a slot, 16 bits, and its choice; {_RTL}",
    (25.0, 35.0),
)
NEIGHBOURS = 4  # of a die on a mesh: links whose costs differ


def speeds_part(system: SystemSpec, technology: Technology = N5) -> Part:
    """What rules that see speeds add to the Global CP: how slow each die is, and what it costs to read the weights of
    an expert from its HBM and over each of its links, in a table; in a state machine the factor of every slot, and a
    multiplier a lane. A core or a host multiplies as it is, and has the table in memory.
    """
    decision, fsm = system.decision, system.decision.fsm
    if decision.executor != "fsm":
        return Part(SPEEDS, 1, AreaAndPower(0.0, 0.0))
    entry = ("how slow", SPEED_BITS), ("costs of reading", (1 + NEIGHBOURS) * fsm.cost_bits)
    table = HardwareTable(SPEEDS, Storage.SRAM, system.sites, entry, sum(bits for _, bits in entry), 1)
    flops = fsm.lanes * SPEED_MULTIPLIER.value + system.dies * SPEED_SLOT.value
    clock_hz = global_clock_hz(decision)
    cost = total([_flops_cost(flops, clock_hz, technology), table_cost(table, clock_hz, technology)])
    return Part(SPEEDS, 1, cost)


def _flops_cost(flops: float, clock_hz: float, technology: Technology) -> AreaAndPower:
    area_um2 = flops * technology.flop.value / technology.placement.value
    cycle_pj = flops * technology.flop_cycle.value * PJ_PER_FJ
    return AreaAndPower(area_um2 / UM2_PER_MM2, cycle_pj * clock_hz * W_PER_PJ_HZ * MW_PER_W)


# ---- decision_area
# Silicon of a system's decision hardware: tables, Local CPs, and a Global CP that is a state machine, a core or a
# host.
#
# It follows ``decision`` of the system (``archsim.specs.system``). The design of the paper's table II, with
# the clock that its powers were fitted to, is ``microarch.blocks.table_sizes.TableDesign()``; the two are separate, so
# that a configuration is never compared with a row that does not describe it.

CORES = MappingProxyType({"a72": A72, "a76": A76})
LOCAL_CP = f"Local CP ({A72.name})"
ON_DIES = ("prediction table", "ATU")  # the other tables are the Global CP's
IN_SRAM = ("expert distribution table", "heatmap cache")  # unless its state machine reads them from DRAM


def design_of(system: SystemSpec, changes: Mapping[str, Any] = MappingProxyType({})) -> TableDesign:
    """The tables as the system configures them, with ``changes`` applied."""
    decision = system.decision
    configured: dict[str, Any] = {
        "dies": system.dies,
        "hbm_capacity_bytes": system.hbm.capacity_bytes,
        "atu_entries": decision.atu_entries,
        "table_port_bits": decision.fsm.table_port_bits,
        "heatmap_port_bits": decision.fsm.heatmap_port_bits,
        "prediction_port_bits": decision.fsm.prediction_port_bits,
        "clock_hz": decision.local_clock_hz,
    }
    return TableDesign(**(configured | dict(changes)))


def global_clock_hz(decision: DecisionSpec) -> float:
    """Clock of the Global CP and its tables: a core's own, or the state machine's."""
    return decision.firmware.clock_hz if decision.executor == "firmware" else decision.fsm.clock_hz


def decision_parts(decision: DecisionSpec, design: TableDesign, technology: Technology = N5) -> tuple[Part, ...]:
    """Rows as in table II. A host keeps the Global CP's tables in its own memory, so none of them is on the wafer."""
    at_hz = global_clock_hz(decision)
    parts = []
    for table in tables_of(design):
        if table.name in IN_SRAM and decision.executor == "fsm" and decision.fsm.tables == "dram":
            continue
        if table.name in ON_DIES or decision.executor != "host":
            clock_hz = design.clock_hz if table.name in ON_DIES else at_hz
            parts.append(
                Part(table.name, table.copies, table_cost(table, clock_hz, technology).times(table.copies), table)
            )
    if decision.atu_ways > 1:
        # The ATUs' order of use and comparison of tags.
        flops = atu_flops(design.atu_entries or design.experts, decision.atu_ways)
        cost = _flops_cost(flops, design.clock_hz, technology)
        parts.append(Part(ORDER, design.dies, cost.times(design.dies)))
    if decision.executor == "fsm" and decision.fsm.shadow:
        # The PDUs' second registers: a bit an expert, so that cp_en bits take effect together.
        cost = _flops_cost(design.experts, design.clock_hz, technology)
        parts.append(Part(SHADOW, design.dies, cost.times(design.dies)))
    parts.append(Part(LOCAL_CP, design.dies, core_cost(A72, design.clock_hz).times(design.dies)))
    if decision.executor == "firmware":
        core = CORES[decision.firmware.core]
        parts.append(Part(f"Global CP ({core.name})", 1, core_cost(core, at_hz)))
    if decision.executor == "fsm":
        parts += datapath_parts(decision.fsm, design.experts, design.dies, at_hz, technology)
    return tuple(parts)


def added_parts(system: SystemSpec, allocates: bool, predicts: bool) -> tuple[Part, ...]:
    """Hardware that a policy needs on the wafer and ``base`` does not; excludes Local CPs, which every other policy
    needs.
    """
    if not allocates and not predicts:
        return ()
    spared = {LOCAL_CP}
    if not predicts:
        spared |= {"prediction table", "heatmap cache", SHADOW, ADDERS}
    if not allocates:
        spared.add("expert distribution table")
    parts = decision_parts(system.decision, design_of(system))
    return tuple(part for part in parts if part.name not in spared and not _in_dram(part))


def added_cost(system: SystemSpec, allocates: bool, predicts: bool) -> AreaAndPower:
    """The cost of all `added_parts`."""
    return total(part.cost for part in added_parts(system, allocates, predicts))


def _in_dram(part: Part) -> bool:
    return part.table is not None and part.table.storage is Storage.DRAM


# ---- published_area
# Table II of Yu et al., ISCA 2026 (arXiv 2510.05497v4): area and power at 5 nm, and why the model's values differ.

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
    """Table II's row for a part of ``design``, scaled to its number of instances; None for parts of a different size
    or clock.
    """
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
