"""Area of a die by block, from its capabilities: FLOP/s, bytes of LLC, bytes/s of HBM and of D2D.

================  =====================================================================================
block             area
================  =====================================================================================
``compute``       peak rate × area per FLOP/s, that of NVIDIA's GH100 without its other blocks; an FP8
                  rate counts half, as the same array has half the rate in 16 bits
``llc``           bits × cell × macro factor (``microarch.silicon.area``, N5); memory of SRAM, too
``hbm``           bandwidth × area of controllers and PHYs, by kind of memory
``d2d``           bandwidth of all ports, both ways, × area of the PHYs
``pieces``        of a die that is made in pieces: the interfaces between them
``decision``      the die's share of the tables and cores that decide (``microarch.silicon.area``)
================  =====================================================================================

Coefficients are those of 5 nm and HBM3; `archsim.runs.prices` brings them to a die's node and memory. Where the area
of a die is known (``made: {area: ...}``), all blocks are scaled to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from archsim.base.sums import sum
from microarch.silicon import area, technology
from microarch.silicon.estimates import Estimate, Estimates
from microarch.silicon.memories import SRAM, devices, memory_of
from microarch.silicon.nodes import NODES

BYTE_BITS = 8
LINK_BYTES_PER_S_MM = 1.317e12  # of edge, both directions together: UCIe 1.0, advanced package, 32 GT/s
TERA = 1e12
SIXTEEN_BIT = 2  # bytes of the data type of the compute areas

# NVIDIA H100 (GH100) datasheet and white paper, 2022: 814 mm², 144 SMs of which 132 give 989 TFLOP/s (BF16, dense), 60
# MB of L2, six HBM interfaces, NVLink and PCIe.
GH100_MM2 = 814.0
GH100_TFLOP_PER_S = 989.0 * 144 / 132
GH100_L2_BYTES = 60 * 2**20
GH100_HBM_TB_PER_S = 6 * 0.819  # six stacks at the rate of JEDEC JESD238
INTERFACE_TB_PER_S = 10.0  # between two pieces, both ways: NV-HBI of NVIDIA's B200, 2024
GH100_IO_MM2 = 40.0  # assumed: NVLink and PCIe, 5 % of the die


def sram_mm2(size_bytes: float) -> float:
    """Area of a large single-port SRAM in 5 nm."""
    bits = BYTE_BITS * size_bytes
    return bits * technology.N5.cell_um2(1) * technology.N5.macro_factor(bits) / area.UM2_PER_MM2


_HBM = Estimate(12.0, 8.0, 24.0, "mm2 per TB/s", "assumed: six PHYs and controllers are 5 to 15 % of GH100")


@dataclass(frozen=True)
class AreaEstimates(Estimates):
    compute_mm2_per_tflop_per_s: Estimate = Estimate(
        (GH100_MM2 - sram_mm2(GH100_L2_BYTES) - GH100_HBM_TB_PER_S * _HBM.value - GH100_IO_MM2) / GH100_TFLOP_PER_S,
        0.45, 1.0, "mm2 per TFLOP/s in 16 bits",
        "derived: GH100 without L2, HBM interfaces and I/O; high: Tesla D1, 645 mm2 of 7 nm for 362 TFLOP/s, 1.8 "
        "times denser in 5 nm",
    )  # fmt: skip
    hbm_mm2_per_tb_per_s: Estimate = _HBM
    d2d_mm2_per_tb_per_s: Estimate = Estimate(
        1 / 1.35, 1 / 1.35, 1 / 0.188, "mm2 per TB/s",
        "UCIe 1.0, advanced package: 188 to 1350 GB/s/mm2 (UCIe Consortium, 2022)",
    )  # fmt: skip


def die_area(
    system, leaving_bytes_per_s: float, decision_mm2: float, estimates: AreaEstimates | None = None
) -> Mapping[str, float]:
    """Block → mm² of one die. ``leaving_bytes_per_s``: of its outgoing links; ``decision_mm2``: of the machine."""
    estimates, made = estimates or AreaEstimates(), system.made
    node = NODES[made.node] if made is not None and made.node else NODES["n5"]
    rate = system.compute.peak_flop_per_s / TERA * system.compute.dtype_bytes / SIXTEEN_BIT
    sram_bytes = system.llc.capacity_bytes + (system.hbm.capacity_bytes if system.hbm.kind == SRAM else 0)
    area = {
        "compute": rate * estimates.compute_mm2_per_tflop_per_s.value,
        "llc": sram_mm2(sram_bytes) * node.sram_area,
        "hbm": system.hbm.bandwidth_bytes_per_s / TERA * estimates.hbm_mm2_per_tb_per_s.value,
        "d2d": 2 * leaving_bytes_per_s / TERA * estimates.d2d_mm2_per_tb_per_s.value,
        "decision": decision_mm2 / system.dies * node.logic_area.value,
    }
    if made is None or made.area_mm2 is None:
        return area
    share = made.area_mm2 / sum(area.values())
    return {block: share * each for block, each in area.items()}


def interface_of(system, estimates: AreaEstimates) -> float:
    """One side of an interface between two pieces of a die, mm²: the same for all, so that a die with more memory or
    better links has no fewer pieces; 0 where the known area of its dies has the interfaces, and of dies with their
    memory in them.
    """
    if system.hbm.kind == SRAM or (system.made is not None and system.made.area_mm2 is not None):
        return 0.0
    return INTERFACE_TB_PER_S * estimates.d2d_mm2_per_tb_per_s.value


def devices_of(system) -> Any:
    """Stacks, chips or links of memory of one die. Of a system whose bandwidths are arrays, an array."""
    given = system.hbm.stacks_on_carrier
    found = devices(memory_of(system.hbm.kind), system.hbm.capacity_bytes, system.hbm.bandwidth_bytes_per_s)
    return found if given is None else given


def stacks_of(system) -> Any:
    """Stacks of one die on its carrier: 0 of memory that stands on the board or is a part of the die."""
    return devices_of(system) if memory_of(system.hbm.kind).carrier_mm2 else 0


def edge_needed_mm(system, leaving_bytes_per_s: float) -> float:
    """Edge of one die that the interfaces of its memory and its links need."""
    links_mm = 2 * leaving_bytes_per_s / LINK_BYTES_PER_S_MM
    return float(devices_of(system) * memory_of(system.hbm.kind).edge_mm) + links_mm


def edge_mm(die_mm2: float, pieces: int) -> float:
    """Edge of a die of square pieces in a row."""
    return 2 * (pieces + 1) * (die_mm2 / pieces) ** 0.5


def across_bytes_per_s(d2d_mm2: Any, dies: int, estimates: AreaEstimates) -> Any:
    """Bytes/s each way between the halves of a square grid of dies with ports of ``d2d_mm2``: one link of four."""
    leaving_tb_per_s = d2d_mm2 / estimates.d2d_mm2_per_tb_per_s.value / 2
    return np.sqrt(dies) * leaving_tb_per_s / 4 * TERA
