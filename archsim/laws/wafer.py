"""Defects and speeds of dies: one yield law for the price of a die and for drawn machines.

Defects of a die follow a Poisson law whose rate is that of its area times a gamma variable of mean 1 and shape α, so
that the share without a defect is the negative binomial yield (1 + A·D/α)^-α (Stapper; ITRS). A defect in a core kills
that core; one elsewhere kills the die. Cores and dies die where an exponential variable of their own is below their
rate, so that more defects, with the same draws, never leave more of them alive.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MM2_PER_CM2 = 100.0
MOST_SIGMAS = 4.0  # of a drawn speed: what lies outside is tested out
_NODES = 64  # of the quadrature over the rate of defects; 1e-9 at the usual areas

# A state machine multiplies a cost by how slow a die is, nominal speed over its own (microarch.rtl.allocator).
SPEED_BITS, SPEED_FRACTION = 16, 12  # of that factor, and of them behind the point: speeds of 1/16 and more, to 0.03 %


def yield_of(area_mm2, defects_per_cm2, cluster):
    """Share of dies of an area without a defect; ``cluster`` is α. Numbers or arrays."""
    return (1 + area_mm2 / MM2_PER_CM2 * defects_per_cm2 / cluster) ** -cluster


def harvested_yield(
    area_mm2: float, cores_mm2: float, defects_per_cm2: float, cluster: float, cores: int, needed: int
) -> float:
    """Share of dies without a defect beside their cores and with at least ``needed`` of ``cores`` good cores.

    ``area_mm2``: of the die, ``cores_mm2`` of it in cores. The mean over the gamma variable is taken by Gauss-Laguerre
    quadrature; ``needed`` = ``cores`` gives `yield_of`.
    """
    if not defects_per_cm2:
        return 1.0
    from scipy.special import bdtr, roots_genlaguerre

    at, weight = roots_genlaguerre(_NODES, cluster - 1)
    rate = at / cluster * defects_per_cm2 / MM2_PER_CM2
    bad = -np.expm1(-rate * cores_mm2 / cores)  # chance of a core
    good = bdtr(cores - needed, cores, bad) * np.exp(-rate * (area_mm2 - cores_mm2))
    return float((weight * good).sum() / weight.sum())


class Defects(NamedTuple):
    """The defects of a process, and the die that they hit."""

    per_cm2: float  # defects
    cluster: float  # α of their distribution
    die_mm2: float  # area of a die
    cores_mm2: float = 0.0  # area of its cores
    cores: int = 1  # how many there are
    needed: int = 1  # how many must work; 1 of 1: a defect anywhere kills the die


class Draw(NamedTuple):
    """A wafer: its number among those of a seed. What is drawn for a die does not depend on what is drawn beside it."""

    seed: int
    wafer: int

    def generator(self, what: str) -> np.random.Generator:
        """Of one kind of draws, so that others do not shift it."""
        return np.random.default_rng([self.seed, self.wafer, *what.encode()])


def good_cores(draw: Draw, dies: int, defects: Defects, shared: np.ndarray | None = None) -> np.ndarray:
    """float64[die]: share of good cores; 0: dead. ``shared``: int64[die] whose defect rate each has; None: its own."""
    generator = draw.generator("defects")
    rate = generator.gamma(defects.cluster, 1 / defects.cluster, dies) * defects.per_cm2 / MM2_PER_CM2
    if shared is not None:
        rate = rate[shared]
    alive = generator.exponential(size=dies) >= rate * (defects.die_mm2 - defects.cores_mm2)
    if not defects.cores_mm2:
        return alive.astype(float)
    core = draw.generator("cores").exponential(size=(dies, defects.cores))
    good = np.count_nonzero(core >= (rate * defects.cores_mm2 / defects.cores)[:, None], axis=1)
    return np.where(alive & (good >= defects.needed), good / defects.cores, 0.0)


def speeds(draw: Draw, what: str, sigma: float, radial: float, distance: np.ndarray) -> np.ndarray:
    """float64[die]: 1 + ``sigma`` · normal - ``radial`` · ``distance: float64[die]``² (1 at the edge)."""
    normal = np.clip(draw.generator(what).standard_normal(len(distance)), -MOST_SIGMAS, MOST_SIGMAS)
    return 1 + sigma * normal - radial * distance**2


def unbonded(draw: Draw, dies: int, bonds: int, failing: float) -> np.ndarray:
    """bool[die]: whether one of its bonds to the carrier fails."""
    return draw.generator("bonds").random(dies) < -np.expm1(bonds * np.log1p(-failing))


def dead_links(draw: Draw, links: int, failing: float) -> np.ndarray:
    """bool[link]: whether each link, both ways, is dead."""
    return draw.generator("links").random(links) < failing
