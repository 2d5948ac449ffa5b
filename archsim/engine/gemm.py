"""How long the GEMM of a weight slice occupies the array of a die: the strategies of the assumption ``gemm``.

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

from archsim.base.kernels import kernel
from archsim.engine.machine import NS_PER_S, effective_utilisation
from archsim.engine.state import Machine
from archsim.specs.loading.calibrations import calibration_digest, calibration_named
from calibration.laws.expert_gemm import ExpertGemm, Rates
from calibration.laws.laws import Laws


class GemmTimes(NamedTuple):
    """GEMM times of a step's entries, float64[entry] each, ns per slice; see ``archsim.engine.state.ENTRY``.

    ``low_ns`` and ``high_ns``: how much less and more the GEMM would take at its 5 % and 95 % residual.
    """

    compute_ns: np.ndarray
    drain_ns: np.ndarray | float
    low_ns: np.ndarray | float
    high_ns: np.ndarray | float


class _Die(NamedTuple):
    """Properties of a die that the fitted times depend on."""

    dtype: str
    library: str | None
    rates: Rates


class ShareOfPeak:
    """``gemm: tables`` and ``roofline``: a share of peak that depends on the number of tokens."""

    calibrated_ns = extrapolated_ns = 0.0

    def __init__(self, system, model, assumptions):
        use = effective_utilisation(system, model, assumptions)
        self._bounds, self._share = np.array(use.bounds, np.int64), np.array(use.values)
        self._peak_flop_per_ns = system.compute.peak_flop_per_s / NS_PER_S
        self._flop_per_token = 2.0 * model.hidden * model.expert_ffn, 2.0 * model.hidden * model.shared_ffn

    def of(self, tokens: np.ndarray, routed: np.ndarray, read_bytes: np.ndarray) -> GemmTimes:
        """tokens, routed (0 for shared experts), read_bytes (of a slice from the die's HBM): int64[entry]."""
        compute_ns = np.empty(len(tokens))
        _at_share(tokens, routed, self._bounds, self._share, self._peak_flop_per_ns, self._flop_per_token, compute_ns)
        return GemmTimes(compute_ns, 0.0, 0.0, 0.0)


@kernel
def _at_share(tokens, routed, bounds, share, peak_flop_per_ns, flop_per_token, compute_ns):
    """``ShareOfPeak.of``. ``bounds``: int64[n], most tokens of the first n shares; ``share``: float64[n + 1].

    ``flop_per_token``: of routed and of shared experts.
    """
    for at in range(len(tokens)):
        use = 0
        while use < len(bounds) and bounds[use] < tokens[at]:
            use += 1
        compute_ns[at] = tokens[at] * flop_per_token[0 if routed[at] else 1] / (peak_flop_per_ns * share[use])


class Calibrated:
    """``gemm: calibrated``: times fitted to measurements, scaled to the peak and the HBM of the die.

    ``calibrated_ns``: total GEMM time; ``extrapolated_ns``: how much of it is at sizes that were not measured.
    Raises LawMissing (a SpecError) where the calibration has no table for the die's dtype.
    """

    def __init__(self, system, model, machine: Machine):
        self.calibrated_ns = self.extrapolated_ns = 0.0
        self._machine = machine
        widths = (model.expert_ffn, model.shared_ffn) if model.shared_experts else (model.expert_ffn,)
        compute = system.compute
        die = _Die(compute.dtype, compute.library, Rates(compute.peak_flop_per_s, system.hbm.bandwidth_bytes_per_s))
        digest = calibration_digest(compute.calibration)
        self._experts = [_expert(compute.calibration, digest, model.hidden, ffn, die) for ffn in widths]
        peak = compute.peak_flop_per_s / NS_PER_S
        self._least_ns_per_token = np.array([2.0 * model.hidden * ffn / peak for ffn in widths])

    def of(self, tokens: np.ndarray, routed: np.ndarray, read_bytes: np.ndarray) -> GemmTimes:
        """See ``ShareOfPeak.of``."""
        fitted_ns, low, high = np.empty(len(tokens)), np.empty(len(tokens)), np.empty(len(tokens))
        multiply_ns, balanced_ns = np.empty(len(tokens)), np.empty(len(tokens))
        lead_ns, stream_ns = self._read_ns(read_bytes)
        kind = 1 - routed
        for which, expert in enumerate(self._experts):
            rows = np.flatnonzero(kind == which)
            fitted_ns[rows] = expert.times(tokens[rows])
            low[rows], high[rows], multiply_ns[rows] = expert.low, expert.high, tokens[rows] * expert.ns_per_token
            balanced_ns[rows] = fitted_ns[rows] * _share_if_streamed(expert, tokens[rows], stream_ns[rows])
            self.calibrated_ns += fitted_ns[rows].sum()
            self.extrapolated_ns += fitted_ns[rows][expert.extrapolates(tokens[rows])].sum()
        left_ns = fitted_ns - lead_ns
        multiply_ns = np.maximum(np.minimum(multiply_ns, left_ns), tokens * self._least_ns_per_token[kind])
        compute_ns = np.maximum(left_ns - np.maximum(stream_ns - multiply_ns, 0.0), multiply_ns)
        drain_ns = np.clip(balanced_ns - lead_ns - stream_ns, 0.0, compute_ns)
        return GemmTimes(compute_ns, drain_ns, fitted_ns * low, fitted_ns * high)

    def _read_ns(self, read_bytes):
        """Engine time of a slice from the die's own HBM without contention, float64: (until compute may start, the
        rest).
        """
        machine = self._machine
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


def gemm_model(system, model, assumptions, machine: Machine) -> ShareOfPeak | Calibrated:
    """The GEMM strategy of a run."""
    if assumptions.gemm == "calibrated":
        return Calibrated(system, model, machine)
    return ShareOfPeak(system, model, assumptions)
