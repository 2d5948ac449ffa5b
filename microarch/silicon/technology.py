"""Coefficients of bits, accesses and cores in silicon, each with its source.

"not looked up" marks values cited from memory because the text was not available; they have a range, as assumed
values do.

Two technologies. ``n5`` is TSMC's 5 nm process according to public sources. ``scaled`` takes the name of the node for
a length, F = 5 nm, and shrinks older cells by its square, which no process achieves; it reproduces the areas of table
II of Yu et al. (ISCA 2026, arXiv 2510.05497v4), and explains why they are so small.
"""

# ruff: noqa: E501  (one row a coefficient: a table is read across)

from __future__ import annotations

from dataclasses import dataclass, fields
from math import log2, sqrt
from types import MappingProxyType

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

    name: str  # of the node
    title: str  # in tables
    bitcell: Coefficient  # um2, one port
    port_pitch: Coefficient  # um that a further port adds to a side of the cell
    periphery: Coefficient  # area of a large macro over that of its cells
    periphery_edge: Coefficient  # what edges of small macros add, over the root of the bits
    flop: Coefficient  # um2 of a flip-flop
    flop_port: Coefficient  # multiplexer of a port, over the flip-flop
    placement: Coefficient  # share of the area that cells fill
    access_8k: Coefficient  # pJ of 64 bits, 8 KB
    access_32k: Coefficient  # the same, 32 KB
    access_1m: Coefficient  # the same, 1 MB
    energy_scale: Coefficient  # energy in this node over that of the accesses
    sram_leakage: Coefficient  # nW of a bit
    flop_cycle: Coefficient  # fJ of a cycle of a flip-flop

    def coefficients(self) -> dict[str, Coefficient]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Coefficient)}

    def cell_um2(self, ports: int) -> float:
        """A bit cell: every further port adds two bit lines in width and a word line in height (CACTI's rule)."""
        side, pitch = sqrt(self.bitcell.value), self.port_pitch.value * (ports - 1)
        return (side + 2 * pitch) * (side + pitch)

    def macro_factor(self, bits: float) -> float:
        """Area of an SRAM macro over its cells: drivers along two edges, so that small macros have more."""
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

    name: str  # of the core
    area_mm2: Coefficient  # in the older node
    power_mw: Coefficient  # in the older node
    clock_hz: Coefficient  # clock at which the power was measured
    area_scale: Coefficient  # 5 nm over the older node
    power_scale: Coefficient  # 5 nm over the older node

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
