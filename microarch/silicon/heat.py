"""Steady-state temperatures of dies and their HBM: a grid of cells, each with a way into the coolant.

Heat of a cell flows up into the coolant, and sideways: within a die through its silicon, to the next die and to the
HBM beside it through the silicon of the carrier. The conductances form one sparse matrix; it is factorised once for a
machine, and a power map then takes one solve. Finite volumes with the temperature at the centre of each cell, so that
heat that comes in leaves exactly. See Incropera et al., Fundamentals of Heat and Mass Transfer, sections 3.6 (fins:
lateral conduction over a sink) and 4.4 (energy balance of a cell).
"""

# ruff: noqa: E501  (one row a coefficient: a table is read across)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from archsim.base.sums import sum
from microarch.silicon.estimates import Estimate, Estimates
from microarch.silicon.memories import HBM_STACK_MM2

MM_PER_M = 1e3
RUNAWAY_C = 1000.0  # hotter than any steady state: leakage grows faster than heat leaves
_CLOSE_K = 1e-10
_MOST_ROUNDS = 2000


@dataclass(frozen=True)
class HeatEstimates(Estimates):
    """Coefficients of leakage and conduction."""

    leakage_doubles_k: Estimate = Estimate(  # warming that doubles the leakage
        22.5,
        20.0,
        25.0,
        "K",
        "the range that designers of processors state; subthreshold leakage grows by 3 % a kelvin",
    )
    leakage_share: Estimate = Estimate(  # what leaks
        0.35,
        0.15,
        0.56,
        "of the power of a die that waits",
        "assumed; high: all that an H100 draws asleep, 70 of 125 W",
    )
    clock_share: Estimate = Estimate(  # what follows the clock
        0.44,
        0.2,
        0.44,
        "of the power of a die that waits",
        "an H100: 125 W with its clocks up, 70 W asleep; low: assumed, with gated clocks",
    )
    leakage_at_c: Estimate = Estimate(  # where the leakage is as stated
        50.0,
        35.0,
        65.0,
        "C",
        "assumed: between an H100 that waits and one at its limit, by whose powers the coefficients of energy were fitted",
    )
    lowest_voltage: Estimate = Estimate(  # where the line of voltage over clock begins, at no clock
        0.66, 0.55, 0.8, "of the voltage at full clock",
        "fitted to prompts of 39,760 tokens of Qwen3.8-27B in NVFP4 on an RTX PRO 6000 at 15 power limits of 285 to 585 W (GitHub, September 2026): 2 % off at most, 0.66 to 0.67 with a third left out; high: a GB300's GEMM at 500 of 1,400 W (facebookexperimental/triton#2023); low: assumed (works of an H100 and an H200 fit best with 0: microarch.silicon.energy)",
    )  # fmt: skip
    silicon_w_per_mk: Estimate = Estimate(  # conductivity
        118.0, 100.0, 148.0, "W/mK", "148 at 300 K (Incropera et al., table A.1), and as T^-1.3 at 85 C"
    )
    silicon_mm: Estimate = Estimate(  # thickness
        0.775, 0.1, 0.775, "mm", "a 300 mm wafer (SEMI M1), of a die and of the carrier each; low: thinned"
    )
    stack_share: Estimate = Estimate(  # spent in the stack, not on the die
        0.46,
        0.35,
        0.7,
        "of the energy of an HBM bit",
        "3.9 of 8.4 pJ are the device's (O'Connor et al., MICRO 2017), the rest is spent on the die",
    )

    def values(self) -> dict[str, float]:
        return {name: each.value for name, each in self.by_name().items()}


def voltage(clock: Any, at_no_clock: float) -> Any:
    """Share of full voltage at a share of the clock: a line from `lowest_voltage`; an operation takes its square."""
    return at_no_clock + (1 - at_no_clock) * clock


class HeatGrid:
    """Nodes that conduct heat to each other and to a coolant. ``pairs``: int64[n, 2] of nodes, ``between``: float64[n]
    W/K; ``down``: float64[node] W/K into the coolant.
    """

    def __init__(self, pairs: np.ndarray, between: np.ndarray, down: np.ndarray):
        from scipy.sparse import coo_matrix, diags
        from scipy.sparse.linalg import splu

        a, b = pairs[:, 0], pairs[:, 1]
        nodes = len(down)
        at = np.concatenate([a, b, a, b]), np.concatenate([b, a, a, b])
        values = np.concatenate([-between, -between, between, between])
        self.down = down
        self._matrix = (coo_matrix((values, at), (nodes, nodes)) + diags(down)).tocsc()
        self._solve = splu(self._matrix).solve

    def above_k(self, power_w: np.ndarray) -> np.ndarray:
        """float64[node] K above the coolant, by W in each; a second solve takes away the first's rounding."""
        found = self._solve(power_w)
        return found + self._solve(power_w - self._matrix @ found)


def neighbours(columns: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """int64[n, 2] each: cells of a grid (numbered along rows) side by side, and one above the other."""
    at = np.arange(columns * rows).reshape(rows, columns)
    beside = np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()], axis=1)
    above = np.stack([at[:-1].ravel(), at[1:].ravel()], axis=1)
    return beside, above


class Temperatures(NamedTuple):
    """C. ``die_c``: float64[die], of its hottest place; ``hbm_c``: float64[die], NaN without HBM; ``leakage_w``:
    float64[die] at these temperatures; ``cells_c``: float64[die, row, column].
    """

    die_c: np.ndarray
    hbm_c: np.ndarray
    leakage_w: np.ndarray
    cells_c: np.ndarray


class DieTemperatures:
    """Temperatures of the dies of a machine.

    ``places``: (column, row) of every die on its carrier, None for a die by itself; dies of equal ``carriers`` share
    one. ``resistance_k_per_w``: of a die, to the coolant. ``area_mm2``: of a die by block. ``cells``: on a side of a
    die. ``lateral``: whether the carrier conducts.
    """

    def __init__(
        self,
        places: Sequence[tuple[int, int] | None],
        carriers: Sequence[int],
        area_mm2: Mapping[str, float],
        stacks: int,
        resistance_k_per_w: float,
        coolant_c: float,
        cells: int = 1,
        lateral: bool = False,
        estimates: HeatEstimates | None = None,
    ):
        self._known = (estimates or HeatEstimates()).values()
        self._dies, self._cells, self._coolant_c = len(places), cells, coolant_c
        die_mm2 = sum(area_mm2.values())
        self._place = _floorplan(area_mm2, cells)
        sheet = self._known["silicon_w_per_mk"] / MM_PER_M * self._known["silicon_mm"]  # W/K of a square of a wafer
        self._grid = self._build(places, carriers, die_mm2, stacks, resistance_k_per_w, sheet, lateral)

    def _build(self, places, carriers, die_mm2, stacks, resistance_k_per_w, sheet, lateral) -> HeatGrid:
        n, dies, of_die = self._cells, self._dies, self._cells**2
        side, stack_mm2 = np.sqrt(die_mm2), stacks * HBM_STACK_MM2
        pitch, cell, carrier = np.sqrt(die_mm2 + stack_mm2), side / n, sheet if lateral else 0.0
        own = sheet + carrier
        beside, above = neighbours(n, n)
        first = np.arange(dies) * of_die
        pairs = [(first[:, None, None] + np.concatenate([beside, above])).reshape(-1, 2)]
        between = [np.full(len(pairs[0]), own)]
        if lateral:
            placed = enumerate(zip(carriers, places, strict=True))
            at = {(number, *place): die for die, (number, place) in placed if place}
            edge = 1 / (1 / own + (pitch - side) / cell / carrier)  # of a cell to that of the next die
            at_cell = np.arange(of_die).reshape(n, n)
            for (of, column, row), die in at.items():
                for step, here, there in (((1, 0), at_cell[:, -1], at_cell[:, 0]), ((0, 1), at_cell[-1], at_cell[0])):
                    other = at.get((of, column + step[0], row + step[1]))
                    if other is not None:
                        pairs.append(np.stack([first[die] + here, first[other] + there], axis=1))
                        between.append(np.full(n, edge))
            if stacks:
                stack = np.sqrt(HBM_STACK_MM2)
                edge = 1 / (0.5 / own + stack / 2 / cell / carrier)
                ends = np.concatenate([at_cell[:, 0], at_cell[:, -1]])
                for die in range(dies):
                    pairs.append(np.stack([first[die] + ends, np.full(2 * n, dies * of_die + die)], axis=1))
                    between.append(np.full(2 * n, edge))
        down = np.full(dies * of_die, 1 / resistance_k_per_w / of_die)
        self._stacks = stacks
        if stacks:
            down = np.concatenate([down, np.full(dies, stack_mm2 / die_mm2 / resistance_k_per_w)])
        return HeatGrid(np.concatenate(pairs), np.concatenate(between), down)

    def of(self, blocks_w: Mapping[str, np.ndarray], stacks_w: np.ndarray, leakage_w: np.ndarray) -> Temperatures:
        """``blocks_w``: block of a die → float64[die] W, spread over the place of the block, others over the die;
        ``stacks_w``: float64[die] of its HBM; ``leakage_w``: float64[die] at the temperature that it was measured at.

        Infinite where leakage runs away.
        """
        known, of_die, dies = self._known, self._cells**2, self._dies
        spread = self._place[""]
        fixed = sum(
            np.outer(np.broadcast_to(watt, dies), self._place.get(block, spread)) for block, watt in blocks_w.items()
        )
        leaking = np.repeat(np.asarray(leakage_w, float) / of_die, of_die).reshape(dies, of_die)
        celsius = np.full((dies, of_die), self._coolant_c)
        stacks = np.broadcast_to(stacks_w, dies) if self._stacks else np.zeros(0)
        above_k = np.zeros(0)
        for _ in range(_MOST_ROUNDS):
            hot = leaking * 2 ** (np.minimum(celsius - known["leakage_at_c"], RUNAWAY_C) / known["leakage_doubles_k"])
            above_k = self._grid.above_k(np.concatenate([(fixed + hot).ravel(), stacks]))
            before, celsius = celsius, self._coolant_c + above_k[: dies * of_die].reshape(dies, of_die)
            if celsius.max() > RUNAWAY_C:
                celsius = np.full_like(celsius, np.inf)
                break
            if np.abs(celsius - before).max() < _CLOSE_K:
                break
        hbm_c = self._coolant_c + above_k[dies * of_die :] if self._stacks else np.full(dies, np.nan)
        cells_c = celsius.reshape(dies, self._cells, self._cells)
        return Temperatures(celsius.max(axis=1), hbm_c, hot.sum(axis=1), cells_c)


# Blocks in rows across a die, the same above and below its middle: interfaces at its edges, arrays in the middle
_ROWS = ("hbm", "d2d", "llc")


def _floorplan(area_mm2: Mapping[str, float], cells: int) -> Mapping[str, np.ndarray]:
    """Block → share of its power in each cell, float64[cell]; '' for power that is spread over the die."""
    die_mm2 = sum(area_mm2.values())
    edges, at = {}, 0.0
    for block in _ROWS:
        height = area_mm2.get(block, 0.0) / die_mm2 / 2
        edges[block] = [(at, at + height), (1 - at - height, 1 - at)]
        at += height
    edges["compute"], edges[""] = [(at, 1 - at)], [(0.0, 1.0)]
    lines = np.arange(cells + 1) / cells
    plan = {}
    for block, strips in edges.items():
        both = (np.minimum(lines[1:], high) - np.maximum(lines[:-1], low) for low, high in strips)
        inside = sum(np.clip(each, 0, None) for each in both)
        plan[block] = np.repeat(inside / inside.sum() / cells if inside.sum() else np.full(cells, 1 / cells**2), cells)
    return plan
