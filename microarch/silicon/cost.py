"""Manufacturing cost of a machine: good dies, HBM, carrier, and bonding that may fail.

A die: price of a wafer divided by the good dies on it, plus test. Dies on a wafer: Hennessy and Patterson, Computer
Architecture, 6th edition, section 1.6: ratio of areas, less the dies cut by the edge. Good dies: negative binomial
yield (1 + A·D/α)^-α (Stapper; ITRS). Known-good dies and HBM stacks are bonded to one carrier one by one; a failed
bond loses the whole wafer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import ceil, pi
from typing import TypeVar

import numpy as np

from microarch.silicon.area import N5, UM2_PER_MM2, WAFER_MM2

# ---- estimates
# Numbers known only within a range: a value to compute with, its bounds, its unit and its source.

Group = TypeVar("Group", bound="Estimates")


@dataclass(frozen=True)
class Estimate:
    """``low`` to ``high`` is the range of the sources; ``value`` is used in computations."""

    value: float
    low: float
    high: float
    unit: str
    source: str  # "assumed: …" without a source

    def __post_init__(self) -> None:
        """Raises ValueError for a value outside its range."""
        if not 0 <= self.low <= self.value <= self.high:
            raise ValueError(f"{self.value} {self.unit} is outside {self.low} to {self.high}")


@dataclass(frozen=True)
class Estimates:
    """A group of estimates, one per field."""

    def named(self) -> dict[str, Estimate]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def changed(self: Group, changes: Mapping[str, float]) -> Group:
        """The group with changed values. A user's value has no range. Raises ValueError for a negative one, KeyError
        for an unknown name.
        """
        known = self.named()
        return replace(self, **{
            name: Estimate(value, value, value, known[name].unit, "set by the user")
            for name, value in changes.items()
        })

    def at(self: Group, bound: str) -> Group:
        """The group with every value at its ``low`` or ``high`` bound."""
        return _at(self, bound)


@lru_cache(maxsize=64)
def _at(group: Group, bound: str) -> Group:
    ends = {name: replace(each, value=getattr(each, bound)) for name, each in group.named().items()}
    return replace(group, **ends)


# ---- cost

# ruff: noqa: E501  (one row a coefficient: a table is read across)




GB = 1e9
WAFER_MM = 300.0
MM2_PER_CM2 = 100.0
RETICLE_MM2 = 26.0 * 33.0  # largest die of a stepper
CARRIER_MM2 = 215.0 * 215.0  # largest square in a 300 mm wafer, with its edge: 46,225 mm², as Cerebras' WSE
HBM_STACK_MM2 = 11.0 * 11.0  # footprint of an HBM3 stack (Micron, 2023)
HBM_STACK_BYTES_PER_S = 0.819e12  # JEDEC JESD238
HBM_STACK_BYTES = 24e9  # the usual stack of eight dies


@dataclass(frozen=True)
class CostEstimates(Estimates):
    wafer_usd: Estimate = Estimate(16988.0, 13000.0, 18000.0, "USD", "Khan and Mann, AI Chips: What They Are and Why They Matter, CSET 2020: a 5 nm wafer")
    defects_per_cm2: Estimate = Estimate(0.10, 0.06, 0.11, "1/cm2", "TSMC Technology Symposium 2020, in AnandTech: N5 at 0.10 to 0.11, and falling")
    cluster: Estimate = Estimate(2.0, 2.0, 10.0, "", "ITRS: 2; chiplet cost models use up to 10")
    test_share: Estimate = Estimate(0.10, 0.05, 0.20, "of the die's cost", "assumed: probing and burn-in that make a known-good die")
    hbm_usd_per_gb: Estimate = Estimate(10.0, 8.0, 20.0, "USD/GB", "assumed: press reports of HBM3E contract prices, 2024 to 2026")
    carrier_usd: Estimate = Estimate(4000.0, 2000.0, 8000.0, "USD", "assumed: a wafer of redistribution layers costs as much as one of an older node")
    bond_loss: Estimate = Estimate(0.001, 0.0001, 0.01, "of bonds", "assumed: at 0.01 a carrier of 100 bonds would be lost in two out of three cases")


def dies_per_wafer(die_mm2: float) -> float:
    """Whole dies on a 300 mm wafer."""
    return WAFER_MM2 / die_mm2 - pi * WAFER_MM / np.sqrt(2 * die_mm2)


def die_yield(die_mm2: float, estimates: CostEstimates) -> float:
    """Share of dies without a fatal defect."""
    alpha = estimates.cluster.value
    return (1 + die_mm2 / MM2_PER_CM2 * estimates.defects_per_cm2.value / alpha) ** -alpha


def tiles_of(die_mm2: float) -> float:
    """Number of pieces that a die is made of, none above the reticle: one, or several that act as one (as in NVIDIA's B200)."""
    return np.ceil(die_mm2 / RETICLE_MM2)


def hbm_stacks(capacity_bytes: float, bandwidth_bytes_per_s: float) -> int:
    """Stacks beside one die: enough for its capacity and its bandwidth."""
    return max(ceil(capacity_bytes / HBM_STACK_BYTES), ceil(bandwidth_bytes_per_s / HBM_STACK_BYTES_PER_S))


def machine_cost(
    *, die_mm2: float, dies: int, stacks_per_die: int, hbm_bytes_per_die: float, estimates: CostEstimates | None = None
) -> Mapping[str, float]:
    """Component → USD of a machine: ``dies``, ``test``, ``hbm``, ``carrier``, ``bonding`` (loss from failed bonds).

    Also of many machines: ``die_mm2`` and ``stacks_per_die`` may be arrays.
    """
    estimates = estimates or CostEstimates()
    tiles = tiles_of(die_mm2)
    tile_mm2 = die_mm2 / tiles
    die_usd = tiles * estimates.wafer_usd.value / (dies_per_wafer(tile_mm2) * die_yield(tile_mm2, estimates))
    area_mm2 = dies * (die_mm2 + stacks_per_die * HBM_STACK_MM2)
    carriers = np.ceil(area_mm2 / CARRIER_MM2)
    parts = {
        "dies": dies * die_usd,
        "test": dies * die_usd * estimates.test_share.value,
        "hbm": dies * hbm_bytes_per_die / GB * estimates.hbm_usd_per_gb.value,
        "carrier": estimates.carrier_usd.value * carriers,
    }
    bonds = dies * (tiles + stacks_per_die) / carriers
    good = (1 - estimates.bond_loss.value) ** bonds
    return parts | {"bonding": sum(parts.values()) * (1 / good - 1)}


# ---- die_area
# Area of a die by block, from its capabilities: FLOP/s, bytes of LLC, bytes/s of HBM and of D2D.
#
# ================  =====================================================================================
# block             area
# ================  =====================================================================================
# ``compute``       peak rate × area per FLOP/s, that of NVIDIA's GH100 without its other blocks; an FP8
#                   rate counts half, as the same array has half the rate in 16 bits
# ``llc``           bits × cell × macro factor (``microarch.silicon.area``, N5)
# ``hbm``           bandwidth × area of controllers and PHYs
# ``d2d``           bandwidth of all ports, both ways, × area of the PHYs
# ``decision``      the die's share of the tables and cores that decide (``microarch.silicon.area``)
# ================  =====================================================================================

BYTE_BITS = 8
TERA = 1e12
SIXTEEN_BIT = 2  # bytes of the data type of the compute areas

# NVIDIA H100 (GH100) datasheet and white paper, 2022: 814 mm², 144 SMs of which 132 give 989 TFLOP/s (BF16, dense), 60
# MB of
# L2, six HBM interfaces, NVLink and PCIe.
GH100_MM2 = 814.0
GH100_TFLOP_PER_S = 989.0 * 144 / 132
GH100_L2_BYTES = 60 * 2**20
GH100_HBM_TB_PER_S = 6 * 0.819  # six stacks at the rate of JEDEC JESD238
GH100_IO_MM2 = 40.0  # assumed: NVLink and PCIe, 5 % of the die


def sram_mm2(size_bytes: float) -> float:
    """Area of a large single-port SRAM in 5 nm."""
    bits = BYTE_BITS * size_bytes
    return bits * N5.cell_um2(1) * N5.macro_factor(bits) / UM2_PER_MM2


_HBM = Estimate(12.0, 8.0, 24.0, "mm2 per TB/s", "assumed: six PHYs and controllers are 5 to 15 % of GH100")


def _compute_of_gh100(hbm_mm2: float) -> float:
    rest = GH100_MM2 - sram_mm2(GH100_L2_BYTES) - GH100_HBM_TB_PER_S * hbm_mm2 - GH100_IO_MM2
    return rest / GH100_TFLOP_PER_S


@dataclass(frozen=True)
class AreaEstimates(Estimates):
    compute_mm2_per_tflop_per_s: Estimate = Estimate(
        _compute_of_gh100(_HBM.value), 0.45, 1.0, "mm2 per TFLOP/s in 16 bits",
        "derived: GH100 without L2, HBM interfaces and I/O; high: Tesla D1, 645 mm2 of 7 nm for 362 TFLOP/s, 1.8 "
        "times denser in 5 nm",
    )  # fmt: skip
    hbm_mm2_per_tb_per_s: Estimate = _HBM
    d2d_mm2_per_tb_per_s: Estimate = Estimate(
        1 / 1.35,
        1 / 1.35,
        1 / 0.188,
        "mm2 per TB/s",
        "UCIe 1.0, advanced package: 188 to 1350 GB/s/mm2 (UCIe Consortium, 2022)",
    )


def die_area(
    system, leaving_bytes_per_s: float, decision_mm2: float, estimates: AreaEstimates | None = None
) -> Mapping[str, float]:
    """Block → mm² of one die. ``leaving_bytes_per_s``: bandwidth of its outgoing links, mean over dies;
    ``decision_mm2``: of the whole machine.
    """
    estimates = estimates or AreaEstimates()
    rate = system.compute.peak_flop_per_s / TERA * system.compute.dtype_bytes / SIXTEEN_BIT
    return {
        "compute": rate * estimates.compute_mm2_per_tflop_per_s.value,
        "llc": sram_mm2(system.llc.capacity_bytes),
        "hbm": system.hbm.bandwidth_bytes_per_s / TERA * estimates.hbm_mm2_per_tb_per_s.value,
        "d2d": 2 * leaving_bytes_per_s / TERA * estimates.d2d_mm2_per_tb_per_s.value,
        "decision": decision_mm2 / system.dies,
    }
