"""Fits laws of transfers: the pieces of the size axis and the line of each, from measured points.

There are three ways to cut; errors on sizes left out of the fit decide which is used, and the number of pieces:

- pieces that minimise the sum of squared relative errors, found exactly by dynamic programming over the sizes (Bellman,
  1961). Every half octave of sizes has equal weight, however many points it has; outliers lose weight by iterating with
  Cauchy weights on the residuals. The fewest pieces that predict about as well as the best number are used;
- for sweeps with few sizes, a piece from each size to the next (lines between medians, after a median of three
  neighbours, which removes lone outliers and keeps rising or falling runs);
- for sweeps with many sizes whose times have more steps than pieces, the same lines between the medians as they are:
  next to its neighbours no step is an outlier, and a mean over neighbours would blur it.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from archsim.laws.transfers import PiecewiseLaw

LEAST_SIZES = 3  # distinct sizes of a piece: two would make a line through any outlier
CUTS_PER_OCTAVE = 8  # closer sizes are never separated, which keeps dense sweeps fast


def best_pieces(
    size: np.ndarray, time: np.ndarray, weights: np.ndarray, pieces: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(from_bytes, latency_ns, ns_per_byte), float64[piece] each, of at most ``pieces`` pieces.

    Minimises sum of weight * (line / time - 1)^2 exactly over all ways to cut the sorted sizes into that many runs of
    at least LEAST_SIZES groups of sizes (CUTS_PER_OCTAVE groups an octave at most). A cut is where the lines meet if
    that is between the two sizes, else halfway (in the logarithm). ``size`` is sorted; float64[point] all.
    """
    _, begin = np.unique(np.floor(CUTS_PER_OCTAVE * np.log2(size)), return_index=True)
    cost, latency, slope = _lines(size, time, weights, begin)
    pieces = max(1, min(pieces, len(begin) // LEAST_SIZES))
    ends = _cuts(cost, pieces)
    starts = np.concatenate([[0], ends[:-1]])
    latency, slope = latency[starts, ends - 1], slope[starts, ends - 1]
    cuts = [
        _cut(size[begin[end] - 1], size[begin[end]], latency[i : i + 2], slope[i : i + 2])
        for i, end in enumerate(ends[:-1])
    ]
    return np.array([size[0], *cuts]), latency, slope


def _lines(size, time, weights, begin):
    """Cost, latency and slope of the best line over groups i..j, each float64[group, group] (i <= j counts).

    The slope is never negative. Sums run from each start, not from the first group, as terms span twelve decades.
    """
    u, v = 1 / time, size / time

    def sums(terms):
        return np.cumsum(np.triu(np.broadcast_to(np.add.reduceat(terms, begin), (len(begin), len(begin)))), axis=1)

    w, wu, wv = sums(weights), sums(weights * u), sums(weights * v)
    uu, uv, vv = sums(weights * u * u), sums(weights * u * v), sums(weights * v * v)
    with np.errstate(divide="ignore", invalid="ignore"):
        determinant = uu * vv - uv * uv
        slope = (wv * uu - wu * uv) / determinant
        slope = np.where((determinant > 1e-13 * uu * vv) & (slope > 0), slope, 0.0)
        latency = (wu - slope * uv) / uu
    cost = w - 2 * (latency * wu + slope * wv) + latency**2 * uu + 2 * latency * slope * uv + slope**2 * vv
    return np.maximum(cost, 0.0), latency, slope


def _cuts(cost: np.ndarray, pieces: int) -> np.ndarray:
    """int64[piece]: the group before which each piece ends, for the least total cost."""
    count = len(cost)
    start, end = np.indices(cost.shape)
    cost = np.where(end - start + 1 >= min(LEAST_SIZES, count), cost, np.inf)
    best = cost[0]  # best[j]: groups 0..j with one piece
    came_from = []
    for _ in range(1, pieces):
        total = np.full((count, count), np.inf)  # total[i, j]: last piece is i..j
        total[1:] = best[:-1, None] + cost[1:]
        came_from.append(np.argmin(total, axis=0))
        best = np.min(total, axis=0)
    ends = [count]
    for step in reversed(came_from):
        ends.append(int(step[ends[-1] - 1]))
    return np.array(ends[::-1])


def _cut(left: float, right: float, latency: np.ndarray, slope: np.ndarray) -> float:
    if slope[0] != slope[1]:
        meet = (latency[1] - latency[0]) / (slope[0] - slope[1])
        if left < meet <= right:
            return meet
    return float(np.sqrt(left * right))


MOST_PIECES = 8
END_SPAN = 2.0  # a shorter last piece may be a plateau or the start of a protocol; its slope is not extrapolated
MOST_PIECES_OF_SPARSE = 4
SPARSE_SIZES_PER_OCTAVE = 4.0  # up to this density a law may have a piece for every two neighbouring sizes
# Fewer pieces must be better by this factor: leaving out some of few sizes makes gaps that favour them
SPARSE_FAVOUR = 0.75
LEAST_SIZES_TO_CHOOSE = 8
JOINED, STRAIGHT = 0, -1  # in place of a number of pieces: lines from size to size, without lone points or as they are
LEAST_SIZES_OF_STRAIGHT = 64
STRAIGHT_DISFAVOUR = 1.1  # by which lines between all sizes, of which there are many more, must be better
FOLDS = 5  # every fifth size is left out at a time
GOOD_ENOUGH = 1.03  # fewer pieces are preferred up to this multiple of the smallest held-out error
SAME_ERROR = 1e-4  # smaller differences between held-out errors do not count
ROUNDS = 4  # of reweighting
OUTLIER_SCALES = 3.0  # residuals beyond about this many standard deviations lose weight
LEAST_SCALE = 0.003  # least repeatability assumed; smaller residuals do not cause reweighting
QUANTILES = (0.05, 0.5, 0.95)


@dataclass(frozen=True)
class FittedPieces(PiecewiseLaw):
    """A law, and the quality of its fit.

    ``residual_quantiles``: QUANTILES of measured / law - 1. ``held_out_error``: mean over half octaves of the error on
    sizes left out of the fit. ``points``: number of fitted points.
    """

    residual_quantiles: tuple[float, float, float] = (0.0, 0.0, 0.0)
    held_out_error: float = 0.0
    points: int = 0


def fit_segments(size_bytes: ArrayLike, time_ns: ArrayLike) -> FittedPieces:
    """The law of points (size, time); a size may have several points.

    Raises ValueError for a size or time that is not positive and finite, or without points.
    """
    size, time = _sorted_points(size_bytes, time_ns)
    pieces, held_out_error = _choose(size, time)
    law = _fit(size, time, pieces)
    law = _with_an_end(law)
    low, middle, high = _weighted_quantiles(time / law.time_ns(size) - 1, _evening_weights(size), QUANTILES)
    return replace(law, residual_quantiles=(low, middle, high), held_out_error=held_out_error)


def held_out_ratios(size_bytes: ArrayLike, time_ns: ArrayLike, folds: int) -> np.ndarray:
    """float64[point]: law / measured, each from a fit without that size; nan for the smallest and the largest size.

    Every ``folds``-th distinct size is left out at a time. The end sizes are never left out, so only interpolation is
    judged. Points are in the order of ``size_bytes``.
    """
    size, time = np.asarray(size_bytes, dtype=np.float64), np.asarray(time_ns, dtype=np.float64)
    fold_of, ratio = _folds(size, folds), np.full(size.shape, np.nan)
    for fold in range(folds):
        out = fold_of == fold
        if out.any():
            ratio[out] = fit_segments(size[~out], time[~out]).time_ns(size[out]) / time[out]
    return ratio


def half_octave(size_bytes: ArrayLike) -> np.ndarray:
    """int64: bin of a size; bins start at powers of the square root of two."""
    return np.floor(2 * np.log2(np.asarray(size_bytes, dtype=np.float64))).astype(np.int64)


def binned_errors(size_bytes: ArrayLike, ratio: np.ndarray) -> np.ndarray:
    """float64[bin]: |median of law / measured - 1| of every half octave of sizes; nan ratios are ignored."""
    there = ~np.isnan(ratio)
    which, ratio = half_octave(size_bytes)[there], ratio[there]
    return np.array([abs(np.median(ratio[which == x]) - 1) for x in np.unique(which)])


def _sorted_points(size_bytes: ArrayLike, time_ns: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    size, time = np.asarray(size_bytes, dtype=np.float64), np.asarray(time_ns, dtype=np.float64)
    if size.size == 0:
        raise ValueError("no points to fit")
    if not (np.all(np.isfinite(size)) and np.all(np.isfinite(time)) and np.all(size > 0) and np.all(time > 0)):
        raise ValueError("sizes and times must be positive and finite")
    order = np.lexsort((time, size))
    return size[order], time[order]


def _folds(size: np.ndarray, folds: int) -> np.ndarray:
    """int64[point]: the fold of each; -1 at both ends."""
    sizes = np.unique(size)
    fold_of = np.searchsorted(sizes, size) % folds
    fold_of[(size == sizes[0]) | (size == sizes[-1])] = -1
    return fold_of


def _evening_weights(size: np.ndarray) -> np.ndarray:
    """float64[point]: the weights of a half octave sum to one."""
    _, which, count = np.unique(half_octave(size), return_inverse=True, return_counts=True)
    return 1.0 / count[which]


def _choose(size: np.ndarray, time: np.ndarray) -> tuple[int, float]:
    """(pieces, left-out error): the fewest about as good as the best; JOINED, STRAIGHT: a piece between all sizes."""
    sizes = len(np.unique(size))
    if sizes < LEAST_SIZES_TO_CHOOSE:
        return 0, 0.0
    sparse = sizes <= SPARSE_SIZES_PER_OCTAVE * (np.log2(size[-1] / size[0]) + 1)
    few = [*range(1, min(MOST_PIECES_OF_SPARSE, sizes // 3) + 1), JOINED]
    numbers = few if sparse else [*range(1, MOST_PIECES + 1)]
    ratios = [_left_out(size, time, number) for number in numbers]
    errors = [float(binned_errors(size, ratio).mean()) for ratio in ratios]
    favours = [SPARSE_FAVOUR if number == JOINED else 1.0 for number in numbers]
    judged = [error * favour for error, favour in zip(errors, favours, strict=True)]
    best = next(i for i, error in enumerate(judged) if error <= GOOD_ENOUGH * min(judged) + SAME_ERROR)
    if sizes >= LEAST_SIZES_OF_STRAIGHT:
        straight = _left_out(size, time, STRAIGHT)
        if STRAIGHT_DISFAVOUR * _mean_error(size, straight) + SAME_ERROR < _mean_error(size, ratios[best]):
            return STRAIGHT, float(binned_errors(size, straight).mean())
    return numbers[best], errors[best]


def _left_out(size: np.ndarray, time: np.ndarray, number: int) -> np.ndarray:
    """float64[point]: law / measured of every FOLDS-th size, from fits without it; nan at both ends."""
    fold_of, ratio = _folds(size, FOLDS), np.full(len(size), np.nan)
    for fold in range(FOLDS):
        out = fold_of == fold
        ratio[out] = _fit(size[~out], time[~out], number).time_ns(size[out]) / time[out]
    return ratio


def _mean_error(size: np.ndarray, ratio: np.ndarray) -> float:
    """Mean error of points, half octaves weighing the same: medians of half octaves would hide steps within them."""
    weights = np.where(np.isnan(ratio), 0.0, _evening_weights(size))
    return float(np.sum(weights * np.abs(np.nan_to_num(ratio, nan=1.0) - 1)) / weights.sum())


def _fit(size: np.ndarray, time: np.ndarray, pieces: int) -> FittedPieces:
    if pieces > 0:
        return _law(size, *_robust_pieces(size, time, pieces))
    sizes, times = _medians(size, time)
    return _law(size, *_size_to_size(sizes, _without_lone(times) if pieces == JOINED else times))


def _robust_pieces(size: np.ndarray, time: np.ndarray, pieces: int):
    """Dynamic programming, iterated with weights from its residuals."""
    even = _evening_weights(size)
    weights = even
    for _ in range(ROUNDS):
        found = best_pieces(size, time, weights, pieces)
        residual = _law(size, *found).time_ns(size) / time - 1
        scale = max(1.4826 * _weighted_quantiles(np.abs(residual), even, (0.5,))[0], LEAST_SCALE)
        weights = even / (1 + (residual / (OUTLIER_SCALES * scale)) ** 2)
    return found


def _medians(size: np.ndarray, time: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct sizes, and the median time of each."""
    sizes, begin = np.unique(size, return_index=True)
    return sizes, np.array([np.median(group) for group in np.split(time, begin[1:])])


def _without_lone(times: np.ndarray) -> np.ndarray:
    """Medians of three neighbours; both ends as they are."""
    found = times.copy()
    found[1:-1] = np.median([times[:-2], times[1:-1], times[2:]], axis=0)
    return found


def _size_to_size(sizes: np.ndarray, times: np.ndarray):
    """A line from each size to the next. With a single size, all of its time is size / bandwidth."""
    if len(sizes) == 1:
        return sizes, np.zeros(1), times / sizes
    slope = np.diff(times) / np.diff(sizes)
    slope[-1] = max(slope[-1], 0.0)
    return sizes[:-1], times[:-1] - slope * sizes[:-1], slope


def _law(size, from_bytes, latency_ns, ns_per_byte) -> FittedPieces:
    begins, latencies, slopes = (tuple(float(x) for x in column) for column in (from_bytes, latency_ns, ns_per_byte))
    return FittedPieces(begins, latencies, slopes, float(size.min()), float(size.max()), points=int(size.size))


def _with_an_end(law: FittedPieces) -> FittedPieces:
    """The pieces, and one from the largest size on, of the slope over END_SPAN, unless the last is long enough."""
    begin = max(law.last_bytes / END_SPAN, law.first_bytes)
    if law.from_bytes[-1] <= begin or law.from_bytes[-1] >= law.last_bytes:
        return law
    early_ns, last_ns = (float(law.time_ns(size)) for size in (begin, law.last_bytes))
    slope = max((last_ns - early_ns) / (law.last_bytes - begin), 0.0)
    return replace(
        law,
        from_bytes=(*law.from_bytes, law.last_bytes),
        latency_ns=(*law.latency_ns, last_ns - slope * law.last_bytes),
        ns_per_byte=(*law.ns_per_byte, slope),
    )


def _weighted_quantiles(values: np.ndarray, weights: np.ndarray, wanted: tuple[float, ...]) -> tuple[float, ...]:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) - weights[order] / 2
    return tuple(float(x) for x in np.interp(np.asarray(wanted) * weights.sum(), reached, values[order]))
