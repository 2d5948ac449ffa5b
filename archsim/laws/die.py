"""The experts of a die as one grouped kernel: fitted laws of fused MoE layers, for a die's pairs, active experts and
tokens.

Its time is (``MoeLaw``)

    correction · (launch + tokens and pairs + experts + p-norm of FLOP over rate and bytes over bandwidth)

Which tokens pass a die is a matter of how they come to it (``local``): behind a dispatch those with at least one
expert there, each once, however large the group is (`Received`); without one all tokens of the group, as in the
measured fused layers, where every rank sees all of them (`AsMeasured`).

On another die it scales as ``archsim.laws.scaling`` says. A die that its command processor launches has the law
without the launch.

Without a library by name, the time is that of the fastest library measured with these pairs or with fewer (each in its
newest version, every kernel apart): above its last point a library goes on as its law does, so that time does not jump
where one was measured no further. Where none was measured, it is that of the table with most points. A model that was
not measured has the law of the measured shape nearest to it, with its own sizes; what moves vectors is then in
proportion to their size. FP8 that was not measured has the law of the other scaling or of a wider dtype, with the bytes
of its own weights and the rate at its own peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from archsim.base.sums import sum
from archsim.base.units import NS_PER_S, WEIGHT_BYTES
from archsim.laws import gemm, moe, rank_load, scaling
from archsim.laws.tables import (
    PARTS_OF_LAYERS,
    CalibrationSpec,
    LawMissing,
    MoeTable,
    ReferenceRates,
    matching,
    newest,
    shape_of,
)

# What the rates of every die of a machine are, relative to the nominal ones.


class DieFactors(NamedTuple):
    """Factors of array clock and HBM bandwidth of every living die, float64[die] each."""

    array: np.ndarray
    hbm: np.ndarray

    @property
    def equal(self) -> bool:
        return bool((self.array == 1).all() and (self.hbm == 1).all())

    def times(self, array: np.ndarray | float = 1.0, hbm: np.ndarray | float = 1.0) -> DieFactors:
        """The factors multiplied by further ones, such as a clock that a power limit has lowered."""
        return DieFactors(self.array * array, self.hbm * hbm)

    def rates(self, nominal: gemm.Rates) -> gemm.Rates:
        return gemm.Rates(nominal.peak_flop_per_s * self.array, nominal.hbm_bytes_per_s * self.hbm, nominal.dtype)


# One table of fused MoE layers on one kind of die: the parts of its time, and where it was measured.
#
# `AsMeasured` and `Received` differ in the tokens that pass a die, in the experts that it pays for, and in whose
# measured corrections it takes:
#
# ============ ======================================= =============================================================
#              tokens, experts                         corrections
# ============ ======================================= =============================================================
# AsMeasured   all tokens of the group; its experts    of its EP size (interpolated between measured ones)
# Received     those with an expert there; active ones of the measured rank that has as many experts as are active
# ============ ======================================= =============================================================
#
# The time of `Received` depends on pairs, tokens and active experts alone: a die does not know how many others there
# are.

NEARLY = 1.01  # of measured sizes


class Kernels(NamedTuple):
    """Times of a die's kernels over the measured GPU's: copies of rows, quantisation, sums of results, products."""

    permute: float = 1.0
    quantise: float = 1.0
    finalise: float = 1.0
    multiply: float = 1.0

    def mean(self, kernels: Kernels) -> float:
        """The mean of the factors, weighted by shares that add up to 1."""
        return sum(share * factor for share, factor in zip(self, kernels, strict=True))


AS_MEASURED = Kernels()


def shares_of_bytes(layer: scaling.MeasuredLayer) -> tuple[Kernels, Kernels]:
    """Shares of `Kernels` in the vector bytes (`token_bytes`, `pair_bytes`) of a token and of a pair."""
    operand, of_token, of_pair = WEIGHT_BYTES[layer.dtype], scaling.token_bytes(layer), scaling.pair_bytes(layer)
    sums = layer.hidden * scaling.BF16_BYTES
    copied = 2 * operand * layer.hidden
    return (
        Kernels(0.0, (of_token - sums) / of_token, sums / of_token, 0.0),
        Kernels(copied / of_pair, (of_pair - copied - sums) / of_pair, sums / of_pair, 0.0),
    )


class DieKernel:
    """The fitted law of a table on a die, without corrections. ``least_ns``: of a pair, FLOP over the die's peak.

    With the scale of many dies, times of a pair, token, expert and so on are float64[die], of which `of` takes some.
    """

    _OF_DIES = ("_token_ns", "_pair_ns", "_expert_ns", "_flop_ns", "_bytes_ns", "least_ns")

    def __init__(
        self,
        table: MoeTable,
        sizes: moe.MoeSizes,
        reference: ReferenceRates,
        scale: scaling.Scale,
        launched: bool,
        kernels: Kernels = AS_MEASURED,
    ):
        layer = scaling.MeasuredLayer(table.hidden, table.ffn, table.dtype, reference.hbm_bytes_per_s)
        law, weights = scaling.scaled_law(table.law, layer, scale), sizes.hidden * sizes.ffn
        wider = sizes.hidden / table.hidden
        self._order = law.order
        self.launch_ns = law.launch_ns if launched else 0.0
        self._floor_ns = law.floor_ns if launched else 0.0
        self._token_ns, self._pair_ns = law.ns_per_token * wider, law.ns_per_pair * wider
        self._expert_ns = law.ns_per_expert
        flop = 2 * moe.SLICES * weights
        self._flop_ns = flop / law.flop_per_s * NS_PER_S
        self.least_ns = flop / (reference.peak_flop_per_s[table.dtype] * scale.compute) * NS_PER_S
        n_bytes = moe.SLICES * weights * WEIGHT_BYTES[table.dtype]
        self._bytes_ns = n_bytes / law.bytes_per_s * NS_PER_S
        if kernels != AS_MEASURED:
            of_token, of_pair = shares_of_bytes(layer)
            self._token_ns = self._token_ns * of_token.mean(kernels)
            self._pair_ns = self._pair_ns * of_pair.mean(kernels)
            self._flop_ns = np.maximum(self._flop_ns * kernels.multiply, self.least_ns)
            self._expert_ns = self._expert_ns * kernels.multiply

    def of(self, die: np.ndarray | None) -> DieKernel:
        """The factors of some dies, given as ascending ``int64[n]``. None if all dies are equal."""
        if die is None or not np.ndim(self._flop_ns) or len(die) == np.size(self._flop_ns):
            return self
        found = copy(self)
        for name in self._OF_DIES:
            setattr(found, name, np.broadcast_to(getattr(self, name), np.shape(self._flop_ns))[die])
        return found

    def parts_ns(self, pairs, active, experts, tokens) -> np.ndarray:
        """float64[5, die]: launch, FLOP, tokens and pairs, ``experts``, and what bytes of ``active`` add to FLOP."""
        flop_ns, bytes_ns = pairs * self._flop_ns, active * self._bytes_ns
        longer = np.maximum(flop_ns, bytes_ns)
        both = longer * ((flop_ns / longer) ** self._order + (bytes_ns / longer) ** self._order) ** (1 / self._order)
        permute_ns = pairs * self._pair_ns + tokens * self._token_ns
        launch_ns = np.full(len(pairs), self.launch_ns)
        parts = np.stack([launch_ns, flop_ns, permute_ns, experts * self._expert_ns, both - flop_ns])
        if self._floor_ns:
            parts[0] += np.maximum(self._floor_ns - parts.sum(axis=0), 0.0)
        return parts


class AsMeasured:
    """A die of a group in which every die has ``local`` experts and sees all tokens."""

    def __init__(self, table: MoeTable, sizes: moe.MoeSizes, local: float, measured: bool):
        self._local = local
        experts, top_k = (table.experts, table.top_k) if measured else (sizes.experts, sizes.top_k)
        self._tokens = experts / local / top_k  # of the group, for one pair of the die
        self._received = table.seen == "received"
        ep, tokens = table.experts / local, np.array(table.tokens)
        self._axis = np.log(_pairs_of(table, ep))
        self._corrections = _corrections_at(table, ep) if measured else np.zeros(len(tokens))
        ranks = _ranks_of(table)
        self._known = bool(ranks) and ranks[0] / NEARLY <= ep <= ranks[-1] * NEARLY
        self._first, self._last = np.exp(self._axis[0]) / NEARLY, np.exp(self._axis[-1]) * NEARLY

    def seen(self, pairs: np.ndarray, active: np.ndarray, tokens: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """float64[die]: experts that cost, tokens that pass; ``tokens`` None: as many as give all dies these pairs."""
        seen = pairs * self._tokens if tokens is None else tokens
        if self._received:  # the measured kernel stands behind a dispatch, and sees no others
            seen = np.minimum(seen, pairs)
        return np.maximum(active, self._local), seen

    def measured_at(self, pairs: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Whether a die is at a measured EP size with at least the fewest measured pairs, and with at most the most,
        bool[die]; and measured over law, float64[die].
        """
        begun = self._known & (pairs >= self._first)
        correction = np.exp(np.interp(np.log(pairs), self._axis, self._corrections))
        return begun, begun & (pairs <= self._last), correction


class Received:
    """A die that receives its tokens from a dispatch."""

    def __init__(self, table: MoeTable, measured: bool):
        self._experts = table.experts
        ranks = np.array(_ranks_of(table) or [1.0])
        self._ranks = np.log(ranks)
        self._axes = [np.log(_pairs_of(table, ep)) for ep in ranks]
        self._firsts, self._lasts = (np.array([axis[end] for axis in self._axes]) for end in (0, -1))
        shape = len(ranks), len(table.tokens)
        self._corrections = np.array([_corrections_at(table, ep) for ep in ranks]) if measured else np.zeros(shape)

    def seen(self, pairs: np.ndarray, active: np.ndarray, tokens: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """See ``AsMeasured.seen``."""
        if tokens is None:
            raise ValueError("a die behind a dispatch needs the tokens that it receives")
        return active, tokens

    def measured_at(self, pairs: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See ``AsMeasured.measured_at``; the EP size is that of a rank with as many experts as are active."""
        at, ep, ranks, near = np.log(pairs), np.log(self._experts / active), self._ranks, np.log(NEARLY)
        rows = np.array([np.interp(at, axis, row) for axis, row in zip(self._axes, self._corrections, strict=True)])
        if len(ranks) == 1:
            (first,), (last,), correction = self._firsts, self._lasts, rows[0]
        else:
            above = np.clip(np.searchsorted(ranks, ep), 1, len(ranks) - 1)
            below, die = above - 1, np.arange(len(ep))
            share = np.clip((ep - ranks[below]) / (ranks[above] - ranks[below]), 0.0, 1.0)
            rest = 1 - share
            first, last = (ends[below] * rest + ends[above] * share for ends in (self._firsts, self._lasts))
            correction = rows[below, die] * rest + rows[above, die] * share
        begun = (ep >= ranks[0] - near) & (ep <= ranks[-1] + near) & (at >= first - near)
        return begun, begun & (at <= last + near), np.exp(correction)


def _ranks_of(table: MoeTable) -> list[float]:
    """Measured EP sizes at TP 1, sorted."""
    return sorted(float(ep) for ep, tp in map(shape_of, table.ranks) if tp == 1)


def _pairs_of(table: MoeTable, ep: float) -> np.ndarray:
    """Pairs of a rank at the table's tokens, float64[token]."""
    tokens = np.array(table.tokens)
    return rank_load.rank_loads(
        moe.named_of(table), rank_load.routing_of(table), table.law, np.full(len(tokens), ep), tokens
    )[0]


def _corrections_at(table: MoeTable, ep: float) -> np.ndarray:
    """Logarithms of measured over law at the table's tokens, for one EP size, float64[token]."""
    tokens, near = np.array(table.tokens), _ranks_of(table)
    ep = min(near, key=lambda each: abs(np.log(each / ep))) if near and not near[0] <= ep <= near[-1] else ep
    return moe.measured_corrections(table, np.full(len(tokens), ep), np.ones(len(tokens)), tokens)


STAND_IN = {"fp16": "bf16", "bf16": "fp16"}  # as fast as each other
OTHERS = {"fp8": ("fp8_block", "bf16", "fp16"), "fp8_block": ("fp8", "bf16", "fp16")}  # preferred first
NEAREST = "nearest measured shape: "  # begins ``named`` for a model that was not measured
OTHER_DTYPE = "layers measured in another dtype: "  # the same for a dtype
FROM_OTHER_DTYPE = 0.2  # least residual of such a law: FP8 from BF16 on an H100 (tests/engine/test_gemm.py)
WHAT_THEN = "measure the table `moe`, or take `gemm: calibrated`, by which every expert is a separate GEMM"
_LEAST_FACTOR = 0.05  # a fit that is farther from the roofline has its cost elsewhere
_MOST_LOADS = 1024  # of dies whose measured corrections are kept: those of the layers and policies of a few runs
OCTAVES_OF_EXPERTS = 0.25  # weight of the number of experts, against hidden and ffn, in the distance between shapes


class GroupedTimes(NamedTuple):
    """Times of dies and their parts, in ns; arrays are float64[die] but for ``extrapolated``."""

    pairs: np.ndarray  # of the die
    ns: np.ndarray  # the sum of launch_ns to excess_ns
    launch_ns: np.ndarray  # of the kernel
    multiply_ns: np.ndarray  # FLOP at the die's peak
    inefficiency_ns: np.ndarray  # what the kernels lose against it
    permute_ns: np.ndarray  # permute, quantise and finalise: by token and pair
    expert_ns: np.ndarray  # of every expert
    excess_ns: np.ndarray  # what the p-norm adds to the FLOP for bytes
    low: np.ndarray  # relative uncertainty, from the 5 % residual
    high: np.ndarray  # the same from the 95 % residual
    extrapolated: np.ndarray  # bool[die]

    def slower(self, factor: float) -> GroupedTimes:
        """The times of kernels ``factor`` times as long but for the launch; the added time counts as inefficiency."""
        if factor == 1:
            return self
        more_ns = np.maximum((factor - 1) * (self.ns - self.launch_ns), self.multiply_ns - self.ns + self.launch_ns)
        return self._replace(ns=self.ns + more_ns, inefficiency_ns=self.inefficiency_ns + more_ns)


class GroupedLaw:
    """The law of dies that run experts of a model with these sizes.

    ``local``: experts of each die of a group in which every die sees all tokens; None: dies behind a dispatch, which
    see the tokens that they receive. ``tables``: the candidates, preferred first, in words ``named``; ``measured``:
    whether the shape was. ``launched``: whether a kernel is launched as on the measured GPU; ``idle_ns``: time of a die
    without pairs, its launch. ``factor``: of kernels that are not the measured ones. Raises LawMissing if the
    calibration has no table for the dtype, or no peak.
    """

    def __init__(
        self,
        calibration: CalibrationSpec,
        sizes: moe.MoeSizes,
        local: float | None,
        dtype: str,
        rates: gemm.Rates | None = None,
        library: str | None = None,
        launched: bool = True,
        factor: float = 1.0,
    ):
        self._factor, self._launched = factor, launched
        self._calibration, self._sizes = calibration, sizes
        every, own_dtype = tables_of(calibration, dtype, library)
        if local is not None:  # a whole layer that was measured behind a dispatch does not take in all tokens
            parts = PARTS_OF_LAYERS
            every = [table for table in every if table.seen == "group" or table.library in parts] or every
        self.tables = _nearest(every, sizes)
        self.measured = own_dtype and _shape(self.tables[0]) == (sizes.hidden, sizes.ffn)
        names = ", ".join(f"{name_of_table(table)} {table.model}" for table in self.tables)
        self.named = names if self.measured else (NEAREST if own_dtype else OTHER_DTYPE) + names
        self._ranks = [_rank(table, sizes, local, self.measured) for table in self.tables]
        self._measured_at = lru_cache(maxsize=_MOST_LOADS)(partial(_measured_at, self._ranks))
        self._set_rates(rates)
        residuals = [_residual(table, self.tables) for table in self.tables]
        if not self.measured:
            carried_over = between_shapes(calibration, every, self.tables[0])
            residuals = [(min(low, carried_over[0]), max(high, carried_over[1])) for low, high in residuals]
        self._low, self._high = np.maximum(-np.array(residuals)[:, 0], 0.0), np.maximum(np.array(residuals)[:, 1], 0.0)

    def __deepcopy__(self, memo: dict[int, Any]) -> GroupedLaw:
        """Itself, as it never changes."""
        return self

    def on(self, rates: gemm.Rates | None, factor: float | None = None, kernels: Kernels | None = None) -> GroupedLaw:
        """The law of a die with other rates and kernels (None: the same); what was measured is found once for all."""
        law = copy(self)
        law._factor = self._factor if factor is None else factor
        law._set_rates(rates, self._of_kernels if kernels is None else kernels)
        return law

    def _set_rates(self, rates: gemm.Rates | None, kernels: Kernels = AS_MEASURED) -> None:
        self._of_kernels = kernels
        parts = self._sizes, self._calibration, rates, self._launched, kernels
        self._kernels = [_kernel(table, *parts) for table in self.tables]
        self.idle_ns = min(kernel.launch_ns for kernel in self._kernels)

    def times(
        self, pairs: np.ndarray, active: np.ndarray, tokens: np.ndarray | None = None, die: np.ndarray | None = None
    ) -> GroupedTimes:
        """Of dies with these pairs, active experts and distinct tokens, float64[die] above 0 each. ``die``: which they
        are, int64[die], of a law on unequal dies.

        ``tokens`` None, where dies see all of them: as many as give every die of the group as many pairs.
        """
        return self._times(pairs, active, tokens, die, *self._measured_at(pairs.tobytes(), active.tobytes()))

    def side_by_side(
        self, rates: gemm.Rates, pairs: np.ndarray, active: np.ndarray, tokens: np.ndarray | None
    ) -> GroupedTimes:
        """`times` of the same dies on machines of rates float64[machine]: float64[machine · die]."""
        machines = len(rates.peak_flop_per_s)
        law = self.on(rates.map(lambda each: np.repeat(each, len(pairs))))
        known = [np.tile(each, machines) for each in self._measured_at(pairs.tobytes(), active.tobytes())]
        many, none = partial(np.tile, reps=machines), tokens is None
        return law._times(many(pairs), many(active), None if none else many(tokens), None, *known)

    def _times(self, pairs, active, tokens, die, begun, covered, corrections) -> GroupedTimes:
        """``begun``, ``covered``, ``corrections``: [table, die], see `_measured_at`."""
        kernels = [kernel.of(die) for kernel in self._kernels]
        both = zip(self._ranks, kernels, strict=True)
        parts = np.stack([kernel.parts_ns(pairs, active, *rank.seen(pairs, active, tokens)) for rank, kernel in both])
        parts *= corrections[:, None]
        total = parts.sum(axis=1)
        chosen = np.where(begun.any(axis=0), np.where(begun, total, np.inf).argmin(axis=0), 0)
        row = np.arange(len(pairs))
        launch, flop, permute, expert, excess = parts[chosen, :, row].T
        multiply = np.minimum(flop, pairs * kernels[0].least_ns)
        outside = ~covered[chosen, row] | (not self.measured)
        uncertain = self._low[chosen], self._high[chosen], outside
        found = GroupedTimes(
            pairs, total[chosen, row], launch, multiply, flop - multiply, permute, expert, excess, *uncertain
        )
        return found.slower(self._factor)


class Vectors(NamedTuple):
    """Vector units of a die: lanes, each an element a cycle, and their clock; 0 lanes: not known."""

    lanes: int = 0
    clock_hz: float = 0.0


NO_LANES = Vectors()
# Operations on an element: a copy; SwiGLU with its sigmoid (about ten), maximum, scale and conversion; a product and a
# sum.
_OPERATIONS = Kernels(permute=1.0, quantise=14.0, finalise=2.0)


def kernel_bounds(
    calibration: CalibrationSpec,
    sizes: moe.MoeSizes,
    dtype: str,
    rates: gemm.Rates,
    slowest: tuple[float, float],
    vectors: Vectors = NO_LANES,
    library: str | None = None,
) -> dict[str, tuple[float, float]]:
    """What `Kernels` of a die that is no GPU may be: part → (least, most), around 1.

    One witness is the roofline: no kernel is faster than its bytes through the HBM and its operations in the vector
    lanes, or FLOP over peak. The other are measured GPUs: most kernels reach more than ``slowest``, shares of the
    roofline (of vectors and of products). 1 is what the calibration's GPU reaches, scaled to the die; the parts are
    those of one token and one pair. Raises LawMissing.
    """
    table = _nearest(tables_of(calibration, dtype, library)[0], sizes)[0]
    kernel = _kernel(table, sizes, calibration, rates, False, AS_MEASURED)
    layer = scaling.MeasuredLayer(sizes.hidden, sizes.ffn, table.dtype, rates.hbm_bytes_per_s)
    token, pair = shares_of_bytes(layer)
    elements = Kernels(2 * sizes.hidden, sizes.hidden + sizes.ffn, sizes.hidden, 0.0)
    found = {}
    for part in Kernels._fields[:3]:
        share_of_token, share_of_pair = getattr(token, part), getattr(pair, part)
        n_bytes = share_of_token * scaling.token_bytes(layer) + share_of_pair * scaling.pair_bytes(layer)
        roofline_ns = n_bytes / rates.hbm_bytes_per_s * NS_PER_S
        if vectors.lanes:
            cycles = getattr(elements, part) * getattr(_OPERATIONS, part) / vectors.lanes
            roofline_ns = max(roofline_ns, cycles / vectors.clock_hz * NS_PER_S)
        measured_ns = share_of_token * kernel._token_ns + share_of_pair * kernel._pair_ns
        found[part] = _around_one(roofline_ns, measured_ns, slowest[0])
    found["multiply"] = _around_one(kernel.least_ns, kernel._flop_ns, slowest[1])
    return found


def _around_one(roofline_ns: float, measured_ns: float, slowest: float) -> tuple[float, float]:
    """Least and most over the measured time, which a fit may put beyond either."""
    if not measured_ns > 0 or not roofline_ns > 0:
        return 1.0, 1.0
    least, most = min(1.0, roofline_ns / measured_ns), max(1.0, roofline_ns / slowest / measured_ns)
    return max(least, _LEAST_FACTOR), min(most, 1 / _LEAST_FACTOR)


def tables_of(calibration: CalibrationSpec, dtype: str, library: str | None) -> tuple[list[MoeTable], bool]:
    """Balanced tables: newest of each library, kernel, shape; whether of this dtype. Raises LawMissing."""
    there = [table for table in calibration.moe if table.distribution == rank_load.BALANCED and not table.eplb_slots]
    stands = STAND_IN.get(dtype)
    if stands and not any(table.dtype == dtype for table in there):
        dtype = stands
    # A law that reads faster than the HBM was fitted to layers that did not read every active expert.
    there = [table for table in there if table.law.bytes_per_s <= calibration.reference.hbm_bytes_per_s]
    own_dtype = any(table.dtype == dtype for table in there)
    if not own_dtype and library is None:
        there = _as_if_of(dtype, there, calibration)
    try:
        found = matching(calibration.gpu, "fused MoE", there, {"dtype": dtype, "library": library})
    except LawMissing as missing:
        raise LawMissing(f"{missing}; {WHAT_THEN}") from None
    whole = [table for table in found if table.library not in PARTS_OF_LAYERS]
    if library is None and whole:
        found = whole
    kinds: dict[tuple, list[MoeTable]] = {}
    for table in found:
        kinds.setdefault((table.library, table.kernel, table.model.lower()), []).append(table)
    return [newest(tables) for tables in kinds.values()], own_dtype


def _as_if_of(dtype: str, tables: Sequence[MoeTable], calibration: CalibrationSpec) -> list[MoeTable]:
    """Tables of the first of OTHERS that there is, as if measured in ``dtype``; without one, the tables as they are."""
    peaks = calibration.reference.peak_flop_per_s
    for other in OTHERS.get(dtype, ()):
        found = [table for table in tables if table.dtype == other]
        if found and dtype in peaks and other in peaks:
            faster = peaks[dtype] / peaks[other]
            return [_in_other(dtype, table, faster) for table in found]
    return list(tables)


def _in_other(dtype: str, table: MoeTable, faster: float) -> MoeTable:
    law = table.law.model_copy(update={"flop_per_s": table.law.flop_per_s * faster})
    unseen = table.unseen.model_copy(
        update={"p05": min(table.unseen.p05, -FROM_OTHER_DTYPE), "p95": max(table.unseen.p95, FROM_OTHER_DTYPE)}
    )
    return table.model_copy(update={"dtype": dtype, "law": law, "unseen": unseen})


def name_of_table(table: MoeTable) -> str:
    """``trtllm 1.3.0 cutlass``."""
    return " ".join(part for part in (table.library, table.version, table.kernel) if part)


def _shape(table: MoeTable) -> tuple[int, int]:
    return table.hidden, table.ffn


def _far(table: MoeTable, sizes: moe.MoeSizes) -> float:
    """Distance between shapes, in octaves."""
    shape = abs(np.log2(table.hidden / sizes.hidden)) + abs(np.log2(table.ffn / sizes.ffn))
    return float(shape + OCTAVES_OF_EXPERTS * abs(np.log2(table.experts / sizes.experts)))


def _nearest(tables: Sequence[MoeTable], sizes: moe.MoeSizes) -> list[MoeTable]:
    """All tables of the shape nearest to these sizes, the one with most points first."""
    least = min(_far(table, sizes) for table in tables)
    near = [table for table in tables if _far(table, sizes) <= least + 1e-9]
    return sorted(near, key=lambda table: (-(len(table.ranks) * len(table.tokens)), table.library, table.kernel))


def _residual(table: MoeTable, others: Sequence[MoeTable]) -> tuple[float, float]:
    """5 % and 95 % residual of EP sizes that were left out; of the widest of the others where too few were measured."""
    if table.unseen.points:
        return table.unseen.p05, table.unseen.p95
    return min(each.unseen.p05 for each in others), max(each.unseen.p95 for each in others)


def between_shapes(calibration: CalibrationSpec, tables: Sequence[MoeTable], like: MoeTable) -> tuple[float, float]:
    """5 % and 95 % of measured / predicted - 1 of a library and kernel by its nearest other shape; (0, 0) without."""
    found = []
    for table in tables:
        others = [each for each in tables if _shape(each) != _shape(table) and _kind(each) == _kind(table)]
        if others and _kind(table) == _kind(like):
            found.append(_off(calibration, table, others))
    if not found:
        return 0.0, 0.0
    low, high = np.quantile(np.concatenate(found), (0.05, 0.95))
    return float(low), float(high)


def _kind(table: MoeTable) -> tuple[str, str]:
    return table.library, table.kernel


def _off(calibration: CalibrationSpec, table: MoeTable, others: Sequence[MoeTable]) -> np.ndarray:
    """Measured / predicted - 1 of one table by the nearest of the others, float64[point]."""
    sizes = moe.MoeSizes(table.hidden, table.ffn, table.experts, table.top_k)
    law, found = _nearest(others, sizes)[0], []
    for name in table.ranks:
        ep, tp = shape_of(name)
        if tp == 1:
            local = table.experts / ep
            pairs = np.array(table.tokens) * table.top_k / ep
            active = np.minimum(local, np.maximum(pairs, 1.0))
            own, other = (
                _parts_ns(calibration, each, sizes, AsMeasured(each, sizes, local, each is table), pairs, active)
                for each in (table, law)
            )
            found.append(own.sum(axis=0) / other.sum(axis=0) - 1)
    return np.concatenate(found)


def _parts_ns(calibration, table: MoeTable, sizes: moe.MoeSizes, rank: AsMeasured, pairs, active) -> np.ndarray:
    """Of a rank of the measured GPU: see ``DieKernel.parts_ns``."""
    kernel = _kernel(table, sizes, calibration, None, True)
    return kernel.parts_ns(pairs, active, *rank.seen(pairs, active, None)) * rank.measured_at(pairs, active)[2]


def _kernel(
    table: MoeTable,
    sizes: moe.MoeSizes,
    calibration: CalibrationSpec,
    rates,
    launched: bool,
    kernels: Kernels = AS_MEASURED,
) -> DieKernel:
    return DieKernel(
        table, sizes, calibration.reference, gemm.scale_to(calibration, table.dtype, rates), launched, kernels
    )


def _rank(table: MoeTable, sizes: moe.MoeSizes, local: float | None, measured: bool) -> AsMeasured | Received:
    return Received(table, measured) if local is None else AsMeasured(table, sizes, local, measured)


def _measured_at(ranks: Sequence[AsMeasured | Received], pairs: bytes, active: bytes) -> tuple[np.ndarray, ...]:
    """Whether tables have begun, and cover, these dies, bool[table, die]; measured over law, float64[table, die]."""
    load = np.frombuffer(pairs), np.frombuffer(active)
    found = zip(*(rank.measured_at(*load) for rank in ranks), strict=True)
    return tuple(np.stack(each) for each in found)
