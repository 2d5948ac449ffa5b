"""vLLM V1: running requests first, each with all tokens that it lacks, then waiting ones in order of arrival.

All within one budget of tokens; a request that finds no block preempts the last one, which computes everything anew
(vllm/v1/core/sched/scheduler.py).
"""

from archsim.serving.records import Limits, State
from archsim.serving.scheduling import admit, serve_running


def schedule(state: State, k, now_ns, limits: Limits):
    """Running requests, then waiting ones."""
    rank = state.ranks[k]
    budget = serve_running(state, k, limits.budget, limits)
    while budget > 0 and rank.head >= 0 and rank.running < limits.max_seqs:
        new = admit(state, k, now_ns, budget, 0, 0, limits)
        if new == 0:
            break
        budget -= new
