"""What every strategy of the assumption ``gemm`` gives: how long entries hold the arrays of their dies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class GemmTimes(NamedTuple):
    """GEMM times of a step's entries, float64[entry] each, ns per slice; see ``archsim.engine.state.ENTRY``.

    ``multiply_ns`` and ``bytes_ns`` are parts of ``compute_ns``. ``low_ns`` and ``high_ns``: how much less and more the
    GEMM would take at its 5 % and 95 % residual. ``launch_ns``: of every die, float64[die]; 0 where a launch is part of
    every slice, or free.
    """

    compute_ns: np.ndarray
    drain_ns: np.ndarray | float
    low_ns: np.ndarray | float
    high_ns: np.ndarray | float
    multiply_ns: np.ndarray
    bytes_ns: np.ndarray | float = 0.0
    launch_ns: np.ndarray | float = 0.0
