"""What a rank computes in one layer beside attention and experts: products, all-reduces, and memory-bound kernels.

Weights are split as Megatron-LM does (Shoeybi et al., arXiv 1909.08053): projections into heads and the first FFN
product by columns, projections out of heads and the second FFN product by rows, with one all-reduce after each.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from archsim.base.errors import SpecError
from archsim.iteration.attention.kind import Kind
from archsim.iteration.attention.kind import Streams as Beside
from archsim.specs.deployment import Parallelism
from archsim.specs.model import ModelSpec

ACTIVATION_BYTES = 2  # hidden vectors are BF16
LOGIT_BYTES = 4  # FP32
# Memory-bound kernels, as passes over a vector of each token: both RMS norms read the hidden vector and the residual
# and write both; SwiGLU reads two FFN vectors and writes one.
NORM_PASSES, SWIGLU_PASSES = 2 * 4, 3
NORM_KERNELS, SWIGLU_KERNELS = 2, 1
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


def attentions(model: ModelSpec) -> list[tuple[Kind, int]]:
    """Kinds of attention and how many of each the model has. Raises SpecError for one that only counts memory."""
    found = []
    for kind, layers in model.attention_layers:
        if not isinstance(kind, Kind):
            raise SpecError(f"{model.name}: attention of kind {kind.kind} has no times; let its class extend Kind")
        found.append((kind, layers))
    return found


def products(model: ModelSpec, parallel: Parallelism, apart: Collection[Kind] = ()) -> list[Product]:
    """All products of the layers, without the LM head (``lm_head``) and those of the attentions ``apart``."""
    found = [
        Product("projections", each.n, each.k, layers, each.rows)
        for kind, layers in attentions(model)
        if kind not in apart
        for each in kind.products(model.hidden, parallel.tp)
    ]
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


def streams(model: ModelSpec, tp: int, apart: Collection[Kind] = ()) -> Streams:
    """Norms, positions and SwiGLU of all layers; of the attentions ``apart`` their norm alone."""
    values, kernels = model.layers * NORM_PASSES * model.hidden, model.layers * NORM_KERNELS
    for kind, layers in attentions(model):
        of_kind = kind.streams(tp) if kind not in apart else Beside(0, 0)
        values += layers * of_kind.values
        kernels += layers * of_kind.kernels
    for width, layers in dense_ffns(model):
        values += layers * SWIGLU_PASSES * _share(width, tp)
        kernels += layers * SWIGLU_KERNELS
    return Streams(kernels, values * ACTIVATION_BYTES)


def _share(width: int, ranks: int) -> int:
    return -(-width // ranks)
