# ruff: noqa: E501  (one row a coefficient: a table is read across)
"""Manufacturing cost of a machine: good dies, HBM, carrier, and bonding that may fail.

A die: price of a wafer divided by the good dies on it, plus test. Dies on a wafer: Hennessy and Patterson, Computer
Architecture, 6th edition, section 1.6: ratio of areas, less the dies cut by the edge. Good dies: negative binomial
yield (1 + A·D/α)^-α (Stapper; ITRS). Known-good dies and HBM stacks are bonded to one carrier one by one; a failed
bond loses the whole wafer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, pi

import numpy as np

from microarch.silicon.area_power import WAFER_MM2
from microarch.silicon.estimates import Estimate, Estimates

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
