"""The profile of a trace: every statistic, its sampling error, and its verdict on the paper's six insights."""

from dataclasses import dataclass, replace

import numpy as np

from archsim.base.compiled import allocating
from archsim.workload.trace import Trace

# ---- statistics
# Statistics of routing: loads, pairs of experts, reuse, working sets, and their uncertainty.
#
# Definitions follow section III of Yu et al., ISCA 2026 (arXiv 2510.05497v4), where it gives one; a figure of a trace
# is the mean over its layers of the figure of a layer. All functions take a `Trace`, or tables counted from one.

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
    keep = max(1, round(top * flat.shape[1]))
    largest = np.argsort(-ranks.astype(np.int64), axis=1, kind="stable")[:, :keep]
    covered = np.take_along_axis(flat, largest, axis=1).sum(axis=1, dtype=np.float64)
    return _ratio(covered, flat.sum(axis=1, dtype=np.float64))


def conditional_coverage(counts: np.ndarray, top: float = TOP) -> np.ndarray:
    """float64[layer]: as `coverage` of pairs [layer, i, j], but pairs are ranked by how probable j is after i.

    Pairs of a rare i then come before frequent pairs of a popular one, so it is never above `coverage`.
    """
    flat = counts.reshape(len(counts), -1)
    given = _ratio(counts.astype(np.float64), counts.sum(axis=2, keepdims=True, dtype=np.float64)).reshape(flat.shape)
    keep = max(1, round(top * flat.shape[1]))
    largest = np.argsort(-np.nan_to_num(given), axis=1, kind="stable")[:, :keep]
    covered = np.take_along_axis(flat, largest, axis=1).sum(axis=1, dtype=np.float64)
    return _ratio(covered, flat.sum(axis=1, dtype=np.float64))


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
    """float64[layer]: bits that one expert of a pair tells of the other, from pairs [layer, i, j].

    As counted: few pairs add about (E − 1)² / (2 · pairs · ln 2) bits (Miller, 1955), so compare tables of as many.
    """
    share = counts / np.maximum(counts.sum(axis=(1, 2), keepdims=True), 1)
    alone = share.sum(axis=2, keepdims=True) * share.sum(axis=1, keepdims=True)
    ratio = np.divide(share, alone, out=np.ones(share.shape), where=share > 0)
    return (share * np.log2(ratio)).sum(axis=(1, 2))


def spearman(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """float64[layer]: rank correlation over the experts of two tables [layer, expert]; ties share their mean rank.

    NaN where one of the two is constant.
    """
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
    """Like `heatmap_agreement`, but between the two halves of the requests. It is the most that a trace of this length
    can show.
    """
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
    """float64[layer]: Gini coefficient of the loads; 0 where all experts are alike, 1 − 1/E where one
    has everything.
    """
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


# ---- profile

POINTS = np.array([0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
BATCHES = (1, 4, 16, 64, 256, 1024)
LONGEST_REUSE = 64
POPULAR = 10

DEFINITIONS = {
    "cross_layer_top20": "Tokens are counted by the pair (expert at a MoE layer, expert at the next one). Part of all "
    "selections in the most frequent 20 % of the E² pairs, ranked on the same data.",
    "cross_token_top20": "The same for (expert of a token, expert of the next token of the request) at one layer.",
    "cross_layer_conditional": "As cross_layer_top20, but pairs are ranked by the conditional probability of the second "  # noqa: E501
    "expert given the first, as the heatmaps show it. The paper counts the most frequent pairs: that is the figure "
    "above.",
    "cross_token_conditional": "As cross_token_top20, pairs ranked by conditional probability.",
    "prefill_decode_spearman": "Spearman rank correlation, over all experts of a layer (ties share their mean rank), of "  # noqa: E501
    "their loads in prefill and in decode.",
    "cross_layer_agreement": "Spearman rank correlation, over all pairs of experts, of the heatmaps across layers of "
    "prefill and of decode (figure 6). Most pairs are rare, so it is low unless a trace is long.",
    "cross_token_agreement": "The same of the heatmaps across tokens.",
    "cross_layer_ceiling": "The same of the heatmaps across layers of two halves of the requests: what a trace of this "
    "length can show.",
    "cross_token_ceiling": "The same of the heatmaps across tokens.",
    "max_over_mean": "Load of the most loaded expert over the mean load.",
    "gini": "Gini coefficient of the loads: 0 for equal loads, 1 − 1/E where one expert has all.",
    "load_top20": "Part of all selections that the most loaded 20 % of the experts get.",
    "coactivation_top20": "Part of all co-selections by one token in the most frequent 20 % of pairs i < j.",
    "same_expert": "Share of a token's experts that the token before it had too.",
    "same_expert_far": f"The same for the token {FAR} before it: what a request prefers, no phrase.",
    "cross_layer_null": "cross_layer_top20 of as many pairs drawn from the loads alone, layers independent.",
    "cross_token_null": "cross_token_top20 of as many pairs drawn from the loads alone, tokens independent.",
    "predictable_ceiling": "Pairs (token, next token) whose second expert is in the 20 % that a heatmap of the same "
    "pairs marks for the first: no fixed choice of as many experts does better.",
    "predictable_unseen": "The same with the heatmap of one half of the requests on the pairs of the other half.",
    "predictable_load": "The same with the most loaded 20 % of experts for all: what popularity alone predicts.",
    "drift": "Total variation distance of the loads of the last quarter of the requests' steps from the first quarter.",
    "subject_distance": "Mean total variation distance of the loads of pairs of subjects.",
}


@dataclass(frozen=True)
class Insight:
    """One of the six insights of Yu et al., ISCA 2026 (arXiv 2510.05497v4), section III."""

    number: int
    claim: str
    measured: str
    verdict: str


@dataclass(frozen=True)
class Profile:
    """The statistics of a trace.

    layers: name of `DEFINITIONS` → float64[layer] (shorter across layers). halves: name → means of the two halves; of
    pairs of experts, those of one half that the other half ranks highest.
    coverage: name → float64[point] over `POINTS`, mean over layers. heat: name → float64[i, j], conditional
    probabilities of the layer in the middle. loads: int64[layer, expert]; subject_loads: int64[subject, layer, expert].
    reuse: int64[distance + 1]. working_set: float64[batch, layer], NaN where no step has so many requests.
    """

    trace: Trace
    layers: dict[str, np.ndarray]
    halves: dict[str, tuple[float, float]]
    coverage: dict[str, np.ndarray]
    heat: dict[str, np.ndarray]
    loads: np.ndarray
    subject_loads: np.ndarray
    reuse: np.ndarray
    working_set: np.ndarray

    def mean(self, name: str) -> float:
        return _mean(self.layers[name]) if name in self.layers else float("nan")


def profile(trace: Trace) -> Profile:
    """Measure a trace; see `Profile`."""
    one, other = halves(trace)
    counts, across = loads(trace), cross_layer(trace)
    following = cross_token(trace)
    tables = {"cross_layer": across, "cross_token": following}
    if trace.top_k > 1:
        tables["coactivation"] = coactivation(trace)
    subjects = subject_loads(trace)
    agreement = heatmap_agreement(trace)
    ceiling = heatmap_ceiling(trace) if agreement else {}
    following_of_one, following_of_other = cross_token(one), cross_token(other)
    layers = layer_statistics(trace) | {
        "cross_layer_conditional": conditional_coverage(across),
        "cross_token_conditional": conditional_coverage(following),
        **{f"{name}_agreement": ranks for name, ranks in agreement.items()},
        **{f"{name}_ceiling": ranks for name, ranks in ceiling.items()},
        "cross_layer_null": _null(counts[:-1], counts[1:], across),
        "cross_token_null": _null(counts, counts, following),
        "predictable_ceiling": predictable(following, following),
        "predictable_unseen": predictable(following_of_one, following_of_other),
        "predictable_load": predictable(np.repeat(counts[:, None], trace.num_experts, axis=1), following),
        "drift": drift(trace)[-1],
    }
    if len(subjects) > 1:
        layers["subject_distance"] = _mean_distance(subjects)
    of_one, of_other = layer_statistics(one), layer_statistics(other)
    pairs = {"cross_token_top20": [following_of_one, following_of_other]}
    pairs["cross_layer_top20"] = [cross_layer(half) for half in (one, other)]
    if trace.top_k > 1:
        pairs["coactivation_top20"] = [coactivation(half) for half in (one, other)]
    middle = len(trace.layer_ids) // 2
    return Profile(
        trace=trace,
        layers=layers,
        halves={name: (_mean(values), _mean(of_other[name])) for name, values in of_one.items()}
        | {name: _each_by_the_other(*tables) for name, tables in pairs.items()},
        coverage={name: np.nanmean(cumulative_coverage(table, POINTS), axis=0) for name, table in tables.items() if len(table)},  # noqa: E501
        heat={name: _conditional(table[min(middle, len(table) - 1)]) for name, table in tables.items() if len(table)},
        loads=counts,
        subject_loads=subjects,
        reuse=reuse_distances(trace, LONGEST_REUSE),
        working_set=working_set(trace, BATCHES),
    )  # fmt: skip


def _mean(values: np.ndarray) -> float:
    """Over layers that have a value; nan if none has."""
    return float(np.mean(values[~np.isnan(values)])) if (~np.isnan(values)).any() else float("nan")


def _each_by_the_other(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Coverage of each half by the pairs that the other ranks highest, mean over layers."""
    return _mean(coverage_unseen(other, one)), _mean(coverage_unseen(one, other))


def insights(found: Profile) -> list[Insight]:
    """The six insights, each with this trace's verdict."""
    reuse = found.reuse / found.reuse.sum()
    near = float(reuse[1:9].sum())
    top = found.mean("load_top20")
    ceiling, load = found.mean("predictable_ceiling"), found.mean("predictable_load")
    return [
        _agreement(found),
        Insight(
            2,
            "Experts repeat across layers and tokens: prefetch and cache them in a hierarchy.",
            f"top 20 % of pairs: {found.mean('cross_layer_top20'):.0%} across layers, "
            f"{found.mean('cross_token_top20'):.0%} "
            f"across tokens (popularity alone: {found.mean('cross_token_null'):.0%}); {near:.0%} of selections reuse "
            f"an "
            f"expert of the last 8 tokens; a heatmap predicts at most {ceiling:.0%}, popularity {load:.0%}",
            _verdict(found.mean("cross_token_top20") >= 0.4 and ceiling > load),
        ),
        Insight(
            3,
            "Loads differ between experts: distribute work by where experts are.",
            f"Gini coefficient {found.mean('gini'):.2f}; the top 20 % of experts get {top:.0%}",
            _verdict(top > 0.3),
        ),
        Insight(
            4,
            "Duplicate or decentralise popular experts.",
            f"most loaded over mean: {found.mean('max_over_mean'):.1f} (mean of layers), "
            f"{float(np.nanmax(found.layers['max_over_mean'])):.1f} (worst layer)",
            _verdict(found.mean("max_over_mean") >= 2),
        ),
        _separation(found),
        _subjects(found),
    ]


def _agreement(found: Profile) -> Insight:
    """By the heatmaps, as the paper has it (section III-B3)."""
    claim = "Experts chosen in prefill are chosen in decode: predict from the prefill."
    if "cross_token_agreement" not in found.layers:
        return Insight(1, claim, "the trace has only one of the phases", "not measurable")
    values, most = (
        np.concatenate([found.layers[f"{name}_{kind}"] for name in ("cross_layer", "cross_token")])
        for kind in ("agreement", "ceiling")
    )
    strong = float((values >= STRONG).mean())
    measured = (
        f"Spearman of the heatmaps {np.nanmean(values):.2f} (mean), at least {STRONG} in {strong:.0%} of "
        f"them; two halves of the requests agree by {np.nanmean(most):.2f}, more no trace of this length can show; "
        f"Spearman of the loads {found.mean('prefill_decode_spearman'):.2f}"
    )
    if strong < 0.5 and np.nanmean(most) < STRONG:
        return Insight(1, claim, f"{measured}: the trace is too short", "not measurable")
    return Insight(1, claim, measured, _verdict(strong >= 0.5))


def _separation(found: Profile) -> Insight:
    claim = "Some pairs of experts are chosen together: keep them apart."
    if found.trace.top_k == 1:
        return Insight(5, claim, "tokens have one expert a layer", "not measurable")
    value = found.mean("coactivation_top20")
    measured = f"top 20 % of pairs: {value:.0%} of co-selections (equal pairs: 20 %); tables are symmetric"
    return Insight(5, claim, measured, _verdict(value > 0.4))


def _subjects(found: Profile) -> Insight:
    claim = "Tasks and languages have experts of their own: place experts by the workload."
    if len(found.subject_loads) < 2:
        return Insight(6, claim, "the trace has one subject", "not measurable")
    first, second = np.argsort(-found.subject_loads, axis=2)[:2, :, :POPULAR]
    common = np.mean([len(np.intersect1d(*pair)) for pair in zip(first, second, strict=True)])
    measured = (
        f"loads of two subjects differ by {found.mean('subject_distance'):.2f} (total variation); the first two share "
        f"{common:.1f} of their {POPULAR} most popular experts"
    )
    return Insight(6, claim, measured, _verdict(found.mean("subject_distance") > 0.1))


def _verdict(supported: bool) -> str:
    return "supported" if supported else "not supported"


def _null(first: np.ndarray, second: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    return coverage(null_pairs(first, second, pairs.sum(axis=(1, 2), dtype=np.int64)))


def _mean_distance(subjects: np.ndarray) -> np.ndarray:
    """float64[layer]: mean total variation distance of all pairs of (at most 16) subjects."""
    shares = [counts / np.maximum(counts.sum(axis=1, keepdims=True), 1) for counts in subjects[:16]]
    pairs = [(one, other) for index, one in enumerate(shares) for other in shares[:index]]
    return np.mean([np.abs(one - other).sum(axis=1) / 2 for one, other in pairs], axis=0)


def _conditional(counts: np.ndarray) -> np.ndarray:
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
