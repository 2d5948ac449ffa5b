"""Tables of step times for compiled code, from the laws of an iteration, and how far interpolation is off."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from archsim.base.sums import sum
from archsim.base.units import NS_PER_S
from archsim.iteration.attention import DECODE as DECODE_PHASE
from archsim.iteration.attention import PREFILL as PREFILL_PHASE
from archsim.iteration.constants import Host
from archsim.iteration.layers import (
    ALL_REDUCE,
    CAUSES,
    COMBINE,
    DECODES,
    DENSE_FFN,
    DISPATCH,
    EXPERTS,
    OF_ROUTED,
    PROJECTIONS,
    PROMPTS,
    SAMPLED,
    SHARED,
    TOKENS,
    before_attention,
    row_flop,
)
from archsim.iteration.overlap import HOW, MICRO_BATCHES, TWO_BATCH, of_halves
from archsim.iteration.overlap import NONE as NO_OVERLAP
from archsim.iteration.times import Batches, IterationLaws, iteration_times
from archsim.serving.clock import OCTAVE, LinkTimes, OverlapTimes, StepTable, times_of


class Overlap(NamedTuple):
    """``how``: of `archsim.iteration.overlap`; ``sms_share``: of the SMs, those that transfers take as long as they
    run; ``flop_per_s``: at peak; ``parts``: micro-batches whose experts are on another side; ``stages``: of a pipeline;
    ``rows``: of a decode in it, drafts included;
    ``hop_ns``: float64[tokens of a rank] of hidden vectors from one stage to the next, by copies of ``hops_of``.
    ``sharing``: groups of ranks that share the tokens of every prompt; ``shared_ns``: float64[tokens of a prompt] in
    which they gather its keys and values, of all layers.
    """

    how: str = NO_OVERLAP
    sms_share: float = 0.0
    flop_per_s: float = np.inf
    parts: int = 1
    stages: int = 1
    rows: int = 1
    hop_ns: np.ndarray = np.zeros(1)
    hops_of: str = ""
    sharing: int = 1
    shared_ns: np.ndarray = np.zeros(1)


ALONE = Overlap()
# Attention TP, ranks that share a request, most requests, groups that share a prompt → as of `_attention`.
Grids = dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]]

MOST_CONTEXT, MOST_CHUNKS, MOST_PROMPT = 2**20, 256, 2**17
PRODUCTS = (PROJECTIONS, DENSE_FFN, SHARED)
LOCAL = tuple(cause for cause in CAUSES if cause not in OF_ROUTED)  # of a rank by itself
_SEEN = 400  # batches on which interpolation is judged


class TabulatedTimes(NamedTuple):
    """A table; ``errors``: (median, largest) share by which it is off the laws; ``extrapolated``: share of the time of
    typical batches that laws give outside their measured sizes.
    """

    table: StepTable
    errors: tuple[float, float]
    extrapolated: float


def prepare(
    laws: IterationLaws,
    host: Host,
    most_requests: int,
    overlap: Overlap = ALONE,
    offloaded_ns: np.ndarray | float = 0.0,
    grids: Grids | None = None,
) -> TabulatedTimes:
    """The tables of an engine under the constants of its host; ``offloaded_ns``: float64[tokens of a rank] by which
    loads of experts make an iteration longer; ``grids``: of engines that differ in sizes alone, which get those of
    this one.
    """
    known: Grids = {} if grids is None else grids

    def attention(sharing: int) -> tuple[np.ndarray, np.ndarray]:
        key = laws.parallel.tp, laws.parallel.context, most_requests, sharing
        if key not in known:
            known[key] = _attention(laws, most_requests, sharing)
        return known[key]

    table = _table(laws, host, most_requests, overlap, attention(overlap.sharing), offloaded_ns)
    plain = _table(laws, Host(), most_requests, ALONE, attention(1))
    return TabulatedTimes(table, *_judge(laws, plain, most_requests))


def _table(
    laws: IterationLaws,
    host: Host,
    most_requests: int,
    overlap: Overlap,
    attention: tuple[np.ndarray, np.ndarray],
    offloaded_ns: np.ndarray | float = 0.0,
) -> StepTable:
    """``attention``: as `_attention` gives it."""
    left_out = (ALL_REDUCE,) if overlap.how == NO_OVERLAP else (ALL_REDUCE, SHARED)
    ours = tuple(cause for cause in LOCAL if cause not in left_out)
    decode_up, prefill_up = (
        laws.ns(PROJECTIONS, rows=rows) + _more_of_halves(laws, overlap, rows, (PROJECTIONS,))
        for rows in (DECODES, PROMPTS)
    )
    local = laws.ns(*ours) + _more_of_halves(laws, overlap, TOKENS, ours)
    linked = laws.ns(ALL_REDUCE) + _more_of_halves(laws, overlap, TOKENS, (ALL_REDUCE,))
    links_up = [laws.ns(ALL_REDUCE, rows=rows) for rows in (DECODES, PROMPTS)]
    head = laws.ns(*CAUSES, rows=SAMPLED)
    if overlap.stages > 1:  # a token passes all stages, with the others of its micro-batch, which has whole requests
        tokens = np.arange(laws.sizes)
        at = np.minimum(tokens, overlap.rows * -(-tokens // (overlap.rows * overlap.stages)))
        local, linked = local[at], linked[at] + overlap.stages * overlap.hop_ns[at]
        head, decode_up, prefill_up = head[at], decode_up[at], prefill_up[at]
        links_up = [each[at] for each in links_up]
    experts, dispatch, combine = laws.ns(EXPERTS), laws.ns(DISPATCH), laws.ns(COMBINE)
    loaded = np.zeros(laws.sizes) + offloaded_ns
    if overlap.sharing > 1:  # every group has its part of the tokens of a prompt
        at = -(-np.arange(laws.sizes) // overlap.sharing)
        local, prefill_up, linked = local[at], prefill_up[at], linked[at]
        links_up[1] = links_up[1][at] + overlap.shared_ns
        experts, dispatch, combine, loaded = experts[at], dispatch[at], combine[at], loaded[at]
    beside, off = _beside(laws, overlap), math.log(host.attention)
    return StepTable(
        local=host.products * local,
        experts=host.experts * experts,
        dispatch=host.moves * dispatch,
        combine=host.moves * combine,
        head=host.products * head,
        decode_up=host.products * decode_up,
        prefill_up=host.products * prefill_up,
        decode=attention[0] + off,
        prefill=attention[1] + off,
        host=host.of_iterations(most_requests),
        beside=beside._replace(shared=host.products * beside.shared, before=host.products * beside.before),
        links=LinkTimes(host.moves * linked, host.moves * links_up[0], host.moves * links_up[1], loaded),
    )


def _more_of_halves(laws: IterationLaws, overlap: Overlap, rows: str, causes: Sequence[str]) -> np.ndarray:
    """float64[rows] that two halves or micro-batches take longer than the whole, by kernel; 0 without any."""
    found, at = np.zeros(laws.sizes), np.arange(laws.sizes)
    for cause in causes if overlap.how == MICRO_BATCHES else ():
        whole = laws.ns(cause, rows=rows)
        found += np.maximum(overlap.parts * whole[-(-at // overlap.parts)] - whole, 0.0)
    flop = row_flop(laws.model, laws.parallel) if overlap.how == TWO_BATCH else {}
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
        how=HOW[overlap.how],
        shared=laws.ns(SHARED),
        before=share * before,
        before_share=np.float64(share),
        moe_share=np.float64(layers / model.layers),
        sms_share=np.float64(overlap.sms_share),
        shared_multiply=np.float64(of_shared / overlap.flop_per_s * NS_PER_S),
        experts_multiply=np.float64(layers * of_token / overlap.flop_per_s * NS_PER_S),
        parts=np.float64(overlap.parts),
        moe_layers=np.float64(layers),
    )


def axis(most: float) -> np.ndarray:
    """Sizes from 1 to at least ``most``."""
    return 2.0 ** (np.arange(int(np.ceil(np.log2(max(most, 2)) * OCTAVE)) + 1) / OCTAVE)


def _attention(laws: IterationLaws, most_requests: int, sharing: int) -> tuple[np.ndarray, np.ndarray]:
    """``sharing``: groups that each have part of a prompt's tokens, early and late, so that all see as much before."""
    batch, context = axis(most_requests), axis(MOST_CONTEXT)
    decode = sum(layers * times.ns(batch[:, None], 1.0, context) for times, layers in laws.attention[DECODE_PHASE])
    chunks, new, ratio = axis(min(most_requests, MOST_CHUNKS)), axis(MOST_PROMPT), axis(2**13)
    seen = new[:, None] * ratio
    part = np.maximum(new[:, None] / sharing, 1.0)
    at = chunks[:, None, None], part, np.maximum(seen - new[:, None] / 2 + part / 2, part)
    prefill = sum(layers * times.ns(*at) for times, layers in laws.attention[PREFILL_PHASE])
    return np.log(np.maximum(decode, 1e-9)), np.log(np.maximum(prefill, 1e-9))


def _judge(laws: IterationLaws, table: StepTable, most_requests: int) -> tuple[tuple[float, float], float]:
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
