"""Libra: which experts each GPU replicates for the next layer, then how remote tokens are shared.

Libra, section 3, appendices B and C.
A token runs on its own GPU if that holds its expert, otherwise on the expert's home, until sharding moves it to
another holder.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from archsim.policies.allocation import Effort, Plan, StepView, plan_of
from archsim.policies.harmoeny import harmoeny as schedule
from archsim.policies.load import checked_count, checked_load, checked_name, whole

SLACK = 1e-12  # of the bound: tolerance for a GPU filled up to it, as sums of fractions round
SHARD_RULES = ("literal", "restart", "literal_integer_tokens", "restart_integer_tokens")


class ReplicaPlan(NamedTuple):
    holds: np.ndarray  # int64[gpu, expert] 1 where a GPU holds the expert, 0 elsewhere
    load: np.ndarray  # int64 or float64[gpu] if tokens arrive as predicted


class Sharding(NamedTuple):
    load: np.ndarray  # float64[gpu]
    moves: np.ndarray  # float64[move, 4] in order: from, expert, to, tokens


def libra_plan(load: ArrayLike, home: ArrayLike, slots: int, local: int, rule: str = "literal") -> ReplicaPlan:
    """Replicate up to ``slots`` experts on every GPU (Libra, Algorithm 1: N = ``slots``, L = ``local``).

    ``load[gpu, expert]``: tokens on a GPU predicted to choose the expert; ``home[expert]`` a GPU. First each GPU
    replicates the ``local`` experts homed elsewhere that most of its tokens choose. Then the most loaded GPU above
    the mean replicates the expert of its own with the most remote tokens on the least loaded GPU without it and with
    a free slot, whose tokens for it become local. ``rule``: "literal" does so only if that GPU stays within the mean,
    as printed, and stops at the first that would not; "prose" without that test (section 3.2). Ties to the lowest
    index. ValueError: ``local`` above ``slots``, homes unknown.
    """
    wanted = whole(checked_load(load, ("gpu", "expert")))
    checked_name(rule, "rule", ("literal", "prose"))
    if checked_count(local, "local", least=0) > checked_count(slots, "slots", least=0):
        raise ValueError(f"local is {local}; expected at most {slots}, the slots of a GPU")
    gpus, experts = wanted.shape
    home = _checked_home(home, gpus, experts)
    away = np.arange(gpus)[:, None] != home
    holds = ~away
    for gpu in range(gpus):
        hot = np.argsort(np.where(away[gpu], -wanted[gpu], 1), kind="stable")[:local]
        holds[gpu, hot[away[gpu, hot] & (wanted[gpu, hot] > 0)]] = True
    result = _load_at_home(wanted, home, holds)
    for _ in range((slots - local) * gpus):
        step = _next_copy(wanted, home, holds, result, slots)
        if step is None:
            break
        origin, expert, gpu = step
        if rule == "literal" and (result[gpu] + wanted[gpu, expert]) * gpus > wanted.sum():
            break
        holds[gpu, expert] = True
        result[origin] -= wanted[gpu, expert]
        result[gpu] += wanted[gpu, expert]
    return ReplicaPlan(holds.astype(np.int64), result)


def _checked_home(home: ArrayLike, gpus: int, experts: int) -> np.ndarray:
    home = np.asarray(home)
    if home.shape != (experts,) or (
        experts and (home.dtype.kind not in "iu" or not 0 <= home.min() <= home.max() < gpus)
    ):
        raise ValueError(
            f"home has shape {home.shape}; expected the home GPU 0..{gpus - 1} of each of {experts} experts"
        )
    return home.astype(np.int64)


def _load_at_home(wanted: np.ndarray, home: np.ndarray, holds: np.ndarray) -> np.ndarray:
    """Load of every GPU: its own tokens whose expert it holds, and others' for experts homed there."""
    result = np.where(holds, wanted, 0).sum(axis=1)
    np.add.at(result, home, np.where(holds, 0, wanted).sum(axis=0))
    return result


def _next_copy(
    wanted: np.ndarray, home: np.ndarray, holds: np.ndarray, load: np.ndarray, slots: int
) -> tuple[int, int, int] | None:
    """(from, expert, to); None if no GPU is above the mean, has remote tokens, and finds a GPU with a free slot."""
    gpus = len(load)
    origin = int(load.argmax())
    remote = np.where(home == origin, np.where(holds, 0, wanted).sum(axis=0), -1)
    if load[origin] * gpus <= wanted.sum() or remote.max(initial=0) <= 0:
        return None
    expert = int(remote.argmax())
    extras = holds.sum(axis=1) - np.bincount(home, minlength=gpus)
    takers = np.flatnonzero(~holds[:, expert] & (extras < slots))
    return (origin, expert, int(takers[load[takers].argmin()])) if len(takers) else None


def libra_shard(
    holds: ArrayLike,
    local_load: ArrayLike,
    remote_load: ArrayLike,
    bound: float,
    epsilon: float = 0.0,
    rule: str = "literal",
) -> Sharding:
    """Move remote tokens between holders until no GPU is above (1 + ``epsilon``) * ``bound`` (Libra, Algorithm 2).

    ``holds[gpu, expert]``; ``local_load[gpu]`` stays; ``remote_load[gpu, expert]`` is what a GPU runs for others.
    Each GPU above ``bound``, the most loaded first, offers its experts, the largest first, to the least loaded other
    holder; which accepts as much as fits under ``bound``; then the next GPU follows. ``rule``: "literal" finishes
    the round with loads ordered at its start, as printed; "restart" sorts again after each move (section 3.3).
    "..._integer_tokens": a holder accepts floor(room) tokens. Ties to the lowest index. No GPU rises above ``bound``,
    so the largest load never grows. ValueError: shapes that differ.
    """
    checked_name(rule, "rule", SHARD_RULES)
    bound, epsilon = float(bound), float(epsilon)
    remote = checked_load(remote_load, ("gpu", "expert"), "remote_load").copy()
    held = np.asarray(holds).astype(bool)
    load = checked_load(local_load, ("gpu",), "local_load") + remote.sum(axis=1)
    if held.shape != remote.shape:
        raise ValueError(f"holds has shape {held.shape}, remote_load {remote.shape}; expected both [gpu, expert]")
    if not (np.isfinite(bound) and bound >= 0 and epsilon >= 0):
        raise ValueError(f"bound is {bound}, epsilon {epsilon}; expected numbers >= 0")
    room_of = np.floor if rule.endswith("integer_tokens") else np.asarray
    restart, moves = rule.startswith("restart"), []
    while load.max(initial=0.0) > (1 + epsilon + SLACK) * bound:
        over = np.flatnonzero(load > (1 + SLACK) * bound)
        moved = False
        for origin in over[np.argsort(-load[over], kind="stable")]:
            move = _next_move(int(origin), held, remote, load, bound, room_of)
            if move is None:
                continue
            expert, gpu, amount = move
            remote[origin, expert] -= amount
            remote[gpu, expert] += amount
            load[origin] -= amount
            load[gpu] += amount
            moves.append((origin, expert, gpu, amount))
            moved = True
            if restart:
                break
        if not moved:
            break
    return Sharding(load, np.array(moves, float).reshape(-1, 4))


def _next_move(
    origin: int, held: np.ndarray, remote: np.ndarray, load: np.ndarray, bound: float, room_of
) -> tuple[int, int, float] | None:
    """(expert, to, tokens) that a GPU gives away; None if no other holder has room."""
    experts = np.flatnonzero(remote[origin] > 0)
    for expert in experts[np.argsort(-remote[origin, experts], kind="stable")]:
        others = np.flatnonzero(held[:, expert])
        others = others[others != origin]
        if len(others):
            gpu = int(others[load[others].argmin()])
            room = float(room_of(bound - load[gpu]))
            if room > SLACK * bound:
                return int(expert), gpu, min(float(remote[origin, expert]), room)
    return None


# Allocations that move tokens from overloaded dies: Libra to other holders, HarMoEny to any die, which fetches.


def libra(step: StepView, epsilon: float = 0.01, rule: str = "literal", stages: int = 1) -> Plan:
    """Tokens run where they live if that die holds the expert, else at the expert's home; then Libra's Algorithm 2
    shards them in whole tokens until no die is above (1 + epsilon) times the mean. ``stages`` 2: those that stay where
    they live run first, beside the dispatch, and the others in a second kernel (Libra, 3.1).

    Charged a pass over all (die, expert) cells, and for each move a search of the other holders.
    """
    wanted, dies = step.origins.T.astype(np.int64), len(step.hops)
    given = np.where(step.holders, wanted, 0)
    local = given.copy()
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
    plan = _plan(given, len(moves), dies)
    return plan if stages == 1 else plan._replace(first=local[plan.expert, plan.die].astype(np.int32))


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
    active = int(np.count_nonzero(given.any(axis=1)))
    effort = Effort(
        True, active, np.full(active, dies, np.int64), np.ones(active, np.int64), given.size + moves * (dies + active)
    )
    return plan_of(given, effort)
