"""Energy of a run by block, from its activity: bits moved, FLOP, time.

==============  ========================================================================================
block           energy
==============  ========================================================================================
``hbm``         bits read and written × energy of a DRAM bit
``d2d``         bits × hops × (PHY + wire across a die)
``llc``         bits in and out × (SRAM access + wire across half a die)
``compute``     FLOP × energy of a FLOP; FP8 at half that of 16 bits, as it has twice the rate at equal power; an empty
                row of a tile takes a share of what a row takes
``decision``    power of the tables and cores that decide × the time for which they do
``pieces``      bits of HBM × cuts that they cross, in a row of the pieces of a die × PHY
``idle``        leakage and clocks, those of HBM included: area × power density × time
==============  ========================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from archsim.base.sums import sum
from microarch.silicon.area import N5
from microarch.silicon.cost import GH100_MM2, HBM_STACK_MM2, Estimate, Estimates
from microarch.silicon.synthesis import Synthesised

# ---- energy

# ruff: noqa: E501  (one row a coefficient: a table is read across)


J_PER_PJ = 1e-12
SIXTEEN_BIT = 2  # bytes of the data type of the FLOP energies
_MIB_BITS = 8 * 2**20
_WORD_BITS = 64
_JOUPPI = "Jouppi et al., ISCA 2021, table 2 (7 nm; 0.7 of it in 5 nm)"
# What is measured of a whole H100 SXM (814 mm2) at steady work, by ``python -m calibration.measure power``;
# docs/economics.md has the table. Waiting for work, its clocks up, it draws 125 W (70 asleep). Reading 3.03 TB/s from
# HBM it draws 392 W, in products with one row that read 2.82 TB/s 486 W, and in BF16 products of 8,192 rows 690 W,
# its limit, at 669 TFLOP/s and 0.25 TB/s. Decode on an H200, the same die, takes 137 to 300 W (Ma et al., The
# Illusion of Power Capping in LLM Decode, arXiv 2605.11999).
_ASLEEP_W, _WAITING_W, _LEAST_DECODE_W = 70, 125, 137
_READING_W, _READ_TBIT_PER_S = 392, 8 * 3.03
_SKINNY_W, _SKINNY_TBIT_PER_S = 486, 8 * 2.82
_SUSTAINED_W, _SUSTAINED_TFLOP_PER_S, _SUSTAINED_TBIT_PER_S = 690, 669, 8 * 0.25
_SRAM_PJ = N5.access_pj(_MIB_BITS, _WORD_BITS) / _WORD_BITS
_WIRE_PJ_PER_MM = 0.08
_CACHED_PJ = 2 * (_SRAM_PJ + _WIRE_PJ_PER_MM * sqrt(GH100_MM2) / 2)  # of a bit into the L2 and out of it
_READ_PJ = (_READING_W - _WAITING_W) / _READ_TBIT_PER_S  # of a bit from HBM to an SM
_SKINNY_PJ = (_SKINNY_W - _WAITING_W) / _SKINNY_TBIT_PER_S
_SUSTAINED_FLOP_W = _SUSTAINED_W - _WAITING_W - _SUSTAINED_TBIT_PER_S * _READ_PJ
# Driver's clocks of that H100: up to 1,980 MHz, also in products with few rows; 1,500 MHz in those of 8,192 rows, which
# its limit holds there. A FLOP has the voltage of the clock at which it was measured.
CLOCK_MHZ = 1500  # of the energy of a FLOP
BOOST = 1980 / CLOCK_MHZ
_SKINNY_TFLOP_PER_S = 2.82  # products of BF16 with one row: 2 FLOP for every weight of 2 bytes
# Rows of the smallest tile of Hopper's tensor cores (PTX ISA, wgmma: M is 64); an expert's last tile may be part empty
TILE_ROWS = 64
_PADDING = (
    (_SKINNY_W - _WAITING_W - _SKINNY_TBIT_PER_S * _READ_PJ)
    / (_SKINNY_TFLOP_PER_S * BOOST**2)
    / (_SUSTAINED_FLOP_W / _SUSTAINED_TFLOP_PER_S)
    - 1
) / (TILE_ROWS - 1)
_B200_W, _B200_TFLOP_PER_S = 1000, 2250  # NVIDIA datasheet: board power, dense BF16 peak, which it cannot sustain


@dataclass(frozen=True)
class EnergyEstimates(Estimates):
    hbm_pj_per_bit: Estimate = Estimate(
        _READ_PJ - _CACHED_PJ,
        6.0,
        _SKINNY_PJ - _CACHED_PJ,
        "pJ/bit",
        "an H100 that reads 3.03 TB/s, 392 W, without what it draws waiting and its L2; high: the same of products "
        "with one row; low: device, PHY and controller (O'Connor et al., MICRO 2017: 3.9 for HBM2 alone)",
    )
    d2d_pj_per_bit: Estimate = Estimate(
        0.3,
        0.25,
        0.6,
        "pJ/bit",
        "UCIe: 0.25 to 0.3 in advanced, 0.5 to 0.6 in standard packages (Das Sharma, Hot Interconnects 2025)",
    )
    wire_pj_per_bit_mm: Estimate = Estimate(
        _WIRE_PJ_PER_MM,
        0.05,
        0.16,
        "pJ/bit/mm",
        "assumed: on-chip wires with repeaters, 14 to 5 nm, as in talks by W. Dally",
    )
    sram_pj_per_bit: Estimate = Estimate(_SRAM_PJ, 0.1, 0.3, "pJ/bit", f"{_JOUPPI}: 1 MB bank, 64 bits")
    flop_pj: Estimate = Estimate(
        _SUSTAINED_FLOP_W / _SUSTAINED_TFLOP_PER_S,
        _B200_W / _B200_TFLOP_PER_S,
        _SUSTAINED_W / _SUSTAINED_TFLOP_PER_S,
        "pJ/FLOP in 16 bits",
        "an H100 at 669 TFLOP/s in BF16 and 690 W, without what it draws waiting and for HBM; low: B200 at its limit "
        "of 1,000 W and its peak; high: the H100 with all it draws",
    )
    padding_pj: Estimate = Estimate(
        _PADDING * _SUSTAINED_FLOP_W / _SUSTAINED_TFLOP_PER_S, 0.24, 0.42,
        "pJ/FLOP in 16 bits of empty rows of a tile",
        "an H100 in BF16 products with one row, 486 W at 1,980 MHz, as tiles of 64 rows, V ~ f; low, high: the same of "
        "an H200 in BF16, and of the H100 in FP8",
    )  # fmt: skip
    idle_w_per_mm2: Estimate = Estimate(
        _WAITING_W / GH100_MM2,
        _ASLEEP_W / GH100_MM2,
        _LEAST_DECODE_W / GH100_MM2,
        "W/mm2",
        "an H100 that waits, its clocks up, 125 W; low: asleep, 70 W; high: the least that decode on an H200 takes, "
        "137 W (arXiv 2605.11999); HBM included, over 814 mm2",
    )


Amount = Any  # float, or float64[die]


@dataclass(frozen=True)
class Activity:
    """Activity of a run, summed over all dies; or float64[die] of each."""

    time_s: float
    hbm_bytes: Amount
    d2d_byte_hops: Amount  # bytes times the links that they crossed
    llc_bytes: Amount  # written and read
    flop: Amount
    decision_s: float  # time for which the deciding hardware was active
    tokens: float  # passed through all MoE layers
    padded_flop: Amount = 0.0  # of rows that are empty in the tiles that tensor cores multiply
    core_factor: float = 1.0  # energy of arrays and LLCs over that at full voltage
    idle_factor: float = 1.0  # energy of waiting over that at full clock, by clock, voltage and temperature


def run_energy(
    activity: Activity,
    *,
    dtype_bytes: float,
    die_mm2: float,
    dies: int,
    decision_w: float,
    pieces: float = 1,
    estimates: EnergyEstimates | None = None,
) -> Mapping[str, float]:
    """Block → J of a run. ``decision_w``: power of the tables and cores that decide, of all dies together; ``pieces``:
    of one die. HBM is spread evenly over pieces, and so are those that read it: between two of n in a row lie
    (n² − 1) / 3n cuts on average.

    Also of many machines: numbers of the activity, ``die_mm2`` and ``pieces`` may be arrays.
    """
    known = {name: each.value for name, each in (estimates or EnergyEstimates()).named().items()}
    side_mm = np.sqrt(die_mm2)
    llc_pj = known["sram_pj_per_bit"] + known["wire_pj_per_bit_mm"] * side_mm / 2
    llc_pj = llc_pj * activity.core_factor
    hop_pj = known["d2d_pj_per_bit"] + known["wire_pj_per_bit_mm"] * side_mm
    flop_pj = activity.flop * known["flop_pj"] + activity.padded_flop * known["padding_pj"]
    flop_pj = flop_pj * activity.core_factor
    return {
        "hbm": 8 * activity.hbm_bytes * known["hbm_pj_per_bit"] * J_PER_PJ,
        "d2d": 8 * activity.d2d_byte_hops * hop_pj * J_PER_PJ,
        "llc": 8 * activity.llc_bytes * llc_pj * J_PER_PJ,
        "compute": flop_pj * dtype_bytes / SIXTEEN_BIT * J_PER_PJ,
        "decision": activity.decision_s * decision_w,
        "pieces": 8 * activity.hbm_bytes * (pieces**2 - 1) / (3 * pieces) * known["d2d_pj_per_bit"] * J_PER_PJ,
        "idle": known["idle_w_per_mm2"] * die_mm2 * dies * activity.time_s * activity.idle_factor,
    }


# ---- switching
# Energy of a component's registers and clock: activity of a run (``microarch.rtl.export``) times the library's
# energies, with a free-running clock and with gated ones.
#
# Counted: clock pins of flip-flops and clock gates, changes of flip-flops with the pins that they drive, leakage. Not
# counted: logic between registers, wires, the clock tree, memories.


class Energy(NamedTuple):
    """fJ a cycle in the library's node: ``free``: the clock runs at every flip-flop; ``gated``: behind clock gates only
    where bits are written; ``changes``: of outputs; ``leakage``: at a clock.
    """

    free: float
    gated: float
    changes: float
    leakage: float

    def mw(self, clock_hz: float, gated: bool) -> float:
        """The power in mW, in 5 nm and at a clock."""
        fj = (self.gated if gated else self.free) + self.changes + self.leakage
        return fj * N5.energy_scale.value * clock_hz * 1e-12


def energy_of(found: Synthesised, clocked: float, toggled: float, clock_hz: float) -> Energy:
    """``clocked``, ``toggled``: bits a cycle, means of a run."""
    pin_fj = found.free_running_fj / found.flip_flops
    never_gated = found.flip_flops - found.gated_flip_flops
    ticking = min(found.flip_flops, never_gated + clocked)  # bits without a gate tick whether written or not
    leakage_fj = found.leakage_nw * 1e6 / clock_hz
    return Energy(found.free_running_fj, ticking * pin_fj + found.gates_fj, toggled * found.change_fj, leakage_fj)


# ---- heat
# Steady-state temperatures of dies and their HBM: a grid of cells, each with a way into the coolant.
#
# Heat of a cell flows up into the coolant, and sideways: within a die through its silicon, to the next die and to the
# HBM beside it through the silicon of the carrier. The conductances form one sparse matrix; it is factorised once for a
# machine, and a power map then takes one solve. Finite volumes with the temperature at the centre of each cell, so that
# heat that comes in leaves exactly. See Incropera et al., Fundamentals of Heat and Mass Transfer, sections 3.6 (fins:
# lateral conduction over a sink) and 4.4 (energy balance of a cell).

# ruff: noqa: E501  (one row a coefficient: a table is read across)

MM_PER_M = 1e3
RUNAWAY_C = 1000.0  # hotter than any steady state: leakage grows faster than heat leaves
_CLOSE_K = 1e-10
_MOST_ROUNDS = 2000


@dataclass(frozen=True)
class HeatEstimates(Estimates):
    """Coefficients of leakage and conduction."""

    leakage_doubles_k: Estimate = Estimate(
        22.5,
        20.0,
        25.0,
        "K",
        "the range that designers of processors state; subthreshold leakage grows by 3 % a kelvin",
    )
    leakage_share: Estimate = Estimate(
        0.35,
        0.15,
        0.56,
        "of the power of a die that waits",
        "assumed; high: all that an H100 draws asleep, 70 of 125 W",
    )
    clock_share: Estimate = Estimate(
        0.44,
        0.2,
        0.44,
        "of the power of a die that waits",
        "an H100: 125 W with its clocks up, 70 W asleep; low: assumed, with gated clocks",
    )
    leakage_at_c: Estimate = Estimate(
        50.0,
        35.0,
        65.0,
        "C",
        "assumed: between an H100 that waits and one at its limit, by whose powers the coefficients of energy were fitted",
    )
    lowest_voltage: Estimate = Estimate(
        0.65,
        0.55,
        0.75,
        "of the voltage at full clock",
        "assumed: GPUs reach their least voltage at about two thirds of their highest clock",
    )
    silicon_w_per_mk: Estimate = Estimate(
        118.0, 100.0, 148.0, "W/mK", "148 at 300 K (Incropera et al., table A.1), and as T^-1.3 at 85 C"
    )
    silicon_mm: Estimate = Estimate(
        0.775, 0.1, 0.775, "mm", "a 300 mm wafer (SEMI M1), of a die and of the carrier each; low: thinned"
    )
    stack_share: Estimate = Estimate(
        0.46,
        0.35,
        0.7,
        "of the energy of an HBM bit",
        "3.9 of 8.4 pJ are the device's (O'Connor et al., MICRO 2017), the rest is spent on the die",
    )

    def values(self) -> dict[str, float]:
        return {name: each.value for name, each in self.named().items()}


class HeatGrid:
    """Nodes that conduct heat to each other and to a coolant.

    ``pairs``: int64[n, 2] of nodes, ``between``: float64[n] W/K; ``down``: float64[node] W/K into the coolant.
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
        """Kelvins above the coolant, float64[node] of W in each node. Two solves: the second takes away what rounding
        left of the first.
        """
        found = self._solve(power_w)
        return found + self._solve(power_w - self._matrix @ found)

    def out_w(self, above_k: np.ndarray) -> float:
        """Heat into the coolant."""
        return float(self.down @ above_k)


def neighbours(columns: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of cells of a grid that touch, int64[n, 2] each: side by side, and one above the other. Cells are numbered
    along the rows.
    """
    at = np.arange(columns * rows).reshape(rows, columns)
    beside = np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()], axis=1)
    above = np.stack([at[:-1].ravel(), at[1:].ravel()], axis=1)
    return beside, above


def plane(columns: int, rows: int, square_w_per_k: float, down_w_per_k: float) -> HeatGrid:
    """A plate of square cells: conductance of a square of it, and of every cell into the coolant."""
    pairs = np.concatenate(neighbours(columns, rows))
    return HeatGrid(pairs, np.full(len(pairs), square_w_per_k), np.full(columns * rows, down_w_per_k))


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
