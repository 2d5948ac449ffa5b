"""Transfers by size: contiguous pieces of the size axis, each with its own line ``latency + size / bandwidth``.

Hockney's model (Parallel Computing 20, 1994), piece by piece, as communication libraries change protocol with size.
Pieces need not be continuous: a library that switches protocol too early or too late causes a jump in the measurements.
``calibration.fit.segments`` finds the pieces; this module evaluates them.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Pieces(Protocol):
    """Anything with the numbers of a law: a ``TransferTable``, or the copies of a system."""

    @property
    def from_bytes(self) -> tuple[float, ...]: ...

    @property
    def latency_ns(self) -> tuple[float, ...]: ...

    @property
    def ns_per_byte(self) -> tuple[float, ...]: ...

    @property
    def first_bytes(self) -> float | None: ...

    @property
    def last_bytes(self) -> float | None: ...


@dataclass(frozen=True)
class PiecewiseLaw:
    """Time of S bytes: ``latency_ns[i] + S * ns_per_byte[i]`` from ``from_bytes[i]`` on.

    ``first_bytes``, ``last_bytes``: smallest and largest size measured. If the last measured piece is short, a separate
    piece follows it.
    """

    from_bytes: tuple[float, ...]
    latency_ns: tuple[float, ...]
    ns_per_byte: tuple[float, ...]
    first_bytes: float
    last_bytes: float

    def time_ns(self, size_bytes) -> np.ndarray:
        """float64, the shape of ``size_bytes``. A transfer below the smallest measured one takes its time; above the
        largest one the line of the last piece goes on.
        """
        size = np.maximum(np.asarray(size_bytes, dtype=np.float64), self.first_bytes)
        latency_ns, ns_per_byte = self.line(size)
        return latency_ns + size * ns_per_byte

    def line(self, size_bytes) -> tuple[np.ndarray, np.ndarray]:
        """(latency in ns, ns per byte) of the piece of each size, float64 each, the shape of ``size_bytes``."""
        piece = np.maximum(np.searchsorted(self.from_bytes, size_bytes, side="right") - 1, 0)
        return np.asarray(self.latency_ns)[piece], np.asarray(self.ns_per_byte)[piece]

    def extrapolates(self, size_bytes) -> np.ndarray:
        """bool: outside the measured range."""
        size = np.asarray(size_bytes)
        return (size < self.first_bytes) | (size > self.last_bytes)


def law_of(pieces: Pieces) -> PiecewiseLaw:
    """The law of a table; if the measured sizes are unknown, the starts of its pieces stand in for them."""
    first = pieces.from_bytes[0] if pieces.first_bytes is None else pieces.first_bytes
    last = pieces.from_bytes[-1] if pieces.last_bytes is None else pieces.last_bytes
    return PiecewiseLaw(pieces.from_bytes, pieces.latency_ns, pieces.ns_per_byte, first, last)
