"""Placement rules: pure functions ``(experts, dies, **parameters)`` that return the home die of every expert,
int32[expert], the same in every layer; with a parameter ``layers`` a ``Placement``.

A user's function may return a ``Placement`` instead (``archsim.policies.placement``), with replicas and
layers that differ.
"""

import numpy as np

from archsim.policies.placement import Placement


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


def redundant(experts: int, dies: int, layers: int, slots: int = 1) -> Placement:
    """Every die has ⌈experts / dies⌉ + ``slots`` slots in every layer; slot i holds expert i mod experts, and die
    i // (slots of a die) has slot i.

    What SGLang starts from (``--init-expert-location trivial``), before EPLB has seen loads. The home of an expert is
    its first slot.
    """
    of_die = -(-experts // dies) + slots
    slot = np.arange(of_die * dies)
    holds = np.zeros((experts, dies), np.bool_)
    holds[slot % experts, slot // of_die] = True
    home = (np.arange(experts) // of_die).astype(np.int32)
    return Placement(
        np.tile(home, (layers, 1)), np.tile(holds, (layers, 1, 1)), np.full((layers, dies), of_die, np.int64)
    )
