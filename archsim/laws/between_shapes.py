"""Corrections of GEMM shapes that were not measured, interpolated from those that were.

Ordinary kriging, separately at each m: a Matérn-3/2 covariance over log2 n, log2 k and wave quantisation (how well
the product fills whole waves of tiles), which decides whether shapes of similar size behave alike (tile sizes of
128 x 128, 128 x 256 and 64 x 128).
"""

from functools import lru_cache

import numpy as np

from archsim.base.kernels import kernel

TILES = ((128, 128), (128, 256), (64, 128))
MOST_FILL = 2.0  # log2 of waves over tiles; all less than a quarter of a wave count as equal
# Length scales of the covariance, in octaves, and the noise of one point relative to the variance; chosen by leaving
# shapes of the H100 grid out.
SIZE_SCALE, FILL_SCALE, NOISE = 1.5, 0.5, 0.05
# A shape is extrapolated beyond this distance from the nearest measured one, in octaves of n or k: the widest step of
# the H100 grid (512 to 768), for which the errors of left-out shapes are known.
MOST_OCTAVES = 0.6


def far_from_all(sizes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """bool[wanted]: shapes outside the measured ``sizes``, or far from all; both float64[shape, (n, k)]."""
    outside = ((wanted < sizes.min(axis=0)) | (wanted > sizes.max(axis=0))).any(axis=1)
    octaves = np.abs(np.log2(wanted)[:, None] - np.log2(sizes)[None]).max(axis=2).min(axis=1)
    return outside | (octaves > MOST_OCTAVES)


def krige(sizes, corrections, wanted, m, sms: int) -> np.ndarray:
    """Corrections float64[wanted, point] of shapes ``wanted`` (n, k) from those of ``sizes``, separately at each m."""
    found = np.empty((len(wanted), len(m)))
    weights = _weights(sizes.tobytes(), corrections.tobytes(), tuple(m), sms)
    for point, rows in enumerate(m):
        known = _features(sizes, rows, sms)
        found[:, point] = _covariance(_features(wanted, rows, sms), known) @ weights[point]
    return found


@lru_cache(maxsize=256)
def _weights(sizes: bytes, corrections: bytes, m: tuple[float, ...], sms: int) -> np.ndarray:
    """float64[point, shape] of measured shapes, which whatever shape is wanted shares; arrays of ``krige`` as bytes."""
    shapes = np.frombuffer(sizes).reshape(-1, 2)
    found = np.frombuffer(corrections).reshape(len(shapes), -1).T.copy()
    for rows, weights in zip(m, found, strict=True):
        known = _features(shapes, rows, sms)
        solve_definite(_covariance(known, known) + NOISE * np.eye(len(shapes)), weights)
    return found


@kernel
def solve_definite(matrix, right):
    """Solve matrix x = right by Cholesky, in place of ``right`` float64[n]; ``matrix`` float64[n, n], symmetric and
    positive definite, is overwritten.

    Unlike linear algebra libraries, it starts no threads, which on a loaded machine cost a hundred times the work.
    """
    n = len(right)
    for j in range(n):
        for i in range(j, n):
            total = matrix[i, j]
            for p in range(j):
                total -= matrix[i, p] * matrix[j, p]
            matrix[i, j] = np.sqrt(total) if i == j else total / matrix[j, j]
    for i in range(n):
        for p in range(i):
            right[i] -= matrix[i, p] * right[p]
        right[i] /= matrix[i, i]
    for i in range(n - 1, -1, -1):
        for p in range(i + 1, n):
            right[i] -= matrix[p, i] * right[p]
        right[i] /= matrix[i, i]


def left_out(sizes, corrections, m, sms: int) -> tuple[np.ndarray, np.ndarray]:
    """Kriging of each shape from all the others, and its variance relative to that of the corrections.

    Both float64[shape, point]; closed form of Dubrule (1983): residuals are those of K^-1 y over the diagonal of K^-1.
    """
    found, variance = np.empty_like(corrections), np.empty_like(corrections)
    for point, rows in enumerate(m):
        known = _features(sizes, rows, sms)
        inverse = np.linalg.inv(_covariance(known, known) + NOISE * np.eye(len(sizes)))
        variance[:, point] = 1 / np.diag(inverse)
        found[:, point] = corrections[:, point] - inverse @ corrections[:, point] * variance[:, point]
    return found, variance


def _features(sizes: np.ndarray, m: float, sms: int) -> np.ndarray:
    """float64[shape, feature], in units of the length scales."""
    n, k = sizes[:, 0], sizes[:, 1]
    columns = [np.log2(n) / SIZE_SCALE, np.log2(k) / SIZE_SCALE]
    for rows, width in TILES:
        waves = np.ceil(m / rows) * np.ceil(n / width) / sms
        columns.append(np.minimum(np.log2(np.ceil(waves) / waves), MOST_FILL) / FILL_SCALE)
    return np.stack(columns, axis=1)


def _covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Matérn 3/2 of the distances, plus one: an unknown mean of the same variance."""
    distance = np.sqrt(3 * np.maximum(((a[:, None] - b[None]) ** 2).sum(axis=2), 0))
    return (1 + distance) * np.exp(-distance) + 1.0
