"""Counting for fits of generated routing: kinds of tokens, and how probable components make what was chosen."""

import numpy as np

from archsim.base.compiled import allocating


@allocating
def reweight(density, weights):
    """One round of expectation maximisation of weights float64[component]; density: float32[selection, component]."""
    components = len(weights)
    moved = np.zeros(components)
    for row in range(len(density)):
        total = 0.0
        for each in range(components):
            total += weights[each] * max(density[row, each], 1e-12)
        for each in range(components):
            moved[each] += max(density[row, each], 1e-12) / total
    weights *= moved
    weights /= weights.sum()


@allocating
def nearest(experts, log, log_share, score, kind):
    """kind int64[token]: the kind whose log float32[layer, expert, kind] makes the token's experts most probable."""
    tokens, layers, top_k = experts.shape
    for row in range(tokens):
        score[:] = log_share
        for layer in range(layers):
            for rank in range(top_k):
                of_expert = log[layer, experts[row, layer, rank]]
                for each in range(len(score)):
                    score[each] += of_expert[each]
        kind[row] = np.argmax(score)


@allocating
def count_kinds(experts, kind, counts):
    tokens, layers, top_k = experts.shape
    for row in range(tokens):
        for layer in range(layers):
            for rank in range(top_k):
                counts[kind[row], layer, experts[row, layer, rank]] += 1.0


@allocating
def densities(chosen, kind, offsets, task, by_task, by_kind, out):
    """Fill the first columns of out float32[token · k, component] (`KIND_COMPONENTS`): the probability of every
    selection of one layer under each component.

    chosen: int64[token, k], kind: int64[token], task: int64[request], by_task: int64[task, expert], by_kind:
    int64[kind, expert]; the request's own selections are taken out of these while it is looked at.
    """
    experts, top_k = by_task.shape[1], chosen.shape[1]
    total, own = by_task.sum(axis=0), np.zeros(experts, np.int64)
    everything, of_kind = total.sum(), by_kind.sum(axis=1)
    for request in range(len(offsets) - 1):
        first, end = offsets[request], offsets[request + 1]
        for row in range(first, end):
            for rank in range(top_k):
                own[chosen[row, rank]] += 1
                by_kind[kind[row], chosen[row, rank]] -= 1
                of_kind[kind[row]] -= 1
        mine = (end - first) * top_k
        same_task = by_task[task[request]]
        of_task = same_task.sum() - mine
        for row in range(first, end):
            for rank in range(top_k):
                expert, at = chosen[row, rank], row * top_k + rank
                out[at, 0] = (total[expert] - own[expert] + 0.5) / (everything - mine + 0.5 * experts)
                out[at, 1] = (same_task[expert] - own[expert]) / of_task if of_task > 0 else 0
                out[at, 2] = (own[expert] - 1) / (mine - top_k) if mine > top_k else 0
                for parent in range(top_k):
                    if row > first:
                        out[at, 3] += (chosen[row - 1, parent] == expert) / top_k
                if of_kind[kind[row]] > 0:
                    out[at, 4] = max(by_kind[kind[row], expert], 0) / of_kind[kind[row]]
        for row in range(first, end):
            for rank in range(top_k):
                own[chosen[row, rank]] -= 1
                by_kind[kind[row], chosen[row, rank]] += 1
                of_kind[kind[row]] += 1
