"""Which measured times a table was fitted to: two characters a cell, kept with the table.

The characters are a hash of the time. So a measurement that came in through another file is recognised, and neither
another time at a fitted point nor a point that was only filled in is taken for one of the fit (1 in 4096 is).
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
MISSING = ord(".")
DECIMALS = 7  # of ln time: within them CPUs agree
SPREADING = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio (Knuth, TAOCP 3, 6.4)


def fingerprints(sweeps: pd.DataFrame) -> tuple[str, ...]:
    """Cells of each sweep by name: a word for a row, two characters a cell. sweeps: ln us, rows by the last level."""
    along = sweeps.index.names[-1]
    cells = (sweeps[name].unstack(along).sort_index().sort_index(axis=1) for name in sorted(sweeps.columns))
    return tuple(" ".join(row.tobytes().decode() for row in _hashes(each.to_numpy(float))) for each in cells)


def in_fit(prints: Sequence[str], row: np.ndarray, column: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """bool[point]: some sweep of the table has this time in this cell.

    row, column: int64[point], -1: not in the table. logs: ln us, float64[point].
    """
    found, hashes = np.zeros(len(logs), bool), _hashes(np.asarray(logs, float))
    there = (row >= 0) & (column >= 0)
    for text in prints:
        words = text.split()
        cells = np.frombuffer("".join(words).encode(), np.uint8).reshape(len(words), -1, 2)
        found[there] |= (cells[row[there], column[there]] == hashes[there]).all(axis=1)
    return found


def _hashes(logs: np.ndarray) -> np.ndarray:
    """uint8[..., 2]: characters of each time."""
    known = np.isfinite(logs)
    rounded = np.rint(np.where(known, logs, 0.0) * 10**DECIMALS).astype(np.int64).astype(np.uint64)
    code = (rounded * SPREADING) >> np.uint64(52)
    pair = np.stack([ALPHABET[code >> np.uint64(6)], ALPHABET[code & np.uint64(63)]], axis=-1)
    return np.where(known[..., None], pair, np.uint8(MISSING))
