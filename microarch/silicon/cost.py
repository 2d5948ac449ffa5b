"""Manufacturing cost of a machine: good dies, HBM, carrier, and bonding that may fail.

A die: price of a wafer divided by the good dies on it, plus test. Dies on a wafer: Hennessy and Patterson, Computer
Architecture, 6th edition, section 1.6: ratio of areas, less the dies cut by the edge. Good dies: negative binomial
yield (1 + A·D/α)^-α (Stapper; ITRS). Known-good dies and HBM stacks are bonded to a carrier one by one; a failed bond
loses the whole carrier.

The carrier is a wafer, or where all of it fits the largest package, a part of one. A finished package pays for its
assembly, too. Dies of a wafer that is not cut have no carrier, and no bonds.

A die is made in the number of pieces for which it costs least: more pieces have a better yield, but need room for the
interface between them, and are put together one by one. Interface and joining cost the same for every die, so that one
which needs more area never has fewer pieces, and a machine with more of anything is never cheaper, smaller or cooler.
The machine has the number of carriers that costs least: more carriers cost more, as do the cables between them, but a
failed bond loses less.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import pi
from typing import Any, NamedTuple

import numpy as np

from archsim.base.sums import sum
from archsim.base.units import RETICLE_MM2
from archsim.laws.wafer import yield_of
from microarch.silicon.area import WAFER_MM2
from microarch.silicon.estimates import Estimate, Estimates
from microarch.silicon.memories import HBM_STACK_MM2

# ruff: noqa: E501  (one row a coefficient: a table is read across)


GB = 1e9
WAFER_MM = 300.0
CARRIER_MM2 = 215.0 * 215.0  # largest square in a 300 mm wafer, with its edge: 46,225 mm², as Cerebras' WSE
# Largest package: silicon of 5.5 reticles on one interposer (TSMC, Technology Symposium 2026: CoWoS in production)
PACKAGE_MM2 = 5.5 * RETICLE_MM2


@dataclass(frozen=True)
class CostEstimates(Estimates):
    wafer_usd: Estimate = Estimate(  # a processed wafer
        16988.0,
        13000.0,
        18000.0,
        "USD",
        "Khan and Mann, AI Chips: What They Are and Why They Matter, CSET 2020: a 5 nm wafer",
    )
    defects_per_cm2: Estimate = Estimate(  # fatal ones
        0.10, 0.06, 0.11, "1/cm2", "TSMC Technology Symposium 2020, in AnandTech: N5 at 0.10 to 0.11, and falling"
    )
    # how defects cluster: the parameter of the negative binomial law
    cluster: Estimate = Estimate(2.0, 2.0, 10.0, "", "ITRS: 2; chiplet cost models use up to 10")
    test_share: Estimate = Estimate(  # tests that make a known-good die
        0.10, 0.05, 0.20, "of the die's cost", "assumed: probing and burn-in that make a known-good die"
    )
    hbm_usd_per_gb: Estimate = Estimate(  # memory
        10.0,
        8.0,
        20.0,
        "USD/GB",
        "assumed: press reports of HBM3E contract prices, 2024 to 2026; of a memory whose kind is said, its own (microarch/silicon/memories.py)",
    )
    carrier_usd: Estimate = Estimate(  # a carrier of 300 mm
        4000.0, 2000.0, 8000.0, "USD", "assumed: a wafer of redistribution layers costs as much as one of an older node"
    )
    package_usd_per_mm2: Estimate = Estimate(  # of the silicon in a finished package
        0.45, 0.35, 0.6, "USD/mm2",
        "CoWoS of H100 (750 USD), MI300X (1,200; Silicon Analysts, February 2026) and B200 (1,000 to 1,200; Epoch AI, 2025) over their dies and stacks: 0.49, 0.49, 0.43",
    )  # fmt: skip
    assembly_usd: Estimate = Estimate(  # of a finished package: board, supply and final test
        600.0, 480.0, 920.0, "USD",
        "auxiliary parts of a B200: 480 USD (Epoch AI, 2025); test and assembly of an MI300X 600, of an H100 920 (Silicon Analysts, February 2026)",
    )  # fmt: skip
    piece_usd: Estimate = Estimate(  # to join each further piece of a die
        41.0, 20.0, 80.0, "USD",
        "derived: the package of an MI300X, of 8 + 4 pieces, costs 450 USD more than that of an H100, of one (Silicon Analysts, February 2026); range: a factor of 2, assumed",
    )  # fmt: skip
    cable_usd_per_gbit_per_s: Estimate = Estimate(  # between carriers
        0.25,
        0.125,
        0.5,
        "USD per Gbit/s each way",
        "assumed: passive copper cables of 400 to 800 Gbit/s at 100 to 200 USD",
    )
    bond_loss: Estimate = Estimate(  # bonds that fail
        0.0014, 0.00002, 0.0021, "of bonds",
        "TSMC, Technology Symposium in Hsinchu, May 2026: above 98 % of CoWoS packages of 5.5 reticles are good; 12 HBM stacks and two dies are 14 bonds; low: Pal et al., Designing a 2048-Chiplet, 14336-Core Waferscale Processor, DAC 2021: 99.998 % of chiplets, with two pillars a pad; high: assumed, half as much again on a whole wafer",
    )  # fmt: skip


def dies_per_wafer(die_mm2: float) -> float:
    """Whole dies on a 300 mm wafer."""
    return WAFER_MM2 / die_mm2 - pi * WAFER_MM / np.sqrt(2 * die_mm2)


def die_yield(die_mm2: float, estimates: CostEstimates) -> float:
    """Share of dies without a fatal defect, by the law with which machines are drawn."""
    return yield_of(die_mm2, estimates.defects_per_cm2.value, estimates.cluster.value)


class Beside(NamedTuple):
    """What stands with one die and is no part of it: IO dies and further memories."""

    usd: float = 0.0  # tested
    carrier_mm2: float = 0.0  # that it adds on the carrier
    bonds: int = 0  # to the carrier


NOTHING_BESIDE = Beside()


class Making(NamedTuple):
    """How a machine is made. ``usd``: component → USD; ``pieces``: of one die; ``carriers``: of the
    machine. Of many machines, arrays.
    """

    usd: Mapping[str, Any]
    pieces: Any
    carriers: Any


def interface_mm2(pieces: Any, side_mm2: Any) -> Any:
    """Area that a die in ``pieces`` needs for the interfaces between them: a row of pieces, two sides at every cut.

    ``side_mm2`` counts up to a quarter of a reticle, so that pieces have room for what they are made for.
    """
    return 2 * (pieces - 1) * np.minimum(side_mm2, RETICLE_MM2 / 4)


def least_whole_mm2(die_mm2: Any, side_mm2: Any) -> Any:
    """Area of a die in as few pieces as fit into reticles, with the interfaces between them; of many, arrays."""
    found = np.full(np.broadcast(die_mm2, side_mm2).shape, np.inf)
    for pieces in _numbers_of_pieces():
        whole_mm2 = die_mm2 + interface_mm2(pieces, side_mm2)
        found = np.where((whole_mm2 <= pieces * RETICLE_MM2) & np.isinf(found), whole_mm2, found)
        if np.isfinite(found).all():
            break
    return found


def machine_cost(
    *,
    die_mm2: Any,
    dies: int,
    stacks_per_die: Any,
    hbm_bytes_per_die: float,
    side_mm2: Any = 0.0,
    across_bytes_per_s: Any = 0.0,
    estimates: CostEstimates | None = None,
    share_good: Callable[[Any, int], Any] | None = None,
    pieces: int | None = None,
    packaged: bool = False,
    finished: bool = False,
    monolithic: bool = False,
    beside: Beside = NOTHING_BESIDE,
) -> Making:
    """The least price of a machine: ``dies``, ``test``, ``hbm``, ``carrier``, ``cables`` between carriers, ``joining``
    of the pieces of a die, and ``bonding`` (loss from failed bonds).

    die_mm2: of a die in one piece; side_mm2: area of one side of an interface between two pieces; across_bytes_per_s:
    bandwidth each way from one carrier to the next; share_good: of pieces, by their area and number a die; None: those
    without a defect. These three and ``stacks_per_die`` may be arrays: of many machines. ``stacks_per_die``: on the
    carrier; ``pieces``: of a die; None: as many as make it cheapest. ``packaged``: a package may be the carrier;
    ``finished``: with its assembly; ``monolithic``: the dies are parts of wafers that are not cut, all of
    which are good, as spare cores replace those with defects (Cerebras, 2025: 900,000 of 970,000 cores of a WSE-3 are
    in use); ``beside``: each die.
    """
    estimates = estimates or CostEstimates()
    carrier_usd = estimates.carrier_usd.value
    cables_usd = across_bytes_per_s * 8 / GB * estimates.cable_usd_per_gbit_per_s.value  # to the next carrier
    wafer_usd, tested = estimates.wafer_usd.value, 1 + estimates.test_share.value
    hbm_usd = dies * hbm_bytes_per_die / GB * estimates.hbm_usd_per_gb.value
    if monolithic:
        wafers = np.ceil(dies * die_mm2 / CARRIER_MM2)
        usd = {"dies": wafers * wafer_usd, "test": wafers * wafer_usd * estimates.test_share.value, "hbm": hbm_usd,
               "carrier": 0.0 * wafers, "cables": (wafers - 1) * cables_usd}  # fmt: skip
        return Making(usd | ({"beside": dies * beside.usd} if beside.usd else {}), np.ones_like(wafers), wafers)

    def made(pieces: Any, tested_usd: Any, whole_mm2: Any) -> tuple[Any, Any, Any]:
        """Number of carriers, price of one, and share of the price of all parts that failed bonds add."""
        parts_usd = dies * tested_usd + dies * beside.usd + hbm_usd
        area_mm2 = dies * (whole_mm2 + stacks_per_die * HBM_STACK_MM2 + beside.carrier_mm2)
        lost = -np.log1p(-estimates.bond_loss.value) * dies * (pieces + stacks_per_die + beside.bonds)
        wafers = _cheapest_carriers(
            parts_usd - cables_usd, carrier_usd + cables_usd, lost, np.ceil(area_mm2 / CARRIER_MM2)
        )
        fits = packaged & (area_mm2 <= PACKAGE_MM2)
        within_mm2 = np.minimum(area_mm2, PACKAGE_MM2)
        package_usd = carrier_usd / dies_per_wafer(within_mm2)
        if finished:
            package_usd = within_mm2 * estimates.package_usd_per_mm2.value
        carriers, each_usd = np.where(fits, 1, wafers), np.where(fits, package_usd, carrier_usd)
        return carriers, each_usd, np.expm1(lost / carriers)

    shape = np.broadcast(die_mm2, side_mm2, across_bytes_per_s, stacks_per_die).shape
    piece_usd = estimates.piece_usd.value
    best = {name: np.full(shape, np.inf) for name in ("price", "pieces", "die_usd")}
    for number in _numbers_of_pieces() if pieces is None else (pieces,):
        whole_mm2 = die_mm2 + interface_mm2(number, side_mm2)
        piece_mm2 = np.minimum(whole_mm2 / number, RETICLE_MM2)
        good = die_yield(piece_mm2, estimates) if share_good is None else share_good(piece_mm2, number)
        die_usd = number * wafer_usd / (dies_per_wafer(piece_mm2) * good)
        price = die_usd * tested + (number - 1) * piece_usd
        better = ((whole_mm2 <= number * RETICLE_MM2) | (pieces is not None)) & (price < best["price"])
        found = {"price": price, "pieces": number, "die_usd": die_usd}
        best = {name: np.where(better, found[name], known) for name, known in best.items()}
        # No larger number is cheaper than one more piece, whose wafers have no edge and no defect.
        if np.all(die_mm2 * wafer_usd / WAFER_MM2 * tested + number * piece_usd >= best["price"]):
            break
    whole_mm2 = die_mm2 + interface_mm2(best["pieces"], side_mm2)
    carriers, carrier, added = made(best["pieces"], best["price"], whole_mm2)
    dies_usd = dies * best["die_usd"]
    parts = {
        "dies": dies_usd,
        "test": dies_usd * estimates.test_share.value,
        "hbm": hbm_usd,
        "carrier": carriers * carrier,
        "cables": (carriers - 1) * cables_usd,
    }
    if np.any(best["pieces"] > 1):
        parts["joining"] = dies * (best["pieces"] - 1) * piece_usd
    if finished:
        parts["assembly"] = np.full(shape, estimates.assembly_usd.value)
    if beside.usd:
        parts["beside"] = np.full(shape, dies * beside.usd)
    lost_usd = sum(each for name, each in parts.items() if name != "assembly") * added
    return Making(parts | {"bonding": lost_usd}, best["pieces"], carriers)


def _numbers_of_pieces() -> Iterator[int]:
    """All up to a carrier full of reticles, then doubled: the same for every die, as the law of prices needs."""
    most = int(CARRIER_MM2 / RETICLE_MM2)
    yield from range(1, most + 1)
    for _ in range(20):
        most *= 2
        yield most


def _cheapest_carriers(fixed_usd: Any, each_usd: Any, lost: Any, least: Any) -> Any:
    """Number of carriers from ``least`` upwards with the lowest (fixed + each × number) × exp(lost / number)."""
    inner = lost**2 + 4 * fixed_usd * lost / each_usd
    root = (lost + np.sqrt(np.maximum(inner, 0))) / 2  # where the derivative is 0
    best, price = least, np.inf
    for number in (least, np.maximum(np.floor(root), least), np.maximum(np.floor(root) + 1, least)):
        found = (fixed_usd + number * each_usd) * np.exp(lost / number)
        best, price = np.where(found < price, number, best), np.minimum(found, price)
    return best
