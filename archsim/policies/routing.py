"""Routing: which of the router's choices are executed. ``as_chosen``: all of them.

A rule is a function ``(batch: Pass, **parameters) -> Executed``, called for one layer and one forward pass. Scores are
the trace's, where it has them; else they are generated (`gate_scores`): the logarithms of two neighbouring ranks r and
r + 1 differ by an exponential variable of mean 1/r, as those of the largest of many independent logits with an
exponential tail do (Rényi 1953); all depends on the seed alone. Candidates beyond the chosen ones, which no trace
records, are drawn by the popularity of experts in the pass, and their scores continue those of the chosen by that law.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from archsim.policies.capacity import drop_experts, drop_pairs, expert_capacity, reroute_pairs

PASS_TOKENS = 8192  # of a forward pass, for a user's own rule that does not say


class Pass(NamedTuple):
    """One layer of one forward pass."""

    experts: np.ndarray  # int16[token, k] in rank order
    num_experts: int
    seed: tuple[int, ...]  # of draws: iteration, pass of it, layer
    scores: np.ndarray | None = None  # float64[token, k] the gate's, if the trace has them


class Executed(NamedTuple):
    """``experts``: int16[token, m], -1 where nothing is executed. Gate mass: sums of scores over all tokens."""

    experts: np.ndarray
    chosen_mass: float
    executed_mass: float


class RoutingRule(NamedTuple):
    """A rule, and the most tokens of a forward pass."""

    pass_tokens: int
    rule: Callable[[Pass], Executed]


def gate_scores(tokens: int, ranks: int, generator: np.random.Generator) -> np.ndarray:
    """Scores of the first ``ranks`` experts of every token, float64[token, rank], falling, that sum to 1."""
    gaps = generator.standard_exponential((tokens, ranks)) / np.arange(1, ranks + 1)
    logits = np.cumsum(gaps[:, ::-1], axis=1)[:, ::-1]
    scores = np.exp(logits - logits[:, :1])
    return scores / scores.sum(axis=1, keepdims=True)


def scores_of(batch: Pass, generator: np.random.Generator) -> np.ndarray:
    """float64[token, k]: scores of the chosen experts, recorded or generated."""
    tokens, top_k = batch.experts.shape
    return gate_scores(tokens, top_k, generator) if batch.scores is None else batch.scores


def drop_rule(batch: Pass, gamma: float = 1.5, keep: str = "score", seed: int = 0) -> Executed:
    """Token Drop: every expert executes at most its capacity, the rest is dropped."""
    generator = np.random.default_rng([seed, *batch.seed])
    tokens, _ = batch.experts.shape
    scores = scores_of(batch, generator)
    position = np.broadcast_to(np.arange(tokens)[:, None], scores.shape)
    rank_by = {
        "score": -scores,
        "order": position,
        "reverse_order": -position,
        "random": generator.random(scores.shape),
    }[keep]
    kept = drop_pairs(batch.experts, rank_by, _capacity(batch, gamma))
    return _keep(batch.experts, kept, scores, scores)


def reroute_rule(batch: Pass, gamma: float = 1.5, rounds: int = 2, seed: int = 0) -> Executed:
    """Token Reroute: tokens that an expert above its capacity rejects choose again, among twice as many candidates."""
    generator = np.random.default_rng([seed, *batch.seed])
    tokens, top_k = batch.experts.shape
    popularity = np.cumsum(np.bincount(batch.experts.ravel(), minlength=batch.num_experts) + 1.0)
    drawn = np.searchsorted(popularity, generator.random((tokens, top_k)) * popularity[-1], side="right")
    chosen, scores = _with_more_scores(batch, generator)
    candidates = np.concatenate([chosen, drawn.astype(batch.experts.dtype)], axis=1)
    again = np.tril(candidates[:, :, None] == candidates[:, None, :], -1).any(axis=2)
    kept = reroute_pairs(candidates, np.where(again, 0.0, scores), top_k, _capacity(batch, gamma), rounds)
    return _keep(candidates, kept, scores, scores[:, :top_k])


def expert_drop(batch: Pass, share: float = 0.1, seed: int = 0) -> Executed:
    """Expert Drop: the least loaded share of the experts, rounded down, is not executed."""
    scores = scores_of(batch, np.random.default_rng([seed, *batch.seed]))
    load = np.bincount(batch.experts.ravel(), minlength=batch.num_experts)
    dropped = drop_experts(load, int(round(share * batch.num_experts, 9)))
    return _keep(batch.experts, ~np.isin(batch.experts, dropped), scores, scores)


def _with_more_scores(batch: Pass, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The chosen experts by falling score, and float64[token, 2k]: their scores, and those of k candidates behind."""
    tokens, top_k = batch.experts.shape
    if batch.scores is None:
        return batch.experts, gate_scores(tokens, 2 * top_k, generator)
    order = np.argsort(-batch.scores, axis=1, kind="stable")
    scores = np.take_along_axis(batch.scores, order, axis=1)
    gaps = generator.standard_exponential((tokens, top_k)) / np.arange(top_k, 2 * top_k)
    behind = scores[:, -1:] * np.exp(-np.cumsum(gaps, axis=1))
    return np.take_along_axis(batch.experts, order, axis=1), np.concatenate([scores, behind], axis=1)


def _capacity(batch: Pass, gamma: float) -> int:
    tokens, top_k = batch.experts.shape
    return expert_capacity(gamma, tokens, top_k, batch.num_experts)


def _keep(experts: np.ndarray, kept: np.ndarray, scores: np.ndarray, chosen: np.ndarray) -> Executed:
    none = experts.dtype.type(-1)
    return Executed(np.where(kept, experts, none), float(chosen.sum()), float(scores[kept].sum()))
