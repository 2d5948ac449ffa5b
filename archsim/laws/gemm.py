"""GEMM times from a table: a law, corrections at the measured points, and kriging between its shapes.

Shapes of the table have the measured time at the table's points in m. For other shapes the corrections
(logarithms of measured over law) are interpolated. Between points in m, times are interpolated on log-log axes; beyond
the last point the law continues with the last correction. Measured dips (a tile edge) are kept: times are monotone in m
wherever the points are.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from archsim.base import compiled, units
from archsim.base.sums import sum
from archsim.laws import tables
from archsim.laws.scaling import Scale, measured_scale
from archsim.laws.tables import AttentionLaw, CalibrationSpec, GemmLaw, GemmTable, LawMissing, MoeLaw, newest

# Corrections of GEMM shapes that were not measured, interpolated from those that were.
#
# Ordinary kriging, separately at each m: a Matérn-3/2 covariance over log2 n, log2 k and wave quantisation (how well
# the product fills whole waves of tiles), which decides whether shapes of similar size behave the same (tile sizes of
# 128 x 128, 128 x 256 and 64 x 128).

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
    return _krige(sizes.tobytes(), corrections.tobytes(), wanted.tobytes(), tuple(m), sms).copy()


@lru_cache(maxsize=4096)
def _krige(sizes: bytes, corrections: bytes, wanted: bytes, m: tuple[float, ...], sms: int) -> np.ndarray:
    """`krige` of arrays as bytes: machines of other rates have the same corrections."""
    shapes = np.frombuffer(wanted).reshape(-1, 2)
    measured = _measured_points(sizes, corrections, m, sms)
    return np.stack([
        _covariance(_features(shapes, rows, sms), known) @ weights
        for rows, (known, weights) in zip(m, measured, strict=True)
    ], axis=1)  # fmt: skip


@lru_cache(maxsize=256)
def _measured_points(
    sizes: bytes, corrections: bytes, m: tuple[float, ...], sms: int
) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """At each m, `_features` and weights float64[shape] of the measured shapes; arrays of ``krige`` as bytes."""
    shapes = np.frombuffer(sizes).reshape(-1, 2)
    every = np.frombuffer(corrections).reshape(len(shapes), -1).T.copy()
    known = tuple(_features(shapes, rows, sms) for rows in m)
    same: dict[bytes, list[int]] = {}  # features → places of m, many of which fill as many waves
    for at, features in enumerate(known):
        same.setdefault(features.tobytes(), []).append(at)
    for first, *others in same.values():
        weights = every[[first, *others]]
        solve_definite(_covariance(known[first], known[first]) + NOISE * np.eye(len(shapes)), weights)
        every[[first, *others]] = weights
    return tuple(zip(known, every, strict=True))


@compiled.kernel
def solve_definite(matrix, right):
    """Solve matrix x = right by Cholesky in place of every row of ``right`` float64[row, n]; overwrites ``matrix``,
    float64[n, n].

    Unlike linear algebra libraries, it starts no threads, which on a loaded machine cost a hundred times the work.
    """
    n = len(matrix)
    for p in range(n):
        matrix[p, p] = np.sqrt(matrix[p, p])
        upper = matrix[p]
        for i in range(p + 1, n):
            upper[i] /= upper[p]
        for j in range(p + 1, n):  # inner loops run over adjacent numbers, several at a time
            row, of = matrix[j, j:], upper[j:]
            for i in range(len(row)):
                row[i] -= upper[j] * of[i]
    for row in right:
        for p in range(n):
            row[p] /= matrix[p, p]
            for i in range(p + 1, n):
                row[i] -= matrix[p, i] * row[p]
        for i in range(n - 1, -1, -1):
            for p in range(i + 1, n):
                row[i] -= matrix[i, p] * row[p]
            row[i] /= matrix[i, i]


def left_out(sizes, corrections, m, sms: int) -> tuple[np.ndarray, np.ndarray]:
    """Kriging of each shape from the others, and its relative variance: float64[shape, point] each (Dubrule, 1983)."""
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
    distance = np.sqrt(3 * sum((one[:, None] - other[None]) ** 2 for one, other in zip(a.T, b.T, strict=True)))
    return (1 + distance) * np.exp(-distance) + 1.0


CORRECTION_UNIT = 1e-4  # unit of the corrections in the files
OUTPUT_BYTES = 2
MOST_ROWS = 2**24  # curves extend to here


@dataclass(frozen=True, eq=False)
class GemmCurve:
    """Time of m x n x k over m for one (n, k)."""

    m: np.ndarray  # int64[point]
    ns: np.ndarray  # float64[point]
    there_ns: np.ndarray  # float64[point]: the same without reading the weights
    low: np.ndarray  # float64[point]: ns at the 5 % residual
    high: np.ndarray  # float64[point]: ns at the 95 % residual
    measured: bool  # (n, k) is in the table; otherwise its times are kriged
    extrapolates: bool  # (n, k) is outside the sizes of the table, or far from all of them
    first: int  # smallest measured m; the points extend beyond the measured ones
    last: int  # largest measured m


def choose_table(
    calibration: CalibrationSpec,
    dtype: str,
    library: str | None = None,
    version: str | None = None,
    *,
    quantisation: str | None = None,
    groups: int = 1,
) -> GemmTable:
    """The table of a dtype and number of groups: the library with most shapes unless named, in its newest version.

    Tables without the quantisation of the activation (``quantisation: apart``) are preferred. fp16 is as fast as bf16,
    so either stands in for the other. Raises LawMissing, which lists the available tables.
    """
    grouped = [table for table in calibration.gemm if table.groups == groups]
    wanted = [
        table
        for table in grouped
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
        others = sorted({f"{table.library} {table.dtype}" for table in grouped}) or sorted(
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
    weight = units.WEIGHT_BYTES[dtype]
    operand = units.BF16_BYTES if units.DTYPES[dtype].computes == units.BF16 else weight  # of inputs
    m, n, k = (np.asarray(size, float) for size in (m, n, k))
    flop_ns = groups * 2 * m * n * k / (law.flop_per_s * compute) * units.NS_PER_S
    n_bytes = groups * (weight * read * n * k + operand * m * k + OUTPUT_BYTES * m * n)
    bytes_ns = n_bytes / (law.bytes_per_s * memory) * units.NS_PER_S
    return law.launch_ns + law.ns_per_k * k + law.ns_per_input * m * k / memory + overlapped_ns(law, flop_ns, bytes_ns)


def overlapped_ns(law: GemmLaw | MoeLaw | AttentionLaw, flop_ns: np.ndarray, bytes_ns: np.ndarray) -> np.ndarray:
    """Overlapped compute and memory time: their p-norm, p = the law's order (1: sum; large: maximum)."""
    longer = np.maximum(flop_ns, bytes_ns)
    return longer * (1.0 + (np.minimum(flop_ns, bytes_ns) / longer) ** law.order) ** (1 / law.order)


def gemm_curve(table: GemmTable, n: int, k: int, sms: int, compute: float = 1.0, memory: float = 1.0) -> GemmCurve:
    """Times of one (n, k) on a die with ``compute`` and ``memory`` times the measured GPU's peak and bandwidth."""
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
    far = bool(far_from_all(_arrays_of(tables.Same(table.shapes))[1], shape.astype(float))[0])
    return GemmCurve(
        m=m, ns=ns, there_ns=there_ns, low=low, high=high, measured=measured, extrapolates=far, first=int(first),
        last=int(last),
    )  # fmt: skip


@lru_cache(maxsize=256)
def _arrays_of(shapes: tables.Same) -> tuple[dict[tuple[int, int], int], np.ndarray, np.ndarray]:
    """Of ``GemmTable.shapes``: the row of every (n, k), (n, k) float64[row, 2] and corrections float64[row, point]."""
    sizes = [tables.shape_of(name) for name in shapes.value]
    rows = {size: row for row, size in enumerate(sizes)}
    return rows, np.array(sizes, float), np.array(tuple(shapes.value.values())) * CORRECTION_UNIT


def _corrections(table: GemmTable, shapes: np.ndarray, sms: int) -> tuple[np.ndarray, np.ndarray]:
    """(m int64[point], measured over law float64[shape, point]) of shapes int64[shape, (n, k)], up to MOST_ROWS."""
    (known, sizes, corrections), axis = _arrays_of(tables.Same(table.shapes)), np.array(table.m)
    rows = np.array([known.get((n, k), -1) for n, k in shapes.tolist()])
    found = corrections[rows]
    if (rows < 0).any():
        found[rows < 0] = krige(sizes, corrections, shapes[rows < 0].astype(float), axis, sms)
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
    far = far_from_all(_arrays_of(tables.Same(table.shapes))[1], shapes.astype(float))[which.ravel()]
    return far | (m < ends[:, 0]) | (m > ends[:, 1])


@compiled.inner
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


@compiled.kernel
def gemm_times(m_points, ns_points, curve, m, out):
    """Fill out float64[row] with the times of m int64[row] rows by the curves ns_points[curve[row]]."""
    for row in range(len(m)):
        out[row] = gemm_ns(m_points, ns_points[curve[row]], m[row])


# The three products of an expert (gate, up, down) on a die other than the measured GPU.


class OwnKernels(NamedTuple):
    """Kernels of a die that are no GPU's: rooflines after a latency."""

    latency_ns: float  # of every kernel
    flop_share: float  # of the peak that they reach
    byte_share: float  # of the bandwidth of the memory that they reach


class Rates(NamedTuple):
    """Peak rates of the modelled die; of many dies, float64[die] each. ``dtype``: of the peak, to which those of other
    dtypes are as on the measured GPU. None: each table's own. ``own``: None where its kernels are as the GPU's.
    """

    peak_flop_per_s: Any
    hbm_bytes_per_s: Any
    dtype: str | None = None
    own: OwnKernels | None = None

    def map(self, change: Callable[[Any], Any]) -> Rates:
        """The rates, changed one by one."""
        return self._replace(peak_flop_per_s=change(self.peak_flop_per_s), hbm_bytes_per_s=change(self.hbm_bytes_per_s))


def scale_to(calibration: CalibrationSpec, dtype: str, rates: Rates | None) -> Scale:
    """The scale of a die; None: the measured GPU. A peak of a dtype that the GPU lacks is worth as much more as its
    weights are narrower; weights alone have that of what they are multiplied in. Raises LawMissing without any peak.
    """
    peaks = calibration.reference.peak_flop_per_s
    dtype = dtype if dtype in peaks else units.DTYPES[dtype].computes
    if dtype not in peaks:
        raise LawMissing(f"calibration {calibration.gpu} has no peak for {dtype}")
    if rates is None:
        return Scale(1.0, 1.0)
    of = rates.dtype or dtype
    peak = peaks[of] if of in peaks else peaks[dtype] * units.WEIGHT_BYTES[dtype] / units.WEIGHT_BYTES[of]
    return Scale(rates.peak_flop_per_s / peak, rates.hbm_bytes_per_s / calibration.reference.hbm_bytes_per_s)


class ExpertGemm:
    """Times of the products of one expert; gate and up are (n, k) = (ffn, hidden), down the reverse.

    ``table``: the chosen one. ``gate`` (and up), ``down``: curves. ``low``, ``high``: relative uncertainty of a time,
    from the 5 % and 95 % residuals. ``ns_per_token``: time to multiply one token by one slice at the law's rate. Raises
    LawMissing if the calibration has no table, or no peak, for the dtype.
    """

    def __init__(
        self,
        calibration: CalibrationSpec,
        hidden: int,
        ffn: int,
        dtype: str,
        rates: Rates | None = None,
        library: str | None = None,
    ):
        self._calibration, self._size = calibration, (ffn, hidden)
        self.table = choose_table(calibration, dtype, library)
        self.scale = scale_to(calibration, self.table.dtype, rates)
        sms = calibration.reference.sms
        self.gate: GemmCurve = gemm_curve(self.table, ffn, hidden, sms, *self.scale)
        self.down: GemmCurve = gemm_curve(self.table, hidden, ffn, sms, *self.scale)
        three = (self.gate, self.gate, self.down)
        self.low = float(np.mean([1 - curve.low[0] / curve.ns[0] for curve in three]))
        self.high = float(np.mean([curve.high[0] / curve.ns[0] - 1 for curve in three]))
        self.ns_per_token = 2.0 * hidden * ffn / (self.table.law.flop_per_s * self.scale.compute) * units.NS_PER_S
        self._shapes = ((ffn, hidden), (hidden, ffn))
        self._ns = np.stack([self.gate.ns, self.down.ns])[:, None]  # [gate or down, die, point]
        self._there_ns = np.stack([self.gate.there_ns, self.down.there_ns])[:, None]

    def on(self, array: np.ndarray, hbm: np.ndarray) -> ExpertGemm:
        """The same on dies whose rates are ``array`` and ``hbm`` times those of this one, float64[die] each."""
        found = copy(self)
        nominal, dies = self.scale, (self.scale.compute * array[:, None], self.scale.memory * hbm[:, None])
        for name, read in (("_ns", 1.0), ("_there_ns", 0.0)):
            curves = []
            for curve, shape in zip(getattr(self, name), self._shapes, strict=True):
                law, own = (
                    law_ns(self.table.law, self.gate.m, *shape, self.table.dtype, self.table.groups, *scale, read)
                    for scale in (nominal, dies)
                )
                curves.append(curve * (own / law))
            setattr(found, name, np.stack(curves))
        return found

    def times(self, tokens: np.ndarray, die: np.ndarray | None = None) -> np.ndarray:
        """Mean over gate, up and down, float64[entry] ns; tokens: int64[entry]; ``die``: int64[entry], after `on`."""
        return self._mean_ns(self._ns, tokens, die)

    def times_if_there(self, tokens: np.ndarray, die: np.ndarray | None = None) -> np.ndarray:
        """The same of weights that need not be read from HBM: no slower HBM makes them longer, nor a faster one."""
        return self._mean_ns(self._there_ns, tokens, die)

    def _mean_ns(self, curves: np.ndarray, tokens: np.ndarray, die: np.ndarray | None) -> np.ndarray:
        gate_ns, down_ns = np.empty(len(tokens)), np.empty(len(tokens))
        curve = np.zeros(len(tokens), np.int64) if die is None else np.ascontiguousarray(die, np.int64)
        gemm_times(self.gate.m, curves[0], curve, tokens, gate_ns)
        gemm_times(self.gate.m, curves[1], curve, tokens, down_ns)
        return (2 * gate_ns + down_ns) / 3

    def side_by_side(self, rates: Rates, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`times` and `times_if_there` on many dies whose rates differ, float64[die] each: float64[die, entry]."""
        scale = scale_to(self._calibration, self.table.dtype, rates.map(lambda each: each[:, None]))
        dies, rows = len(rates.peak_flop_per_s), np.tile(tokens, len(rates.peak_flop_per_s))
        die = np.repeat(np.arange(dies), len(tokens))
        found = []
        for read in (1.0, 0.0):
            products = []
            for (n, k), (points, corrections) in zip(
                (self._size, self._size[::-1]), self._corrections_by_points, strict=True
            ):
                law = law_ns(self.table.law, points, n, k, self.table.dtype, self.table.groups, *scale, read)
                products.append(np.empty(len(rows)))
                gemm_times(points, law * corrections[0], die, rows, products[-1])
            gate_ns, down_ns = products
            found.append(((2 * gate_ns + down_ns) / 3).reshape(dies, -1))
        return found[0], found[1]

    @cached_property
    def _corrections_by_points(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of gate and down: points in m, and measured over law at them."""
        sms = self._calibration.reference.sms
        return [_corrections(self.table, np.array([size]), sms) for size in (self._size, self._size[::-1])]

    def extrapolates(self, tokens: np.ndarray) -> np.ndarray:
        """bool[entry]: the weight shape or the number of tokens is outside the measured range."""
        first, last = max(self.gate.first, self.down.first), min(self.gate.last, self.down.last)
        return (self.gate.extrapolates or self.down.extrapolates) | (tokens < first) | (tokens > last)


# Products of dense layers (projections, FFN, router, LM head): from whichever table has measured the nearest shape.

TUNED_AT = np.array([1.0, 8.0, 64.0, 512.0, 4096.0])  # rows by whose mean time a library is chosen
DENSE = "-dense"  # ending of libraries whose tables hold only shapes of dense layers


@dataclass(frozen=True, eq=False)
class DenseProduct:
    """The time of one (n, k) over its rows."""

    table: GemmTable  # that it is of
    curve: GemmCurve  # of its (n, k)
    ln_m: np.ndarray  # float64[point]: of the curve's points up to MOST_ROWS
    ln_ns: np.ndarray  # float64[point]: at them
    far: bool  # the shape is outside the measured ones of its table

    def ns(self, rows) -> np.ndarray:
        """float64, the shape of ``rows``; 0 for no rows."""
        rows = np.asarray(rows, float)
        some = rows > 0
        return np.where(some, np.exp(np.interp(np.log(np.where(some, rows, 1.0)), self.ln_m, self.ln_ns)), 0.0)

    def outside(self, rows) -> np.ndarray:
        """bool: the shape or the rows lie outside the measured ones."""
        rows = np.asarray(rows, float)
        return self.far | (rows > self.curve.last)


def dense_product(
    calibration: CalibrationSpec, n: int, k: int, dtype: str, rates: Rates | None = None, *, tuned: bool = False
) -> DenseProduct:
    """The product of rows by k x n weights; ``tuned``: of all libraries that measured shapes as near, the fastest on
    the measured GPU, as engines choose kernels; else the usual one. Raises LawMissing if the calibration has no GEMM
    table for the dtype.

    FP8 times include the quantisation of activations where a table has them: their scales are found at run time.
    """
    there, sms = _candidates(calibration, dtype, tuned), calibration.reference.sms
    away = [_octaves(each, n, k) for each in there]
    near = [each for each, far in zip(there, away, strict=True) if far == min(away)]
    if tuned and len(near) > 1:  # at the rates of the GPU that was measured: no faster machine takes another one
        own = measured_scale(calibration)
        ns = [_product(tables.Same(each), n, k, sms, *own).ns(TUNED_AT) for each in near]
        near = [near[int(np.argmin(np.log(ns).mean(axis=1)))]]
    return _product(tables.Same(near[0]), n, k, sms, *scale_to(calibration, near[0].dtype, rates))


@lru_cache(maxsize=4096)  # sizes of engines have the same few shapes
def _product(table: tables.Same, n: int, k: int, sms: int, compute: float, memory: float) -> DenseProduct:
    curve = gemm_curve(table.value, n, k, sms, compute, memory)
    kept = curve.m <= MOST_ROWS
    far = curve.extrapolates or bool(table.value.scaled_from)
    return DenseProduct(table.value, curve, np.log(curve.m[kept]), np.log(curve.ns[kept]), far)


def _candidates(calibration: CalibrationSpec, dtype: str, every: bool) -> list[GemmTable]:
    """The usual table, and of tables of dense layers (``every`` library); of each, with quantisation if it exists."""
    found = []
    libraries = {table.library for table in calibration.gemm if every or table.library.endswith(DENSE)}
    for library in (None, *sorted(libraries)):
        for quantisation in ("included", None) if dtype.startswith("fp8") else (None,):
            try:
                found.append(choose_table(calibration, dtype, library, quantisation=quantisation))
                break
            except LawMissing:
                continue
    if not found:
        choose_table(calibration, dtype)
    return found


def _octaves(table: GemmTable, n: int, k: int) -> float:
    return float(np.abs(np.log2(_arrays_of(tables.Same(table.shapes))[1] / (n, k))).max(axis=1).min())
