"""Allocation ``lp``: a step's plan by linear programming (SciPy's HiGHS), rounded to whole experts and tokens.

It shows how much there is to gain, not what a machine would do: the programme sees the loads of all resources at
once, whatever it costs. Loads are compute and HBM reads of every die at the rates that the engine charges, and weights
on the way from an expert's holder to each candidate. Hidden vectors, shared links and order are not in them: the plan
of ``home`` is taken where the engine charges less for it (``Charged.plan_ns``).
"""

from typing import NamedTuple

import numpy as np

from archsim.policies.allocation import NO_PLAN, SLICES, Effort, Plan, StepView, estimating, home, knows_speeds
from archsim.policies.placement import nearest_holders

LEAST_SHARE = 1e-6  # of an expert's tokens; less is rounding error of the solver
# Cost of a ns on a link relative to a ns of the fullest resource: among plans of about equal time, prefer the one that
# fetches least.
LINK_COST = 0.02
OF_ITS_OWN = [0, 2, 3]  # columns of the weights that every die of a divided expert has; the holder reads a slice once


class _Choices(NamedTuple):
    """Loads of a whole expert on a candidate die: four resources each; a load may be 0."""

    row: np.ndarray  # int64[choice] index of the expert among the active ones
    die: np.ndarray  # int64[choice]
    weights: np.ndarray  # int64[choice, 4] HBM of the die, HBM of the holder, link, array of the die
    weights_ns: np.ndarray  # float64[choice, 4]: as soon as the die runs any token
    array: np.ndarray  # int64[choice]
    array_ns: np.ndarray  # float64[choice]: for all tokens
    resources: int  # of the programme, numbered


def lp(step: StepView) -> Plan:
    """Minimise the load of the fullest resource over shares; each expert then runs on the best die, or divided."""
    active = np.flatnonzero(step.tokens)
    if not len(active):
        return NO_PLAN
    choices = _choices(step, active)
    share, iterations, operations = _solve(choices, len(active))
    given = _round(step.tokens[active].astype(np.int64), choices, share)
    chosen = np.flatnonzero(given)
    chosen = chosen[np.lexsort((choices.die[chosen], choices.row[chosen]))]
    counted = np.bincount(choices.row, minlength=len(active))
    divided = np.bincount(choices.row[chosen], minlength=len(active))
    effort = Effort(True, len(active), counted, divided, iterations * operations)
    expert, die, tokens = active[choices.row[chosen]], choices.die[chosen], given[chosen]
    plan = Plan(expert.astype(np.int32), die.astype(np.int32), tokens.astype(np.int32), effort)
    return _cheaper(step, home(step), plan)


def _cheaper(step: StepView, first: Plan, second: Plan) -> Plan:
    """The cheaper plan by the engine's charges (first of equals; unknown: second), with both estimates' effort."""
    charged = step.charged
    if charged is None:
        return second
    operations = sum(estimating(plan, step.home, step.hops) for plan in (first, second))
    effort = second.effort.plus(operations)
    plans = first._replace(effort=effort), second._replace(effort=effort)
    return min(plans, key=lambda plan: charged.plan_ns(plan) + charged.decision_ns(plan))


def _choices(step: StepView, active: np.ndarray) -> _Choices:
    """Candidates: holders, the home's neighbours, dies with copies of all slices; each reads from the nearest."""
    rates, dies = step.rates, len(step.hops)
    home, copied = step.home[active].astype(np.int64), step.copied_slices[active].astype(np.int64)
    held = step.holders[active]
    row, die = np.nonzero((step.hops[home] <= 1) | (copied == SLICES) | held)
    source = nearest_holders(held[row], die, step.hops).astype(np.int64)
    here = np.where(source == die, 0, copied[row, die])
    away = np.where(source == die, SLICES, SLICES - here)  # slices that the holder reads
    slice_ns = rates.read_ns / SLICES
    link_ns = np.where(source == die, 0.0, away * step.costs.slice_bytes / step.pair_bytes_per_ns[source, die])
    begun_ns = np.full(len(row), rates.expert_ns)
    array, hbm = step.speeds if knows_speeds(step) else np.ones((2, dies))
    links = 2 * dies + source * dies + die
    used, link = np.unique(links, return_inverse=True)
    return _Choices(
        row, die, np.stack([die, source, 2 * dies + link, dies + die], axis=1),
        np.stack([here * slice_ns / hbm[die], away * slice_ns / hbm[source], link_ns, begun_ns / array[die]], axis=1),
        dies + die, step.tokens[active][row] * rates.row_ns / array[die], 2 * dies + len(used),
    )  # fmt: skip


def _solve(choices: _Choices, rows: int) -> tuple[np.ndarray, int, int]:
    """(share float64[choice], iterations, multiply-adds per iteration) of the linear programme.

    An iteration of the revised simplex method prices the columns and updates an inverse of the basis: entries + rows²
    (Chvátal, Linear Programming, 1983, chapter 7).
    """
    from scipy.optimize import linprog
    from scipy.sparse import csc_array

    count, column = len(choices.row), np.arange(len(choices.row))
    begun = np.repeat(column, choices.weights.shape[1])
    place = np.concatenate([choices.weights.ravel(), choices.array]), np.concatenate([begun, column])
    scale = choices.array_ns.sum() + choices.weights_ns.max()
    loads = csc_array(
        (np.concatenate([choices.weights_ns.ravel(), choices.array_ns]) / scale, place),
        shape=(choices.resources, count),
    )
    time = csc_array(-np.ones((choices.resources, 1)))
    once = csc_array((np.ones(count), (choices.row, column)), shape=(rows, count + 1))
    solved = linprog(
        np.append(LINK_COST * choices.weights_ns[:, 2] / scale, 1.0), _beside(loads, time), np.zeros(choices.resources),
        once, np.ones(rows), method="highs-ds",
    )  # fmt: skip
    if solved.status != 0:
        raise RuntimeError(f"linear programme of a step: {solved.message}")
    entries = loads.nnz + choices.resources + count
    return solved.x[:-1], int(solved.nit), entries + (choices.resources + rows) ** 2


def _beside(left, right):
    from scipy.sparse import hstack

    return hstack([left, right], format="csc")


def _round(tokens: np.ndarray, choices: _Choices, share: np.ndarray) -> np.ndarray:
    """Tokens of every choice, int64[choice]: undivided experts first; then the others, the largest first."""
    begin = np.searchsorted(choices.row, np.arange(len(tokens) + 1))
    load, given, divided = np.zeros(choices.resources), np.zeros(len(share), np.int64), []
    for row in range(len(tokens)):
        mine = np.arange(begin[row], begin[row + 1])
        mine = mine[share[mine] > LEAST_SHARE]
        if len(mine) > 1:
            divided.append((-tokens[row], row, mine))
        else:
            _give(choices, load, mine, np.ones(1))
            given[mine] = tokens[row]
    for _, row, mine in sorted(divided, key=lambda each: each[:2]):
        options = [(choice, tokens[row : row + 1]) for choice in mine[:, None]] + [
            (mine, _divide(tokens[row], share[mine]))
        ]
        after = [_after(choices, load, option, counts / tokens[row]) for option, counts in options]
        best = min(range(len(options)), key=after.__getitem__)
        option, counts = options[best]
        _give(choices, load, option[counts > 0], counts[counts > 0] / tokens[row])
        given[option] = counts
    return given


def _divide(tokens: int, share: np.ndarray) -> np.ndarray:
    """``tokens`` by largest remainder, int64; the earlier choice wins ties."""
    wished = tokens * share / share.sum()
    counts = np.floor(wished).astype(np.int64)
    rest = np.argsort(counts - wished, kind="stable")[: tokens - counts.sum()]
    counts[rest] += 1
    return counts


def _give(choices: _Choices, load: np.ndarray, option: np.ndarray, part: np.ndarray) -> None:
    """Add the loads of an expert, ``part`` of its tokens on each die of ``option``; a holder reads a slice once."""
    np.add.at(load, choices.weights[option][:, OF_ITS_OWN], choices.weights_ns[option][:, OF_ITS_OWN])
    sources, read_ns = choices.weights[option, 1], choices.weights_ns[option, 1]
    for source in np.unique(sources):
        load[source] += read_ns[sources == source].max()
    np.add.at(load, choices.array[option], part * choices.array_ns[option])


def _after(choices: _Choices, load: np.ndarray, option: np.ndarray, part: np.ndarray) -> tuple[float, float]:
    """(fullest resource, sum of all loads) if an expert ran on ``option``, ns."""
    tried = load.copy()
    _give(choices, tried, option[part > 0], part[part > 0])
    return float(tried.max()), float(tried.sum())
