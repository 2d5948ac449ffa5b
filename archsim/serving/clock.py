"""How long an iteration of an instance takes, from tables that ``archsim.serving.tables`` fills."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from archsim.base.kernels import inner, kernel, outer
from archsim.serving.records import State

OCTAVE = 4  # points of the attention tables
HOST_ITERATION, HOST_REQUEST, HOST_PROMPT = 0, 1, 2


class StepTable(NamedTuple):
    """ns by size. ``local``, ``shared``: float64[tokens] of a rank, and of the experts of all ranks by their mean;
    ``head``: float64[sampled]; ``decode_up``, ``prefill_up``: float64[tokens].

    ``decode``: ln ns float64[requests, context]; ``prefill``: ln ns float64[chunks, tokens, context / tokens]; axes
    have ``OCTAVE`` points an octave from 1 on. ``host``: float64[3] an iteration, a request in it, and one with
    a prompt.
    """

    local: np.ndarray
    shared: np.ndarray
    head: np.ndarray
    decode_up: np.ndarray
    prefill_up: np.ndarray
    decode: np.ndarray
    prefill: np.ndarray
    host: np.ndarray


@inner
def looked_up(table, size):
    """A value of a table by size 0, 1, 2, ...; beyond its end along its last tenth."""
    last = table.shape[0] - 1
    if size <= last:
        return table[size]
    before = last - max(last // 10, 1)
    return table[last] + (size - last) * (table[last] - table[before]) / (last - before)


@inner
def place(size, points):
    """(index below, share of the one above) on an axis; beyond its ends along its last points."""
    at = math.log2(size) * OCTAVE
    below = min(max(int(at), 0), points - 2)
    return below, at - below


@inner
def decode_ns(table: StepTable, requests, context):
    """Attention of decodes."""
    b, s = place(float(requests), table.decode.shape[0])
    c, t = place(context, table.decode.shape[1])
    low = (1 - t) * table.decode[b, c] + t * table.decode[b, c + 1]
    high = (1 - t) * table.decode[b + 1, c] + t * table.decode[b + 1, c + 1]
    return math.exp((1 - s) * low + s * high)


@inner
def prefill_ns(table: StepTable, chunks, tokens, ratio):
    """Attention of ``chunks`` prompts of ``tokens`` at the end of ``ratio`` times as many."""
    a, s = place(float(chunks), table.prefill.shape[0])
    b, t = place(tokens, table.prefill.shape[1])
    c, u = place(ratio, table.prefill.shape[2])
    found = 0.0
    for i in range(2):
        for j in range(2):
            share = (s if i else 1 - s) * (t if j else 1 - t)
            row = table.prefill[a + i, b + j]
            found += share * ((1 - u) * row[c] + u * row[c + 1])
    return math.exp(found)


@inner
def rank_ns(state: State, table: StepTable, k):
    """What a rank does by itself: everything but experts and host."""
    rank = state.ranks[k]
    if rank.tokens == 0:
        return 0.0
    ns = looked_up(table.local, rank.tokens) + looked_up(table.head, rank.sampled)
    ns += looked_up(table.decode_up, rank.rows) + looked_up(table.prefill_up, rank.chunk_tokens)
    if rank.decodes:
        attention = decode_ns(table, rank.decodes, rank.decode_context / rank.decodes)
        ns += attention
        if state.totals[0].draft_share > 0:
            layer = state.totals[0].draft_share * (looked_up(table.local, rank.decodes) + attention)
            ns += state.totals[0].drafts * (layer + looked_up(table.head, rank.decodes))
    if rank.chunks:
        mean = rank.chunk_tokens / rank.chunks
        seen = rank.pairs / rank.chunks / mean + (mean - 1) / 2
        ns += prefill_ns(table, rank.chunks, mean, max(seen / mean, 1.0))
    return ns


@inner
def experts_ns(state: State, i, tokens, chunks):
    """(ns, balance) of the experts of an instance from its traffic."""
    rows = state.experts[i, 1 if chunks else 0]
    last = rows.shape[1] - 1
    at = min(math.log2(float(tokens)), float(last))
    below = min(int(at), last - 1)
    share = at - below
    balance = (1 - share) * rows[1, below] + share * rows[1, below + 1]
    return math.exp((1 - share) * rows[0, below] + share * rows[0, below + 1]), balance


@inner
def drafted_ns(state: State, table: StepTable, i, decodes, ranks):
    """Experts of the layers that drafts run."""
    if decodes == 0 or state.totals[0].draft_share == 0:
        return 0.0
    if state.experts.shape[3]:
        ns, _ = experts_ns(state, i, decodes, 0)
    else:
        ns = looked_up(table.shared, (decodes + ranks - 1) // ranks)
    return state.totals[0].drafts * state.totals[0].draft_share * ns


@outer
def iteration_ns(state: State, table: StepTable, i):
    """Ranks wait for each other; experts run on all of them."""
    instance, totals = state.instances[i], state.totals[0]
    slowest, tokens, requests, chunks, decodes = 0.0, 0, 0, 0, 0
    for k in range(instance.first, instance.last):
        rank = state.ranks[k]
        slowest = max(slowest, rank_ns(state, table, k))
        tokens += rank.tokens
        requests = max(requests, rank.decodes + rank.chunks)
        chunks += rank.chunks
        decodes += rank.decodes
    ranks = instance.last - instance.first
    if state.experts.shape[3]:
        shared, balance = experts_ns(state, i, tokens, chunks)
        totals.balance += balance
    else:
        shared = looked_up(table.shared, (tokens + ranks - 1) // ranks)
    shared += drafted_ns(state, table, i, decodes, ranks)
    host = table.host[HOST_ITERATION] + requests * table.host[HOST_REQUEST]
    if chunks:
        host += table.host[HOST_PROMPT]
        totals.prompts += 1
    totals.sequences += requests
    totals.shared_ns += shared
    return slowest + shared + host


@kernel
def times_of(table: StepTable, batches, found):
    """Times without host, float64[batch] into ``found``. batches: float64[batch, 4] decodes, their context, tokens of
    one prompt chunk and its context.
    """
    for at in range(batches.shape[0]):
        decodes, context, new, seen = batches[at, 0], batches[at, 1], batches[at, 2], batches[at, 3]
        tokens = int(decodes + new)
        ns = looked_up(table.local, tokens) + looked_up(table.shared, tokens) + looked_up(table.head, int(decodes) + 1)
        ns += looked_up(table.decode_up, int(decodes)) + looked_up(table.prefill_up, int(new))
        found[at] = ns + decode_ns(table, decodes, context) + prefill_ns(table, 1.0, new, seen / new)
