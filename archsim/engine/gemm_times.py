"""What every strategy of the assumption ``gemm`` gives: how long entries hold the arrays of their dies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from archsim.engine.state import Machine
from archsim.laws.die import DieFactors


class GemmTimes(NamedTuple):
    """GEMM times of entries, ns a slice, float64[entry] or a number for all; see ``archsim.engine.state.ENTRY``."""

    compute_ns: np.ndarray  # does not depend on how fast the engine reads
    drain_ns: np.ndarray | float  # no product ends sooner after its last byte
    low_ns: np.ndarray | float  # how much less it would take at its 5 % residual
    high_ns: np.ndarray | float  # how much more at its 95 % residual
    multiply_ns: np.ndarray  # parts of ``compute_ns``; what they leave is lost: multiplication
    bytes_ns: np.ndarray | float = 0.0  # waiting for the bytes of weights
    permute_ns: np.ndarray | float = 0.0  # permuting, quantising and finalising tokens
    started_ns: np.ndarray | float = 0.0  # launch of a kernel of its own
    # of a slice that nothing was read ahead of; 0 where that is what the engine simulates
    alone_ns: np.ndarray | float = 0.0
    launch_ns: np.ndarray | float = 0.0  # float64[die]; 0 where a launch is part of every slice, or free


def factors_of(machine: Machine) -> DieFactors:
    return DieFactors(machine.array_speeds, machine.hbm_rates / machine.hbm_bytes_per_ns)


def slow_down(times: GemmTimes, clock: float | np.ndarray) -> GemmTimes:
    """Times on an array at ``clock``, a share of its full one, float64[entry] if unequal; launches and waits stay."""
    by = 1 / clock
    more_ns = (times.compute_ns - times.bytes_ns - times.started_ns) * (by - 1)
    grown = np.divide(more_ns, times.compute_ns, out=np.zeros_like(more_ns), where=times.compute_ns > 0)
    return times._replace(
        compute_ns=times.compute_ns + more_ns,
        drain_ns=times.drain_ns * (1 + grown),
        alone_ns=np.where(np.asarray(times.alone_ns) > 0, times.alone_ns + more_ns, 0.0),
        **{name: getattr(times, name) * by for name in ("low_ns", "high_ns", "multiply_ns", "permute_ns")},
    )


class ManyTimes(NamedTuple):
    """What a walk reads of `GemmTimes`, of many machines side by side."""

    compute_ns: np.ndarray  # float64[machine, entry]
    drain_ns: np.ndarray | float  # float64[machine, entry]
    multiply_ns: np.ndarray  # float64[machine, entry]
    alone_ns: np.ndarray | float = 0.0  # float64[machine, entry]
    launch_ns: np.ndarray | float = 0.0  # float64[machine, die]
