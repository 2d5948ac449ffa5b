"""Allocations that move tokens from overloaded dies: Libra to other holders, HarMoEny to any die, which fetches."""

import numpy as np

from archsim.policies.allocation.harmoeny import harmoeny as schedule
from archsim.policies.allocation.libra import libra_shard
from archsim.policies.allocation.rules import Effort, Plan, StepView, plan_of


def libra(step: StepView, epsilon: float = 0.01, rule: str = "literal") -> Plan:
    """Tokens run where they live if that die holds the expert, else at the expert's home; then Libra's Algorithm 2
    shards them in whole tokens until no die is above (1 + epsilon) times the mean.

    Charged a pass over all (die, expert) cells, and for each move a search of the other holders.
    """
    wanted, dies = step.origins.T.astype(np.int64), len(step.hops)
    given = np.where(step.holders, wanted, 0)
    away = (wanted - given).sum(axis=1)
    remote = np.zeros((dies, len(wanted)))
    remote[step.home, np.arange(len(wanted))] = away
    moves = libra_shard(
        step.holders.T, given.sum(axis=0), remote, wanted.sum() / dies, epsilon, f"{rule}_integer_tokens"
    ).moves.astype(np.int64)
    np.add.at(given, (np.arange(len(wanted)), step.home), away)
    for origin, expert, to, tokens in moves.tolist():
        given[expert, origin] -= tokens
        given[expert, to] += tokens
    return _plan(given, len(moves), dies)


def harmoeny(step: StepView, threshold: int = 150, rule: str = "released") -> Plan:
    """Every expert starts on its home; overloaded dies pass batches of its tokens to the least loaded die."""
    wanted, dies = step.origins.astype(np.int64), len(step.hops)
    moves = schedule(wanted, dies, threshold, rule, home=step.home).moves
    given = np.zeros(step.holders.shape, np.int64)
    given[np.arange(len(given)), step.home] = step.tokens
    np.subtract.at(given, (moves[:, 1], moves[:, 2]), moves[:, 4])
    np.add.at(given, (moves[:, 1], moves[:, 3]), moves[:, 4])
    return _plan(given, len(moves), dies)


def _plan(given: np.ndarray, moves: int, dies: int) -> Plan:
    """The plan of ``given: int64[expert, die]`` tokens, found with that many moves."""
    active = np.count_nonzero(given.any(axis=1))
    effort = Effort(
        True, active, np.full(active, dies, np.int64), np.ones(active, np.int64), given.size + moves * (dies + active)
    )
    return plan_of(given, effort)
