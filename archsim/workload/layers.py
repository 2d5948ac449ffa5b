"""A subset of the layers of routing, evenly spread: runs take less time and still cover every depth."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from archsim.base.errors import TraceError
from archsim.workload.trace import Derived, StepTokens, TokenSource


def spread_layers(available: int, layers: int) -> np.ndarray:
    """Indices int64[layers] of `layers` out of `available`, evenly spread and including first and last; for 1, the
    first.
    """
    return np.round(np.linspace(0, available - 1, layers)).astype(np.int64)


@dataclass(frozen=True)
class SomeLayers(Derived):
    """A `TokenSource` with some of the layers of another. columns: int64[layer], their indices there."""

    columns: np.ndarray

    @property
    def layer_ids(self) -> np.ndarray:
        return self.source.layer_ids[self.columns]

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.source.digest} layers {self.columns.tolist()}".encode()).hexdigest()

    def steps(self, requests: np.ndarray, decode_steps: int) -> Iterator[StepTokens]:
        """See `TokenSource.steps`."""
        for piece in self.source.steps(requests, decode_steps):
            scores = None if piece.scores is None else piece.scores[:, self.columns]
            yield replace(piece, experts=np.ascontiguousarray(piece.experts[:, self.columns]), scores=scores)


def some_layers(source: TokenSource, layers: int | None) -> TokenSource:
    """The source with `layers` of its layers, evenly spread; None: all. Raises TraceError if it has fewer."""
    if layers is None:
        return source
    available = len(source.layer_ids)
    if layers > available:
        raise TraceError(f"{source.label}: workload.layers: {layers} is out of range; the trace has {available} layers")
    return SomeLayers(source, spread_layers(available, layers))
