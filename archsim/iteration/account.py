"""What a rank keeps in HBM while it serves: one account for runs, serving and checks.

================  ==================================================================================================
experts           weights of the experts that it holds, replicas included, in all MoE layers of the model
shared experts    its share of a tensor-parallel group, or all of them; see `shared_ranks`
attention         and all other weights (dense layers, routers, embeddings): its share of a tensor-parallel group;
                  embeddings in BF16
KV cache          of requests, with what linear attention keeps of each
activations       a bound for one step of one layer; see `activation_bytes`
================  ==================================================================================================
"""

from collections.abc import Mapping
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from archsim.base.dtypes import BF16_BYTES, WEIGHT_BYTES
from archsim.specs.deployment import Parallelism, Precision
from archsim.specs.model import ModelSpec

FP32_BYTES = 4
EXPERTS, SHARED, ATTENTION, ACTIVATIONS = "experts", "shared experts", "attention", "activations"


class Room(NamedTuple):
    """What HBM of a device leaves for KV. ``hbm_bytes``: its capacity; ``token_bytes``: KV of a token, on one rank."""

    free_bytes: int
    hbm_bytes: int
    token_bytes: float

    @property
    def tokens(self) -> int:
        """Tokens whose KV fits; a model of linear attention alone keeps none, and a byte stands for each."""
        return int(max(self.free_bytes, 0) // max(self.token_bytes, 1))

    @property
    def told(self) -> str:
        """As ``archsim check``, ``run`` and ``serve`` print it."""
        return (
            f"room for {self.tokens:,} tokens of KV a device ({max(self.free_bytes, 0) / 1e9:.1f} GB of "
            f"{self.hbm_bytes / 1e9:.1f} GB)"
        )


def room(kept: Mapping[str, Any], states: Any, bound: int, hbm_bytes: int, token_bytes: float) -> Room:
    """``kept``: kind → bytes of what is no KV, ``states``: what linear attention keeps of all requests: of a rank, or
    int64[rank], of which the fullest counts; ``bound``: bytes that a rank may use.
    """
    demand = sum(np.asarray(each) for each in kept.values()) + states
    return Room(int(bound - np.max(demand)), hbm_bytes, token_bytes)


def weights(model: ModelSpec, parallel: Parallelism, precision: Precision, slots: Any) -> dict[str, Any]:
    """Kind → bytes of weights on a rank that holds so many experts, all layers together: a number, or int64[rank]."""
    return {
        EXPERTS: np.ceil(slots * expert_bytes(model, precision)).astype(np.int64),
        SHARED: shared_bytes(model, precision, shared_ranks(parallel)),
        ATTENTION: other_bytes(model, precision, parallel.tp),
    }


def shared_ranks(parallel: Parallelism) -> int:
    """Ranks that divide each shared expert. Where all ranks have all tokens, those of the tensor-parallel group; where
    each rank of a group brings its share of the tokens to experts that all groups share, every rank has them whole:
    vLLM's use_sequence_parallel_moe (vllm/config/parallel.py: expert parallelism, tp > 1 and dp > 1), and SGLang's
    tp_size = 1 under DeepEP (models/deepseek_v2.py).
    """
    return 1 if parallel.dp > 1 and parallel.ep > 1 else parallel.tp


def expert_bytes(model: ModelSpec, precision: Precision) -> int:
    """Weights of one routed expert in one layer."""
    return ceil(model.slices * model.slice_weights * WEIGHT_BYTES[precision.experts])


def shared_bytes(model: ModelSpec, precision: Precision, ranks: int) -> int:
    """Weights of the shared experts of all layers that each of ``ranks`` holds."""
    return ceil(model.shared_weights * WEIGHT_BYTES[precision.products] / ranks)


def other_bytes(model: ModelSpec, precision: Precision, ranks: int) -> int:
    """Weights of attention, dense layers, routers and embeddings that each of ``ranks`` holds."""
    products = ceil((model.attention_weights + model.dense_weights) * WEIGHT_BYTES[precision.products])
    return ceil((products + model.embedding_weights * BF16_BYTES) / ranks)


def kv_token_bytes(model: ModelSpec, parallel: Parallelism, precision: Precision) -> float:
    """KV of a token on one rank, windows ignored; KV heads are not split further than one a rank."""
    value_bytes = int(WEIGHT_BYTES[precision.kv])
    return sum(
        layers * kind.kv_bytes_per_token(value_bytes) / kind.kv_ranks(parallel.tp)
        for kind, layers in model.attention_layers
    )


def request_bytes(model: ModelSpec, parallel: Parallelism, precision: Precision, context: int) -> int:
    """KV and state of a request of ``context`` tokens on one rank; windows keep no more than themselves."""
    value_bytes = int(WEIGHT_BYTES[precision.kv])
    kv = sum(
        layers * kind.kv_bytes(context, value_bytes) / kind.kv_ranks(parallel.tp)
        for kind, layers in model.attention_layers
    )
    return ceil(kv) + state_bytes(model, parallel)


def state_bytes(model: ModelSpec, parallel: Parallelism) -> int:
    """What linear attention keeps of a request on one rank."""
    return ceil(model.state_bytes / parallel.tp)


def activation_bytes(model: ModelSpec, parallel: Parallelism, precision: Precision, tokens, requests):
    """A bound for the activations of one step on a rank: int or int64[rank], of the shape of ``tokens`` and
    ``requests``, those of its tensor-parallel group.

    Of every token in one layer: its hidden vector before and after, in BF16; of every pair of token and expert on the
    rank the vector sent, in the data type, and returned, in BF16, and the products with gate and up, in BF16; and of
    every request its logits in FP32. Ranks are taken to receive as many pairs as they send; skew, and the fixed buffers
    of communication libraries, are in the reserve.
    """
    ffn = model.expert_ffn / (parallel.expert_tp if model.experts > 1 else parallel.tp)
    of_pair = ceil(model.hidden * WEIGHT_BYTES[precision.experts]) + model.hidden * BF16_BYTES
    pairs = model.top_k * parallel.dp / parallel.ep if model.experts > 1 else 1.0
    of_token = ceil(2 * model.hidden * BF16_BYTES + pairs * (of_pair + 2 * ceil(ffn) * BF16_BYTES))
    return tokens * of_token + requests * ceil((model.vocabulary or 0) * FP32_BYTES / parallel.tp)
