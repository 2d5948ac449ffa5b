"""From an engine to its pool: the laws of its iterations, its dispatch, its offloaded experts."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from archsim.base.errors import SpecError
from archsim.base.sums import sum
from archsim.base.units import NS_PER_S
from archsim.engine.cluster.transfer_times import send_equal
from archsim.engine.moves import Sizes, vector_bytes
from archsim.iteration import rank_memory
from archsim.iteration.collectives import gathered_ns, with_copies
from archsim.iteration.constants import NO_HOST, Host, engines
from archsim.iteration.engine_laws import engine_laws, fastest
from archsim.iteration.experts import ByChance, FusedLaw
from archsim.iteration.layers import ACTIVATION_BYTES, COMBINE, DISPATCH, ELSEWHERE, EXPERTS, TOKENS, has_experts
from archsim.iteration.times import IterationLaws
from archsim.laws.laws import Laws
from archsim.laws.transfers import NODE, domain_of
from archsim.serving.engine import UNIFORM, ServingEngine
from archsim.serving.groups import Gathered
from archsim.serving.kv_room import doubt_of, kv_blocks, kv_units, request_kv
from archsim.serving.physical_laws import below_roofline
from archsim.serving.simulate import Pool, Scheduler
from archsim.serving.tabulated import LOCAL, Grids, Overlap, prepare
from archsim.specs.deployment import refuse_cut_blocks

GATHERED, BY_RANK, LOW_LATENCY = "all_gather", "per_rank", "per_token_expert"  # of `archsim.specs.assumptions`
# Ranks that gather all tokens rather than dispatch them. TensorRT-LLM dispatches where more ranks share the experts
# than a token takes (_torch/modules/fused_moe, enable_alltoall: moe_ep_size > top_k, 8 of DeepSeek's and Qwen3's);
# recipes of SGLang name DeepEP for engines of more than a node.
GATHERED_RANKS = NODE
# Experts of SGLang behind DeepEP: DeepGEMM's masked grouped products of decodes, its contiguous ones of prompts
# (python/sglang/srt/layers/moe/ep_moe).
OF_DECODES, OF_PROMPTS = "deepepmoe-generation", "deepepmoe-context"


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
    broken_laws: tuple[str, ...] = ()  # of the machine's roofline, one clause each


def build(engine: ServingEngine, scheduler: Scheduler, host: Host = NO_HOST, instances: int = 1) -> Built:
    """A pool of ``instances`` of an engine. Raises SpecError for sizes that do not divide, LawMissing for what was not
    measured, CapacityError for weights that leave no room for KV.
    """
    laws, notes = laws_of(engine, scheduler)
    return with_host(laws, notes, engine, scheduler, host, instances)


def laws_of(
    engine: ServingEngine, scheduler: Scheduler, dispatches: bool = True
) -> tuple[IterationLaws, tuple[str, ...]]:
    """The laws of an engine's iterations, with experts, and what stands in for what was not measured, in words. Without
    an engine every kernel is the fastest of those that engines run. ``dispatches``: whether a dispatch takes time.
    """
    if engine.library is None and engine.rates is None:
        each = [laws_of(engine._replace(library=name), scheduler, dispatches) for name in engines()]
        return fastest([laws for laws, _ in each]), tuple(dict.fromkeys(note for _, notes in each for note in notes))
    precision = engine.precision
    refuse_cut_blocks(engine.model, engine.parallel, precision)
    most = scheduler.max_num_batched_tokens + scheduler.max_num_seqs
    model, apart = engine.model, engine.routing is None
    if apart:  # experts are timed elsewhere, and may be shared unevenly
        model = model.model_copy(update={"experts": -(-model.experts // engine.parallel.ep) * engine.parallel.ep})
    experts = ByChance(engine.library) if engine.routing == UNIFORM else FusedLaw(engine.routing or UNIFORM)
    wide = dispatches_equal(engine)
    laws, notes = engine_laws(
        engine.library, model, engine.calibration, engine.parallel, precision,
        experts=None if apart else experts,
        moves=ELSEWHERE if (apart and engine.parallel.dp > 1) or wide else None,
        kernel=_behind_dispatch(engine) if wide else "", rates=engine.rates, links=engine.links,
        most_tokens=min(most, 32768),
    )  # fmt: skip
    if not (wide and dispatches):
        return laws, notes
    laws, text = _with_dispatch(laws, engine)
    return laws, (*notes, text)


def dispatches_equal(engine: ServingEngine) -> bool:
    """Whether ranks send tokens to the experts that they take, and not to all ranks, and no traffic says where these
    are: beyond GATHERED_RANKS, with whole experts on every rank. SGLang's recipes of GB200 in FP8 name DeepEP for
    both pools on any number of ranks (srt-slurm, recipes/gb200-fp8/1k1k/ultra-tpt.yaml).
    """
    parallel = engine.parallel
    several = parallel.dp > 1 and parallel.expert_tp == 1 and has_experts(engine.model)
    named = _behind_dispatch(engine) and domain_of(engine.calibration) > NODE
    wide = parallel.ranks > GATHERED_RANKS or (named and engine.precision.experts == "fp8_block")
    return engine.routing is not None and several and bool(wide)


def _behind_dispatch(engine: ServingEngine) -> str:
    """The kernel of SGLang's experts behind DeepEP, of a pool; '' for others."""
    of_pool = OF_DECODES if engine.decodes_alone else OF_PROMPTS if engine.prefills_alone else ""
    return of_pool if engine.library == "sglang" else ""


def _with_dispatch(laws: IterationLaws, engine: ServingEngine) -> tuple[IterationLaws, str]:
    """With dispatch and combine by the laws of their kernels, once for every rank that takes a token, and whose these
    are, in words. Between nodes, engines that only decode take DeepEP's low-latency kernels, as SGLang and vLLM.
    """
    parallel, model = engine.parallel, engine.model
    sizes = Sizes(model.experts, model.top_k, model.expert_groups, model.top_groups)
    tokens = np.arange(laws.sizes) / parallel.tp  # each rank of a group sends its part
    n_bytes = vector_bytes(model.expert_width, engine.precision.experts, "bf16")
    how = LOW_LATENCY if engine.decodes_alone and parallel.ranks > domain_of(engine.calibration) else BY_RANK
    found = send_equal(engine.calibration, how, sizes, model.expert_width, n_bytes, parallel.ranks, tokens)
    layers = len(model.moe_layer_ids)
    moved = {DISPATCH: layers * found.dispatch, COMBINE: layers * found.combine}
    beyond = sum(moved.values()) if found.carried else 0.0
    by = {**laws.by, TOKENS: {**laws.by[TOKENS], **moved}}
    outside = {**laws.outside, TOKENS: laws.outside[TOKENS] + beyond}
    return replace(laws, by=by, outside=outside), found.sources


def with_host(
    laws: IterationLaws, notes: tuple[str, ...], engine: ServingEngine, scheduler: Scheduler, host: Host,
    instances: int, grids: Grids | None = None,
) -> Built:  # fmt: skip
    """A pool from laws that are known; ``grids``: as of `prepare`."""
    overlap = engine.overlap if engine.parallel.stages == 1 else pipeline_of(engine, laws.sizes)
    if overlap.hops_of not in ("", engine.calibration.gpu):
        own = f"as none were measured on {engine.calibration.gpu}"
        notes = (*notes, f"Copies between stages take the times of {overlap.hops_of}, {own}.")
    if engine.shares_prompts:
        overlap = sharing_of(engine, laws.sizes)
    offloaded = offloaded_ns(engine, laws)
    table, errors, extrapolated = prepare(laws, host, scheduler.max_num_seqs, overlap, offloaded, grids)
    if engine.calibration.reference != engine.calibration.measured_rates:
        extrapolated = 1.0
    blocks, units = kv_blocks(engine, scheduler), kv_units(engine)
    pool = Pool(instances, 1 if engine.shares_prompts else engine.parallel.dp, blocks, table, units=units)
    sentences = (engine.offload.note if engine.offload is not None else "", doubt_of(engine, scheduler))
    broken = () if engine.rates is not None else tuple(below_roofline(laws, engine.calibration, engine.precision))
    return Built(pool, laws, errors, extrapolated, (*notes, *filter(None, sentences)), broken)


def gathering_of(engine: ServingEngine, sizes: int, sums: str = "reduce_scatter") -> Gathered:
    """Hidden vectors gathered before experts and summed after by ``sums``, where ranks have own requests; else 0."""
    parallel, model, tokens = engine.parallel, engine.model, np.arange(sizes)
    if parallel.dp == 1 or not has_experts(model):
        return Gathered(np.zeros(sizes), np.zeros(sizes))
    size = np.maximum(tokens * parallel.dp * model.hidden * ACTIVATION_BYTES, 1)
    layers = len(model.moe_layer_ids) * (tokens > 0)
    ops = ("all_gather", sums)
    return Gathered(*(layers * gathered_ns(Laws(engine.calibration), op, size, parallel.ranks) for op in ops))


def pipeline_of(engine: ServingEngine, sizes: int) -> Overlap:
    """The stages of an engine, one after the other: a micro-batch for each is on its way, and hidden vectors go from
    one to the next by a copy, between nodes where the stages need more than one; copies that were not measured are
    those of the nearest GPU. On a wafer it is over its own links. Raises LawMissing.
    """
    parallel, tokens, rows = engine.parallel, np.arange(sizes), 1 + engine.drafts
    if engine.links is not None:
        hop_ns = engine.links.next_stage_ns(
            tokens * engine.model.hidden * ACTIVATION_BYTES, parallel.ranks, parallel.stages
        )
        return Overlap(stages=parallel.stages, rows=rows, hop_ns=np.where(tokens > 0, hop_ns, 0.0))
    placement = "inter_node" if parallel.ranks * parallel.stages > domain_of(engine.calibration) else "intra_node"
    n_bytes = np.maximum(tokens * engine.model.hidden * ACTIVATION_BYTES, 1)
    laws = with_copies(Laws(engine.calibration), placement)
    copied = laws.copy(n_bytes, placement=placement).ns
    hop_ns = np.where(tokens > 0, copied, 0.0)
    return Overlap(stages=parallel.stages, rows=rows, hop_ns=hop_ns, hops_of=laws.calibration.gpu)


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
