"""What a rank computes in one layer beside attention and experts: products, all-reduces, and memory-bound kernels.

Weights are split as Megatron-LM does (Shoeybi et al., arXiv 1909.08053): projections into heads and the first FFN
product by columns, projections out of heads and the second FFN product by rows, with one all-reduce after each.
"""

from __future__ import annotations

from typing import NamedTuple

from archsim.specs.attention import AttentionSpec
from archsim.specs.deployment import Parallelism
from archsim.specs.model import ModelSpec
from calibration.laws.attention import GQA, MLA, AttentionSizes

ACTIVATION_BYTES = 2  # hidden vectors are BF16
LOGIT_BYTES = 4  # FP32
# Memory-bound kernels, as passes over a vector of each token: both RMS norms read the hidden vector and the residual
# and write both; RoPE reads and writes queries and keys; SwiGLU reads two FFN vectors and writes one.
NORM_PASSES, ROPE_PASSES, SWIGLU_PASSES = 2 * 4, 2, 3
NORM_KERNELS, ROPE_KERNELS, SWIGLU_KERNELS = 2, 1, 1
# Sampling reads logits for temperature, softmax and choice: a pass for each of them, and one to write.
SAMPLING_PASSES, SAMPLING_KERNELS = 4, 4


class Product(NamedTuple):
    """A product in ``layers`` layers with k x n weights on a rank; ``cause``: what its time is counted as;
    ``rows``: tokens, prompt tokens (``prefill``) or those of a decode.
    """

    cause: str
    n: int
    k: int
    layers: int
    rows: str = "tokens"


class Streams(NamedTuple):
    """Memory-bound kernels of an iteration: ``kernels`` launches, ``bytes_per_token`` moved."""

    kernels: int
    bytes_per_token: int


def has_experts(model: ModelSpec) -> bool:
    """False for a dense model, which is one of a single expert."""
    return model.experts > 1


def attention_layers(model: ModelSpec, attention: AttentionSpec, tp: int) -> list[tuple[AttentionSizes, int]]:
    """(sizes on a rank, layers): with and without a window. A rank holds at least one KV head."""
    heads = attention.heads // tp
    if attention.kv_lora_rank is not None:
        return [(AttentionSizes(heads, 1, attention.kv_width, 0, MLA), model.layers)]
    kv_heads = max(1, (attention.kv_heads or 1) // tp)
    sizes = AttentionSizes(heads, kv_heads, attention.head_dim or 1, 0, GQA)
    if attention.window is None or attention.full_every is None:
        return [(sizes, model.layers)]
    full = model.layers // attention.full_every
    return [(sizes, full), (sizes._replace(window=attention.window), model.layers - full)]


def products(model: ModelSpec, attention: AttentionSpec, parallel: Parallelism) -> list[Product]:
    """All products of the layers; the LM head apart (``lm_head``)."""
    found = _projections(model, attention, parallel.tp)
    dense = dense_ffns(model)
    for width, layers in dense:
        found += [
            Product("dense_ffn", 2 * _share(width, parallel.tp), model.hidden, layers),
            Product("dense_ffn", model.hidden, _share(width, parallel.tp), layers),
        ]
    if has_experts(model):
        found.append(Product("router", model.experts, model.hidden, len(model.moe_layer_ids)))
    return found


def dense_ffns(model: ModelSpec) -> list[tuple[int, int]]:
    """(width, layers) of FFNs that all tokens use: those of dense layers, and shared experts."""
    moe = len(model.moe_layer_ids)
    found = [(model.dense_ffn or 0, model.dense_layers)]
    found.append((model.shared_experts * model.shared_ffn, moe) if has_experts(model) else (model.expert_ffn, moe))
    return [(width, layers) for width, layers in found if width and layers]


def lm_head(model: ModelSpec, tp: int) -> Product:
    """The output layer, split over the vocabulary."""
    return Product("lm_head", _share(model.vocabulary or 1, tp), model.hidden, 1)


def all_reduces(model: ModelSpec, parallel: Parallelism, combined_apart: bool | None = None) -> int:
    """All-reduces of hidden vectors over ``tp``: after attention and after the FFN of every layer; experts that are
    ``combined_apart``, by default those under data parallelism, have transfers of their own.
    """
    if parallel.tp == 1:
        return 0
    apart = parallel.dp > 1 if combined_apart is None else combined_apart
    return 2 * model.layers - (len(model.moe_layer_ids) if has_experts(model) and apart else 0)


def streams(model: ModelSpec, attention: AttentionSpec, tp: int) -> Streams:
    """Norms, RoPE and SwiGLU of all layers."""
    heads = attention.heads // tp
    if attention.kv_lora_rank is not None:
        rotated = (heads + 1) * (attention.qk_rope_head_dim or 0)
    else:
        rotated = (heads + max(1, (attention.kv_heads or 1) // tp)) * (attention.head_dim or 0)
    values = model.layers * (NORM_PASSES * model.hidden + ROPE_PASSES * rotated)
    kernels = model.layers * (NORM_KERNELS + ROPE_KERNELS)
    for width, layers in dense_ffns(model):
        values += layers * SWIGLU_PASSES * _share(width, tp)
        kernels += layers * SWIGLU_KERNELS
    return Streams(kernels, values * ACTIVATION_BYTES)


def _projections(model: ModelSpec, attention: AttentionSpec, tp: int) -> list[Product]:
    heads, hidden, layers = attention.heads // tp, model.hidden, model.layers
    if attention.kv_lora_rank is None:
        size, kv_heads = attention.head_dim or 1, max(1, (attention.kv_heads or 1) // tp)
        into = Product("projections", (heads + 2 * kv_heads) * size, hidden, layers)
        return [into, Product("projections", hidden, heads * size, layers)]
    rank, rope = attention.kv_lora_rank, attention.qk_rope_head_dim or 0
    nope, value = attention.qk_nope_head_dim or 0, attention.v_head_dim or 0
    query, low = heads * (nope + rope), attention.q_lora_rank
    found = [Product("projections", (query if low is None else low) + rank + rope, hidden, layers)]
    if low is not None:
        found.append(Product("projections", query, low, layers))
    # Prompts expand the latent vector to keys and values; decodes absorb both products into queries and outputs
    # (DeepSeek-V2, arXiv 2405.04434, section 2.1.2), with the same weights.
    found.append(Product("projections", heads * (nope + value), rank, layers, "prefill"))
    found.append(Product("projections", heads * (nope + value), rank, layers, "decode"))
    return [*found, Product("projections", hidden, heads * value, layers)]


def _share(width: int, ranks: int) -> int:
    return -(-width // ranks)
