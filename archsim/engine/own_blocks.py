"""Users' own blocks on a die's way of weight slices (``blocks`` of a system).

A block serves one slice after the other, all of its bytes, in front of the compute array and not pipelined with it: the array holds a slice
for the time of the blocks and of its GEMM, and the GEMM cannot end sooner than the blocks' time after the last byte has come. So a block is
charged in full where the array is what a step waits for, and hidden where the array waits for slices anyway. Time of blocks counts as the
array's. Policies do not know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.specs.machine.blocks import BlockSpec
from archsim.specs.policies import import_function

NS_PER_S = 1e9


class OwnBlocks:
    """The blocks of a system. Raises ValueError for a function that cannot be imported."""

    def __init__(self, specs: Sequence[BlockSpec]):
        self._blocks: list[tuple[BlockSpec, Callable[[np.ndarray], np.ndarray]]] = [
            (spec, partial(import_function(spec.name), **spec.params)) for spec in specs
        ]

    def __len__(self) -> int:
        return len(self._blocks)

    def service_ns(self, n_bytes: np.ndarray) -> np.ndarray | float:
        """How long all blocks together hold a slice of so many bytes (int64[entry]), float64[entry]; 0.0 if there are none.

        Raises ArchsimError for what is no time.
        """
        total_ns: np.ndarray | float = 0.0
        for spec, function in self._blocks:
            total_ns = total_ns + _checked(spec.name, function(n_bytes.copy()), n_bytes.shape)
            if spec.bandwidth_bytes_per_s is not None:
                total_ns = total_ns + n_bytes / (spec.bandwidth_bytes_per_s / NS_PER_S)
        return total_ns


def _checked(name: str, given: object, shape: tuple[int, ...]) -> np.ndarray:
    ns = np.asarray(given)
    if ns.shape not in (shape, ()) or ns.dtype.kind not in "iuf" or not np.isfinite(ns).all() or (ns < 0).any():
        raise ArchsimError(f"{name}: expected ns for {shape[0]} entries, finite and not negative, not {ns.dtype} of shape {ns.shape}")
    return np.broadcast_to(ns, shape).astype(np.float64)
