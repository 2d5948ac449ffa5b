"""Admission: which of the predicted experts are worth a copy.

The paper's rule copies every predicted expert that a die runs and does not hold. Where room is finite, most copies are
then evicted before they are read again. ``reread`` copies an expert only if the reads that it is expected to save,
until it is evicted, are at least as many as the write.

Expected reads follow from the past alone. ``ran[expert, die]`` counts the iterations in which a die ran an expert that
it does not hold by placement (older ones weigh less, by a factor of e over HORIZON_STEPS). The rate of a pair is its
share of iterations, drawn towards the expert's mean over dies by as much as chance explains of the differences between
dies (empirical Bayes with a beta prior: Robbins 1956; Efron, Large-Scale Inference, 2010, chapter 1). A copy stays for
``residence`` iterations: the room over what is written in an iteration, at most HORIZON_STEPS. If it takes the place of
other copies, the oldest ones under LRU, the reads that those would have saved are lost (as in TinyLFU: Einziger,
Friedman and Manes, ACM Transactions on Storage 13, 2017).
"""

from typing import NamedTuple

import numpy as np

from archsim.base.compiled import kernel
from archsim.model.spec import SLICES
from archsim.policies.allocation import Plan

HORIZON_STEPS = 64.0  # iterations over which the past counts and a copy may pay; a choice of archsim
_AVERAGED_STEPS = 4.0  # iterations over which writes are averaged; a choice of archsim


class CopiesView(NamedTuple):
    """Cached copies before a step."""

    slices: np.ndarray  # int8[layer · ids + expert, die] slices of the expert that the die holds copies of
    # [die, key + 1] by slice; "newer": the slice that was used next, of the last row the one used longest ago
    ring: np.ndarray
    room: np.ndarray  # int64[die] slices that the die has room for
    free: np.ndarray  # int64[die] slices that fit beside those that it holds; admissions change it


class Reread:
    """``admission: reread``; see the module's text. Without it every predicted expert is copied, the paper's rule."""

    def __init__(self, layers: int, dies: int, ids: int):
        self._ids = ids
        self._ran = np.zeros((layers, ids, dies))
        self._iterations = np.zeros(layers)
        self._written = np.zeros((layers, dies))  # slices admitted in an iteration
        self._rate = np.zeros((layers * ids, dies))

    def admit(self, layer: int, plan: Plan, holds: np.ndarray, bits: np.ndarray | None, copies: CopiesView) -> None:
        """Clear cp_en bits (uint8[die, id] or None) of the next step. ``holds``: bool[expert, die], by placement."""
        away = ~holds[plan.expert, plan.die]
        expert, die = plan.expert[away], plan.die[away]
        self._count(layer, expert, die)
        admitted = np.zeros(len(copies.free), np.int64)
        if bits is not None:
            wanted = bits[die, expert] != 0
            expert, die = expert[wanted], die[wanted]
            first = layer * self._ids
            order = np.argsort(-self._rate[first + expert, die], kind="stable")
            residence = np.minimum(HORIZON_STEPS, copies.room / np.maximum(self._written.sum(axis=0), 1e-9))
            oldest = copies.ring[:, -1]["newer"].copy()
            _admit(expert[order], die[order], first, self._rate, residence, copies, oldest, bits, admitted)
        self._written[layer] += (admitted - self._written[layer]) / _AVERAGED_STEPS

    def _count(self, layer, expert, die):
        """Count an iteration of a layer, and find its rates anew."""
        ran, kept = self._ran[layer], 1.0 - 1.0 / HORIZON_STEPS
        ran *= kept
        ran[expert, die] += 1.0
        self._iterations[layer] = self._iterations[layer] * kept + 1.0
        first = layer * self._ids
        self._rate[first : first + self._ids] = rates(ran, self._iterations[layer])


def rates(ran: np.ndarray, iterations: float) -> np.ndarray:
    """Reads of an iteration expected of every pair, float64[expert, die].

    ``ran``: float64[expert, die], iterations of ``iterations`` in which the die ran the expert. The prior is worth as
    many iterations as make the differences between dies those that are seen; without any beyond chance, the mean over
    dies is the rate of each.
    """
    mean = ran.mean(axis=1, keepdims=True)
    dies = ran.shape[1]
    chance = (dies - 1) * (mean * (1.0 - mean / iterations)).sum()
    beyond = ((ran - mean) ** 2).sum() - chance
    if beyond <= 0.0:
        return np.broadcast_to(mean / iterations, ran.shape)
    prior = chance / beyond * iterations
    return (ran + prior * mean / iterations) / (iterations + prior)


@kernel
def _admit(expert, die, first, rate, residence, copies, oldest, bits, admitted):
    """Clear bits of pairs, by falling rate, not worth their write; ``admitted``, ``oldest`` and room follow."""
    head = copies.ring.shape[1] - 1
    for at in range(len(expert)):
        here, own = die[at], rate[first + expert[at], die[at]]
        missing = SLICES - np.int64(copies.slices[first + expert[at], here])
        into_free = min(copies.free[here], missing)
        reads, leaving = into_free * own * HORIZON_STEPS, oldest[here]
        for _ in range(missing - into_free):
            if leaving == head:
                reads = -np.inf
                break
            reads += (own - rate[leaving // SLICES, here]) * residence[here]
            leaving = copies.ring[here, leaving].newer
        if reads < missing:
            bits[here, expert[at]] = 0
            continue
        copies.free[here] -= into_free
        oldest[here] = leaving
        admitted[here] += missing
