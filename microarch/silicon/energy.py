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
``busy``        what a die draws beyond waiting while kernels run that multiply little: area × time without
                multiplication × a density, and another that rises with the rows of the kernels
``idle``        leakage and clocks, those of HBM included: area × power density × time
==============  ========================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from microarch.silicon import die_area, technology
from microarch.silicon.estimates import Estimate, Estimates
from microarch.silicon.heat import voltage

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
_SRAM_PJ = technology.N5.access_pj(_MIB_BITS, _WORD_BITS) / _WORD_BITS
_WIRE_PJ_PER_MM = 0.08
_CACHED_PJ = 2 * (_SRAM_PJ + _WIRE_PJ_PER_MM * sqrt(die_area.GH100_MM2) / 2)  # of a bit into the L2 and out of it
# What kernels draw that multiply little, W/mm2, and what those of many rows draw beyond: fitted together to the served
# power of eight B200 (InferenceX, DeepSeek-V4-Pro in FP4 under vLLM, 8,192 and 1,024 tokens, 20 points of 1 to 512
# clients in three ways to divide the model, and Qwen3.5-397B in FP8 under SGLang, 1 to 4 clients; September 2026). Of
# the 23 points, each of the four groups was also predicted from the others: 3.6 % off on average, 13.7 % at most.
_BUSY, _CROWDED = 0.032, 0.198
CROWDED_ROWS = 1024  # at which half of it is reached; chosen among 16, 64, 256, 1,024 and 4,096 by the groups left out
SUSTAINED_SHARE = 669 / 989  # of its peak that an H100 sustains in products of 8,192 rows: kernels do nothing else then
_BUSY_W = _BUSY * die_area.GH100_MM2
_READ_PJ = (_READING_W - _WAITING_W - _BUSY_W) / _READ_TBIT_PER_S  # of a bit from HBM to an SM
_SKINNY_PJ = (_SKINNY_W - _WAITING_W - _BUSY_W) / _SKINNY_TBIT_PER_S
_SUSTAINED_FLOP_W = _SUSTAINED_W - _WAITING_W - _SUSTAINED_TBIT_PER_S * _READ_PJ
# Driver's clocks of that H100: up to 1,980 MHz, also in products with few rows; 1,500 MHz in those of 8,192 rows, which
# its limit holds there. A FLOP has the voltage of the clock at which it was measured.
CLOCK_MHZ = 1500  # of the energy of a FLOP
BOOST = 1980 / CLOCK_MHZ
# Of the voltage at the full clock, at no clock; 0 to 0.8 was tried. Chosen by the least error on the same 26 works of an
# H100 and an H200 that `archsim.evidence.power` reports, so these do not test it: 6 % off at most; 12 % with 0.66, an
# RTX PRO 6000's.
HOPPER_AT_NO_CLOCK = 0.0
# Energy of an operation at the full clock over that at CLOCK_MHZ
BOOSTED = 1 / voltage(1 / BOOST, HOPPER_AT_NO_CLOCK) ** 2
_SKINNY_TFLOP_PER_S = 2.82  # products of BF16 with one row: 2 FLOP for every weight of 2 bytes
# Rows of the smallest tile of Hopper's tensor cores (PTX ISA, wgmma: M is 64); an expert's last tile may be part empty
TILE_ROWS = 64
_PADDING = (
    (_SKINNY_W - _WAITING_W - _BUSY_W - _SKINNY_TBIT_PER_S * _READ_PJ)
    / (_SKINNY_TFLOP_PER_S * BOOSTED)
    / (_SUSTAINED_FLOP_W / _SUSTAINED_TFLOP_PER_S)
    - 1
) / (TILE_ROWS - 1)
_B200_W, _B200_TFLOP_PER_S = 1000, 2250  # NVIDIA datasheet: board power, dense BF16 peak, which it cannot sustain


@dataclass(frozen=True)
class EnergyEstimates(Estimates):
    hbm_pj_per_bit: Estimate = Estimate(  # read or written
        _READ_PJ - _CACHED_PJ,
        6.0,
        _SKINNY_PJ - _CACHED_PJ,
        "pJ/bit",
        "an H100 that reads 3.03 TB/s, 392 W, without what it draws waiting and its L2; high: the same of GEMMs "
        "with one row; low: device, PHY and controller (O'Connor et al., MICRO 2017: 3.9 for HBM2 alone)",
    )
    d2d_pj_per_bit: Estimate = Estimate(  # over one link between dies
        0.3,
        0.25,
        0.6,
        "pJ/bit",
        "UCIe: 0.25 to 0.3 in advanced, 0.5 to 0.6 in standard packages (Das Sharma, Hot Interconnects 2025)",
    )
    wire_pj_per_bit_mm: Estimate = Estimate(  # along a wire of a die
        _WIRE_PJ_PER_MM,
        0.05,
        0.16,
        "pJ/bit/mm",
        "assumed: on-chip wires with repeaters, 14 to 5 nm, as in talks by W. Dally",
    )
    # read or written in an LLC
    sram_pj_per_bit: Estimate = Estimate(_SRAM_PJ, 0.1, 0.3, "pJ/bit", f"{_JOUPPI}: 1 MB bank, 64 bits")
    flop_pj: Estimate = Estimate(  # of a product
        _SUSTAINED_FLOP_W / _SUSTAINED_TFLOP_PER_S,
        _B200_W / _B200_TFLOP_PER_S,
        _SUSTAINED_W / _SUSTAINED_TFLOP_PER_S,
        "pJ/FLOP in 16 bits",
        "an H100 at 669 TFLOP/s in BF16 and 690 W, without what it draws waiting and for HBM; low: B200 at its limit "
        "of 1,000 W and its peak; high: the H100 with all it draws",
    )
    padding_pj: Estimate = Estimate(  # of empty rows of a tile
        _PADDING * _SUSTAINED_FLOP_W / _SUSTAINED_TFLOP_PER_S, 0.24, 0.42,
        "pJ/FLOP in 16 bits of empty rows of a tile",
        "an H100 in BF16 GEMMs with one row, 486 W at 1,980 MHz, as tiles of 64 rows; low, high: the same of "
        "an H200 in BF16, and of the H100 in FP8",
    )  # fmt: skip
    idle_w_per_mm2: Estimate = Estimate(  # of a die that waits
        _WAITING_W / die_area.GH100_MM2,
        _ASLEEP_W / die_area.GH100_MM2,
        _LEAST_DECODE_W / die_area.GH100_MM2,
        "W/mm2",
        "an H100 that waits, its clocks up, 125 W; low: asleep, 70 W; high: the least that decode on an H200 takes, "
        "137 W (arXiv 2605.11999); HBM included, over 814 mm2",
    )
    busy_w_per_mm2: Estimate = Estimate(  # of a die whose kernels multiply little, beyond waiting
        _BUSY, 0.02, 0.06, "W/mm2",
        "fitted to served power of eight B200 (InferenceX, September 2026; docs/economics.md): 0.030 to 0.035 with a group left out; range: assumed, less and more by half and more",
    )  # fmt: skip
    crowded_w_per_mm2: Estimate = Estimate(  # of a die whose kernels have very many rows and multiply little, beyond busy
        _CROWDED, 0.13, 0.27, "W/mm2",
        "fitted as busy_w_per_mm2: 0.191 to 0.209 with a group left out; range: assumed, a third to each side",
    )  # fmt: skip


Amount = Any  # float, or float64[die]


@dataclass(frozen=True)
class Activity:
    """Activity of a run, summed over all dies; or float64[die] of each."""

    time_s: float  # of the run
    hbm_bytes: Amount  # read and written
    d2d_byte_hops: Amount  # bytes times the links that they crossed
    llc_bytes: Amount  # written and read
    flop: Amount  # of products
    decision_s: float  # time for which the deciding hardware was active
    tokens: float  # passed through all MoE layers
    padded_flop: Amount = 0.0  # of rows that are empty in the tiles that tensor cores multiply
    core_factor: float = 1.0  # energy of arrays and LLCs over that at full voltage
    idle_factor: float = 1.0  # energy of waiting over that at full clock, by clock, voltage and temperature
    rows: float = 0.0  # of a step, of all dies
    kernel_s: Amount = 0.0  # for which dies run kernels and do not multiply, of all dies together
    crowded_s: Amount = 0.0  # the same, each second by rows / (rows + CROWDED_ROWS) of its kernels on a die


def multiplying(flop_per_s: Any, peak_flop_per_s: Any) -> Any:
    """Share of the time that a die multiplies, by its rate and its peak."""
    return np.minimum(1.0, flop_per_s / (SUSTAINED_SHARE * peak_flop_per_s))


def run_energy(
    activity: Activity,
    *,
    dtype_bytes: float,
    die_mm2: float,
    dies: int,
    decision_w: float,
    pieces: float = 1,
    estimates: EnergyEstimates | None = None,
    cached: bool = True,
) -> Mapping[str, float]:
    """Block → J of a run. ``decision_w``: power of the tables and cores that decide, of all dies together; ``pieces``:
    of one die. HBM is spread evenly over pieces, and so are those that read it: between two of n in a row lie
    (n² − 1) / 3n cuts on average. ``cached``: whether what is read passes an LLC; memory of SRAM is one itself, and
    cores read what is beside them, so that it crosses no cut.

    Also of many machines: numbers of the activity, ``die_mm2`` and ``pieces`` may be arrays.
    """
    known = {name: each.value for name, each in (estimates or EnergyEstimates()).by_name().items()}
    side_mm = np.sqrt(die_mm2)
    llc_pj = known["sram_pj_per_bit"] + known["wire_pj_per_bit_mm"] * side_mm / 2
    llc_pj = llc_pj * activity.core_factor * cached
    hop_pj = known["d2d_pj_per_bit"] + known["wire_pj_per_bit_mm"] * side_mm
    flop_pj = activity.flop * known["flop_pj"] + activity.padded_flop * known["padding_pj"]
    flop_pj = flop_pj * activity.core_factor
    return {
        "hbm": 8 * activity.hbm_bytes * known["hbm_pj_per_bit"] * J_PER_PJ,
        "d2d": 8 * activity.d2d_byte_hops * hop_pj * J_PER_PJ,
        "llc": 8 * activity.llc_bytes * llc_pj * J_PER_PJ,
        "compute": flop_pj * dtype_bytes / SIXTEEN_BIT * J_PER_PJ,
        "decision": activity.decision_s * decision_w,
        "pieces": 8 * activity.hbm_bytes * cached * (pieces**2 - 1) / (3 * pieces) * known["d2d_pj_per_bit"] * J_PER_PJ,
        "busy": (known["busy_w_per_mm2"] * activity.kernel_s + known["crowded_w_per_mm2"] * activity.crowded_s)
        * die_mm2
        * activity.idle_factor,
        "idle": known["idle_w_per_mm2"] * die_mm2 * dies * activity.time_s * activity.idle_factor,
    }


# ruff: noqa: E501  (one row a coefficient: a table is read across)
