"""Allocation: which die executes how many tokens of which expert in one step.

An allocation is a pure function ``(step: StepView, **parameters) -> Plan``. It sees one step's demand, where weights
are and what things cost; it has no clock and no state. A user's ``package.module:function`` works the same way.

=============== ===========================================================================================
name            rule
=============== ===========================================================================================
``first_seen``  experts in order of first appearance in the demand, the i-th on die (i + offset) mod D;
                weights are read from wherever they are (published simulator's ``base``)
``home``        every expert on its home die, the first holder (expert parallelism, ``ep``)
``isca26``      blocks of tokens to the candidate that keeps the worse of {candidate, data source} lowest
                (published simulator; Yu et al., ISCA 2026, algorithm 1)
``paper``       blocks of tokens to the candidate of lowest cost: holders and dies within a distance of one
                (Yu et al., arXiv 2510.05497 algorithm 1 as the paper states it)
``lp``          shares of experts that minimise the load of the fullest resource, by linear programming, rounded
                (``archsim.policies.linear_programme``)
others          tokens among the holders of an expert (below), and moves between dies
                (``archsim.policies.libra``)
=============== ===========================================================================================
"""

from __future__ import annotations

from math import ceil, log2
from typing import NamedTuple, Protocol

import numpy as np

from archsim.base.compiled import GOLDEN, inner, kernel, mix_bits, unsigned
from archsim.laws.wafer import SPEED_BITS, SPEED_FRACTION
from archsim.model.spec import SLICES
from archsim.policies.seen_routing import SeenRouting

NO_ORIGINS = np.zeros((0, 0), np.int32)
NO_SPEEDS = np.zeros((2, 0))


class Costs(NamedTuple):
    """What an allocation may assume about the machine: effective bandwidths in bytes per ns, rates in FLOP per ns."""

    slice_bytes: int  # of one expert slice
    flop_per_token: float  # of one expert: 6 * hidden * ffn
    flop_per_ns: float  # of a die
    hbm_bytes_per_ns: float  # of a die
    link_bytes_per_ns: float  # of a link in one direction
    hbm_latency_ns: float  # of a read
    hop_ns: float  # of a hop
    # Unit in which a state machine keeps the costs of ``paper``: they are integers there. 0: any number.
    quantum_ns: float = 0.0


class ChargedRates(NamedTuple):
    """What the engine charges a die for more work, near the mean die of a step."""

    row_ns: float  # compute, for a further token of an expert that it runs
    expert_ns: float  # compute, for a further expert
    read_ns: float  # its HBM, for the weights of an expert


class Charged(Protocol):
    """What the engine will charge for the step under the selected assumptions."""

    @property
    def rates(self) -> ChargedRates:
        """Of a die with the step's mean load."""

    def plan_ns(self, plan: Plan) -> float:
        """The time of the step with this plan, by the law of the analytical engine; the decision is not included."""

    def decision_ns(self, plan: Plan) -> float:
        """What deciding on this plan, by its effort, takes on the critical path; no clock is read for it."""


class StepView(NamedTuple):
    """What the Global CP knows when it allocates a step."""

    tokens: np.ndarray  # int32[expert]
    first_seen: np.ndarray  # int16[expert] experts in order of first appearance, -1 after the last
    home: np.ndarray  # int32[expert]: the first holder
    copied_slices: np.ndarray  # int8[expert, die] slices of the expert of which the die has cached copies
    hops: np.ndarray  # int32[die, die]
    costs: Costs  # what it may assume about the machine
    layer: int  # MoE layer of the run
    step: int  # iteration
    holders: np.ndarray  # bool[expert, die]: dies that hold the expert by placement: home and replicas
    pair_ns: np.ndarray  # float64[die, die]: latency of the route from the first die to the second
    pair_bytes_per_ns: np.ndarray  # float64[die, die]: bandwidth of its narrowest link
    origins: np.ndarray = NO_ORIGINS  # int32[die, expert] tokens by the die they live on; [0, 0] if not known
    # float64[2, die]: rates of arrays and HBMs over those of ``costs``, for a rule that ``needs: speeds``; else [2, 0]
    speeds: np.ndarray = NO_SPEEDS
    prompt: bool = False  # whether the iteration has tokens of prompts
    charged: Charged | None = None  # None: not known
    # The step's tokens, of this layer and the one before, for a rule that ``needs: routing``; else None
    seen: SeenRouting | None = None

    @property
    def rates(self) -> ChargedRates:
        """What the engine charges; where nobody knows it, what ``costs`` say."""
        if self.charged is not None:
            return self.charged.rates
        costs = self.costs
        read_ns = SLICES * costs.slice_bytes / costs.hbm_bytes_per_ns
        return ChargedRates(costs.flop_per_token / costs.flop_per_ns, 0.0, read_ns)

    @property
    def compiled(self) -> StepView:
        """What compiled kernels accept: numbers and arrays alone."""
        return StepView(*self[:-2])


class Effort(NamedTuple):
    """Work of an allocation, as counts, not times; executors charge for it."""

    global_demand: bool  # whether it read the tokens of more than one die
    sorted_experts: int  # number of experts that it sorts
    candidates: np.ndarray  # int64[active expert that it places]: candidates ranked
    blocks: np.ndarray  # int64[active expert that it places]: blocks assigned one by one
    operations: int = 0  # multiply-adds of a solver
    statistics_bytes: int = 0  # counts of every die that the dies add up first, beside the demand of the step
    speeds: bool = False  # whether every evaluation of a candidate multiplies by a speed of its die

    def plus(self, operations: int, statistics_bytes: int = 0) -> Effort:
        """The same, and more operations and statistics."""
        return self._replace(
            operations=self.operations + operations, statistics_bytes=self.statistics_bytes + statistics_bytes
        )


NO_EFFORT = Effort(False, 0, np.zeros(0, np.int64), np.zeros(0, np.int64))


class Plan(NamedTuple):
    """The plan of a step: entries in order of expert, then as the rule returns them."""

    expert: np.ndarray  # int32[entry]
    die: np.ndarray  # int32[entry]
    tokens: np.ndarray  # int32[entry], > 0
    effort: Effort = NO_EFFORT  # what an executor charges for
    # int64[die, die] tokens that live on the first die and whose shared experts run on the second; None: at home
    shared: np.ndarray | None = None
    # int32[entry] tokens that run in a kernel of their own, which does not wait for the dispatch; None: one kernel
    first: np.ndarray | None = None


NO_PLAN = Plan(*(np.zeros(0, np.int32),) * 3)


def plan_of(given: np.ndarray, effort: Effort = NO_EFFORT) -> Plan:
    """The plan of ``given: int64[expert, die]`` tokens; entries in order of expert, then of die."""
    expert, die = np.nonzero(given)
    return Plan(expert.astype(np.int32), die.astype(np.int32), given[expert, die].astype(np.int32), effort)


def estimating(plan: Plan, home: np.ndarray, hops: np.ndarray) -> int:
    """Operations that estimate a plan (``Charged.plan_ns``): those of every entry, by its distance from home."""
    away = hops[home[plan.expert], plan.die]
    return len(away) * entry_operations(len(hops), 0) + SLICES * int(away.sum())


def entry_operations(dies: int, hops: int) -> int:
    """Of an entry: the expected vectors of all dies, and for each slice a place in a calendar of dies and a booking of
    both ends and of every link between them.
    """
    return dies + SLICES * (ceil(log2(dies)) + 2 + hops)


def first_seen(step: StepView, offset: int = 7) -> Plan:
    """The i-th expert to appear goes to die (i + offset) mod D, with all of its tokens."""
    experts = len(step.tokens)
    rank, (expert, die, tokens) = np.full(experts, -1, np.int64), np.empty((3, experts), np.int32)
    n = _deal(step.first_seen, step.tokens, offset, len(step.hops), rank, expert, die, tokens)
    return Plan(expert[:n], die[:n], tokens[:n], _DEALT)


_DEALT = NO_EFFORT._replace(global_demand=True)


@kernel
def _deal(first_seen, wanted, offset, dies, rank, expert, die, tokens):
    """Entries of `first_seen`, in order of expert; returns how many. ``rank``: int64[expert], -1."""
    for at in range(len(first_seen)):
        if first_seen[at] < 0:
            break
        rank[first_seen[at]] = at
    n = 0
    for each in range(len(rank)):
        if rank[each] >= 0:
            expert[n], die[n], tokens[n] = each, (rank[each] + offset) % dies, wanted[each]
            n += 1
    return n


def home(step: StepView) -> Plan:
    """Every active expert runs on its home die."""
    expert = np.flatnonzero(step.tokens).astype(np.int32)
    return Plan(expert, step.home[expert].astype(np.int32), step.tokens[expert].astype(np.int32))


def isca26(step: StepView, block_tokens: int = 512, candidates: int = 5) -> Plan:
    """The published simulator's allocation (its rules are restated in ``docs/policies.md``).

    ``block_tokens``: tokens assigned at a time. ``candidates``: least number kept, more for experts with many tokens.
    """
    order, (candidate, given) = _by_tokens(step.tokens), _blank(step)
    effort, loads = _effort(order), np.zeros(len(step.hops), LOAD)
    counts = effort.candidates, effort.blocks
    effort = effort._replace(speeds=knows_speeds(step))
    blocks = _place_isca26(step.compiled, order, block_tokens, candidates, loads, candidate, given, *counts)
    return _in_expert_order(candidate, given, blocks, effort)


def paper(step: StepView, block_tokens: int = 50, distance: int = 1, max_split_num: int | str = 0) -> Plan:
    """Blocks to the candidate of least ``load + max(weight read, block compute)``; holders and dies near one.

    Where the paper leaves details open: ascending token count, no truncation of candidates, the weight read paid once
    for each (expert, die), ties to the earlier candidate, holders first. On a state machine costs are integers
    (``Costs.quantum_ns``). ``max_split_num``: candidates that are kept, those of the least load when the expert's turn
    comes, ties to the earlier; ``blocks``: one for each block, "determined by the request count" (version 2 of the
    paper); 0: all.
    """
    kept = -1 if max_split_num == "blocks" else int(max_split_num)
    order, (candidate, given) = _by_tokens(step.tokens), _blank(step)
    effort, (load_ns, read_ns) = _effort(order), np.zeros((2, len(step.hops)))
    counts = effort.candidates, effort.blocks
    effort = effort._replace(speeds=knows_speeds(step))
    limits = block_tokens, distance, kept
    blocks = _place_paper(step.compiled, order, *limits, load_ns, read_ns, candidate, given, *counts)
    return _in_expert_order(candidate, given, blocks, effort)


LOAD = np.dtype(
    [
        ("local_ns", "f8"),  # compute on weights that the die holds
        ("remote_ns", "f8"),  # compute on weights that it fetches
        ("reads_ns", "f8"),  # its HBM reads for itself
        ("serves_ns", "f8"),  # its HBM reads for others
        ("inbound_ns", "f8"),  # weights on their way to it
        ("now_ns", "f8"),  # die time when the candidates of an expert are ranked
    ]
)


def _by_tokens(tokens) -> np.ndarray:
    """Active experts by ascending (tokens, id), int64[active]."""
    return np.argsort(tokens, kind="stable")[len(tokens) - np.count_nonzero(tokens) :]


def _blank(step) -> np.ndarray:
    """Candidate dies and the tokens assigned to them, int64[2, expert, rank of the candidate]."""
    return np.zeros((2, len(step.tokens), len(step.hops)), np.int64)


def _effort(order) -> Effort:
    """Zero counts for the rule to fill in, in the order in which experts are placed."""
    return Effort(True, len(order), *np.zeros((2, len(order)), np.int64))


def _in_expert_order(candidate, given, blocks, effort) -> Plan:
    """Entries in order of expert, then of the rank of the candidate: as many as blocks, at most."""
    expert, die, tokens = np.empty((3, blocks), np.int32)
    n = _collect(candidate, given, expert, die, tokens)
    return Plan(expert[:n], die[:n], tokens[:n], effort)


@kernel
def _collect(candidate, given, expert, die, tokens):
    """What `_in_expert_order` returns, and how many entries there are."""
    n = 0
    for each in range(unsigned(given.shape[0])):
        for rank in range(unsigned(given.shape[1])):
            if given[each, rank]:
                expert[n], die[n], tokens[n] = each, candidate[each, rank], given[each, rank]
                n += 1
    return n


def knows_speeds(step: StepView) -> bool:
    return step.speeds is not None and step.speeds.shape[1] > 0


@inner
def array_speed(step, die):
    return step.speeds[0, die] if step.speeds.shape[1] > 0 else 1.0


@inner
def hbm_speed(step, die):
    return step.speeds[1, die] if step.speeds.shape[1] > 0 else 1.0


@inner
def _die_ns(load):
    return max(load.local_ns, load.reads_ns + load.serves_ns, load.inbound_ns) + load.remote_ns


@inner
def _holds(step, expert, die):
    return step.holders[expert, die] or step.copied_slices[expert, die] > 0


@inner
def _fetch_of(step, home, die, weight_bytes):
    """(request and latency, weights) of a fetch from the home, by the links between them if the rule sees these."""
    costs = step.costs
    if step.speeds.shape[1] > 0 and die != home:
        return 2 * step.pair_ns[home, die], weight_bytes / step.pair_bytes_per_ns[home, die]
    return 2 * costs.hop_ns, weight_bytes / costs.link_bytes_per_ns


@inner
def _rank_candidates(step, expert, weight_bytes, loads, ranked):
    """Holders at their die time, the home's neighbours with the fetch added; by (time, die). Returns the count."""
    n = 0
    home = step.home[unsigned(expert)]
    for die in range(unsigned(len(loads))):
        holds = _holds(step, unsigned(expert), die)
        if not holds and step.hops[die, unsigned(home)] != 1:
            continue
        load = loads[die]
        extra_ns = _fetch_of(step, home, die, weight_bytes)
        load.now_ns = _die_ns(load) if holds else _die_ns(load) + extra_ns[0] + extra_ns[1]
        at = n
        while at > 0 and loads[unsigned(ranked[unsigned(at - 1)])].now_ns > load.now_ns:
            ranked[unsigned(at)] = ranked[unsigned(at - 1)]
            at -= 1
        ranked[unsigned(at)] = die
        n += 1
    return n


@inner
def _worst_after(load, source, local, first, work_ns, read_ns, fetch_ns):
    """The larger die time of executor and data source once a block is added."""
    if local:
        return max(load.local_ns + work_ns, load.reads_ns + load.serves_ns, load.inbound_ns) + load.remote_ns
    busy_ns = max(load.local_ns, load.reads_ns + load.serves_ns, load.inbound_ns + fetch_ns)
    served_ns = source.reads_ns + source.serves_ns + (read_ns if first else 0.0)
    source_ns = max(source.local_ns, served_ns, source.inbound_ns) + source.remote_ns
    return max(busy_ns + load.remote_ns + work_ns, source_ns)


@inner
def _work_ns(step, die, tokens):
    """Whole ns in which a die computes tokens of an expert."""
    costs = step.costs
    return np.ceil(costs.flop_per_token * tokens / (costs.flop_per_ns * array_speed(step, die)))


@kernel
def _place_isca26(step, order, block_tokens, candidates, loads, candidate, given, ranked_count, block_count):
    costs = step.costs
    weight_bytes = SLICES * costs.slice_bytes
    total = 0
    for expert in order:
        rate = costs.hbm_bytes_per_ns * hbm_speed(step, step.home[expert])
        loads[step.home[expert]].reads_ns += costs.hbm_latency_ns + weight_bytes / rate
        total += step.tokens[expert]
    all_blocks = 0
    threshold = max(total / max(1, len(order)), 512.0)  # 512: a constant of the published simulator
    for at in range(len(order)):
        expert = order[at]
        home = np.int64(step.home[expert])
        tokens, source = np.int64(step.tokens[expert]), loads[home]
        read_ns = costs.hbm_latency_ns + weight_bytes / (costs.hbm_bytes_per_ns * hbm_speed(step, home))
        ranked, placed = candidate[expert], given[expert]
        n = min(_rank_candidates(step, expert, weight_bytes, loads, ranked), max(candidates, int(tokens // threshold)))
        blocks = max(1, tokens // block_tokens)
        ranked_count[at], block_count[at] = n, blocks
        all_blocks += blocks
        for block in range(blocks):
            size = min(tokens, block_tokens) if block < blocks - 1 else tokens - (blocks - 1) * block_tokens
            best, best_ns, best_local = -1, np.inf, False
            for rank in range(n):
                die = unsigned(ranked[unsigned(rank)])
                work_ns = _work_ns(step, die, size)
                extra_ns = _fetch_of(step, home, ranked[unsigned(rank)], weight_bytes)
                fetch_ns = extra_ns[0] + extra_ns[1]
                local = _holds(step, unsigned(expert), die)
                first = placed[unsigned(rank)] == 0
                worst_ns = _worst_after(loads[die], source, local, first, work_ns, read_ns, fetch_ns)
                if worst_ns < best_ns or (worst_ns == best_ns and local and not best_local):
                    best, best_ns, best_local = rank, worst_ns, local
            load = loads[ranked[best]]
            work_ns = _work_ns(step, unsigned(ranked[best]), size)
            extra_ns = _fetch_of(step, home, ranked[best], weight_bytes)
            fetch_ns = extra_ns[0] + extra_ns[1]
            if best_local:
                load.local_ns += work_ns
            else:
                load.remote_ns += work_ns
                load.inbound_ns += fetch_ns
                source.serves_ns += read_ns if placed[best] == 0 else 0.0
            placed[best] += size
    return all_blocks


@inner
def _nearest_host(step, expert, die):
    """The nearest die that holds the whole expert, of several the home, then the lowest; and the distance to it."""
    found = np.int64(step.home[expert])
    nearest = step.hops[die, found]
    for host in range(len(step.hops)):
        if step.holders[expert, host] or step.copied_slices[expert, host] == SLICES:
            if step.hops[die, host] < nearest:
                found, nearest = host, step.hops[die, host]  # type: ignore[assignment]
    return found, nearest


@inner
def _in_quanta(ns, quantum_ns):
    """``ns`` as a state machine keeps it: the nearest multiple of a quantum, halves up; 0: as it is."""
    return np.floor(ns / quantum_ns + 0.5) * quantum_ns if quantum_ns > 0.0 else ns


def slowness(speeds: np.ndarray) -> np.ndarray:
    """int64[die]: nominal speed over the speed of a die, in units of 2^-SPEED_FRACTION; at most SPEED_BITS bits."""
    return np.minimum(np.floor(2.0**SPEED_FRACTION / speeds + 0.5), 2**SPEED_BITS - 1).astype(np.int64)


@inner
def _on_die(step, die, work_ns):
    """Rounded work of a nominal die on this one; a state machine multiplies whole numbers, halves up."""
    quantum_ns, speed = step.costs.quantum_ns, array_speed(step, die)
    if quantum_ns <= 0.0 or step.speeds.shape[1] == 0:
        return work_ns / speed
    one = 2.0**SPEED_FRACTION
    factor = min(np.floor(one / speed + 0.5), 2.0**SPEED_BITS - 1.0)
    return np.floor((np.rint(work_ns / quantum_ns) * factor + one / 2) / one) * quantum_ns


@inner
def _keep_least_loaded(near, read_ns, load_ns, n, kept):
    """Sort the first n candidates by load, in place and stably; returns how many are kept."""
    for at in range(1, n):
        die, read, to = near[at], read_ns[at], at
        while to > 0 and load_ns[near[to - 1]] > load_ns[die]:
            near[to], read_ns[to] = near[to - 1], read_ns[to - 1]
            to -= 1
        near[to], read_ns[to] = die, read
    return min(n, kept)


@kernel
def _place_paper(
    step, order, block_tokens, distance, kept, load_ns, read_ns, candidate, given, ranked_count, block_count
):
    costs = step.costs
    weight_bytes = SLICES * costs.slice_bytes
    for at in range(len(order)):
        expert = order[at]
        near, placed, n = candidate[expert], given[expert], 0
        for reach in range(distance + 1):
            for die in range(len(load_ns)):
                host, hops = _nearest_host(step, expert, die)
                if hops == reach:
                    far_ns = reach * (costs.hop_ns + weight_bytes / costs.link_bytes_per_ns)
                    if step.speeds.shape[1] > 0 and reach > 0:
                        far_ns = step.pair_ns[host, die] + reach * (weight_bytes / step.pair_bytes_per_ns[host, die])
                    here_ns = costs.hbm_latency_ns + weight_bytes / (costs.hbm_bytes_per_ns * hbm_speed(step, die))
                    read_ns[n] = _in_quanta(far_ns if reach else here_ns, costs.quantum_ns)
                    near[n] = die
                    n += 1
        left = np.int64(step.tokens[expert])
        ranked_count[at] = n
        if kept != 0:
            n = _keep_least_loaded(near, read_ns, load_ns, n, kept if kept > 0 else -(-left // block_tokens))
        while left > 0:
            size = min(left, block_tokens)
            block_count[at] += 1
            best, best_ns = 0, np.inf
            nominal_ns = _in_quanta(costs.flop_per_token * size / costs.flop_per_ns, costs.quantum_ns)
            for rank in range(n):
                work_ns = _on_die(step, near[rank], nominal_ns)
                ns = load_ns[near[rank]] + max(0.0 if placed[rank] else read_ns[rank], work_ns)
                if ns < best_ns:
                    best, best_ns = rank, ns
            load_ns[near[best]] = best_ns
            placed[best] += size
            left -= size
    return block_count.sum()


# Allocations among the holders of an expert: no die runs an expert that it does not hold.
#
# Splits into whole tokens give the remainder to the largest fractions, or to the first holders.

LPLB_STEPS = 5  # of the interior-point solver (SGLang's LPLB); what is charged, whatever solves the programme here


def even(step: StepView) -> Plan:
    """Every holder of an expert gets as many of its tokens, the first holders one more; of a rule that sees speeds, in
    proportion to them, the rest to the largest remainders.
    """
    expert, die, first, counts = _instances(step)
    if knows_speeds(step):
        given = np.zeros(len(die), np.int64)
        _whole_shares(step.tokens, step.speeds[0][die], first, counts, given, np.zeros(len(die)))
        plan = _plan(expert, die, given)
        return plan._replace(effort=plan.effort.plus(len(expert))._replace(speeds=True))
    each, rest = np.divmod(step.tokens, np.maximum(counts, 1))
    return _plan(expert, die, each[expert] + (np.arange(len(expert)) - first[expert] < rest[expert]))


def take_by_hash(step: StepView) -> Plan:
    """Every token takes a holder of its expert by a hash of its position, layer and iteration: even, but for chance, as
    engines that ask nobody choose a replica.
    """
    place = mix_bits(np.array([step.step << 32 | step.layer], np.uint64))
    drawn = mix_bits(np.arange(int(step.tokens.sum()), dtype=np.uint64) * GOLDEN + place) >> np.uint64(32)
    expert, die, first, counts = _instances(step)
    of = np.repeat(np.arange(len(counts)), step.tokens)  # expert of each token
    chosen = first[of] + (drawn % counts[of].astype(np.uint64)).astype(np.int64)
    return _plan(expert, die, np.bincount(chosen, minlength=len(expert)))


def _instances(step: StepView) -> tuple[np.ndarray, ...]:
    """int64[instance]: expert and die, in order of both; per expert its first instance and number, int64[expert]."""
    expert, die = np.nonzero(step.holders)
    counts = np.bincount(expert, minlength=len(step.tokens))
    return expert, die, np.cumsum(counts) - counts, counts


def _plan(expert: np.ndarray, die: np.ndarray, tokens: np.ndarray) -> Plan:
    """Of instances with these tokens, int64[instance] each; those without any are left out."""
    some = tokens > 0
    expert, die, tokens = (column[some].astype(np.int32) for column in (expert, die, tokens))
    return Plan(expert, die, tokens)


def nearest(step: StepView) -> Plan:
    """Every die's tokens go to the holder with the fewest hops, ties to the lowest die."""
    far = np.iinfo(np.int32).max
    distance = np.where(step.holders[:, None, :], step.hops[None], far)  # [expert, origin, holder]
    return plan_of(_sent(step, distance.argmin(axis=2)))


def static(step: StepView) -> Plan:
    """Every die uses one holder of an expert: itself, else one of those with the fewest hops, by turns over dies."""
    experts, dies = step.holders.shape
    chosen = np.zeros((experts, dies), np.int64)
    for expert in range(experts):
        holders = np.flatnonzero(step.holders[expert])
        distance = step.hops[:, holders]
        for die in range(dies):
            close = holders[distance[die] == distance[die].min()]
            chosen[expert, die] = close[(die + expert) % len(close)]
    return plan_of(_sent(step, chosen))


def lplb(step: StepView) -> Plan:
    """The shares that minimise the load of the fullest die, in whole tokens by the largest remainders.

    Charged as the published solver: an interior-point method of five steps over (replicated experts + dies) rows and
    their instances as columns.
    """
    from archsim.policies.lplb import lplb as share_out

    active = np.flatnonzero(step.tokens)
    holders = [np.flatnonzero(step.holders[expert]).tolist() for expert in active]
    shares = share_out(step.tokens[active], holders, len(step.hops), step.speeds[0] if knows_speeds(step) else None)
    given = np.zeros(step.holders.shape, np.int64)
    for expert, dies, split in zip(active.tolist(), holders, shares.split, strict=True):
        given[expert, dies] = whole_shares(int(step.tokens[expert]), split)
    counts = np.array([len(dies) for dies in holders], np.int64)
    replicated = counts[counts > 1]
    rows, columns = len(replicated) + len(step.hops), int(replicated.sum()) + len(step.hops) + 2
    operations = LPLB_STEPS * (rows * rows * columns + rows**3 // 3)
    if knows_speeds(step):
        operations += LPLB_STEPS * int(replicated.sum())  # loads over speeds
    return plan_of(given, Effort(True, 0, counts, np.ones(len(counts), np.int64), operations))


def whole_shares(tokens: int, split: np.ndarray) -> np.ndarray:
    """``tokens`` in proportion to ``split``, int64, the rest to the largest remainders, ties to the first."""
    total = split.sum()
    wished = split * (tokens / total) if total > 0 else np.full(len(split), tokens / len(split))
    counts = np.floor(wished + 1e-9).astype(np.int64)
    rest = np.argsort(counts - wished, kind="stable")[: tokens - int(counts.sum())]
    counts[rest] += 1
    return counts


@kernel
def _whole_shares(tokens, split, first, counts, given, rest):
    """`whole_shares` of every expert into ``given``: int64[instance], zeros. ``split``: float64[instance], of whose
    ``counts`` an expert's begin at ``first``, int64[expert]; ``rest``: float64[instance] to work in.
    """
    for expert in range(len(tokens)):
        begin, end = first[expert], first[expert] + counts[expert]
        total, every = 0.0, np.int64(tokens[expert])
        for at in range(begin, end):
            total += split[at]
        left = every
        for at in range(begin, end):
            wished = split[at] * (every / total) if total > 0.0 else every / (end - begin)
            given[at] = np.int64(np.floor(wished + 1e-9))
            rest[at] = given[at] - wished
            left -= given[at]
        for _ in range(left):
            least = begin
            for at in range(begin, end):
                if rest[at] < rest[least]:
                    least = at
            given[least] += 1
            rest[least] = np.inf


def _sent(step: StepView, holder: np.ndarray) -> np.ndarray:
    """int64[expert, die] if the tokens of an origin go to ``holder: int[expert, origin]``."""
    given = np.zeros(step.holders.shape, np.int64)
    expert = np.broadcast_to(np.arange(len(holder))[:, None], holder.shape)
    np.add.at(given, (expert, holder), step.origins.T.astype(np.int64))
    return given
