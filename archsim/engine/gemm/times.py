"""What every strategy of the assumption ``gemm`` gives: how long entries hold the arrays of their dies."""

from typing import NamedTuple

import numpy as np


class GemmTimes(NamedTuple):
    """GEMM times of a step's entries, float64[entry] each, ns per slice; see ``archsim.engine.state.ENTRY``.

    ``compute_ns`` does not depend on how fast the engine reads; its parts
    are ``multiply_ns``, ``bytes_ns``, ``permute_ns``, ``started_ns`` (launch of a kernel of its own) and what is lost.
    ``alone_ns``: of a slice that nothing was read ahead of; 0 where that is what the engine simulates. ``low_ns`` and
    ``high_ns``: how much less and more a product would take at its 5 % and 95 % residual. ``launch_ns``: of every die,
    float64[die]; 0 where a launch is part of every slice, or free.
    """

    compute_ns: np.ndarray
    drain_ns: np.ndarray | float
    low_ns: np.ndarray | float
    high_ns: np.ndarray | float
    multiply_ns: np.ndarray
    bytes_ns: np.ndarray | float = 0.0
    permute_ns: np.ndarray | float = 0.0
    started_ns: np.ndarray | float = 0.0
    alone_ns: np.ndarray | float = 0.0
    launch_ns: np.ndarray | float = 0.0
