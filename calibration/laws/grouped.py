"""The experts of a die as one grouped kernel: fitted laws of fused MoE layers, for a rank's pairs and active experts.

A die is a rank of an expert-parallel group that has ``experts / local`` of them. Its time is (``MoeLaw``; pairs of the
rank, tokens of the group that would give every rank as many)

    correction · (launch + tokens and pairs + experts + p-norm of FLOP over rate and bytes over bandwidth)

On another die FLOP scale with the peak, and what moves bytes (weights, pairs, tokens) with the HBM; the cost of an
expert with whichever of the two gained less; the launch is software and does not scale. A die that its command
processor launches has the law without the launch.

Without a library by name, the time is that of the fastest library measured with these pairs or with fewer (each in its
newest version, every kernel apart): above its last point a library goes on as its law does, so that time does not jump
where one was measured no further. Where none was measured, it is that of the table with most points. A model that was
not measured has the law of the measured shape nearest to it, with its own sizes; what moves vectors is then in
proportion to their size. FP8 that was not measured has the law of the other scaling or of a wider dtype, with the bytes
of its own weights and the rate at its own peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibration.laws.choosing import PARTS_OF_LAYERS, LawMissing, matching, newest
from calibration.laws.expert_gemm import Rates, Scale, scale_to
from calibration.laws.fused_moe import SLICES, measured_corrections, named_of
from calibration.laws.gemm import NS_PER_S, OPERAND_BYTES
from calibration.laws.laws import MoeSizes
from calibration.laws.rank_load import BALANCED, rank_loads, routing_of
from calibration.laws.tables import CalibrationSpec, MoeTable, shape_of

STAND_IN = {"fp16": "bf16", "bf16": "fp16"}  # as fast as each other
OTHERS = {"fp8": ("fp8_block", "bf16", "fp16"), "fp8_block": ("fp8", "bf16", "fp16")}  # preferred first
NEAREST = "nearest measured shape: "  # begins ``named`` for a model that was not measured
OTHER_DTYPE = "layers measured in another dtype: "  # the same for a dtype
FROM_OTHER_DTYPE = 0.2  # least residual of such a law: FP8 from BF16 on an H100 (tests/engine/test_grouped.py)
WHAT_THEN = "measure the table `moe`, or take `gemm: calibrated`, by which every expert is a GEMM of its own"
OCTAVES_OF_EXPERTS = 0.25  # weight of the number of experts, against hidden and ffn, in the distance between shapes


class GroupedTimes(NamedTuple):
    """Times of dies, float64[die] in ns each, for ``pairs`` float64[die].

    ``ns`` is the sum of ``launch_ns``, ``flop_ns``, ``pair_ns``, ``expert_ns`` and ``excess_ns`` (what the p-norm adds
    to the FLOP). ``multiply_ns``: FLOP over the law's rate, without the correction. ``low``, ``high``: relative
    uncertainty, from the 5 % and 95 % residual. ``extrapolated``: bool[die].
    """

    pairs: np.ndarray
    ns: np.ndarray
    launch_ns: np.ndarray
    flop_ns: np.ndarray
    pair_ns: np.ndarray
    expert_ns: np.ndarray
    excess_ns: np.ndarray
    multiply_ns: np.ndarray
    low: np.ndarray
    high: np.ndarray
    extrapolated: np.ndarray


class GroupedLaw:
    """The law of dies with ``local`` experts each, of a model with these sizes.

    ``tables``: the candidates, preferred first, in words ``named``; ``measured``: whether the shape was.
    ``launched``: whether a kernel is launched as on the measured GPU. Raises LawMissing if the calibration has no
    table for the dtype, or no peak.
    """

    def __init__(
        self,
        calibration: CalibrationSpec,
        sizes: MoeSizes,
        local: float,
        dtype: str,
        rates: Rates | None = None,
        library: str | None = None,
        launched: bool = True,
    ):
        every, own_dtype = tables_of(calibration, dtype, library)
        self.tables = _nearest(every, sizes)
        self.measured = own_dtype and _shape(self.tables[0]) == (sizes.hidden, sizes.ffn)
        names = ", ".join(f"{name_of_table(table)} {table.model}" for table in self.tables)
        self.named = names if self.measured else (NEAREST if own_dtype else OTHER_DTYPE) + names
        scale = scale_to(calibration, self.tables[0], rates)
        self._laws = [_Die(table, sizes, local, scale, launched, self.measured) for table in self.tables]
        residuals = [_residual(table, self.tables) for table in self.tables]
        if not self.measured:
            carried_over = between_shapes(every, self.tables[0])
            residuals = [(min(low, carried_over[0]), max(high, carried_over[1])) for low, high in residuals]
        self._low, self._high = np.maximum(-np.array(residuals)[:, 0], 0.0), np.maximum(np.array(residuals)[:, 1], 0.0)

    def times(self, pairs: np.ndarray, active: np.ndarray) -> GroupedTimes:
        """Of dies with these pairs and active experts, float64[die] above 0 each."""
        parts = np.stack([law.parts_ns(pairs, active) for law in self._laws])
        multiply = np.stack([law.multiply_ns(pairs) for law in self._laws])
        total, begun = parts.sum(axis=1), np.stack([law.begun(pairs) for law in self._laws])
        ranked = np.where(begun, total, np.inf)
        chosen = np.where(begun.any(axis=0), ranked.argmin(axis=0), 0)
        die = np.arange(len(pairs))
        launch, flop, pair, expert, excess = parts[chosen, :, die].T
        covered = np.stack([law.covers(pairs) for law in self._laws])
        outside = ~covered[chosen, die] | (not self.measured)
        found = total[chosen, die]
        uncertain = self._low[chosen], self._high[chosen], outside
        return GroupedTimes(pairs, found, launch, flop, pair, expert, excess, multiply[chosen, die], *uncertain)


class _Die:
    """The law of one table on one kind of die."""

    def __init__(self, table: MoeTable, sizes: MoeSizes, local: float, scale: Scale, launched: bool, measured: bool):
        law, weights = table.law, sizes.hidden * sizes.ffn
        wider = sizes.hidden / table.hidden
        slower = min(scale)
        self._order, self._local = law.order, local
        self._launch_ns = law.launch_ns if launched else 0.0
        self._floor_ns = law.floor_ns if launched else 0.0
        experts, top_k = (table.experts, table.top_k) if measured else (sizes.experts, sizes.top_k)
        self._tokens = experts / local / top_k  # of the group, for one pair of the rank
        self._pair_ns = (law.ns_per_pair + law.ns_per_token * self._tokens) * wider / scale.memory
        self._expert_ns = law.ns_per_expert / slower
        self._flop_ns = 2 * SLICES * weights / (law.flop_per_s * scale.compute) * NS_PER_S
        n_bytes = SLICES * weights * OPERAND_BYTES[table.dtype]
        self._bytes_ns = n_bytes / (law.bytes_per_s * scale.memory) * NS_PER_S
        ep = table.experts / local
        tokens = np.array(table.tokens)
        pairs, _ = rank_loads(named_of(table), routing_of(table), law, np.full(len(tokens), ep), tokens)
        self._axis, self._corrections = np.log(pairs), _corrections_at(table, ep) if measured else 0.0 * pairs
        ranks = [shape_of(name)[0] for name in table.ranks if shape_of(name)[1] == 1]
        self._known = bool(ranks) and min(ranks) * 0.99 <= ep <= max(ranks) * 1.01
        self._first, self._last = pairs[0] * 0.99, pairs[-1] * 1.01

    def begun(self, pairs: np.ndarray) -> np.ndarray:
        """bool[die]: within the measured EP sizes, and at or above the fewest tokens."""
        return self._known & (pairs >= self._first)

    def covers(self, pairs: np.ndarray) -> np.ndarray:
        """bool[die]: within the measured EP sizes and tokens."""
        return self.begun(pairs) & (pairs <= self._last)

    def multiply_ns(self, pairs: np.ndarray) -> np.ndarray:
        """FLOP over the law's rate, float64[die]."""
        return pairs * self._flop_ns

    def parts_ns(self, pairs: np.ndarray, active: np.ndarray) -> np.ndarray:
        """float64[5, die]: launch, FLOP, pairs, experts, and what the p-norm adds to the FLOP."""
        flop_ns, bytes_ns = pairs * self._flop_ns, active * self._bytes_ns
        longer = np.maximum(flop_ns, bytes_ns)
        both = longer * ((flop_ns / longer) ** self._order + (bytes_ns / longer) ** self._order) ** (1 / self._order)
        parts = np.stack(
            [
                np.full(len(pairs), self._launch_ns),
                flop_ns,
                pairs * self._pair_ns,
                np.maximum(active, self._local) * self._expert_ns,
                both - flop_ns,
            ]
        )
        if self._floor_ns:
            parts[0] += np.maximum(self._floor_ns - parts.sum(axis=0), 0.0)
        return parts * np.exp(np.interp(np.log(pairs), self._axis, self._corrections))


def tables_of(calibration: CalibrationSpec, dtype: str, library: str | None) -> tuple[list[MoeTable], bool]:
    """Balanced tables of the dtype, in the newest version of each library, kernel and shape; whether they were measured
    in it. Raises LawMissing.
    """
    there = [table for table in calibration.moe if table.distribution == BALANCED and not table.eplb_slots]
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


def _far(table: MoeTable, sizes: MoeSizes) -> float:
    """Distance between shapes, in octaves."""
    shape = abs(np.log2(table.hidden / sizes.hidden)) + abs(np.log2(table.ffn / sizes.ffn))
    return float(shape + OCTAVES_OF_EXPERTS * abs(np.log2(table.experts / sizes.experts)))


def _nearest(tables: Sequence[MoeTable], sizes: MoeSizes) -> list[MoeTable]:
    """All tables of the shape nearest to these sizes, the one with most points first."""
    least = min(_far(table, sizes) for table in tables)
    alike = [table for table in tables if _far(table, sizes) <= least + 1e-9]
    return sorted(alike, key=lambda table: (-_points(table), table.library, table.kernel))


def _points(table: MoeTable) -> int:
    return len(table.ranks) * len(table.tokens)


def _corrections_at(table: MoeTable, ep: float) -> np.ndarray:
    """Logarithms of measured over law at the table's tokens, for one EP size, float64[token]."""
    tokens = np.array(table.tokens)
    near = [float(shape_of(name)[0]) for name in table.ranks if shape_of(name)[1] == 1]
    ep = min(near, key=lambda each: abs(np.log(each / ep))) if near and not min(near) <= ep <= max(near) else ep
    return measured_corrections(table, np.full(len(tokens), ep), np.ones(len(tokens)), tokens)


def _residual(table: MoeTable, others: Sequence[MoeTable]) -> tuple[float, float]:
    """5 % and 95 % residual of EP sizes that were left out; of the widest of the others where too few were measured."""
    if table.unseen.points:
        return table.unseen.p05, table.unseen.p95
    return min(each.unseen.p05 for each in others), max(each.unseen.p95 for each in others)


def between_shapes(tables: Sequence[MoeTable], like: MoeTable) -> tuple[float, float]:
    """5 % and 95 % of measured / predicted - 1, where the tables of a library and kernel are predicted by the law of
    its nearest other shape, at all measured tokens and EP sizes; (0, 0) if it has no other.
    """
    found = []
    for table in tables:
        others = [each for each in tables if _shape(each) != _shape(table) and _kind(each) == _kind(table)]
        if others and _kind(table) == _kind(like):
            found.append(_off(table, others))
    if not found:
        return 0.0, 0.0
    low, high = np.quantile(np.concatenate(found), (0.05, 0.95))
    return float(low), float(high)


def _kind(table: MoeTable) -> tuple[str, str]:
    return table.library, table.kernel


def _off(table: MoeTable, others: Sequence[MoeTable]) -> np.ndarray:
    """Measured / predicted - 1 of one table by the nearest of the others, float64[point]."""
    sizes = MoeSizes(table.hidden, table.ffn, table.experts, table.top_k)
    law, found = _nearest(others, sizes)[0], []
    for name in table.ranks:
        ep, tp = shape_of(name)
        if tp == 1:
            local = table.experts / ep
            pairs = np.array(table.tokens) * table.top_k / ep
            active = np.minimum(local, np.maximum(pairs, 1.0))
            own, other = (
                _Die(each, sizes, local, Scale(1.0, 1.0), True, each is table).parts_ns(pairs, active).sum(axis=0)
                for each in (table, law)
            )
            found.append(own / other - 1)
    return np.concatenate(found)
