"""A user's own scheduler, as the text of a file."""

GENTLE = '''
from archsim.serving.schedulers import admit, serve_running


def gentle(state, k, now_ns, limits, most=1):
    """As vLLM V1, with at most so many new requests an iteration."""
    rank = state.ranks[k]
    budget = serve_running(state, k, limits.budget, limits)
    admitted = 0
    while budget > 0 and rank.head >= 0 and rank.running < limits.max_seqs and admitted < most:
        new = admit(state, k, now_ns, budget, 0, 0, limits)
        if new == 0:
            break
        budget -= new
        admitted += 1
'''
