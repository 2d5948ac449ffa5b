"""Times of a kind that nobody measured on a GPU: a roofline with a stated range.

The rates are shares of the datasheet's that measured kernels of the same family reach. Half and twice the time is the
range that B200's measured scans of Mamba-2 and the delta rules of six GPUs fall in (docs/iteration.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from archsim.specs.deployment import Precision
from calibration.laws.expert_gemm import Rates
from calibration.laws.laws import Laws

NS_PER_S = 1e9
# Shares of the peak of BF16 and of HBM's bandwidth, and a launch: medians of kernels that are near neither floor in
# the sets of sparse and linear attention (calibration.fit.linear).
COMPUTE_SHARE, MEMORY_SHARE, LAUNCH_NS = 0.35, 0.5, 5000.0
RANGE = 2.0  # measured times lie between 1/RANGE and RANGE of it


@dataclass(frozen=True, eq=False)
class RooflineTimes:
    """``AttentionTimes`` by FLOP and bytes alone; everything is outside what was measured."""

    kind: str
    work: Callable[..., tuple[np.ndarray, np.ndarray]]
    phase: str
    tp: int
    kv_dtype: str
    flop_per_s: float
    bytes_per_s: float
    library: str = "roofline"
    whole: bool = False

    @property
    def note(self) -> str:
        return f"{self.kind} attention: a roofline, not measured; the time may be {RANGE:g} times less or more"

    def ns(self, requests: ArrayLike, new: ArrayLike, context: ArrayLike) -> np.ndarray:
        requests = np.asarray(requests, float)
        flop, moved = self.work(self.phase, self.tp, requests, new, context, self.kv_dtype)
        ns = LAUNCH_NS + np.maximum(flop / self.flop_per_s, moved / self.bytes_per_s) * NS_PER_S
        return np.where(requests > 0, ns, 0.0)

    def outside(self, requests: ArrayLike, context: ArrayLike) -> np.ndarray:
        return np.ones(np.broadcast(np.asarray(requests), np.asarray(context)).shape, bool)


def roofline(
    kind: str,
    work: Callable[..., tuple[np.ndarray, np.ndarray]],
    laws: Laws,
    phase: str,
    tp: int,
    precision: Precision,
    rates: Rates | None,
) -> RooflineTimes:
    """At the rates of the calibration's GPU, or of the die it stands for."""
    reference = laws.calibration.reference
    compute, memory = laws.scale_of("bf16", rates)
    flop_per_s = reference.peak_flop_per_s["bf16"] * compute * COMPUTE_SHARE
    return RooflineTimes(
        kind, work, phase, tp, precision.kv, flop_per_s, reference.hbm_bytes_per_s * memory * MEMORY_SHARE
    )
