"""Allocations among the holders of an expert: no die runs an expert that it does not hold.

Splits into whole tokens give the remainder to the largest fractions, or to the first holders.
"""

import numpy as np

from archsim.base.mixing import GOLDEN, mix_bits
from archsim.policies.allocation.lplb import lplb as share_out
from archsim.policies.allocation.rules import Effort, Plan, StepView, plan_of

LPLB_STEPS = 5  # of the interior-point solver (SGLang's LPLB); what is charged, whatever solves the programme here


def even(step: StepView) -> Plan:
    """Every holder of an expert gets as many of its tokens, the first holders one more."""
    expert, die, first, counts = _instances(step)
    each, rest = np.divmod(step.tokens, np.maximum(counts, 1))
    return _plan(expert, die, each[expert] + (np.arange(len(expert)) - first[expert] < rest[expert]))


def hashed(step: StepView) -> Plan:
    """Every token takes a holder of its expert by a hash of its position, layer and iteration: even, but for chance, as
    engines that ask nobody choose a replica.
    """
    place = mix_bits(np.array([step.step << 32 | step.layer], np.uint64))
    drawn = mix_bits(np.arange(int(step.tokens.sum()), dtype=np.uint64) * GOLDEN + place) >> np.uint64(32)
    expert, die, first, counts = _instances(step)
    of = np.repeat(np.arange(len(counts)), step.tokens)  # expert of each token
    chosen = first[of] + (drawn % counts[of].astype(np.uint64)).astype(np.int64)
    return _plan(expert, die, np.bincount(chosen, minlength=len(expert)))


def _instances(step: StepView) -> tuple[np.ndarray, ...]:
    """Expert and die of every instance, int64[instance], in order of both; the first instance of each expert, and how
    many it has, int64[expert].
    """
    expert, die = np.nonzero(step.holders)
    counts = np.bincount(expert, minlength=len(step.tokens))
    return expert, die, np.cumsum(counts) - counts, counts


def _plan(expert: np.ndarray, die: np.ndarray, tokens: np.ndarray) -> Plan:
    """Of instances with these tokens, int64[instance] each; those without any are left out."""
    some = tokens > 0
    return Plan(*(column[some].astype(np.int32) for column in (expert, die, tokens)))


def nearest(step: StepView) -> Plan:
    """Every die's tokens go to the holder with the fewest hops, ties to the lowest die."""
    far = np.iinfo(np.int32).max
    distance = np.where(step.holders[:, None, :], step.hops[None], far)  # [expert, origin, holder]
    return plan_of(_sent(step, distance.argmin(axis=2)))


def static(step: StepView) -> Plan:
    """Every die uses one holder of an expert: itself, else one of those with the fewest hops, by turns over dies."""
    experts, dies = step.holders.shape
    chosen = np.zeros((experts, dies), np.int64)
    for expert in range(experts):
        holders = np.flatnonzero(step.holders[expert])
        distance = step.hops[:, holders]
        for die in range(dies):
            close = holders[distance[die] == distance[die].min()]
            chosen[expert, die] = close[(die + expert) % len(close)]
    return plan_of(_sent(step, chosen))


def lplb(step: StepView) -> Plan:
    """The shares that minimise the load of the fullest die, in whole tokens by the largest remainders.

    Charged as the published solver: an interior-point method of five steps over (replicated experts + dies) rows and
    their instances as columns.
    """
    active = np.flatnonzero(step.tokens)
    holders = [np.flatnonzero(step.holders[expert]).tolist() for expert in active]
    shares = share_out(step.tokens[active], holders, len(step.hops))
    given = np.zeros(step.holders.shape, np.int64)
    for expert, dies, split in zip(active.tolist(), holders, shares.split, strict=True):
        given[expert, dies] = whole_shares(int(step.tokens[expert]), split)
    counts = np.array([len(dies) for dies in holders], np.int64)
    replicated = counts[counts > 1]
    rows, columns = len(replicated) + len(step.hops), int(replicated.sum()) + len(step.hops) + 2
    operations = LPLB_STEPS * (rows * rows * columns + rows**3 // 3)
    return plan_of(given, Effort(True, 0, counts, np.ones(len(counts), np.int64), operations))


def whole_shares(tokens: int, split: np.ndarray) -> np.ndarray:
    """``tokens`` in proportion to ``split``, int64, the rest to the largest remainders, ties to the first."""
    total = split.sum()
    wished = split * (tokens / total) if total > 0 else np.full(len(split), tokens / len(split))
    counts = np.floor(wished + 1e-9).astype(np.int64)
    rest = np.argsort(counts - wished, kind="stable")[: tokens - int(counts.sum())]
    counts[rest] += 1
    return counts


def _sent(step: StepView, holder: np.ndarray) -> np.ndarray:
    """int64[expert, die] if the tokens of an origin go to ``holder: int[expert, origin]``."""
    given = np.zeros(step.holders.shape, np.int64)
    expert = np.broadcast_to(np.arange(len(holder))[:, None], holder.shape)
    np.add.at(given, (expert, holder), step.origins.T.astype(np.int64))
    return given
