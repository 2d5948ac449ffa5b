"""Tables of step times for compiled code, from the laws of an iteration, and how far interpolation is off."""

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

import numpy as np

from archsim.base.units import NS_PER_S
from archsim.iteration.attention.kind import DECODE, PREFILL
from archsim.iteration.layers import (
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
from archsim.iteration.overlap import HOW, NONE, TWO_BATCH, of_halves
from archsim.iteration.times import Batches, IterationLaws, iteration_times
from archsim.serving.clock import OCTAVE, Beside, StepTable, times_of

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
    and with prompts. ``handoff_ns``: of a request between engines that prefill and decode.
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

    @property
    def told(self) -> str:
        """As a file of ``archsim serve`` has it under ``host``; less than a nanosecond is none."""
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


class Prepared(NamedTuple):
    """A table; ``errors``: (median, largest) share by which it is off the laws; ``extrapolated``: share of the time of
    typical batches that laws give outside their measured sizes.
    """

    table: StepTable
    errors: tuple[float, float]
    extrapolated: float


class Overlap(NamedTuple):
    """``how``: of `archsim.iteration.overlap`; ``sms_share``: of the SMs, those that transfers take as long as they
    run; ``flop_per_s``: at peak.
    """

    how: str = NONE
    sms_share: float = 0.0
    flop_per_s: float = np.inf


ALONE = Overlap()


def prepare(laws: IterationLaws, host: Host, most_requests: int, overlap: Overlap = ALONE) -> Prepared:
    """The tables of an engine under the constants of its host."""
    table = _table(laws, host, most_requests, overlap)
    plain = _table(laws, Host(), most_requests, ALONE, (table.decode, table.prefill))
    return Prepared(table, *_judged(laws, plain, most_requests))


def _table(
    laws: IterationLaws,
    host: Host,
    most_requests: int,
    overlap: Overlap,
    attention: tuple[np.ndarray, np.ndarray] | None = None,
) -> StepTable:
    """``attention``: of a table of the same laws, where there is one."""
    ours = LOCAL if overlap.how == NONE else tuple(cause for cause in LOCAL if cause != SHARED)
    decode_up, prefill_up = (
        laws.ns(PROJECTIONS, rows=rows) + _more_of_halves(laws, overlap, rows, (PROJECTIONS,))
        for rows in (DECODES, PROMPTS)
    )
    return StepTable(
        laws.ns(*ours) + _more_of_halves(laws, overlap, TOKENS, ours),
        host.experts * laws.ns(EXPERTS),
        laws.ns(DISPATCH),
        laws.ns(COMBINE),
        laws.ns(*CAUSES, rows=SAMPLED),
        decode_up,
        prefill_up,
        *(attention or _attention(laws, most_requests)),
        host.of_iterations(most_requests),
        _beside(laws, overlap),
    )


def _more_of_halves(laws: IterationLaws, overlap: Overlap, rows: str, causes: Sequence[str]) -> np.ndarray:
    """float64[rows] that two halves take longer than the whole, kernel by kernel; 0 unless there are two batches."""
    found, at = np.zeros(laws.sizes), np.arange(laws.sizes)
    flop = row_flop(laws.model, laws.parallel)
    for cause in causes if overlap.how == TWO_BATCH else ():
        whole = laws.ns(cause, rows=rows)
        half = (whole[at // 2] + whole[(at + 1) // 2]) / 2
        multiply = flop.get((rows, cause), 0.0) * at / 2 / overlap.flop_per_s * NS_PER_S * (cause in PRODUCTS)
        found += of_halves.py_func(whole, half, multiply, overlap.sms_share) - whole
    return found


def _beside(laws: IterationLaws, overlap: Overlap) -> Beside:
    if overlap.how == NONE:
        return Beside()
    model, parallel = laws.model, laws.parallel
    share = before_attention(model, parallel)
    before = laws.ns(PROJECTIONS) + _more_of_halves(laws, overlap, TOKENS, (PROJECTIONS,))
    of_token = 2.0 * model.slices * model.slice_weights * model.top_k * parallel.dp / parallel.ranks
    of_shared = row_flop(model, parallel).get((TOKENS, SHARED), 0.0)
    layers = len(model.moe_layer_ids)
    return Beside(
        HOW[overlap.how],
        laws.ns(SHARED),
        share * before,
        np.float64(share),
        np.float64(layers / model.layers),
        np.float64(overlap.sms_share),
        np.float64(of_shared / overlap.flop_per_s * NS_PER_S),
        np.float64(layers * of_token / overlap.flop_per_s * NS_PER_S),
    )


def axis(most: float) -> np.ndarray:
    """Sizes from 1 to at least ``most``."""
    return 2.0 ** (np.arange(int(np.ceil(np.log2(max(most, 2)) * OCTAVE)) + 1) / OCTAVE)


def _attention(laws: IterationLaws, most_requests: int) -> tuple[np.ndarray, np.ndarray]:
    batch, context = axis(most_requests), axis(MOST_CONTEXT)
    decode = sum(layers * times.ns(batch[:, None], 1.0, context) for times, layers in laws.attention[DECODE])
    chunks, new, ratio = axis(min(most_requests, MOST_CHUNKS)), axis(MOST_PROMPT), axis(2**13)
    at = chunks[:, None, None], new[:, None], new[:, None] * ratio
    prefill = sum(layers * times.ns(*at) for times, layers in laws.attention[PREFILL])
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
