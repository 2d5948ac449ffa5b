"""Attention times from a table: a law of FLOP and bytes (``AttentionLaw``), and measured corrections.

Corrections (logarithms of measured over law) of a measured number of heads are interpolated along log batch and log
tokens; those of other numbers of heads are kriged between the measured ones. Beyond the measured batches and contexts,
the law continues with the correction of the nearest.
"""

from typing import NamedTuple

import numpy as np

from archsim.base.units import NS_PER_S, WEIGHT_BYTES
from archsim.laws.gemm import overlapped_ns
from archsim.laws.tables import AttentionLaw, AttentionTable, CalibrationSpec, LawMissing, newest

CORRECTION_UNIT = 1e-3  # unit of the corrections in the files
PREFILL, DECODE = "prefill", "decode"
GQA, MLA = "gqa", "mla"
# Latent attention with its projections; the products of its heads before and after an absorbed decode.
MLA_BLOCK, MLA_PRE, MLA_POST = "mla_block", "mla_pre", "mla_post"
# Weights of DeepSeek-V3's projections (config.json: hidden 7168, q_lora_rank 1536, kv_lora_rank 512, RoPE 64, 128 and
# 128 a head): down, on every rank, and up and out, of each head.
MLA_DOWN, MLA_OF_HEAD = 7168 * (1536 + 576), 1536 * 192 + 512 * (128 + 128) + 128 * 7168
ACTIVATION_BYTES = 2  # queries and outputs are BF16
# Correlation lengths of the corrections, in octaves, and the noise of a point relative to their variance; chosen by
# leaving (batch, tokens) and shapes of the public sets out. KV heads count by themselves and with the batch: together
# they are the parallel work of a decode.
HEADS_SCALE, BATCH_SCALE, TOKENS_SCALE, WORK_SCALE, NOISE = 8.0, 8.0, 2.0, 2.0, 0.02
# Heads are extrapolated beyond this distance from the nearest measured ones: Llama's 40 are 0.32 octaves from 32.
MOST_OCTAVES = 0.6


class LatentSizes(NamedTuple):
    """Prompts have keys of ``nope`` + ``rope``, values of ``value``; decodes share one of ``rank`` + ``rope``."""

    rank: int
    nope: int
    rope: int
    value: int


MEASURED_LATENT = LatentSizes(512, 128, 64, 128)  # DeepSeek-V3, config.json; Kimi-K2 has the same


class AttentionSizes(NamedTuple):
    """Sizes of one rank's attention."""

    heads: int  # of queries
    kv_heads: int  # of keys and values
    head_dim: int  # for mla that of the latent vector with RoPE
    window: int = 0  # tokens of sliding-window attention; 0: none
    kind: str = GQA  # GQA, MLA or a part of a latent block
    latent: LatentSizes = MEASURED_LATENT  # ranks of mla


class AttentionGrid(NamedTuple):
    """Corrections of one table at some sizes."""

    table: AttentionTable  # that they are of
    sizes: AttentionSizes  # of the rank
    corrections: np.ndarray  # float64[batch, tokens]: ln(measured / law)
    ln_batch: np.ndarray  # float64[batch]
    ln_tokens: np.ndarray  # float64[tokens]
    compute: float  # FLOP/s relative to the table's
    memory: float  # bytes/s relative to the table's
    far: bool  # the table does not cover the sizes


def choose_attention(
    calibration: CalibrationSpec,
    phase: str,
    sizes: AttentionSizes,
    dtype: str,
    kv_dtype: str | None = None,
    library: str | None = None,
    version: str | None = None,
    products: str = "",
) -> AttentionTable:
    """The table of a phase, kind, KV dtype (by default ``dtype``) and dtype of ``products`` (of a block), with the
    nearest head size, then the window.

    The library with most shapes unless named, in its newest version. Where no kernel computes in ``dtype``, one that
    reads the same KV cache stands in for it (decodes with FP8 KV were measured with BF16 queries). Prompts of grouped
    attention take a kernel of their head size and window before one of their KV cache, whose bytes hardly count: where
    those of BF16 over FP8 KV are left out, kernels over BF16 KV are 2 to 13 % off (medians; TensorRT-LLM and vLLM on
    B200, four geometries), those of another geometry 6 to 40 %. Raises LawMissing.
    """
    stored = kv_dtype or dtype
    there = [table for table in calibration.attention if table.phase == phase and table.kind == sizes.kind]
    any_kv = (
        phase == PREFILL
        and sizes.kind == GQA
        and any(
            (table.kv_dtype, table.products) == (stored, products) and library in (None, table.library)
            for table in there
        )
    )
    wanted = [
        table
        for table in there
        if (table.kv_dtype == stored or any_kv)
        and table.products == products
        and library in (None, table.library)
        and version in (None, table.version)
    ]
    if not wanted:
        asked = " ".join(part for part in (library, version, phase, sizes.kind, products, dtype) if part)
        each = [
            " ".join(filter(None, (table.library, table.phase, table.kind, table.products, table.dtype, "with")))
            + f" {table.kv_dtype} KV"
            for table in calibration.attention
        ]
        known = sorted(set(each))
        raise LawMissing(
            f"calibration {calibration.gpu} has no attention table for {asked} with {stored} KV (it has: "
            f"{', '.join(known) or 'none'})"
        )
    best = min(wanted, key=lambda table: _preference(table, sizes, dtype, stored))
    how = _preference(best, sizes, dtype, stored)[:-1]
    return newest(t for t in wanted if t.library == best.library and _preference(t, sizes, dtype, stored)[:-1] == how)


def _preference(table: AttentionTable, sizes: AttentionSizes, dtype: str, stored: str) -> tuple:
    away = abs(float(np.log2(table.head_dim / sizes.head_dim)))
    geometry = away, table.window != sizes.window, table.window != 0
    kernel = table.dtype != dtype, table.kv_dtype != stored
    of_prompts = table.phase == PREFILL and table.kind == GQA
    return (
        bool(table.scaled_from),
        *((*geometry, *kernel) if of_prompts else (*kernel, *geometry)),
        -len(table.shapes),
        table.library,
    )


def work_of(
    phase: str, sizes: AttentionSizes, batch, new, context, kv_dtype: str, products: str = ""
) -> tuple[np.ndarray, np.ndarray]:
    """(FLOP, bytes) of ``batch`` requests with ``new`` tokens each, causal, at the end of ``context`` tokens each.

    FLOP: two products of every query with every key in its window. Bytes: keys and values that any query sees, queries
    and outputs, once.
    """
    batch, new, context = (np.asarray(values, float) for values in (batch, new, context))
    window = float(sizes.window) if sizes.window else np.inf
    before = context - new
    growing = np.minimum(np.maximum(window - before, 0.0), new)  # queries whose window is not full
    full = new - growing
    pairs = growing * before + growing * (growing + 1) / 2 + (full * window if sizes.window else 0.0)
    seen = np.minimum(context, window + new)
    stored, heads = WEIGHT_BYTES[kv_dtype], sizes.heads
    rank, nope, rope, value = sizes.latent
    if sizes.kind in (MLA_PRE, MLA_POST):
        moved = heads * (nope * rank * stored + batch * (nope + rank) * ACTIVATION_BYTES)
        return 2.0 * batch * heads * nope * rank, moved
    if sizes.kind != GQA and phase == PREFILL:
        per_head = nope + rope + value
        kept = heads * per_head * ACTIVATION_BYTES + (rank + rope) * stored
    elif sizes.kind != GQA:
        per_head, kept = 2 * rank + rope, (rank + rope) * stored
    else:
        per_head, kept = 2 * sizes.head_dim, sizes.kv_heads * 2 * sizes.head_dim * stored
    flop = 2.0 * batch * heads * per_head * pairs
    moved = batch * (seen * kept + new * heads * per_head * ACTIVATION_BYTES)
    if sizes.kind == MLA_BLOCK:
        weights = MLA_DOWN + MLA_OF_HEAD * heads
        flop, moved = flop + 2.0 * batch * new * weights, moved + weights * WEIGHT_BYTES[products]
    return flop, moved


def law_ns(
    law: AttentionLaw,
    phase: str,
    sizes: AttentionSizes,
    batch,
    new,
    context,
    kv_dtype: str,
    compute: float = 1.0,
    memory: float = 1.0,
    products: str = "",
) -> np.ndarray:
    """The law without corrections; ``compute`` and ``memory`` scale its rates. Arrays broadcast."""
    flop, moved = work_of(phase, sizes, batch, new, context, kv_dtype, products)
    flop_ns, bytes_ns = flop / (law.flop_per_s * compute) * NS_PER_S, moved / (law.bytes_per_s * memory) * NS_PER_S
    fixed = law.launch_ns + (law.ns_per_request + law.ns_per_head * sizes.heads) * np.asarray(batch, float)
    return fixed + overlapped_ns(law, flop_ns, bytes_ns)


def attention_grid(
    table: AttentionTable, sizes: AttentionSizes, compute: float = 1.0, memory: float = 1.0
) -> AttentionGrid:
    """The corrections of a table at some sizes; ``compute``, ``memory``: see ``law_ns``."""
    shape = len(table.batch), len(table.tokens)
    known = np.array(tuple(table.shapes.values())).reshape(-1, *shape) * CORRECTION_UNIT
    heads = (sizes.heads, sizes.kv_heads)
    if heads in table.sizes:
        corrections, octaves = known[table.sizes.index(heads)], 0.0
    else:
        weights, octaves = _weights(np.array(table.sizes, float), np.array(heads, float))
        corrections = np.tensordot(weights, known, axes=1)
    far = (
        octaves > MOST_OCTAVES
        or bool(table.scaled_from)
        or (table.head_dim, table.window, table.kind) != (sizes.head_dim, sizes.window, sizes.kind)
        or (sizes.kind != GQA and sizes.latent != MEASURED_LATENT)
    )
    return AttentionGrid(
        table=table, sizes=sizes, corrections=corrections, ln_batch=np.log(table.batch), ln_tokens=np.log(table.tokens),
        compute=float(compute), memory=float(memory), far=far,
    )  # fmt: skip


def grid_ns(grid: AttentionGrid, batch, new, context) -> np.ndarray:
    """Time of ``batch`` requests, float64 of the shape that the arguments broadcast to; 0 where ``batch`` is 0.

    A prompt whose first tokens are cached takes the correction of a whole one of the geometric mean of new tokens and
    context.
    """
    batch, new, context = (np.asarray(values, float) for values in (batch, new, context))
    table, some = grid.table, batch > 0
    found = np.zeros(np.broadcast_shapes(batch.shape, new.shape, context.shape))
    batch = np.where(some, batch, 1.0)
    size = np.sqrt(new * context) if table.phase == PREFILL else context
    row = _place(grid.ln_batch, np.log(batch))
    column = _place(grid.ln_tokens, np.log(size))
    for r, row_share in row:
        for c, column_share in column:
            found += row_share * column_share * grid.corrections[r, c]
    rates = table.kv_dtype, grid.compute, grid.memory, table.products
    ns = law_ns(table.law, table.phase, grid.sizes, batch, new, context, *rates) * np.exp(found)
    return np.where(some, ns, 0.0)


def outside(grid: AttentionGrid, batch, context) -> np.ndarray:
    """bool: outside the measured batches and contexts, or sizes that the table does not cover."""
    batch, context = np.broadcast_arrays(np.asarray(batch, float), np.asarray(context, float))
    table = grid.table
    most = np.interp(np.log(np.maximum(batch, 1)), grid.ln_batch, np.log(table.most_tokens))
    beyond = (batch < table.batch[0]) | (batch > table.batch[-1]) | (context < table.tokens[0])
    return grid.far | beyond | (np.log(context) > most + 1e-9)


def _place(axis: np.ndarray, at: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """((index below, its share), (index above, its share)) of points on an axis, held beyond its ends."""
    last = len(axis) - 1
    if last == 0:
        return ((np.zeros(at.shape, int), np.ones(at.shape)),)
    at = np.minimum(np.maximum(at, axis[0]), axis[last])
    above = np.minimum(np.maximum(axis.searchsorted(at, side="right"), 1), last)
    share = (at - axis[above - 1]) / (axis[above] - axis[above - 1])
    return (above - 1, 1 - share), (above, share)


def shape_features(heads: np.ndarray, kv_heads: np.ndarray) -> np.ndarray:
    """float64[shape, feature], in units of the correlation lengths."""
    heads, kv_heads = np.log2(heads), np.log2(kv_heads)
    return np.stack([heads / HEADS_SCALE, kv_heads / HEADS_SCALE, kv_heads / WORK_SCALE], axis=-1)


def covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Matérn 3/2 of the distances, plus one: an unknown mean of the same variance."""
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2 * a @ b.T
    distance = np.sqrt(3 * np.maximum(squares, 0.0))
    return (1 + distance) * np.exp(-distance) + 1.0


def _weights(sizes: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, float]:
    """(kriging weights of the measured shapes float64[shape], octaves to the nearest); sizes: (heads, kv_heads)."""
    known, here = shape_features(*sizes.T), shape_features(*wanted[:, None])
    matrix = covariance(known, known) + NOISE * np.eye(len(sizes))
    octaves = float(np.abs(np.log2(sizes / wanted)).max(axis=1).min())
    return np.linalg.solve(matrix, covariance(known, here)[:, 0]), octaves
