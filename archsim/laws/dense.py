"""Products of dense layers (projections, FFN, router, LM head): from whichever table has measured the nearest shape."""

from dataclasses import dataclass

import numpy as np

from archsim.laws.choosing import LawMissing
from archsim.laws.expert_gemm import Rates, scale_to
from archsim.laws.gemm import MOST_ROWS, GemmCurve, choose_table, gemm_curve
from archsim.laws.tables import CalibrationSpec, GemmTable

TUNED_AT = np.array([1.0, 8.0, 64.0, 512.0, 4096.0])  # rows by whose mean time a library is chosen
DENSE = "-dense"  # ending of libraries whose tables hold only shapes of dense layers


@dataclass(frozen=True, eq=False)
class DenseProduct:
    """The time of one (n, k) over its rows. ``far``: the shape is outside the measured ones of its table."""

    table: GemmTable
    curve: GemmCurve
    ln_m: np.ndarray
    ln_ns: np.ndarray
    far: bool

    def ns(self, rows) -> np.ndarray:
        """float64, the shape of ``rows``; 0 for no rows."""
        rows = np.asarray(rows, float)
        some = rows > 0
        return np.where(some, np.exp(np.interp(np.log(np.where(some, rows, 1.0)), self.ln_m, self.ln_ns)), 0.0)

    def outside(self, rows) -> np.ndarray:
        """bool: the shape or the rows lie outside the measured ones."""
        rows = np.asarray(rows, float)
        return self.far | (rows > self.curve.last)


def dense_product(
    calibration: CalibrationSpec, n: int, k: int, dtype: str, rates: Rates | None = None, *, tuned: bool = False
) -> DenseProduct:
    """The product of rows by k x n weights; ``tuned``: of all libraries that measured shapes as near, the fastest, as
    engines choose kernels; else the usual one. Raises LawMissing if the calibration has no GEMM table for the dtype.

    FP8 times include the quantisation of activations where a table has them: their scales are found at run time.
    """
    there = _candidates(calibration, dtype, tuned)
    away = [_octaves(each, n, k) for each in there]
    near = [
        _product(calibration, each, n, k, rates) for each, far in zip(there, away, strict=True) if far == min(away)
    ]
    return min(near, key=lambda each: float(np.log(each.ns(TUNED_AT)).mean())) if tuned else near[0]


def _product(calibration: CalibrationSpec, table: GemmTable, n: int, k: int, rates: Rates | None) -> DenseProduct:
    curve = gemm_curve(table, n, k, calibration.reference.sms, *scale_to(calibration, table, rates))
    kept = curve.m <= MOST_ROWS
    far = curve.extrapolates or bool(table.scaled_from)
    return DenseProduct(table, curve, np.log(curve.m[kept]), np.log(curve.ns[kept]), far)


def _candidates(calibration: CalibrationSpec, dtype: str, every: bool) -> list[GemmTable]:
    """The usual table, and of the tables of dense layers (``every``: of all libraries) the usual one; of each, with
    quantisation where it exists.
    """
    found = []
    libraries = {table.library for table in calibration.gemm if every or table.library.endswith(DENSE)}
    for library in (None, *sorted(libraries)):
        for quantisation in ("included", None) if dtype.startswith("fp8") else (None,):
            try:
                found.append(choose_table(calibration, dtype, library, quantisation=quantisation))
                break
            except LawMissing:
                continue
    if not found:
        choose_table(calibration, dtype)
    return found


def _octaves(table: GemmTable, n: int, k: int) -> float:
    """Distance to the nearest measured shape."""
    return float(np.abs(np.log2(np.array(table.sizes) / (n, k))).max(axis=1).min())
