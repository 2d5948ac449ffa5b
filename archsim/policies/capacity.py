"""Capacity-aware routing: no expert executes more than C tokens (Capacity-Aware Inference, section 4, Algorithm 1).

Token drop discards an expert's excess tokens; token reroute lets them choose again among other experts; expert drop
discards whole experts. Scores are the gate's; a score of 0 is never chosen. Deviating from errors in the printed
algorithm, thresholds are computed over the tokens that chose the expert, and only for experts above C.
"""

import math
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from archsim.policies.load import checked_count, checked_load, checked_name

KEEPS = ("score", "order", "reverse_order", "random")


def expert_capacity(gamma: float, tokens: int, top_k: int, experts: int, rounding: str = "ceil") -> int:
    """Tokens that an expert may execute: gamma * tokens * top_k / experts.

    Capacity-Aware Inference, equation 6. ``rounding``: "floor", or "ceil" and at least 1: the lower limit is the
    reference implementation's. ``gamma`` is taken as the decimal number that it prints as, so that 1.1 * 10 is exactly
    11. ValueError: negative gamma, no experts.
    """
    checked_name(rounding, "rounding", ("ceil", "floor"))
    if not (math.isfinite(gamma) and gamma >= 0):
        raise ValueError(f"gamma is {gamma}; expected a number >= 0")
    checked_count(tokens, "tokens", least=0)
    checked_count(top_k, "top_k", least=0)
    checked_count(experts, "experts")
    capacity = Fraction(str(float(gamma))) * int(tokens) * int(top_k) / int(experts)
    return math.floor(capacity) if rounding == "floor" else max(1, math.ceil(capacity))


def drop(scores: ArrayLike, top_k: int, capacity: int, keep: str = "score", seed: int = 0) -> np.ndarray:
    """The executed pairs, bool[token, expert], if each expert keeps min(its tokens, ``capacity``) of those that chose
    it.

    ``scores[token, expert]``: tokens choose their ``top_k`` best, all if there are fewer. ``keep``: "score" the largest
    scores; "order" the first tokens; "reverse_order" the last; "random" any, drawn with ``seed`` (Capacity-Aware
    Inference, section 4, scoring functions). Equal scores: the lower expert is chosen, the lower token kept.
    """
    scores = _check_scores(scores, top_k, capacity)
    checked_name(keep, "keep", KEEPS)
    tokens, experts = scores.shape
    chosen = _top_k(scores, top_k)
    position = np.broadcast_to(np.arange(tokens, dtype=float)[:, None], scores.shape)
    if keep == "score":
        rank_by = -scores
    elif keep == "random":
        rank_by = np.random.default_rng(seed).random(scores.shape)
    else:
        rank_by = position if keep == "order" else -position
    order = np.argsort(np.where(chosen, rank_by, np.inf), axis=0, kind="stable")
    kept = np.zeros_like(chosen)
    np.put_along_axis(kept, order[:capacity], True, axis=0)
    return kept & chosen


def reroute(scores: ArrayLike, top_k: int, capacity: int, rounds: int) -> np.ndarray:
    """The executed pairs after ``rounds`` of choosing and rejecting, bool[token, expert].

    In each round all tokens choose their ``top_k`` best of ``scores[token, expert]``; an expert with N > ``capacity``
    tokens rejects those with one of its N - capacity lowest scores, and their scores become 0. Scores equal to that
    threshold are all rejected, as printed (`drop` keeps exactly ``capacity``). The last round's choices minus its
    rejections are executed; a token may be left with fewer than ``top_k`` experts. Capacity-Aware Inference,
    Algorithm 1.
    """
    scores = _check_scores(scores, top_k, capacity).copy()
    for _ in range(checked_count(rounds, "rounds")):
        chosen = _top_k(scores, top_k)
        rejected = chosen & (scores <= _thresholds(scores, chosen, capacity))
        scores[rejected] = 0.0
        kept = chosen & ~rejected
    return kept


def drop_pairs(experts: np.ndarray, rank_by: np.ndarray, capacity: int) -> np.ndarray:
    """Of ``experts[token, k]``, all different in a row, the pairs that stay, bool[token, k]: each expert keeps the
    ``capacity`` of least ``rank_by[token, k]``, ties to the lower token. `drop` for pairs instead of all scores.
    """
    return (_place_in_expert(experts, rank_by) < capacity).reshape(experts.shape)


def reroute_pairs(candidates: np.ndarray, scores: np.ndarray, top_k: int, capacity: int, rounds: int) -> np.ndarray:
    """`reroute` for the candidates of each token alone: bool[token, candidate], the pairs that are executed.

    ``candidates[token, candidate]``: experts; ``scores``: theirs, falling; 0 for one that is not to be chosen.
    """
    alive = scores > 0
    for _ in range(rounds):
        chosen = alive & (np.cumsum(alive, axis=1) <= top_k)
        token, at = np.nonzero(chosen)
        expert, score = candidates[token, at].astype(np.int64), scores[token, at]
        excess = np.bincount(expert) - capacity
        order = np.lexsort((score, expert))
        begin = np.searchsorted(expert[order], np.arange(len(excess)))
        over = np.flatnonzero(excess > 0)
        threshold = np.full(len(excess), -1.0)
        threshold[over] = score[order][begin[over] + excess[over] - 1]
        rejected = score <= threshold[expert]
        alive[token[rejected], at[rejected]] = False
        kept = np.zeros_like(chosen)
        kept[token[~rejected], at[~rejected]] = True
    return kept


def _place_in_expert(experts: np.ndarray, rank_by: np.ndarray) -> np.ndarray:
    """int64[pair] how many pairs of the same expert come before, by ``rank_by``, then by token."""
    flat = experts.ravel()
    order = np.lexsort((rank_by.ravel(), flat))
    ordered = flat[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(flat) else np.zeros(0, int)
    place = np.empty(len(flat), np.int64)
    place[order] = np.arange(len(flat)) - np.repeat(first, np.diff(np.append(first, len(flat))))
    return place


def drop_experts(load: ArrayLike, count: int) -> np.ndarray:
    """int64, ascending: the ``count`` experts of least ``load[expert]``, ties to the lowest, that are not executed
    (Expert Drop, Capacity-Aware Inference, section 5.2). ValueError: ``count`` above the number of experts.
    """
    load = checked_load(load, ("expert",))
    if checked_count(count, "count", least=0) > len(load):
        raise ValueError(f"count is {count}; expected at most {len(load)}, the number of experts")
    return np.sort(np.argsort(load, kind="stable")[:count])


def _check_scores(scores: ArrayLike, top_k: int, capacity: int) -> np.ndarray:
    scores = np.asarray(scores, dtype=np.float64)
    if scores.size == 0 and scores.ndim < 2:
        scores = scores.reshape(0, 0)
    checked_count(top_k, "top_k")
    checked_count(capacity, "capacity", least=0)
    return checked_load(scores, ("token", "expert"), "scores")


def _top_k(scores: np.ndarray, top_k: int) -> np.ndarray:
    """bool[token, expert] each token's ``top_k`` largest scores, the lowest expert of equal ones; never a 0."""
    chosen = np.zeros(scores.shape, bool)
    np.put_along_axis(chosen, np.argsort(-scores, axis=1, kind="stable")[:, :top_k], True, axis=1)
    return chosen & (scores > 0)


def _thresholds(scores: np.ndarray, chosen: np.ndarray, capacity: int) -> np.ndarray:
    """float64[expert] the (N - capacity)-th lowest score of N tokens that chose it; -1 where N <= capacity."""
    excess = chosen.sum(axis=0) - capacity
    ascending = np.sort(np.where(chosen, scores, np.inf), axis=0)
    over = np.flatnonzero(excess > 0)
    thresholds = np.full(scores.shape[1], -1.0)
    thresholds[over] = ascending[excess[over] - 1, over]
    return thresholds
