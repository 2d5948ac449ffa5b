"""Allocation: which die works on how many tokens of which expert in one step.

An allocation is a pure function ``(step: StepView, **parameters) -> Plan``. It sees one step's demand, where weights
lie and what things cost; it has no clock and no memory. ``package.module:function`` of a user's own works the same.

=============== ===========================================================================================
name            rule
=============== ===========================================================================================
``first_seen``  experts in order of first appearance in the demand, the i-th on die (i + offset) mod D;
                weights are read from wherever they lie (published simulator's ``base``)
``home``        every expert on its home die (expert parallelism, ``ep``)
``isca26``      blocks of tokens to the candidate that keeps the worse of {candidate, data source} lowest
                (published simulator; Yu et al., ISCA 2026, algorithm 1)
``paper``       blocks of tokens to the candidate of lowest cost, hosts and dies within a distance of a host
                (Yu et al., arXiv 2510.05497 algorithm 1 as the paper states it)
=============== ===========================================================================================
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

SLICES = 3  # gate, up and down matrix of an expert


class Costs(NamedTuple):
    """What an allocation may assume about the machine: effective bandwidths in bytes per ns, rates in FLOP per ns."""

    slice_bytes: int
    flop_per_token: float  # of one expert: 6 * hidden * ffn
    flop_per_ns: float
    hbm_bytes_per_ns: float
    link_bytes_per_ns: float
    hbm_latency_ns: float
    hop_ns: float


class StepView(NamedTuple):
    """What the Global CP knows when it allocates a step."""

    tokens: np.ndarray  # int32[expert]
    first_seen: np.ndarray  # int16[expert] experts in order of first appearance, -1 behind the last
    home: np.ndarray  # int32[expert]
    copied_slices: np.ndarray  # int8[expert, die] slices of the expert the die holds copies of
    hops: np.ndarray  # int32[die, die]
    costs: Costs


class Plan(NamedTuple):
    """Who does what: entries in order of expert, then as the rule gives them."""

    expert: np.ndarray  # int32[entry]
    die: np.ndarray  # int32[entry]
    tokens: np.ndarray  # int32[entry], > 0


def first_seen(step: StepView, offset: int = 7) -> Plan:
    """The i-th expert to appear goes to die (i + offset) mod D, with all of its tokens."""
    order = step.first_seen[step.first_seen >= 0].astype(np.int32)
    die = ((np.arange(len(order)) + offset) % len(step.hops)).astype(np.int32)
    by_expert = np.argsort(order, kind="stable")
    expert = order[by_expert]
    return Plan(expert, die[by_expert], step.tokens[expert].astype(np.int32))


def home(step: StepView) -> Plan:
    """Every active expert runs where it lives."""
    expert = np.flatnonzero(step.tokens).astype(np.int32)
    return Plan(expert, step.home[expert].astype(np.int32), step.tokens[expert].astype(np.int32))


def isca26(step: StepView, block_tokens: int = 512, candidates: int = 5) -> Plan:
    """The published simulator's allocation (its rules are restated in ``docs/assumptions.md``).

    ``block_tokens``: tokens given out at a time. ``candidates``: kept at least, more for experts with many tokens.
    """
    return Plan(*_isca26(step, block_tokens, candidates))


def paper(step: StepView, block_tokens: int = 50, distance: int = 1) -> Plan:
    """Blocks to the candidate of least ``load + max(weight read, block compute)``; hosts and dies near one.

    Reading of the paper's open points: ascending token count, no truncation of candidates, the weight read paid once
    for each (expert, die), ties to the earlier candidate, hosts first.
    """
    return Plan(*_paper(step, block_tokens, distance))


@njit
def _by_tokens(tokens):
    """Active experts by ascending (tokens, id), int64[active]."""
    active = np.flatnonzero(tokens)
    return active[np.argsort(tokens[active], kind="mergesort")]


@njit
def _blocks(tokens, block_tokens):
    """(count, size, last size) of the blocks; a remainder joins the last one."""
    count = max(1, tokens // block_tokens)
    return count, block_tokens if tokens >= block_tokens else tokens, tokens - (count - 1) * block_tokens


@njit
def _in_expert_order(active, given_die, given_tokens, given_count):
    """Flatten what every active expert gave, in order of expert id. ``given_*``: [expert, entry]."""
    total = 0
    for expert in active:
        total += given_count[expert]
    plan_expert, plan_die, plan_tokens = np.empty(total, np.int32), np.empty(total, np.int32), np.empty(total, np.int32)
    at = 0
    for expert in np.sort(active):
        for i in range(given_count[expert]):
            plan_expert[at], plan_die[at], plan_tokens[at] = expert, given_die[expert, i], given_tokens[expert, i]
            at += 1
    return plan_expert, plan_die, plan_tokens


@njit
def _rank_candidates(step, expert, die_ns, fetch_hop_ns, weight_ns, cand_die, cand_ns, cand_local):
    """Holders at their die time, the home's other neighbours at die time plus the fetch; by (time, die). Returns count."""
    n = 0
    home = step.home[expert]
    for die in range(len(step.hops)):
        holds = die == home or step.copied_slices[expert, die] > 0
        if not holds and step.hops[die, home] != 1:
            continue
        ns = die_ns[die] if holds else die_ns[die] + fetch_hop_ns + weight_ns
        at = n
        while at > 0 and cand_ns[at - 1] > ns:
            cand_die[at], cand_ns[at], cand_local[at] = cand_die[at - 1], cand_ns[at - 1], cand_local[at - 1]
            at -= 1
        cand_die[at], cand_ns[at], cand_local[at] = die, ns, holds
        n += 1
    return n


@njit(cache=True)
def _isca26(step, block_tokens, candidates):
    costs, dies = step.costs, len(step.hops)
    weight_bytes = SLICES * costs.slice_bytes
    read_ns = costs.hbm_latency_ns + weight_bytes / costs.hbm_bytes_per_ns
    weight_ns = weight_bytes / costs.link_bytes_per_ns
    fetch_ns = 2 * costs.hop_ns + weight_ns
    active = _by_tokens(step.tokens)
    local_ns, remote_ns, reads_ns, serves_ns, inbound_ns = np.zeros((5, dies))
    for expert in active:
        reads_ns[step.home[expert]] += read_ns
    threshold = max(step.tokens.sum() / max(1, len(active)), 512.0)
    cand_die, cand_ns, cand_local = np.zeros(dies, np.int64), np.zeros(dies), np.zeros(dies, np.bool_)
    experts = len(step.tokens)
    given_die, given_tokens = np.zeros((experts, dies), np.int32), np.zeros((experts, dies), np.int32)
    given_count = np.zeros(experts, np.int64)
    for expert in active:
        tokens, home = step.tokens[expert], step.home[expert]
        die_ns = np.maximum(np.maximum(local_ns, reads_ns + serves_ns), inbound_ns) + remote_ns
        n = _rank_candidates(step, expert, die_ns, 2 * costs.hop_ns, weight_ns, cand_die, cand_ns, cand_local)
        n = min(n, max(candidates, int(tokens // threshold)))
        placed = np.zeros(n, np.int64)
        count, size, last = _blocks(tokens, block_tokens)
        for block in range(count):
            block_size = last if block == count - 1 else size
            work_ns = np.ceil(costs.flop_per_token * block_size / costs.flop_per_ns)
            best, best_ns = -1, np.inf
            for i in range(n):
                die = cand_die[i]
                if cand_local[i]:
                    worst = max(local_ns[die] + work_ns, reads_ns[die] + serves_ns[die], inbound_ns[die]) + remote_ns[die]
                else:
                    busy = max(local_ns[die], reads_ns[die] + serves_ns[die], inbound_ns[die] + fetch_ns)
                    extra = 0.0 if placed[i] else read_ns
                    source = max(local_ns[home], reads_ns[home] + serves_ns[home] + extra, inbound_ns[home]) + remote_ns[home]
                    worst = max(busy + remote_ns[die] + work_ns, source)
                if worst < best_ns or (worst == best_ns and cand_local[i] and not cand_local[best]):
                    best, best_ns = i, worst
            die = cand_die[best]
            if cand_local[best]:
                local_ns[die] += work_ns
            else:
                remote_ns[die] += work_ns
                inbound_ns[die] += fetch_ns
                if placed[best] == 0:
                    serves_ns[home] += read_ns
            placed[best] += block_size
        for i in range(n):
            if placed[i]:
                given_die[expert, given_count[expert]] = cand_die[i]
                given_tokens[expert, given_count[expert]] = placed[i]
                given_count[expert] += 1
    return _in_expert_order(active, given_die, given_tokens, given_count)


@njit
def _nearest_host(step, expert, die):
    """Distance to the nearest die that holds the expert (0: this one does)."""
    nearest = step.hops[die, step.home[expert]]
    for host in range(len(step.hops)):
        if step.copied_slices[expert, host] == SLICES:
            nearest = min(nearest, step.hops[die, host])
    return nearest


@njit(cache=True)
def _paper(step, block_tokens, distance):
    costs, dies, experts = step.costs, len(step.hops), len(step.tokens)
    weight_bytes = SLICES * costs.slice_bytes
    active = _by_tokens(step.tokens)
    load_ns = np.zeros(dies)
    read_ns, order, placed = np.zeros(dies), np.zeros(dies, np.int64), np.zeros(dies, np.int64)
    given_die, given_tokens = np.zeros((experts, dies), np.int32), np.zeros((experts, dies), np.int32)
    given_count = np.zeros(experts, np.int64)
    for expert in active:
        n = 0
        for reach in range(distance + 1):
            for die in range(dies):
                if _nearest_host(step, expert, die) == reach:
                    far_ns = reach * (costs.hop_ns + weight_bytes / costs.link_bytes_per_ns)
                    read_ns[die] = far_ns if reach else costs.hbm_latency_ns + weight_bytes / costs.hbm_bytes_per_ns
                    order[n], placed[die] = die, 0
                    n += 1
        left = step.tokens[expert]
        while left > 0:
            size = min(left, block_tokens)
            work_ns = costs.flop_per_token * size / costs.flop_per_ns
            best, best_ns = order[0], np.inf
            for die in order[:n]:
                ns = load_ns[die] + max(0.0 if placed[die] else read_ns[die], work_ns)
                if ns < best_ns:
                    best, best_ns = die, ns
            load_ns[best] = best_ns
            placed[best] += size
            left -= size
        for die in order[:n]:
            if placed[die]:
                given_die[expert, given_count[expert]], given_tokens[expert, given_count[expert]] = die, placed[die]
                given_count[expert] += 1
    return _in_expert_order(active, given_die, given_tokens, given_count)
