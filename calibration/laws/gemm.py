"""GEMM times from a calibration: a law, a table of corrections, and kriging between the shapes of the table.

Shapes of the table have the measured time at the table's points in m. For other shapes the corrections (logarithms of
measured over law) are interpolated at each m by ordinary kriging: a Matérn-3/2 covariance over log2 n, log2 k and how well
the product fills whole waves of tiles, which is what makes neighbours in size alike or not (tile sizes of 128 x 128,
128 x 256 and 64 x 128). Between points in m, times are interpolated on log-log axes; beyond the last one the law goes on
with the last correction. Measured dips (a tile edge) are kept: times are monotone in m wherever the points are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from archsim.base.errors import SpecError
from archsim.base.kernels import inner, kernel
from archsim.specs.calibration import CalibrationSpec, GemmLaw, GemmTable, newest_first

NS_PER_S = 1e9
UNIT = 1e-4  # of the corrections in the files
OPERAND_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "fp8_block": 1}
OUTPUT_BYTES = 2
TILES = ((128, 128), (128, 256), (64, 128))
MOST_ROWS = 2**24  # points of curves go on to there
MOST_FILL = 2.0  # log2 of waves over tiles; below a quarter of a wave all is one
# Length scales of the covariance, in octaves, and the noise of one point relative to the variance; found by leaving
# shapes out of the H100 grid.
SIZE_SCALE, FILL_SCALE, NOISE = 1.5, 0.5, 0.05
# Octaves, in n or in k, to the nearest measured shape beyond which a time is extrapolated: the widest step of the H100 grid
# (512 to 768), on which errors of shapes left out were found.
MOST_OCTAVES = 0.6


@dataclass(frozen=True, eq=False)
class GemmCurve:
    """Time of m x n x k over m for one (n, k). m: int64[point]; ns, low, high: float64[point] (5 % to 95 %).

    ``measured``: (n, k) is in the table; else its times are kriged.
    ``extrapolates``: (n, k) lies outside the sizes of the table, or far from all of them. ``first``, ``last``: the m that
    were measured; the points go on beyond.
    """

    m: np.ndarray
    ns: np.ndarray
    low: np.ndarray
    high: np.ndarray
    measured: bool
    extrapolates: bool
    first: int
    last: int


def choose_table(
    calibration: CalibrationSpec, dtype: str, library: str | None = None, version: str | None = None
) -> GemmTable:
    """The plain-GEMM table of a dtype: of the library with most shapes unless named, and its newest version.

    Tables without the quantisation of the activation go first. fp16 is as fast as bf16, and either stands for the other. Raises SpecError where there is
    none, naming those there are.
    """
    plain = [table for table in calibration.gemm if table.groups == 1 and library in (None, table.library)]
    plain = [table for table in plain if version is None or version == table.version]
    same = (dtype, "bf16" if dtype == "fp16" else "fp16" if dtype == "bf16" else dtype)
    tables = next((found for name in same if (found := [table for table in plain if table.dtype == name])), [])
    if not tables:
        asked = " ".join(part for part in (library, version, dtype) if part)
        others = sorted({f"{table.library} {table.dtype}" for table in calibration.gemm if table.groups == 1})
        raise SpecError(f"calibration {calibration.gpu} has no GEMM table for {asked} (it has: {', '.join(others) or 'none'})")
    best = max(tables, key=lambda table: (table.quantisation == "apart", len(table.shapes), table.library))
    alike = [each for each in tables if (each.library, each.quantisation) == (best.library, best.quantisation)]
    return max(alike, key=lambda table: newest_first(table.version))


def law_ns(law: GemmLaw, m, n, k, dtype: str, groups: int = 1, compute: float = 1.0, memory: float = 1.0) -> np.ndarray:
    """The law without corrections, of ``groups`` products at once; ``compute`` and ``memory`` multiply its rates. Arrays broadcast."""
    operand = OPERAND_BYTES[dtype]
    m, n, k = (np.asarray(size, float) for size in (m, n, k))
    flop_ns = groups * 2 * m * n * k / (law.flop_per_s * compute) * NS_PER_S
    bytes_ns = groups * (operand * (n * k + m * k) + OUTPUT_BYTES * m * n) / (law.bytes_per_s * memory) * NS_PER_S
    largest = np.maximum(flop_ns, bytes_ns)
    both = largest * ((flop_ns / largest) ** law.order + (bytes_ns / largest) ** law.order) ** (1 / law.order)
    return law.launch_ns + (law.ns_per_k * k + law.ns_per_input * m * k) / memory + both


def gemm_curve(table: GemmTable, n: int, k: int, sms: int, compute: float = 1.0, memory: float = 1.0) -> GemmCurve:
    """Times of one (n, k) on a die whose peak is ``compute`` and whose bandwidth is ``memory`` times the measured GPU's."""
    axis = np.array(table.m)
    m = _and_beyond(axis)
    sizes = np.array(table.sizes, float)
    measured = f"{n}x{k}" in table.shapes
    corrections = _corrections(table)
    if measured:
        correction = corrections[table.sizes.index((n, k))]
    else:
        correction = krige(sizes, corrections, np.array([[n, k]], float), axis, sms)[0]
    ns = law_ns(table.law, m, n, k, table.dtype, table.groups, compute, memory) * np.exp(_to_the_end(correction, m))
    quantiles = table.seen if measured and table.seen is not None else table.unseen
    first, last = table.range_of(n, k)
    low, high = ns * (1 + min(quantiles.p05, 0.0)), ns * (1 + max(quantiles.p95, 0.0))
    outside = bool(_far(sizes, np.array([[n, k]], float))[0])
    return GemmCurve(m.astype(np.int64), ns, low, high, measured, outside, int(first), int(last))


def _far(sizes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """bool[wanted]: shapes outside the measured ``sizes``, or far from all; both float64[shape, (n, k)]."""
    outside = ((wanted < sizes.min(axis=0)) | (wanted > sizes.max(axis=0))).any(axis=1)
    octaves = np.abs(np.log2(wanted)[:, None] - np.log2(sizes)[None]).max(axis=2).min(axis=1)
    return outside | (octaves > MOST_OCTAVES)


def _and_beyond(m: np.ndarray) -> np.ndarray:
    """Measured points, and doublings of the last one up to MOST_ROWS, where the law goes on."""
    doublings = max(0, int(np.ceil(np.log2(MOST_ROWS / m[-1]))))
    return np.concatenate([m, m[-1] * 2.0 ** np.arange(1, doublings + 1)])


def _to_the_end(corrections: np.ndarray, m: np.ndarray) -> np.ndarray:
    """Corrections at measured points (the last axis), and the last one at all beyond."""
    more = [(0, 0)] * (corrections.ndim - 1) + [(0, len(m) - corrections.shape[-1])]
    return np.pad(corrections, more, mode="edge")


def expert_gemm_table(
    calibration: CalibrationSpec,
    hidden: int,
    ffn: int,
    dtype: str,
    peak_flop_per_s: float | None = None,
    hbm_bytes_per_s: float | None = None,
    library: str | None = None,
) -> tuple[GemmCurve, GemmCurve, GemmCurve]:
    """Curves of the gate, up and down projections of an expert; gate and up are (n, k) = (ffn, hidden), down the reverse.

    The rates are those of the die that is modelled; left out, it is the GPU that was measured. Raises SpecError where
    the calibration has no table or no peak for the dtype.
    """
    table = choose_table(calibration, dtype, library)
    reference = calibration.reference
    if table.dtype not in reference.peak_flop_per_s:
        raise SpecError(f"calibration {calibration.gpu} names no peak for {table.dtype}")
    compute = 1.0 if peak_flop_per_s is None else peak_flop_per_s / reference.peak_flop_per_s[table.dtype]
    memory = 1.0 if hbm_bytes_per_s is None else hbm_bytes_per_s / reference.hbm_bytes_per_s
    gate = gemm_curve(table, ffn, hidden, reference.sms, compute, memory)
    return gate, gate, gemm_curve(table, hidden, ffn, reference.sms, compute, memory)


@inner
def gemm_ns(m_points, ns_points, m):
    """Time of m rows by a curve, in ns: float64; 0 for m = 0. Beyond the last point it grows as between the last two, which
    in curves of a table is beyond MOST_ROWS.

    m_points: int64[point] increasing, ns_points: float64[point]; m: int64.
    """
    points = m_points.shape[0]
    if m <= 0:
        return 0.0
    if m <= m_points[0] or points == 1:
        return ns_points[0]
    low, high = np.int64(0), points - 1
    while high - low > 1:
        middle = (low + high) // 2
        if m_points[middle] <= m:
            low = middle
        else:
            high = middle
    if m > m_points[high]:
        slope = (ns_points[high] - ns_points[low]) / (m_points[high] - m_points[low])
        return ns_points[high] + max(slope, 0.0) * (m - m_points[high])
    share = np.log(m / m_points[low]) / np.log(m_points[high] / m_points[low])
    return ns_points[low] * (ns_points[high] / ns_points[low]) ** share


def _corrections(table: GemmTable) -> np.ndarray:
    """float64[shape, point]"""
    return np.array(tuple(table.shapes.values())) * UNIT


@kernel
def gemm_times(m_points, ns_points, curve, m, out):
    """Fills out float64[row] with the times of m int64[row] rows by the curves ns_points[curve[row]]."""
    for row in range(len(m)):
        out[row] = gemm_ns(m_points, ns_points[curve[row]], m[row])


def table_times(table: GemmTable, n, k, m, sms: int) -> np.ndarray:
    """Times of many products on the GPU that was measured, float64[row]; n, k, m: int64[row]."""
    shapes, curve = np.unique(np.stack([n, k], axis=1), axis=0, return_inverse=True)
    sizes = np.array(table.sizes)
    known = {tuple(size): row for row, size in enumerate(sizes.tolist())}
    corrections, axis = _corrections(table), np.array(table.m)
    found = np.empty((len(shapes), len(axis)))
    unseen = np.array([tuple(shape) not in known for shape in shapes.tolist()])
    for row in np.flatnonzero(~unseen):
        found[row] = corrections[known[tuple(shapes[row].tolist())]]
    if unseen.any():
        found[unseen] = krige(sizes.astype(float), corrections, shapes[unseen].astype(float), axis, sms)
    points = _and_beyond(axis)
    law = law_ns(table.law, points[None], shapes[:, :1], shapes[:, 1:], table.dtype, table.groups)
    times = np.empty(len(m))
    gemm_times(points.astype(np.int64), law * np.exp(_to_the_end(found, points)), curve.ravel().astype(np.int64), m.astype(np.int64), times)
    return times


def outside(table: GemmTable, n, k, m) -> np.ndarray:
    """bool[row]: products of sizes outside of the measured ones; n, k, m: int64[row]."""
    shapes, which = np.unique(np.stack([n, k], axis=1), axis=0, return_inverse=True)
    ends = np.array([table.range_of(*shape) for shape in shapes.tolist()]).reshape(-1, 2)[which.ravel()]
    far = _far(np.array(table.sizes, float), shapes.astype(float))[which.ravel()]
    return far | (m < ends[:, 0]) | (m > ends[:, 1])


def krige(sizes, corrections, wanted, m, sms: int) -> np.ndarray:
    """Corrections float64[wanted, point] of shapes ``wanted`` (n, k) from those of ``sizes``, at each m apart."""
    found = np.empty((len(wanted), len(m)))
    for point, rows in enumerate(m):
        known = _features(sizes, rows, sms)
        covariance = _covariance(known, known) + NOISE * np.eye(len(sizes))
        weights = corrections[:, point].copy()
        solve_definite(covariance, weights)
        found[:, point] = _covariance(_features(wanted, rows, sms), known) @ weights
    return found


@kernel
def solve_definite(matrix, right):
    """Puts the solution of matrix x = right in place of ``right`` float64[n], by Cholesky; ``matrix`` float64[n, n],
    symmetric and positive definite, is overwritten.

    As linear algebra libraries do it, but for their threads, which on a loaded machine cost a hundred times the work.
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
    """What kriging says of each shape from all the others, and its variance relative to that of the corrections.

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
