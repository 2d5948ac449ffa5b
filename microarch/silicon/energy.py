"""Energy of a run by block, from its activity: bits moved, FLOP, time.

==============  ========================================================================================
block           energy
==============  ========================================================================================
``hbm``         bits read and written × energy of a DRAM bit
``d2d``         bits × hops × (PHY + wire across a die)
``llc``         bits in and out × (SRAM access + wire across half a die)
``compute``     FLOP × energy of a FLOP; FP8 at half that of 16 bits, as it has twice the rate at equal power
``decision``    power of the tables and cores that decide × the time for which they do
``idle``        leakage and clocks, those of HBM included: area × power density × time
==============  ========================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

from microarch.silicon.estimates import Estimate, Estimates
from microarch.silicon.technology import N5

J_PER_PJ = 1e-12
SIXTEEN_BIT = 2  # bytes of the data type of the FLOP energies
_MIB_BITS = 8 * 2**20
_WORD_BITS = 64
_JOUPPI = "Jouppi et al., ISCA 2021, table 2 (7 nm; 0.7 of it in 5 nm)"
# What is measured of whole GPUs. An H100 (814 mm2) sustains about 700 TFLOP/s in BF16 at its limit of 700 W: it runs
# at 800 until the limit takes effect (aiconfigurator's sweeps of GEMMs with more than 8,192 rows). Idle it takes about
# 70 W. Decode on an H200, the same die, takes 137 to 300 W (Ma et al., The Illusion of Power Capping in LLM Decode,
# arXiv 2605.11999).
_HOPPER_MM2 = 814
_SUSTAINED_W, _SUSTAINED_TFLOP_PER_S = 700, 700
_IDLE_W, _LEAST_DECODE_W = 70, 137
_STATIC_W = sqrt(_IDLE_W * _LEAST_DECODE_W)
_B200_W, _B200_TFLOP_PER_S = 1000, 2250  # NVIDIA datasheet: board power, dense BF16 peak, which it cannot sustain


@dataclass(frozen=True)
class EnergyEstimates(Estimates):
    hbm_pj_per_bit: Estimate = Estimate(
        6.0,
        3.9,
        7.0,
        "pJ/bit",
        "low: the device alone (O'Connor et al., Fine-Grained DRAM, MICRO 2017: HBM2, 3.9); about 6 to 7 with the "
        "GPU's PHY and controller",
    )
    d2d_pj_per_bit: Estimate = Estimate(
        0.3,
        0.25,
        0.6,
        "pJ/bit",
        "UCIe: 0.25 to 0.3 in advanced, 0.5 to 0.6 in standard packages (Das Sharma, Hot Interconnects 2025)",
    )
    wire_pj_per_bit_mm: Estimate = Estimate(
        0.08, 0.05, 0.16, "pJ/bit/mm", "assumed: on-chip wires with repeaters, 14 to 5 nm, as in talks by W. Dally"
    )
    sram_pj_per_bit: Estimate = Estimate(
        N5.access_pj(_MIB_BITS, _WORD_BITS) / _WORD_BITS, 0.1, 0.3, "pJ/bit", f"{_JOUPPI}: 1 MB bank, 64 bits"
    )
    flop_pj: Estimate = Estimate(
        (_SUSTAINED_W - _STATIC_W) / _SUSTAINED_TFLOP_PER_S,
        _B200_W / _B200_TFLOP_PER_S,
        _SUSTAINED_W / _SUSTAINED_TFLOP_PER_S,
        "pJ/FLOP in 16 bits",
        "an H100 at 700 TFLOP/s in BF16 and 700 W, without what it takes idle; low: B200 at its limit of 1,000 W and "
        "its peak; high: the H100 with all it takes",
    )
    idle_w_per_mm2: Estimate = Estimate(
        _STATIC_W / _HOPPER_MM2,
        _IDLE_W / _HOPPER_MM2,
        _LEAST_DECODE_W / _HOPPER_MM2,
        "W/mm2",
        "low: an idle H100 at about 70 W; high: the least that decode on an H200 takes, 137 W (arXiv 2605.11999); "
        "between them, geometric mean; HBM included, over 814 mm2",
    )


@dataclass(frozen=True)
class Activity:
    """Activity of a run, summed over all dies."""

    time_s: float
    hbm_bytes: float
    d2d_byte_hops: float  # bytes times the links that they crossed
    llc_bytes: float  # written and read
    flop: float
    decision_s: float  # time for which the deciding hardware was active
    tokens: float  # passed through all MoE layers


def run_energy(
    activity: Activity,
    *,
    dtype_bytes: int,
    die_mm2: float,
    dies: int,
    decision_w: float,
    estimates: EnergyEstimates | None = None,
) -> Mapping[str, float]:
    """Block → J of a run. ``decision_w``: power of the tables and cores that decide, of all dies together."""
    known = {name: each.value for name, each in (estimates or EnergyEstimates()).named().items()}
    side_mm = sqrt(die_mm2)
    llc_pj = known["sram_pj_per_bit"] + known["wire_pj_per_bit_mm"] * side_mm / 2
    hop_pj = known["d2d_pj_per_bit"] + known["wire_pj_per_bit_mm"] * side_mm
    return {
        "hbm": 8 * activity.hbm_bytes * known["hbm_pj_per_bit"] * J_PER_PJ,
        "d2d": 8 * activity.d2d_byte_hops * hop_pj * J_PER_PJ,
        "llc": 8 * activity.llc_bytes * llc_pj * J_PER_PJ,
        "compute": activity.flop * known["flop_pj"] * dtype_bytes / SIXTEEN_BIT * J_PER_PJ,
        "decision": activity.decision_s * decision_w,
        "idle": known["idle_w_per_mm2"] * die_mm2 * dies * activity.time_s,
    }
