"""GEMM times from a table: a law, corrections at the measured points, and kriging between its shapes.

Shapes of the table have the measured time at the table's points in m. For other shapes
``archsim.laws.between_shapes`` interpolates the corrections (logarithms of measured over law). Between points in m,
times are interpolated on log-log axes; beyond the last point the law continues with the last correction. Measured dips
(a tile edge) are kept: times are monotone in m wherever the points are.
"""

from dataclasses import dataclass

import numpy as np

from archsim.base.dtypes import WEIGHT_BYTES
from archsim.base.kernels import inner, kernel
from archsim.base.units import NS_PER_S
from archsim.laws.between_shapes import far_from_all, krige
from archsim.laws.choosing import LawMissing, newest
from archsim.laws.tables import AttentionLaw, CalibrationSpec, GemmLaw, GemmTable, MoeLaw

CORRECTION_UNIT = 1e-4  # unit of the corrections in the files
OUTPUT_BYTES = 2
MOST_ROWS = 2**24  # curves extend to here


@dataclass(frozen=True, eq=False)
class GemmCurve:
    """Time of m x n x k over m for one (n, k). m: int64[point]; ns, low, high: float64[point] (5 % to 95 %).
    ``there_ns``: the same without reading the weights.

    ``measured``: (n, k) is in the table; otherwise its times are kriged. ``extrapolates``: (n, k) is outside the sizes
    of the table, or far from all of them. ``first``, ``last``: the measured range of m; the points extend beyond it.
    """

    m: np.ndarray
    ns: np.ndarray
    there_ns: np.ndarray
    low: np.ndarray
    high: np.ndarray
    measured: bool
    extrapolates: bool
    first: int
    last: int


def choose_table(
    calibration: CalibrationSpec, dtype: str, library: str | None = None, version: str | None = None, *,
    quantisation: str | None = None, groups: int = 1,
) -> GemmTable:
    """The table of a dtype and number of groups: the library with most shapes unless named, in its newest version.

    Tables without the quantisation of the activation (``quantisation: apart``) are preferred. fp16 is as fast as bf16,
    so either stands in for the other. Raises LawMissing, which lists the available tables.
    """
    alike = [table for table in calibration.gemm if table.groups == groups]
    wanted = [
        table
        for table in alike
        if library in (None, table.library)
        and version in (None, table.version)
        and quantisation in (None, table.quantisation)
    ]
    stand_in = {"fp16": "bf16", "bf16": "fp16"}.get(dtype, dtype)
    tables = next(
        (found for name in (dtype, stand_in) if (found := [table for table in wanted if table.dtype == name])), []
    )
    if not tables:
        together = f" in groups of {groups}" if groups > 1 else ""
        asked = " ".join(part for part in (library, version, dtype, quantisation) if part)
        others = sorted({f"{table.library} {table.dtype}" for table in alike}) or sorted(
            {f"groups of {table.groups} by {table.library}" for table in calibration.gemm if table.groups > 1}
            if groups > 1
            else ()
        )
        raise LawMissing(
            f"calibration {calibration.gpu} has no GEMM table for {asked}{together} (it has: "
            f"{', '.join(others) or 'none'})"
        )
    best = max(tables, key=lambda table: (table.quantisation == "apart", len(table.shapes), table.library))
    return newest(each for each in tables if (each.library, each.quantisation) == (best.library, best.quantisation))


def law_ns(
    law: GemmLaw, m, n, k, dtype: str, groups: int = 1, compute: float = 1.0, memory: float = 1.0, read: float = 1.0
) -> np.ndarray:
    """The law without corrections, for ``groups`` products at once; arrays broadcast. ``read``: the share of the
    weights that is read from HBM.

    ``compute`` scales the FLOP, ``memory`` all bytes; launch and the latency of each k are no bytes and stay (an H200
    by the laws of an H100, FP8 block: mean error 6.8 %, 8.7 with k scaled as well).
    """
    operand = WEIGHT_BYTES[dtype]
    m, n, k = (np.asarray(size, float) for size in (m, n, k))
    flop_ns = groups * 2 * m * n * k / (law.flop_per_s * compute) * NS_PER_S
    n_bytes = groups * (operand * (read * n * k + m * k) + OUTPUT_BYTES * m * n)
    bytes_ns = n_bytes / (law.bytes_per_s * memory) * NS_PER_S
    return law.launch_ns + law.ns_per_k * k + law.ns_per_input * m * k / memory + overlapped_ns(law, flop_ns, bytes_ns)


def overlapped_ns(law: GemmLaw | MoeLaw | AttentionLaw, flop_ns: np.ndarray, bytes_ns: np.ndarray) -> np.ndarray:
    """Overlapped compute and memory time: their p-norm, p = the law's order (1: sum; large: maximum)."""
    longer = np.maximum(flop_ns, bytes_ns)
    return longer * ((flop_ns / longer) ** law.order + (bytes_ns / longer) ** law.order) ** (1 / law.order)


def gemm_curve(table: GemmTable, n: int, k: int, sms: int, compute: float = 1.0, memory: float = 1.0) -> GemmCurve:
    """Times of one (n, k) on a die whose peak is ``compute`` and whose bandwidth is ``memory`` times the measured
    GPU's.
    """
    shape = np.array([[n, k]], np.int64)
    m, corrections = _corrections(table, shape, sms)
    ns, there_ns = (
        law_ns(table.law, m, n, k, table.dtype, table.groups, compute, memory, read) * corrections[0]
        for read in (1.0, 0.0)
    )
    measured = f"{n}x{k}" in table.shapes
    quantiles = table.seen if measured and table.seen is not None else table.unseen
    first, last = table.range_of(n, k)
    low, high = ns * (1 + min(quantiles.p05, 0.0)), ns * (1 + max(quantiles.p95, 0.0))
    far = bool(far_from_all(np.array(table.sizes, float), shape.astype(float))[0])
    return GemmCurve(m, ns, there_ns, low, high, measured, far, int(first), int(last))


def _corrections(table: GemmTable, shapes: np.ndarray, sms: int) -> tuple[np.ndarray, np.ndarray]:
    """(m int64[point], measured over law float64[shape, point]) of shapes int64[shape, (n, k)], up to MOST_ROWS."""
    known = {size: row for row, size in enumerate(table.sizes)}
    rows = np.array([known.get((n, k), -1) for n, k in shapes.tolist()])
    corrections, axis = np.array(tuple(table.shapes.values())) * CORRECTION_UNIT, np.array(table.m)
    found = corrections[rows]
    if (rows < 0).any():
        found[rows < 0] = krige(np.array(table.sizes, float), corrections, shapes[rows < 0].astype(float), axis, sms)
    doublings = max(0, int(np.ceil(np.log2(MOST_ROWS / axis[-1]))))
    m = np.concatenate([axis, axis[-1] * 2.0 ** np.arange(1, doublings + 1)])
    found = np.pad(found, [(0, 0), (0, doublings)], mode="edge")
    return m.astype(np.int64), np.exp(found)


def table_times(table: GemmTable, n, k, m, sms: int, compute: float = 1.0, memory: float = 1.0) -> np.ndarray:
    """Times of many products, float64[row]; n, k, m: int64[row]. ``compute``, ``memory``: see ``gemm_curve``."""
    shapes, curve = np.unique(np.stack([n, k], axis=1), axis=0, return_inverse=True)
    points, corrections = _corrections(table, shapes, sms)
    law = law_ns(table.law, points[None], shapes[:, :1], shapes[:, 1:], table.dtype, table.groups, compute, memory)
    ns = law * corrections
    times = np.empty(len(m))
    gemm_times(points, ns, curve.ravel().astype(np.int64), m.astype(np.int64), times)
    return times


def outside(table: GemmTable, n, k, m) -> np.ndarray:
    """bool[row]: products outside the measured sizes; n, k, m: int64[row]."""
    shapes, which = np.unique(np.stack([n, k], axis=1), axis=0, return_inverse=True)
    ends = np.array([table.range_of(*shape) for shape in shapes.tolist()]).reshape(-1, 2)[which.ravel()]
    far = far_from_all(np.array(table.sizes, float), shapes.astype(float))[which.ravel()]
    return far | (m < ends[:, 0]) | (m > ends[:, 1])


@inner
def gemm_ns(m_points, ns_points, m):
    """Time of m rows by a curve, in ns: float64; 0 for m = 0. Beyond the last point (in curves of a table: MOST_ROWS)
    it extrapolates the last two.

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


@kernel
def gemm_times(m_points, ns_points, curve, m, out):
    """Fill out float64[row] with the times of m int64[row] rows by the curves ns_points[curve[row]]."""
    for row in range(len(m)):
        out[row] = gemm_ns(m_points, ns_points[curve[row]], m[row])
