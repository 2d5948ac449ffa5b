"""Times of a kind that nobody measured on a GPU: a roofline with a stated range.

The rates are shares of the datasheet's that measured kernels of the same family reach; prompts reach less. Measured
rules (delta nets and KDA on four GPUs, Mamba-2's scan on B200) take 0.4 to 1.4 times it in decode and 0.2 to 3 in
prefill.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from archsim.base.units import NS_PER_S, WEIGHT_BYTES
from archsim.laws.gemm import Rates
from archsim.laws.laws import Laws
from archsim.specs.deployment import Precision

# Shares of the peak of BF16 and of HBM's bandwidth, the part of both that prompts reach, and a launch: medians over the
# kernels of the set of linear attention.
COMPUTE_SHARE, MEMORY_SHARE, OF_PROMPTS, LAUNCH_NS = 0.35, 0.5, 0.4, 5000.0
RANGE = 3.0  # measured times lie between 1 / RANGE and RANGE of it


@dataclass(frozen=True, eq=False)
class RooflineTimes:
    """`archsim.iteration.attention.AttentionTimes` by FLOP and bytes alone; all is outside what was measured."""

    kind: str  # of attention
    work: Callable[..., tuple[np.ndarray, np.ndarray]]  # FLOP and bytes of requests, of kind.work
    phase: str  # prefill or decode
    tp: int  # ranks that share the heads
    kv_dtype: str  # of the cache
    flop_per_s: float  # that kernels reach
    bytes_per_s: float  # of HBM that kernels reach
    launch_ns: float = LAUNCH_NS
    library: str = "roofline"  # whose times they are
    whole: bool = False  # with the projections

    @property
    def note(self) -> str:
        return f"{self.kind} attention: a roofline, not measured; the time may be {RANGE:g} times less or more"

    def ns(self, requests: ArrayLike, new: ArrayLike, context: ArrayLike) -> np.ndarray:
        requests = np.asarray(requests, float)
        flop, moved = self.work(self.phase, self.tp, requests, new, context, self.kv_dtype)
        ns = self.launch_ns + np.maximum(flop / self.flop_per_s, moved / self.bytes_per_s) * NS_PER_S
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
    """A roofline with the rates of the calibration's GPU, or of the die, by its own kernels where it has some."""
    if rates is not None and rates.own is not None:
        own, narrower = rates.own, WEIGHT_BYTES[rates.dtype or "bf16"] / WEIGHT_BYTES["bf16"]
        flop_per_s = rates.peak_flop_per_s * narrower * own.flop_share
        bytes_per_s = rates.hbm_bytes_per_s * own.byte_share
        return RooflineTimes(kind, work, phase, tp, precision.kv, flop_per_s, bytes_per_s, own.latency_ns)
    reference = laws.calibration.reference
    compute, memory = laws.scale_of("bf16", rates)
    part = OF_PROMPTS if phase == "prefill" else 1.0
    flop_per_s = reference.peak_flop_per_s["bf16"] * compute * COMPUTE_SHARE * part
    return RooflineTimes(
        kind, work, phase, tp, precision.kv, flop_per_s, reference.hbm_bytes_per_s * memory * MEMORY_SHARE * part
    )
