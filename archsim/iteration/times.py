"""The time of one iteration of serving on a rank, by cause: attention, projections, experts, all-reduces, host, ...

``iteration_laws`` gives the operators of a model's layers their times on a calibrated GPU; ``iteration_times``
evaluates them for one or many iterations. Everything that depends only on the number of tokens is tabulated, so that an
iteration costs a few look-ups and its attention. Causes follow each other: what runs beside what is
`archsim.iteration.overlap`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from archsim.base import errors, sums, units
from archsim.iteration.attention import DECODE, PREFILL, AttentionTimes, Kind
from archsim.iteration.collectives import all_reduce_ns, describe_gathered, gathered_ns
from archsim.iteration.experts import BALANCED, Experts
from archsim.iteration.layers import (
    ACTIVATION_BYTES,
    ALL_REDUCE,
    ATTENTION,
    CAUSES,
    DECODES,
    EXPERTS,
    HOST,
    LM_HEAD,
    PROMPTS,
    SAMPLED,
    TOKENS,
    Attention,
    Collective,
    LayerProduct,
    RoutedExperts,
    Stream,
    attentions,
    count_operators,
    dtype_of,
    program,
)
from archsim.iteration.links import Links
from archsim.iteration.roofline import roofline
from archsim.laws import gemm, tables, transfers
from archsim.laws.laws import Laws
from archsim.model.spec import ModelSpec
from archsim.specs.deployment import ALONE, BF16, Parallelism, Precision, refuse_uneven

MOST_TOKENS = 16384  # of the tables by tokens; more are interpolated along their last points
# A kernel as a node of a CUDA graph on an H200 (te42kyfo/gpu-benches, as in configs/calibrations/h200.yaml), where the
# calibration has none; and the share of HBM bandwidth that reads reach on an H100 (h100.yaml).
NODE_NS, HBM_SHARE = 1317.0, 0.82
OVER_LINKS = "Collectives of dies were not measured: their bytes pass the machine's own links, and sums take no time"


class Batches(NamedTuple):
    """Iterations of one rank's group (``tp`` ranks): float64[iteration] each."""

    decodes: np.ndarray  # requests
    decode_context: np.ndarray  # their mean context, the new token included
    chunks: np.ndarray  # chunks of prompts
    chunk_tokens: np.ndarray  # their mean new tokens
    chunk_context: np.ndarray  # the context that gives their mean attention work (`batches_of`)
    sampled: np.ndarray  # requests that get a token

    @property
    def tokens(self) -> np.ndarray:
        """New tokens, float64[iteration]."""
        return self.decodes + self.chunks * self.chunk_tokens

    def rows(self, which: str) -> np.ndarray:
        """float64[iteration] of what an operator's time depends on."""
        prompts = self.chunks * self.chunk_tokens
        return {TOKENS: self.tokens, DECODES: self.decodes, PROMPTS: prompts, SAMPLED: self.sampled}[which]


class IterationTimes(NamedTuple):
    """``ns``: cause → float64[iteration]; ``total_ns``: their sum; ``extrapolated``: share outside measured sizes."""

    ns: dict[str, np.ndarray]
    total_ns: np.ndarray
    extrapolated: np.ndarray


@dataclass(frozen=True, eq=False)
class IterationLaws:
    """Laws of one model on one GPU."""

    model: ModelSpec  # whose layers run
    parallel: Parallelism  # how ranks share them
    attention: Mapping[str, tuple[tuple[AttentionTimes, int], ...]]  # phase → (times, layers) of each kind
    # rows (`archsim.iteration.layers`) → cause → float64[rows] ns of all layers, from 0 rows on
    by: Mapping[str, Mapping[str, np.ndarray]]
    outside: Mapping[str, np.ndarray]  # rows → float64[rows] ns of them that are extrapolated
    sources: Mapping[str, str]  # cause → libraries whose times are used
    notes: tuple[str, ...] = ()  # what pages print of attention that was not measured

    @property
    def sizes(self) -> int:
        return len(self.outside[TOKENS])

    def ns(self, *causes: str, rows: str = TOKENS) -> np.ndarray:
        """float64[rows] of some causes together; 0 for those that the model lacks."""
        found = [ns for cause, ns in self.by[rows].items() if cause in causes] if rows in self.by else []
        return sums.sum(found, start=np.zeros(self.sizes))


def batches_of(new: ArrayLike, context: ArrayLike, iteration: ArrayLike = 0, iterations: int = 1) -> Batches:
    """Requests as batches: new tokens and context (which includes them) of each, int64[request], and its iteration.

    One new token after others is a decode, all else a prompt chunk. Decodes of several contexts take the time of as
    many of their mean context (2 % below the measured median of 327 mixed batches, LLMServingSim's profile of an RTX
    PRO 6000).
    """
    new, context, iteration = np.broadcast_arrays(*(np.asarray(values) for values in (new, context, iteration)))
    new, context, iteration = new.ravel().astype(float), context.ravel().astype(float), iteration.ravel()
    if np.any(new < 1) or np.any(context < new):
        raise ValueError("a request has at least one new token, and its context includes its new tokens")
    decode = (new == 1) & (context > 1)

    def total(values: np.ndarray, where: np.ndarray) -> np.ndarray:
        return np.bincount(iteration[where], values[where], iterations)

    one = np.ones_like(new)
    decodes, chunks = total(one, decode), total(one, ~decode)
    tokens, pairs = total(new, ~decode), total(new * (context - new) + new * (new + 1) / 2, ~decode)
    mean = np.maximum(tokens / np.maximum(chunks, 1), 1.0)
    seen = pairs / np.maximum(chunks, 1) / mean + (mean - 1) / 2
    return Batches(
        decodes,
        np.maximum(total(context, decode) / np.maximum(decodes, 1), 1.0),
        chunks,
        mean,
        np.maximum(seen, mean),
        decodes + chunks,
    )


def iteration_laws(
    model: ModelSpec,
    calibration: tables.CalibrationSpec,
    parallel: Parallelism = ALONE,
    precision: Precision = BF16,
    *,
    experts: Experts | None = BALANCED,
    moves: str | None = None,
    library: str | None = None,
    rates: gemm.Rates | None = None,
    links: Links | None = None,
    most_tokens: int = MOST_TOKENS,
) -> IterationLaws:
    """The laws of a model on ranks of a calibrated GPU, or of a die that it stands for.

    ``experts``: who times them; None: they are timed elsewhere, and ``iteration_times`` is given their time. ``moves``:
    of `archsim.iteration.layers.program`. ``library``: of attention, by default the one with most shapes; that of an
    engine, whose products are tuned. ``rates``: of the modelled die; ``links``: of its machine, whose collectives and
    host were not measured. Raises SpecError where sizes do not divide, LawMissing for what was not measured.
    """
    refuse_uneven(model, parallel)
    laws = Laws(calibration)
    attention = {
        phase: tuple(
            (_attention_times(laws, kind, phase, model, parallel, precision, library, rates, links), layers)
            for kind, layers in attentions(model)
        )
        for phase in (DECODE, PREFILL)
    }
    whole = {kind for (kind, _), (times, _) in zip(attentions(model), attention[DECODE], strict=True) if times.whole}
    timing = _Timing(laws, model, parallel, precision, experts, rates, most_tokens + 1, library is not None, links)
    by: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    outside = {rows: np.zeros(most_tokens + 1) for rows in (TOKENS, SAMPLED, DECODES, PROMPTS)}
    sources: dict[str, set[str]] = {ATTENTION: {times.library for found in attention.values() for times, _ in found}}
    operators = count_operators(program(model, parallel, whole, moves), one_dtype=not precision.kept)
    for operator, count in operators.items():
        found = timing.of(operator)
        if found is None:
            continue
        causes, ns = by[operator.rows], count * found.ns
        causes[operator.cause] = causes.get(operator.cause, 0.0) + ns
        outside[operator.rows] += ns * found.outside
        if found.library:
            sources.setdefault(operator.cause, set()).add(found.library)
    notes = dict.fromkeys(times.note for found in attention.values() for times, _ in found if times.note)
    for operator in operators:
        if isinstance(operator, Collective):
            text = describe_gathered(laws, operator.op, operator.ranks) if links is None else OVER_LINKS
            notes |= dict.fromkeys(filter(None, [text]))
    if links is not None:
        by[TOKENS][HOST] = links.host_ns(np.arange(most_tokens + 1))
    named = {cause: ", ".join(sorted(names)) for cause, names in sources.items()}
    return IterationLaws(model, parallel, attention, dict(by), outside, named, tuple(notes))


def _attention_times(
    laws: Laws, kind: Kind, phase: str, model: ModelSpec, parallel: Parallelism, precision: Precision,
    library: str | None, rates: gemm.Rates | None, links: Links | None,
) -> AttentionTimes:  # fmt: skip
    """Of one rank; ranks that share tokens decode all heads over their part. Raises SpecError for too many ranks."""
    tp, shared = parallel.tp, parallel.context

    def of_heads(heads_over: int) -> AttentionTimes:
        if rates is not None and rates.own is not None:
            return roofline(kind.kind, kind.work, laws, phase, heads_over, precision, rates)
        return kind.times(laws, phase, model.hidden, heads_over, precision, library=library, rates=rates)

    if shared == 1:
        return of_heads(tp)
    copies = tp // min(kind.kv_ranks(tp), tp)
    if shared > copies:
        raise errors.SpecError(
            f"parallel.attention.context: {shared} ranks: with tp {tp}, {copies} of them would hold the same keys and "
            f"values of {model.name}, and no more can share their tokens. Give context: {copies}"
            + ("" if copies > 1 else ", or leave it out")
        )
    kind.context_values(tp)  # refused where its cache is not divided so
    heads_over = tp // shared if phase == DECODE else tp
    found = of_heads(heads_over)
    entry_bytes = kind.kept_bytes_per_token(int(units.WEIGHT_BYTES[precision.kv])) / kind.kv_ranks(tp)
    sizes = np.geomspace(1e3, 1e10, 71)
    gather_ns = _collective_ns(laws, links, "all_gather", sizes, shared) if phase == PREFILL else np.zeros(0)
    gathered = np.log(np.maximum(gather_ns, 1e-9))  # above 0, as links may be free
    return SharedContext(found, phase, shared, entry_bytes, np.log(sizes), gathered)


def _collective_ns(laws: Laws, links: Links | None, op: str, size_bytes: np.ndarray, ranks: int) -> np.ndarray:
    """float64[size], by measured kernels or over ``links``."""
    if links is not None:
        return links.collective_ns(op, size_bytes, ranks)
    return (all_reduce_ns if op == ALL_REDUCE else partial(gathered_ns, op=op))(
        laws, size_bytes=size_bytes, ranks=ranks
    )


@dataclass(frozen=True, eq=False)
class SharedContext:
    """``AttentionTimes`` of ranks that share tokens: decodes read a part; prompt chunks gather earlier KV first."""

    times: AttentionTimes  # of a rank that has all tokens
    phase: str  # prefill or decode
    ranks: int  # that share the tokens
    entry_bytes: float  # of a token in the cache, on one rank
    ln_sizes: np.ndarray  # float64[size]: logarithms of gathered bytes
    ln_gathered: np.ndarray  # float64[size]: of their ns

    @property
    def library(self) -> str:
        return self.times.library

    @property
    def whole(self) -> bool:
        return self.times.whole

    @property
    def note(self) -> str:
        return self.times.note

    def ns(self, requests: ArrayLike, new: ArrayLike, context: ArrayLike) -> np.ndarray:
        if self.phase == DECODE:
            return self.times.ns(requests, new, np.maximum(np.asarray(context, float) / self.ranks, 1.0))
        requests, new, context = (np.asarray(each, float) for each in np.broadcast_arrays(requests, new, context))
        before_bytes = requests * (context - new) * self.entry_bytes
        ln_ns = np.interp(np.log(np.maximum(before_bytes, 1.0)), self.ln_sizes, self.ln_gathered)
        return self.times.ns(requests, new, context) + np.where(before_bytes > 0, np.exp(ln_ns), 0.0)

    def outside(self, requests: ArrayLike, context: ArrayLike) -> np.ndarray:
        part = self.ranks if self.phase == DECODE else 1
        return self.times.outside(requests, np.asarray(context, float) / part)


class _Timed(NamedTuple):
    """``ns``, ``outside``: by rows, from 0 on, of one operator; ``library``: of a table that was measured."""

    ns: np.ndarray
    outside: np.ndarray | float = 0.0
    library: str = ""


class _Timing(NamedTuple):
    """What gives operators their times."""

    laws: Laws  # of a calibrated GPU
    model: ModelSpec  # whose operators they are
    parallel: Parallelism  # how ranks share them
    precision: Precision  # of weights, products and KV
    experts: Experts | None  # who times routed experts; None: somebody else
    rates: gemm.Rates | None  # of the die; None: the GPU's
    sizes: int  # rows of the tables
    tuned: bool  # products, as in `dense_product`
    links: Links | None  # of a machine whose collectives were not measured

    def of(self, operator) -> _Timed | None:
        """None where it depends on more than rows, or is timed elsewhere."""
        if isinstance(operator, LayerProduct):
            return self._product(operator)
        if isinstance(operator, Stream):
            return self._stream(operator)
        if isinstance(operator, Collective):
            return self._collective(operator)
        if isinstance(operator, RoutedExperts) and self.experts is not None:
            found = self.experts.times(self.laws, self.model, self.parallel, self.precision.experts, self.sizes)
            layers = len(self.model.moe_layer_ids)
            return _Timed(found.ns / layers, found.outside, found.library)
        assert isinstance(operator, RoutedExperts | Attention)
        return None

    @property
    def _rows(self) -> np.ndarray:
        return np.arange(self.sizes)

    def _product(self, product: LayerProduct) -> _Timed:
        dtype = dtype_of(product, self.precision)
        if self.rates is not None and self.rates.own is not None:
            ns = own_product_ns(self.rates, product.n, product.k, dtype, self._rows / product.sharing)
            return _Timed(ns, np.ones(self.sizes))
        tuned = self.tuned and product.cause != LM_HEAD
        law = gemm.dense_product(self.laws.calibration, product.n, product.k, dtype, self.rates, tuned=tuned)
        rows = self._rows / product.sharing if product.sharing > 1 else self._rows
        return _Timed(law.ns(rows), law.outside(rows), law.table.library)

    def _stream(self, stream: Stream) -> _Timed:
        moved_ns = stream.row_bytes * self._rows / _read_bytes_per_s(self.laws, self.rates) * units.NS_PER_S
        own = self.rates.own if self.rates is not None else None
        launch_ns = own.latency_ns if own is not None else _launch_ns(self.laws)
        return _Timed(np.where(self._rows > 0, stream.kernels * launch_ns + moved_ns, 0.0))

    def _collective(self, given: Collective) -> _Timed:
        size = np.maximum(self._rows * given.row_bytes, 1)
        found = _collective_ns(self.laws, self.links, given.op, size, given.ranks)
        return _Timed(np.where(self._rows > 0, found, 0.0))


def own_product_ns(rates: gemm.Rates, n: int, k: int, dtype: str, rows: np.ndarray) -> np.ndarray:
    """float64[rows]: ``rows`` by k × n weights on a die with own kernels; narrower values multiply as much faster."""
    own, width = rates.own, units.WEIGHT_BYTES[dtype]
    assert own is not None, "asked where it has some"
    flop_per_s = rates.peak_flop_per_s * units.WEIGHT_BYTES[rates.dtype or dtype] / width * own.flop_share
    moved = n * k * width + rows * (n + k) * ACTIVATION_BYTES
    bytes_s = moved / (rates.hbm_bytes_per_s * own.byte_share)
    ns = own.latency_ns + np.maximum(2.0 * n * k * rows / flop_per_s, bytes_s) * units.NS_PER_S
    return np.where(rows > 0, ns, 0.0)


def iteration_times(
    laws: IterationLaws, batches: Batches, *, experts_ns: ArrayLike | None = None, host_ns: float = 0.0
) -> IterationTimes:
    """Times of iterations; those without requests take no time. ``experts_ns``: float64[iteration] of all MoE layers,
    in place of the law's; ``host_ns``: of the host, an iteration.
    """
    tokens = batches.tokens
    some = tokens > 0
    found = dict.fromkeys(CAUSES, np.zeros(len(tokens)))
    flagged = np.zeros(len(tokens))
    for rows, causes in laws.by.items():
        size = batches.rows(rows)
        for cause, table in causes.items():
            found[cause] = found[cause] + _looked_up(table, size)
        flagged = flagged + _looked_up(laws.outside[rows], size)
    groups = (
        (DECODE, batches.decodes, np.ones(len(tokens)), batches.decode_context),
        (PREFILL, batches.chunks, batches.chunk_tokens, batches.chunk_context),
    )
    for phase, requests, new, context in groups:
        for times, layers in laws.attention[phase] if requests.any() else ():
            ns = layers * times.ns(requests, new, context)
            found[ATTENTION] = found[ATTENTION] + ns
            flagged = flagged + ns * times.outside(requests, context)
    if experts_ns is not None:
        found[EXPERTS] = np.where(some, np.asarray(experts_ns, float), 0.0)
    found[HOST] = found[HOST] + np.where(some, host_ns, 0.0)
    total = sums.sum(found.values(), start=np.zeros(len(tokens)))
    return IterationTimes(found, total, flagged / np.where(some, total, 1.0))


def _looked_up(table: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Rows of a table by size 0, 1, 2, ...: float64[iteration, ...]; beyond its end along its last tenth. Fractions
    take the nearest row, above 0 at least row 1.
    """
    last = len(table) - 1
    at = np.minimum(np.where(size > 0, np.maximum(np.rint(size), 1), 0).astype(np.int64), last)
    found = table[at]
    over = size > last
    if over.any():
        before = last - max(last // 10, 1)
        slope = (table[last] - table[before]) / (last - before)
        more = np.where(over, size - last, 0.0)
        found = found + (more[:, None] * slope if table.ndim == 2 else more * slope)
    return found


def _launch_ns(laws: Laws) -> float:
    try:
        return laws.launch("graph_node").value
    except tables.LawMissing:
        return NODE_NS


def _read_bytes_per_s(laws: Laws, rates: gemm.Rates | None) -> float:
    share = transfers.hbm_reads(laws.calibration).efficiency or HBM_SHARE
    return share * (laws.calibration.reference.hbm_bytes_per_s if rates is None else rates.hbm_bytes_per_s)
