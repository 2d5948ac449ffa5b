"""vLLM V1: running requests first, each with all tokens that it lacks, then waiting ones in order of arrival.

All within one budget of tokens; a request that finds no block preempts the last one, which computes everything anew
(vllm/v1/core/sched/scheduler.py). A prompt is admitted when the blocks of all of it are free, also if its first chunk
would fit (``scheduler_reserve_full_isl``, on by default since 2026: vllm-project/vllm#37307; 0: as before).
"""

from archsim.serving.records import Limits, State
from archsim.serving.scheduling import admit, serve_running


def schedule(state: State, k, now_ns, limits: Limits):
    """Running requests, then waiting ones."""
    rank, reserves = state.ranks[k], limits.params[0] > 0
    budget = serve_running(state, k, limits.budget, limits)
    while budget > 0 and rank.head >= 0 and rank.running < limits.max_seqs:
        request = state.requests[rank.head]
        new = admit(state, k, now_ns, budget, 0, request.input + request.made if reserves else 0, limits)
        if new == 0:
            break
        budget -= new
