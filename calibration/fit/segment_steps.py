"""Lines through dense sweeps: local means of neighbouring sizes, cut at steps.

Sweeps of many sizes are measured in whole microseconds: neighbours flip between two values, and a mean of some of them
is nearer to the time than any of them. Where a library changes its protocol the time jumps; a rise lies right after a
round size (4 MiB, 10 MiB), so that one between two measured sizes is cut after the roundest size between them; a fall
may lie anywhere between them, and is a line.
"""

from __future__ import annotations

import numpy as np

WINDOW = 6  # sizes on either side of a local mean
ROUNDED = 0.015  # share of a time by which rounding may change it, from which means are taken
SIDE = 2  # sizes on either side of a step that show it
STEP = 0.045  # least relative height of a step, and in ns (rounding makes steps of 1 us)
STEP_NS = 1400.0
ROUNDING_NS = 500.0  # of times in whole microseconds
WIDE = 2.0  # gaps of sizes beyond this ratio are bridged by lines in the logarithm of the size
TOLERANCE = 0.004  # relative, by which fewer lines may miss the local means


def stepped_lines(size: np.ndarray, time: np.ndarray):
    """(from_bytes, latency_ns, ns_per_byte) of the pieces, float64[piece] each. ``size`` is sorted; float64[point]."""
    sizes, begin = np.unique(size, return_index=True)
    times = np.array([np.median(group) for group in np.split(time, begin[1:])])
    ends = [0, *_steps(sizes, times), len(sizes)]
    coarse = times * ROUNDED < (ROUNDING_NS if (time % (2 * ROUNDING_NS) == 0).all() else 0.0)
    means = [_local_means(sizes[i:j], times[i:j], coarse[i:j]) for i, j in zip(ends[:-1], ends[1:], strict=True)]
    rises = [i for i in ends[1:-1] if times[i] > times[i - 1]]
    smooth, pieces = np.concatenate(means), []
    for start, end in zip([0, *rises], [*rises, len(sizes)], strict=True):
        first = sizes[start] if start == 0 else _roundest(sizes[start - 1], sizes[start]) + 1
        pieces += _lines(*_bridged(sizes[start:end], smooth[start:end]), first)
    return tuple(np.array(column) for column in zip(*pieces, strict=True))


def _steps(sizes: np.ndarray, times: np.ndarray) -> list[int]:
    """Positions before which the time jumps: where the gap between both sides is the largest near it."""
    gap = np.zeros(len(sizes))
    for at in range(SIDE, len(sizes) - SIDE):
        left, right = times[at - SIDE : at], times[at : at + SIDE]
        span = times[max(at - 3 * SIDE, 0) : at + 3 * SIDE]
        rise = np.median(right) - np.median(left)
        clear = right.min() > left.max() if rise > 0 else right.max() < left.min()
        if clear and abs(rise) > max(STEP * np.median(span), STEP_NS):
            gap[at] = abs(times[at] - times[at - 1]) / times[at]
    return [at for at in np.flatnonzero(gap) if gap[at] == gap[max(at - SIDE, 0) : at + SIDE + 1].max()]


def _roundest(below: float, above: float) -> float:
    """The size from ``below`` to less than ``above`` that is divisible by the largest power of two."""
    for power in range(40, -1, -1):
        unit = 2.0**power
        if (found := np.ceil(below / unit) * unit) < above:
            return float(found)
    return below


def _local_means(sizes: np.ndarray, times: np.ndarray, coarse: np.ndarray) -> np.ndarray:
    """float64[size]: where rounding is ``coarse`` (bool[size]), a line through up to WINDOW neighbours on either side,
    at the size; ends have as many on both.
    """
    found = times.copy()
    for at in np.flatnonzero(coarse[1:-1]) + 1:
        reach = min(WINDOW, at, len(sizes) - 1 - at)
        while sizes[at + reach] > WIDE * sizes[at - reach]:
            reach -= 1
        if reach:
            near = slice(at - reach, at + reach + 1)
            found[at] = np.polyfit(sizes[near] - sizes[at], times[near], 1)[1]
    for end, inner in ((0, slice(0, SIDE)), (-1, slice(-SIDE, None))):
        if coarse[end] and len(sizes) > 2 * SIDE and sizes[inner][-1] <= WIDE * sizes[inner][0]:
            found[end] = np.polyval(np.polyfit(sizes[inner] - sizes[end], times[inner], 1), 0.0)
    return found


def _bridged(sizes: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The knots, with more at half octaves within wide gaps."""
    more = [
        np.geomspace(low, high, int(2 * np.log2(high / low)) + 2)[1:-1]
        for low, high in zip(sizes[:-1], sizes[1:], strict=True)
        if high > WIDE * low
    ]
    knots = np.unique(np.concatenate([sizes, *more]))
    return knots, np.interp(np.log(knots), np.log(sizes), times)


def _lines(sizes: np.ndarray, times: np.ndarray, first: float) -> list[tuple[float, float, float]]:
    """The fewest lines from knot to knot within TOLERANCE, as greedily found; the first begins at ``first``."""
    if len(sizes) == 1:
        return [(first, float(times[0]), 0.0)]
    found, at = [], 0
    while at < len(sizes) - 1:
        end = at + 1
        for far in range(at + 2, len(sizes)):
            inner = slice(at + 1, far)
            line = np.interp(sizes[inner], sizes[[at, far]], times[[at, far]])
            if np.abs(line / times[inner] - 1).max() > TOLERANCE:
                break
            end = far
        slope = (times[end] - times[at]) / (sizes[end] - sizes[at])
        found.append((first if at == 0 else sizes[at], times[at] - slope * sizes[at], slope))
        at = end
    return found
