"""The search behind calibration.fit.segments: the contiguous pieces of the size axis whose lines
have the least squared error.
"""

import numpy as np

LEAST_SIZES = 3  # distinct sizes of a piece: two would make a line through any outlier
CUTS_PER_OCTAVE = 8  # closer sizes are never separated, which keeps dense sweeps fast


def best_pieces(size: np.ndarray, time: np.ndarray, weights: np.ndarray, pieces: int):
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
