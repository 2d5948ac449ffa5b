"""SGLang: prompts go before decodes and are not mixed with them.

An admission keeps room for a share of the output still to come (managers/schedule_policy.py, PrefillAdder:
new_token_ratio). The scheduler looks for new requests after ``poll_every`` iterations of decodes, after prompts and
when idle (managers/scheduler_recv_skipper.py).
"""

from archsim.serving.kv import blocks_of, grow
from archsim.serving.records import Limits, State
from archsim.serving.scheduling import admit, is_prompt, lacking, serve_running


def schedule(state: State, k, now_ns, limits: Limits):
    """A batch of prompts if there is one, else the decodes."""
    poll_every, kept_share = limits.params[0], limits.params[1]
    rank = state.ranks[k]
    budget, prompts, outstanding = limits.budget, 0, 0
    if rank.unpolled >= poll_every or rank.running == 0:
        rank.received, rank.unpolled = rank.waiting, 0
    for i in range(rank.running):
        r = state.slots[k, i]
        request = state.requests[r]
        outstanding += request.output - request.made
        new = 0
        if is_prompt(state, r) and budget > 0:  # its first chunk is computed
            new = min(lacking(state, r), budget)
            if not grow(state, k, r, request.computed + new, limits):
                new = 0
        state.new[k, i] = new
        budget -= new
        prompts += new
    while budget > 0 and rank.received > 0 and rank.head >= 0 and rank.running < limits.max_seqs:
        request = state.requests[rank.head]
        later = outstanding + request.output - request.made
        kept = blocks_of(int(kept_share * later), limits) if rank.running else 0
        new = admit(state, k, now_ns, budget, kept, 0, limits)
        if new == 0:
            break
        budget -= new
        prompts += new
        outstanding = later
        rank.received -= 1
    rank.unpolled = rank.unpolled + 1 if prompts == 0 else poll_every
    if prompts == 0:
        serve_running(state, k, limits.budget + limits.max_seqs * (1 + state.totals[0].drafts), limits)
