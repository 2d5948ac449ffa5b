"""The exact optimum of a small step: a mixed-integer programme over tokens and fetches, by SciPy's HiGHS.

It divides by single tokens, finer than any policy, so its optimum bounds every policy.
"""

from typing import NamedTuple

import numpy as np

from archsim.engine.state import SLICES
from archsim.studies.optimum.bound import MARGIN, Bound
from archsim.studies.optimum.problem import Problem

SMALL = 24  # most (expert, die) pairs of a small step: 6 experts on 4 dies
NODES = 300  # of the search; the bound holds even if the search stops there


class _Columns(NamedTuple):
    """Indices of the variables: tokens (row, lives, die), fetches (row, die), reads at the home (row, slice), time."""

    tokens: np.ndarray
    opened: np.ndarray
    asked: np.ndarray
    time: int


def is_small(problem: Problem) -> bool:
    return len(problem.tokens) * problem.fabric.dies <= SMALL


def exact_bound(problem: Problem, bound: Bound, most_nodes: int = NODES) -> Bound:
    """The bound of a small step, raised to the optimum over integers (or to what the search proved)."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    lives = problem.tokens[:, None] if problem.origins is None else problem.origins
    columns = _columns(*lives.shape, problem.fabric.dies)
    count, scale = columns.time + 1, bound.ns
    upper, whole = np.full(count, np.inf), np.zeros(count)
    upper[columns.opened] = upper[columns.asked] = 1.0
    whole[columns.tokens] = whole[columns.opened] = 1
    cost = np.zeros(count)
    cost[columns.time] = 1.0
    solved = milp(
        cost,
        integrality=whole,
        bounds=Bounds(0.0, upper),
        options={"node_limit": most_nodes, "mip_rel_gap": MARGIN},
        constraints=[
            _every_token_once(lives, columns, count),
            LinearConstraint(*_weights_are_there(problem, lives, columns, count)),
            LinearConstraint(
                _loads_less_time(problem, columns, scale), -np.inf, -(problem.base_ns + problem.start_ns) / scale
            ),
        ],
    )
    if solved.mip_dual_bound is None:
        return bound
    return bound._replace(ns=max(bound.ns, solved.mip_dual_bound * scale * (1 - MARGIN)))


def _columns(rows: int, lives: int, dies: int) -> _Columns:
    tokens = np.arange(rows * lives * dies).reshape(rows, lives, dies)
    opened = tokens.size + np.arange(rows * dies).reshape(rows, dies)
    asked = tokens.size + opened.size + np.arange(rows * SLICES).reshape(rows, SLICES)
    return _Columns(tokens, opened, asked, tokens.size + opened.size + asked.size)


def _every_token_once(lives, columns, count):
    from scipy.optimize import LinearConstraint

    once = np.zeros((lives.size, count))
    once[np.arange(lives.size)[:, None], columns.tokens.reshape(lives.size, -1)] = 1
    return LinearConstraint(once, lives.ravel(), lives.ravel())


def _weights_are_there(problem, lives, columns, count):
    """Rows ``tokens - lives · opened ≤ 0`` and ``opened - asked ≤ 0`` where a die requests a slice from the home."""
    lines = []
    for row, home, die in np.ndindex(columns.tokens.shape):
        line = np.zeros(count)
        line[columns.tokens[row, home, die]], line[columns.opened[row, die]] = 1, -lives[row, home]
        lines.append(line)
    for row, die, each in zip(*np.nonzero(problem.asks), strict=True):
        line = np.zeros(count)
        line[columns.opened[row, die]], line[columns.asked[row, each]] = 1, -1
        lines.append(line)
    return np.array(lines), -np.inf, 0.0


def _loads_less_time(problem, columns, scale):
    """float64[resource, variable], in units of ``scale`` ns."""
    fabric, dies = problem.fabric, problem.fabric.dies
    load = np.zeros((fabric.resources, columns.time + 1))
    for row, (home, token_ns) in enumerate(zip(problem.home, problem.token_ns, strict=True)):
        load[home, columns.asked[row]] += fabric.read_ns
        for die in range(dies):
            load[die, columns.opened[row, die]] += problem.reads[row, die] * fabric.read_ns
            load[2 * dies :, columns.opened[row, die]] += problem.fetches[row, die] * fabric.fetch_ns[home, die]
            load[dies + die, columns.tokens[row, :, die]] += token_ns
            for lives in range(columns.tokens.shape[1] if problem.origins is not None else 0):
                load[2 * dies :, columns.tokens[row, lives, die]] += fabric.move_ns[lives, die]
                load[die, columns.tokens[row, lives, die]] += 2 * fabric.vector_ns * (lives != die)
    load /= scale
    load[:, columns.time] = -1
    return load
