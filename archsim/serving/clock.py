"""How long an iteration of an instance takes, from tables that ``archsim.serving.deployment`` fills."""

import math
from typing import NamedTuple

import numpy as np

from archsim.base.compiled import inner, kernel, outer, reference
from archsim.iteration import overlap
from archsim.serving.records import ServingState

IN_TURN, HALVES, PARTS = overlap.HOW[overlap.NONE], overlap.HOW[overlap.TWO_BATCH], overlap.HOW[overlap.MICRO_BATCHES]

OCTAVE = 4  # points of the attention tables
HOST_ITERATION, HOST_REQUEST, HOST_EAGER, HOST_CAPTURED, LAWS_DECODES, LAWS_PROMPTS = range(6)


class OverlapTimes(NamedTuple):
    """ns of an overlap; of two batches and micro-batches ``local``, ``decode_up``, ``prefill_up`` are of all parts."""

    how: np.int64 = IN_TURN  # of `archsim.iteration.overlap.HOW`
    # float64[tokens] ns of shared experts, which local is without unless nothing overlaps
    shared: np.ndarray = np.zeros(1)
    before: np.ndarray = np.zeros(1)  # float64[tokens] ns of a rank up to attention
    before_share: np.float64 = np.float64(0)  # of decode_up and prefill_up, what is before attention; 0 to 1
    moe_share: np.float64 = np.float64(0)  # share of the layers that have routed experts
    sms_share: np.float64 = np.float64(0)  # share of the SMs that transfers take as long as they run
    shared_multiply: np.float64 = np.float64(0)  # ns at peak of a token of a rank, shared experts
    experts_multiply: np.float64 = np.float64(0)  # ns at peak of a token of a rank, routed experts
    parts: np.float64 = np.float64(1)  # micro-batches whose experts are on another side
    moe_layers: np.float64 = np.float64(1)  # layers with routed experts
    stages: np.float64 = np.float64(1)  # of a pipeline; all tables are of its micro-batches


class LinkTimes(NamedTuple):
    """What links and copies take, which no factor on kernels multiplies: ns by size, float64[tokens] each."""

    of_rank: np.ndarray = np.zeros(1)  # collectives of all tokens of a rank, and hops of a pipeline
    of_decodes: np.ndarray = np.zeros(1)  # collectives of its decodes
    of_prompts: np.ndarray = np.zeros(1)  # collectives of its prompts
    loaded: np.ndarray = np.zeros(1)  # experts from memory of the host, by mean tokens of the ranks


class StepTable(NamedTuple):
    """Times of an iteration by size. Axes have ``OCTAVE`` points an octave from 1 on; see ``host`` for its order."""

    local: np.ndarray  # float64[tokens] ns of a rank
    experts: np.ndarray  # float64[tokens] ns of all ranks, by their mean
    dispatch: np.ndarray  # float64[tokens] ns of all ranks, by their mean
    combine: np.ndarray  # float64[tokens] ns of all ranks, by their mean
    head: np.ndarray  # float64[sampled] ns
    decode_up: np.ndarray  # float64[tokens] ns of the projections of decodes
    prefill_up: np.ndarray  # float64[tokens] ns of the projections of prompts
    decode: np.ndarray  # ln ns float64[requests, context]
    prefill: np.ndarray  # ln ns float64[chunks, tokens, context / tokens]
    # float64[6]: ns of an iteration, of a request in it, of one that no captured graph covers; most tokens of a
    # rank with a prompt that one covers; factors on kernels of an iteration without and with prompts
    host: np.ndarray
    beside: OverlapTimes = OverlapTimes()  # what runs beside what
    links: LinkTimes = LinkTimes()  # beside local and the others, which have none


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
    """ns of attention of decodes."""
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
def attention_ns(table: StepTable, rank, share, least):
    """(decodes, prompt chunks) of a rank, of a share of its requests, at ``least`` of so many."""
    decodes = chunks = 0.0
    if rank.decodes:
        decodes = decode_ns(table, max(share * rank.decodes, least), rank.decode_context / rank.decodes)
    if rank.chunks:
        mean = rank.chunk_tokens / rank.chunks
        seen = rank.pairs / rank.chunks / mean + (mean - 1) / 2
        chunks = prefill_ns(table, max(share * rank.chunks, least), mean, max(seen / mean, 1.0))
    return decodes, chunks


@inner
def rank_ns(state: ServingState, table: StepTable, k, factor):
    """ns (all, in layers, of that up to attention, on links) of what a rank does by itself: all but experts and host.
    ``factor``: on kernels, by which the caller multiplies all of these.
    """
    rank = state.ranks[k]
    if rank.tokens == 0:
        return 0.0, 0.0, 0.0, 0.0
    once = looked_up(table.head, rank.sampled)
    links = looked_up(table.links.of_rank, rank.tokens) / factor
    links_up = looked_up(table.links.of_decodes, rank.rows) + looked_up(table.links.of_prompts, rank.chunk_tokens)
    ns = looked_up(table.local, rank.tokens) + once + links
    up = looked_up(table.decode_up, rank.rows) + looked_up(table.prefill_up, rank.chunk_tokens) + links_up / factor
    ns += up
    decodes, chunks = attention_ns(table, rank, 1.0 / table.beside.stages, 1.0)
    drafted = 0.0
    if rank.decodes and state.totals[0].draft_share > 0:
        drafts, depth = state.totals[0].drafts, state.totals[0].depth
        at_once = int(math.ceil(rank.decodes * drafts / depth))  # of a tree, the mean of its depths
        moved = looked_up(table.links.of_rank, at_once) / factor
        layer = state.totals[0].draft_share * (looked_up(table.local, at_once) + moved + decodes)
        drafted = depth * (layer + looked_up(table.head, at_once))
    if rank.chunks and state.totals[0].draft_share > 0:  # the layer that drafts keeps KV of prompts, too
        up_to = looked_up(table.local, rank.chunk_tokens) + looked_up(table.prefill_up, rank.chunk_tokens)
        moved = looked_up(table.links.of_rank, rank.chunk_tokens) + looked_up(table.links.of_prompts, rank.chunk_tokens)
        up_to += moved / factor
        drafted += state.totals[0].draft_share * (up_to + chunks)
    if table.beside.how == HALVES:
        half = attention_ns(table, rank, 0.5, 0.0)
        decodes, chunks = overlap.of_halves(decodes, half[0]), overlap.of_halves(chunks, half[1])
    if table.beside.how == PARTS:
        parts = table.beside.parts
        part = attention_ns(table, rank, 1.0 / parts, 1.0)
        decodes, chunks = max(decodes, parts * part[0]), max(chunks, parts * part[1])
    before = looked_up(table.beside.before, rank.tokens) + table.beside.before_share * up
    found = ns + decodes + drafted + chunks
    return found, found - once - drafted, before, links + links_up / factor


class RoutedTimes(NamedTuple):
    """The experts of an instance: ns of all MoE layers, as an `ExpertLayer`; ns at peak, what dispatch and combine
    take of the SMs, and the balance of ranks.
    """

    ns: float
    layer: overlap.ExpertLayer
    multiply: float
    sms: tuple[overlap.Sms, overlap.Sms]
    balance: float


@inner
def routed_ns(state: ServingState, table: StepTable, i, tokens, chunks, ranks, factor):
    """Of ``tokens`` of all ranks, each of which has its own; ``factor``: as in `rank_ns`."""
    share = table.beside.sms_share
    if state.experts.shape[2] == 0:
        # Where fewer ranks have the experts, each has more of them, and more of their tokens.
        more = state.instances[i].experts
        at = int(math.ceil(tokens / ranks))
        moved = int(math.ceil(more * tokens / ranks))
        there, back = looked_up(table.dispatch, moved) / factor, looked_up(table.combine, moved) / factor
        experts = more * (looked_up(table.experts, at) + looked_up(table.links.loaded, at) / factor)
        layer = overlap.ExpertLayer(there, 0.0, experts, back)
        multiply = table.beside.experts_multiply * at
        return RoutedTimes(
            experts + there + back, layer, multiply, (overlap.Sms(0.0, share), overlap.Sms(0.0, share)), 0.0
        )
    rows = state.experts[i, 1 if chunks else 0]
    last = rows.shape[0] - 1
    place = min(max(math.log2(tokens), 0.0), float(last))
    at = min(int(place), last - 1)
    low, high, part = rows[at], rows[at + 1], place - at
    ns = math.exp((1 - part) * low.ln_ns + part * high.ln_ns)
    dispatch = ns * ((1 - part) * low.dispatch + part * high.dispatch)
    combine = ns * ((1 - part) * low.combine + part * high.combine)
    experts = ns - dispatch - combine
    sms = (
        overlap.Sms(ns * ((1 - part) * low.dispatch_sms + part * high.dispatch_sms) / factor, share),
        overlap.Sms(ns * ((1 - part) * low.combine_sms + part * high.combine_sms) / factor, share),
    )
    multiply = ns * ((1 - part) * low.multiply + part * high.multiply)
    balance = (1 - part) * low.balance + part * high.balance
    layer = overlap.ExpertLayer(dispatch / factor, 0.0, experts, combine / factor)
    return RoutedTimes(experts + layer.dispatch + layer.combine, layer, multiply, sms, balance)


@inner
def layers_ns(state: ServingState, table: StepTable, i, k, tokens, chunks, rest, before, factor):
    """(ns, balance, of the ns dispatch and combine where nothing hides them) of the experts of an instance, beside what
    overlaps with them. ``k``: its slowest rank, which takes ``rest`` ns for all else in layers, ``before`` of them up
    to attention; ``factor``: as in `rank_ns`.
    """
    instance, beside = state.instances[i], table.beside
    ranks = instance.last - instance.first
    of_micro_batch = max(tokens / beside.stages, min(tokens, 1.0 + state.totals[0].drafts), 1.0)
    whole = routed_ns(state, table, i, of_micro_batch, chunks, ranks, factor)
    if beside.how == IN_TURN:
        return whole.ns, whole.balance, whole.layer.dispatch + whole.layer.combine
    if beside.how == PARTS:
        part = routed_ns(state, table, i, max(tokens / beside.parts, 1.0), chunks, ranks, factor).layer
        own = beside.moe_share * rest
        both = overlap.micro_batched(
            beside.parts, beside.moe_layers, own / beside.parts, part.dispatch, part.experts, part.combine
        )
        return both - own, whole.balance, 0.0
    half = routed_ns(state, table, i, tokens / 2, chunks, ranks, factor)
    rank = state.ranks[k].tokens
    shared, half_shared = looked_up(beside.shared, rank), looked_up(beside.shared, (rank + 1) // 2)
    first = beside.moe_share * before / 2
    found = overlap.compose(
        beside.how,
        overlap.ExpertLayer(whole.layer.dispatch, shared, whole.layer.experts, whole.layer.combine),
        overlap.ExpertLayer(half.layer.dispatch, half_shared, half.layer.experts, half.layer.combine),
        (beside.shared_multiply * rank / 2, half.multiply),
        overlap.Rest(first, max(beside.moe_share * rest / 2 - first, 0.0)),
        half.sms if beside.how == HALVES else whole.sms,
        overlap.PROMPTS if chunks else overlap.DECODES,
    )
    return found.dispatch + found.shared + found.experts + found.combine, whole.balance, 0.0


@inner
def drafted_ns(state: ServingState, table: StepTable, i, decodes, chunk_tokens, ranks, factor):
    """Experts of the layers that drafts run: of decodes for each draft, and of prompts once."""
    if state.totals[0].draft_share == 0:
        return 0.0
    ns = 0.0
    if decodes:
        drafts, depth = state.totals[0].drafts, state.totals[0].depth
        at_once = max(decodes / table.beside.stages, 1.0) * drafts / depth
        ns += depth * routed_ns(state, table, i, at_once, np.int64(0), ranks, factor).ns
    if chunk_tokens:
        at_once = max(chunk_tokens / table.beside.stages, 1.0)
        ns += routed_ns(state, table, i, at_once, np.int64(1), ranks, factor).ns
    return state.totals[0].draft_share * ns


@inner
def host_ns(table: StepTable, requests):
    """Of an iteration with so many requests of a rank. Each micro-batch of a pipeline is an iteration of the host
    (SGLang, managers/scheduler_pp_mixin.py; vLLM, v1/engine/core.py, step_with_batch_queue).
    """
    micro_batches = max(min(float(table.beside.stages), float(requests)), 1.0)
    return micro_batches * table.host[HOST_ITERATION] + requests * table.host[HOST_REQUEST]


@outer
def iteration_ns(state: ServingState, table: StepTable, i):
    """Ranks wait for each other; experts run on all of them."""
    instance, totals = state.instances[i], state.totals[0]
    slowest, rest, before, linked, last, none = 0.0, 0.0, 0.0, 0.0, instance.first, np.int64(0)
    tokens, requests, chunks, decodes, most, prompted = none, none, none, none, none, none
    for k in range(instance.first, instance.last):
        chunks += state.ranks[k].chunks
    laws = table.host[LAWS_PROMPTS if chunks else LAWS_DECODES]  # multiplies kernels; links are divided by it before
    for k in range(instance.first, instance.last):
        rank = state.ranks[k]
        ns, of_layers, first, links = rank_ns(state, table, k, laws)
        if ns > slowest:
            slowest, rest, before, linked, last = ns, of_layers, first, links, k
        tokens += rank.tokens
        most = max(most, rank.tokens)
        requests = max(requests, rank.decodes + rank.chunks)
        prompted += rank.chunk_tokens
        decodes += rank.decodes
    shared, balance, moved = layers_ns(state, table, i, last, tokens, chunks, rest, before, laws)
    totals.balance += balance
    drafted = drafted_ns(state, table, i, decodes, prompted, instance.last - instance.first, laws)
    shared += drafted
    stages = table.beside.stages
    if stages > 1 and totals.draft_share > 0:
        # Layers are divided so that all stages take as long. The last one drafts, of one micro-batch after the other.
        filled = stages if chunks else min(stages, float(requests))
        drafted += slowest - rest
        shared += max(filled * drafted - slowest - shared, 0.0)
    if stages > 1 and chunks and (instance.quiet > 0 or instance.iterations <= 1):
        # Prompts after decodes alone: m micro-batches on p stages take m + p - 1 turns (GPipe, arXiv 1811.06965,
        # section 2.1), of which those before it filled none of the last p - 1.
        shared += (stages - 1) / stages * (slowest + shared)
    host = host_ns(table, requests)
    totals.prompts += 1 if chunks else 0
    if most > table.host[HOST_CAPTURED] and (chunks or table.host[HOST_CAPTURED] > 0):
        host += table.host[HOST_EAGER]
    totals.sequences += requests
    totals.shared_ns += laws * shared
    totals.linked_ns += laws * linked
    totals.moved_ns += laws * moved
    return laws * (slowest + shared) + host


@kernel
def times_of(table: StepTable, batches, found):
    """Times without host, float64[batch] into ``found``, by the factor on kernels of iterations with prompts where a
    chunk has more than one token. batches: float64[batch, 4] decodes, their context, tokens of one prompt chunk and its
    context.
    """
    table = reference(table)
    for at in range(batches.shape[0]):
        decodes, context, new, seen = batches[at, 0], batches[at, 1], batches[at, 2], batches[at, 3]
        tokens = int(decodes + new)
        ns = looked_up(table.local, tokens) + looked_up(table.head, int(decodes) + 1)
        ns += looked_up(table.experts, tokens)
        ns += looked_up(table.decode_up, int(decodes)) + looked_up(table.prefill_up, int(new))
        ns += decode_ns(table, decodes, context) + prefill_ns(table, 1.0, new, seen / new)
        links = looked_up(table.links.of_rank, tokens) + looked_up(table.links.loaded, tokens)
        links += looked_up(table.links.of_decodes, int(decodes)) + looked_up(table.links.of_prompts, int(new))
        links += looked_up(table.dispatch, tokens) + looked_up(table.combine, tokens)
        found[at] = table.host[LAWS_PROMPTS if new > 1 else LAWS_DECODES] * ns + links
