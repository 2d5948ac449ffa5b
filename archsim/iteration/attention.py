"""Attention by kind: what each keeps, what it computes, and how long that takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from archsim.base.errors import SpecError
from archsim.base.units import DTYPES, NS_PER_S, NS_PER_US, WEIGHT_BYTES
from archsim.laws.attention import (
    AttentionGrid,
    AttentionSizes,
    attention_grid,
    choose_attention,
    grid_ns,
    outside,
)
from archsim.laws.gemm import Rates
from archsim.laws.laws import Laws
from archsim.laws.tables import BlockTable, CalibrationSpec, LawMissing
from archsim.specs.calibration_files import siblings_of
from archsim.specs.deployment import BF16, Precision
from archsim.specs.model import AttentionKind

# ---- roofline
# Times of a kind that nobody measured on a GPU: a roofline with a stated range.
#
# The rates are shares of the datasheet's that measured kernels of the same family reach; prompts reach less. Measured
# rules (delta nets and KDA on four GPUs, Mamba-2's scan on B200) take 0.4 to 1.4 times it in decode and 0.2 to 3 in
# prefill.

# Shares of the peak of BF16 and of HBM's bandwidth, the part of both that prompts reach, and a launch: medians over the
# kernels of the set of linear attention.
COMPUTE_SHARE, MEMORY_SHARE, OF_PROMPTS, LAUNCH_NS = 0.35, 0.5, 0.4, 5000.0
RANGE = 3.0  # measured times lie between 1 / RANGE and RANGE of it


@dataclass(frozen=True, eq=False)
class RooflineTimes:
    """``AttentionTimes`` by FLOP and bytes alone; everything is outside what was measured."""

    kind: str
    work: Callable[..., tuple[np.ndarray, np.ndarray]]
    phase: str
    tp: int
    kv_dtype: str
    flop_per_s: float
    bytes_per_s: float
    library: str = "roofline"
    whole: bool = False

    @property
    def note(self) -> str:
        return f"{self.kind} attention: a roofline, not measured; the time may be {RANGE:g} times less or more"

    def ns(self, requests: ArrayLike, new: ArrayLike, context: ArrayLike) -> np.ndarray:
        requests = np.asarray(requests, float)
        flop, moved = self.work(self.phase, self.tp, requests, new, context, self.kv_dtype)
        ns = LAUNCH_NS + np.maximum(flop / self.flop_per_s, moved / self.bytes_per_s) * NS_PER_S
        return np.where(requests > 0, ns, 0.0)

    def outside(self, requests: ArrayLike, context: ArrayLike) -> np.ndarray:
        return np.ones(np.broadcast(np.asarray(requests), np.asarray(context)).shape, bool)


def roofline(
    kind: str,
    work: Callable[..., tuple[np.ndarray, np.ndarray]],
    laws: Laws,
    phase: str,
    tp: int,
    precision: Precision,
    rates: Rates | None,
) -> RooflineTimes:
    """A roofline with the rates of the calibration's GPU, or of the die that it stands for."""
    reference = laws.calibration.reference
    compute, memory = laws.scale_of("bf16", rates)
    part = OF_PROMPTS if phase == "prefill" else 1.0
    flop_per_s = reference.peak_flop_per_s["bf16"] * compute * COMPUTE_SHARE * part
    return RooflineTimes(
        kind, work, phase, tp, precision.kv, flop_per_s, reference.hbm_bytes_per_s * memory * MEMORY_SHARE * part
    )


# ---- recorded
# Times of a kind with measurements of its own: one record, from which its law, its range and its error follow.
#
# The law is a sum of terms with prices of at least 0: a launch, FLOP and bytes at the datasheet's rates, and tokens. It
# is fitted to relative errors, and judged on every point by the others.

FEWEST = 6  # points of a phase: more than terms


class AttentionPoint(NamedTuple):
    """``us`` that ``requests`` with ``new`` tokens each at the end of ``context`` took on one rank, without
    projections; ``phase``: prefill or decode.
    """

    phase: str
    requests: float
    new: float
    context: float
    us: float


@dataclass(frozen=True, eq=False)
class RecordedTimes:
    """``AttentionTimes`` of a kind's own points. ``prices``: float64[term]; ``most``, ``least``: of requests and of
    context, measured; ``error``: median, of points by all others.
    """

    kind: Any
    phase: str
    tp: int
    kv_dtype: str
    rates: tuple[float, float]
    prices: np.ndarray
    least: np.ndarray
    most: np.ndarray
    points: int
    error: float
    whole: bool = False

    @property
    def library(self) -> str:
        return f"measurements of {self.kind.kind}"

    @property
    def note(self) -> str:
        return (
            f"{self.kind.kind} attention, {self.phase}: {self.points} points of its own; "
            f"{self.error:.0%} off (median), each by the others"
        )

    def ns(self, requests: ArrayLike, new: ArrayLike, context: ArrayLike) -> np.ndarray:
        terms = _terms(self.kind, self.phase, self.tp, self.kv_dtype, self.rates, requests, new, context)
        return np.where(np.asarray(requests) > 0, terms @ self.prices, 0.0)

    def outside(self, requests: ArrayLike, context: ArrayLike) -> np.ndarray:
        at = np.stack(np.broadcast_arrays(np.asarray(requests, float), np.asarray(context, float)), axis=-1)
        return np.asarray(((at < self.least) | (at > self.most)).any(axis=-1))


def recorded(
    kind: Any, laws: Laws, phase: str, tp: int, precision: Precision, rates: Rates | None
) -> RecordedTimes | None:
    """Times from the points of a phase in ``kind.measurements``, which were measured on the calibration's GPU. None
    without points. Raises SpecError for fewer than FEWEST.
    """
    points = [AttentionPoint(*each) for each in kind.measurements if each[0] == phase]
    if not points:
        return None
    if len(points) < FEWEST:
        raise SpecError(f"attention of kind {kind.kind}: {len(points)} points of {phase}; a law needs {FEWEST}")
    reference = laws.calibration.reference
    here = reference.peak_flop_per_s["bf16"], reference.hbm_bytes_per_s
    scales = laws.scale_of("bf16", rates)
    there = here[0] * scales[0], here[1] * scales[1]
    _, requests, new, context, us = zip(*points, strict=True)
    terms = _terms(kind, phase, 1, precision.kv, here, requests, new, context)
    ns, every = np.array(us) * NS_PER_US, np.arange(len(points))
    others = [terms[at] @ _prices(terms[every != at], ns[every != at]) / ns[at] - 1 for at in every]
    measured = np.stack([requests, context], axis=-1).astype(float)
    return RecordedTimes(
        kind, phase, tp, precision.kv, there, _prices(terms, ns), measured.min(axis=0), measured.max(axis=0),
        len(points), float(np.median(np.abs(others))),
    )  # fmt: skip


def _terms(
    kind: Any, phase: str, tp: int, kv_dtype: str, rates: Sequence[float], requests: Any, new: Any, context: Any
) -> np.ndarray:
    """float64[..., term]"""
    requests, new, context = np.broadcast_arrays(*(np.asarray(each, float) for each in (requests, new, context)))
    flop, moved = kind.work(phase, tp, requests, new, context, kv_dtype)
    each = 1e3, flop / rates[0] * NS_PER_S, moved / rates[1] * NS_PER_S, requests * new
    return np.stack(np.broadcast_arrays(*each), axis=-1)


def _prices(terms: np.ndarray, ns: np.ndarray) -> np.ndarray:
    from scipy.optimize import nnls

    return nnls(terms / ns[:, None], np.ones(len(ns)))[0]


# ---- blocks
# Measured laws of sparse, compressed and linear attention: a sum of terms, each a quantity of work times its price.
#
# Kernels of a block follow each other, so their times add up: products, scores of an indexer, attention, and what goes
# by tokens, requests or context. Prices are at least 0 and were chosen on whole models and head counts that a fit had
# not seen (``calibration.fit.attention``). A sparse block has its projections; linear attention is its convolution and
# its rule (scan), without projections.

BLOCK, CONVOLUTION, RULE = "block", "convolution", "rule"
SHORT, LONG = "short", "long"  # reach of a table
PADDED_HEADS = 64  # to which FlashMLA's sparse kernel pads the heads of a rank (deepseek-ai/FlashMLA, README)
CHUNK_TOKENS = 64  # of a prompt, between which a linear attention passes its state on
LIBRARIES = ("vllm", "sglang", "trtllm")  # in order of preference, where none is named
_FASTER = {"bf16": 1.0, "fp16": 1.0, "fp8": 2.0, "nvfp4": 4.0}  # rate of products relative to BF16
BLACKWELL_FLOP_PER_S = 1.5e15  # of BF16: GPUs below do not multiply in FP4, and take FP8's rate


class GpuRates(NamedTuple):
    """Rates of a GPU: BF16 products, HBM; ``sms``: its multiprocessors."""

    flop_per_s: float
    bytes_per_s: float
    sms: int


def machine_of(calibration: CalibrationSpec, compute: float = 1.0, memory: float = 1.0) -> GpuRates:
    """Of a calibration's reference, scaled."""
    reference = calibration.reference
    peak = reference.peak_flop_per_s["bf16"]
    return GpuRates(peak * compute, reference.hbm_bytes_per_s * memory, reference.sms)


def block_terms(
    kind: Any, phase: str, hidden: int, tp: int, at: tuple[ArrayLike, ArrayLike, ArrayLike], dtypes: tuple[str, str],
    machine: GpuRates,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Terms of a block of sparse attention; ``at``: requests, new tokens, context; ``dtypes``: of products, of KV.

    Of products and attention ns at the datasheet's rates; of the others thousands.
    """
    requests, new, context = (np.asarray(each, float) for each in np.broadcast_arrays(*at))
    tokens, every = requests * new, requests * (new * (context - new) + new * (new + 1) / 2)
    faster = _FASTER[DTYPES[dtypes[0]].computes]
    if machine.flop_per_s < BLACKWELL_FLOP_PER_S:
        faster = min(faster, 2.0)
    products = np.zeros(tokens.shape)
    for product in kind.products(hidden, tp):
        if product.rows in ("tokens", phase):
            moved = product.n * product.k * WEIGHT_BYTES[dtypes[0]] + tokens * (product.n + product.k) * 2
            flop = 2 * tokens * product.n * product.k
            products += np.maximum(flop / (machine.flop_per_s * faster), moved / machine.bytes_per_s)
    work, index = kind.work(phase, tp, requests, new, context, dtypes[1]), kind.index_work(requests, new, context)
    heads = kind.heads / tp
    seconds = {
        "products": products,
        "attention_flop": (work.flop - index.flop) / machine.flop_per_s,
        "padded_flop": (work.flop - index.flop) / heads * PADDED_HEADS / machine.flop_per_s,
        "attention_bytes": (work.moved_bytes - index.moved_bytes) / machine.bytes_per_s,
        "index_flop": index.flop / (2 * machine.flop_per_s),
        "index_bytes": index.moved_bytes / machine.bytes_per_s,
    }
    near, first = np.minimum(context, kind.index_topk), np.minimum(new, kind.index_topk)
    few = requests * (first * (near - first) + first * (first + 1) / 2)  # while every token is chosen
    counts = {
        "tokens": tokens,
        "requests": requests,
        "context": requests * context,
        "scanned": tokens * context * (kind.index_topk > 0) / 1e3,
        "dense_pairs": every * heads / 1e3,
        "few_pairs": few * heads / 1e3,
        "pairs": every / 1e3,
        "rows": tokens * heads,
        "steps": new,
    }
    return _together(seconds, counts, tokens.shape)


def linear_terms(
    kind: Any, part: str, tp: int, at: tuple[ArrayLike, ArrayLike], machine: GpuRates
) -> dict[str, np.ndarray]:
    """Terms of a convolution or a rule; ``at``: requests, new tokens of each."""
    requests, new = (np.asarray(each, float) for each in np.broadcast_arrays(*at))
    tokens, channels = requests * new, kind.channels / tp
    if part == CONVOLUTION:
        seconds = {
            "values": tokens * channels * 4 / machine.bytes_per_s,
            "tail": requests * channels * 12 / machine.bytes_per_s,
        }
        return _together(seconds, {"tokens": tokens, "requests": requests, "steps": new}, tokens.shape)
    heads, state = kind.rule_heads / tp, kind.state_values / tp
    waves = requests * heads / machine.sms
    seconds = {
        "values": tokens * channels * 4 / machine.bytes_per_s,
        "states": np.ceil(new / CHUNK_TOKENS) * requests * state * 8 / machine.bytes_per_s,
        "state": requests * state * 8 / machine.bytes_per_s,
        "flop": tokens * (4 * state + 128 * heads * 256) / machine.flop_per_s,
    }
    counts = {
        "steps": new,
        "heads": requests * heads,
        "waves": new * np.maximum(waves, 1.0),
        "whole_waves": np.ceil(waves) * new,
    }
    return _together(seconds, counts, tokens.shape)


def _together(
    seconds: Mapping[str, np.ndarray], counts: Mapping[str, np.ndarray], shape: tuple[int, ...]
) -> dict[str, np.ndarray]:
    found = {"launch": np.full(shape, 1e3)}
    found |= {name: np.broadcast_to(value * NS_PER_S, shape) for name, value in seconds.items()}
    return found | {name: np.broadcast_to(value / 1e3, shape) for name, value in counts.items()}


def priced(terms: Mapping[str, np.ndarray], prices: Mapping[str, float]) -> np.ndarray:
    """The sum of terms x prices, ns."""
    return np.asarray(sum(price * terms[name] for name, price in prices.items()))


@dataclass(frozen=True, eq=False)
class BlockTimes:
    """``AttentionTimes`` of one or two measured tables."""

    kind: Any
    phase: str
    hidden: int
    tp: int
    dtypes: tuple[str, str]
    machine: GpuRates
    tables: tuple[BlockTable, ...]

    @property
    def library(self) -> str:
        return self.tables[0].library

    @property
    def whole(self) -> bool:
        return self.tables[0].part == BLOCK

    @property
    def note(self) -> str:
        whose = self.tables[0].scaled_from
        return f"{self.kind.kind} attention: the law of {whose}, at the rates of this GPU" if whose else ""

    def ns(self, requests: ArrayLike, new: ArrayLike, context: ArrayLike) -> np.ndarray:
        requests, new, context = np.broadcast_arrays(*(np.asarray(each, float) for each in (requests, new, context)))
        some, found = np.where(requests > 0, requests, 1.0), np.zeros(requests.shape)
        for table in self.tables:
            if table.reach != SHORT:
                found = found + self._of_table(table, some, new, context)
        for table in self.tables:
            if table.reach == SHORT:  # of a longer context it is the least: more context never takes less time
                most = most_short(self.kind)
                few = self._of_table(table, some, np.minimum(new, most), np.minimum(context, most))
                found = np.where(context <= most, few, np.maximum(few, found))
        return np.where(requests > 0, found, 0.0)

    def _of_table(self, table: BlockTable, requests: np.ndarray, new: np.ndarray, context: np.ndarray) -> np.ndarray:
        if table.part == BLOCK:
            at = requests, new, context
            terms = block_terms(self.kind, self.phase, self.hidden, self.tp, at, self.dtypes, self.machine)
        else:
            terms = linear_terms(self.kind, table.part, self.tp, (requests, new), self.machine)
        return np.maximum(priced(terms, table.prices), floor_ns(table.floors_ns, self.dtypes[0]))

    def _here(self, table: BlockTable, context: np.ndarray) -> np.ndarray:
        """bool: whether a table is of these contexts."""
        if not table.reach:
            return np.ones(context.shape, bool)
        return (context <= most_short(self.kind)) == (table.reach == SHORT)

    def outside(self, requests: ArrayLike, context: ArrayLike) -> np.ndarray:
        requests, context = np.broadcast_arrays(np.asarray(requests, float), np.asarray(context, float))
        beyond = np.zeros(requests.shape, bool)
        for table in self.tables:
            longest = context > table.most_context if table.part == BLOCK else np.zeros(context.shape, bool)
            far = (requests > table.most_requests) | longest | bool(table.scaled_from)
            beyond = beyond | (self._here(table, context) & far)
        return beyond


def most_short(kind: Any) -> float:
    """The longest context all of whose tokens every query attends to: ``index_topk`` entries of the cache."""
    return kind.index_topk * getattr(kind, "ratio", 1)


def floor_ns(floors: Mapping[str, float], products: str) -> float:
    """The least time for the dtype of products. Where that was not measured, the time of the slowest dtype; 0 without
    any.
    """
    return floors.get(products, max(floors.values(), default=0.0))


def block_times(
    kind: Any, laws: Laws, phase: str, hidden: int, tp: int, dtypes: tuple[str, str], library: str | None,
    rates: Rates | None,
) -> BlockTimes | None:  # fmt: skip
    """Times from the library's tables of ``kind.measured_as``. Without these, they come from another library's tables
    or from the nearest GPU that has any. None where there are none.
    """
    machine = machine_of(laws.calibration, *laws.scale_of("bf16", rates))
    for calibration in chain([laws.calibration], siblings_of(laws.calibration)):  # read only if it is needed
        if found := _tables_of(kind, phase, dtypes[1], library, calibration):
            if calibration is not laws.calibration:
                found = tuple(table.model_copy(update={"scaled_from": calibration.gpu}) for table in found)
            return BlockTimes(kind, phase, hidden, tp, dtypes, machine, found)
    return None


def _tables_of(
    kind: Any, phase: str, kv_dtype: str, library: str | None, calibration: CalibrationSpec
) -> tuple[BlockTable, ...]:
    there = [table for table in calibration.blocks if (table.kind, table.phase) == (kind.measured_as, phase)]
    for choice in dict.fromkeys((library, *LIBRARIES)):
        parts = []
        for part in kind.measured_parts:
            mine = [table for table in there if table.library == choice and table.part == part]
            stored = {table.kv_dtype for table in mine}
            dtype = kv_dtype if kv_dtype in stored else min(stored, default="")
            mine = sorted((table for table in mine if table.kv_dtype == dtype), key=lambda table: -table.unseen.points)
            parts.append(
                {table.reach: table for table in reversed(mine)}.values() if mine and mine[0].reach else mine[:1]
            )
        if all(parts):
            return tuple(table for part in parts for table in part)
    return ()


# ---- kind
# What a kind of attention tells an iteration: its products, its work, and how long its kernels take.
#
# A new kind is one class below ``Kind`` in a user's own file, named ``package.module:Class`` in a model file.

ACTIVATION_BYTES = 2  # hidden vectors, queries and outputs are BF16
PREFILL, DECODE = "prefill", "decode"
PHASES = (PREFILL, DECODE)


class Product(NamedTuple):
    """A product with k x n weights on a rank; ``rows``: all ``tokens``, those of a ``prefill`` or of a ``decode``."""

    n: int
    k: int
    rows: str = "tokens"


class Streams(NamedTuple):
    """Memory-bound kernels beside the products: ``kernels`` launches, ``values`` BF16 values moved a token."""

    kernels: int
    values: int


class Work(NamedTuple):
    """What the kernels of one attention do: float64 of the shape of the requests."""

    flop: np.ndarray
    moved_bytes: np.ndarray


class AttentionTimes(Protocol):
    """The kernels of one attention of one rank in one phase.

    ``library``: whose times they are. ``whole``: with the projections (a measured block), so that ``Kind.products`` and
    ``Kind.streams`` are not added. ``note``: what every page prints of them; empty for times that were measured.
    """

    @property
    def library(self) -> str: ...

    @property
    def whole(self) -> bool: ...

    @property
    def note(self) -> str: ...

    def ns(self, requests: ArrayLike, new: ArrayLike, context: ArrayLike) -> np.ndarray:
        """ns of ``requests`` with ``new`` tokens each at the end of ``context`` (which includes them); 0 for none."""
        ...

    def outside(self, requests: ArrayLike, context: ArrayLike) -> np.ndarray:
        """bool: outside what was measured."""
        ...


class Kind(AttentionKind):
    """A kind of attention that an iteration can time. Sizes are those of a rank that has 1/``tp`` of the heads.

    ``table``: kind of the measured tables that it takes (gqa, mla), None for none of them. ``measurements``: its own,
    (phase, requests, new tokens of each, context, us) of one rank (`archsim.iteration.attention.AttentionPoint`).
    """

    table: ClassVar[str | None] = None
    measurements: ClassVar[Sequence[tuple[str, float, float, float, float]]] = ()

    @property
    def measured_as(self) -> str | None:
        """Name of its kind in the section ``blocks`` of a calibration; None: it has no tables there."""
        return None

    @property
    def measured_parts(self) -> tuple[str, ...]:
        """The parts that its tables there have."""
        return (BLOCK,)

    def products(self, hidden: int, tp: int) -> tuple[Product, ...]:
        """Projections of one attention."""
        raise NotImplementedError

    def context_values(self, tp: int) -> tuple[int, int]:
        """Values of the queries and of the partial outputs of a token, of 1/``tp`` of the heads, that ranks exchange
        which share the tokens of a request. Raises SpecError for a kind whose cache is not divided that way.
        """
        raise SpecError(
            f"parallel.attention.context: attention of kind {self.kind} whose ranks share the tokens of a request is "
            "not modelled: its cache is no plain list of tokens. Leave context out"
        )

    def streams(self, tp: int) -> Streams:
        """Memory-bound kernels of one attention but for its norm: positions, gates, norms of heads."""
        return Streams(0, 0)

    def work(self, phase: str, tp: int, requests: ArrayLike, new: ArrayLike, context: ArrayLike, kv_dtype: str) -> Work:
        """FLOP and bytes of the kernels of ``requests``, without projections."""
        raise NotImplementedError

    def times(
        self,
        laws: Laws,
        phase: str,
        hidden: int,
        tp: int = 1,
        precision: Precision = BF16,
        *,
        library: str | None = None,
        rates: Rates | None = None,
    ) -> AttentionTimes:
        """Times of one kind of attention on a GPU, or on a die of ``rates``. They come from its own measurements, from
        those of its kind, or from a roofline. Raises LawMissing.
        """
        if own := recorded(self, laws, phase, tp, precision, rates):
            return own
        if self.measured_as is not None:
            dtypes = precision.products, precision.kv
            if found := block_times(self, laws, phase, hidden, tp, dtypes, library, rates):
                return found
        return roofline(self.kind, self.work, laws, phase, tp, precision, rates)


def pairs(new: ArrayLike, context: ArrayLike, most: float = np.inf) -> np.ndarray:
    """Query-key pairs of one request, causal, each query seeing its last ``most`` tokens: float64."""
    new, context = np.asarray(new, float), np.asarray(context, float)
    before = context - new
    growing = np.clip(most - before, 0.0, new)  # queries that see fewer than `most`
    full = new - growing
    return growing * before + growing * (growing + 1) / 2 + (full * most if np.isfinite(most) else 0.0)


# ---- measured
# Times of grouped and latent attention: a measured table and its law (``archsim.laws.attention``).


@dataclass(frozen=True, eq=False)
class MeasuredTimes:
    """``AttentionTimes`` of a table at the sizes of a rank."""

    grid: AttentionGrid
    note: str = ""
    whole: bool = False

    @property
    def library(self) -> str:
        return self.grid.table.library

    def ns(self, requests: ArrayLike, new: ArrayLike, context: ArrayLike) -> np.ndarray:
        return grid_ns(self.grid, requests, new, context)

    def outside(self, requests: ArrayLike, context: ArrayLike) -> np.ndarray:
        return outside(self.grid, requests, context)


def measured(
    laws: Laws, phase: str, sizes: AttentionSizes, precision: Precision, library: str | None, rates: Rates | None
) -> MeasuredTimes:
    """Times from the library's table, or from that of another library where it has none. Raises LawMissing."""
    try:
        table = choose_attention(laws.calibration, phase, sizes, precision.attention, precision.kv, library)
    except LawMissing:
        if library is None:
            raise
        table = choose_attention(laws.calibration, phase, sizes, precision.attention, precision.kv)
    grid = attention_grid(table, sizes, *laws.scale_of(table.dtype, rates))
    stands_in = phase == PREFILL and (table.dtype, table.kv_dtype) != (precision.attention, precision.kv)
    return MeasuredTimes(grid._replace(far=grid.far or stands_in))
