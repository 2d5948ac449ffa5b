"""``gemm: tables`` and ``roofline``: a share of peak that depends on the number of tokens."""

import numpy as np

from archsim.base.kernels import kernel
from archsim.base.units import NS_PER_S
from archsim.engine.gemm.times import GemmTimes
from archsim.engine.machine import effective_utilisation


class ShareOfPeak:
    """``gemm: tables`` and ``roofline``: a share of peak that depends on the number of tokens."""

    calibrated_ns = extrapolated_ns = 0.0
    law = ""
    least_ns_per_token = None

    def __init__(self, system, model, assumptions):
        use = effective_utilisation(system, model, assumptions)
        self._bounds, self._share = np.array(use.bounds, np.int64), np.array(use.values)
        self._peak_flop_per_ns = system.compute.peak_flop_per_s / NS_PER_S
        self._flop_per_token = 2.0 * model.hidden * model.expert_ffn, 2.0 * model.hidden * model.shared_ffn

    def of(self, tokens: np.ndarray, routed, read_bytes, die, arrived: np.ndarray | None = None) -> GemmTimes:
        """tokens, routed (0 for shared experts), read_bytes (of a slice from the die's HBM), die: int64[entry].

        ``arrived``: float64[die], distinct tokens that a dispatch brings; None without one. Grouped kernels alone ask.
        """
        compute_ns = np.empty(len(tokens))
        _at_share(tokens, routed, self._bounds, self._share, self._peak_flop_per_ns, self._flop_per_token, compute_ns)
        return GemmTimes(compute_ns, 0.0, 0.0, 0.0, compute_ns)


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
