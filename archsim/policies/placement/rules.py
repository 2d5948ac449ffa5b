"""Placement rules: pure functions ``(experts, dies, **parameters)`` that return the home die of every expert,
int32[expert], the same in every layer.

A user's function may return a ``Placement`` instead (``archsim.policies.placement.placement``), with replicas and
layers that differ.
"""

from __future__ import annotations

import numpy as np


def linear(experts: int, dies: int) -> np.ndarray:
    """Contiguous: with q = experts // dies, die e // q for e < q * dies, the rest e mod dies (published simulator).

    With fewer experts than dies (q = 0) expert e lives on die e.
    """
    expert = np.arange(experts, dtype=np.int32)
    each = experts // dies
    return np.where(expert < each * dies, expert // max(each, 1), expert % dies).astype(np.int32)


def balanced(experts: int, dies: int) -> np.ndarray:
    """Contiguous and even: die floor(e * dies / experts), for expert counts that are not multiples of the dies."""
    return (np.arange(experts, dtype=np.int64) * dies // experts).astype(np.int32)
