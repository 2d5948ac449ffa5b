"""The demand of one MoE layer in one iteration: everything an engine knows about the traffic when it runs a step."""

from typing import NamedTuple

import numpy as np


def dies_of_requests(batch: int, dies: int) -> np.ndarray:
    """int32[request]: requests live on dies in contiguous blocks of equal size."""
    return (np.arange(batch, dtype=np.int64) * dies // batch).astype(np.int32)


class Predicted(NamedTuple):
    """What a predictor expects in a step. ``took_ns``: time of the prediction on this host."""

    rows: (
        np.ndarray
    )  # uint8[expert, ceil(E/8)], little-endian bitset: bit j of row i is set where j is expected to follow i
    took_ns: float = 0.0


class TokenRouting(NamedTuple):
    """The routing of single tokens, if known."""

    experts: np.ndarray  # int16[token, k], in rank order of the source
    die: np.ndarray  # int32[token]: where the token lives


class StepDemand(NamedTuple):
    """One MoE layer in one iteration. Token counts are token–expert selections, ``top_k`` per token.

    ``tokens`` are all of them, ``prefill_tokens`` those of prompts; the others are decoded. ``first_seen``: active
    experts in order of first appearance, padded with -1. ``origins``: the same tokens by the die on which they live;
    None if no assumption needs it. ``predicted``: None under a policy that predicts nothing. ``routing``: None if
    only sums are known. Where a policy does not execute every chosen pair, all of these count executed ones alone, and
    ``residents`` are the tokens that live on each die, executed or not. ``expected``: tokens that a policy's predictor
    expects.
    """

    step: int  # iteration
    tokens: np.ndarray  # int32[expert]
    prefill_tokens: np.ndarray  # int32[expert]
    first_seen: np.ndarray  # int16[expert]
    top_k: int
    origins: np.ndarray | None = None  # uint16 or int32[die, expert]
    predicted: Predicted | None = None
    routing: TokenRouting | None = None
    residents: np.ndarray | None = None  # int64[die]; None: origins / top_k
    expected: np.ndarray | None = None  # float32[expert]; None: nothing is predicted

    @property
    def living(self) -> np.ndarray:
        """Tokens that live on each die, int64[die]; needs ``origins``."""
        if self.residents is not None:
            return self.residents.astype(np.int64)
        assert self.origins is not None, "the assumptions ask for them"
        return self.origins.sum(axis=1, dtype=np.int64) // self.top_k
