"""The time of one iteration of serving on a rank, by cause: attention, projections, experts, all-reduces, host, ...

``iteration_laws`` prepares the laws of a model on a calibrated GPU once; ``iteration_times`` evaluates them for one or
many iterations. Everything that depends only on the number of tokens is tabulated, so that an iteration costs two
look-ups and its attention. Causes follow each other: nothing overlaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from archsim.iteration import layers as parts
from archsim.iteration.attention.kind import DECODE, PREFILL, AttentionTimes
from archsim.specs.deployment import ALONE, BF16, Parallelism, Precision, refuse_uneven
from archsim.specs.model import ModelSpec
from calibration.laws.choosing import LawMissing
from calibration.laws.dense import dense_product
from calibration.laws.expert_gemm import Rates
from calibration.laws.laws import Laws, MoeSizes
from calibration.laws.memory import hbm_reads
from calibration.laws.piecewise import law_of
from calibration.laws.tables import CalibrationSpec, TransferTable

NS_PER_S = 1e9
MOST_TOKENS = 16384  # of the table by tokens; more are interpolated along its last points
# A kernel as a node of a CUDA graph on an H200 (te42kyfo/gpu-benches, as in configs/calibrations/h200.yaml), where the
# calibration has none; and the share of HBM bandwidth that reads reach on an H100 (h100.yaml).
NODE_NS, HBM_SHARE = 1317.0, 0.82
CAUSES = (
    *("attention", "projections", "dense_ffn", "router", "elementwise", "all_reduce"),
    *("lm_head", "sampling", "moe", "host"),
)
_BY_TOKENS = ("projections", "dense_ffn", "router", "elementwise", "all_reduce", "moe")
_BY_REQUESTS = ("lm_head", "sampling")


class Batches(NamedTuple):
    """Iterations of one rank's group (``tp`` ranks): float64[iteration] each.

    Decodes: number of requests and their mean context, the new token included. Prompt chunks: their number, mean new
    tokens, and the context that gives their mean attention work (``batches_of``). ``sampled``: requests that get a
    token.
    """

    decodes: np.ndarray
    decode_context: np.ndarray
    chunks: np.ndarray
    chunk_tokens: np.ndarray
    chunk_context: np.ndarray
    sampled: np.ndarray

    @property
    def tokens(self) -> np.ndarray:
        """New tokens, float64[iteration]."""
        return self.decodes + self.chunks * self.chunk_tokens


class IterationTimes(NamedTuple):
    """``ns``: cause → float64[iteration]; ``total_ns`` float64[iteration] is their sum.

    ``extrapolated``: share of the time that laws give outside their measured sizes, float64[iteration].
    """

    ns: dict[str, np.ndarray]
    total_ns: np.ndarray
    extrapolated: np.ndarray


@dataclass(frozen=True, eq=False)
class IterationLaws:
    """Laws of one model on one GPU. ``decode``, ``prefill``: (times, layers) of attention.

    ``by_tokens``: float64[tokens, cause] ns of ``_BY_TOKENS``, 0 tokens first, and last the part of their sum that is
    extrapolated; ``by_requests``: likewise of ``_BY_REQUESTS`` by sampled requests. ``decode_up``, ``prefill_up``:
    float64[tokens] ns of products from the latent vector; None without one. ``sources``: cause → libraries whose times
    are used. ``notes``: what pages print of attention that was not measured.
    """

    model: ModelSpec
    parallel: Parallelism
    decode: tuple[tuple[AttentionTimes, int], ...]
    prefill: tuple[tuple[AttentionTimes, int], ...]
    by_tokens: np.ndarray
    by_requests: np.ndarray
    decode_up: np.ndarray | None
    prefill_up: np.ndarray | None
    sources: dict[str, str]
    notes: tuple[str, ...] = ()


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
    calibration: CalibrationSpec,
    parallel: Parallelism = ALONE,
    precision: Precision = BF16,
    *,
    routing: str | None = "balanced",
    library: str | None = None,
    rates: Rates | None = None,
    most_tokens: int = MOST_TOKENS,
    combined_apart: bool | None = None,
) -> IterationLaws:
    """The laws of a model on ranks of a calibrated GPU.

    ``routing``: of the fused MoE law (``balanced``, ``power_law_1.2``, ...); None: experts are timed elsewhere, and
    ``iteration_times`` is given their time. ``library``: of attention; by default the one with most shapes. ``rates``:
    of the modelled die. ``combined_apart``: whether experts combine by transfers that are timed elsewhere instead of an
    all-reduce; by default under data parallelism. Raises SpecError where sizes do not divide, LawMissing for what was
    not measured.
    """
    refuse_uneven(model, parallel)
    laws, tokens = Laws(calibration), np.arange(most_tokens + 1)
    table, flagged = dict.fromkeys(_BY_TOKENS, np.zeros(len(tokens))), np.zeros(len(tokens))
    up: dict[str, np.ndarray] = {}
    sources: dict[str, set[str]] = {}
    attention = {
        phase: tuple(
            (kind.times(laws, phase, model.hidden, parallel.tp, precision, library=library, rates=rates), layers)
            for kind, layers in parts.attentions(model)
        )
        for phase in (DECODE, PREFILL)
    }
    whole = {
        kind for (kind, _), (times, _) in zip(parts.attentions(model), attention[DECODE], strict=True) if times.whole
    }
    for product in parts.products(model, parallel, whole):
        dtype = "bf16" if product.cause == "router" else precision.products
        law = dense_product(calibration, product.n, product.k, dtype, rates)
        ns = product.layers * law.ns(tokens)
        sources.setdefault(product.cause, set()).add(law.table.library)
        if product.rows == "tokens":
            table[product.cause] = table[product.cause] + ns
            flagged += ns * law.outside(tokens)
        else:
            up[product.rows] = up.get(product.rows, 0.0) + ns
    table["elementwise"] = _stream_ns(laws, parts.streams(model, parallel.tp, whole), tokens, rates)
    table["all_reduce"] = _all_reduce_ns(laws, model, parallel, combined_apart, tokens)
    if routing is not None and parts.has_experts(model):
        table["moe"], beyond, library_of_moe = _moe_ns(laws, model, parallel, precision.experts, routing, tokens)
        flagged += table["moe"] * beyond
        sources["moe"] = {library_of_moe}
    by_requests = _head_ns(laws, model, parallel.tp, precision, tokens, rates)
    each = [times for found in attention.values() for times, _ in found]
    sources["attention"] = {times.library for times in each}
    return IterationLaws(
        model,
        parallel,
        attention[DECODE],
        attention[PREFILL],
        np.stack([*(table[cause] for cause in _BY_TOKENS), flagged], axis=1),
        by_requests,
        up.get("decode"),
        up.get("prefill"),
        {cause: ", ".join(sorted(names)) for cause, names in sources.items()},
        tuple(dict.fromkeys(times.note for times in each if times.note)),
    )


def iteration_times(
    laws: IterationLaws, batches: Batches, *, moe_ns: ArrayLike | None = None, host_ns: float = 0.0
) -> IterationTimes:
    """Times of iterations. ``moe_ns``: float64[iteration], all MoE layers, dispatch and combine included, in place of
    the law's; ``host_ns``: of the host, an iteration.

    Iterations without requests take no time.
    """
    tokens, decodes, chunks = batches.tokens, batches.decodes, batches.chunks
    some = tokens > 0
    *by_tokens, flagged = _looked_up(laws.by_tokens, tokens).T
    *by_requests, flagged_head = _looked_up(laws.by_requests, batches.sampled).T
    found = dict(zip((*_BY_TOKENS, *_BY_REQUESTS), (*by_tokens, *by_requests), strict=True))
    flagged = flagged + flagged_head
    for up, rows in ((laws.decode_up, decodes), (laws.prefill_up, chunks * batches.chunk_tokens)):
        if up is not None:
            found["projections"] = found["projections"] + _looked_up(up, rows)
    attention = np.zeros(len(tokens))
    groups = (
        (laws.decode, decodes, np.ones(len(tokens)), batches.decode_context),
        (laws.prefill, chunks, batches.chunk_tokens, batches.chunk_context),
    )
    for each, requests, new, context in groups:
        for times, layers in each if requests.any() else ():
            ns = layers * times.ns(requests, new, context)
            attention += ns
            flagged = flagged + ns * times.outside(requests, context)
    found["attention"] = attention
    if moe_ns is not None:
        found["moe"] = np.where(some, np.asarray(moe_ns, float), 0.0)
    found["host"] = np.where(some, host_ns, 0.0)
    by_cause = {cause: found[cause] for cause in CAUSES}
    total = sum(by_cause.values(), start=np.zeros(len(tokens)))
    return IterationTimes(by_cause, total, flagged / np.where(some, total, 1.0))


def layer_times(
    laws: IterationLaws, batches: Batches, *, moe_ns: ArrayLike | None = None, host_ns: float = 0.0
) -> dict[str, np.ndarray]:
    """Cause → float64[iteration] ns of the mean layer: what ``iteration_times`` gives, over the layers; without LM
    head, sampling and host, which are no layer's.
    """
    times = iteration_times(laws, batches, moe_ns=moe_ns, host_ns=host_ns)
    apart = (*_BY_REQUESTS, "host")
    return {cause: ns / laws.model.layers for cause, ns in times.ns.items() if cause not in apart}


def _looked_up(table: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Rows of a table by size 0, 1, 2, ...: float64[iteration, ...]; beyond its end along its last tenth."""
    last = len(table) - 1
    at = np.minimum(np.rint(size).astype(np.int64), last)
    found = table[at]
    over = size > last
    if over.any():
        before = last - max(last // 10, 1)
        slope = (table[last] - table[before]) / (last - before)
        more = np.where(over, size - last, 0.0)
        found = found + (more[:, None] * slope if table.ndim == 2 else more * slope)
    return found


def _stream_ns(laws: Laws, streams: parts.Streams, tokens: np.ndarray, rates: Rates | None) -> np.ndarray:
    moved_ns = streams.bytes_per_token * tokens / _read_bytes_per_s(laws, rates) * NS_PER_S
    return np.where(tokens > 0, streams.kernels * _launch_ns(laws) + moved_ns, 0.0)


def _head_ns(
    laws: Laws, model: ModelSpec, tp: int, precision: Precision, rows: np.ndarray, rates: Rates | None
) -> np.ndarray:
    """``by_requests`` of IterationLaws; logits are gathered."""
    head = parts.lm_head(model, tp)
    law = dense_product(laws.calibration, head.n, head.k, "bf16", rates)
    ns, vocabulary = law.ns(rows), model.vocabulary or 0
    if tp > 1:
        gathered = rows * vocabulary * parts.ACTIVATION_BYTES
        ns = ns + np.where(rows > 0, laws.collective("all_gather", np.maximum(gathered, 1), ranks=tp).ns, 0)
    passes = parts.SAMPLING_PASSES * vocabulary * parts.LOGIT_BYTES
    streams = parts.Streams(parts.SAMPLING_KERNELS, passes)
    return np.stack([ns, _stream_ns(laws, streams, rows, rates), ns * law.outside(rows)], axis=1)


def _all_reduce_ns(
    laws: Laws, model: ModelSpec, parallel: Parallelism, combined_apart: bool | None, tokens: np.ndarray
) -> np.ndarray:
    count = parts.all_reduces(model, parallel, combined_apart)
    if not count:
        return np.zeros(len(tokens))
    sizes = np.maximum(tokens * model.hidden * parts.ACTIVATION_BYTES, 1)
    return np.where(tokens > 0, count * fastest_all_reduce_ns(laws, sizes, parallel.tp), 0.0)


def fastest_all_reduce_ns(laws: Laws, size_bytes: np.ndarray, ranks: int) -> np.ndarray:
    """Engines choose among NCCL and one-shot kernels by size: the least of those that cover it, float64[size], for
    sizes in order; kernels of another GPU cover what was measured there. A message never takes longer than a larger
    one, so sizes below the measured ones take their time.
    """
    found = laws.collective("all_reduce", size_bytes, ranks=ranks).ns
    for library, variant in (("trtllm", None), ("vllm", "vllm_graph"), ("sglang", "sglang_graph")):
        try:
            times = laws.collective("all_reduce", size_bytes, ranks=ranks, library=library, variant=variant)
        except LawMissing:
            continue
        assert isinstance(times.table, TransferTable)
        outside_it = law_of(times.table).extrapolates(size_bytes)
        found = np.where(outside_it, found, np.minimum(found, times.ns))
    return np.minimum.accumulate(found[::-1])[::-1]


def _moe_ns(
    laws: Laws, model: ModelSpec, parallel: Parallelism, dtype: str, routing: str, tokens: np.ndarray
) -> tuple[np.ndarray, np.ndarray, str]:
    """(ns of all MoE layers, whether they are extrapolated, whose times they are), by tokens of one group."""
    sizes = MoeSizes(model.hidden, model.expert_ffn, model.experts, model.top_k)
    points = np.unique(np.rint(np.geomspace(1, len(tokens) - 1, 60)))
    times = laws.fused_moe(
        points * parallel.dp, parallel.ep, parallel.expert_tp, dtype=dtype, sizes=sizes, distribution=routing
    )
    ns = np.exp(np.interp(np.log(np.maximum(tokens, 1)), np.log(points), np.log(times.ns)))
    beyond = np.interp(tokens, points, times.extrapolated.astype(float)) > 0
    return np.where(tokens > 0, len(model.moe_layer_ids) * ns, 0.0), beyond, times.table.library


def _launch_ns(laws: Laws) -> float:
    try:
        return laws.launch("graph_node").value
    except LawMissing:
        return NODE_NS


def _read_bytes_per_s(laws: Laws, rates: Rates | None) -> float:
    share = hbm_reads(laws.calibration).efficiency or HBM_SHARE
    return share * (laws.calibration.reference.hbm_bytes_per_s if rates is None else rates.hbm_bytes_per_s)
