"""Allocation ``charged``: expert parallelism, left only for a plan for which the engine charges less.

The step begins as under ``home``: every expert at its home. Tokens of the fullest die's largest expert then move to
the die with most time left per hop, until no such move helps. Dies are full when compute or their HBM is, at the rates
that the engine charges (``Rates``); an expert that two dies run is read twice at its home. The levelled plan is taken
if the engine charges less for it than for the plan of ``home`` (``Charged.plan_ns``): compute and kernels, reads for
others, hidden vectors, links and order included.

The Global CP asks for the demand only where that and the sort are cheap against the mean die's time; else the step runs
as under ``home``. Once loads are known, the time of the fullest die bounds the whole decision, both estimates included:
it pays for so many moves, or for none. Time that is spent counts for both plans; commands to the dies, which differ,
are compared, too.
"""

import numpy as np

from archsim.base.kernels import inner, kernel
from archsim.policies.allocation.rules import Effort, Plan, Rates, StepView, entry_operations, estimating, home, plan_of

LOAD = np.dtype([("compute_ns", "f8"), ("reads_ns", "f8")])
MOVES_PER_DIE = 8  # at most


def charged(step: StepView, slack: float = 0.02, asking: float = 0.005) -> Plan:
    """The plan of ``home``, or the levelled one; that of ``home`` where nobody knows what is charged.

    ``slack``: how much fuller than the mean die the fullest may stay, and the least that levelling must promise.
    ``asking``: share that the decision may take of the mean die's time before loads are known, and of the fullest die's
    after.
    """
    plan = home(step)
    if step.charged is None:
        return plan
    rates = step.rates
    if _added_ns(step, plan, _effort(len(step.tokens))) > asking * _mean_ns(step, rates):
        return plan
    given = np.zeros((len(step.tokens), len(step.hops)), np.int64)
    given[plan.expert, plan.die] = plan.tokens
    loads = np.zeros(len(step.hops), LOAD)
    mean_ns = _fill(rates, loads, given)
    before_ns = _fullest_ns(loads)
    most = _affordable_moves(step, plan, asking * before_ns)
    moves = _level(step.hops, rates, slack, most, mean_ns, loads, given)
    effort = _effort(len(plan.expert), moves, len(loads))
    if _fullest_ns(loads) < (1.0 - slack) * before_ns:
        return cheaper(step, plan, plan_of(given, effort))
    return plan._replace(effort=effort)


def _added_ns(step: StepView, plan: Plan, effort: Effort) -> float:
    """What this effort adds to a step that runs ``plan`` without any."""
    return step.charged.decision_ns(plan._replace(effort=effort)) - step.charged.decision_ns(plan)


def _affordable_moves(step: StepView, plan: Plan, most_ns: float) -> int:
    """How many moves ``most_ns`` pays for, beside the demand, the sort and both estimates.

    A move adds an entry to the second estimate, at most as far from home as dies are apart.
    """
    dies = len(step.hops)
    entry = entry_operations(dies, int(step.hops.max()))

    def added_ns(moves: int) -> float:
        both = 2 * estimating(step, plan) + moves * entry
        return _added_ns(step, plan, _effort(len(plan.expert), moves, dies).plus(both))

    most = MOVES_PER_DIE * dies
    left_ns, moving_ns = most_ns - added_ns(0), added_ns(most) - added_ns(0)
    if left_ns < 0:
        return 0
    return most if moving_ns <= left_ns else int(most * left_ns / moving_ns)


def _mean_ns(step: StepView, rates: Rates) -> float:
    """Time of the mean die as it is known before anyone asks: from the number of tokens."""
    rows = int(step.tokens.sum())
    active = min(rows, len(step.tokens))
    compute_ns = rows * rates.row_ns + active * rates.expert_ns
    return max(compute_ns, active * rates.read_ns) / len(step.hops)


def _effort(experts: int, moves: int = 0, dies: int = 0) -> Effort:
    """Experts are sorted and their homes read; every move compares all dies."""
    candidates, blocks = np.zeros((2, experts + moves), np.int64)
    candidates[:moves], blocks[:moves] = dies, 1
    return Effort(True, experts, candidates, blocks)


def cheaper(step: StepView, first: Plan, second: Plan) -> Plan:
    """The plan for which the engine charges less, commands included, the first of equals; with the effort of the
    second and that of both estimates, which is spent either way. The second, where nobody knows what is charged.
    """
    if step.charged is None:
        return second
    effort = second.effort.plus(estimating(step, first) + estimating(step, second))
    plans = first._replace(effort=effort), second._replace(effort=effort)
    return min(plans, key=lambda plan: step.charged.plan_ns(plan) + step.charged.decision_ns(plan))


def _fullest_ns(loads: np.ndarray) -> float:
    return float(np.maximum(loads["compute_ns"], loads["reads_ns"]).max())


@inner
def _full_ns(load):
    return max(load.compute_ns, load.reads_ns)


@inner
def _fullest(loads):
    most = np.int64(0)
    for die in range(1, len(loads)):
        if _full_ns(loads[die]) > _full_ns(loads[most]):
            most = np.int64(die)
    return most


@inner
def _taker(hops, loads, giver, mean_ns):
    """The die with most time left per hop from the giver, -1 if none is below the mean."""
    best, best_ns = np.int64(-1), 0.0
    for die in range(len(loads)):
        if die != giver:
            left_ns = (mean_ns - _full_ns(loads[die])) / hops[giver, die]
            if left_ns > best_ns:
                best, best_ns = np.int64(die), left_ns
    return best


@inner
def _largest(given, die):
    most = np.int64(0)
    for expert in range(1, len(given)):
        if given[expert, die] > given[most, die]:
            most = np.int64(expert)
    return most


@kernel
def _fill(rates, loads, given):
    """Loads of the dies; returns their mean."""
    total_ns = 0.0
    for die in range(len(loads)):
        for expert in range(len(given)):
            if given[expert, die] > 0:
                loads[die].compute_ns += rates.expert_ns + given[expert, die] * rates.row_ns
                loads[die].reads_ns += rates.read_ns
        total_ns += _full_ns(loads[die])
    return total_ns / len(loads)


@inner
def _tokens_to_move(rates, gives, takes, begun_ns, mean_ns, there):
    """So many that the giver or the taker is at the mean then."""
    ns = min(gives.compute_ns - mean_ns, mean_ns - takes.compute_ns - begun_ns)
    if ns < rates.row_ns:
        return min(np.int64(1), there)
    return min(np.int64(ns / rates.row_ns), there) if rates.row_ns > 0.0 else there


@kernel
def _level(hops, rates, slack, most, mean_ns, loads, given):
    """Move tokens in ``given: int64[expert, die]``; returns how often, at most ``most`` times."""
    for count in range(most):
        giver = _fullest(loads)
        taker, gives = _taker(hops, loads, giver, mean_ns), loads[giver]
        full_ns = _full_ns(gives)
        if taker < 0 or full_ns <= (1.0 + slack) * mean_ns or gives.compute_ns <= gives.reads_ns:
            return count
        takes, expert = loads[taker], _largest(given, giver)
        fetched = given[expert, taker] == 0
        begun_ns = rates.expert_ns if fetched else 0.0
        tokens = _tokens_to_move(rates, gives, takes, begun_ns, mean_ns, given[expert, giver])
        ended_ns = rates.expert_ns if tokens == given[expert, giver] else 0.0
        # the home reads the expert for the taker, too; no longer for itself if it runs none of it
        again_ns = rates.read_ns if fetched and tokens < given[expert, giver] else 0.0
        work_ns = tokens * rates.row_ns
        left_ns = max(gives.compute_ns - work_ns - ended_ns, gives.reads_ns + again_ns)
        if max(left_ns, takes.compute_ns + work_ns + begun_ns, takes.reads_ns) >= full_ns:
            return count
        gives.compute_ns -= work_ns + ended_ns
        gives.reads_ns += again_ns
        takes.compute_ns += work_ns + begun_ns
        given[expert, giver] -= tokens
        given[expert, taker] += tokens
    return most
