"""One engine of a deployment: the laws of its iterations, its KV blocks, and what these rest on."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil, prod
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, NamedTuple, TypedDict

import numpy as np

from archsim.base import fields, validation, yaml
from archsim.base.errors import CapacityError, SpecError
from archsim.base.quantities import TIME, count, quantity
from archsim.base.sums import sum
from archsim.base.units import NS_PER_S, WEIGHT_BYTES
from archsim.engine.cluster.moves import sms_share
from archsim.engine.cluster.transfer_times import send_equal
from archsim.engine.moves import Sizes, vector_bytes
from archsim.iteration import memory, rank_memory
from archsim.iteration.attention import DECODE as DECODE_PHASE
from archsim.iteration.attention import PHASES
from archsim.iteration.attention import PREFILL as PREFILL_PHASE
from archsim.iteration.collectives import NODE, NVLINK_RANKS, gathered_ns, with_copies
from archsim.iteration.experts import NOT_GATED, ByChance, Experts, FusedLaw
from archsim.iteration.layers import (
    ACTIVATION_BYTES,
    ALL_REDUCE,
    CAUSES,
    COMBINE,
    DECODES,
    DENSE_FFN,
    DISPATCH,
    ELSEWHERE,
    EXPERTS,
    OF_ROUTED,
    ONCE,
    PROJECTIONS,
    PROMPTS,
    SAMPLED,
    SHARED,
    TOKENS,
    attentions,
    before_attention,
    has_experts,
    row_flop,
)
from archsim.iteration.overlap import HOW, MICRO_BATCHES, TWO_BATCH, micro_batched, of_halves
from archsim.iteration.overlap import NONE as NO_OVERLAP
from archsim.iteration.times import Batches, IterationLaws, iteration_laws, iteration_times
from archsim.laws import gemm, scaling, transfers
from archsim.laws.laws import Laws, not_served
from archsim.laws.tables import CalibrationSpec, GemmLaw, MoeTable, ScaledSections
from archsim.policies.registry import place_experts
from archsim.serving.clock import OCTAVE, OverlapTimes, StepTable, times_of
from archsim.serving.groups import DECODES as DECODE_ROW
from archsim.serving.groups import ExpertGroup, Gathered, Parts, Say, slots_of
from archsim.serving.records import KvTransfer
from archsim.serving.requests import TokenPool, token_pool
from archsim.serving.simulate import KvStore, KvUnits, Pool, Scheduler
from archsim.specs.assumptions import GATHERING, AssumptionsSpec
from archsim.specs.calibration_files import siblings_of
from archsim.specs.config_files import search_folders
from archsim.specs.deployment import Parallelism, ParallelSpec, Precision, refuse_cut_blocks
from archsim.specs.model import SLICES, UNMODELLED, ModelSpec
from archsim.specs.scenario import Scenario
from archsim.specs.serving import KvStoreSpec, RoutingSpec
from archsim.specs.serving_files import EXPERTS_SIDE, Serving, refuse_unserved
from archsim.specs.system import SystemSpec
from archsim.specs.workload import SyntheticSpec, SyntheticTrace, WorkloadSpec
from archsim.workload import open_trace, traffic_presets

# ---- stand_ins
# Tables that stand in for what a calibration lacks: weights of 4 bits, and expert layers of other shapes.
#
# Every time of a stand-in counts as extrapolated. Weights of 4 bits take the tables of a dtype that computes alike,
# with the rates at which their bytes and products would pass. An expert layer takes the law of the nearest measured
# shape, with its own sizes, as dies do (``archsim.laws.die``). Kernels of fused layers that are slower than kernels of
# more bits of their library are not those that engines run (``archsim.laws.laws``): the library's kernel of 16 bits
# stands in, with the bytes of its own weights and the FLOP rate of their dtype. Where both were measured, the law of 16
# bits is 5 to 8 % off FP8 (medians; TensorRT-LLM on H100, B200 and GB200, vLLM's Triton and FlashInfer kernels on B200
# and GB200), that of FP8 in blocks 7 to 35 %.


class Narrow(NamedTuple):
    """``like``: dtype of the tables; ``compute``: rate of products relative to theirs."""

    like: str
    compute: float


# NVFP4 multiplies twice as fast as FP8 (NVIDIA, Blackwell architecture); MXFP4 on Hopper and INT4 are weights only, and
# multiply in 16 bits.
# FP8 with a scale a tensor takes its tables without the quantisation of activations, which engines fuse into the norm
# before; where all were timed with a separate kernel of 8 us that quantises, those of FP8 in blocks.
NARROW = MappingProxyType(
    {
        "fp8": Narrow("fp8_block", 1.0),
        "nvfp4": Narrow("fp8_block", 2.0),
        "mxfp4": Narrow("bf16", 1.0),
        "int4": Narrow("bf16", 1.0),
    }
)


ATTENTION_STANDS_IN = "Attention on"  # how the note on attention of another GPU begins


class StandIns(NamedTuple):
    """``products``, ``experts``: dtypes whose tables of ``calibration`` are to be used; ``notes``: why, in words."""

    calibration: CalibrationSpec
    products: str
    experts: str
    notes: tuple[str, ...]


SIXTEEN_BITS = "bf16"
NEAR = 1.0  # doublings of sizes within which a kernel's law holds for a shape that it was not measured on
FUSED = "fp8"  # dtype of products whose activations engines quantise in the kernel before
# Products of experts apart from the rest of their layer; kernels that engines all-reduce small messages with.
NOT_FUSED, ONE_SHOT = ("sglang-deepep", "trtllm-wideep"), ("trtllm", "vllm", "sglang")


def with_stand_ins(calibration: CalibrationSpec, model: ModelSpec, products: str, experts: str) -> StandIns:
    """The calibration with tables for these dtypes and the model's expert layers."""
    notes = []
    fused = tuple(table for table in calibration.moe if table.library not in NOT_FUSED)
    calibration = calibration.model_copy(update={"moe": fused})
    measured = any(table.library in ONE_SHOT for table in calibration.collectives)
    if calibration.gpu in transfers.NVLINK_BYTES_PER_S and not measured:
        calibration, whose = _with_one_shot(calibration)
        notes.append(f"All-reduces on {calibration.gpu} take the times of {whose}'s one-shot kernels.")
    if _lacks_attention(calibration, model):
        base = next(each for each in siblings_of(calibration) if not _lacks_attention(each, model))
        sections = ScaledSections(gpu=base.gpu, sections=("attention",))
        calibration = scaling.with_scaled(calibration.model_copy(update={"scaled": sections}), base)
        notes.append(f"{ATTENTION_STANDS_IN} {calibration.gpu} takes the times of {base.gpu}, scaled by rates.")
    calibration, said = _served(calibration, experts)
    notes += said
    like_products, calibration = _narrowed(calibration, "gemm", products)
    like_experts, calibration = _narrowed(calibration, "moe", experts)
    for what, dtype, like in (("products", products, like_products), ("experts", experts, like_experts)):
        if dtype != like:
            notes.append(
                f"{what.capitalize()} in {dtype} take the {like} tables of {calibration.gpu}, with fewer bytes of "
                "weights."
            )
    if not model.gated and model.experts > 1:
        calibration, said = _without_gate(calibration, like_experts)
        notes += said
    if model.experts > 1:
        copies = _of_other_shapes(calibration, model, like_experts)
        calibration = calibration.model_copy(update={"moe": (*calibration.moe, *copies)})
        likes = sorted({f"{table.scaled_from} ({table.kernel})" for table in copies})
        if likes:
            notes.append(f"Experts of {model.name} take the laws of {' and '.join(likes)}, with their own sizes.")
    return StandIns(calibration, like_products, like_experts, tuple(notes))


def _served(calibration: CalibrationSpec, dtype: str) -> tuple[CalibrationSpec, list[str]]:
    """The calibration without kernels of fused layers that nobody serves with, where the library has another."""
    said: dict[tuple[str, str, str], list[float]] = {}
    dropped: set[tuple[str, str, str]] = set()
    added: dict[tuple, MoeTable] = {}
    for one in not_served(calibration, dtype):
        mine = one.table
        assert isinstance(mine, MoeTable)
        wide = [
            table
            for table in calibration.moe
            if (table.library, table.model, table.dtype) == (mine.library, mine.model, SIXTEEN_BITS)
        ]
        if not wide:
            continue
        # Of the version in which the kernel was measured, or the one before or after.
        kernel, version = min(
            {(table.kernel, table.version) for table in wide}, key=lambda each: (each[1] != mine.version, each)
        )
        for table in wide:
            if (table.kernel, table.version) == (kernel, version):
                key = table.library, table.model, kernel, version, table.distribution, table.eplb_slots
                added[key] = _in_fewer_bits(calibration, table, dtype)
        dropped.add((mine.library, mine.kernel, mine.model))
        said.setdefault((mine.library, mine.kernel, kernel), []).append(one.ratio)
    kept = [
        table
        for table in calibration.moe
        if table.dtype != dtype or (table.library, table.kernel, table.model) not in dropped
    ]
    notes = [
        f"For experts in {dtype}, {library}'s kernel {kernel} is left out, as it takes {np.median(ratios):.1f} times "
        f"as long on {calibration.gpu} as kernels with more bits. Kernel {other} of {SIXTEEN_BITS} is used instead, "
        f"with the bytes of {dtype}."
        for (library, kernel, other), ratios in said.items()
    ]
    return calibration.model_copy(update={"moe": (*kept, *added.values())}), notes


def _in_fewer_bits(calibration: CalibrationSpec, table: MoeTable, dtype: str) -> MoeTable:
    peaks = calibration.reference.peak_flop_per_s
    faster = peaks[dtype] / peaks[SIXTEEN_BITS] if dtype in peaks and SIXTEEN_BITS in peaks else 1.0
    law = table.law.model_copy(update={"flop_per_s": table.law.flop_per_s * faster})
    return table.model_copy(update={"dtype": dtype, "law": law, "scaled_from": SIXTEEN_BITS})


def _lacks_attention(calibration: CalibrationSpec, model: ModelSpec) -> bool:
    """Whether no table is of one of its kinds, for prompts or for decodes."""
    needed = {kind.table for kind, _ in attentions(model)} - {None}
    there = {(table.phase, table.kind) for table in calibration.attention}
    return not all((phase, kind) in there for phase in PHASES for kind in needed)


def _narrowed(calibration: CalibrationSpec, section: str, dtype: str) -> tuple[str, CalibrationSpec]:
    """(dtype of the tables to use, calibration with its tables of that dtype at the rates of narrower weights)."""
    tables = getattr(calibration, section)
    own = [table for table in tables if table.dtype == dtype]
    if section == "gemm" and dtype == FUSED:
        own = [table for table in own if table.quantisation == "apart"]
        kept = tuple(table for table in tables if table.dtype != dtype or table.quantisation == "apart")
        calibration = calibration.model_copy(update={section: kept}) if own else calibration
    if own or dtype not in NARROW:
        return dtype, calibration
    like, compute = NARROW[dtype]
    memory = WEIGHT_BYTES[like] / WEIGHT_BYTES[dtype]
    found = [_faster(table, compute, memory) if table.dtype == like else table for table in tables]
    return like, calibration.model_copy(update={section: tuple(found)})


def _with_one_shot(calibration: CalibrationSpec) -> tuple[CalibrationSpec, str]:
    """With all-reduce kernels of engines, bound by latency, from the nearest GPU with NVLink; and whose these are."""
    base = next(
        each for each in siblings_of(calibration)
        if each.gpu in transfers.NVLINK_BYTES_PER_S and any(map(_one_shot, each.collectives))
    )  # fmt: skip
    added = [table.model_copy(update={"scaled_from": base.gpu}) for table in base.collectives if _one_shot(table)]
    return calibration.model_copy(update={"collectives": (*calibration.collectives, *added)}), base.gpu


def _one_shot(table) -> bool:
    return table.library in ONE_SHOT and table.of.get("op") == "all_reduce"


def _faster(table, compute: float, memory: float):
    rates = {"flop_per_s": table.law.flop_per_s * compute, "bytes_per_s": table.law.bytes_per_s * memory}
    if isinstance(table.law, GemmLaw):
        rates |= {"ns_per_k": table.law.ns_per_k / memory}
    return table.model_copy(update={"law": table.law.model_copy(update=rates), "scaled_from": table.dtype})


def _without_gate(calibration: CalibrationSpec, dtype: str) -> tuple[CalibrationSpec, list[str]]:
    """With kernels of two matrices an expert, if none was measured: those of three, with 2/3 of their weights and FLOP
    (relu² in place of SwiGLU: NVIDIA, Nemotron 3).
    """
    of_dtype = [table for table in calibration.moe if table.dtype == dtype and not table.eplb_slots]
    if any(table.kernel.endswith(NOT_GATED) for table in of_dtype):
        return calibration, []
    more = SLICES / (SLICES - 1)
    added = [
        _faster(table, more, more).model_copy(
            update={"kernel": f"{table.kernel}_{NOT_GATED}", "scaled_from": table.kernel}
        )
        for table in of_dtype
    ]
    note = (
        f"Experts without a gate in {dtype} take kernels of {calibration.gpu} with a gate, with 2/3 of their weights."
    )
    return calibration.model_copy(update={"moe": (*calibration.moe, *added)}), [note]


def _of_other_shapes(calibration: CalibrationSpec, model: ModelSpec, dtype: str) -> list[MoeTable]:
    """The tables of each kernel that was not measured on the model's shape: those of the nearest one, if it is near, or
    if no kernel was measured on the shape.
    """
    kernels: dict[tuple[str, str], list[MoeTable]] = {}
    for table in calibration.moe:
        if table.dtype == dtype and not table.eplb_slots and table.kernel.endswith(NOT_GATED) != model.gated:
            kernels.setdefault((table.library, table.kernel), []).append(table)
    nearest = {key: min(balanced, key=lambda table: _apart(table, model)) for key, tables in kernels.items()
               if (balanced := [table for table in tables if table.distribution == "balanced"])}  # fmt: skip
    least = min((_apart(table, model)[0] for table in nearest.values()), default=0.0)
    shape = {"hidden": model.expert_width, "ffn": model.expert_ffn, "experts": model.experts, "top_k": model.top_k}
    return [
        table.model_copy(update=shape | {"scaled_from": table.model})
        for key, like in nearest.items() if 0 < _apart(like, model)[0] <= max(least, NEAR)
        for table in kernels[key] if table.model == like.model
    ]  # fmt: skip


def _apart(table: MoeTable, model: ModelSpec) -> tuple[float, int]:
    """Doublings of sizes between a table's shape and the model's; of the same, most distributions of routing first."""
    sizes = ((table.hidden, model.expert_width), (table.ffn, model.expert_ffn), (table.experts, model.experts))
    return sum(abs(float(np.log2(a / b))) for a, b in sizes), -len(table.ranks)


# ---- tables
# Tables of step times for compiled code, from the laws of an iteration, and how far interpolation is off.

MOST_CONTEXT, MOST_CHUNKS, MOST_PROMPT = 2**20, 256, 2**17
PRODUCTS = (PROJECTIONS, DENSE_FFN, SHARED)
LOCAL = tuple(cause for cause in CAUSES if cause not in OF_ROUTED)  # of a rank by itself
_SEEN = 400  # batches on which interpolation is judged


class OfRequests(TypedDict):
    """As in ``Host``."""

    request_ns: float
    front_end_ns: float
    first_after: int


class Host(NamedTuple):
    """Time of the host: an iteration, each request in it, an iteration that no captured graph covers (``prompt_ns``),
    and once a request before it is queued: ``front_end_ns`` one after the other, then ``request_ns``. ``captured``:
    most tokens of a rank in a graph with prompts; 0: graphs cover decodes alone. ``first_after``: iterations
    of its engine after which a client sees a first token, its own among them; it sees all tokens as late. ``experts``:
    time of routed experts relative to their law; ``decodes``, ``prompts``: of all that laws give in iterations without
    and with prompts. ``handoff_ns``: of a request between engines that prefill and decode. ``products``, ``attention``,
    ``moves``: time of products, of attention, and of dispatch, combine and collectives relative to their laws.
    """

    iteration_ns: float = 0.0
    sequence_ns: float = 0.0
    prompt_ns: float = 0.0
    request_ns: float = 0.0
    front_end_ns: float = 0.0
    captured: int = 0
    first_after: int = 1
    experts: float = 1.0
    decodes: float = 1.0
    prompts: float = 1.0
    handoff_ns: float = 0.0
    products: float = 1.0
    attention: float = 1.0
    moves: float = 1.0

    @property
    def told(self) -> str:
        """The host as a file of ``archsim serve`` writes it under ``host``. Times below a nanosecond
        are written as 0.
        """
        names = ("iteration", "sequence", "prompt", "request", "front_end")
        times = {name: getattr(self, f"{name}_ns") for name in names}
        each = [f"{name}: {ns / 1e6 if ns >= 1 else 0:.4g} ms" for name, ns in times.items()]
        factors = [f"{name}: {getattr(self, name):.4g}" for name in ("decodes", "prompts")]
        return f"{{{', '.join([*each, f'first_after: {self.first_after}', *factors])}}}"

    def of_iterations(self, most_requests: int) -> np.ndarray:
        """As in ``StepTable``. The largest captured graph has twice the requests of a batch, up to ``captured`` (vLLM
        v0.10 to v0.19, vllm/config: cuda_graph_sizes and max_cudagraph_capture_size, min(2 x max_num_seqs, 512)).
        """
        graph = float(min(self.captured, 2 * most_requests))
        return np.array([self.iteration_ns, self.sequence_ns, self.prompt_ns, graph, self.decodes, self.prompts])

    @property
    def of_requests(self) -> OfRequests:
        """What ``simulate`` charges requests, by its names."""
        return OfRequests(request_ns=self.request_ns, front_end_ns=self.front_end_ns, first_after=self.first_after)


class TabulatedTimes(NamedTuple):
    """A table; ``errors``: (median, largest) share by which it is off the laws; ``extrapolated``: share of the time of
    typical batches that laws give outside their measured sizes.
    """

    table: StepTable
    errors: tuple[float, float]
    extrapolated: float


class Overlap(NamedTuple):
    """``how``: of `archsim.iteration.overlap`; ``sms_share``: of the SMs, those that transfers take as long as they
    run; ``flop_per_s``: at peak; ``parts``: micro-batches whose experts are on another side; ``stages``: of a pipeline;
    ``hop_ns``: float64[tokens of a rank] of hidden vectors from one stage to the next, by copies of ``hops_of``.
    ``sharing``: groups of ranks that share the tokens of every prompt; ``shared_ns``: float64[tokens of a prompt] in
    which they gather its keys and values, of all layers.
    """

    how: str = NO_OVERLAP
    sms_share: float = 0.0
    flop_per_s: float = np.inf
    parts: int = 1
    stages: int = 1
    hop_ns: np.ndarray = np.zeros(1)
    hops_of: str = ""
    sharing: int = 1
    shared_ns: np.ndarray = np.zeros(1)


ALONE = Overlap()


def prepare(
    laws: IterationLaws,
    host: Host,
    most_requests: int,
    overlap: Overlap = ALONE,
    offloaded_ns: np.ndarray | float = 0.0,
) -> TabulatedTimes:
    """The tables of an engine under the constants of its host; ``offloaded_ns``: float64[tokens of a rank] by which
    loads of experts make an iteration longer.
    """
    whole = _attention(laws, most_requests)
    shared = whole if overlap.sharing == 1 else _attention(laws, most_requests, overlap.sharing)
    table = _table(laws, host, most_requests, overlap, shared, offloaded_ns)
    plain = _table(laws, Host(), most_requests, ALONE, whole)
    return TabulatedTimes(table, *_judged(laws, plain, most_requests))


def _table(
    laws: IterationLaws,
    host: Host,
    most_requests: int,
    overlap: Overlap,
    attention: tuple[np.ndarray, np.ndarray],
    offloaded_ns: np.ndarray | float = 0.0,
) -> StepTable:
    """``attention``: as `_attention` gives it."""
    ours = LOCAL if overlap.how == NO_OVERLAP else tuple(cause for cause in LOCAL if cause != SHARED)
    decode_up, prefill_up = (
        laws.ns(PROJECTIONS, ALL_REDUCE, rows=rows) + _more_of_halves(laws, overlap, rows, (PROJECTIONS,))
        for rows in (DECODES, PROMPTS)
    )
    local = laws.ns(*ours) + _more_of_halves(laws, overlap, TOKENS, ours)
    head = laws.ns(*CAUSES, rows=SAMPLED)
    if overlap.stages > 1:  # a token passes all stages, with the others of its micro-batch
        at = -(-np.arange(laws.sizes) // overlap.stages)
        local = local[at] + overlap.stages * overlap.hop_ns[at]
        head, decode_up, prefill_up = head[at], decode_up[at], prefill_up[at]
    experts, dispatch, combine = laws.ns(EXPERTS) + offloaded_ns, laws.ns(DISPATCH), laws.ns(COMBINE)
    if overlap.sharing > 1:  # every group has its part of the tokens of a prompt
        at = -(-np.arange(laws.sizes) // overlap.sharing)
        local, prefill_up = local[at], prefill_up[at] + overlap.shared_ns
        experts, dispatch, combine = experts[at], dispatch[at], combine[at]
    beside, off = _beside(laws, overlap), math.log(host.attention)
    return StepTable(
        host.products * local,
        host.experts * experts,
        host.moves * dispatch,
        host.moves * combine,
        host.products * head,
        host.products * decode_up,
        host.products * prefill_up,
        attention[0] + off,
        attention[1] + off,
        host.of_iterations(most_requests),
        beside._replace(shared=host.products * beside.shared, before=host.products * beside.before),
    )


def _more_of_halves(laws: IterationLaws, overlap: Overlap, rows: str, causes: Sequence[str]) -> np.ndarray:
    """float64[rows] that two halves, or micro-batches, take longer than the whole, kernel by kernel; 0 if there are
    none.
    """
    found, at = np.zeros(laws.sizes), np.arange(laws.sizes)
    for cause in causes if overlap.how == MICRO_BATCHES else ():
        whole = laws.ns(cause, rows=rows)
        found += np.maximum(overlap.parts * whole[-(-at // overlap.parts)] - whole, 0.0)
    flop = row_flop(laws.model, laws.parallel)
    for cause in causes if overlap.how == TWO_BATCH else ():
        whole = laws.ns(cause, rows=rows)
        half = (whole[at // 2] + whole[(at + 1) // 2]) / 2
        multiply = flop.get((rows, cause), 0.0) * at / 2 / overlap.flop_per_s * NS_PER_S * (cause in PRODUCTS)
        found += of_halves.py_func(whole, half, multiply, overlap.sms_share) - whole
    return found


def _beside(laws: IterationLaws, overlap: Overlap) -> OverlapTimes:
    if overlap.how == NO_OVERLAP:
        return OverlapTimes(stages=np.float64(overlap.stages))
    model, parallel = laws.model, laws.parallel
    share = before_attention(model, parallel)
    before = laws.ns(PROJECTIONS) + _more_of_halves(laws, overlap, TOKENS, (PROJECTIONS,))
    of_token = 2.0 * model.slices * model.slice_weights * model.top_k * parallel.dp / parallel.ranks
    of_shared = row_flop(model, parallel).get((TOKENS, SHARED), 0.0)
    layers = len(model.moe_layer_ids)
    return OverlapTimes(
        HOW[overlap.how],
        laws.ns(SHARED),
        share * before,
        np.float64(share),
        np.float64(layers / model.layers),
        np.float64(overlap.sms_share),
        np.float64(of_shared / overlap.flop_per_s * NS_PER_S),
        np.float64(layers * of_token / overlap.flop_per_s * NS_PER_S),
        np.float64(overlap.parts),
        np.float64(layers),
    )


def axis(most: float) -> np.ndarray:
    """Sizes from 1 to at least ``most``."""
    return 2.0 ** (np.arange(int(np.ceil(np.log2(max(most, 2)) * OCTAVE)) + 1) / OCTAVE)


def _attention(laws: IterationLaws, most_requests: int, sharing: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """``sharing``: groups that have each a part of the tokens of a prompt, early and late ones alike, so that all see
    as much before them.
    """
    batch, context = axis(most_requests), axis(MOST_CONTEXT)
    decode = sum(layers * times.ns(batch[:, None], 1.0, context) for times, layers in laws.attention[DECODE_PHASE])
    chunks, new, ratio = axis(min(most_requests, MOST_CHUNKS)), axis(MOST_PROMPT), axis(2**13)
    seen = new[:, None] * ratio
    part = np.maximum(new[:, None] / sharing, 1.0)
    at = chunks[:, None, None], part, np.maximum(seen - new[:, None] / 2 + part / 2, part)
    prefill = sum(layers * times.ns(*at) for times, layers in laws.attention[PREFILL_PHASE])
    return np.log(np.maximum(decode, 1e-9)), np.log(np.maximum(prefill, 1e-9))


def _judged(laws: IterationLaws, table: StepTable, most_requests: int) -> tuple[tuple[float, float], float]:
    """Random batches of a prompt chunk and decodes, by the laws and by the table."""
    draw = np.random.default_rng(0)
    decodes = np.rint(np.exp(draw.uniform(0, np.log(most_requests), _SEEN)))
    context = np.rint(np.exp(draw.uniform(np.log(64), np.log(32768), _SEEN)))
    new = np.rint(np.exp(draw.uniform(np.log(2), np.log(8192), _SEEN)))
    before = np.rint(draw.uniform(0, 3, _SEEN) * new)
    one, seen = np.ones(_SEEN), before + new
    times = iteration_times(laws, Batches(decodes, context, one, new, seen, decodes + one))
    found = np.empty(_SEEN)
    times_of(table, np.stack([decodes, context, new, seen], axis=1), found)
    off = np.abs(found / times.total_ns - 1)
    return (float(np.median(off)), float(off.max())), float(times.extrapolated.mean())


# ---- deployment

GATHERED, BY_RANK, LOW_LATENCY = "all_gather", "per_rank", "per_token_expert"  # of `archsim.specs.assumptions`
# Ranks that gather all tokens rather than dispatch them. TensorRT-LLM dispatches where more ranks share the experts
# than a token takes (_torch/modules/fused_moe, enable_alltoall: moe_ep_size > top_k, 8 of DeepSeek's and Qwen3's);
# recipes of SGLang name DeepEP for engines of more than a node.
GATHERED_RANKS = NODE
UNIFORM = "uniform"  # every token draws its experts by chance; other routings are those of the fused MoE law
NO_HOST = Host()
# Units a block: the share of a window's block, or of a state, in a block is exact to a thousandth.
UNITS = 1024


class StaticBatch(NamedTuple):
    """Requests that prefill in one pass, all of them at once. ``requests``, ``tokens``: of all ranks, and of a request
    with its output; ``prompt_tokens``: of all ranks; ``reserve_bytes``: of a GPU, for nothing else; ``imbalance``:
    pairs of the busiest rank over the mean, for which buffers are sized; ``stages``: sets of buffers; ``gathered``:
    experts of a layer that two further buffers hold.
    """

    requests: int
    tokens: int
    prompt_tokens: int
    reserve_bytes: float
    imbalance: float
    stages: int
    gathered: int

    def buffer_bytes(self, model: ModelSpec, parallel: Parallelism, precision: Precision) -> int:
        """The buffers of a rank hold the hidden vectors of all tokens, gathered and summed; for every pair of token and
        expert on the busiest rank its vector sent and returned, and the products with gate and up and their product, in
        BF16; and copies of experts.
        """
        pair = (2 * model.hidden + 3 * model.expert_ffn) * ACTIVATION_BYTES
        pairs = self.prompt_tokens * model.top_k / parallel.ep * self.imbalance
        vectors = 2 * self.prompt_tokens * model.hidden * ACTIVATION_BYTES
        return int(
            vectors + self.stages * pairs * pair + 2 * self.gathered * rank_memory.expert_bytes(model, precision)
        )


class Offload(NamedTuple):
    """Experts in memory of the host. ``absent``: of a rank in a layer, those that HBM lacks; ``bytes_per_s``: of loads
    of a rank; ``accuracy``: share of loads that are named a layer before; None: none is named. ``missing``: function of
    int64[n] tokens of all ranks: float64[n] experts of a rank and layer that they choose and HBM lacks, of the mean
    layer.
    """

    absent: int
    bytes_per_s: float
    accuracy: float | None
    missing: Callable[[np.ndarray], np.ndarray]
    told: str


def missing_of(model: ModelSpec, ep: int, resident: int, pool: TokenPool | None) -> Callable[[np.ndarray], np.ndarray]:
    """``missing`` of `Offload`: each expert that is not resident is loaded if one of the tokens chooses it. With a
    pool of traffic, those are resident that the first half of its decodes chose most, and the second half says how
    often the others are chosen; of the rank that loads most.
    """
    mine, experts = model.experts // ep, model.experts
    if pool is None:
        chosen = model.top_k / experts
        return lambda tokens: (mine - resident) * (1 - (1 - chosen) ** tokens)
    half = max(len(pool.decodes) // 2, 1)
    lacking = []
    for layer in range(pool.decodes.shape[1]):
        first, second = (np.bincount(each[:, layer].ravel(), minlength=experts) / len(each)
                         for each in (pool.decodes[:half], pool.decodes[half:]))  # fmt: skip
        order = np.argsort(-first.reshape(ep, mine), axis=1, kind="stable")
        lacking.append(np.take_along_axis(second.reshape(ep, mine), order, axis=1)[:, resident:])
    often = np.minimum(np.stack(lacking), 1.0)  # [layer, rank, expert]

    def missing(tokens: np.ndarray) -> np.ndarray:
        each = [(1 - (1 - often) ** count).sum(axis=2).max(axis=1).mean() for count in _FEW_TOKENS]
        return np.interp(tokens, _FEW_TOKENS, each)

    return missing


_FEW_TOKENS = np.concatenate([[0], np.unique(np.rint(2 ** np.arange(0, 17.01, 0.25)))])


class ServingEngine(NamedTuple):
    """``library``: whose attention; None: any. ``utilisation``: share of HBM that it may use; ``utilised``: whether the
    file says it.
    ``routing``: None where experts come from traffic. ``rates``: of a die that is not the calibrated GPU.
    ``expert_slots``: of the fullest rank, all layers together; None: its share of the experts. ``overlap``: what runs
    beside what. ``mtp_layers``: of multi-token prediction, which draft. ``profiled_seqs``:
    requests whose sampling the engine keeps room for; 0: those that its scheduler may run. ``static``: a static batch,
    None for requests that come one by one. ``offload``: of experts, None: all are in HBM. ``shares_prompts``: whether
    its groups of data-parallel attention share the tokens of every prompt, and have no decodes. ``decodes_alone``:
    whether other engines compute the prompts.
    """

    model: ModelSpec
    calibration: CalibrationSpec
    hbm_bytes: float
    parallel: Parallelism = Parallelism()
    precision: Precision = Precision()
    routing: str | None = UNIFORM
    library: str | None = None
    utilisation: float = 0.9
    rates: gemm.Rates | None = None
    expert_slots: int | None = None
    overlap: Overlap = Overlap()
    mtp_layers: int = 0
    profiled_seqs: int = 0
    static: StaticBatch | None = None
    offload: Offload | None = None
    shares_prompts: bool = False
    decodes_alone: bool = False
    utilised: bool = False

    @property
    def budget(self) -> rank_memory.Budget:
        """What a rank may use; of a static batch, all but its reserve."""
        if self.static is not None:
            return rank_memory.Budget(self.hbm_bytes - self.static.reserve_bytes, 1.0, exact=True)
        exact = self.rates is not None
        return rank_memory.Budget(
            self.hbm_bytes, self.utilisation, self.library, self.utilised, self.parallel.ranks, exact
        )


def offloaded_ns(engine: ServingEngine, laws: IterationLaws) -> np.ndarray | float:
    """float64[tokens of a rank] by which loads of experts make an iteration longer. Loads that are named before pass
    while a layer is computed, right and wrong ones alike, and wrong ones are of experts that no token needs; the time
    of attention, which depends on contexts, does not count for that. When the router has chosen, wrong loads that wait
    are dropped, and whatever is lacking is loaded.
    """
    offload, model, parallel = engine.offload, engine.model, engine.parallel
    if offload is None:
        return 0.0
    tokens = np.arange(laws.sizes) * parallel.dp
    n_bytes = rank_memory.expert_bytes(model, engine.precision, parallel.expert_tp) / parallel.expert_tp
    missing, of_expert = offload.missing(tokens), n_bytes / offload.bytes_per_s * NS_PER_S
    load, layers = missing * of_expert, len(model.moe_layer_ids)
    if offload.accuracy is None:
        return layers * load
    beside = laws.ns(*LOCAL) / model.layers + (laws.ns(EXPERTS) + laws.ns(DISPATCH) + laws.ns(COMBINE)) / layers
    right = offload.accuracy * load
    wrong = np.minimum(load - right, (offload.absent - missing) * of_expert)
    named = np.maximum(right + wrong, 1e-9)  # where nothing is missing
    return layers * (load - right * np.minimum(1.0, beside / named))


class Built(NamedTuple):
    """A pool with the laws behind it. ``errors``: of interpolation, (median, largest) share; ``extrapolated``: share of
    the time that laws give outside their measured sizes.
    """

    pool: Pool
    laws: IterationLaws
    errors: tuple[float, float]
    extrapolated: float
    notes: tuple[str, ...]


def build(engine: ServingEngine, scheduler: Scheduler, host: Host = NO_HOST, instances: int = 1) -> Built:
    """A pool of ``instances`` of an engine. Raises SpecError for sizes that do not divide, LawMissing for what was not
    measured, CapacityError for weights that leave no room for KV.
    """
    laws, notes = laws_of(engine, scheduler)
    return with_host(laws, notes, engine, scheduler, host, instances)


def laws_of(engine: ServingEngine, scheduler: Scheduler) -> tuple[IterationLaws, tuple[str, ...]]:
    """The laws of an engine's iterations, with experts, and what stands in for what was not measured, in words."""
    precision = engine.precision
    refuse_cut_blocks(engine.model, engine.parallel, precision)
    found = with_stand_ins(engine.calibration, engine.model, precision.products, precision.experts)
    precision = precision._replace(products=found.products, experts=found.experts)
    most = scheduler.max_num_batched_tokens + scheduler.max_num_seqs
    model, apart = engine.model, engine.routing is None
    if apart:  # experts are timed elsewhere, and may be shared unevenly
        model = model.model_copy(update={"experts": -(-model.experts // engine.parallel.ep) * engine.parallel.ep})
    wide = dispatches_alike(engine)
    laws = iteration_laws(
        model, found.calibration, engine.parallel, precision, experts=experts_of(engine.routing, engine.library),
        moves=ELSEWHERE if (apart and engine.parallel.dp > 1) or wide else None, library=engine.library,
        rates=engine.rates, most_tokens=min(most, 32768),
    )  # fmt: skip
    if not wide:
        return laws, (*found.notes, *laws.notes)
    laws, told = _with_dispatch(laws, engine)
    return laws, (*found.notes, *laws.notes, told)


def dispatches_alike(engine: ServingEngine) -> bool:
    """Whether ranks send tokens to the experts that they take, and not to all ranks, and no traffic says where these
    are: beyond GATHERED_RANKS, with whole experts on every rank. SGLang's recipes of GB200 in FP8 name DeepEP for
    decodes on any number of ranks (srt-slurm, recipes/gb200-fp8/1k1k/ultra-tpt.yaml).
    """
    parallel = engine.parallel
    several = parallel.dp > 1 and parallel.expert_tp == 1 and has_experts(engine.model)
    named = engine.library == "sglang" and engine.decodes_alone and engine.calibration.gpu in NVLINK_RANKS
    wide = parallel.ranks > GATHERED_RANKS or (named and engine.precision.experts == "fp8_block")
    return engine.routing is not None and several and wide


def dispatch_of(gpu: str, ranks: int, decodes_alone: bool) -> str:
    """How more than GATHERED_RANKS exchange tokens: once for every rank that takes some; between nodes, engines that
    only decode take DeepEP's low-latency kernels, as SGLang's and vLLM's do.
    """
    return LOW_LATENCY if decodes_alone and ranks > NVLINK_RANKS.get(gpu, NODE) else BY_RANK


def _with_dispatch(laws: IterationLaws, engine: ServingEngine) -> tuple[IterationLaws, str]:
    """With dispatch and combine by the laws of their kernels; and whose they are, in words."""
    parallel, model, gpu = engine.parallel, engine.model, engine.calibration.gpu
    sizes = Sizes(model.experts, model.top_k, model.expert_groups, model.top_groups)
    tokens = np.arange(laws.sizes) / parallel.tp  # each rank of a group sends its part
    n_bytes = vector_bytes(model.expert_width, engine.precision.experts, "bf16")
    how = dispatch_of(gpu, parallel.ranks, engine.decodes_alone)
    found = send_equal(engine.calibration, how, sizes, model.expert_width, n_bytes, parallel.ranks, tokens)
    layers = len(model.moe_layer_ids)
    moved = {DISPATCH: layers * found.dispatch, COMBINE: layers * found.combine}
    beyond = sum(moved.values()) if found.carried else 0.0
    by = {**laws.by, TOKENS: {**laws.by[TOKENS], **moved}}
    outside = {**laws.outside, TOKENS: laws.outside[TOKENS] + beyond}
    return replace(laws, by=by, outside=outside), found.sources


def experts_of(routing: str | None, library: str | None = None) -> Experts | None:
    """Who times the experts of a routing, served by an engine with kernels of ``library``."""
    if routing is None:
        return None
    return ByChance(library) if routing == UNIFORM else FusedLaw(routing)


def with_host(
    laws: IterationLaws, notes: tuple[str, ...], engine: ServingEngine, scheduler: Scheduler, host: Host, instances: int
) -> Built:
    """A pool from laws that are known."""
    overlap = engine.overlap if engine.parallel.stages == 1 else pipeline_of(engine, laws.sizes)
    if overlap.hops_of not in ("", engine.calibration.gpu):
        own = f"as none were measured on {engine.calibration.gpu}"
        notes = (*notes, f"Copies between stages take the times of {overlap.hops_of}, {own}.")
    if engine.shares_prompts:
        overlap = sharing_of(engine, laws.sizes)
    table, errors, extrapolated = prepare(laws, host, scheduler.max_num_seqs, overlap, offloaded_ns(engine, laws))
    blocks, units = kv_blocks(engine, scheduler), kv_units(engine)
    pool = Pool(instances, 1 if engine.shares_prompts else engine.parallel.dp, blocks, table, units=units)
    told = (engine.offload.told if engine.offload is not None else "", doubt_of(engine, scheduler))
    return Built(pool, laws, errors, extrapolated, (*notes, *filter(None, told)))


def request_kv(engine: ServingEngine, hybrid: bool = True) -> rank_memory.RequestKv:
    """What a request keeps on one rank. Layers with a window keep all tokens in vLLM where its manager is not
    ``hybrid``, as with attention in chunks (vllm/config/vllm.py, attention_chunk_size).
    """
    all_kept = "none" if engine.library != "vllm" else "chunks" if hybrid else "windows"
    return rank_memory.request_kv(engine.model, engine.parallel, engine.precision, engine.mtp_layers, all_kept)


def kv_units(engine: ServingEngine) -> KvUnits:
    """The same in units of a block of the layers that keep all tokens; a byte stands for each of its tokens where the
    model keeps none.
    """
    kv = request_kv(engine)
    if not kv.windows and not kv.fixed_bytes:
        return KvUnits()
    of_token = max(kv.token_bytes, 1)
    windows = tuple((tokens, ceil(UNITS * each / of_token)) for tokens, each in kv.windows)
    return KvUnits(UNITS, ceil(UNITS * kv.fixed_bytes / of_token), windows)


def store_of(engine: ServingEngine, blocks_of_tokens: int, given: KvStoreSpec, engines: int) -> KvStore:
    """A store of KV beside the HBM of ``engines`` engines, in blocks of a rank. A block is kept once, whatever the
    ranks that have copies of it; every device loads what it keeps. Raises SpecError for KV that is not of every token.
    """
    kv = request_kv(engine)
    if kv.windows or kv.fixed_bytes or not kv.token_bytes:
        raise SpecError(
            f"kv_store: {engine.model.name} has layers that keep a window or a state; stores of these are not modelled"
        )
    whole = rank_memory.request_kv(engine.model, Parallelism(), engine.precision, engine.mtp_layers).token_bytes
    blocks = int(given.capacity_bytes // (whole * blocks_of_tokens))
    if blocks < 1:
        raise SpecError(f"kv_store: a block of {blocks_of_tokens} tokens takes {whole * blocks_of_tokens / 1e6:.1f} "
                        "MB. Give more capacity")  # fmt: skip
    ns = kv.token_bytes * blocks_of_tokens / given.bandwidth_bytes_per_s * NS_PER_S
    return KvStore(blocks, given.shared == "all" or engines == 1, ns, given.latency_ns)


def handed_over(engine: ServingEngine, bytes_per_s: float, latency_ns: float, host: Host) -> KvTransfer:
    """How a prefill engine hands its requests over. Every rank sends its part of the KV cache at once, and the host
    passes the request on.
    """
    copies = engine.parallel.dp if engine.shares_prompts else 1  # each sends a part of what all have
    kv, ns_per_byte = request_kv(engine), NS_PER_S / bytes_per_s / copies
    windows = np.array([(tokens, each * ns_per_byte) for tokens, each in kv.windows], float).reshape(-1, 2)
    return KvTransfer(
        np.float64(latency_ns + host.handoff_ns), np.float64(kv.token_bytes * ns_per_byte),
        np.float64(kv.fixed_bytes * ns_per_byte), windows,
    )  # fmt: skip


def kept(engine: ServingEngine, scheduler: Scheduler) -> dict[str, int]:
    """Kind → bytes on one rank that are no KV: weights, and activations of the largest step."""
    model, parallel, precision = engine.model, engine.parallel, engine.precision
    ranks = parallel.ep * parallel.expert_tp if has_experts(model) else parallel.tp
    share = model.experts * len(model.moe_layer_ids) / ranks
    slots = share if engine.expert_slots is None else engine.expert_slots
    tokens, requests = scheduler.max_num_batched_tokens, engine.profiled_seqs or scheduler.max_num_seqs
    activations = 0
    if engine.static is not None:
        activations = engine.static.buffer_bytes(model, parallel, precision)
    elif engine.library != rank_memory.SGLANG:  # whose share of HBM is for weights and KV
        activations = int(
            rank_memory.activation_bytes(model, parallel, precision, tokens, requests, engine.rates is None)
        )
    weights = rank_memory.weights_by_kind(model, parallel, precision, slots, engine.mtp_layers)
    return weights | {rank_memory.ACTIVATIONS: activations}


def kv_room(engine: ServingEngine, scheduler: Scheduler) -> rank_memory.KvRoom:
    """What HBM of a rank leaves for KV; vLLM may start without its hybrid manager (connectors of KV turn it off)."""
    whole = request_kv(engine, hybrid=False)
    return rank_memory.room_left(kept(engine, scheduler), engine.budget, request_kv(engine), whole)


def kv_blocks(engine: ServingEngine, scheduler: Scheduler) -> int:
    """KV blocks of a rank: what HBM leaves after weights and activations. Raises CapacityError."""
    found = kv_room(engine, scheduler)
    # A model of linear attention alone keeps no tokens: a byte each, so that blocks stay countable.
    block = max(found.kv.token_bytes, 1) * scheduler.block_tokens
    if engine.static is not None:
        _refuse_batch(engine, engine.static, found)
    blocks = int(found.usable_bytes // block)
    least = least_kv(engine, scheduler)
    if not found.fits(least) or kv_units(engine).most_tokens(blocks, scheduler.block_tokens, 1) < 1:
        raise CapacityError(_no_room(engine, scheduler, found, least))
    return blocks


def least_kv(engine: ServingEngine, scheduler: Scheduler) -> float:
    """Bytes of a block of KV, with what one request keeps besides."""
    kv = request_kv(engine)
    return scheduler.block_tokens * (max(kv.token_bytes, 1) + sum(each for _, each in kv.windows)) + kv.fixed_bytes


def doubt_of(engine: ServingEngine, scheduler: Scheduler) -> str:
    """The note of an engine that fits in some samples alone of what it takes of HBM; ''."""
    return kv_room(engine, scheduler).doubtful(least_kv(engine, scheduler), engine.model.name)


def _refuse_batch(engine: ServingEngine, batch: StaticBatch, room: rank_memory.KvRoom) -> None:
    """Raise CapacityError for a static batch whose KV does not fit beside weights and buffers."""
    each = -(-batch.requests // engine.parallel.dp)
    needed = each * room.kv.held_bytes(batch.tokens)
    if needed > room.free_bytes:
        buffers = batch.buffer_bytes(engine.model, engine.parallel, engine.precision)
        raise CapacityError(
            f"{engine.model.name}: a static batch of {batch.requests} requests of {batch.tokens:,} tokens does not "
            f"fit: its buffers take {buffers / 1e9:.1f} GB of a rank, its KV {needed / 1e9:.1f} GB, and HBM has "
            f"{(room.free_bytes + buffers) / 1e9:.1f} GB for both, beside weights and a reserve of "
            f"{batch.reserve_bytes / 1e9:.1f} GB. Use fewer or shorter requests"
        )


def _no_room(engine: ServingEngine, scheduler: Scheduler, room: rank_memory.KvRoom, block: float) -> str:
    """Demand, bound, gap, and single changes that leave room for a block."""
    by_kind, found = kept(engine, scheduler), []
    activations, demand = by_kind[rank_memory.ACTIVATIONS], sum(by_kind.values())
    bound, gap = demand + room.free_bytes, block - room.free_bytes
    ep = engine.parallel.ep
    for times in (2, 4, 8, 16) if has_experts(engine.model) and engine.expert_slots is None else ():
        more = engine._replace(parallel=engine.parallel._replace(dp=engine.parallel.dp * times, ep=ep * times))
        if not engine.model.experts % (ep * times) and _fits(more, scheduler, block):
            devices = f"which take {times} times the devices"
            found.append(f"attention dp {more.parallel.dp} and experts ep {ep * times}, {devices}")
            break
    tokens = next((each for each in _halves(scheduler.max_num_batched_tokens)
                   if _fits(engine, scheduler._replace(max_num_batched_tokens=each), block)), None)  # fmt: skip
    if tokens is not None:
        found.append(f"max_num_batched_tokens: {tokens}")
    seqs = next((each for each in _halves(engine.profiled_seqs or scheduler.max_num_seqs, 16)
                 if _fits(engine._replace(profiled_seqs=each), scheduler, block)), None)  # fmt: skip
    if seqs is not None:
        found.append(f"max_num_seqs: {seqs}")
    if WEIGHT_BYTES[engine.precision.experts] > 1:
        narrow = engine._replace(precision=engine.precision._replace(products="fp8", experts="fp8"))
        found += ["precision: {products: fp8, experts: fp8}"] if _fits(narrow, scheduler, block) else []
    found.append(f"HBM of at least {(demand + block) / engine.utilisation / 1e9:.1f} GB a device")
    return (
        f"{engine.model.name}: {(demand - activations) / 1e9:.1f} GB of weights and {activations / 1e9:.1f} GB of "
        f"activations on a rank leave no room for KV: with a block of it they need {(demand + block) / 1e9:.1f} GB, "
        f"HBM has {bound / 1e9:.1f} ({engine.utilisation:.0%} of {engine.hbm_bytes / 1e9:.0f} GB{room.nowhere}), "
        f"{gap / 1e9:.1f} GB too little. It would fit with {', or '.join(found)}"
    )


def _fits(engine: ServingEngine, scheduler: Scheduler, block: float) -> bool:
    return not kv_room(engine, scheduler).doubtful(block, "")  # in nearly all samples


def _halves(most: int, least: int = 64) -> list[int]:
    return [most >> by for by in range(1, 8) if most >> by >= least]


def gathered(engine: ServingEngine, sizes: int, sums: str = "reduce_scatter") -> Gathered:
    """Hidden vectors gathered before the experts and summed after them, by the collective ``sums``, where ranks have
    requests of their own; 0 where all ranks have the same.
    """
    parallel, model, tokens = engine.parallel, engine.model, np.arange(sizes)
    if parallel.dp == 1 or not has_experts(model):
        return Gathered(np.zeros(sizes), np.zeros(sizes))
    size = np.maximum(tokens * parallel.dp * model.hidden * ACTIVATION_BYTES, 1)
    layers = len(model.moe_layer_ids) * (tokens > 0)
    ops = ("all_gather", sums)
    return Gathered(*(layers * gathered_ns(Laws(engine.calibration), op, size, parallel.ranks) for op in ops))


# ---- expert_groups
# From a file to the groups of ranks that share its experts: their machine, their scenario, and their tokens.

WITH_KERNELS = "gpu"  # launch of systems whose collectives and transfers were measured
FROM_TRAFFIC = "Experts are chosen as in traffic"  # how the note on routing begins
NOT_MOVED = " Every rank has every token (attention dp 1), so dispatch and combine take no time under any assumption."


class GroupBuilder(NamedTuple):
    """Builds the group of instance i."""

    scenario: Scenario
    pool: TokenPool
    parts: Parts
    every: int
    alike: bool  # all ranks have all tokens
    made: dict[int, ExpertGroup]  # as they begin, by instance: drawing experts takes longer than serving few requests

    def group(self, instance: int, say: Say = lambda text: None) -> ExpertGroup:
        """The group of instance i. ``say`` is called with what it draws."""
        if instance not in self.made:
            self.made[instance] = ExpertGroup(self.scenario, self.pool, self.parts, self.every, instance, say)
        return self.made[instance].copy(say)

    @property
    def note(self) -> str:
        """What stands behind the times of experts."""
        layers, sampled = len(self.scenario.model.moe_layer_ids), len(self.pool.layer_ids)
        return (
            f"{FROM_TRAFFIC} ({self.pool.label}). {sampled} of {layers} MoE layers are simulated. Every {self.every:,} "
            f"iterations, tokens are drawn anew from {len(self.pool.decodes):,} decoded and "
            f"{len(self.pool.prompts):,} prompt tokens." + (NOT_MOVED if self.alike else "")
        )


def groups_of(serving: Serving, engine: ServingEngine, built: Built, scheduler: Scheduler, host: Host) -> GroupBuilder:
    """Groups of an engine under the policy that is served. Raises SpecError, TraceError."""
    spec, parallel = serving.spec.routing, engine.parallel
    assert isinstance(spec, RoutingSpec)
    _refuse_unmodelled(serving.model)
    refuse_unserved(serving.policy)
    if parallel.expert_tp > 1:
        raise SpecError(
            f"parallel.experts: tp {parallel.expert_tp}: routing from traffic places whole experts. Give ep: "
            f"{parallel.tp * parallel.dp}, or routing: uniform"
        )
    system = part_of(serving.system, parallel.ep)
    system = in_dtype(system, engine.precision.experts, engine.calibration)
    # The clock composes whole iterations (`archsim.iteration.overlap`), with the shared experts.
    apart = {"overlap": NO_OVERLAP, "weights": "routed"}
    assumptions = assumptions_of(serving, system, parallel.dp).model_copy(update=apart)
    scenario = Scenario(system, serving.model, assumptions, serving.policy, _WORKLOAD, 1)
    together = system.launch == WITH_KERNELS and (parallel.dp == 1 or assumptions.dispatch in GATHERING)
    sums = GATHERING.get(assumptions.dispatch, GATHERING[GATHERED])
    moved = gathered(engine, built.laws.sizes, sums) if together else None
    parts = _parts(built, scheduler, serving.model, moved, host.experts, host.moves)
    alike = system.launch == WITH_KERNELS and parallel.dp == 1
    return GroupBuilder(scenario, pool_of(serving), parts, spec.every, alike, {})


def _parts(
    built: Built, scheduler: Scheduler, model: ModelSpec, moved: Gathered | None, factor: float, moves: float = 1.0
) -> Parts:
    """What the ranks of an engine add to the time of its layers with experts. ``factor``, ``moves``: of the experts
    and of ``moved``, relative to their laws.
    """
    if moved is not None:
        moved = Gathered(moves * moved.dispatch, moves * moved.combine)
    ranks, rest_ns = built.laws.parallel.dp, built.pool.table.local / len(model.moe_layer_ids)
    most = ranks * (scheduler.max_num_batched_tokens + scheduler.max_num_seqs)
    return Parts(moved, rest_ns, factor, ranks, ranks * scheduler.max_num_seqs, most)


def _refuse_unmodelled(model: ModelSpec) -> None:
    """Raise SpecError for experts that the engine does not run."""
    for key in model.unmodelled_experts:
        raise SpecError(f"{model.name}: {key}: {UNMODELLED}")


def groups_apart(
    serving: Serving, engine: ServingEngine, built: Built, scheduler: Scheduler, host: Host
) -> GroupBuilder:
    """Groups of an engine whose experts are on another machine (attention–FFN disaggregation). All of its devices share
    the routed and shared experts. GPUs get the vectors of their experts straight from those that have attention, as in
    MegaScale-Infer (arXiv 2504.02263, section 5); a wafer gets a vector once, and its fabric spreads it. Raises
    SpecError, TraceError; CapacityError where the experts do not fit.
    """
    routing, apart, model, parallel = serving.spec.routing, serving.spec.experts_on, serving.model, engine.parallel
    assert isinstance(routing, RoutingSpec) and apart is not None
    _refuse_unmodelled(model)
    refuse_unserved(serving.policy)
    there = serving.on(EXPERTS_SIDE)
    system, assumptions = there.system, there.assumptions
    given = serving.spec.precision.experts
    if given not in (None, system.compute.dtype):
        raise SpecError(
            f"precision.experts: {given}: the experts have the dtype of their machine, {system.name}: "
            f"{system.compute.dtype}. Leave it out, or give the machine another compute.dtype and peak"
        )
    straight = system.launch == WITH_KERNELS
    changed = {"overlap": NO_OVERLAP, "weights": "all" if model.shared_experts else "routed"}
    if straight:
        changed["activations"] = "ignored"
    assumptions = assumptions.model_copy(update=changed)
    placement = place_experts(serving.policy, model, system.dies)
    counted = assumptions.model_copy(update={"memory": "experts"})
    fit = memory.memory_fit(system, model, counted, placement)
    if not fit.fits:
        needed = int(fit.demand_bytes.max())
        raise CapacityError(
            f"disaggregated.decode.experts_on: {model.name} does not fit on {system.name}: its experts need "
            f"{needed / 1e9:.1f} GB of a device, which has {fit.bound_bytes / 1e9:.1f} GB. It would fit with about "
            f"{-(-needed * system.dies // fit.bound_bytes)} devices or more instead of {system.dies}"
        )
    pool, layers = pool_of(serving), len(model.moe_layer_ids)
    copies = _devices_of_token(pool, placement) if straight else 1.0
    sizes = vector_bytes(model.hidden, system.compute.dtype, assumptions.combine)
    links, each = apart.links, np.arange(built.laws.sizes)
    # Of the fuller side: a rank's tokens over the links of its devices, or those of all ranks over the others' links.
    fuller = np.maximum(each / parallel.tp, each * parallel.dp / (links.expert_links or system.dies))

    def carried(n_bytes: int) -> np.ndarray:
        ns = links.latency_ns + fuller * copies * n_bytes / links.bandwidth_bytes_per_s * NS_PER_S
        return layers * np.where(each > 0, ns, 0.0)

    moved = Gathered(carried(sizes.dispatch), carried(sizes.combine))
    scenario = Scenario(system, model, assumptions, serving.policy, _WORKLOAD, 1)
    factor = host.experts if straight else 1.0
    parts = _parts(built, scheduler, model, moved, factor)._replace(inside=True)
    return GroupBuilder(scenario, pool, parts, routing.every, False, {})


def _devices_of_token(pool: TokenPool, placement) -> float:
    """Devices that hold some of a token's experts, each counted once: mean over the decodes of the traffic."""
    found = []
    for layer in range(pool.decodes.shape[1]):
        dies = np.sort(placement.home[min(layer, len(placement.home) - 1)][pool.decodes[:, layer]], axis=1)
        found.append(1 + (np.diff(dies, axis=1) > 0).sum(axis=1).mean())
    return float(np.mean(found))


class Busy(NamedTuple):
    """Shares of the time of a layer in which each stage of decodes with experts apart works."""

    attention: float
    there: float
    experts: float
    back: float


def busy_of(built: Built, table: np.ndarray, decodes: float, context: float) -> Busy:
    """How busy each stage is in an iteration with ``decodes`` requests of ``context`` tokens on every rank. ``table``:
    EXPERTS[phase, point].
    """
    beside, ranks = built.pool.table.beside, built.laws.parallel.dp
    part = max(decodes / float(beside.parts), 1.0)
    one, none = np.ones(1), np.zeros(1)
    times = iteration_times(built.laws, Batches(part * one, context * one, none, one, one, part * one))
    own = float(sum(ns[0] for cause, ns in times.ns.items() if cause not in (EXPERTS, *ONCE))) * float(beside.moe_share)
    at = np.log2(max(part * ranks, 1.0))
    points = np.arange(table.shape[1])
    ns = float(np.exp(np.interp(at, points, table[DECODE_ROW]["ln_ns"])))
    there, back = (ns * float(np.interp(at, points, table[DECODE_ROW][way])) for way in ("dispatch", "combine"))
    experts, parts = ns - there - back, float(beside.parts)
    whole = micro_batched.py_func(parts, float(beside.moe_layers), own, there, experts, back)
    return Busy(*(parts * each / whole for each in (own, there, experts, back)))


def pipeline_of(engine: ServingEngine, sizes: int) -> Overlap:
    """The stages of an engine, one after the other: a micro-batch for each is on its way, and hidden vectors go from
    one to the next by a copy, between nodes where the stages need more than one; copies that were not measured are
    those of the nearest GPU. Raises LawMissing.
    """
    parallel, tokens = engine.parallel, np.arange(sizes)
    placement = "inter_node" if parallel.ranks * parallel.stages > NODE else "intra_node"
    n_bytes = np.maximum(tokens * engine.model.hidden * ACTIVATION_BYTES, 1)
    laws = with_copies(Laws(engine.calibration), placement)
    copied = laws.copy(n_bytes, placement=placement).ns
    return Overlap(stages=parallel.stages, hop_ns=np.where(tokens > 0, copied, 0.0), hops_of=laws.calibration.gpu)


def sharing_of(engine: ServingEngine, sizes: int) -> Overlap:
    """The groups of an engine that share the tokens of every prompt: each has the keys and values of all, gathered in
    every layer before attention (SGLang, in-seq-split; Context Parallelism, arXiv 2411.01783, calls it all-gather).
    Raises SpecError for caches that are no list of tokens, and LawMissing.
    """
    kv, parallel = request_kv(engine), engine.parallel
    if kv.windows or kv.fixed_bytes or not kv.token_bytes:
        raise SpecError(
            f"parallel.attention.prompts: shared: {engine.model.name} has layers that keep a window or a state. Give "
            "own"
        )
    # As many bytes in BF16 as a token keeps, in as many messages as there are layers.
    of_token = kv.token_bytes * (ACTIVATION_BYTES if engine.precision.kv == "fp8" else 1)
    size = np.maximum(np.arange(sizes) * of_token / engine.model.layers, 1)
    laws = Laws(engine.calibration)
    each = engine.model.layers * gathered_ns(laws, "all_gather", size, parallel.dp)
    return Overlap(sharing=parallel.dp, shared_ns=np.where(np.arange(sizes) > 0, each, 0.0))


def in_dtype(system: SystemSpec, dtype: str, calibration: CalibrationSpec) -> SystemSpec:
    """The machine whose experts have this dtype, at the peak that its calibration gives it relative to that of the
    machine's own. Raises SpecError where it gives none.
    """
    own, peaks = system.compute.dtype, calibration.reference.peak_flop_per_s
    if dtype == own:
        return system
    if dtype not in peaks or own not in peaks:
        raise SpecError(
            f"precision.experts: {dtype}: calibration {calibration.gpu} has no peak of it beside {own}, the dtype of "
            f"{system.name}. Give system: {{like: {system.name}, name: mine, compute: {{dtype: {dtype}, peak: ...}}}}"
        )
    peak = system.compute.peak_flop_per_s * peaks[dtype] / peaks[own]
    compute = system.compute.model_copy(update={"dtype": dtype, "peak_flop_per_s": peak})
    return system.model_copy(update={"compute": compute})


def part_of(system: SystemSpec, ranks: int) -> SystemSpec:
    """The devices of one engine. Raises SpecError where they are no part of the system."""
    if system.dies == ranks:
        return system
    levels = system.fabric.levels if system.fabric is not None else ()
    sizes = [level.switch or 0 for level in levels]
    if sizes and all(sizes):
        if ranks <= sizes[0]:
            return _with_levels(system, (levels[0].model_copy(update={"switch": ranks}),))
        nodes, rest = divmod(ranks, sizes[0])
        if len(levels) > 1 and not rest:
            return _with_levels(system, (levels[0], levels[1].model_copy(update={"switch": nodes})))
    raise SpecError(
        f"parallel: {ranks} ranks are no part of {system.name} ({system.shape}); an engine takes all {system.dies} dies"
        + (", or some of a node, or whole nodes" if levels else "")
    )


def _with_levels(system: SystemSpec, levels) -> SystemSpec:
    assert system.fabric is not None
    return system.model_copy(update={"fabric": system.fabric.model_copy(update={"levels": levels})})


def overlap_of(serving: Serving, ranks: int, dp: int) -> Overlap:
    """What runs beside what on so many ranks. Raises SpecError where no kernels follow each other."""
    given = serving.assumptions
    if given.overlap == NO_OVERLAP:
        return Overlap()
    if given.execution != "expert_parallel":
        raise SpecError(
            f"assumptions.overlap: {given.overlap}: execution: {given.execution} has no dispatch, kernels and combine "
            "that follow each other. Give overlap: none"
        )
    system = part_of(serving.system, ranks)
    share = sms_share(system, assumptions_of(serving, system, dp))
    return Overlap(given.overlap, share, system.compute.peak_flop_per_s)


def assumptions_of(serving: Serving, system: SystemSpec, dp: int) -> AssumptionsSpec:
    """Where all ranks of an engine have all tokens, nothing is dispatched: transfers are left out, and so are free."""
    found, given = serving.assumptions, serving.spec.assumptions
    if system.launch != WITH_KERNELS:
        return found
    if dp == 1:
        return found.model_copy(update={"activations": "replicated"})
    if given is None or (isinstance(given, dict) and not {"dispatch", "set"} & set(given)):
        several = len(system.fabric.levels) > 1 if system.fabric is not None else False
        sends = several or system.dies > GATHERED_RANKS
        return found.model_copy(update={"dispatch": BY_RANK if sends else GATHERED})
    return found


# What an engine reads of it is nothing: demand comes from requests, and KV is counted in blocks.
_WORKLOAD = WorkloadSpec(trace=SyntheticTrace(synthetic=SyntheticSpec()), batch=(1,), context=0)


def pool_of(serving: Serving) -> TokenPool:
    """The tokens of a file's traffic; read once for all engines and policies."""
    assert isinstance(serving.spec.routing, RoutingSpec)
    model, spec, trace = serving.model, serving.spec.routing, serving.routed
    if trace is not None:
        content = open_trace(str(trace), model).digest
    else:
        like = spec.generated.preset_of(model.name)
        content = traffic_presets.preset_digest(like) if like else ""
    return _pool(model.model_dump_json(by_alias=True), spec.model_dump_json(by_alias=True), trace, content)


@lru_cache(maxsize=4)
def _pool(model: str, spec: str, trace: Path | None, content: str) -> TokenPool:
    """``content``: digest of the files that are read, since they may change."""
    return token_pool(ModelSpec.model_validate_json(model), RoutingSpec.model_validate_json(spec), trace)


def slots_of_rank(serving: Serving, parallel: ParallelSpec) -> int:
    """Expert slots of the fullest rank under the policy that is served."""
    placement = place_experts(serving.policy, serving.model, parallel.ranks)
    return slots_of(serving.policy, placement, len(serving.model.moe_layer_ids))


def refuse_on_wafer(serving: Serving, parallel: ParallelSpec) -> None:
    """Raise SpecError for what was measured on GPUs alone."""
    system, attention = serving.system, parallel.attention
    if attention.tp > 1:
        raise SpecError(
            f"parallel.attention: tp {attention.tp}: collectives were measured on GPUs, not on {system.name}. Give "
            f"{{tp: 1, dp: {system.dies}}}"
        )
    if not serving.has_traffic:
        raise SpecError(
            f"routing: {serving.spec.routing}: fused layers were measured on GPUs; {system.name} runs experts by the "
            "engine: give routing: {like: model}, or {synthetic: {popularity_skew: 0}}"
        )


# ---- hosts
# Fitted constants of serving engines: the host's time, and how far scaled laws of experts are off.

NONE, ANY = "none", "any"
PREFILL, DECODE = "prefill", "decode"  # engines that only prefill, or only decode
Time = Annotated[float, quantity(TIME, "0 ns", "1000 s", zero=True)]


class HostRow(fields.Spec):
    """Constants of an engine with MoE or dense models. ``iteration``, and ``layer`` for each layer: of every iteration;
    ``eager_layer``: of a layer, in one that no captured graph covers; ``captured``, ``front_end``: as in ``Host``;
    ``first_after``: engines choose an iteration while the one before runs, and send its tokens when the next one is
    over; ``handoff``: of a request that goes from an engine that prefills to one that decodes.
    """

    engine: str
    experts: bool
    iteration: Time
    layer: Time
    sequence: Time
    eager_layer: Time
    request: Time
    front_end: Time
    captured: Annotated[int, count(0, 1_000_000)]
    first_after: Annotated[int, count(1, 1000)]
    handoff: Time = 0.0


class FactorRow(fields.Spec):
    """Times relative to their laws, of what has these keys, each a name or ``any``; rows multiply. ``dtype``: of
    experts, or of a dense model's products; ``routed``: of routed experts; ``decodes``, ``prompts``: of all that laws
    give in iterations without and with prompts; ``request``: of the engine's constant of that name.
    """

    engine: str = ANY
    experts: bool
    gpu: str = ANY
    dtype: str = ANY
    model: str = ANY
    routed: float = 1.0
    decodes: float = 1.0
    prompts: float = 1.0
    request: float = 1.0

    def of(self, **keys: str | bool) -> bool:
        """Whether the row is of what has these keys."""
        return all(getattr(self, name) in (value, ANY) for name, value in keys.items())


class PoolRow(fields.Spec):
    """Engines that prefill and others that decode, of what has these keys, each a name or ``any``; rows multiply.
    ``decodes``: of all of an iteration of those that decode, relative to an engine's that does both; that of a GPU is
    one of its kernels, and of what laws give those that prefill, too. In place of the engine's own, where they are
    given: ``request``, ``handoff``, and ``first_after``, of iterations that decode: a first token comes with those of a
    decoding engine, which streams several at a time.
    """

    engine: str = ANY
    gpu: str = ANY
    dtype: str = ANY
    # Whether ranks have requests of their own; null: either.
    data_parallel: bool | None = None
    decodes: float = 1.0
    request: Time | None = None
    handoff: Time | None = None
    first_after: Annotated[int | None, count(1, 1000, none=True)] = None

    def of(self, dp: int, **keys: str) -> bool:
        """Whether the row is of what has these keys, and so many ranks of data-parallel attention."""
        same = self.data_parallel in (None, dp > 1)
        return same and all(getattr(self, name) in (value, ANY) for name, value in keys.items())


class ResidualRow(fields.Spec):
    """80 % of measured times, relative to simulated ones, of an engine with MoE or dense models on a GPU with experts
    (products) of a dtype; ``any``: of the engine on all. ``groups``: of measurements, on which constants were fitted.
    ``pools``: of engines that prefill and others that decode; else of those that do both.
    """

    engine: str
    experts: bool
    gpu: str
    dtype: str
    groups: Annotated[int, count(1, 1_000_000)]
    ttft: tuple[float, float]
    tpot: tuple[float, float]
    pools: bool = False


class HostFile(fields.Spec):
    """``groups``: of measurements, as many as the constants were fitted on."""

    source: str
    groups: int
    hosts: tuple[HostRow, ...]
    factors: tuple[FactorRow, ...]
    pools: tuple[PoolRow, ...] = ()
    residuals: tuple[ResidualRow, ...] = ()


@lru_cache
def host_file() -> HostFile:
    """The shipped constants. Raises SpecError."""
    for folder in search_folders("serving", None):
        if (folder / "hosts.yaml").is_file():
            return validation.validate(HostFile, yaml.read_yaml(folder / "hosts.yaml", "configs/serving/hosts.yaml"))
    raise SpecError("configs/serving/hosts.yaml is missing")


def host_of(
    engine: str, model: ModelSpec, gpu: str, experts: str, products: str, known: HostFile | None = None,
    pool: str = "", dp: int = 1,
) -> Host:  # fmt: skip
    """The constants of an engine that serves a model on a GPU, with experts and products of these dtypes; zeros for the
    engine ``none``. ``known``: in place of the shipped ones; ``pool``: PREFILL or DECODE of an engine that does one of
    both, with ``dp`` ranks of data-parallel attention.
    """
    if engine == NONE:
        return Host()
    moe, known = has_experts(model), known or host_file()
    row = next(each for each in known.hosts if (each.engine, each.experts) == (engine, moe))
    dtype = experts if moe else products
    factors = [
        each for each in known.factors if each.of(engine=engine, experts=moe, gpu=gpu, dtype=dtype, model=model.name)
    ]
    pools = [each for each in known.pools if each.of(dp, engine=engine, gpu=gpu, dtype=dtype)] if pool else []
    alone = prod(each.decodes for each in pools) if pool == DECODE else 1.0
    kernels = prod(each.decodes for each in pools if each.gpu != ANY) if pool == PREFILL else 1.0

    def own(name: str, otherwise: float) -> float:
        return next((value for each in pools if (value := getattr(each, name)) is not None), otherwise)

    return Host(
        alone * (row.iteration + row.layer * model.layers),
        alone * row.sequence,
        row.eager_layer * model.layers,
        own("request", row.request * prod(each.request for each in factors)),
        row.front_end,
        row.captured,
        int(own("first_after", row.first_after)),
        experts=prod(each.routed for each in factors),
        decodes=alone * prod(each.decodes for each in factors),
        prompts=kernels * prod(each.prompts for each in factors),
        handoff_ns=own("handoff", row.handoff),
    )


def residual_of(
    engine: str, model: ModelSpec, gpu: str, experts: str, products: str, pools: bool = False
) -> ResidualRow | None:
    """How far measurements of such an engine are from what is simulated: its own cell's, else the engine's, else, of
    ``pools``, those of all. None where there are none.
    """
    moe = has_experts(model)
    there = [row for row in host_file().residuals if row.pools == pools and row.experts == moe]
    mine = [row for row in there if row.engine == engine] or [row for row in there if row.engine == ANY]
    asked = (gpu, experts if moe else products)
    return next((row for each in (asked, (ANY, ANY)) for row in mine if (row.gpu, row.dtype) == each), None)
