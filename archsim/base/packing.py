"""The two greedy steps of EPLB and CRAFT: assign instances to experts, pack instances. Compiled, for many rows at once.

Both are deepseek-ai/EPLB's (commit d52c72d), with ties to the lowest index. Import this module where it is used: it
loads numba.
"""

import numpy as np

from archsim.base.compiled import kernel

# Loads of bins are sums of rounded quotients: relative differences below this are ties.
TIE = 1e-12


def pack(load: np.ndarray, capacity: np.ndarray, speed: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(bin, place in it) int64[row, item]: the largest item first, each to the bin of least load that has room, or with
    ``speed: float64[bin]`` to the one that is then through with its load first.

    load: float64[row, item]; capacity: int64[bin], in total at least the number of items.
    """
    rows, bins = len(load), len(capacity)
    into, place = np.zeros((2, *load.shape), np.int64)
    order = np.argsort(-load, axis=1, kind="stable")
    filled, items = np.zeros((rows, bins)), np.zeros((rows, bins), np.int64)
    if speed is None:
        _fill_bins(load, order, capacity, filled, items, into, place)
    else:
        _fill_unequal(load, order, capacity, np.asarray(speed, np.float64), filled, items, into, place)
    return into, place


@kernel
def _fill_bins(load, order, capacity, filled, items, into, place):
    for row in range(len(load)):
        for item in order[row]:
            best = -1
            for candidate in range(len(capacity)):
                if items[row, candidate] < capacity[candidate]:
                    if best < 0 or filled[row, candidate] < filled[row, best] * (1.0 - TIE):
                        best = candidate
            into[row, item], place[row, item] = best, items[row, best]
            filled[row, best] += load[row, item]
            items[row, best] += 1


@kernel
def _fill_unequal(load, order, capacity, speed, filled, items, into, place):
    """As `_fill_bins`; ``filled`` is time."""
    for row in range(len(load)):
        for item in order[row]:
            best, best_end = -1, np.inf
            for candidate in range(len(capacity)):
                if items[row, candidate] < capacity[candidate]:
                    end = filled[row, candidate] + load[row, item] / speed[candidate]
                    if best < 0 or end < best_end * (1.0 - TIE):
                        best, best_end = candidate, end
            into[row, item], place[row, item] = best, items[row, best]
            filled[row, best] = best_end
            items[row, best] += 1
