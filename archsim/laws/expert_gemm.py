"""The three products of an expert (gate, up, down) on a die other than the measured GPU."""

from typing import NamedTuple

import numpy as np

from archsim.base.units import NS_PER_S
from archsim.laws.choosing import LawMissing
from archsim.laws.gemm import GemmCurve, choose_table, gemm_curve, gemm_times
from archsim.laws.moe_scaling import Scale
from archsim.laws.tables import CalibrationSpec, GemmTable, MoeTable


class Rates(NamedTuple):
    """Peak rates of the modelled die."""

    peak_flop_per_s: float
    hbm_bytes_per_s: float


def scale_to(calibration: CalibrationSpec, table: GemmTable | MoeTable, rates: Rates | None) -> Scale:
    """The scale of a die; None: the measured GPU.

    Raises LawMissing if the calibration has no peak for the dtype.
    """
    reference = calibration.reference
    if table.dtype not in reference.peak_flop_per_s:
        raise LawMissing(f"calibration {calibration.gpu} has no peak for {table.dtype}")
    if rates is None:
        return Scale(1.0, 1.0)
    return Scale(
        rates.peak_flop_per_s / reference.peak_flop_per_s[table.dtype],
        rates.hbm_bytes_per_s / reference.hbm_bytes_per_s,
    )


class ExpertGemm:
    """Times of the products of one expert; gate and up are (n, k) = (ffn, hidden), down the reverse.

    ``table``: the chosen one. ``gate`` (and up), ``down``: curves. ``low``, ``high``: relative uncertainty of a time,
    from the 5 % and 95 % residuals. ``ns_per_token``: time to multiply one token by one slice at the law's rate. Raises
    LawMissing if the calibration has no table, or no peak, for the dtype.
    """

    def __init__(
        self, calibration: CalibrationSpec, hidden: int, ffn: int, dtype: str, rates: Rates | None = None,
        library: str | None = None,
    ):
        self.table = choose_table(calibration, dtype, library)
        self.scale = scale_to(calibration, self.table, rates)
        sms = calibration.reference.sms
        self.gate: GemmCurve = gemm_curve(self.table, ffn, hidden, sms, *self.scale)
        self.down: GemmCurve = gemm_curve(self.table, hidden, ffn, sms, *self.scale)
        three = (self.gate, self.gate, self.down)
        self.low = float(np.mean([1 - curve.low[0] / curve.ns[0] for curve in three]))
        self.high = float(np.mean([curve.high[0] / curve.ns[0] - 1 for curve in three]))
        self.ns_per_token = 2.0 * hidden * ffn / (self.table.law.flop_per_s * self.scale.compute) * NS_PER_S
        self._ns = np.stack([self.gate.ns, self.down.ns])
        self._there_ns = np.stack([self.gate.there_ns, self.down.there_ns])

    def times(self, tokens: np.ndarray) -> np.ndarray:
        """Mean over gate, up and down, float64[entry] ns; tokens: int64[entry]."""
        return self._mean_ns(self._ns, tokens)

    def times_if_there(self, tokens: np.ndarray) -> np.ndarray:
        """The same of weights that need not be read from HBM: no slower HBM makes them longer, nor a faster one."""
        return self._mean_ns(self._there_ns, tokens)

    def _mean_ns(self, curves: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        gate_ns, down_ns = np.empty(len(tokens)), np.empty(len(tokens))
        gemm_times(self.gate.m, curves, np.zeros(len(tokens), np.int64), tokens, gate_ns)
        gemm_times(self.gate.m, curves, np.ones(len(tokens), np.int64), tokens, down_ns)
        return (2 * gate_ns + down_ns) / 3

    def extrapolates(self, tokens: np.ndarray) -> np.ndarray:
        """bool[entry]: the weight shape or the number of tokens is outside the measured range."""
        first, last = max(self.gate.first, self.down.first), min(self.gate.last, self.down.last)
        return (self.gate.extrapolates or self.down.extrapolates) | (tokens < first) | (tokens > last)
