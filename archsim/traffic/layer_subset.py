"""A subset of the layers of routing that represents all of them: runs take less time, and their means are close.

What the time of a layer depends on is how unequal its loads are, whatever runs its experts: the fullest of several
equal groups of neighbouring experts (the dies of expert parallelism, one expert at last), and how many experts have
any token. Layers are chosen so that the means of these over them are close to the means over all layers (balanced
sampling: Deville and Tillé, Biometrika 91, 2004, here by exchanging one layer for another as long as that helps).
Evenly spread layers, which were taken before, had 18 % less time than all for 2 of the 58 of DeepSeek-V3 under expert
parallelism, as depths differ.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from archsim.base.errors import TraceError
from archsim.traffic.trace import Derived, StepTokens, TokenSource

_GROUPS = 13  # numbers of groups of experts whose fullest counts, in equal ratios from 4 to one for every expert
# Tokens that are looked at to choose among the layers of a source: of so many requests, evenly spread over it, up to
# this decode step, and so many of their prompts.
_SEEN_REQUESTS, _SEEN_STEPS, _SEEN_PROMPT_TOKENS = 64, 16, 32_768


def spread_layers(available: int, layers: int) -> np.ndarray:
    """int64[layers]: indices of `layers` out of `available`, evenly spread with both ends; for 1, the first."""
    return np.round(np.linspace(0, available - 1, layers)).astype(np.int64)


def representative_layers(shares: np.ndarray, layers: int) -> np.ndarray:
    """Indices int64[layers], ascending, of layers whose loads are on average as unequal as those of all.

    shares: float64[phase, layer, expert], of the tokens of a layer in a phase (prompts, decode steps) that each expert
    has; phases without tokens are 0 throughout.
    """
    traits = np.concatenate([_traits(each) for each in shares], axis=1)
    spread = traits.std(axis=0)
    apart = (traits - traits.mean(axis=0))[:, spread > 0] / spread[spread > 0]
    every, order = len(apart), np.argsort(apart.sum(axis=1), kind="stable")
    taken = np.zeros(every, bool)
    taken[order[(2 * np.arange(layers) + 1) * every // (2 * layers)]] = True  # the middle of each of equal strata
    while True:
        out, into, summed = np.flatnonzero(taken), np.flatnonzero(~taken), apart[taken].sum(axis=0)
        if not len(into):
            return out
        off = ((summed - apart[out][:, None] + apart[into][None]) ** 2).sum(axis=2)
        one, other = np.unravel_index(off.argmin(), off.shape)
        if off[one, other] >= (summed**2).sum() - 1e-9:
            return out
        taken[out[one]], taken[into[other]] = False, True


def _traits(shares: np.ndarray) -> np.ndarray:
    """float64[layer, trait] of one phase, as this section describes them."""
    experts = shares.shape[1]
    before = np.concatenate([np.zeros((len(shares), 1)), shares.cumsum(axis=1)], axis=1)
    numbers = np.unique(np.round(np.geomspace(min(4, experts), experts, _GROUPS)).astype(np.int64))
    ends = [np.arange(groups + 1) * experts // groups for groups in numbers]
    fullest = [np.diff(before[:, each], axis=1).max(axis=1) * (len(each) - 1) for each in ends]
    active = 1 - np.exp(-experts * shares).mean(axis=1)  # of one token an expert, on average
    return np.stack([*fullest, active], axis=1)


def seen_shares(source: TokenSource) -> np.ndarray:
    """float64[2, layer, expert]: shares of experts in some prompts and decode steps of a source."""
    requests = np.unique(np.linspace(0, source.requests - 1, _SEEN_REQUESTS).astype(np.int64))
    counts, prompts = np.zeros((2, len(source.layer_ids), source.num_experts)), 0
    for piece in source.steps(requests, _SEEN_STEPS):
        experts = piece.experts if piece.iteration else piece.experts[: max(0, _SEEN_PROMPT_TOKENS - prompts)]
        prompts += len(experts) * (piece.iteration == 0)
        for layer, chosen in enumerate(experts.transpose(1, 0, 2)):
            counts[int(piece.iteration > 0), layer] += np.bincount(chosen.ravel(), minlength=source.num_experts)
    return counts / np.maximum(counts.sum(axis=2, keepdims=True), 1)


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
    """The source with `layers` of its layers, which represent all; None: all. Raises TraceError if it has fewer."""
    if layers is None:
        return source
    refuse_more_layers(source, layers)
    if layers == len(source.layer_ids):
        return SomeLayers(source, np.arange(layers))
    key = source.digest, layers
    if key not in _CHOSEN:
        _CHOSEN[key] = representative_layers(seen_shares(source), layers)
    return SomeLayers(source, _CHOSEN[key])


_CHOSEN: dict[tuple[str, int], np.ndarray] = {}  # by digest of the source, and number


def refuse_more_layers(source: TokenSource, layers: int | None) -> None:
    """Raise TraceError if a source has fewer layers than `layers`."""
    available = len(source.layer_ids)
    if layers is not None and layers > available:
        raise TraceError(f"{source.label}: workload.layers: {layers} is out of range; the trace has {available} layers")
