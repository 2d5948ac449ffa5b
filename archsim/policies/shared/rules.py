"""Where the shared experts of tokens run: at home (``local``), or by Waterfill.

A rule is a function ``(tokens, load, **parameters) -> int64[die, die]``: of ``tokens: int64[die]`` that live on a die,
how many have their shared experts run on each die; ``load: int64[die]`` are the routed pairs assigned to each.
"""

import numpy as np

from archsim.policies.allocation.holders import whole_shares
from archsim.policies.allocation.waterfill import shared_weights


def waterfill(tokens: np.ndarray, load: np.ndarray, least_tokens: int = 64) -> np.ndarray:
    """Dies below the waterline take tokens in proportion to their slack, other dies' tokens at 10/11 of it.

    Waterfill with every die as a candidate, in expectation rather than by a draw for each token: which dies a token
    visits is not known from sums. Dies with fewer than ``least_tokens`` tokens keep theirs, as in SGLang.
    """
    weights = shared_weights(load, int(tokens.sum()))[2]
    sent = np.diag(tokens).astype(np.int64)
    for die in np.flatnonzero(tokens >= max(1, least_tokens)).tolist():
        if weights[die].any():
            sent[die] = whole_shares(int(tokens[die]), weights[die].astype(float))
    return sent
