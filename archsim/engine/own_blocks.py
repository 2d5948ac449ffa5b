"""Users' own blocks on the path of a die's weight slices (``blocks`` of a system).

A block serves one whole slice after the other in front of the compute array, not pipelined with it: the array holds a
slice for the time of the blocks plus its GEMM, and the GEMM cannot end sooner than the blocks' time after the last
byte arrives. So a block costs its full time if the step waits for the array, and nothing if the array waits for
slices anyway. Block time counts as time of the array. Policies do not see it.

A block that is a function says how long it holds slices, in every engine. One that is a class has states: only
``engine: interpreted`` runs it (``archsim.engine.interpreted.interpreter``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.base.own_code import import_function
from archsim.base.units import NS_PER_S
from archsim.machine import blocks


class OwnBlocks:
    """The blocks of a system that are functions. Raises ValueError for one that cannot be imported."""

    def __init__(self, specs: Sequence[blocks.BlockSpec]):
        named = [(spec, import_function(spec.name)) for spec in specs]
        self._blocks: list[tuple[blocks.BlockSpec, Callable[[np.ndarray], np.ndarray]]] = [
            (spec, partial(each, **spec.params)) for spec, each in named if blocks.kind_of(each) is None
        ]

    def service_ns(self, n_bytes: np.ndarray) -> np.ndarray | float:
        """float64[entry] ns: how long all blocks hold a slice; 0.0 without. Raises ArchsimError unless finite, >= 0."""
        total_ns: np.ndarray | float = 0.0
        for spec, function in self._blocks:
            total_ns = total_ns + _check_answer(spec.name, function(n_bytes.copy()), n_bytes.shape)
            if spec.bandwidth_bytes_per_s is not None:
                total_ns = total_ns + n_bytes / (spec.bandwidth_bytes_per_s / NS_PER_S)
        return total_ns


def _check_answer(name: str, given: object, shape: tuple[int, ...]) -> np.ndarray:
    ns = np.asarray(given)
    if ns.shape not in (shape, ()) or ns.dtype.kind not in "iuf" or not np.isfinite(ns).all() or (ns < 0).any():
        raise ArchsimError(
            f"{name}: expected ns for {shape[0]} entries, finite and not negative, got {ns.dtype} of shape {ns.shape}"
        )
    return np.broadcast_to(ns, shape).astype(np.float64)
