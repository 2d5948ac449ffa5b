"""The demand of one MoE layer in one iteration: everything an engine knows about the traffic when it runs a step."""

from typing import Any, NamedTuple

import numpy as np


def dies_of_requests(batch: int, dies: int) -> np.ndarray:
    """int32[request]: requests live on dies in contiguous blocks of equal size."""
    return (np.arange(batch, dtype=np.int64) * dies // batch).astype(np.int32)


class Predicted(NamedTuple):
    """What a predictor expects in a step."""

    # uint8[expert, ceil(E/8)], little-endian bitset: bit j of row i is set where j is expected to follow i
    rows: np.ndarray
    took_ns: float = 0.0  # time of the prediction on this host


class TokenRouting(NamedTuple):
    """The routing of single tokens, if known."""

    experts: np.ndarray  # int16[token, k], in rank order of the source
    die: np.ndarray  # int32[token]: where the token lives


class StepDemand(NamedTuple):
    """One MoE layer in one iteration; counts are (executed) token–expert selections, ``top_k`` per token."""

    step: int  # iteration
    tokens: np.ndarray  # int32[expert], all of them
    prefill_tokens: np.ndarray  # int32[expert], of prompts; the others are decoded
    first_seen: np.ndarray  # int16[expert], active experts in order of first appearance, padded with -1
    top_k: int  # experts per token
    # uint16 or int32[die, expert], tokens by the die they live on; None: nobody needs it
    origins: np.ndarray | None = None
    predicted: Predicted | None = None  # None under a policy that predicts nothing
    routing: TokenRouting | None = None  # None if only sums are known
    residents: np.ndarray | None = None  # int64[die], tokens that live there, executed or not; None: origins / top_k
    # float32[expert], tokens that a policy's predictor expects; None: nothing is predicted
    expected: np.ndarray | None = None
    seen: Any = None  # archsim.policies.seen_routing.SeenRouting of the whole iteration; None: no rule asks for it

    @property
    def living(self) -> np.ndarray:
        """Tokens that live on each die, int64[die]; needs ``origins``."""
        if self.residents is not None:
            return self.residents.astype(np.int64)
        assert self.origins is not None, "the assumptions ask for them"
        return self.origins.sum(axis=1, dtype=np.int64) // self.top_k
