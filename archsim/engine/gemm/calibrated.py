"""``gemm: calibrated``: every slice is a GEMM of its own, as long as it was measured.

A measured GEMM reads its weights from HBM, but the engine streams weights itself. To count nothing twice, a measured
time T is split by what the engine does when the slice comes from the die's own HBM without contention
(docs/engine.md):

======== ====================================================================================================
lead     LLC miss, HBM latency, first segment: before the array may start
stream   the rest of the slice at the HBM's rate, while the array works
multiply FLOP over the rate of the fitted law (never above the die's peak), overlapped with the stream
drain    what is left of T after the stream, if the stream takes longer than the multiplication: launch, filling
         and emptying of pipelines. Otherwise as much as if the multiplication took no longer than the stream
======== ====================================================================================================

A slice that is there occupies the array for T less lead, and less the time by which the stream exceeds the
multiplication. For one that is not, the GEMM ends ``drain`` after the last byte at the earliest. A single slice takes
T; for one behind others, the time for which the array waited in the measurement drops out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from archsim.engine.gemm.times import GemmTimes
from archsim.engine.machine import NS_PER_S
from archsim.engine.state import Machine
from archsim.specs.loading.calibrations import calibration_digest, calibration_named
from calibration.laws.expert_gemm import ExpertGemm, Rates
from calibration.laws.laws import Laws


class _Die(NamedTuple):
    """Properties of a die that the fitted times depend on."""

    dtype: str
    library: str | None
    rates: Rates


class Calibrated:
    """``gemm: calibrated``: times fitted to measurements, scaled to the peak and the HBM of the die.

    ``calibrated_ns``: total GEMM time; ``extrapolated_ns``: how much of it is at sizes that were not measured.
    ``launched`` False: without the launch of a kernel, as what starts the products is not a GPU's. Raises LawMissing (a
    SpecError) where the calibration has no table for the die's dtype.
    """

    law = ""
    least_ns_per_token = None

    def __init__(self, system, model, machine: Machine, library: str | None = None, launched: bool = True):
        self.calibrated_ns = self.extrapolated_ns = 0.0
        self._machine = machine
        widths = (model.expert_ffn, model.shared_ffn) if model.shared_experts else (model.expert_ffn,)
        compute = system.compute
        die = _Die(compute.dtype, library, Rates(compute.peak_flop_per_s, system.hbm.bandwidth_bytes_per_s))
        digest = calibration_digest(compute.calibration)
        self._experts = [_expert(compute.calibration, digest, model.hidden, ffn, die) for ffn in widths]
        self._launched = launched
        peak = compute.peak_flop_per_s / NS_PER_S
        self._least_ns_per_token = np.array([2.0 * model.hidden * ffn / peak for ffn in widths])

    def of(self, tokens: np.ndarray, routed, read_bytes, die, arrived: np.ndarray | None = None) -> GemmTimes:
        """See ``ShareOfPeak.of``."""
        fitted_ns, low, high = np.empty(len(tokens)), np.empty(len(tokens)), np.empty(len(tokens))
        multiply_ns, balanced_ns = np.empty(len(tokens)), np.empty(len(tokens))
        lead_ns, stream_ns = read_ns(self._machine, read_bytes)
        kind = 1 - routed
        for which, expert in enumerate(self._experts):
            rows = np.flatnonzero(kind == which)
            fitted_ns[rows] = expert.times(tokens[rows])
            if not self._launched:
                fitted_ns[rows] = np.maximum(fitted_ns[rows] - expert.table.law.launch_ns, 0.0)
            low[rows], high[rows], multiply_ns[rows] = expert.low, expert.high, tokens[rows] * expert.ns_per_token
            balanced_ns[rows] = fitted_ns[rows] * _share_if_streamed(expert, tokens[rows], stream_ns[rows])
            self.calibrated_ns += fitted_ns[rows].sum()
            self.extrapolated_ns += fitted_ns[rows][expert.extrapolates(tokens[rows])].sum()
        left_ns = fitted_ns - lead_ns
        multiply_ns = np.maximum(np.minimum(multiply_ns, left_ns), tokens * self._least_ns_per_token[kind])
        compute_ns = np.maximum(left_ns - np.maximum(stream_ns - multiply_ns, 0.0), multiply_ns)
        drain_ns = np.clip(balanced_ns - lead_ns - stream_ns, 0.0, compute_ns)
        return GemmTimes(compute_ns, drain_ns, fitted_ns * low, fitted_ns * high, multiply_ns)


def read_ns(machine: Machine, read_bytes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Engine time of a slice from the die's own HBM without contention, float64: (until compute may start, the rest).

    ``read_bytes``: int64[entry], of a slice.
    """
    if machine.first_bytes == machine.slice_bytes:
        first_bytes = read_bytes
    elif machine.whole_ns:  # reserved: what a read carries along comes before the segments of the slice
        first_bytes = np.maximum(read_bytes - (machine.slice_bytes - machine.first_bytes), 0)
    else:
        first_bytes = np.minimum(read_bytes, machine.first_bytes)
    lead_ns = machine.llc_miss_ns + machine.hbm_latency_ns + first_bytes / machine.hbm_bytes_per_ns
    return lead_ns, (read_bytes - first_bytes) / machine.hbm_bytes_per_ns


def _share_if_streamed(expert: ExpertGemm, tokens: np.ndarray, stream_ns: np.ndarray) -> np.ndarray:
    """Share of a time that is left if the multiplication takes no longer than the stream, float64[entry]."""
    share, multiply_ns = np.ones(len(tokens)), tokens * expert.ns_per_token
    rows = np.flatnonzero((multiply_ns > stream_ns) & (stream_ns > 0.0))
    if len(rows):
        compute = expert.scale.compute
        faster = compute * multiply_ns[rows] / stream_ns[rows]
        share[rows] = expert.law_ns(tokens[rows], faster) / expert.law_ns(tokens[rows], compute)
    return share


@lru_cache(maxsize=64)
def _expert(name: str | None, digest: str, hidden: int, ffn: int, die: _Die) -> ExpertGemm:
    """The fitted GEMM, cached: kriging for a shape without measurements takes tenths of a second. ``digest``: of the
    calibration's file.
    """
    return Laws(calibration_named(name)).expert_gemm(hidden, ffn, dtype=die.dtype, rates=die.rates, library=die.library)
