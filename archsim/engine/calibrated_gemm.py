"""``gemm: calibrated``: every slice is a GEMM of its own, as long as it was measured.

A measured GEMM reads its weights from HBM, but the engine streams weights itself. To count nothing twice, a product
is described by times of which none depends on how fast the engine reads (docs/engine.md):

======= =====================================================================================================
compute the fitted law without the bytes of its weights: how long a slice that is there holds the array. Time in
        which an idle array waits for bytes after the request counts towards the product already
alone   the fitted time T: the product ends no sooner after it was asked for
drain   the part of compute that the last segment takes: no product ends sooner after its last byte
======= =====================================================================================================

A slice fetched alone takes T; one behind others, what of T does not read weights. Nothing is slower with less latency
or more bandwidth.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from archsim.base.units import NS_PER_S
from archsim.engine.gemm_times import GemmTimes, ManyTimes, factors_of
from archsim.engine.state import Machine
from archsim.laws.calibration_files import calibration_digest, calibration_named
from archsim.laws.die import DieFactors
from archsim.laws.gemm import ExpertGemm, Rates
from archsim.laws.laws import Laws


class _Die(NamedTuple):
    """Properties of a die that the fitted times depend on."""

    dtype: str
    library: str | None
    rates: Rates


class CalibratedGemm:
    """``gemm: calibrated``: times fitted to measurements, scaled to the peak of the die and to the bandwidth of its HBM
    (`SystemSpec.kernel_rates`).

    ``calibrated_ns``: total GEMM time; ``extrapolated_ns``: how much of it is at sizes that were not measured; ``law``:
    whose products these are. ``launched`` False: without the launch of a kernel, as what starts the products is not a
    GPU's. Raises LawMissing (a SpecError) where the calibration has no table for the die's dtype.
    """

    least_ns_per_token = None

    def __init__(self, system, model, machine: Machine, library: str | None = None, launched: bool = True):
        self.calibrated_ns = self.extrapolated_ns = 0.0
        self._machine, self._single = machine, system.compute.kernels.single
        widths = (model.expert_ffn, model.shared_ffn) if model.shared_experts else (model.expert_ffn,)
        compute = system.compute
        die = _Die(compute.dtype, library, system.kernel_rates)
        digest = calibration_digest(compute.calibration)
        self._nominal = [_expert(compute.calibration, digest, model.hidden, ffn, die) for ffn in widths]
        gpu, tables = calibration_named(compute.calibration).gpu, [each.table for each in self._nominal]
        self.law = ", ".join(dict.fromkeys(f"{gpu} {table.library} GEMMs in {table.dtype}" for table in tables))
        self._launched = launched
        peak = compute.peak_flop_per_s / NS_PER_S
        self._flop_per_token = [2.0 * model.hidden * ffn for ffn in widths]
        self._least_ns_per_token = np.array([flop / peak for flop in self._flop_per_token])
        self.run_at(factors_of(machine))

    def run_at(self, factors: DieFactors) -> None:
        self._speeds = None if factors.equal else factors.array
        self._experts = self._nominal if factors.equal else [each.on(*factors) for each in self._nominal]

    def of(self, tokens: np.ndarray, routed, read_bytes, die, arrived: np.ndarray | None = None) -> GemmTimes:
        """See ``archsim.engine.gemm.ShareOfPeak.of``."""
        alone_ns, compute_ns, started_ns, low, high = (np.empty(len(tokens)) for _ in range(5))
        kind = 1 - routed
        for which, expert in enumerate(self._experts):
            rows = np.flatnonzero(kind == which)
            left_out_ns = 0.0 if self._launched else expert.table.law.launch_ns
            on = None if self._speeds is None else die[rows]
            alone_ns[rows] = np.maximum(expert.times(tokens[rows], on) - left_out_ns, 0.0) * self._single
            compute_ns[rows] = np.maximum(expert.times_if_there(tokens[rows], on) - left_out_ns, 0.0) * self._single
            low[rows], high[rows] = expert.low, expert.high
            started_ns[rows] = expert.table.law.launch_ns - left_out_ns
            self.calibrated_ns += alone_ns[rows].sum()
            self.extrapolated_ns += alone_ns[rows][expert.extrapolates(tokens[rows])].sum()
        multiply_ns = tokens * self._least_ns_per_token[kind]
        if self._speeds is not None:
            multiply_ns = multiply_ns / self._speeds[die]
        compute_ns = np.maximum(compute_ns, multiply_ns)
        started_ns = np.minimum(started_ns, compute_ns - multiply_ns)
        drain_ns, spread = compute_ns * last_part(self._machine), (compute_ns * low, compute_ns * high)
        return GemmTimes(compute_ns, drain_ns, *spread, multiply_ns, started_ns=started_ns, alone_ns=alone_ns)

    def side_by_side(self, system, tokens, routed, read_bytes, die, arrived) -> ManyTimes:
        """See ``archsim.engine.gemm.ShareOfPeak.side_by_side``."""
        rates = system.kernel_rates
        shape = len(rates.peak_flop_per_s), len(tokens)
        alone_ns, compute_ns, multiply_ns = (np.empty(shape) for _ in range(3))
        kind = 1 - routed
        for which, expert in enumerate(self._experts):
            rows = np.flatnonzero(kind == which)
            left_out_ns = 0.0 if self._launched else expert.table.law.launch_ns
            whole_ns, there_ns = expert.side_by_side(rates, tokens[rows])
            alone_ns[:, rows] = np.maximum(whole_ns - left_out_ns, 0.0) * self._single
            compute_ns[:, rows] = np.maximum(there_ns - left_out_ns, 0.0) * self._single
            least_ns = self._flop_per_token[which] / (rates.peak_flop_per_s / NS_PER_S)
            multiply_ns[:, rows] = tokens[rows] * least_ns[:, None]
        compute_ns = np.maximum(compute_ns, multiply_ns)
        return ManyTimes(compute_ns, compute_ns * last_part(self._machine), multiply_ns, alone_ns)


def last_part(machine: Machine) -> float:
    """Share of a slice that its last segment is; 0 where slices have none."""
    segment = machine.first_bytes / machine.slice_bytes
    return segment if segment < 1.0 else 0.0


@lru_cache(maxsize=64)
def _expert(name: str | None, digest: str, hidden: int, ffn: int, die: _Die) -> ExpertGemm:
    """The fitted GEMM, cached: kriging takes tenths of a second. ``digest``: of the calibration's file."""
    return Laws(calibration_named(name)).expert_gemm(hidden, ffn, dtype=die.dtype, rates=die.rates, library=die.library)
