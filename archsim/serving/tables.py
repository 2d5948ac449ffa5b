"""Tables of step times for compiled code, from the laws of an iteration, and how far interpolation is off."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from archsim.iteration.times import Batches, IterationLaws, iteration_times
from archsim.serving.clock import OCTAVE, StepTable, times_of

MOST_CONTEXT, MOST_CHUNKS, MOST_PROMPT = 2**20, 256, 2**17
_SEEN = 400  # batches on which interpolation is judged


class Host(NamedTuple):
    """Time of the host: an iteration, each request in it, an iteration with a prompt (which no graph covers), and once
    a request before it is queued. ``first_after``: tokens that are out when a client sees the first; it sees
    all tokens as late. ``experts``, ``products``: time of expert layers, and of other products, relative to
    their laws, for laws that are scaled.
    """

    iteration_ns: float = 0.0
    sequence_ns: float = 0.0
    prompt_ns: float = 0.0
    request_ns: float = 0.0
    first_after: int = 1
    experts: float = 1.0
    products: float = 1.0


class Prepared(NamedTuple):
    """A table; ``errors``: (median, largest) share by which it is off the laws; ``extrapolated``: share of the time of
    typical batches that laws give outside their measured sizes.
    """

    table: StepTable
    errors: tuple[float, float]
    extrapolated: float


def prepare(laws: IterationLaws, host: Host, most_requests: int, moved_ns: np.ndarray | None = None) -> Prepared:
    """``moved_ns``: float64[tokens of a rank], dispatch and combine of all layers, where ranks share experts under data
    parallelism.
    """
    tokens = len(laws.by_tokens)
    local, moe = laws.by_tokens[:, :-2].sum(axis=1), laws.by_tokens[:, -2]
    up = [np.zeros(tokens) if ns is None else ns for ns in (laws.decode_up, laws.prefill_up)]
    table = StepTable(
        local + (host.products - 1) * products_ns(laws),
        moe * host.experts + (0.0 if moved_ns is None else moved_ns),
        laws.by_requests[:, :-1].sum(axis=1),
        host.products * up[0],
        host.products * up[1],
        *_attention(laws, most_requests),
        np.array([host.iteration_ns, host.sequence_ns, host.prompt_ns]),
    )
    plain = table._replace(local=local, shared=moe, decode_up=up[0], prefill_up=up[1])
    return Prepared(table, *_judged(laws, plain, most_requests))


def products_ns(laws: IterationLaws) -> np.ndarray:
    """float64[tokens] of projections and dense layers."""
    return laws.by_tokens[:, :2].sum(axis=1)


def axis(most: float) -> np.ndarray:
    """Sizes from 1 to at least ``most``."""
    return 2.0 ** (np.arange(int(np.ceil(np.log2(max(most, 2)) * OCTAVE)) + 1) / OCTAVE)


def _attention(laws: IterationLaws, most_requests: int) -> tuple[np.ndarray, np.ndarray]:
    batch, context = axis(most_requests), axis(MOST_CONTEXT)
    decode = sum(layers * times.ns(batch[:, None], 1.0, context) for times, layers in laws.decode)
    chunks, new, ratio = axis(min(most_requests, MOST_CHUNKS)), axis(MOST_PROMPT), axis(2**13)
    at = chunks[:, None, None], new[:, None], new[:, None] * ratio
    prefill = sum(layers * times.ns(*at) for times, layers in laws.prefill)
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
