"""Speculation: drafted tokens that an iteration verifies beside the next one, and how many of them it accepts.

A draft is accepted only if all before it were: an iteration of a request makes 1 + a tokens, of which a has the mean
sum over i of p1 * ... * pi (Leviathan et al., Fast Inference from Transformers via Speculative Decoding, 2023). All
1 + n rows pass products and experts, and are verified by the head, accepted or not; the KV of a request is read once.
Drafts of a multi-token-prediction head take a layer of the model and the head each, one after the other (DeepSeek-V3,
section 2.2), and prompts pass that layer once, as it keeps KV of its own; those of n-grams take nothing. A tree of
drafts has several at each depth, of which one at most is accepted; all are drafted together, one depth after the
other, and all are verified (SpecInfer, arXiv 2305.09781, section 4; EAGLE-2, arXiv 2406.16858, section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from archsim.base.sums import sum

DRAWS = 1 << 16  # uniform numbers, by request, token and draft


class Speculation(NamedTuple):
    """``acceptance``: of some draft at every depth, given that those before it were accepted; () for no drafts.
    ``layers``: of the model that a draft runs; 0: it costs nothing. ``tree``: drafts at every depth; () for one each.
    """

    acceptance: tuple[float, ...] = ()
    layers: int = 0
    seed: int = 0
    tree: tuple[int, ...] = ()

    @property
    def drafts(self) -> int:
        """Drafted tokens of a request in an iteration, all of which are verified."""
        return sum(self.tree) or len(self.acceptance)

    @property
    def tokens(self) -> float:
        """Mean number of tokens that an iteration makes of a request."""
        return 1.0 + float(np.cumprod(self.acceptance).sum())


NO_DRAFTS = Speculation()


def of(
    draft_tokens: int, acceptance: float | Sequence[float], layers: int, seed: int, tree: Sequence[int] = ()
) -> Speculation:
    each = (float(acceptance),) * draft_tokens if isinstance(acceptance, int | float) else tuple(map(float, acceptance))
    return Speculation(each, layers, seed, tuple(tree))


def draws(speculation: Speculation) -> np.ndarray:
    """float64[DRAWS] below 1. A draft is accepted where its draw is below its rate; a higher rate accepts no less."""
    if not speculation.drafts:
        return np.zeros(1)
    return np.random.Generator(np.random.Philox(key=[speculation.seed, 77])).random(DRAWS)
