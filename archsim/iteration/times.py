"""The time of one iteration of serving on a rank, by cause: attention, projections, experts, all-reduces, host, ...

``iteration_laws`` gives the operators of a model's layers their times on a calibrated GPU; ``iteration_times``
evaluates them for one or many iterations. Everything that depends only on the number of tokens is tabulated, so that an
iteration costs a few look-ups and its attention. Causes follow each other: what runs beside what is
`archsim.iteration.overlap`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from archsim.base.errors import SpecError
from archsim.base.sums import sum
from archsim.base.units import NS_PER_S, WEIGHT_BYTES
from archsim.iteration.attention import DECODE, PREFILL, AttentionTimes, Kind
from archsim.iteration.layers import (
    ALL_REDUCE,
    ATTENTION,
    CAUSES,
    DECODES,
    DENSE_FFN,
    ELSEWHERE,
    EXPERTS,
    HOST,
    LM_HEAD,
    OF_ROUTED,
    ONCE,
    PROJECTIONS,
    PROMPTS,
    ROUTER,
    SAMPLED,
    TOKENS,
    Attention,
    Collective,
    LayerProduct,
    RoutedExperts,
    Stream,
    attentions,
    before_attention,
    counted,
    program,
    row_flop,
)
from archsim.iteration.layers import (
    SHARED as SHARED_EXPERTS,
)
from archsim.iteration.overlap import NOTHING, TWO_BATCH, ExpertLayer, Rest, of_halves
from archsim.laws.gemm import Rates, dense_product
from archsim.laws.laws import Laws, MoeSizes
from archsim.laws.tables import CalibrationSpec, LawMissing, TransferTable
from archsim.laws.transfers import hbm_reads, law_of
from archsim.specs.calibration_files import calibration_digest, calibration_named, siblings_of
from archsim.specs.deployment import ALONE, BF16, Parallelism, Precision, refuse_uneven
from archsim.specs.experiment import Scenario
from archsim.specs.model import ModelSpec

# ---- experts
# Routed experts of all MoE layers, by tokens of a group of ranks: one protocol, whoever times them.
#
# ===========  =========================================================================================================
# `FusedLaw`   the fused MoE law of the calibration, under a distribution of routing that was measured
# `ByChance`   every token draws its experts by chance, and engines tune: the fastest measured kernel at each size
# ===========  =========================================================================================================
#
# Experts that an engine runs (`archsim.engine`) or a measurement gives come as ns.

UNIFORM_TOLD = "uniform"
NOT_GATED = "nongated"  # ending of kernels without the product of a gate
# Kernels that vLLM, SGLang and TensorRT-LLM have in common, by whichever they were measured: FlashInfer packs those of
# TensorRT-LLM (flashinfer/fused_moe: trtllm-gen, CUTLASS).
SHARED = "flashinfer"


class ExpertTimes(NamedTuple):
    """``ns``: float64[tokens] of all MoE layers, from 0 tokens on; ``outside``: bool[tokens], extrapolated;
    ``library``: whose times they are.
    """

    ns: np.ndarray
    outside: np.ndarray
    library: str


class Experts(Protocol):
    """Who times routed experts."""

    def times(self, laws: Laws, model: ModelSpec, parallel: Parallelism, dtype: str, sizes: int) -> ExpertTimes:
        """Times for 0 to ``sizes`` - 1 tokens of one group of tensor-parallel ranks. Raises LawMissing."""
        ...


class FusedLaw(NamedTuple):
    """``routing``: of the law (``balanced``, ``power_law_1.2``, ...)."""

    routing: str = "balanced"

    def times(self, laws: Laws, model: ModelSpec, parallel: Parallelism, dtype: str, sizes: int) -> ExpertTimes:
        points = _points(sizes, 60)
        if model.zero_experts:
            raise SpecError(
                f"{model.name}: zero_experts: {model.zero_experts} experts do nothing, and how often routers take them "
                f"was not measured. Give routing: {UNIFORM_TOLD}"
            )
        found = laws.fused_moe(
            points * parallel.dp, parallel.ep, parallel.expert_tp, dtype=dtype, sizes=_shape(model),
            distribution=self.routing,
        )  # fmt: skip
        beyond = _any_beside(points, found.extrapolated, sizes)
        return ExpertTimes(_between(model, points, found.ns, sizes), beyond, found.table.library)


BALANCED = FusedLaw()


class ByChance(NamedTuple):
    """Of the E / ep experts of a rank, (1 - top_k / E)^tokens stay idle; E includes experts that do nothing, which the
    router takes as often as others (LongCat-Flash, arXiv 2509.01322, section 2.1, controls their share). ``library``:
    an engine's, which takes its own kernels and FlashInfer's where they were measured; else those of all.
    """

    library: str | None = None

    def times(self, laws: Laws, model: ModelSpec, parallel: Parallelism, dtype: str, sizes: int) -> ExpertTimes:
        points = _points(sizes, 80)
        whole = points * parallel.dp
        share = model.top_k / (model.experts + model.zero_experts)
        taken = model.top_k * (model.experts / (model.experts + model.zero_experts))
        active = model.experts / parallel.ep * (1 - (1 - share) ** whole)
        kernels = _kernels(laws, model, dtype, self.library)
        each = [
            laws.fused_moe(
                whole, parallel.ep, parallel.expert_tp, dtype=dtype, sizes=_shape(model),
                pairs=whole * taken / parallel.ep, active_experts=active, library=library, kernel=kernel,
            )
            for library, kernel in kernels
        ]  # fmt: skip
        ns, outside = np.stack([found.ns for found in each]), np.stack([found.extrapolated for found in each])
        fastest = ns.argmin(axis=0), np.arange(len(points))
        beyond = _any_beside(points, outside[fastest], sizes)
        libraries = ", ".join(sorted({library for library, _ in kernels}))
        return ExpertTimes(_between(model, points, ns[fastest], sizes), beyond, libraries)


def _points(sizes: int, count: int) -> np.ndarray:
    return np.unique(np.rint(np.geomspace(1, sizes - 1, count)))


def _any_beside(points: np.ndarray, outside: np.ndarray, sizes: int) -> np.ndarray:
    """bool[tokens]: whether a point beside is extrapolated."""
    return np.interp(np.arange(sizes), points, outside.astype(float)) > 0


def _between(model: ModelSpec, points: np.ndarray, ns: np.ndarray, sizes: int) -> np.ndarray:
    """All MoE layers at every size, interpolated in logarithms."""
    at = np.arange(sizes)
    found = np.exp(np.interp(np.log(np.maximum(at, 1)), np.log(points), np.log(ns)))
    return np.where(at > 0, len(model.moe_layer_ids) * found, 0.0)


def _shape(model: ModelSpec) -> MoeSizes:
    return MoeSizes(model.expert_width, model.expert_ffn, model.experts, model.top_k)


def _kernels(laws: Laws, model: ModelSpec, dtype: str, own: str | None) -> list[tuple[str, str]]:
    """(library, kernel) of the measured ones of these sizes and dtype: SHARED ones and those of the library ``own``, if
    it has any; else all. Raises LawMissing for none.
    """
    asked = (*_shape(model), dtype, "balanced")
    there = {
        (table.library, table.kernel)
        for table in laws.calibration.moe
        if (table.hidden, table.ffn, table.experts, table.top_k, table.dtype, table.distribution) == asked
        and table.kernel.endswith(NOT_GATED) != model.gated
    }
    if not there:
        raise LawMissing(
            f"calibration {laws.calibration.gpu} has no fused MoE table of {dtype} for the experts of {model.name}"
        )
    known = any(library == own for library, _ in there)
    return sorted(each for each in there if not known or each[0] == own or SHARED in each[1])


# ---- collectives
# Collectives of an iteration: the fastest measured kernels inside a node, and nodes by copies between their NICs.
#
# No collective between nodes was measured. An all-reduce of nodes is taken as a hierarchy: each GPU ends with its share
# of its node's sum, GPUs of the same number exchange theirs, one NIC each, and nodes gather the whole. With S bytes on
# n nodes of g GPUs it takes ``T_g(S) + 2 (n - 1) t(S / (n g))``: T_g is NCCL's all-reduce of a node, whose halves are
# the first and the last step (one-shot kernels of engines end at a node); t is a measured copy between nodes, of which
# a ring of n takes 2 (n - 1) (Thakur, Rabenseifner and Gropp, International Journal of High Performance Computing
# Applications 19, 2005, section 4.4).

NODE = 8  # GPUs behind one NVSwitch, one NIC each (NVIDIA, DGX H100 and HGX B200 user guides)


def all_reduce_ns(laws: Laws, size_bytes: np.ndarray, ranks: int) -> np.ndarray:
    """float64[size], for sizes in order, of any number of ranks: the fastest measured kernels where there are some;
    else NCCL's, by one law of its measured numbers of ranks (`gathered_ns`), and between nodes by copies. Raises
    LawMissing where none was measured.
    """
    if _measured(laws, ranks):
        return fastest_all_reduce_ns(laws, size_bytes, ranks)
    domain = NVLINK_RANKS.get(laws.calibration.gpu, NODE)
    nodes, measured = -(-ranks // domain), _measured_ranks(laws, ALL_REDUCE)
    if not measured:
        raise LawMissing(f"calibration {laws.calibration.gpu} has no {ALL_REDUCE}")
    found = _gathered_within(laws, ALL_REDUCE, size_bytes, min(ranks, domain), measured)
    found = np.minimum.accumulate(found[::-1])[::-1]
    if nodes > 1:
        copies = with_copies(laws, "inter_node").copy(np.maximum(size_bytes / ranks, 1), placement="inter_node")
        found = found + 2 * (nodes - 1) * copies.ns
    return found


def _measured(laws: Laws, ranks: int, op: str = "all_reduce") -> bool:
    return any(table.of.get("op") == op and table.of.get("num_gpus") == str(ranks)
               for table in laws.calibration.collectives)  # fmt: skip


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


# Ranks behind one NVLink switch (datasheets of GB200 and GB300 NVL72); NODE elsewhere.
NVLINK_RANKS = MappingProxyType({"gb200": 72, "gb300": 72})
LATENCY_BYTES = 1.0  # of a message that only takes latency
JUDGED_BYTES = 2.0 ** np.arange(16, 29, 2)  # sizes on which the law of ranks is judged


def gathered_ns(laws: Laws, op: str, size_bytes: np.ndarray, ranks: int) -> np.ndarray:
    """float64[size] of an all-gather or a reduce-scatter of all ranks, as vLLM, SGLang and TensorRT-LLM do without
    DeepEP; ``size_bytes`` of all ranks together. One law, whatever the number of ranks: measured times where there are
    some; between two measured numbers their geometric mean, weighted by logarithms; beyond, the latency grows as
    between the last two, at most in proportion to the ranks, and the rest with the share of the message that a rank
    does not have. Between nodes, each rank sends its part around a ring of the nodes first (as `all_reduce_ns`).
    ``gathered_told`` says how far off that is. Raises LawMissing.
    """
    if _measured(laws, ranks, op):
        return laws.collective(op, size_bytes, ranks=ranks).ns
    measured = _measured_ranks(laws, op)
    if not measured:
        raise LawMissing(f"calibration {laws.calibration.gpu} has no {op}")
    domain = NVLINK_RANKS.get(laws.calibration.gpu, NODE)
    nodes = -(-ranks // domain)
    found = _gathered_within(laws, op, size_bytes, min(ranks, domain), measured)
    if nodes > 1:
        found = (
            found
            + (nodes - 1)
            * with_copies(laws, "inter_node").copy(np.maximum(size_bytes / ranks, 1), placement="inter_node").ns
        )
    return found


def gathered_told(laws: Laws, op: str, ranks: int) -> str:
    """Which law gives the times of so many ranks, and how far off it is where the largest measured number is left out,
    in words; '' where they were measured.
    """
    measured = _measured_ranks(laws, op)
    if not measured or _measured(laws, ranks, op):
        return ""
    domain, name = NVLINK_RANKS.get(laws.calibration.gpu, NODE), op.replace("_", "-")
    said = f"{name} of {ranks} ranks: by one law of its {', '.join(map(str, measured))} measured ranks"
    if len(measured) > 2:
        last = measured[-1]
        ours = _gathered_within(laws, op, JUDGED_BYTES, last, measured[:-1])
        off = ours / laws.collective(op, JUDGED_BYTES, ranks=last).ns - 1
        said += f", which is {off.min():+.0%} to {off.max():+.0%} off at {last} ranks when these are left out"
    if ranks > domain:
        whose = with_copies(laws, "inter_node").calibration.gpu
        said += f"; copies between nodes of {domain} are those of {whose}"
    return said


def _measured_ranks(laws: Laws, op: str) -> list[int]:
    """Of one node."""
    tables = (each.of for each in laws.calibration.collectives if each.of.get("op") == op)
    return sorted({int(of["num_gpus"]) for of in tables if of.get("nodes", "1") == "1" and "num_gpus" in of})


def with_copies(laws: Laws, placement: str) -> Laws:
    """The laws of the GPU, or of the nearest one whose copies were measured, within a node (``placement``: intra_node)
    or between nodes (inter_node). Raises LawMissing.
    """
    for each in chain([laws.calibration], siblings_of(laws.calibration)):
        if any(table.of.get("placement") == placement for table in each.p2p):
            return laws if each is laws.calibration else Laws(each)
    where = "between nodes" if placement == "inter_node" else "within a node"
    raise LawMissing(f"calibration {laws.calibration.gpu} has no copies {where}, and no GPU like it has")


def _gathered_within(laws: Laws, op: str, size_bytes: np.ndarray, ranks: int, measured: Sequence[int]) -> np.ndarray:
    """Of ranks of one node, by the ``measured`` numbers of ranks."""

    def of(each: int, size: ArrayLike = size_bytes) -> np.ndarray:
        return np.asarray(laws.collective(op, size, ranks=each).ns, float)

    if ranks in measured:
        return of(ranks)
    above = [each for each in measured if each > ranks]
    below = [each for each in measured if each < ranks]
    if above and below:
        low, high = below[-1], above[0]
        share = np.log(ranks / low) / np.log(high / low)
        return np.exp((1 - share) * np.log(of(low)) + share * np.log(of(high)))
    if above:
        return of(above[0])
    last = measured[-1]
    latency = of(last, LATENCY_BYTES)
    growth = 1.0
    if len(measured) > 1:
        growth = float(np.clip(np.log(latency / of(measured[-2], LATENCY_BYTES)) / np.log(last / measured[-2]), 0, 1))
    moved = np.maximum(of(last) - latency, 0.0) * ((ranks - 1) / ranks) / ((last - 1) / last)
    return latency * (ranks / last) ** growth + moved


# ---- times

MOST_TOKENS = 16384  # of the tables by tokens; more are interpolated along their last points
# A kernel as a node of a CUDA graph on an H200 (te42kyfo/gpu-benches, as in configs/calibrations/h200.yaml), where the
# calibration has none; and the share of HBM bandwidth that reads reach on an H100 (h100.yaml).
NODE_NS, HBM_SHARE = 1317.0, 0.82


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

    def rows(self, which: str) -> np.ndarray:
        """float64[iteration] of what an operator's time depends on."""
        prompts = self.chunks * self.chunk_tokens
        return {TOKENS: self.tokens, DECODES: self.decodes, PROMPTS: prompts, SAMPLED: self.sampled}[which]


class IterationTimes(NamedTuple):
    """``ns``: cause → float64[iteration]; ``total_ns`` float64[iteration] is their sum.

    ``extrapolated``: share of the time that laws give outside their measured sizes, float64[iteration].
    """

    ns: dict[str, np.ndarray]
    total_ns: np.ndarray
    extrapolated: np.ndarray


@dataclass(frozen=True, eq=False)
class IterationLaws:
    """Laws of one model on one GPU. ``attention``: phase → (times, layers) of each kind.

    ``by``: rows (`archsim.iteration.layers`) → cause → float64[rows] ns of all layers, from 0 rows on; ``outside``:
    rows → float64[rows] ns of them that are extrapolated. ``sources``: cause → libraries whose times are used.
    ``notes``: what pages print of attention that was not measured.
    """

    model: ModelSpec
    parallel: Parallelism
    attention: Mapping[str, tuple[tuple[AttentionTimes, int], ...]]
    by: Mapping[str, Mapping[str, np.ndarray]]
    outside: Mapping[str, np.ndarray]
    sources: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def sizes(self) -> int:
        """Length of the tables."""
        return len(self.outside[TOKENS])

    def ns(self, *causes: str, rows: str = TOKENS) -> np.ndarray:
        """float64[rows] of some causes together; 0 for those that the model lacks."""
        found = [ns for cause, ns in self.by[rows].items() if cause in causes] if rows in self.by else []
        return sum(found, start=np.zeros(self.sizes))


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
    experts: Experts | None = BALANCED,
    moves: str | None = None,
    library: str | None = None,
    rates: Rates | None = None,
    most_tokens: int = MOST_TOKENS,
) -> IterationLaws:
    """The laws of a model on ranks of a calibrated GPU.

    ``experts``: who times them; None: they are timed elsewhere, and ``iteration_times`` is given their time. ``moves``:
    of `archsim.iteration.layers.program`. ``library``: of attention, by default the one with most shapes; that of an
    engine, whose products are tuned. ``rates``: of the modelled die. Raises SpecError where sizes do not divide,
    LawMissing for what was not measured.
    """
    refuse_uneven(model, parallel)
    laws = Laws(calibration)
    attention = {
        phase: tuple(
            (_attention_times(laws, kind, phase, model, parallel, precision, library, rates), layers)
            for kind, layers in attentions(model)
        )
        for phase in (DECODE, PREFILL)
    }
    whole = {kind for (kind, _), (times, _) in zip(attentions(model), attention[DECODE], strict=True) if times.whole}
    timing = _Timing(laws, model, parallel, precision, experts, rates, most_tokens + 1, library is not None)
    by: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    outside = {rows: np.zeros(most_tokens + 1) for rows in (TOKENS, SAMPLED, DECODES, PROMPTS)}
    sources: dict[str, set[str]] = {ATTENTION: {times.library for found in attention.values() for times, _ in found}}
    for operator, count in counted(program(model, parallel, whole, moves)).items():
        found = timing.of(operator)
        if found is None:
            continue
        causes, ns = by[operator.rows], count * found.ns
        causes[operator.cause] = causes.get(operator.cause, 0.0) + ns
        outside[operator.rows] += ns * found.outside
        if found.library:
            sources.setdefault(operator.cause, set()).add(found.library)
    notes = dict.fromkeys(times.note for found in attention.values() for times, _ in found if times.note)
    for operator in counted(program(model, parallel, whole, moves)):
        if isinstance(operator, Collective):
            notes |= dict.fromkeys(filter(None, [gathered_told(laws, operator.op, operator.ranks)]))
    named = {cause: ", ".join(sorted(names)) for cause, names in sources.items()}
    return IterationLaws(model, parallel, attention, dict(by), outside, named, tuple(notes))


def _attention_times(
    laws: Laws, kind: Kind, phase: str, model: ModelSpec, parallel: Parallelism, precision: Precision,
    library: str | None, rates: Rates | None,
) -> AttentionTimes:  # fmt: skip
    """Of one rank. Where ranks share the tokens of a request, each computes their decodes with the heads of all of them
    over its part of the tokens. Raises SpecError for more ranks than would hold copies.
    """
    tp, shared = parallel.tp, parallel.context
    if shared == 1:
        return kind.times(laws, phase, model.hidden, tp, precision, library=library, rates=rates)
    copies = tp // min(kind.kv_ranks(tp), tp)
    if shared > copies:
        raise SpecError(
            f"parallel.attention.context: {shared} ranks: with tp {tp}, {copies} of them would hold the same keys and "
            f"values of {model.name}, and no more can share their tokens. Give context: {copies}"
            + ("" if copies > 1 else ", or leave it out")
        )
    kind.context_values(tp)  # refused where its cache is not divided so
    heads_over = tp // shared if phase == DECODE else tp
    found = kind.times(laws, phase, model.hidden, heads_over, precision, library=library, rates=rates)
    entry_bytes = kind.kept_bytes_per_token(int(WEIGHT_BYTES[precision.kv])) / kind.kv_ranks(tp)
    sizes = np.geomspace(1e3, 1e10, 71)
    gathered = np.log(gathered_ns(laws, "all_gather", sizes, shared)) if phase == PREFILL else np.zeros(0)
    return SharedContext(found, phase, shared, entry_bytes, np.log(sizes), gathered)


@dataclass(frozen=True, eq=False)
class SharedContext:
    """``AttentionTimes`` of ranks that share the tokens of every request. A decode reads its part of them; a chunk of a
    prompt first gathers the keys and values of the tokens before it from the other ranks.
    """

    times: AttentionTimes
    phase: str
    ranks: int
    entry_bytes: float
    ln_sizes: np.ndarray
    ln_gathered: np.ndarray

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
    """What gives operators their times; ``tuned``: products, as in `dense_product`."""

    laws: Laws
    model: ModelSpec
    parallel: Parallelism
    precision: Precision
    experts: Experts | None
    rates: Rates | None
    sizes: int
    tuned: bool

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
        dtype = "bf16" if product.cause in (ROUTER, LM_HEAD) else self.precision.products
        tuned = self.tuned and product.cause != LM_HEAD
        law = dense_product(self.laws.calibration, product.n, product.k, dtype, self.rates, tuned=tuned)
        rows = self._rows / product.sharing if product.sharing > 1 else self._rows
        return _Timed(law.ns(rows), law.outside(rows), law.table.library)

    def _stream(self, stream: Stream) -> _Timed:
        moved_ns = stream.row_bytes * self._rows / _read_bytes_per_s(self.laws, self.rates) * NS_PER_S
        return _Timed(np.where(self._rows > 0, stream.kernels * _launch_ns(self.laws) + moved_ns, 0.0))

    def _collective(self, given: Collective) -> _Timed:
        size = np.maximum(self._rows * given.row_bytes, 1)
        if given.op == ALL_REDUCE:
            found = all_reduce_ns(self.laws, size, given.ranks)
        else:
            found = gathered_ns(self.laws, given.op, size, given.ranks)
        return _Timed(np.where(self._rows > 0, found, 0.0))


def iteration_times(
    laws: IterationLaws, batches: Batches, *, experts_ns: ArrayLike | None = None, host_ns: float = 0.0
) -> IterationTimes:
    """Times of iterations. ``experts_ns``: float64[iteration], all MoE layers, in place of the law's; ``host_ns``: of
    the host, an iteration.

    Iterations without requests take no time.
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
    found[HOST] = np.where(some, host_ns, 0.0)
    total = sum(found.values(), start=np.zeros(len(tokens)))
    return IterationTimes(found, total, flagged / np.where(some, total, 1.0))


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


def _launch_ns(laws: Laws) -> float:
    try:
        return laws.launch("graph_node").value
    except LawMissing:
        return NODE_NS


def _read_bytes_per_s(laws: Laws, rates: Rates | None) -> float:
    share = hbm_reads(laws.calibration).efficiency or HBM_SHARE
    return share * (laws.calibration.reference.hbm_bytes_per_s if rates is None else rates.hbm_bytes_per_s)


# ---- speculation
# Speculation: drafted tokens that an iteration verifies beside the next one, and how many of them it accepts.
#
# A draft is accepted only if all before it were: an iteration of a request makes 1 + a tokens, of which a has the mean
# sum over i of p1 * ... * pi (Leviathan et al., Fast Inference from Transformers via Speculative Decoding, 2023). All
# 1 + n rows pass products and experts, and are verified by the head, accepted or not; the KV of a request is read once.
# Drafts of a multi-token-prediction head take a layer of the model and the head each, one after the other (DeepSeek-V3,
# section 2.2), and prompts pass that layer once, as it keeps KV of its own; those of n-grams take nothing. A tree of
# drafts has several at each depth, of which one at most is accepted; all are drafted together, one depth after the
# other, and all are verified (SpecInfer, arXiv 2305.09781, section 4; EAGLE-2, arXiv 2406.16858, section 4).

DRAWS = 1 << 16  # uniform numbers, by request, token and draft


class Speculation(NamedTuple):
    """``acceptance``: of some draft at every depth, given that those before it were accepted; () for no drafts.
    ``layers``: of the model that a draft runs; 0: it costs nothing. ``tree``: drafts at every depth; () for one each.
    """

    acceptance: tuple[float, ...] = ()
    layers: int = 0
    seed: int = 0
    tree: tuple[int, ...] = ()

    @property
    def drafts(self) -> int:
        """Drafted tokens of a request in an iteration, all of which are verified."""
        return sum(self.tree) or len(self.acceptance)

    @property
    def tokens(self) -> float:
        """Mean number of tokens that an iteration makes of a request."""
        return 1.0 + float(np.cumprod(self.acceptance).sum())


NO_DRAFTS = Speculation()


def of(
    draft_tokens: int, acceptance: float | Sequence[float], layers: int, seed: int, tree: Sequence[int] = ()
) -> Speculation:
    """One rate for all drafts, or one for each depth."""
    each = (float(acceptance),) * draft_tokens if isinstance(acceptance, int | float) else tuple(map(float, acceptance))
    return Speculation(each, layers, seed, tuple(tree))


def draws(speculation: Speculation) -> np.ndarray:
    """float64[DRAWS] below 1; a draft is accepted where its draw is below its rate, so that a higher rate accepts all
    that a lower one does.
    """
    if not speculation.drafts:
        return np.zeros(1)
    return np.random.Generator(np.random.Philox(key=[speculation.seed, 77])).random(DRAWS)


# ---- scenario
# A whole iteration of an experiment: MoE layers as the engine ran them, and all else by the laws of iterations.
#
# Attention is parallel as the deployment says. Of a group of tensor-parallel ranks each dispatches its share of the
# tokens, whatever the assumption ``dispatch``. What runs beside what: ``archsim.iteration.overlap``. The parts add up:
# an iteration is its MoE layers, as long as the engine says, and the rest.

# Columns of a run and the causes that each sums.
COLUMNS = MappingProxyType(
    {
        "attention": ("attention",),
        "projections": ("projections",),
        "dense": ("dense_ffn", "router", "elementwise"),
        "experts": ("shared", "experts"),
        "transfers": ("dispatch", "combine"),
        "all_reduce": ("all_reduce",),
        "head": ("lm_head", "sampling"),
        "host": ("host",),
    }
)


def laws_of(scenario: Scenario) -> IterationLaws | None:
    """Laws of the rank's other work; None where the calibration or the model lacks them."""
    system, model = scenario.system, scenario.model
    if model.missing_geometry or model.attention is None:
        return None
    array, hbm = system.slowest  # ranks have equal shares of all this, and wait for each other
    rates = Rates(system.compute.peak_flop_per_s * array, system.hbm.bandwidth_bytes_per_s * hbm)
    name, sizes = system.compute.calibration, (scenario.parallel, scenario.precision)
    return _laws(model.model_dump_json(by_alias=True), name, calibration_digest(name), *sizes, rates)


@lru_cache(maxsize=16)
def _laws(model: str, name: str | None, digest: str, parallel: Parallelism, precision: Precision, rates: Rates):
    """As `laws_of`; ``model``: as JSON, ``digest``: of the calibration's file. Experts are timed elsewhere, and may be
    replicated: here they are as many as divide.
    """
    given = ModelSpec.model_validate_json(model)
    of = given.model_copy(update={"experts": -(-given.experts // parallel.ep) * parallel.ep})
    try:
        return iteration_laws(
            of, calibration_named(name), parallel, precision, experts=None, rates=rates, moves=ELSEWHERE
        )
    except LawMissing:
        return None


def batch_of(scenario: Scenario, tokens: float, prompts: bool) -> Batches:
    """One iteration of a rank, or group of tensor-parallel ranks, with ``tokens``: decodes of `context_tokens` each, or
    the prompts of its requests, all alike.
    """
    one, none = np.ones(1), np.zeros(1)
    if not prompts:
        decodes = one * tokens
        return Batches(decodes, one * max(scenario.workload.context_tokens or 1, 1), none, one, one, decodes)
    requests = one * min(scenario.batch / scenario.parallel.dp, max(tokens, 1.0))
    each = np.maximum(tokens / requests, 1.0)
    return Batches(none, one, requests, each, each, requests)


def rest_of(scenario: Scenario, sms_share: float) -> Callable[[float, bool], Rest]:
    """What a rank computes in a layer beside experts for half of its tokens, by tokens of the rank and whether they are
    prompts; ``sms_share``: of the SMs that transfers take as long as they run.
    """
    laws = laws_of(scenario)
    if laws is None:
        return lambda tokens, prompts: NOTHING
    before = before_attention(laws.model, laws.parallel)

    @lru_cache(maxsize=4096)
    def of_half(tokens: float, prompts: bool) -> Rest:
        batch = batch_of(scenario, tokens * scenario.parallel.tp, prompts)
        found = rest_ns(scenario, laws, batch, sms_share)
        first = before * found["projections"]
        whole = sum(ns for cause, ns in found.items() if cause not in ONCE)
        of_one = 1 / (2 * laws.model.layers)
        return Rest(first * of_one, (whole - first) * of_one)

    return of_half


def runs_shared(scenario: Scenario) -> bool:
    """Whether shared experts are among the experts that the engine runs."""
    return scenario.assumptions.weights == "all" and scenario.model.shared_experts > 0


def rest_ns(scenario: Scenario, laws: IterationLaws, batch: Batches, sms_share: float) -> dict[str, float]:
    """Cause → ns of an iteration without its experts; ``batch``: one iteration of a rank, or of a group of
    tensor-parallel ranks; ``sms_share``: as in `rest_of`.
    """
    apart = runs_shared(scenario)
    found = _of_one(laws, batch, apart)
    if scenario.assumptions.overlap != TWO_BATCH:
        return found
    half = _of_one(laws, half_of(batch), apart)
    multiply = _multiply_ns(scenario, laws, half_of(batch), apart)
    return {
        cause: ns if cause in ONCE else of_halves.py_func(ns, half[cause], multiply.get(cause, 0.0), sms_share)
        for cause, ns in found.items()
    }


def iteration_ns(
    scenario: Scenario, laws: IterationLaws, batch: Batches, layers: ExpertLayer, sms_share: float
) -> dict[str, float]:
    """Cause → ns of one iteration on its critical path. ``layers``: all MoE layers, as the engine has composed them;
    ``batch``, ``sms_share``: as in `rest_ns`.
    """
    return rest_ns(scenario, laws, batch, sms_share) | layers._asdict()


def _multiply_ns(scenario: Scenario, laws: IterationLaws, batch: Batches, shared_apart: bool) -> dict[str, float]:
    """Cause → ns at peak of the products of an iteration."""
    found = dict.fromkeys((PROJECTIONS, DENSE_FFN, SHARED_EXPERTS), 0.0)
    for (rows, cause), flop in row_flop(laws.model, laws.parallel).items():
        if cause in found:
            peak = scenario.system.compute.peak_flop_per_s * scenario.system.slowest[0]
            found[cause] += flop * float(batch.rows(rows)[0]) / peak * NS_PER_S
    return _with_shared(found, shared_apart)


def half_of(batch: Batches) -> Batches:
    """Half of the requests of an iteration."""
    return batch._replace(decodes=batch.decodes / 2, chunks=batch.chunks / 2, sampled=batch.sampled / 2)


def _of_one(laws: IterationLaws, batch: Batches, shared_apart: bool) -> dict[str, float]:
    ns = iteration_times(laws, batch).ns
    return _with_shared({cause: float(each[0]) for cause, each in ns.items() if cause not in OF_ROUTED}, shared_apart)


def _with_shared(found: dict[str, float], shared_apart: bool) -> dict[str, float]:
    """Shared experts as dense layers, unless the engine runs them."""
    shared = found.pop(SHARED_EXPERTS)
    return found if shared_apart else found | {DENSE_FFN: found[DENSE_FFN] + shared}
