"""Least squares with a robust loss, and how many digits the parameters of laws keep.

A fit goes on far beyond the digits that are written: the default tolerances of scipy leave weakly determined parameters
1e-4 apart between CPUs, whose numeric libraries round differently; this leaves 1e-7.
"""

from collections.abc import Callable

import numpy as np

TOLERANCE = 1e-15
LAW_DIGITS = 4  # significant, of the parameters of laws; corrections at measured points make up for what is cut


def least_squares(residuals: Callable[[np.ndarray], np.ndarray], start: np.ndarray, bounds, scale: float, steps: int):
    """scipy's result: ``x``, float64[parameter], and ``cost``. scale: residuals beyond count linearly."""
    from scipy.optimize import least_squares as scipys

    to_the_end = dict.fromkeys(("ftol", "xtol", "gtol"), TOLERANCE)
    return scipys(
        residuals, start, jac="3-point", bounds=bounds, loss="soft_l1", f_scale=scale, max_nfev=steps, **to_the_end
    )


def significant(value: float, digits: int = LAW_DIGITS) -> float:
    """Rounded to a few significant digits, so that files are small and equal on all machines."""
    return float(f"{value:.{digits}g}")
