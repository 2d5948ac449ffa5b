"""KV of a rank: growing and releasing requests, and the prefix cache by hash ids, evicted by last use.

All kinds of layers take from one pool, in units of which a block of the layers that keep all tokens has
``limits.block_units`` (1 where all layers do): vLLM's hybrid allocator (vllm/v1/core/kv_cache_coordinator.py). A layer
with a window gives blocks back as soon as no token to come sees them; states of linear attention are taken once.
"""

from archsim.base.kernels import inner, outer
from archsim.serving.records import Limits, State


@inner
def blocks_of(tokens, limits: Limits):
    """Units of KV that ``tokens`` take in layers that keep all of them: what more tokens of a request take."""
    return (tokens + limits.block_tokens - 1) // limits.block_tokens * limits.block_units


@inner
def held_of(computed, tokens, limits: Limits):
    """Units of KV of a request of ``tokens``, all kinds of layers together, while those after the first ``computed``
    are computed: these see a window's tokens before them.
    """
    found = blocks_of(tokens, limits) + limits.request_units
    for at in range(limits.windows.shape[0]):
        first = max(computed - limits.windows[at, 0] + 1, 0) // limits.block_tokens
        last = (tokens + limits.block_tokens - 1) // limits.block_tokens
        found += (last - first) * limits.windows[at, 1]
    return found


@inner
def available(state: State, k, limits: Limits):
    """Free blocks, and those of the cache that no request holds."""
    return state.ranks[k].free + state.ranks[k].unheld * limits.hash_blocks


@outer
def take(state: State, k, blocks, limits: Limits):
    """Take free blocks, evicting where needed. False, and nothing taken, where even that is too little."""
    rank = state.ranks[k]
    if available(state, k, limits) < blocks:
        return False
    while rank.free < blocks:
        oldest = rank.oldest
        unlink(state, k, oldest)
        state.references[k, oldest] = -1
        rank.free += limits.hash_blocks
    rank.free -= blocks
    return True


@inner
def grow(state: State, k, r, tokens, limits: Limits):
    """Give a request the blocks of its first ``tokens``; False if there are too few. Blocks that no window sees any
    more are free again.
    """
    request = state.requests[r]
    more = held_of(request.computed, tokens, limits) - request.shared * limits.hash_blocks - request.blocks
    if more <= 0:
        if limits.windows.shape[0]:
            state.ranks[k].free -= more
            request.blocks += more
        return True
    if not take(state, k, more, limits):
        return False
    request.blocks += more
    return True


@outer
def cached_blocks(state: State, k, r, limits: Limits):
    """Leading hash blocks of a prompt that the cache of a rank has; at least one token is always computed."""
    request = state.requests[r]
    if limits.hash_blocks == 0:
        return 0
    most = (request.input - 1) // limits.hash_tokens
    found = 0
    while found < most and found < request.hash_to - request.hash_from:
        if state.references[k, state.hash_ids[request.hash_from + found]] < 0:
            break
        found += 1
    return found


@outer
def unheld_of(state: State, k, r, found):
    """Of the first ``found`` hash blocks, those that no request holds."""
    request, count = state.requests[r], 0
    for at in range(request.hash_from, request.hash_from + found):
        if state.references[k, state.hash_ids[at]] == 0:
            count += 1
    return count


@outer
def hold(state: State, k, r, found, limits: Limits):
    """Let a request hold its first ``found`` hash blocks in the cache."""
    request = state.requests[r]
    for at in range(request.hash_from, request.hash_from + found):
        block = state.hash_ids[at]
        if state.references[k, block] == 0:
            unlink(state, k, block)
        state.references[k, block] += 1
        state.held[at] = 1
    request.hashed = found
    request.shared = found
    request.computed = found * limits.hash_tokens


@outer
def insert(state: State, k, r, limits: Limits):
    """Put computed full hash blocks of a prompt into the cache; what another request has put there stays private."""
    request = state.requests[r]
    full = min(request.computed, request.input) // limits.hash_tokens
    while request.hashed < full and request.hashed < request.hash_to - request.hash_from:
        at = request.hash_from + request.hashed
        block = state.hash_ids[at]
        if state.references[k, block] < 0:
            state.references[k, block] = 1
            state.held[at] = 1
            request.blocks -= limits.hash_blocks
            request.shared += 1
        request.hashed += 1


@outer
def release(state: State, k, r):
    """Free the blocks of a request; what is in the cache stays there until evicted, the end of a prefix first."""
    request = state.requests[r]
    for at in range(request.hash_from + request.hashed - 1, request.hash_from - 1, -1):
        if state.held[at]:
            state.held[at] = 0
            block = state.hash_ids[at]
            state.references[k, block] -= 1
            if state.references[k, block] == 0:
                append(state, k, block)
    state.ranks[k].free += request.blocks
    request.blocks = 0
    request.shared = 0
    request.hashed = 0


@inner
def append(state: State, k, block):
    """A block that no request holds becomes the youngest."""
    rank = state.ranks[k]
    state.older[k, block] = rank.newest
    state.younger[k, block] = -1
    if rank.newest >= 0:
        state.younger[k, rank.newest] = block
    else:
        rank.oldest = block
    rank.newest = block
    rank.unheld += 1


@inner
def unlink(state: State, k, block):
    """Take a block out of the line of those that no request holds."""
    rank = state.ranks[k]
    older, younger = state.older[k, block], state.younger[k, block]
    if older >= 0:
        state.younger[k, older] = younger
    else:
        rank.oldest = younger
    if younger >= 0:
        state.older[k, younger] = older
    else:
        rank.newest = older
    rank.unheld -= 1
