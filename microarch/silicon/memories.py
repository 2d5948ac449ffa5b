"""Kinds of memory of a die: what one device holds and moves, where it stands, and what it takes and costs.

A stack of HBM stands beside the die on its carrier and takes a part of the die's edge. GDDR, LPDDR and CXL stand on the
board: the die has their interfaces alone. SRAM is a part of the die: it has no device, no interface and no price of its
own, but the area of its cells.

Prices have the year of their sources, as they move by half within two years.
"""

# ruff: noqa: E501  (one row a kind: a table is read across)

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from microarch.silicon import technology
from microarch.silicon.estimates import Estimate

GIB = 2**30
HBM_STACK_MM2 = 11.0 * 11.0  # footprint of an HBM3 stack (Micron, 2023)
HBM_EDGE_MM = 11.0  # of the die that faces it


class Memory(NamedTuple):
    """One kind of memory."""

    title: str  # in sentences
    device_bytes: float  # that one stack, chip, package or link holds at most
    device_bytes_per_s: float  # that one moves
    carrier_mm2: float  # footprint of a device on the carrier; 0: on the board, or in the die
    edge_mm: float  # edge of the die for the interface of a device
    phy: Estimate  # area of controllers and PHYs for a byte/s, over that of HBM3
    energy: Estimate  # of a bit from the memory to the die's cache, over that of HBM3; of SRAM pJ
    usd_per_gb: Estimate | None  # None: `CostEstimates.hbm_usd_per_gb`
    source: str  # of capacity and bandwidth


def _times(value: float, low: float, high: float, source: str) -> Estimate:
    return Estimate(value, low, high, "times HBM3", source)


_SAME = _times(1.0, 1.0, 1.0, "as HBM3")
# 64 bits of a bank of 32 KB, and a fifth of a millimetre of wire, as each core stands beside its own bank
_BANK_PJ = technology.N5.access_pj(32 * technology.KIB_BITS, 64) / 64 + 0.2 * 0.08
_SRAM_BANK = Estimate(
    _BANK_PJ, 0.06, 0.3, "pJ/bit", "a bank of 32 KB (technology.N5), and 0.2 mm of wire; high: assumed, 2 mm more"
)
_BUILDS_2025 = (
    "2025: 2,800 to 3,100 USD for the 192 GB of a B200 (Epoch AI, Monte Carlo of its bill of materials); 1,350 USD for "
    "the 80 GB of an H100, 2,900 for the 192 of an MI300X (Silicon Analysts, February 2026)"
)
_HBM_2025 = Estimate(15.0, 10.0, 20.0, "USD/GB", _BUILDS_2025)

MEMORIES: Mapping[str, Memory] = MappingProxyType({
    "hbm2e": Memory("HBM2e", 16 * GIB, 0.461e12, HBM_STACK_MM2, HBM_EDGE_MM, _SAME, _times(1.0, 0.9, 1.2, "assumed: as HBM3"), Estimate(12.0, 8.0, 20.0, "USD/GB", "assumed: a generation older than what was priced in 2025"), "JEDEC JESD235D: 3.6 Gb/s × 1,024; eight dies of 16 Gb"),
    "hbm3": Memory("HBM3", 24 * GIB, 0.819e12, HBM_STACK_MM2, HBM_EDGE_MM, _SAME, _SAME, _HBM_2025, "JEDEC JESD238: 6.4 Gb/s × 1,024; eight dies of 24 Gb"),
    "hbm3e": Memory("HBM3e", 36 * GIB, 1.229e12, HBM_STACK_MM2, HBM_EDGE_MM, _SAME, _times(0.95, 0.85, 1.0, "Micron, HBM3E product brief, 2024: lower power than others at the same rate"), _HBM_2025, "Micron and SK hynix, 2024: 9.6 Gb/s × 1,024; twelve dies of 24 Gb"),
    "hbm4": Memory("HBM4", 48 * GIB, 2.048e12, HBM_STACK_MM2, HBM_EDGE_MM, _SAME, _times(0.8, 0.6, 1.0, "SK hynix at the start of HBM4, September 2025: power efficiency better by 40 %; of the device alone"), Estimate(18.0, 12.0, 25.0, "USD/GB", "2026: press reports of 500 to 560 USD for a first stack of 36 GB"), "JEDEC JESD270-4: 8 Gb/s × 2,048; sixteen dies of 24 Gb"),
    "gddr7": Memory("GDDR7", 3 * GIB, 0.128e12, 0.0, 2.0, _times(3.0, 2.0, 5.0, "assumed: wide PHYs of single-ended links on an organic substrate"), _times(1.5, 1.2, 2.0, "assumed: device and PHY of GDDR6 take 1.5 to 2 times those of HBM2 (O'Connor et al., MICRO 2017, on GDDR5)"), Estimate(6.0, 3.0, 12.0, "USD/GB", "assumed: spot prices of GDDR6 in 2024 and 2025, and a premium"), "JEDEC JESD239: 32 Gb/s × 32; 24 Gb"),
    "lpddr5x": Memory("LPDDR5X", 32 * GIB, 0.0683e12, 0.0, 2.5, _times(5.0, 3.0, 8.0, "assumed: 64 data lines at 8.5 Gb/s"), _times(1.1, 0.8, 1.4, "assumed: a device of 4 to 5 pJ per bit as HBM2's 3.9"), Estimate(4.5, 3.0, 6.0, "USD/GB", "assumed: contract prices of mobile DRAM, 2024 and 2025; they rose by half in early 2026"), "JEDEC JESD209-5C: 8.533 Gb/s × 64; packages of 32 GB"),
    "cxl": Memory("DDR5 behind CXL", 256 * GIB, 0.063e12, 0.0, 4.0, _times(8.0, 5.0, 12.0, "assumed: sixteen lanes of PCIe 5"), _times(2.5, 1.8, 4.0, "assumed: DDR5, its controller and two ends of PCIe 5 at 5 to 6 pJ per bit"), Estimate(5.0, 3.0, 10.0, "USD/GB", "assumed: registered DDR5 of 2024 and 2025, and an expander's controller"), "CXL 2.0 over PCIe 5.0: sixteen lanes of 32 GT/s"),
    "sram": Memory("SRAM of the die", float("inf"), float("inf"), 0.0, 0.0, _times(0.0, 0.0, 0.0, "no interface"), _SRAM_BANK, Estimate(0.0, 0.0, 0.0, "USD/GB", "in the price of the die"), "the area of its cells bounds it"),
})  # fmt: skip
UNSAID = MEMORIES["hbm3"]._replace(usd_per_gb=None)  # of a system that does not say its kind: stacks of HBM3
SRAM = "sram"


def memory_of(kind: str | None) -> Memory:
    return UNSAID if kind is None else MEMORIES[kind]


def devices(memory: Memory, capacity_bytes: Any, bandwidth_bytes_per_s: Any) -> Any:
    """Stacks, chips or links of one die: enough for its capacity and its bandwidth. Either may be of many machines."""
    of_capacity = np.ceil(np.asarray(capacity_bytes) / memory.device_bytes)
    of_bandwidth = np.ceil(np.asarray(bandwidth_bytes_per_s) / memory.device_bytes_per_s)
    return np.where(np.isinf(memory.device_bytes), 0.0, np.maximum(of_capacity, of_bandwidth))
