"""How long the products of weight slices occupy the array of a die: the strategies of the assumption ``gemm``."""

from __future__ import annotations

import numpy as np

from archsim.base import compiled, units
from archsim.engine.calibrated_gemm import CalibratedGemm
from archsim.engine.gemm_times import GemmTimes, ManyTimes, factors_of
from archsim.engine.grouped_gemm import GroupedGemm
from archsim.engine.machine import effective_utilisation
from archsim.engine.state import Machine
from archsim.laws.calibration_files import calibration_named
from archsim.laws.die import DieFactors, tables_of
from archsim.laws.gemm import choose_table

# ``gemm: tables`` and ``roofline``: a share of peak that depends on the number of tokens.


class ShareOfPeak:
    """``gemm: tables`` and ``roofline``: a share of peak that depends on the number of tokens."""

    calibrated_ns = extrapolated_ns = 0.0
    law = ""
    least_ns_per_token = None

    def __init__(self, system, model, assumptions, machine: Machine):
        self._model, self._assumptions = model, assumptions
        use = effective_utilisation(system, model, assumptions)
        self._bounds, self._share = np.array(use.bounds, np.int64), np.array(use.values)
        self._peak_flop_per_ns = system.compute.peak_flop_per_s / units.NS_PER_S
        self._flop_per_token = 2.0 * model.hidden * model.expert_ffn, 2.0 * model.hidden * model.shared_ffn
        self.run_at(factors_of(machine))

    def run_at(self, factors: DieFactors) -> None:
        """From now on, give times of dies with these rates, relative to the nominal ones."""
        self._speeds = None if factors.equal else factors.array

    def of(self, tokens: np.ndarray, routed, read_bytes, die, arrived: np.ndarray | None = None) -> GemmTimes:
        """tokens, routed (0 for shared experts), read_bytes (of a slice from the die's HBM), die: int64[entry].

        ``arrived``: float64[die], distinct tokens that a dispatch brings; None without one. Grouped kernels alone ask.
        """
        compute_ns = np.empty(len(tokens))
        _at_share(tokens, routed, self._bounds, self._share, self._peak_flop_per_ns, self._flop_per_token, compute_ns)
        if self._speeds is not None:
            compute_ns /= self._speeds[die]
        return GemmTimes(compute_ns, 0.0, 0.0, 0.0, compute_ns)

    def side_by_side(self, system, tokens, routed, read_bytes, die, arrived) -> ManyTimes:
        """What a walk reads of `of`, on many machines in turn; rates of ``system``: float64[machine]."""
        use = effective_utilisation(system, self._model, self._assumptions)
        share = np.stack([np.broadcast_to(each, np.shape(system.compute.peak_flop_per_s)) for each in use.values], 1)
        flop = tokens * np.array(self._flop_per_token)[1 - routed]
        at = np.searchsorted(self._bounds, tokens)
        compute_ns = flop / (system.compute.peak_flop_per_s[:, None] / units.NS_PER_S * share[:, at])
        return ManyTimes(compute_ns, 0.0, compute_ns)


@compiled.kernel
def _at_share(tokens, routed, bounds, share, peak_flop_per_ns, flop_per_token, compute_ns):
    """``ShareOfPeak.of``. ``bounds``: int64[n], most tokens of the first n shares; ``share``: float64[n + 1].

    ``flop_per_token``: of routed and of shared experts.
    """
    for at in range(len(tokens)):
        use = 0
        while use < len(bounds) and bounds[use] < tokens[at]:
            use += 1
        compute_ns[at] = tokens[at] * flop_per_token[0 if routed[at] else 1] / (peak_flop_per_ns * share[use])


def gemm_model(system, model, assumptions, machine: Machine) -> ShareOfPeak | CalibratedGemm | GroupedGemm:
    """The GEMM strategy of a run."""
    if assumptions.gemm == "calibrated":
        return CalibratedGemm(system, model, machine, system.compute.library)
    if assumptions.gemm == "grouped":
        return GroupedGemm(system, model, assumptions, machine)
    return ShareOfPeak(system, model, assumptions, machine)


def refuse_unmeasured(system, assumptions) -> None:
    """Raises LawMissing, as `gemm_model` would, where the calibration lacks the tables of ``gemm``."""
    compute = system.compute
    if assumptions.gemm == "calibrated":
        choose_table(calibration_named(compute.calibration), compute.dtype, compute.library)
    if assumptions.gemm == "grouped":
        tables_of(calibration_named(compute.calibration), compute.dtype, compute.library)
