"""A lower bound of a step: multipliers from a linear programme (SciPy's HiGHS), and a proof that needs only them.

Multipliers λ ≥ 0 of the resources that sum to 1 prove a bound: no step is shorter than Σ λ · load, and the minimum of
that sum separates into one minimum per expert (Lagrangian duality; Geoffrion, Mathematical Programming Study 2, 1974).
Good multipliers come from the linear relaxation, in which dies run shares of experts and fetch the same share of the
weights. It ignores the origins of tokens and starts from a few choices (home, holders of copies, neighbours of the
home); the proof searches all dies and adds the cheaper ones (column generation). If hidden vectors move, multipliers
that grow with a power of the load of the relaxation's plan, vectors included, are tried as well. So the bound holds
whatever the programme leaves out, and whatever the solver's tolerances are.

The exact optimum of a small step (`exact_bound`) is a mixed-integer programme over tokens and fetches, by HiGHS, too.
It divides by single tokens, finer than any policy, so its optimum bounds every policy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from archsim.questions.optimum_problem import AllocationProblem, loads
from microarch.blocks.hbm import SLICES

ROUNDS = 4
GAIN = 1e-3  # relative gap between programme and proof at which column generation stops
POWERS = (2.0, 8.0)  # of loads; a choice, any values are valid
# subtracted: rates under ``arbitration: round_robin`` converge to it, and flows finish at that share of their bytes
MARGIN = 1e-6
HALVINGS = 6  # of the bisection for dual prices


class StepBound(NamedTuple):
    """The bound of a step, and what proves it."""

    ns: float  # no allocation is faster
    multipliers: np.ndarray  # float64[resource], sum 1: those that prove the bound
    share: np.ndarray  # float64[row, die]: share of an expert's tokens
    loads_ns: np.ndarray  # float64[resource]
    iterations: int  # of the solver


class Prices(NamedTuple):
    """Prices of the parts of a plan at given multipliers."""

    opening: np.ndarray  # float64[row, die]: of fetching the expert to a die, or reading a copy there
    asking: np.ndarray  # float64[row, die]: of the reads at the home
    token: np.ndarray  # float64[row, die or 1, die]: of running a token from the first die on the second

    def alone(self, problem: AllocationProblem) -> np.ndarray:
        """Price of an expert that runs entirely on one die, float64[row, die]."""
        count = problem.tokens[:, None] if problem.origins is None else problem.origins
        return self.opening + self.asking + np.einsum("ej,ejd->ed", count, self.token)


def lower_bound(problem: AllocationProblem) -> StepBound:
    multipliers, share, iterations = _relaxation(problem._replace(origins=None))
    flow = None if problem.origins is None else problem.origins.T @ share
    loads_ns = loads(problem, share, share, flow)
    best_ns = proved_by(problem, multipliers)
    if problem.origins is not None:
        for other in _softer(problem, loads_ns):
            ns = proved_by(problem, other, best_ns)
            if ns > best_ns:
                best_ns, multipliers = ns, other
    return StepBound(max(best_ns, problem.sure_ns) * (1 - MARGIN), multipliers, share, loads_ns, iterations)


def proved_by(problem: AllocationProblem, multipliers: np.ndarray, known_ns: float = -np.inf) -> float:
    """The bound in ns that multipliers (float64[resource] ≥ 0, sum 1) prove. -inf if not above ``known_ns``."""
    prices = prices_at(problem, multipliers)
    every_ns, alone = multipliers @ (problem.base_ns + problem.start_ns), prices.alone(problem)
    if every_ns + alone.min(axis=1).sum() <= known_ns:
        return -np.inf
    return float(every_ns + _least(problem, prices, alone).sum())


def prices_at(problem: AllocationProblem, multipliers: np.ndarray) -> Prices:
    """Prices of every decision."""
    fabric, dies = problem.fabric, problem.fabric.dies
    hbm, array, link = multipliers[:dies], multipliers[dies : 2 * dies], multipliers[2 * dies :]
    token = problem.token_ns[:, None, None] * array
    if problem.origins is not None:
        token = token + fabric.move_ns @ link + 2 * fabric.vector_ns * hbm * (1 - np.eye(dies))
    return Prices(
        problem.reads * fabric.read_ns * hbm + problem.fetches * (fabric.fetch_ns @ link)[problem.home],
        problem.asks.sum(axis=2) * (fabric.read_ns * hbm[problem.home])[:, None],
        token,
    )


def _least(problem: AllocationProblem, prices: Prices, alone: np.ndarray) -> np.ndarray:
    """A lower bound of the price of any division of an expert, float64[row].

    Dividing an expert among dies is facility location: any dual prices v of tokens with Σ max(0, v - token) ≤ opening
    on every die prove the bound Σ v (Erlenkotter, Operations Research 26(6), 1978). Here v is between a token's nearest
    die and the best single die of the expert, as close to the latter as that condition allows.
    """
    if problem.origins is None:  # the price of a token does not depend on its origin: one die is best
        return alone.min(axis=1)
    rows, best = np.arange(len(alone)), alone.argmin(axis=1)
    nearest = prices.token.min(axis=2)
    wanted = prices.token[rows, :, best] + (prices.opening[rows, best] / problem.tokens)[:, None] - nearest
    low, high = np.zeros(len(alone)), np.ones(len(alone))
    for halving in range(HALVINGS + 1):
        part = high if halving == 0 else (low + high) / 2
        dual = nearest + part[:, None] * wanted
        spent = np.einsum("ej,ejd->ed", problem.origins, np.maximum(dual[:, :, None] - prices.token, 0.0))
        fits = (spent <= prices.opening * (1 + 1e-12)).all(axis=1)
        low = np.where(fits, part, low)
        if halving == 0 and fits.all():
            break
        high = np.where(fits, high, part)
    return prices.asking.min(axis=1) + (problem.origins * (nearest + low[:, None] * wanted)).sum(axis=1)


def _softer(problem: AllocationProblem, loads_ns: np.ndarray):
    """Multipliers that grow with powers of the loads: of all resources, and of links alone."""
    links = np.arange(len(loads_ns)) >= 2 * problem.fabric.dies
    for among in (np.ones(len(loads_ns), bool), links):
        if loads_ns[among].max(initial=0.0) > 0:
            for power in POWERS:
                weights = np.where(among, loads_ns / loads_ns[among].max(), 0.0) ** power
                yield weights / weights.sum()


def _relaxation(problem: AllocationProblem) -> tuple[np.ndarray, np.ndarray, int]:
    """(multipliers, share, iterations) of a step without hidden vectors."""
    chosen, iterations = _first_choices(problem), 0
    for _ in range(ROUNDS):
        programme_ns, multipliers, share, used = _programme(problem, chosen)
        iterations += used
        alone = prices_at(problem, multipliers).alone(problem)
        cheaper = alone < np.where(chosen, alone, np.inf).min(axis=1, keepdims=True) * (1 - GAIN)
        proved_ns = multipliers @ (problem.base_ns + problem.start_ns) + alone.min(axis=1).sum()
        if proved_ns >= programme_ns * (1 - GAIN) or not cheaper.any():
            break
        chosen = chosen | cheaper
    return multipliers, share, iterations


def _first_choices(problem: AllocationProblem) -> np.ndarray:
    """Home, holders of any slice, and the dies nearest to the home, bool[row, die]."""
    links = (problem.fabric.fetch_ns > 0).sum(axis=2)
    near = np.where(links > 0, links, links.max(initial=0) + 1).min(axis=1, keepdims=True)
    return (links <= near)[problem.home] | (problem.fetches < problem.fetches.max(axis=1, keepdims=True))


def _programme(problem: AllocationProblem, chosen: np.ndarray) -> tuple[float, np.ndarray, np.ndarray, int]:
    """(value in ns, multipliers, share, iterations) of the linear programme over the chosen (row, die)."""
    from scipy.optimize import linprog
    from scipy.sparse import csc_array, hstack

    (row, die), rows = np.nonzero(chosen), len(chosen)
    load, floor, columns = _whole_loads(problem, row, die), problem.base_ns + problem.start_ns, np.arange(len(row))
    scale = float(floor.max() + load.max())
    solved = linprog(
        np.append(np.zeros(len(row)), 1.0),
        hstack([load / scale, csc_array(-np.ones((len(floor), 1)))], format="csc"), -floor / scale,
        csc_array((np.ones(len(row)), (row, columns)), shape=(rows, len(row) + 1)), np.ones(rows), method="highs-ds",
    )  # fmt: skip
    if solved.status != 0:
        raise RuntimeError(f"linear programme of a step: {solved.message}")
    multipliers, share = np.maximum(-solved.ineqlin.marginals, 0.0), np.zeros(chosen.shape)
    share[row, die] = np.maximum(solved.x[:-1], 0.0)
    return solved.fun * scale, multipliers / multipliers.sum(), share / share.sum(axis=1, keepdims=True), solved.nit


def _whole_loads(problem: AllocationProblem, row, die):
    """Load of experts that run entirely on one die: sparse[resource, column]."""
    from scipy.sparse import csc_array, vstack

    fabric, dies, column = problem.fabric, problem.fabric.dies, np.arange(len(row))
    own = problem.reads[row, die] * fabric.read_ns
    asked = problem.asks[row, die].sum(axis=1) * fabric.read_ns
    array = (problem.tokens * problem.token_ns)[row]
    place = np.concatenate([die, problem.home[row], dies + die]), np.tile(column, 3)
    units = csc_array((np.concatenate([own, asked, array]), place), shape=(2 * dies, len(row)))
    links = csc_array(fabric.fetch_ns.reshape(dies * dies, -1).T)[:, problem.home[row] * dies + die]
    return vstack([units, links * problem.fetches[row, die]], format="csc")


SMALL = 24  # most (expert, die) pairs of a small step: 6 experts on 4 dies
NODES = 300  # of the search; the bound holds even if the search stops there


class _Columns(NamedTuple):
    """Indices of the variables: tokens (row, lives, die), fetches (row, die), reads at the home (row, slice), time."""

    tokens: np.ndarray
    opened: np.ndarray
    asked: np.ndarray
    time: int


def exact_bound(problem: AllocationProblem, bound: StepBound, most_nodes: int = NODES) -> StepBound:
    """The bound of a small step, raised to the optimum over integers (or to what the search proved)."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    lives = problem.tokens[:, None] if problem.origins is None else problem.origins
    rows, homes = lives.shape
    columns = _columns(rows, homes, problem.fabric.dies)
    count, scale = columns.time + 1, bound.ns
    upper, whole = np.full(count, np.inf), np.zeros(count)
    upper[columns.opened] = upper[columns.asked] = 1.0
    whole[columns.tokens] = whole[columns.opened] = 1
    cost = np.zeros(count)
    cost[columns.time] = 1.0
    once = np.zeros((lives.size, count))  # every token
    once[np.arange(lives.size)[:, None], columns.tokens.reshape(lives.size, -1)] = 1
    solved = milp(
        cost,
        integrality=whole,
        bounds=Bounds(0.0, upper),
        options={"node_limit": most_nodes, "mip_rel_gap": MARGIN},
        constraints=[
            LinearConstraint(once, lives.ravel(), lives.ravel()),
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
