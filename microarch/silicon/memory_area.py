"""Area of SRAM by node: bits × cell × macro factor, one coefficient a source.

The macro factor (area over that of the cells) is that of 37 one-port ASAP7 macros of 512 bits to 64 Kib (the wheel
``hammer-vlsi`` 1.2.0, whose read-me calls them dummies): 0.0488 + 0.385 / sqrt(bits) um2 a bit, within 11.5 %, over a
cell of 0.029 um2. Large arrays of foundries are denser: `LARGE`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from types import MappingProxyType

from microarch.silicon.technology import Coefficient

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
