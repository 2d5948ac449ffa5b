"""Waterfill: which rank runs the shared expert for each token (SGLang's Waterfill).

The SGLang article on Waterfill and LPLB, "Waterfill Dispatch Strategy". Ranks are filled with shared slots up to a
common waterline. A token draws among its candidates in proportion to their slack; ranks other than its own
count 10/11, as they cost a transfer.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from archsim.policies.allocation import Plan, whole_shares
from archsim.policies.load import checked_count, checked_name

AWAY, AT_HOME = 10, 11  # a rank other than the source counts 10/11 (SGLang: a 10 % preference for the own rank)
LOAD_SCORES = ("routed", "routed_plus_local")
CANDIDATES = ("visited", "all", "sglang_dynamic")


class SharedPlan(NamedTuple):
    routed_load: np.ndarray  # int64[rank] routed (token, expert) slots on a rank
    waterline: int  # load up to which ranks are filled, in slots
    slack: np.ndarray  # int64[rank] distance to the waterline
    weights: np.ndarray  # int64[source, rank] of a draw, for the candidate ranks of a token
    destination: list[np.ndarray]  # [source] int64[token] the rank that runs its shared expert; -1: no valid expert


def waterfill(
    topk_ids: Sequence[ArrayLike],
    ranks: int,
    experts_per_rank: int,
    load_score: str = "routed",
    candidates: str = "visited",
    seed: int = 0,
) -> SharedPlan:
    """Assign every token of ``topk_ids[source] = int[token, k]`` a rank for its shared expert.

    Expert e lives on rank e // ``experts_per_rank``; ids of -1 are padding; a token without a valid id gets no shared
    slot (-1). ``load_score``: what a rank's slack is counted from, "routed" slots or "routed_plus_local" (its own
    tokens as well, as SGLang does). The waterline is ceil((all scores + shared slots) / ranks); shared slots are
    routed slots // k, as in SGLang: the number of tokens without padding. ``candidates``: "visited" the ranks of the
    token's experts and its own; "all"; "sglang_dynamic" all if no score is above the waterline, else visited. If
    all of a token's weights are 0 it goes to its own rank, or on to each candidate whose score is less than 10/11 of
    the best so far. Draws depend on ``seed`` alone. SGLang's static mode is one call for each source with the others'
    tokens left out and candidates "all".

    ValueError: sources that are not ``ranks`` in number, ids outside -1..experts - 1, different k.
    """
    checked_count(ranks, "ranks")
    checked_count(experts_per_rank, "experts_per_rank")
    checked_name(load_score, "load_score", LOAD_SCORES)
    checked_name(candidates, "candidates", CANDIDATES)
    ids, source = _stack(topk_ids, ranks, ranks * experts_per_rank)
    visits = _visits(ids, ranks, experts_per_rank)
    routed = visits.sum(axis=0)
    score = routed + (np.bincount(source, minlength=ranks) if load_score == "routed_plus_local" else 0)
    shared = int(routed.sum()) // max(1, ids.shape[1])
    waterline, slack, weights = shared_weights(score, shared)
    everywhere = candidates == "all" or (candidates == "sglang_dynamic" and score.max() <= waterline)
    open_to = np.ones_like(visits, bool) if everywhere else visits > 0
    open_to[np.arange(len(ids)), source] = True
    destination = _draw(weights[source] * open_to, np.random.default_rng(seed))
    stuck = np.flatnonzero((weights[source] * open_to).sum(axis=1) == 0)
    destination[stuck] = _least_loaded(score, source[stuck], open_to[stuck])
    destination[~visits.any(axis=1)] = -1
    starts = np.searchsorted(source, np.arange(1, ranks))
    return SharedPlan(routed, waterline, slack, weights, np.split(destination, starts))


def shared_weights(score: np.ndarray, shared: int) -> tuple[int, np.ndarray, np.ndarray]:
    """(waterline, slack int64[rank], weights int64[source, rank]) of ``shared`` slots on ranks of load ``score``."""
    waterline = -(-int(score.sum() + shared) // len(score))
    slack = np.maximum(waterline - score, 0)
    return waterline, slack, np.where(np.eye(len(score), dtype=bool), slack, slack * AWAY // AT_HOME)


def _stack(topk_ids: Sequence[ArrayLike], ranks: int, experts: int) -> tuple[np.ndarray, np.ndarray]:
    """(ids int64[token, k], source int64[token]) of all sources one after the other."""
    if len(topk_ids) != ranks:
        raise ValueError(
            f"topk_ids has {len(topk_ids)} sources; expected one for each of {ranks} ranks, [] for an idle one"
        )
    tables = [np.asarray(table) for table in topk_ids]
    filled = [table for table in tables if table.size]
    if any(table.ndim != 2 or table.dtype.kind not in "iu" for table in filled):
        raise ValueError("topk_ids: expected whole numbers [token, k] for each source")
    widths = {table.shape[1] for table in filled}
    if len(widths) > 1:
        raise ValueError(f"topk_ids have {sorted(widths)} experts per token; expected one k for all sources")
    source = np.repeat(np.arange(ranks), [len(table) if table.size else 0 for table in tables])
    ids = np.concatenate(filled).astype(np.int64) if filled else np.zeros((0, 1), np.int64)
    if filled and not -1 <= ids.min() <= ids.max() < experts:
        raise ValueError(f"topk_ids has ids {ids.min()}..{ids.max()}; expected 0..{experts - 1}, or -1 for padding")
    return ids, source


def _visits(ids: np.ndarray, ranks: int, experts_per_rank: int) -> np.ndarray:
    """int64[token, rank] how many of a token's experts live on a rank."""
    token, place = np.nonzero(ids >= 0)
    visits = np.zeros((len(ids), ranks), np.int64)
    np.add.at(visits, (token, ids[token, place] // experts_per_rank), 1)
    return visits


def _draw(weights: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """int64[token] a rank drawn in proportion to weights[token, rank] (arbitrary where they are all 0)."""
    upto = np.cumsum(weights, axis=1)
    drawn = np.floor(generator.random(len(weights)) * upto[:, -1])
    return (upto > drawn[:, None]).argmax(axis=1)


def _least_loaded(score: np.ndarray, source: np.ndarray, open_to: np.ndarray) -> np.ndarray:
    """int64[token] from the source through the candidates in order, moving on if the score is clearly less."""
    best = source.copy()
    for rank in range(len(score)):
        better = open_to[:, rank] & (score[rank] * AT_HOME < score[best] * AWAY)
        best[better] = rank
    return best


# Where the shared experts of tokens run: at home (``local``), or by Waterfill.
#
# A rule is a function ``(tokens, load, **parameters) -> int64[die, die]``: of ``tokens: int64[die]`` that live on a
# die, how many have their shared experts run on each die; ``load: float64[die, die]`` are the routed pairs of the
# tokens that live on the first die, by the die that runs them (`sent_pairs`). A user's own rule gets the sums of all
# that each runs, int64[die].


def sent_pairs(plan: Plan, origins: np.ndarray) -> np.ndarray:
    """float64[die, die]: routed pairs of the tokens that live on the first die, by the die that runs them; each
    expert's pairs go to its dies in the proportion of the plan. origins: int[die, expert].
    """
    dies, experts = origins.shape
    given = np.zeros((experts, dies))
    np.add.at(given, (plan.expert, plan.die), plan.tokens)
    return np.asarray(origins @ (given / np.maximum(given.sum(axis=1, keepdims=True), 1)))


def waterfill_rule(
    tokens: np.ndarray, load: np.ndarray, least_tokens: int = 64, loads: str = "all", kernel: str = "apart"
) -> np.ndarray:
    """Dies below the waterline take tokens in proportion to their slack, other dies' tokens at 10/11 of it.

    Waterfill in expectation rather than by a draw for each token. Dies with fewer than ``least_tokens`` tokens keep
    theirs, as in SGLang. ``loads``: "all" is SGLang's dynamic mode with a load above the waterline: the load of a die
    is that of all pairs and of its own tokens, and a token may go to its own die and to those that its experts are
    on, or stays if none has slack. Where no load is above it, SGLang opens all dies; this rule does not. "own" is the
    static mode (--init-expert-location): of the die's own pairs, to any die. ``kernel`` is the engine's.
    """
    if loads == "all":
        everybody = shared_weights(np.round(load.sum(axis=0)).astype(np.int64) + tokens, int(tokens.sum()))[2]
    sent = np.diag(tokens).astype(np.int64)
    for die in np.flatnonzero(tokens >= max(1, least_tokens)).tolist():
        if loads == "own":
            score = np.round(load[die]).astype(np.int64)
            shares = shared_weights(score, int(tokens[die]))[2][die].astype(float)
            if not shares.any():
                shares[_least_loaded(score, np.array([die]), np.ones((1, len(score)), bool))] = 1.0
        elif everybody[die].any():
            shares = _drawn_of_visited(everybody[die], load[die], tokens[die], die)
        else:
            continue
        sent[die] = whole_shares(int(tokens[die]), shares)
    return sent


_FALLS = np.geomspace(1e-4, 1e5, 145)  # where the integral is taken; the largest weight is 1, the least counted 1e-4


def _drawn_of_visited(weights: np.ndarray, pairs: np.ndarray, tokens: int, own: int) -> np.ndarray:
    """float64[die]: the share of a die's ``tokens`` that goes to each, in proportion to ``weights`` of those it visits.

    A token visits each die by chance, by as many draws as it has experts. The mean of a weight over the sum of those
    visited is the integral over t of weight * exp(-t * sum), in which dies are factors.
    """
    experts = max(1.0, pairs.sum() / tokens)
    chance = 1 - (1 - np.minimum(1.0, pairs / tokens / experts)) ** experts
    chance[own] = 1.0
    weight = weights / weights.max()
    falls = np.exp(-_FALLS[:, None] * weight)
    factors = 1 - chance + chance * falls
    others = factors.prod(axis=1, keepdims=True) / np.maximum(factors, 1e-300)
    found = np.trapezoid(weight * chance * falls * others * _FALLS[:, None], np.log(_FALLS), axis=0)
    found[own] += max(0.0, 1 - found.sum())  # of those that visit none with slack
    return found
