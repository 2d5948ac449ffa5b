"""Draws conclusions from samples: intervals, the probability of an order, what it depends on, and what knowing a number
would change.

Samples of one quantity are float64[sample]; those of several options share their worlds, so that a ratio has an
interval of its own. A second, better and slower engine runs the first few worlds only (`correct`).

Sobol' indices are those of an expansion in Legendre polynomials of the draws that the samples are fitted to (Sudret,
"Global sensitivity analysis using polynomial chaos expansions", 2008; terms are chosen by orthogonal matching pursuit
and the leave-one-out error, as in Blatman and Sudret, 2011): no further runs are needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

QUANTILES = (0.05, 0.5, 0.95)
SURE = 0.9  # share of the worlds in which a winner wins; with less it is a tie
NO_DIFFERENCE = 1e-3  # of time: closer is neither faster nor slower
_MOST_DEGREE, _MOST_TOGETHER, _FEW = 8, 4, 4  # of one draw, of two of many draws; few draws may have more together
_PATIENCE, _MOST_TERMS, _RESAMPLED = 8, 80, 64
_SIGNIFICANT, _BEYOND_NOISE = 3.5, 0.5  # standard errors
_LEAST_SHARE = 1e-4  # of the variance, with less it is numerics
# Worlds for each draw from which shares of the variance are known. With fewer, some terms of an expansion fit by
# chance: on sums of 12 and 20 draws, 16 worlds put shares off by up to 0.7, which their standard errors (0.1) do not
# show; 2 worlds a draw put them off by at most 0.16 (tests/uncertainty/test_uncertainty.py).
WORLDS_OF_A_DRAW = 2


class Interval(NamedTuple):
    """The median and the central 90 %."""

    p05: float
    p50: float
    p95: float

    @property
    def width(self) -> float:
        return self.p95 - self.p05


def interval(samples: np.ndarray) -> Interval:
    return Interval(*map(float, np.quantile(samples, QUANTILES)))


class OptionPair(NamedTuple):
    """Two options, and how sure their order is."""

    faster: str  # its name
    slower: str  # its name
    ratio: Interval  # time of the slower over that of the faster
    probability: float  # of this order, by more than NO_DIFFERENCE
    reverse: float  # probability of the other order

    @property
    def sure(self) -> bool:
        return self.probability >= SURE


def pair(faster: str, slower: str, ns: Mapping[str, np.ndarray]) -> OptionPair:
    """Compares two options by their times. ``faster`` names the one that is expected to be faster."""
    ratio = ns[slower] / ns[faster]
    won, lost = float((ratio > 1 + NO_DIFFERENCE).mean()), float((ratio < 1 - NO_DIFFERENCE).mean())
    return OptionPair(faster, slower, interval(ratio), won, lost)


def order(ns: Mapping[str, np.ndarray]) -> list[str]:
    """Options by their median time, the fastest first."""
    return sorted(ns, key=lambda name: (float(np.median(ns[name])), name))


def fastest_shares(ns: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Share of the worlds in which each option is the fastest; those within NO_DIFFERENCE of it share a world."""
    times = np.stack(list(ns.values()))
    first = times <= (1 + NO_DIFFERENCE) * times.min(axis=0)
    return dict(zip(ns, map(float, (first / first.sum(axis=0)).mean(axis=1)), strict=True))


class Index(NamedTuple):
    """Sobol' indices of a draw."""

    name: str  # of the draw
    first: float  # first-order index
    first_error: float  # its standard error
    total: float  # total index
    total_error: float  # its standard error


@dataclass(frozen=True)
class Expansion:
    """A sum of products of Legendre polynomials of draws, orthonormal for even draws in (0, 1).

    ``degrees``: int64[term, draw]; ``coefficients``: float64[term]; the first term is the mean. ``left``: variance that
    it does not tell.
    """

    names: tuple[str, ...]
    degrees: np.ndarray
    coefficients: np.ndarray
    left: float

    def of(self, draws: np.ndarray, known: Sequence[str] | None = None) -> np.ndarray:
        """The expansion, float64[sample]; its mean if only draws ``known`` are known. draws: [sample, draw]."""
        terms: np.ndarray = np.ones(len(self.coefficients), np.bool_)
        if known is not None:
            others = [at for at, name in enumerate(self.names) if name not in known]
            terms = np.logical_not((self.degrees[:, others] > 0).any(axis=1))
        columns = _columns(_polynomials(draws), self.degrees[terms])
        found: np.ndarray = columns @ self.coefficients[terms]
        return found

    def shares(self, coefficients: np.ndarray, left: float) -> tuple[np.ndarray, np.ndarray]:
        """First-order and total shares of the variance, float64[draw] each."""
        squares, draws = coefficients[1:] ** 2, self.degrees[1:] > 0
        whole = squares.sum() + left
        if not whole > 0:
            return np.zeros(len(self.names)), np.zeros(len(self.names))
        alone = draws.sum(axis=1) == 1
        return (squares[alone] @ draws[alone]) / whole, (squares @ draws) / whole


def expand(draws: Mapping[str, np.ndarray], values: np.ndarray) -> Expansion:
    """Fitted to samples: ``draws``, name → float64[sample]."""
    names = tuple(draws)
    if not names or not float(np.ptp(values)) > 0:
        return Expansion(names, np.zeros((1, len(names)), np.int64), np.array([float(np.mean(values))]), 0.0)
    points = np.stack([draws[name] for name in names], axis=1)
    candidates = _candidates(len(names))
    columns = _columns(_polynomials(points), candidates)
    chosen = _significant(columns, values, _chosen(columns, values))
    coefficients = _fit(columns[:, chosen], values)
    left = float(np.mean((values - columns[:, chosen] @ coefficients) ** 2))
    return Expansion(names, candidates[chosen], coefficients, left)


def refuse_shares(draws: int, worlds: int) -> str:
    """Why shares of the variance are not known from so many worlds, and how many tell them; '' where they are known."""
    least = WORLDS_OF_A_DRAW * draws
    if worlds >= least:
        return ""
    return (
        f"What the answer depends on is not known, as {worlds} samples are too few for the {draws} numbers that were "
        f"sampled. Use --samples {least} or more"
    )


def indices(expansion: Expansion, draws: Mapping[str, np.ndarray], values: np.ndarray) -> list[Index]:
    """The indices of every draw, the largest total first, with errors of the fit, from resampling."""
    points = np.stack([draws[name] for name in expansion.names], axis=1) if expansion.names else np.zeros((0, 0))
    first, total = expansion.shares(expansion.coefficients, expansion.left)
    drawn = []
    if len(expansion.coefficients) > 1:
        columns, rng = _columns(_polynomials(points), expansion.degrees), np.random.default_rng(1)
        for _ in range(_RESAMPLED):
            rows = rng.integers(0, len(values), len(values))
            coefficients = _fit(columns[rows], values[rows])
            left = float(np.mean((values[rows] - columns[rows] @ coefficients) ** 2))
            drawn.append(expansion.shares(coefficients, left))
    errors = np.std(np.array(drawn), axis=0) if drawn else np.zeros((2, len(expansion.names)))
    rows_of = zip(expansion.names, first, errors[0], total, errors[1], strict=True)
    found = [Index(name, *map(float, rest)) for name, *rest in rows_of]
    return sorted(found, key=lambda each: (-each.total, each.name))


def _candidates(draws: int) -> np.ndarray:
    """Degrees of all terms that may be chosen, int64[term, draw]; the first is the constant."""
    together = _MOST_DEGREE if draws <= _FEW else _MOST_TOGETHER
    rows = [np.zeros(draws, np.int64)]
    for at in range(draws):
        for degree in range(1, _MOST_DEGREE + 1):
            rows.append(_row(draws, {at: degree}))
    for one, two in combinations(range(draws), 2):
        for degree in range(1, together):
            for other in range(1, together + 1 - degree):
                rows.append(_row(draws, {one: degree, two: other}))
    return np.stack(rows)


def _row(draws: int, degrees: Mapping[int, int]) -> np.ndarray:
    row = np.zeros(draws, np.int64)
    for at, degree in degrees.items():
        row[at] = degree
    return row


def _polynomials(points: np.ndarray) -> np.ndarray:
    """float64[degree, sample, draw]: orthonormal Legendre polynomials of draws in (0, 1)."""
    at, found = 2 * points - 1, [np.ones_like(points), 2 * points - 1]
    for degree in range(1, _MOST_DEGREE):
        found.append(((2 * degree + 1) * at * found[-1] - degree * found[-2]) / (degree + 1))
    return np.stack([np.sqrt(2 * degree + 1) * each for degree, each in enumerate(found)])


def _columns(polynomials: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """float64[sample, term]."""
    found = np.ones((polynomials.shape[1], len(degrees)))
    for draw in range(degrees.shape[1]):
        for degree in np.unique(degrees[:, draw]):
            if degree:
                found[:, degrees[:, draw] == degree] *= polynomials[degree, :, draw, None]
    return found


def _fit(columns: np.ndarray, values: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.linalg.lstsq(columns, values, rcond=None)[0]
    return found


def _chosen(columns: np.ndarray, values: np.ndarray) -> list[int]:
    """Terms by orthogonal matching pursuit, as many as have the least leave-one-out error; the constant is one."""
    samples = len(values)
    norms = np.linalg.norm(columns, axis=0)
    basis = columns[:, :1] / norms[0]
    residual = values - basis[:, 0] * (basis[:, 0] @ values)
    leverage = basis[:, 0] ** 2
    chosen, best, least = [0], [0], _left_out(residual, leverage, 1)
    while len(chosen) < min(_MOST_TERMS, samples // 3) and len(chosen) - len(best) < _PATIENCE:
        score = np.abs(columns.T @ residual) / norms
        score[chosen] = 0.0
        term = int(score.argmax())
        column = columns[:, term] - basis @ (basis.T @ columns[:, term])
        column -= basis @ (basis.T @ column)
        norm = np.linalg.norm(column)
        if norm < 1e-8 * norms[term]:
            break
        column /= norm
        basis = np.column_stack([basis, column])
        residual = residual - column * (column @ values)
        leverage = leverage + column**2
        chosen.append(term)
        error = _left_out(residual, leverage, len(chosen))
        if error < least:
            best, least = list(chosen), error
    return best


def _left_out(residual: np.ndarray, leverage: np.ndarray, terms: int) -> float:
    """Mean square of leave-one-out residuals, corrected for the terms that were chosen."""
    samples = len(residual)
    own = residual / np.maximum(1 - leverage, 1e-3)
    return float(np.mean(own**2)) * samples / max(1, samples - 2 * terms)


def _significant(columns: np.ndarray, values: np.ndarray, chosen: list[int]) -> list[int]:
    """Without the terms whose coefficients may be 0: what no run reads has no term. The largest of so many
    candidates that are noise is some standard errors away from 0 (of n normal variables, about the root of 2 ln n).
    """
    least = max(_SIGNIFICANT, float(np.sqrt(2 * np.log(columns.shape[1]))) + _BEYOND_NOISE)
    while len(chosen) > 1:
        own = columns[:, chosen]
        coefficients = _fit(own, values)
        residual = values - own @ coefficients
        freedom = max(1, len(values) - len(chosen))
        deviations = np.sqrt(float(residual @ residual) / freedom * np.diag(np.linalg.pinv(own.T @ own)))
        ratio = np.abs(coefficients) / np.maximum(deviations, 1e-300)
        ratio[coefficients**2 < _LEAST_SHARE * float(np.var(values))] = 0.0
        ratio[0] = np.inf
        weakest = int(ratio.argmin())
        if ratio[weakest] >= least:
            break
        chosen = [each for at, each in enumerate(chosen) if at != weakest]
    return chosen


def narrow(expansion: Expansion, draws: Mapping[str, np.ndarray], values: np.ndarray, known: Sequence[str]) -> Interval:
    """The interval of a value once some draws are known, around its median, in the mean over what they may be."""
    points = np.stack([draws[name] for name in expansion.names], axis=1)
    left = values - expansion.of(points, known)
    return interval(left - np.median(left) + np.median(values))


def worth_knowing(expansions: Mapping[str, Expansion], draws: Mapping[str, np.ndarray], known: Sequence[str]) -> float:
    """Expected gain of knowing draws before choosing, over the best throughput. ``expansions``: by option."""
    rates = []
    for expansion in expansions.values():
        points = np.stack([draws[name] for name in expansion.names], axis=1)
        rates.append(expansion.of(points, known))
    of_all = np.stack(rates)
    best = of_all.mean(axis=1).max()
    return max(0.0, float(of_all.max(axis=0).mean() / best - 1))
