"""KV of a rank: growing and releasing requests, and the prefix cache, evicted by last use.

All kinds of layers take from one pool, in units of which a block of the layers that keep all tokens has
``limits.block_units`` (1 where all layers do): vLLM's hybrid allocator (vllm/v1/core/kv_cache_coordinator.py). A layer
with a window gives blocks back as soon as no token to come sees them; states of linear attention are taken once.

The cache has pieces: runs of blocks of a prompt that requests of the trace share as a whole or not at all
(``pieces_of``). A prompt hits in blocks of the engine, whatever the blocks of the trace's hash ids.
"""

from typing import NamedTuple

import numpy as np

from archsim.base.compiled import inner, outer
from archsim.serving.records import SchedulerLimits, ServingState
from archsim.serving.requests import Requests


@inner
def blocks_of(tokens, limits: SchedulerLimits):
    """Units of KV that ``tokens`` take in layers that keep all of them: what more tokens of a request take."""
    return (tokens + limits.block_tokens - 1) // limits.block_tokens * limits.block_units


@inner
def tokens_of(units, limits: SchedulerLimits):
    """Tokens that units of KV hold in layers that keep all of them."""
    return units // limits.block_units * limits.block_tokens


@inner
def held_of(computed, tokens, limits: SchedulerLimits):
    """Units of KV of a request of ``tokens``, all kinds of layers together, while those after the first ``computed``
    are computed, which see a window's tokens before them.
    """
    found = blocks_of(tokens, limits) + limits.request_units
    for at in range(limits.windows.shape[0]):
        first = max(computed - limits.windows[at, 0] + 1, 0) // limits.block_tokens
        last = (tokens + limits.block_tokens - 1) // limits.block_tokens
        found += (last - first) * limits.windows[at, 1]
    return found


@inner
def most_of(tokens, at_once, limits: SchedulerLimits):
    """Units of KV that a request holds at most until it has ``tokens``, computed so many ``at_once``."""
    found = blocks_of(tokens, limits) + limits.request_units
    for at in range(limits.windows.shape[0]):
        near = (limits.windows[at, 0] - 1 + at_once) // limits.block_tokens + 2
        found += min((tokens + limits.block_tokens - 1) // limits.block_tokens, near) * limits.windows[at, 1]
    return found


@inner
def available(state: ServingState, k):
    """Free blocks, and those of the cache that no request holds."""
    return state.ranks[k].free + state.ranks[k].unheld


@outer
def take(state: ServingState, k, blocks):
    """Take free blocks, evicting where needed. False, and nothing taken, where even that is too little."""
    rank = state.ranks[k]
    if available(state, k) < blocks:
        return False
    while rank.free < blocks:
        oldest = rank.oldest
        unlink(state, k, oldest)
        state.references[k, oldest] = -1
        rank.free += state.sizes[oldest]
    rank.free -= blocks
    return True


@inner
def grow(state: ServingState, k, r, tokens, limits: SchedulerLimits):
    """Give a request the blocks of its first ``tokens``, free those no window sees; False if there are too few."""
    request = state.requests[r]
    more = held_of(request.computed, tokens, limits) - request.shared - request.blocks
    if more <= 0:
        if limits.windows.shape[0]:
            state.ranks[k].free -= more
            request.blocks += more
        return True
    if not take(state, k, more):
        return False
    request.blocks += more
    return True


@outer
def cached_pieces(state: ServingState, k, r, limits: SchedulerLimits):
    """(pieces, their units of KV) of a prompt's beginning in a rank's cache; at least one token is computed."""
    request = state.requests[r]
    if limits.cached == 0:
        return 0, 0
    most = (request.input - 1) // limits.block_tokens * limits.block_units
    found, units = 0, 0
    while found < request.piece_to - request.piece_from:
        piece = state.pieces[request.piece_from + found]
        if state.references[k, piece] < 0 or units + state.sizes[piece] > most:
            break
        units += state.sizes[piece]
        found += 1
    return found, units


@outer
def unheld_of(state: ServingState, k, r, found):
    """Units of KV of the first ``found`` pieces that no request holds."""
    request, units = state.requests[r], 0
    for at in range(request.piece_from, request.piece_from + found):
        if state.references[k, state.pieces[at]] == 0:
            units += state.sizes[state.pieces[at]]
    return units


@outer
def hold(state: ServingState, k, r, found, units, limits: SchedulerLimits):
    """Let a request hold its first ``found`` pieces, of ``units``, in the cache."""
    request = state.requests[r]
    for at in range(request.piece_from, request.piece_from + found):
        piece = state.pieces[at]
        if state.references[k, piece] == 0:
            unlink(state, k, piece)
        state.references[k, piece] += 1
        state.held[at] = 1
    request.hashed = found
    request.covered = request.shared = units
    request.computed = tokens_of(units, limits)


@outer
def stored_pieces(state: ServingState, k, r, found, units, limits: SchedulerLimits):
    """(pieces, their units of KV) of the beginning of a prompt that the cache of a rank, which has the first ``found``
    of ``units``, and its store have together; those of the store are the last that it would evict.
    """
    request, store = state.requests[r], state.ranks[k].store
    most = (request.input - 1) // limits.block_tokens * limits.block_units
    while found < request.piece_to - request.piece_from:
        piece = state.pieces[request.piece_from + found]
        here = state.references[k, piece] >= 0
        if not here and state.references[store, piece] < 0 or units + state.sizes[piece] > most:
            break
        if state.references[store, piece] >= 0:
            unlink(state, store, piece)
            append(state, store, piece)
        units += state.sizes[piece]
        found += 1
    return found, units


@inner
def _keep(state: ServingState, store, piece):
    """Copy a computed piece to a store, which evicts the one that was used longest ago."""
    if state.references[store, piece] < 0 and take(state, store, state.sizes[piece]):
        state.references[store, piece] = 0
        append(state, store, piece)


@outer
def insert(state: ServingState, k, r, limits: SchedulerLimits):
    """Put computed pieces of a prompt, and of repeated output, into the cache; what another put there stays private."""
    request = state.requests[r]
    full = request.computed // limits.block_tokens * limits.block_units
    while request.hashed < request.piece_to - request.piece_from:
        at = request.piece_from + request.hashed
        piece = state.pieces[at]
        size = state.sizes[piece]
        if request.covered + size > full:
            break
        if state.references[k, piece] < 0:
            state.references[k, piece] = 1
            state.held[at] = 1
            request.blocks -= size
            request.shared += size
        if limits.stored and state.ranks[k].store >= 0:
            _keep(state, state.ranks[k].store, piece)
        request.hashed += 1
        request.covered += size


@outer
def release(state: ServingState, k, r):
    """Free the blocks of a request; what is in the cache stays there until evicted, the end of a prefix first."""
    request = state.requests[r]
    for at in range(request.piece_from + request.hashed - 1, request.piece_from - 1, -1):
        if state.held[at]:
            state.held[at] = 0
            piece = state.pieces[at]
            state.references[k, piece] -= 1
            if state.references[k, piece] == 0:
                append(state, k, piece)
    state.ranks[k].free += request.blocks
    request.blocks = 0
    request.shared = 0
    request.hashed = 0
    request.covered = 0


@inner
def append(state: ServingState, k, piece):
    """A piece that no request holds becomes the youngest."""
    rank = state.ranks[k]
    state.older[k, piece] = rank.newest
    state.younger[k, piece] = -1
    if rank.newest >= 0:
        state.younger[k, rank.newest] = piece
    else:
        rank.oldest = piece
    rank.newest = piece
    rank.unheld += state.sizes[piece]


@inner
def unlink(state: ServingState, k, piece):
    """Take a piece out of the line of those that no request holds."""
    rank = state.ranks[k]
    older, younger = state.older[k, piece], state.younger[k, piece]
    if older >= 0:
        state.younger[k, older] = younger
    else:
        rank.oldest = younger
    if younger >= 0:
        state.older[k, younger] = older
    else:
        rank.newest = older
    rank.unheld -= state.sizes[piece]


class PromptPieces(NamedTuple):
    """``pieces``: int64[n] of all prompts, with the outputs that later turns repeat; ``first``: int64[request + 1]
    where those of a request begin; ``blocks``: int64[piece] KV blocks.
    """

    pieces: np.ndarray
    first: np.ndarray
    blocks: np.ndarray


NO_PIECES = PromptPieces(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))


class Chains(NamedTuple):
    """Hash ids of requests, ``first``: int64[request + 1] where those of one begin; ``tokens``: int64[request] that
    they are of: of the prompt, and of the output where a later turn says its ids.
    """

    ids: np.ndarray
    first: np.ndarray
    tokens: np.ndarray


def with_outputs(requests: Requests) -> Chains:
    """Prompts with the outputs that a later turn repeats. A later turn has all full blocks of a prompt, of two or more,
    and room for its output after it: engines keep KV of outputs in blocks like those of prompts (vLLM's
    BlockPool.cache_full_blocks, SGLang's RadixCache.cache_finished_req), so that the turn finds both. Of the last token
    of an output no KV is computed. A last block that a prompt fills in part is, with what follows it, the block that
    the later turn has there, unless other prompts end alike.
    """
    of, first, block = requests.hash_ids, requests.hash_from, max(requests.hash_tokens, 1)
    tokens = requests.input.copy()
    if not requests.outputs_kept or not len(of):
        return Chains(of, first, tokens)
    counts = np.bincount(of)
    full = requests.input // block
    later: dict[int, int] = {}  # request → its first later turn
    ends: dict[int, int] = {}  # the last full block of a prompt → the latest request with it
    for r in range(len(tokens)):
        ids = of[first[r] : first[r] + full[r]].tolist()
        before = next((ends[each] for each in reversed(ids[1:]) if each in ends), None)
        if before is not None and before not in later and full[before] <= full[r]:
            same = ids[full[before] - 1] == int(of[first[before] + full[before] - 1])
            if same and requests.input[r] >= requests.input[before] + requests.output[before]:
                later[before] = r
        if len(ids) > 1:
            ends[ids[-1]] = r
    chains = []
    for r in range(len(tokens)):
        own, turn = of[first[r] : first[r + 1]], later.get(r)
        part = own[full[r] :]
        if turn is not None and (counts[part] == 1).all():
            tokens[r] = requests.input[r] + requests.output[r] - 1
            blocks = -(-tokens[r] // block)
            own = np.concatenate([own[: full[r]], of[first[turn] + full[r] : first[turn] + blocks]])
        chains.append(own)
    sizes = np.array([len(each) for each in chains], np.int64)
    return Chains(np.concatenate(chains), np.concatenate([[0], np.cumsum(sizes)]), tokens)


def pieces_of(requests: Requests, block_tokens: int) -> PromptPieces:
    """Every full KV block of a prompt is of the hash block that has its last token. The blocks of a hash id are parted
    where a prompt may share some of them and not the others: where one ends within it, or its output does, and before
    the last block of a prompt, which is computed in any case if nothing follows.
    """
    chains = with_outputs(requests)
    of_request = np.repeat(np.arange(len(requests.input)), np.diff(chains.first))
    at = np.arange(len(chains.ids)) - chains.first[of_request]  # place among the ids of a request
    begin, prompt = at * requests.hash_tokens // block_tokens, requests.input[of_request]
    own = np.minimum((at + 1) * requests.hash_tokens, chains.tokens[of_request]) // block_tokens - begin
    end = np.minimum((at + 1) * requests.hash_tokens, prompt) // block_tokens
    of_prompt = end - begin  # blocks of this id; below 1 after the prompt
    parts, others = own > 0, (own != of_prompt) & (of_prompt > 0)  # most ids have the same blocks everywhere
    last = (end == prompt // block_tokens) & (prompt % block_tokens == 0) & (of_prompt > 1)
    scale = int(max(own.max(initial=0), of_prompt.max(initial=0))) + 1
    keys = chains.ids * scale
    parted = [(keys + own)[parts], (keys + of_prompt)[others], (keys + of_prompt - 1)[last]]
    ids, ends = np.divmod(np.unique(np.concatenate(parted)), scale)
    sizes = np.diff(ends, prepend=0)
    begins = np.r_[True, ids[1:] != ids[:-1]][: len(ids)]
    sizes[begins] = ends[begins]
    # A request has the pieces of an id up to its own last block.
    low = np.searchsorted(ids, chains.ids, "left")
    high = np.searchsorted(ids * scale + ends, keys + own, "right")
    counts = high - low
    first = np.concatenate([[0], np.cumsum(counts)])
    pieces = np.repeat(low - first[:-1], counts) + np.arange(first[-1])
    return PromptPieces(pieces, first[chains.first], sizes)
