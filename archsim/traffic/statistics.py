"""Statistics of routing: loads, pairs of experts, reuse, working sets, and their uncertainty.

Definitions follow section III of Yu et al., ISCA 2026 (arXiv 2510.05497v4), where it gives one; a figure of a trace
is the mean over its layers of the figure of a layer. All functions take a `Trace`, or tables counted from one.
"""

from dataclasses import replace

import numpy as np

from archsim.base.compiled import allocating
from archsim.traffic.trace import Trace

TOP = 0.2
"""The share of pairs, or of experts, whose part of all selections is quoted (figures 4 and 5 of the paper)."""

STRONG = 0.7
"""Spearman coefficient from which the paper calls an agreement strong."""

FAR = 32
"""Distance at which two tokens of a request count as distant: they share its subject, but rarely a phrase."""


def loads(trace: Trace, rows: np.ndarray | None = None) -> np.ndarray:
    """int64[layer, expert]: selections, of all rows or of those where bool[token] `rows` is set."""
    counts = np.zeros((len(trace.layer_ids), trace.num_experts), np.int64)
    _count_loads(trace.experts, np.ones(len(trace.experts), np.bool_) if rows is None else rows, counts)
    return counts


def cross_layer(trace: Trace) -> np.ndarray:
    """uint32[layer - 1, i, j]: tokens that chose expert i at a layer and j at the next MoE layer of the trace."""
    layers, experts = len(trace.layer_ids), trace.num_experts
    counts = np.zeros((max(layers - 1, 0), experts, experts), np.uint32)
    _count_cross_layer(trace.experts, counts)
    return counts


def cross_token(trace: Trace, lag: int = 1) -> np.ndarray:
    """uint32[layer, i, j]: tokens that chose j, where the token `lag` before it in its request chose i."""
    counts = np.zeros((len(trace.layer_ids), trace.num_experts, trace.num_experts), np.uint32)
    _count_cross_token(trace.experts, trace.request_offsets, lag, counts)
    return counts


def coactivation(trace: Trace) -> np.ndarray:
    """uint32[layer, i, j]: tokens that chose both i and j ≠ i; symmetric, zero on the diagonal."""
    counts = np.zeros((len(trace.layer_ids), trace.num_experts, trace.num_experts), np.uint32)
    _count_coactivation(trace.experts, counts)
    return counts


def coverage(counts: np.ndarray, top: float = TOP) -> np.ndarray:
    """float64[layer]: part of all selections in the `top` share of entries of a layer, ranked on the same data.

    counts: [layer, i, j] (all E² pairs count, chosen or not), or [layer, expert]. NaN where there are none.
    """
    flat = counts.reshape(len(counts), -1)
    keep = max(1, round(top * flat.shape[1]))
    largest = np.partition(flat, flat.shape[1] - keep, axis=1)[:, -keep:]
    return _ratio(largest.sum(axis=1, dtype=np.float64), flat.sum(axis=1, dtype=np.float64))


def coverage_unseen(ranking: np.ndarray, counts: np.ndarray, top: float = TOP) -> np.ndarray:
    """float64[layer]: part of the selections `counts` in the `top` share of entries that another table ranks highest.

    Both [layer, i, j]. What ranking and counting the same data adds to `coverage` is not in it.
    """
    ranks, flat = (table.reshape(len(table), -1) for table in (ranking, counts))
    falling = np.argsort(-ranks.astype(np.result_type(ranks, np.int64)), axis=1, kind="stable")
    largest = falling[:, : max(1, round(top * flat.shape[1]))]
    covered = np.take_along_axis(flat, largest, axis=1).sum(axis=1, dtype=np.float64)
    return _ratio(covered, flat.sum(axis=1, dtype=np.float64))


def conditional_coverage(counts: np.ndarray, top: float = TOP) -> np.ndarray:
    """float64[layer]: as `coverage` of pairs [layer, i, j], but pairs are ranked by how probable j is after i.

    Pairs of a rare i then come before frequent pairs of a popular one, so it is never above `coverage`.
    """
    given = _ratio(counts.astype(np.float64), counts.sum(axis=2, keepdims=True, dtype=np.float64))
    return coverage_unseen(np.nan_to_num(given), counts, top)


def cumulative_coverage(counts: np.ndarray, points: np.ndarray) -> np.ndarray:
    """float64[layer, point]: `coverage` at every share in `points`."""
    flat = -np.sort(-counts.reshape(len(counts), -1).astype(np.float64), axis=1)
    total = np.cumsum(flat, axis=1)
    at = np.clip(np.round(points * flat.shape[1]).astype(int) - 1, 0, flat.shape[1] - 1)
    return _ratio(total[:, at], total[:, -1:])


def pair_coverage(counts: np.ndarray, top: float = TOP) -> np.ndarray:
    """float64[layer]: `coverage` of unordered pairs i < j of a symmetric table [layer, i, j] (figure 8)."""
    above = np.triu_indices(counts.shape[1], 1)
    return coverage(counts[:, above[0], above[1]], top)


def mutual_information(counts: np.ndarray) -> np.ndarray:
    """float64[layer]: bits that one expert of a pair tells of the other, from pairs [layer, i, j]; few pairs add about
    (E − 1)² / (2 · pairs · ln 2) bits (Miller, 1955), so compare tables of as many.
    """
    share = counts / np.maximum(counts.sum(axis=(1, 2), keepdims=True), 1)
    alone = share.sum(axis=2, keepdims=True) * share.sum(axis=1, keepdims=True)
    ratio = np.divide(share, alone, out=np.ones(share.shape), where=share > 0)
    return (share * np.log2(ratio)).sum(axis=(1, 2))


def spearman(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """float64[layer]: rank correlation of two tables [layer, expert]; ties share mean ranks; NaN: one is constant."""
    ranks = [_mean_ranks(table) for table in (one, other)]
    centred = [rank - rank.mean(axis=1, keepdims=True) for rank in ranks]
    power = np.sqrt((centred[0] ** 2).sum(axis=1) * (centred[1] ** 2).sum(axis=1))
    return _ratio((centred[0] * centred[1]).sum(axis=1), power)


def heatmap_agreement(trace: Trace) -> dict[str, np.ndarray]:
    """``cross_layer`` float64[layer - 1], ``cross_token`` float64[layer]: Spearman coefficient, over all pairs of
    experts, of the heatmaps of prefill and of decode (figure 6); empty if a phase is missing. Most pairs are rare, so
    it is low unless a trace is long: `heatmap_ceiling`.
    """
    prefill = trace.iteration == 0
    if prefill.all() or not prefill.any():
        return {}
    return _agreement_of(rows_of(trace, prefill), rows_of(trace, ~prefill))


def heatmap_ceiling(trace: Trace) -> dict[str, np.ndarray]:
    """Like `heatmap_agreement` between the halves of the requests: the most that such a trace can show."""
    return _agreement_of(*halves(trace))


def _agreement_of(one: Trace, other: Trace) -> dict[str, np.ndarray]:
    return {
        name: spearman(*(table.reshape(len(table), -1) for table in (count(one), count(other))))
        for name, count in (("cross_layer", cross_layer), ("cross_token", cross_token))
    }


def max_over_mean(counts: np.ndarray) -> np.ndarray:
    """float64[layer]: load of the most loaded expert over the mean load. counts: [layer, expert]."""
    return _ratio(counts.max(axis=1).astype(np.float64), counts.mean(axis=1))


def gini(counts: np.ndarray) -> np.ndarray:
    """float64[layer]: Gini coefficient of the loads: 0 equal, 1 − 1/E where one has everything."""
    ordered = np.sort(counts, axis=1).astype(np.float64)
    experts = counts.shape[1]
    weight = 2 * np.arange(1, experts + 1) - experts - 1
    return _ratio((ordered * weight).sum(axis=1), experts * ordered.sum(axis=1))


def same_expert(trace: Trace, lag: int = 1) -> np.ndarray:
    """float64[layer]: share of a token's experts that the token `lag` before it in its request had too."""
    shared = np.zeros(len(trace.layer_ids), np.int64)
    tokens = _count_shared(trace.experts, trace.request_offsets, lag, shared)
    return shared / (tokens * trace.top_k) if tokens else np.full(len(shared), np.nan)


def layer_statistics(trace: Trace) -> dict[str, np.ndarray]:
    """Name → float64[layer] (one less across layers): what synthetic traffic is compared with a trace by.

    Omitted where undefined: co-activation of top-1 models, agreement of the phases where one is missing.
    """
    counts, prefill = loads(trace), trace.iteration == 0
    found = {
        "cross_layer_top20": coverage(cross_layer(trace)),
        "cross_token_top20": coverage(cross_token(trace)),
        "max_over_mean": max_over_mean(counts),
        "gini": gini(counts),
        "load_top20": coverage(counts),
        "same_expert": same_expert(trace),
        "same_expert_far": same_expert(trace, FAR),
    }
    if prefill.any() and not prefill.all():
        found["prefill_decode_spearman"] = spearman(loads(trace, prefill), loads(trace, ~prefill))
    if trace.top_k > 1:
        found["coactivation_top20"] = pair_coverage(coactivation(trace))
    return found


def subset(trace: Trace, requests: np.ndarray) -> Trace:
    """The trace of some requests (int64[n]), in the given order."""
    length = np.diff(trace.request_offsets)[requests]
    offsets = np.concatenate([[0], np.cumsum(length)])
    row = np.repeat(trace.request_offsets[requests] - offsets[:-1], length) + np.arange(offsets[-1])
    return replace(
        trace,
        experts=trace.experts[row],
        request_offsets=offsets,
        iteration=trace.iteration[row],
        request_subject=trace.request_subject[requests],
    )


def rows_of(trace: Trace, rows: np.ndarray) -> Trace:
    """The trace of the tokens where bool[token] `rows`; a request may be left with none."""
    before = np.concatenate([[0], np.cumsum(rows)])
    return replace(
        trace,
        experts=trace.experts[rows],
        iteration=trace.iteration[rows],
        request_offsets=before[trace.request_offsets],
    )


def halves(trace: Trace) -> tuple[Trace, Trace]:
    """The even and the odd requests of every subject: halves with the same mix of subjects."""
    order = np.argsort(trace.request_subject, kind="stable")
    return subset(trace, np.sort(order[::2])), subset(trace, np.sort(order[1::2]))


def null_pairs(first: np.ndarray, second: np.ndarray, pairs: np.ndarray, seed: int = 0) -> np.ndarray:
    """int64[layer, i, j]: as many pairs as were counted, drawn from the loads alone: j independent of i.

    first, second: loads [layer, expert] of either side. pairs: int64[layer], how many. What a table of measured pairs
    has beyond these is structure; what these have beyond a flat table is popularity and chance.
    """
    generator = np.random.default_rng(seed)
    drawn = np.zeros((len(pairs), first.shape[1], second.shape[1]), np.int64)
    for layer, count in enumerate(pairs):
        share = np.outer(first[layer] / first[layer].sum(), second[layer] / second[layer].sum())
        drawn[layer] = generator.multinomial(int(count), share.ravel() / share.sum()).reshape(share.shape)
    return drawn


def reuse_distances(trace: Trace, longest: int = 256) -> np.ndarray:
    """int64[distance + 1]: selections by the tokens since the request last chose this expert at this layer.

    Entry d (1 to `longest`) counts distance d, longer ones at `longest`; entry 0 counts first uses. Summed over layers.
    """
    counts = np.zeros(longest + 1, np.int64)
    last = np.zeros((len(trace.layer_ids), trace.num_experts), np.int64)
    _count_reuse(trace.experts, trace.request_offsets, last, counts)
    return counts


def working_set(trace: Trace, batches: tuple[int, ...], draws: int = 32, seed: int = 0) -> np.ndarray:
    """float64[batch, layer]: distinct experts that a decode step of so many requests chooses. NaN where no step of the
    trace has so many.

    Mean of `draws` draws: a step, in proportion to its requests, and requests of that step without replacement. In a
    trace of prompts only, tokens of equal position count as a step.
    """
    rows, step = _steps_of_rows(trace)
    order = np.argsort(step, kind="stable")
    _, first, size = np.unique(step[order], return_index=True, return_counts=True)
    generator = np.random.default_rng(seed)
    found = np.full((len(batches), len(trace.layer_ids)), np.nan)
    for index, batch in enumerate(batches):
        share = np.where(size >= batch, size, 0)
        if not share.any():
            continue
        found[index] = 0
        for at in generator.choice(len(size), size=draws, p=share / share.sum()):
            drawn = first[at] + generator.choice(size[at], size=batch, replace=False)
            chosen = trace.experts[rows[order[drawn]]]
            found[index] += (loads_of(chosen, trace.num_experts) > 0).sum(axis=1) / draws
    return found


def _steps_of_rows(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Decode rows int64[n] (all, where there are none), and the step of each int64[n]."""
    rows = np.flatnonzero(trace.iteration > 0)
    if len(rows):
        return rows, trace.iteration[rows]
    length = np.diff(trace.request_offsets)
    rows = np.arange(len(trace.iteration))
    return rows, rows - np.repeat(trace.request_offsets[:-1], length)


def drift(trace: Trace, stretches: int = 4) -> np.ndarray:
    """float64[part, layer]: total variation distance of the loads of each stretch of a request from its first stretch.

    Stretches are equal parts of the decode steps of every request (of all its rows, if it has no decode steps).
    """
    row = np.arange(len(trace.iteration))
    owner = np.repeat(np.arange(trace.requests), np.diff(trace.request_offsets))
    decode = trace.iteration > 0 if (trace.iteration > 0).any() else np.ones(len(row), bool)
    place = np.cumsum(decode) - 1
    start = np.concatenate([[0], np.cumsum(decode)])[trace.request_offsets]
    part = (place - start[owner]) * stretches // np.maximum(np.diff(start)[owner], 1)
    shares = [_shares(loads(trace, decode & (part == index))) for index in range(stretches)]
    return np.stack([np.abs(share - shares[0]).sum(axis=1) / 2 for share in shares])


def predictable(heat: np.ndarray, following: np.ndarray, top: float = TOP) -> np.ndarray:
    """float64[layer]: part of the pairs `following` [layer, i, j] whose j is in the `top` largest of row i of `heat`.

    The hit rate of a heatmap predictor. Where both are counted from the same pairs it is the ceiling: no choice of as
    many experts per row, fixed over time, would have done better.
    """
    keep = max(1, round(top * heat.shape[2]))
    hits = np.zeros(len(heat))
    for layer in range(len(heat)):
        hot = np.argsort(-heat[layer].astype(np.int64), axis=1, kind="stable")[:, :keep]
        hits[layer] = np.take_along_axis(following[layer], hot, axis=1).sum(dtype=np.float64)
    return _ratio(hits, following.sum(axis=(1, 2), dtype=np.float64))


def subject_loads(trace: Trace) -> np.ndarray:
    """int64[subject, layer, expert]: selections of the tokens of every subject."""
    owner = np.repeat(trace.request_subject, np.diff(trace.request_offsets))
    return np.stack([loads(trace, owner == subject) for subject in range(len(trace.subject_names))])


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(np.broadcast(part, whole).shape, np.nan), where=whole > 0)


def _shares(counts: np.ndarray) -> np.ndarray:
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def _mean_ranks(table: np.ndarray) -> np.ndarray:
    ranks = np.empty(table.shape)
    for layer, values in enumerate(table):
        _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
        ranks[layer] = (np.cumsum(count) - (count - 1) / 2)[inverse]
    return ranks


def loads_of(experts: np.ndarray, num_experts: int) -> np.ndarray:
    counts = np.zeros((experts.shape[1], num_experts), np.int64)
    _count_loads(experts, np.ones(len(experts), np.bool_), counts)
    return counts


@allocating
def _count_loads(experts, rows, counts):
    """Add the rows of experts int16[n, layer, k] where rows bool[n] to counts int64[layer, expert]."""
    tokens, layers, top_k = experts.shape
    for row in range(tokens):
        if rows[row]:
            for layer in range(layers):
                for rank in range(top_k):
                    counts[layer, experts[row, layer, rank]] += 1


@allocating
def _count_cross_layer(experts, counts):
    tokens, layers, top_k = experts.shape
    for layer in range(layers - 1):
        for row in range(tokens):
            for first in range(top_k):
                for second in range(top_k):
                    counts[layer, experts[row, layer, first], experts[row, layer + 1, second]] += np.uint32(1)


@allocating
def _count_cross_token(experts, offsets, lag, counts):
    layers, top_k = experts.shape[1:]
    for layer in range(layers):
        for request in range(len(offsets) - 1):
            for row in range(offsets[request] + lag, offsets[request + 1]):
                for first in range(top_k):
                    for second in range(top_k):
                        counts[layer, experts[row - lag, layer, first], experts[row, layer, second]] += np.uint32(1)


@allocating
def _count_coactivation(experts, counts):
    tokens, layers, top_k = experts.shape
    for layer in range(layers):
        for row in range(tokens):
            for first in range(top_k):
                for second in range(top_k):
                    if first != second:
                        counts[layer, experts[row, layer, first], experts[row, layer, second]] += np.uint32(1)


@allocating
def _count_shared(experts, offsets, lag, shared):
    """Add to shared int64[layer] the experts that tokens `lag` apart have in common; returns the number of tokens."""
    layers, top_k = experts.shape[1:]
    tokens = 0
    for request in range(len(offsets) - 1):
        for row in range(offsets[request] + lag, offsets[request + 1]):
            tokens += 1
            for layer in range(layers):
                for first in range(top_k):
                    for second in range(top_k):
                        shared[layer] += experts[row - lag, layer, first] == experts[row, layer, second]
    return tokens


@allocating
def _count_reuse(experts, offsets, last, counts):
    """See `reuse_distances`; last int64[layer, expert] is 1 + the row that chose an expert last."""
    layers, top_k = experts.shape[1:]
    for request in range(len(offsets) - 1):
        for row in range(offsets[request], offsets[request + 1]):
            for layer in range(layers):
                for rank in range(top_k):
                    expert = experts[row, layer, rank]
                    seen = last[layer, expert] - 1
                    distance = min(row - seen, len(counts) - 1) if seen >= offsets[request] else 0
                    counts[distance] += 1
                    last[layer, expert] = row + 1
