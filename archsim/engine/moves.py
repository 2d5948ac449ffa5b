"""Hidden vectors of a step: which die sends how many to which, and how many bytes one has.

``dispatch: per_token_expert`` sends a vector once for every (token, expert), ``per_rank`` once for every (token, die),
however many of the token's experts run there; partial results are summed before they return, so that as many come
back. Where the routing of single tokens is known, per_rank counts them; else it takes the expected number.

The expected number: a token of a home die has none of its experts on a die with probability ∏ (1 − c), over the
experts that the die runs for that home, where c = p k / (k − those before) is the probability of one expert, given
that the token has none of those before: p is its share of the home's tokens, and the k selections then fall on the
other experts in proportion (sampling without replacement; Tillé, Sampling Algorithms, 2006, chapter 4, draws unit by
unit in this way). Where all p are k / E this is C(E − m, k) / C(E, k) for m experts, the hypergeometric law. 8 of 256
experts over 25 dies: 7.0 dies a token, 1.14 times fewer vectors; over 8 dies: 5.3, 1.5 times fewer. A router that is
limited to some groups of experts (DeepSeek-V3: 4 of 8) applies this within a group, which it takes with probability
``top_groups / groups``.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from archsim.base import compiled, units
from archsim.policies.allocation import Plan
from archsim.traffic.step_demand import TokenRouting

SCALED = ("fp8", "fp8_block")  # dtypes whose vectors travel with scales
VALUES_PER_SCALE, SCALE_BYTES = 128, 4  # one FP32 scale for 128 values (deepseek-ai/DeepEP, README)


class VectorBytes(NamedTuple):
    """Bytes of one hidden vector on its way to an expert, and of a result on its way back."""

    dispatch: int
    combine: int


class Sizes(NamedTuple):
    """What vectors depend on beside plan and origins; groups of experts are equal, in order of id (1, 1: no limit)."""

    experts: int
    top_k: int
    groups: int = 1
    top_groups: int = 1


def vector_bytes(hidden: int, dtype: str, combine: str) -> VectorBytes:
    """Bytes of a vector of ``hidden`` values under the assumption ``combine``; ``dtype``: of the die's weights."""
    plain = ceil(hidden * (units.WEIGHT_BYTES if dtype in SCALED else units.VECTOR_BYTES)[dtype])
    if combine == "weights_dtype":
        return VectorBytes(plain, plain)
    scales = SCALE_BYTES * -(-hidden // VALUES_PER_SCALE) if dtype in SCALED else 0
    return VectorBytes(plain + scales, hidden * units.BF16_BYTES)


Send = Callable[[Plan, np.ndarray, "TokenRouting | None", Sizes, np.ndarray], np.ndarray]
"""(plan, origins: int[die, expert], routing, sizes, hops: int[die, die]) → vectors, int64 or float64[home, die]."""


def send_selections(
    plan: Plan, origins: np.ndarray, routing: TokenRouting | None, sizes: Sizes, hops: np.ndarray
) -> np.ndarray:
    """``dispatch: per_token_expert``: int64[home, die], one vector per token and expert."""
    return send_tokens(plan.expert, plan.die, plan.tokens, origins, hops)


def send_once(
    plan: Plan, origins: np.ndarray, routing: TokenRouting | None, sizes: Sizes, hops: np.ndarray
) -> np.ndarray:
    """``dispatch: per_rank``: one vector per token and die; int64[home, die] where the routing is known, else the
    expected number, float64[home, die].

    Among the dies that share an expert's tokens of one home, tokens are given out in their order, to the first entry
    of the plan that has not all of its own.
    """
    return send_once_to([np.arange(len(hops))], plan, origins, routing, sizes, hops)[0]


def send_once_to(
    groups: Sequence[np.ndarray],
    plan: Plan,
    origins: np.ndarray,
    routing: TokenRouting | None,
    sizes: Sizes,
    hops: np.ndarray,
    anywhere: np.ndarray | None = None,
) -> list[np.ndarray]:
    """As ``send_once``, one vector per token and *group* of dies: [home, group] for each of ``groups: int64[die]``, the
    group of every die. ``anywhere``: int64[home, die], tokens whose shared experts run on a die: one more vector where
    none of their other experts is, unless it is their home.
    """
    if anywhere is not None:
        tokens = np.maximum(origins.sum(axis=1, keepdims=True) / sizes.top_k, 1.0)
        found, away = send_once_to(groups, plan, origins, routing, sizes, hops), anywhere * (1 - np.eye(len(hops)))
        further = [np.stack([np.bincount(of, row, of.max() + 1) for row in away]) for of in groups]
        return [to + more * (1 - to / tokens) for to, more in zip(found, further, strict=True)]
    dies = len(hops)
    taken = _tokens_taken(plan.expert, plan.die, plan.tokens, origins, hops)
    if routing is not None:
        first = np.searchsorted(plan.expert, np.arange(sizes.experts + 1))
        alone = np.flatnonzero(np.diff(first) == 1)
        whole = taken[first[alone]].sum(axis=1) == origins.sum(axis=0, dtype=np.int64)[alone]
        undivided = alone[whole]  # experts whose tokens one entry runs
        found = []
        for group in groups:
            count = int(group.max()) + 1
            sent, last = np.zeros((dies, count), np.int64), np.full(count, -1, np.int64)
            target, runs_all = group[plan.die], np.full(sizes.experts, -1)
            runs_all[undivided] = target[first[undivided]]
            done = np.zeros((dies, sizes.experts), np.int64)
            _count_once(routing.experts, routing.die, first, runs_all, target, taken.copy(), done, last, sent)
            found.append(sent)
        return found
    tokens = origins.sum(axis=1, dtype=np.int64) / sizes.top_k
    found = []
    for group in groups:
        shape = dies, int(group.max()) + 1
        expert, target, of_group = _merge(plan.expert, group[plan.die], taken, shape[1])
        none = np.ones(shape)
        router = expert * sizes.groups // sizes.experts
        _expect_none(router, target, of_group, tokens, sizes, np.ones(shape[1]), np.zeros(shape[1]), none)
        found.append(tokens[:, None] * (1.0 - none))
    return found


def received_of_experts(sizes: Sizes, experts: int, tokens: int) -> float:
    """Distinct tokens that a die receives if it runs ``experts`` with ``tokens`` each and the router favours none."""
    experts = min(experts, sizes.experts)
    every = np.arange(sizes.experts, dtype=np.int32)
    on_other = (every >= experts).astype(np.int32)
    plan = Plan(every, on_other, np.full(sizes.experts, sizes.top_k, np.int32))
    origins = np.array([np.zeros(sizes.experts), np.full(sizes.experts, sizes.top_k)], np.int64)
    arrived = send_once(plan, origins, None, sizes, 1 - np.eye(2, dtype=np.int64)).sum(axis=0)[0]
    return float(arrived / sizes.top_k * tokens)


def _merge(expert, group, taken, groups) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(expert, group, taken) with one row for every expert and group, in order of expert."""
    every = expert.astype(np.int64) * groups + group
    if (every[1:] > every[:-1]).all():
        return expert.astype(np.int64), group.astype(np.int64), taken
    rows, at = np.unique(every, return_inverse=True)
    if len(rows) == len(expert):
        return expert.astype(np.int64), group.astype(np.int64), taken
    total = np.zeros((len(rows), taken.shape[1]), taken.dtype)
    np.add.at(total, at, taken)
    return rows // groups, rows % groups, total


SENDS: Mapping[str, Send] = MappingProxyType({"per_token_expert": send_selections, "per_rank": send_once})


def expected_ranks(sizes: Sizes, ranks: int) -> float:
    """Mean ranks that a token is sent to, of ``ranks`` with equally many and popular experts; see the module."""
    per_rank = np.bincount(np.arange(sizes.experts) * ranks // sizes.experts, minlength=ranks)
    expert = np.arange(sizes.experts, dtype=np.int32)
    rank = np.repeat(np.arange(ranks, dtype=np.int32), per_rank)
    plan = Plan(expert, rank, np.full(sizes.experts, sizes.top_k, np.int32))
    origins = np.zeros((ranks, sizes.experts), np.int64)
    origins[0] = sizes.top_k  # as many tokens as experts, all on rank 0
    return float(send_once(plan, origins, None, sizes, 1 - np.eye(ranks, dtype=np.int64))[0].sum() / sizes.experts)


def send_tokens(
    plan_expert: np.ndarray, plan_die: np.ndarray, plan_tokens: np.ndarray, origins: np.ndarray, hops: np.ndarray
) -> np.ndarray:
    """Tokens (one per token and expert) that home dies send to executing dies, int64[home, die].

    An entry takes tokens that live on its own die first, then from the nearest dies (ties to the lower id).
    """
    sent = np.zeros(hops.shape, np.int64)
    _sum_by_die(plan_die, _tokens_taken(plan_expert, plan_die, plan_tokens, origins, hops), sent)
    return sent


def _tokens_taken(plan_expert, plan_die, plan_tokens, origins, hops) -> np.ndarray:
    """Tokens of each home that an entry of the plan runs, int64[entry, home]; see ``send_tokens``."""
    dies, farthest = len(hops), int(hops.max(initial=0))
    taken, left = np.zeros((len(plan_expert), dies), np.int64), np.zeros(dies, np.int64)
    plan = plan_expert.astype(np.int32), plan_die.astype(np.int32), plan_tokens.astype(np.int64)  # one compiled form
    origins, hops = np.ascontiguousarray(origins, np.int64), np.ascontiguousarray(hops, np.int32)
    _share_tokens(*plan, origins, hops, farthest, left, taken)
    return taken


@compiled.kernel
def _share_tokens(plan_expert, plan_die, wanted, origins, hops, farthest, left, taken):
    """Fill ``taken``; ``wanted``: int64[entry], used up; ``left``: int64[die], scratch."""
    dies, begin = len(hops), 0
    while begin < len(plan_expert):
        end = begin
        while end < len(plan_expert) and plan_expert[end] == plan_expert[begin]:
            end += 1
        living = np.int64(0)
        for home in range(dies):
            left[home] = origins[home, plan_expert[begin]]
            living += left[home]
        if end == begin + 1 and living <= wanted[begin]:  # no other entry, and room for all
            for home in range(dies):
                taken[begin, home] = left[home]
            begin = end
            continue
        for reach in range(farthest + 1):
            for entry in range(begin, end):
                die = plan_die[entry]
                for home in range(dies):
                    if hops[home, die] == reach and left[home] > 0 and wanted[entry] > 0:
                        tokens = min(left[home], wanted[entry])
                        taken[entry, home] += tokens
                        left[home] -= tokens
                        wanted[entry] -= tokens
        begin = end


@compiled.kernel
def _sum_by_die(plan_die, taken, sent):
    for home in range(len(sent)):
        for entry in range(len(plan_die)):
            sent[home, plan_die[entry]] += taken[entry, home]


@compiled.kernel
def _count_once(experts, die, first, runs_all, plan_die, taken, done, last, sent):
    """Add one to ``sent: int64[home, die]`` for every token and every die that runs one of its experts.

    ``first``: int64[expert + 1], the plan's entries of each expert; ``runs_all``: int64[expert], the die that runs all
    of its tokens, -1 if there is none; ``taken``: see ``_tokens_taken``, used up where there is none; ``done``:
    int64[home, expert], zeros: entries of the expert that have all of their tokens of a home; ``last``: int64[die], -1:
    the token sent there last.
    """
    for token in range(len(experts)):
        home = compiled.unsigned(die[token])
        for rank in range(experts.shape[1]):
            expert = compiled.unsigned(experts[token, rank])
            target = runs_all[expert]
            if target < 0:
                entry, end = first[expert] + done[home, expert], first[expert + compiled.unsigned(1)]
                while entry < end and taken[compiled.unsigned(entry), home] <= 0:
                    entry += 1
                done[home, expert] = entry - first[expert]
                if entry < end:
                    taken[compiled.unsigned(entry), home] -= 1
                    target = np.int64(plan_die[compiled.unsigned(entry)])
            if target >= 0:
                sent[home, compiled.unsigned(target)] += last[compiled.unsigned(target)] != token
                last[compiled.unsigned(target)] = token


@compiled.kernel
def _expect_none(router_group, plan_die, taken, tokens, sizes, absent, before, none):
    """Fill ``none: float64[home, die]`` (ones), the probability that a token of a home has no expert on a die (or a
    group of dies).

    ``router_group``: int64[entry], ascending: the group of experts that the router sees; ``tokens``: float64[home];
    ``absent`` (ones), ``before`` (zeros): float64[die], the same probability, and the sum of p, of one home within the
    group of experts at hand.
    """
    taking = sizes.top_groups / sizes.groups  # probability of a group
    for home in range(len(none)):
        begin = 0
        while begin < len(plan_die):
            end = begin
            while end < len(plan_die) and router_group[end] == router_group[begin]:
                if taken[end, home] > 0:
                    die = plan_die[end]
                    p = taken[end, home] / (tokens[home] * taking)
                    rest = sizes.top_k - before[die]
                    absent[die] *= 1.0 - (min(1.0, p * sizes.top_k / rest) if rest > 0.0 else 1.0)
                    before[die] += p
                end += 1
            for entry in range(begin, end):
                die = plan_die[entry]
                none[home, die] *= 1.0 - taking + taking * absent[die]
                absent[die], before[die] = 1.0, 0.0
            begin = end
