"""TensorRT-LLM: decodes and prompts together; an admission reserves the blocks of the whole output.

So nothing is preempted (GUARANTEED_NO_EVICT).
"""

from archsim.base.kernels import inner
from archsim.serving.kv import grow, most_of
from archsim.serving.records import Limits, State
from archsim.serving.scheduling import admit, lacking, uncomputed


def schedule(state: State, k, now_ns, limits: Limits):
    """Running requests, then those whose whole output has room."""
    rank = state.ranks[k]
    budget, promised = limits.budget, 0
    for i in range(rank.running):
        r = state.slots[k, i]
        request = state.requests[r]
        new = min(lacking(state, r), budget)
        if new and grow(state, k, r, request.computed + new, limits):
            state.new[k, i] = new
            budget -= new
        else:
            state.new[k, i] = 0
        promised += _outstanding_blocks(state, r, limits)
    while budget > 0 and rank.head >= 0 and rank.running < limits.max_seqs:
        r = rank.head
        whole = state.requests[r].input + state.requests[r].output
        new = admit(state, k, now_ns, budget, promised, whole, limits)
        if new == 0:
            break
        budget -= new
        promised += _outstanding_blocks(state, r, limits)


@inner
def _outstanding_blocks(state: State, r, limits: Limits):
    """Blocks that a request has yet to take until its last token, while it holds most."""
    request = state.requests[r]
    own = request.shared + request.blocks
    at_once = min(uncomputed(state, r) + state.totals[0].drafts, limits.budget)
    return max(most_of(request.input + request.output, at_once, limits) - own, 0)
