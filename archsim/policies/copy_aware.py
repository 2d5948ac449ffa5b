"""Allocation ``copy_aware``: an expert's tokens run where its weights are, as long as that keeps the dies balanced.

Holders of an expert are the dies that hold it by placement or as a complete cached copy. Experts are placed by
ascending tokens, in blocks; each block goes to the holder that then finishes first. Where even that one would finish
later than the mean of all dies by more than ``slack``, a die without the weights may take the block, if it, and the
die that it fetches them from, finish earlier. So the experts with most tokens are shared out last, at the fewest
fetches per token; what a die has fetched may be copied, and makes it a holder. ``first_seen`` ignores copies.
"""

from __future__ import annotations

import numpy as np

from archsim.base.compiled import inner, kernel
from archsim.model.spec import SLICES
from archsim.policies.allocation import Effort, Plan, StepView, array_speed, hbm_speed, knows_speeds, plan_of

OWN_LOAD = np.dtype([("compute_ns", "f8"), ("hbm_ns", "f8"), ("inbound_ns", "f8")])


def copy_aware(step: StepView, block_tokens: int = 128, slack: float = 0.05) -> Plan:
    """The plan of this section's rule; ties go to the lowest die."""
    active = np.flatnonzero(step.tokens)
    order = active[np.argsort(step.tokens[active], kind="stable")]
    given = np.zeros((len(step.tokens), len(step.hops)), np.int64)
    effort = Effort(True, len(order), np.zeros(len(order), np.int64), np.zeros(len(order), np.int64))
    loads = np.zeros(len(step.hops), OWN_LOAD)
    effort = effort._replace(speeds=knows_speeds(step))
    _place(step.compiled, order, block_tokens, slack, loads, given, effort.candidates, effort.blocks)
    return plan_of(given, effort)


@inner
def _holds_copy(step, expert, die):
    return step.holders[expert, die] or step.copied_slices[expert, die] == SLICES


@inner
def _source(step, expert, die):
    """The die that another one reads the expert from: its nearest holder by placement, of several the lowest."""
    nearest = np.int64(step.home[expert])
    for holder in range(len(step.hops)):
        if step.holders[expert, holder]:
            closer = step.hops[holder, die] < step.hops[nearest, die]
            if closer or (step.hops[holder, die] == step.hops[nearest, die] and holder < nearest):
                nearest = np.int64(holder)
    return nearest


@inner
def _best_holder(step, expert, loads, placed, work_ns, read_ns):
    """(die, when it finishes) among holders, and dies that have fetched the expert for another block."""
    best, best_ns = -1, np.inf
    for die in range(len(loads)):
        if placed[die] > 0 or _holds_copy(step, expert, die):
            reading_ns = read_ns / hbm_speed(step, die) if placed[die] == 0 else 0.0
            compute_ns = loads[die].compute_ns + work_ns / array_speed(step, die)
            ns = max(compute_ns, loads[die].hbm_ns + reading_ns, loads[die].inbound_ns)
            if ns < best_ns:
                best, best_ns = die, ns
    return best, best_ns


@inner
def _best_other(step, expert, loads, placed, work_ns, read_ns, weight_bytes):
    """(die, when it or its source finishes) among dies that would have to fetch the expert."""
    best, best_ns = -1, np.inf
    for die in range(len(loads)):
        if placed[die] > 0 or _holds_copy(step, expert, die):
            continue
        source = _source(step, expert, die)
        inbound_ns = loads[die].inbound_ns + weight_bytes / step.pair_bytes_per_ns[source, die]
        own_ns = max(loads[die].compute_ns + work_ns / array_speed(step, die), loads[die].hbm_ns, inbound_ns)
        ns = max(own_ns, loads[source].hbm_ns + read_ns / hbm_speed(step, source))
        if ns < best_ns:
            best, best_ns = die, ns
    return best, best_ns


@kernel
def _place(step, order, block_tokens, slack, loads, given, candidates, blocks):
    """Fill ``given: int64[expert, die]``; count what was considered."""
    costs, dies = step.costs, len(loads)
    weight_bytes = SLICES * costs.slice_bytes
    read_ns, token_ns = weight_bytes / costs.hbm_bytes_per_ns, costs.flop_per_token / costs.flop_per_ns
    total = 0
    for expert in order:
        total += step.tokens[expert]
    speed = 0.0
    for die in range(dies):
        speed += array_speed(step, die)
    target_ns = (1.0 + slack) * max(total * token_ns / speed, len(order) * read_ns / dies)
    for at in range(len(order)):
        expert = order[at]
        placed, left = given[expert], np.int64(step.tokens[expert])
        candidates[at] = dies
        while left > 0:
            size = min(left, block_tokens)
            work_ns = size * token_ns
            blocks[at] += 1
            die, ns = _best_holder(step, expert, loads, placed, work_ns, read_ns)
            source = np.int64(die)
            if ns > target_ns:
                other, other_ns = _best_other(step, expert, loads, placed, work_ns, read_ns, weight_bytes)
                if other_ns < ns:
                    die, source = other, _source(step, expert, other)
                    loads[die].inbound_ns += weight_bytes / step.pair_bytes_per_ns[source, die]
            if placed[die] == 0:
                loads[source].hbm_ns += read_ns / hbm_speed(step, source)
            loads[die].compute_ns += work_ns / array_speed(step, die)
            placed[die] += size
            left -= size
